//! `synclater record` by the kernel's trace points.

use super::Args;
use crate::cli::{say, OURS};
use crate::reach::launch;
use crate::record::kernel::{Recording, Then};
use crate::record::sink::{self, Sink};
use crate::session::filesystems::mounts_of;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use synclater_bpf::{cgroup_id, Engine, Filter};
use synclater_model::policy::filesystem::{mount_of, Mount};
use synclater_model::report::message::Trouble;
use synclater_model::report::number::counted;
use synclater_sys::process::{self, Change};
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, For};

const NOT_RECORDED: &str = "nothing was recorded, and no command was started";
/// The kernel's ring is one for all processes.
const RING_BYTES_MIN: usize = 16 << 20;

fn cannot(what: impl Into<String>, why: impl Into<String>, try_: &str) -> Trouble {
    Trouble::new(what.into(), why.into(), try_, NOT_RECORDED)
}

/// Records; returns the command's exit status, or 0.
///
/// # Errors
/// A [`Trouble`] where the kernel cannot be asked, or the file not be written.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let filter = filter(args)?;
    let signals =
        Signals::take().map_err(|e| cannot("cannot record", e.to_string(), "try again"))?;
    let ring = if args.ring == 4 << 20 {
        RING_BYTES_MIN
    } else {
        args.ring
    };
    let engine = Engine::open(&filter, ring).map_err(|e| {
        let try_ = match e {
            synclater_bpf::Error::NotPermitted(_) => "run it as root",
            synclater_bpf::Error::NotBuilt(_) => {
                "build it where clang and libelf's headers are, or record without --system"
            }
            _ => "`synclater record -o FILE -- COMMAND` needs nothing of the kernel",
        };
        cannot("cannot ask the kernel", e.to_string(), try_)
    })?;
    let file = File::create(&args.output).map_err(|e| cannot_write(&args.output, &e))?;
    let command: Vec<String> = { args.command.iter() }
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let header = sink::header("", &command, "now", "kernel");
    let sink = Sink::begin(file, &header, Duration::from_secs(1))
        .map_err(|e| cannot_write(&args.output, &e))?;
    record(args, Recording::new(engine, sink), &signals)
}

fn cannot_write(path: &Path, e: &std::io::Error) -> Trouble {
    let what = format!("cannot record into {}", path.display());
    cannot(
        what,
        e.to_string(),
        "name a file that you can write, with room",
    )
}

/// Starts the command, if any, and records until its end, the time, or a signal.
fn record(args: &Args, recording: Recording, signals: &Signals) -> anyhow::Result<i32> {
    let mut child = None;
    if let Some((program, rest)) = args.command.split_first() {
        let mut command = Command::new(program);
        command.args(rest);
        match process::spawn(command, &signals.inherited) {
            Ok(pid) => child = Some(pid),
            Err(e) => {
                let what = format!("cannot run {}", program.to_string_lossy());
                say(&format!(
                    "{}\n",
                    cannot(what, e.to_string(), "check its name and rights")
                ));
                return Ok(launch::failure_status(&e));
            }
        }
    } else if std::io::stderr().is_terminal() && !args.quiet {
        say("synclater: recording; Ctrl-C ends it\n");
    }
    let end = args.for_.map(|t| Instant::now() + t);
    let mut watch = Watch {
        signals,
        child,
        outcome: None,
        stopped: false,
    };
    let recorded = recording.run(|| {
        watch.look();
        let over = watch.stopped || end.is_some_and(|end| Instant::now() >= end);
        if over || watch.outcome.is_some() {
            Then::End
        } else {
            Then::GoOn
        }
    });
    let told = recorded.map_err(|e| not_whole(&args.output, &e));
    match &told {
        Ok((requests, lost)) => tell(args, *requests, *lost),
        Err(trouble) => say(&format!("{trouble}\n")),
    }
    watch.wait_for_child();
    Ok(match (told, watch.outcome) {
        (Err(_), _) => OURS,
        (_, Some(Change::Exited(status))) => status,
        (_, Some(Change::Signaled(signal))) => {
            process::die_of(signal);
            OURS
        }
        _ => 0,
    })
}

/// The command, and who wants to end it.
struct Watch<'a> {
    signals: &'a Signals,
    child: Option<u32>,
    /// How the command ended.
    outcome: Option<Change>,
    /// A signal said so, where there is no command.
    stopped: bool,
}

