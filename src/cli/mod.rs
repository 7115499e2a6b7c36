//! The command line: one table of verbs and flags, from which help, man pages and completions come.

mod attach;
mod crash;
mod crash_check;
mod detach;
mod dials;
mod diff;
mod doctor;
mod eatmydata;
mod env;
mod explain;
mod export;
mod generate;
mod paid;
mod probe;
mod ps;
mod record;
pub mod recording;
mod report;
mod requesters;
mod run;
mod set;
mod settle;
mod status;
mod top;
mod whole_file;

use crate::session::stale::Cleared;
use crate::voice;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::BorrowedFd;
use synclater_account::run::SettleError;
use synclater_sys::clock::Reading;
use synclater_text::layout::{fit, shown};
use synclater_text::message::Trouble;

/// Status of a usage or internal error, or of a run whose settling failed.
pub const OURS: i32 = 125;

/// Runs any program with its sync calls under control: measured, later, bounded.
///
/// A sync call (fsync and its kin) is a promise that data is on the disk. synclater answers it at
/// once and keeps it later; until when is the dial, --until. Two things are given up in between:
/// *when* the data is durable, and the *order* in which it gets there. The dial bounds the first
/// only: after a power cut during a run, what was being changed may be lost or torn.
#[derive(Parser)]
#[command(name = "synclater", version, max_term_width = 80, after_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = false)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater run -- apt-get install -y postgresql
  synclater run --until 1s --only exe=imap -- dovecot -F
  synclater record -o import.rec -- ./import-mail
  synclater report import.rec
  synclater ps
  synclater status

Exit status: the command's own; 125 synclater's (usage, or settling failed),
126 the command cannot be executed, 127 it was not found.";

#[derive(Subcommand)]
enum Verb {
    Run(run::Args),
    Attach(attach::Args),
    Detach(detach::Args),
    Record(record::Args),
    Report(report::Args),
    Explain(explain::Args),
    Diff(diff::Args),
    Crash(crash::Args),
    Export(export::Args),
    Top(top::Args),
    Ps(ps::Args),
    Set(set::Args),
    Settle(settle::Args),
    Status(status::Args),
    Probe(probe::Args),
    Doctor(doctor_args::Args),
    Env(env::Args),
    Generate(generate::Args),
}

/// The flags of `doctor`, whose checks are in a file of their own.
mod doctor_args {
    /// Shows what works on this machine, and what to do about what does not.
    ///
    /// Exit status: 0, or 1 where something that synclater relies on does not work.
    #[derive(clap::Args)]
    #[command(after_help = "EXAMPLES\n  synclater doctor\n  synclater doctor --json")]
    pub struct Args {
        /// Print JSON.
        #[arg(long)]
        pub json: bool,
    }
}

/// The command line as clap knows it: for help, man pages and completions.
#[must_use]
pub fn table() -> clap::Command {
    Cli::command()
}

/// Does what the command line says; returns the exit status.
#[must_use]
pub fn main() -> i32 {
    synclater_sys::process::be_synclater();
    let argv: Vec<OsString> = std::env::args_os().collect();
    crate::session::dirs::begin_here();
    fit_terminal();
    if eatmydata::is_meant(&argv) {
        return said(eatmydata::run(&argv));
    }
    if let Some(done) = crash_check::called(&argv) {
        return said(done);
    }
    let cli = match Cli::try_parse_from(&argv) {
        Ok(cli) => cli,
        Err(e) => {
            if e.use_stderr() {
                voice::say(&wrong_usage(&e));
                return OURS;
            }
            let text = if std::io::stdout().is_terminal() {
                e.render().ansi().to_string()
            } else {
                e.render().to_string()
            };
            return said(voice::print(&text).map(|()| 0).map_err(Into::into));
        }
    };
    said(match cli.verb {
        Verb::Run(args) => run::run(args),
        Verb::Attach(args) => attach::run(&args),
        Verb::Detach(args) => detach::run(&args),
        Verb::Record(args) => record::run(args),
        Verb::Ps(args) => ps::run(&args),
        Verb::Set(args) => set::run(&args),
        Verb::Settle(args) => settle::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Doctor(args) => doctor::run(args.json),
        Verb::Top(args) => top::run(&args),
        Verb::Crash(args) => crash::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Diff(args) => diff::run(&args),
        Verb::Export(args) => export::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Env(args) => env::run(&args),
        Verb::Generate(args) => generate::run(&args),
    })
}

/// What clap says of a wrong command line, with ranges as people write them.
fn wrong_usage(e: &clap::Error) -> String {
    let text = if std::io::stderr().is_terminal() {
        e.render().ansi().to_string()
    } else {
        e.render().to_string()
    };
    // An option that is misspelt is not to become the command.
    text.split_inclusive('\n')
        .filter(|line| !line.contains("as a value, use"))
        .map(with_plain_range)
        .collect()
}

