//! `synclater crash`: power cuts of any program.

mod found;
mod inside;
mod missing;
mod progress;
mod replay;
mod stop;
mod told;

use super::OURS;
use crate::crash::builtin::Builtin;
use crate::crash::fs::Kind;
use crate::session::folder;
use clap::ValueEnum;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use synclater_policy::dial::Until;
use synclater_policy::duration::parse_duration;
use synclater_sys::job::Job;
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, For};
use synclater_sys::{contain, process};
use synclater_text::message::Trouble;

/// Cuts the power under any program, and shows what it loses and which sync was missing.
///
/// The command runs on a disk of its own that remembers every write, in the folder that stands for
/// `{}` in its arguments. Each line that it prints is an acknowledgement. Then the states that a
/// power cut could have left are mounted, one after the other, and judged by the check, which gets
/// two more arguments: the folder, and a file with the lines that the command had printed by then.
/// Its exit status says: 0 all is well, 1 something is lost or corrupt. A shell line that names $1
/// or $2 itself gets nothing appended. It begins in the folder in which synclater was called.
///
/// Checks that are brought along: builtin:sqlite (databases are whole), builtin:maildir (messages
/// are whole, and those whose names were printed are there), builtin:git (repositories are whole,
/// and have the commits whose names were printed); builtin:prefix, which brings its own command;
/// and builtin:none, which knows nothing of the program: what lay in the folder at the lines on
/// both sides of the cut has to be there.
///
/// Needs root, FUSE and loop devices. Nothing is left behind but the states that failed, those of
/// the last 20 times, in `crash` of the state directory (/var/lib/synclater), for --replay.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file system on the disk.
    #[arg(long, value_enum, default_value_t = Kind::Ext4)]
    fs: Kind,

    /// Size of the disk, as 512M or 2G; without it 256M, 320M for XFS.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,

    /// Bytes of a sector, which is written whole or not at all: 512 or 4096.
    #[arg(long, value_name = "N", default_value = "4096")]
    #[arg(value_parser = ["512", "4096"])]
    sector: String,

    /// More words for mkfs, in one argument.
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    mkfs: Option<String>,

    /// Options of mount(8), with commas between them.
    #[arg(short, long, value_name = "LIST", default_value = "")]
    options: String,

    /// The dial under which the command runs, as of `run`: now, a DURATION, exit, never. What it
    /// puts at stake is seen in numbers.
    #[arg(short, long, value_name = "WHEN", default_value = "now", value_parser = dial)]
    until: String,

    /// Judges a state: a shell command line, or builtin:NAME.
    #[arg(long, value_name = "CMD", required_unless_present = "replay", value_parser = check)]
    check: Option<Judge>,

    /// A shell command line that is run on the disk before, and whose work is safe.
    #[arg(long, value_name = "CMD")]
    setup: Option<OsString>,

    /// The descriptor on which the command acknowledges, in place of stdout: 3 to 9.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=9))]
    ack_fd: Option<u32>,

    /// How long to search, or about how many states; the search for missing syncs takes up to 30 s
    /// more.
    #[arg(long, value_name = "T|N", default_value = "30s", value_parser = budget)]
    budget: Budget,

    /// Chooses what is random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How long the command, and --setup, may run; then it is killed, and that is its end.
    #[arg(long = "for", value_name = "T", default_value = "1min", value_parser = parse_duration)]
    for_: Duration,

    /// How long a check may take; a state on which it takes longer is bad ("hangs").
    #[arg(long, value_name = "T", default_value = "10s", value_parser = parse_duration)]
    patience: Duration,

    /// The file system's own check looks at each good state too.
    #[arg(long)]
    fsck: bool,

    /// The disk answers flushes and does not make them.
    #[arg(long)]
    lies: bool,

    /// What each flush of the disk takes while the command runs.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    flush_takes: Option<Duration>,

    /// What a share of the flushes takes more, as 10%:63ms: an erratic disk.
    #[arg(long, value_name = "SHARE:T", value_parser = sometimes)]
    flush_sometimes: Option<(f64, Duration)>,

    /// The flush of this number fails with EIO; with a + behind it, all from there on.
    #[arg(long, value_name = "N[+]", value_parser = failing)]
    fail_flush: Option<(u64, bool)>,

    /// The write of this number fails with EIO; with a + behind it, all from there on.
    #[arg(long, value_name = "N[+]", value_parser = failing)]
    fail_write: Option<(u64, bool)>,

    /// Do not look for the sync that was missing.
    #[arg(long)]
    no_rerun: bool,

    /// Mount a state that failed, as the report names it, and leave it mounted for a look.
    #[arg(long, value_name = "ID", conflicts_with_all = ["check", "command", "setup"])]
    replay: Option<String>,

    /// Write the report as a page too, with a line in time.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,

    /// The command and its arguments; builtin:prefix brings its own.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Who judges, as it was asked for.
