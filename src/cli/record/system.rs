//! `synclater record` by the kernel's trace points.

use super::Args;
use crate::cli::requesters::{self, Purpose};
use crate::cli::OURS;
use crate::reach::launch;
use crate::record::kernel::{Recording, Then};
use crate::record::out;
use crate::record::sink::{self, Sink};
use crate::voice::say;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use synclater_sys::children::{self, Change};
use synclater_sys::command;
use synclater_sys::signal;
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, For};
use synclater_text::message::Trouble;
use synclater_text::number::counted;

const NOT_RECORDED: &str = "nothing was recorded, and no command was started";
const PURPOSE: Purpose = Purpose {
    verb: "record",
    state: NOT_RECORDED,
};
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
    let mut filter = args.whose.filter(PURPOSE)?;
    if !args.command.is_empty() {
        filter.pids.insert(std::process::id());
    }
    let signals =
        Signals::take().map_err(|e| cannot("cannot record", e.to_string(), "try again"))?;
    let ring = if args.ring == 4 << 20 {
        RING_BYTES_MIN
    } else {
        args.ring
    };
    let engine = requesters::engine(&filter, ring, PURPOSE)?;
    let file = out::open(&args.output, args.force).map_err(|e| cannot_write(&args.output, &e))?;
    let command: Vec<String> = args
        .command
        .iter()
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let mut header = sink::header("", &command, "now", "kernel");
    if !args.whose.is_everybody() {
        header.whose = args.whose.words();
    }
    let sink = Sink::begin(file, &header, Duration::from_secs(1))
        .map_err(|e| cannot_write(&args.output, &e))?;
    record(args, Recording::new(engine, sink), &signals)
}

fn cannot_write(path: &Path, e: &std::io::Error) -> Trouble {
    let what = format!("cannot record into {}", path.display());
    cannot(what, e.to_string(), out::remedy_of(e))
}

/// Starts the command, if any, and records until its end, the time, or a signal.
fn record(args: &Args, recording: Recording, signals: &Signals) -> anyhow::Result<i32> {
    let mut child = None;
    if let Some((program, rest)) = args.command.split_first() {
        let mut command = Command::new(program);
        command.args(rest);
        match command::spawn(command, &signals.inherited) {
            Ok(pid) => child = Some(pid),
            Err(e) => {
                let what = format!("cannot run {}", program.to_string_lossy());
                let (why, try_) = launch::why_not(program, &e);
                say(&format!("{}\n", cannot(what, why, &try_)));
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
        let gone = args.command.is_empty() && args.whose.are_gone();
        let over = watch.stopped || gone || end.is_some_and(|end| Instant::now() >= end);
        if over || watch.outcome.is_some() {
            Then::End
        } else {
            Then::GoOn
        }
    });
    let told = recorded.map_err(|e| out::not_whole(&args.output, &e, "a command goes on"));
    match &told {
        Ok((requests, lost)) => tell(args, *requests, *lost),
        Err(trouble) => say(&format!("{trouble}\n")),
    }
    watch.wait_for_child();
    Ok(match (told, watch.outcome) {
        (Err(_), _) => OURS,
        (_, Some(Change::Exited(status))) => status,
        (_, Some(Change::Signaled(signal))) => {
            signal::die_of(signal);
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
                Some(pid) => signal.pass_on(pid, 0),
                None if signal.ends() => self.stopped = true,
                _ => {}
            }
        }
        while let Some((pid, change)) = children::next_change(self.child.unwrap_or(0)) {
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