impl Watch<'_> {
    fn look(&mut self) {
        while let Some(signal) = self.signals.next() {
            match self.child {
                // A key at the terminal reached it too.
                Some(pid) if signal.ends() && !signal.by_kernel => {
                    let _ = process::kill(pid, signal.number);
                }
                None if signal.ends() => self.stopped = true,
                _ => {}
            }
        }
        while let Some((pid, change)) = process::next_change(&[]) {
            if Some(pid) == self.child && matches!(change, Change::Exited(_) | Change::Signaled(_))
            {
                self.outcome = Some(change);
            }
        }
    }

    /// The recording may end before the command: at its time, or where it cannot be written.
    fn wait_for_child(&mut self) {
        use std::os::fd::AsFd;
        while self.child.is_some() && self.outcome.is_none() {
            let arrived = [(self.signals.as_fd(), For::Input)];
            let _ = wait::any(&arrived, Duration::from_secs(1));
            self.look();
        }
    }
}

fn not_whole(path: &Path, e: &std::io::Error) -> Trouble {
    Trouble::new(
        format!("the recording {} is not whole", path.display()),
        e.to_string(),
        "free space there, or name another file, and record again",
        "a command goes on; the file reads up to its last whole batch",
    )
}

fn tell(args: &Args, requests: u64, lost: u64) {
    if !(args.summary || std::io::stderr().is_terminal() && !args.quiet) {
        return;
    }
    let mut text = format!(
        "synclater: {} recorded in {}",
        counted(requests, "request"),
        args.output.display()
    );
    if lost > 0 {
        let lost = counted(lost, "request");
        text.push_str(&format!(
            ";\n           {lost} NOT recorded: the ring was full (--ring)"
        ));
    }
    say(&format!("{text}\n"));
}

fn filter(args: &Args) -> Result<Filter, Trouble> {
    let mut filter = Filter {
        exes: args.exe.iter().cloned().collect(),
        pids: args.pid.iter().copied().collect(),
        descendants: true,
        ..Filter::default()
    };
    if let Some(gone) = args.pid.iter().find(|pid| !process::is_alive(**pid)) {
        let what = format!("cannot record process {gone}");
        return Err(cannot(
            what,
            "there is no such process",
            "look it up with `ps`",
        ));
    }
    if !args.command.is_empty() {
        filter.pids.insert(std::process::id());
    }
    for unit in &args.unit {
        let found = unit_folder(unit).ok_or_else(|| {
            let what = format!("cannot record unit {unit}");
            let why = "no control group of that name below the version 2 hierarchy";
            cannot(
                what,
                why,
                "look it up with `systemctl status`, or use --pid",
            )
        })?;
        let id = cgroup_id(&found);
        let id = id.map_err(|e| {
            cannot(
                format!("cannot record unit {unit}"),
                e.to_string(),
                "use --pid",
            )
        })?;
        filter.cgroups.insert(id);
    }
    for path in &args.device {
        filter.devices.extend(device(path)?);
    }
    Ok(filter)
}

/// The folder of a unit's control group: NAME or NAME.service, anywhere below version 2's root.
fn unit_folder(unit: &str) -> Option<PathBuf> {
    let root = mounts_of("self")
        .into_iter()
        .find(|m| m.fstype == "cgroup2")?;
    let mut todo = vec![root.path().to_path_buf()];
    for _ in 0..10_000 {
        let dir = todo.pop()?;
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|t| t.is_dir()) {
                continue;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name == unit || name.strip_suffix(".service") == Some(unit) {
                return Some(entry.path());
            }
            todo.push(entry.path());
        }
    }
    None
}

/// Superblocks of a block device, or the one that a folder lies on.
fn device(path: &Path) -> Result<Vec<(u32, u32)>, Trouble> {
    let what = || format!("cannot record device {}", path.display());
    let full = std::fs::canonicalize(path);
    let full =
        full.map_err(|e| cannot(what(), e.to_string(), "name a device or a folder on it"))?;
    let table = mounts_of("self");
    let meta = std::fs::metadata(&full);
    let meta =
        meta.map_err(|e| cannot(what(), e.to_string(), "name a device or a folder on it"))?;
    if !meta.file_type().is_block_device() {
        return Ok(mount_of(&table, &full).map(|m| m.dev).into_iter().collect());
    }
    let number = meta.rdev();
    let number = (rustix::fs::major(number), rustix::fs::minor(number));
    // btrfs has a number of its own for a file system; its mounts name the device.
    let is_source = |m: &&Mount| std::fs::canonicalize(&m.source).is_ok_and(|s| s == full);
    let of_mounts = table.iter().filter(is_source).map(|m| m.dev);
    Ok(of_mounts.chain([number]).collect())
}