#[derive(Clone, Debug)]
enum Judge {
    Shell(OsString),
    Builtin(Builtin),
    Neighbours,
}

impl Judge {
    /// As it was asked for.
    fn text(&self) -> String {
        match self {
            Judge::Shell(line) => line.to_string_lossy().into_owned(),
            Judge::Builtin(builtin) => format!("builtin:{}", builtin.name()),
            Judge::Neighbours => "builtin:none".to_owned(),
        }
    }
}

fn check(text: &str) -> Result<Judge, String> {
    match text.strip_prefix("builtin:") {
        None if text.trim().is_empty() => Err("it says nothing".into()),
        None => Ok(Judge::Shell(text.into())),
        Some("none") => Ok(Judge::Neighbours),
        Some(name) => Builtin::from_str(name, false).map(Judge::Builtin).map_err(|_| {
            "there are builtin:sqlite, builtin:maildir, builtin:git, builtin:prefix, builtin:none"
                .to_owned()
        }),
    }
}

fn dial(text: &str) -> Result<String, String> {
    text.parse::<Until>()
        .map(|_| text.to_owned())
        .map_err(|e| e.to_string())
}

fn failing(text: &str) -> Result<(u64, bool), String> {
    let number = text.strip_suffix('+').unwrap_or(text);
    match number.parse() {
        Ok(n @ 1..) => Ok((n, number != text)),
        _ => Err("not a number from 1, as 7, or 7+ for all from there on".into()),
    }
}

fn sometimes(text: &str) -> Result<(f64, Duration), String> {
    let wrong = "not a share and a time, as 10%:63ms";
    let (share, time) = text.split_once("%:").ok_or(wrong)?;
    let share: f64 = share.parse().map_err(|_| wrong)?;
    let time = parse_duration(time).map_err(|e| e.to_string())?;
    if (0.0..=100.0).contains(&share) {
        Ok((share / 100.0, time))
    } else {
        Err("not a share from 0 to 100 %".to_owned())
    }
}

/// The writer that is brought along, where a command is expected.
const WRITER: &str = "builtin:prefix";