fn with_plain_range(line: &str) -> String {
    if line.contains(" is not in ") {
        line.replace("..=", " to ")
    } else {
        line.to_owned()
    }
}

/// What is printed is as wide as the terminal, where it goes to one.
fn fit_terminal() {
    let (out, err) = (rustix::stdio::stdout(), rustix::stdio::stderr());
    if let Some(columns) = columns_of(out)
        .or_else(|| columns_of(err))
        .filter(|columns| *columns > 0)
    {
        fit(columns.into());
    }
}

fn columns_of(terminal: BorrowedFd<'_>) -> Option<u16> {
    Some(rustix::termios::tcgetwinsize(terminal).ok()?.ws_col)
}

/// Prints what went wrong, once, and gives the exit status.
fn said(result: anyhow::Result<i32>) -> i32 {
    result.unwrap_or_else(|e| {
        match e.downcast_ref::<Trouble>() {
            Some(trouble) => voice::say(&(format!("{trouble}") + "\n")),
            None => voice::say(&(format!("synclater: {e:#}") + "\n")),
        }
        OURS
    })
}

/// Whether /proc tells of processes, by the numbers that we know them by.
///
/// # Errors
/// A [`Trouble`] where it does not.
pub fn needs_proc(verb: &str) -> Result<(), Trouble> {
    if synclater_sys::process::proc_is_ours() {
        return Ok(());
    }
    let (why, try_) = match std::fs::read_link("/proc/self") {
        Err(e) => (
            format!("/proc is not mounted here (/proc/self: {e})"),
            "mount -t proc proc /proc, or do it outside of this root",
        ),
        Ok(_) => (
            "/proc is that of another pid namespace".to_owned(),
            "begin that namespace with a /proc of its own (unshare --mount-proc), or do it outside",
        ),
    };
    let state = "nothing was changed; no process was looked at";
    Err(Trouble::new(format!("cannot {verb}"), why, try_, state))
}

/// A process number as people write it.
fn process_number(text: &str) -> Result<u32, String> {
    let number = text
        .parse()
        .ok()
        .filter(|pid| (1..=i32::MAX as u32).contains(pid));
    number.ok_or_else(|| "write the number of a process, as `pgrep NAME` prints it".to_owned())
}

/// Whether time goes as fast as the kernel says, since `start`.
///
/// # Errors
/// A [`Trouble`] where it does not: what is put off would be settled at another time.
pub fn needs_time(verb: &str, start: &Reading, state: &'static str) -> Result<(), Trouble> {
    let Some(speed) = start.wrong_speed() else {
        return Ok(());
    };
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    Err(Trouble::new(
        format!("cannot {verb}"),
        format!(
            "time goes at {speed:.2} of its speed for this program (LD_PRELOAD: {preload:?}); \
             libfaketime does that"
        ),
        "synclater run -- faketime TIME COMMAND, not faketime TIME synclater run -- COMMAND",
        state,
    ))
}

/// Clears away what dead sessions left, and says so.
pub fn clear_stale() -> Vec<Cleared> {
    let cleared = crate::session::stale::clear();
    let _ = tell_cleared(&cleared);
    cleared
}

/// Says what was settled in place of dead sessions, and what could not be. Whether all could.
pub fn tell_cleared(cleared: &[Cleared]) -> bool {
    for c in cleared {
        if let Some((dir, unread)) = &c.left {
            voice::say(&format!("{}\n", unread.trouble_of(&c.id, dir)));
        } else if !c.is_whole() {
            let list = c.failed.join(", ");
            let why = match &c.error {
                None => format!(
                    "{list} is not mounted here any more, or there is no folder on it in which you \
                     may make a file (HOME, TMPDIR)"
                ),
                Some(name) if name == SettleError::KILLED => {
                    format!("{list}: {}: writes may be lost", SettleError::WAS_KILLED)
                }
                Some(name) if list.is_empty() => {
                    format!("{name}: writes were lost, on a file system that was unmounted since")
                }
                Some(name) => format!("{name} on {list}: writes were lost"),
            };
            let look = "look at `dmesg` for write errors, and at what it wrote";
            let way = if c.error.is_none() {
                "`TMPDIR=FOLDER synclater settle`, with a folder of yours there; or "
            } else {
                ""
            };
            let trouble = Trouble::new(
                format!("session {} ended without settling", c.id),
                why,
                format!("{way}{look}; then `synclater status --forget {}`", c.id),
                format!(
                    "its ledger entry {} stays open; nothing of it is relaxed any more",
                    c.entry.display()
                ),
            );
            voice::say(&format!("{trouble}\n"));
        } else if !c.settled.is_empty() {
            let list = shown(&c.settled.join(", "));
            voice::say(&format!(
                "synclater: session {} had been killed; synced {list} in its place; a write \
                 that was lost before that is in `dmesg` only\n",
                c.id
            ));
        }
    }
    cleared.iter().all(Cleared::is_whole)
}
