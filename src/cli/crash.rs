//! `synclater crash`: power cuts of any program.

mod inside;

use super::OURS;
use crate::crash::fs::Kind;
use crate::folder;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;
use synclater_model::policy::duration::parse_duration;
use synclater_model::report::message::Trouble;
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, For};
use synclater_sys::{contain, process};

/// Cuts the power under any program, and shows what it loses and which sync was missing.
///
/// The command runs on a disk of its own that remembers every write, in the folder that stands for
/// `{}` in its arguments. Then the states that a power cut could have left are mounted, one after
/// the other, and judged by the check, which gets two more arguments: the folder, and a file with
/// the lines that the command had printed by then. Its exit status says: 0 all is well, 1 something
/// is lost or corrupt. Needs root, FUSE and loop devices; nothing is left behind.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file system on the disk.
    #[arg(long, value_enum, default_value_t = Kind::Ext4)]
    fs: Kind,

    /// Bytes of the disk; without it 256M, 320M for XFS.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,

    /// Bytes of a sector, which is written whole or not at all: 512 or 4096.
    #[arg(long, value_name = "N", default_value = "4096")]
    #[arg(value_parser = ["512", "4096"])]
    sector: String,

    /// More words for mkfs, in one argument.
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    mkfs: Option<String>,

    /// Options of mount(8).
    #[arg(short, long, value_name = "LIST", default_value = "")]
    options: String,

    /// The dial under which the command runs: what it puts at stake is seen in numbers.
    #[arg(short, long, value_name = "WHEN", default_value = "now")]
    until: String,

    /// Judges a state: a shell command line.
    #[arg(long, value_name = "CMD")]
    check: OsString,

    /// A shell command line that is run on the disk before, and whose work is safe.
    #[arg(long, value_name = "CMD")]
    setup: Option<OsString>,

    /// The descriptor on which the command acknowledges, in place of stdout.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..1000))]
    ack_fd: Option<u32>,

    /// How long to search, or how many states.
    #[arg(long, value_name = "T|N", default_value = "30s", value_parser = budget)]
    budget: Budget,

    /// Chooses what is random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How long the command may run; then it is killed, and that is its end.
    #[arg(long = "for", value_name = "T", default_value = "1min", value_parser = parse_duration)]
    for_: Duration,

    /// How long a check may take.
    #[arg(long, value_name = "T", default_value = "10s", value_parser = parse_duration)]
    patience: Duration,

    /// The disk answers flushes and does not make them.
    #[arg(long)]
    lies: bool,

    /// What each flush of the disk takes while the command runs.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    flush_takes: Option<Duration>,

    /// Do not look for the sync that was missing.
    #[arg(long)]
    no_rerun: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// No progress.
    #[arg(short, long)]
    quiet: bool,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater crash --check ./check.py -- ./writer.py
  synclater crash --fs xfs --budget 500 --check ./check.py -- ./writer {}/data
  synclater crash -u exit --check ./check.py -- ./writer.py
  synclater crash --setup 'git init -q .' --check 'git fsck' -- ./commits.sh

Exit status: 0 no bad state, 1 some, 125 synclater's own trouble.";

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
    let split = text.len()
        - text
            .chars()
            .last()
            .filter(|c| c.is_alphabetic())
            .map_or(0, char::len_utf8);
    let (number, unit) = text.split_at(split);
    let shift = match unit {
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err("not a number of mebibytes or gibibytes, as 256M or 1G".into()),
    };
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift));
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
    if process::effective_user() != 0 {
        let try_ = "run it as root, in a virtual machine or container of yours if you like";
        let why = format!("this is user {}", process::effective_user());
        let what = "only root may mount the laboratory's disk";
        return Err(Trouble::new(what, why, try_, NOTHING).into());
    }
    for (device, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        if let Err(e) = std::fs::metadata(device) {
            let what = format!("there is no {device}");
            let try_ = format!("`modprobe {module}`; in a container give it the device");
            return Err(Trouble::new(what, e.to_string(), try_, NOTHING).into());
        }
    }
    let temp = std::env::temp_dir();
    folder::remove_abandoned(&temp, PREFIX);
    let cannot = |what: String, e: std::io::Error| {
        Trouble::new(what, e.to_string(), "set TMPDIR to another folder", NOTHING)
    };
    let made = folder::make_locked(&temp, PREFIX);
    let (dir, _lock) = made.map_err(|e| {
        let what = format!("cannot make a folder in {}", temp.display());
        cannot(what, e)
    })?;
    let signals = Signals::take()?;
    let job = contain::start(|| super::said(inside::run(args, &dir, signals.inherited)));
    let job = job.map_err(|e| {
        let _ = std::fs::remove_dir_all(&dir);
        let try_ = "a container may forbid it: give it CAP_SYS_ADMIN, or run it outside";
        Trouble::new("cannot make namespaces", e.to_string(), try_, NOTHING)
    })?;
    let status = loop {
        if let Some(status) = job.finished() {
            break status;
        }
        let _ = wait::any(
            &[(job.as_fd(), For::Input), (signals.as_fd(), For::Input)],
            Duration::from_secs(1),
        );
        while let Some(signal) = signals.next() {
            // A key at the terminal reached the laboratory too; a second signal ends it at once.
            if signal.ends() && !signal.by_kernel {
                inside::stop(&dir);
            }
        }
    };
    let _ = std::fs::remove_dir_all(&dir);
    Ok(if status > 1 { OURS } else { status })
}