impl Args {
    /// The command.
    fn words(&self) -> Vec<OsString> {
        match (self.command.is_empty(), &self.check) {
            (true, Some(Judge::Builtin(Builtin::Prefix))) => vec![WRITER.into()],
            _ => self.command.clone(),
        }
    }
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater crash --check ./check.py -- ./writer.py
  synclater crash --fs xfs --budget 500 --check ./check.py -- ./writer {}/data
  synclater crash -u exit --check ./check.py -- ./writer.py
  synclater crash --setup 'git init -q .' --check builtin:git -- ./commits.sh
  synclater crash --fs btrfs --check builtin:prefix
  synclater crash --replay 7f3a09c2/F1

Exit status: 0 no bad state, 1 some, 125 synclater's own trouble, or a check that is broken
or answers differently on one state.";

/// How much is searched.
#[derive(Clone, Copy, Debug)]
enum Budget {
    Time(Duration),
    States(u64),
}

fn budget(text: &str) -> Result<Budget, String> {
    match text.parse() {
        Ok(0) => Err("0 states are none".into()),
        Ok(states) => Ok(Budget::States(states)),
        Err(_) => parse_duration(text)
            .map(Budget::Time)
            .map_err(|e| e.to_string()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
        _ => return Err("not a number of mebibytes or gibibytes, as 256M or 1G".into()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let fits = bytes.filter(|bytes| (16 << 20..=16 << 30).contains(bytes));
    fits.ok_or_else(|| "not from 16M to 16G".to_owned())
}

const NOTHING: &str = "nothing was run; nothing is left";
const PREFIX: &str = ".synclater-crash-";

/// Runs it in namespaces of its own.
///
/// # Errors
/// A [`Trouble`] where these cannot be had.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    if args.replay.is_none() && args.words().is_empty() {
        let try_ = "synclater crash --check ./check.py -- ./writer.py";
        let what = "there is no command to be run";
        return Err(Trouble::new(what, "nothing stands behind `--`", try_, NOTHING).into());
    }
    if process::effective_user() != 0 {
        let try_ = "run it as root, in a virtual machine or container of yours if you like";
        let why = format!("this is user {}", process::effective_user());
        let what = "only root may mount the laboratory's disk";
        return Err(Trouble::new(what, why, try_, NOTHING).into());
    }
    super::needs_proc("make a laboratory")?;
    if let Some(size) = args.size.filter(|size| *size < args.fs.least_size()) {
        let (name, least) = (args.fs.name(), args.fs.least_size() >> 20);
        let what = format!("--size {}M is too small for {name}", size >> 20);
        let why = format!("its smallest disk here has {least}M");
        return Err(Trouble::new(what, why, format!("--size {least}M"), NOTHING).into());
    }
    for (device, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        if let Err(e) = std::fs::metadata(device) {
            let what = format!("there is no {device}");
            let try_ = format!("`modprobe {module}`; in a container give it the device");
            return Err(Trouble::new(what, e.to_string(), try_, NOTHING).into());
        }
    }
    if let Some(id) = &args.replay {
        return replay::run(id, args.json);
    }
    let temp = std::path::absolute(std::env::temp_dir()).unwrap_or_else(|_| "/tmp".into());
    let cwd = std::env::current_dir().unwrap_or_else(|_| "/".into());
    folder::remove_abandoned(&temp, PREFIX);
    let made = folder::make_locked(&temp, PREFIX);
    let (dir, _lock) = made.map_err(|e| {
        let what = format!("cannot make a folder in {}", temp.display());
        Trouble::new(what, e.to_string(), "set TMPDIR to another folder", NOTHING)
    })?;
    let signals = Signals::take()?;
    let job = contain::start(|made| {
        super::said(made.map_err(|e| no_namespaces(&e).into()).and_then(|()| {
            std::env::set_current_dir(&cwd)?;
            inside::run(args, &dir, signals.inherited)
        }))
    });
    let status = job.map(|job| attend(&job, &signals, &dir));
    let _ = std::fs::remove_dir_all(&dir);
    match status.map_err(|e| no_namespaces(&e))? {
        status @ (0 | 1 | OURS) => Ok(status),
        status => Err(killed(status).into()),
    }
}

/// Waits for the laboratory; its exit status. A first signal asks it to end, a second one kills it.
fn attend(job: &Job, signals: &Signals, dir: &Path) -> i32 {
    let mut ends = 0;
    loop {
        if let Some(status) = job.status() {
            return status;
        }
        let watched = [(job.as_fd(), For::Input), (signals.as_fd(), For::Input)];
        let _ = wait::any(&watched, Duration::from_secs(1));
        while let Some(signal) = signals.next() {
            ends += u32::from(signal.ends());
        }
        match ends {
            0 => {}
            1 => stop::stop(dir),
            _ => job.kill(),
        }
    }
}

fn no_namespaces(e: &std::io::Error) -> Trouble {
    let try_ = "a container may forbid it: give it CAP_SYS_ADMIN, or run it outside";
    Trouble::new("cannot make namespaces", e.to_string(), try_, NOTHING)
}

fn killed(status: i32) -> Trouble {
    let why = match status - 128 {
        signal @ 1.. => format!("signal {signal} ended it"),
        _ => format!("its status is {status}"),
    };
    let try_ = "did the command kill every process that it could? Was memory short?";
    let state = "there is no result; the kernel took its mounts, devices and processes away";
    Trouble::new("the laboratory was killed", why, try_, state)
}
