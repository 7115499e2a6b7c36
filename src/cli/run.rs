//! `synclater run`: makes a session, starts the command in it, settles, reports.

use super::dials::{Dials, Recorded, Wanted};
use super::OURS;
use crate::reach::attach::Payload;
use crate::reach::follow::{Environment, FollowPlan, Follower, Manner};
use crate::reach::launch;
use crate::reach::library::{self, Variant};
use crate::reach::net;
use crate::record::out::{self, Out};
use crate::session::belongings::NOT_STARTED;
use crate::session::escape::Escapes;
use crate::session::shared::Shared;
use crate::supervisor::following::NotStarted;
use crate::supervisor::report;
use crate::supervisor::{Outcome, Supervisor};
use crate::voice;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;
use synclater_account::run::{RunReport, SettleError};
use synclater_account::summary::{summary, warnings};
use synclater_policy::dial::Until;
use synclater_policy::duration::parse_duration;
use synclater_sys::clock::Reading;
use synclater_sys::registers::Registers;
use synclater_sys::signal;
use synclater_text::layout::visible;
use synclater_text::message::Trouble;

/// Runs a command with its sync calls answered now and carried out later.
///
/// Stopping synclater (Ctrl-C, SIGTERM, SIGHUP) passes the signal on to the command and settles
/// what is owed; a second Ctrl-C or SIGTERM while settling ends at once with 125, and
/// `synclater status` remembers what was owed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// When sync requests are kept: now (only count them), a duration such as 1s or 250ms (settled
    /// in the background, at most that long after the oldest request, plus the time it takes),
    /// exit (once, before synclater returns), never.
    #[arg(
        short,
        long,
        value_name = "WHEN",
        default_value = "exit",
        allow_hyphen_values = true
    )]
    until: Until,

    #[command(flatten)]
    dials: Dials,

    /// Reach programs too that lose the library: with a cleaned environment, static, in Go, in a
    /// chroot. The command and all that it starts is traced (ptrace), and the run lasts until the
    /// last of them has ended. No debugger and no strace beside it; signals take longer.
    #[arg(long)]
    follow: bool,

    /// Have the kernel ask about every sync request that nothing else sees: inline system calls of
    /// static programs and Go (seccomp user notification, Linux 5.19). It cannot be taken off the
    /// command and what it starts. Without root, no program of the run gains rights any more
    /// (sudo, su, ping: no_new_privs).
    #[arg(long)]
    net: bool,

    #[command(flatten)]
    recorded: Recorded,

    #[command(flatten)]
    other_calls: OtherCalls,

    /// Print the summary to stderr even where that is no terminal.
    #[arg(long, conflicts_with = "quiet")]
    summary: bool,

    /// Print no summary; errors and warnings are printed all the same.
    #[arg(short, long)]
    quiet: bool,

    /// Write the report as JSON to FILE (- is stdout).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Calls that are recorded beside sync requests.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OtherCalls {
    /// Record reads, writes, opens, renames and closes of files as well: the slow ones each, the
    /// rest as histograms.
    #[arg(long, requires = "record")]
    pub io: bool,

    /// From how long on such a call is slow.
    #[arg(long, value_name = "T", default_value = "1ms", requires = "io")]
    #[arg(value_parser = threshold, allow_hyphen_values = true)]
    slower: Duration,
}

/// The longest threshold: what the library can count up to.
const LONGEST_CALL: Duration = Duration::from_secs(3600);

fn threshold(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|e| e.to_string())?;
    if time > LONGEST_CALL {
        return Err(format!("{text} is too long: write at most 1h"));
    }
    Ok(time)
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater run -- make install
  synclater run -u 1s --for 2h --only exe=imap -- dovecot -F
  synclater run -u never --json report.json -- ./run-tests
  synclater run --rules mail.toml -- postfix start-fg
  synclater run --follow -- postfix start
  synclater run --net -- ./static-program

After a power cut during the run, what was being changed may be lost or torn,
at any dial but now. Status other than 125 at the dial exit: every covered
request that the command made is durable, unless synclater itself was killed:
then that takes two seconds and what settling takes.";

impl Args {
    /// A run that only measures.
    pub fn measuring(command: Vec<OsString>, recorded: Recorded, other_calls: OtherCalls) -> Args {
        Args {
            until: Until::Now,
            dials: Dials::default(),
            follow: false,
            net: false,
            recorded,
            other_calls,
            summary: false,
            quiet: false,
            json: None,
            command,
        }
    }

    /// With a summary, or without one, whatever stderr is.
    pub fn telling(self, summary: bool, quiet: bool) -> Args {
        Args {
            summary,
            quiet,
            ..self
        }
    }
}

/// Runs the command; returns its exit status, or dies of the signal that it died of.
///
/// # Errors
/// A [`Trouble`] where the session could not be made: then the command was not started.
pub fn run(args: Args) -> anyhow::Result<i32> {
    let rules = args.dials.rules()?;
    let start = Reading::now();
    // Settles what dead sessions left, by a fork: there is no other thread yet.
    let _ = super::clear_stale();
    let early = Early::begin(start);
    if args.net {
        super::needs_proc("cast the net")?;
    }
    refuse_one_file_for_both(&args)?;
    let fresh = NewFiles::of([args.json.as_deref(), args.recorded.record.as_deref()]);
    let mut json = args.json.as_deref().map(open_json).transpose()?;
    if args.recorded.record.is_some() {
        // Nothing would be in it, which looks as if there were nothing.
        super::needs_proc("record what a command asks for")?;
    }
    let record = args.recorded.record.as_deref();
    let record = record
        .map(|path| open_recording(path, args.recorded.force))
        .transpose()?;
    let library = locate_library(args.other_calls)?;
    let wanted = Wanted {
        net: args.net,
        until: args.until,
        for_: args.dials.for_,
        rules,
        command: words(&args.command),
        state: "the command runs with every sync request made for real",
    };
    let mut s = wanted.make(early.start, || early.escapes())?;
    if let Some(file) = record {
        begin_recording(&mut s, &args, file)?;
    }
    let outer = outer_pages();
    let mut pages = s.session.shared.path.clone().into_os_string();
    outer.iter().for_each(|p| {
        pages.push(":");
        pages.push(p);
    });
    let variables = [("SYNCLATER_PAGE", pages.clone())];
    let command = launch::command(&args.command, &library, &variables);
    if args.net {
        net(&mut s, !outer.is_empty(), args.quiet)?;
    }
    if args.follow {
        follow(&mut s, library, pages)?;
    }
    let child = match s.start(command) {
        Ok(child) => child,
        Err((e, refused)) => {
            s.settle_at_end(|_| {});
            s.close();
            return match refused {
                Some(NotStarted::Follow(why)) => Err(cannot_follow(&why).into()),
                Some(NotStarted::Net(why)) => Err(cannot_net(&why).into()),
                None => Ok(not_started(&args.command[0], &e)),
            };
        }
    };
    s.recording_goes();
    fresh.stay();
    let outcome = s.run(child);
    end(&args, s, outcome, json.as_mut())
}

/// Starts what traces the command.
fn follow(s: &mut Supervisor, library: PathBuf, pages: OsString) -> Result<(), Trouble> {
    let environment = Environment {
        library,
        page: s.session.shared.path.clone(),
        pages,
        supervisor: std::process::id(),
    };
    let plan = FollowPlan {
        manner: Manner::Environment(environment),
        payload: Payload::pack(s.session.shared, true).map_err(|refusal| refusal.why),
    };
    let started = if Registers::ARE_KNOWN {
        Follower::start(plan).map_err(|e| format!("no process for the tracer: {e}"))
    } else {
        Err("not on this machine (x86-64 only)".into())
    };
    started.map(|follower| s.follow(follower)).map_err(|why| {
        s.settle_at_end(|_| {});
        s.close();
        cannot_follow(&why)
    })
}

fn cannot_follow(why: &str) -> Trouble {
    let try_ = "end what traces it (strace, gdb, another --follow), or leave out --follow";
    Trouble::new("cannot follow the command", why, try_, NOT_STARTED)
}

/// Starts what answers the kernel.
fn net(s: &mut Supervisor, is_inside: bool, quiet: bool) -> Result<(), Trouble> {
    let started = if is_inside {
        // What it answers would not be known to the other one.
        Err("it is inside of another synclater session".into())
    } else {
        s.cast_net().map_err(|e| format!("nobody to answer: {e}"))
    };
    started.map_err(|why: String| {
        s.settle_at_end(|_| {});
        s.close();
        cannot_net(&why)
    })?;
    if !quiet && net::gives_up_rights() {
        voice::say(
            "synclater: --net without CAP_SYS_ADMIN: no program of this run gains rights (sudo, \
             su, ping, mount: no_new_privs)\n",
        );
    }
    Ok(())
}

fn cannot_net(why: &str) -> Trouble {
    let try_ = "leave out --net; --follow reaches static programs and Go without it";
    Trouble::new("cannot cast the net", why, try_, NOT_STARTED)
}

/// The file of a recording, `over` an earlier one or not.
///
/// # Errors
/// A [`Trouble`] where it cannot be written.
pub fn open_recording(path: &Path, over: bool) -> Result<File, Trouble> {
    out::open(path, over).map_err(|e| cannot_record(path, &e))
}

/// Why nothing can be recorded.
pub fn cannot_record(path: &Path, e: &std::io::Error) -> Trouble {
    let what = format!("cannot record into {}", path.display());
    Trouble::new(what, e.to_string(), out::remedy_of(e), NOT_STARTED)
}

fn begin_recording(s: &mut Supervisor, args: &Args, file: File) -> Result<(), Trouble> {
    let name = args.recorded.record.clone().unwrap_or_default();
    if args.other_calls.io {
        time_other_calls(s.session.shared, args.other_calls.slower);
        s.recordings.slower = Some(args.other_calls.slower);
    }
    s.record(file, name.clone(), args.recorded.ring)
        .map_err(|e| {
            s.settle_at_end(|_| {});
            s.close();
            cannot_record(&name, &e)
        })
}

/// Has calls timed that are no requests, in processes with the library for it.
fn time_other_calls(shared: &Shared, slower: Duration) {
    let ns_of_tick = shared.clock.span(1 << 30).as_nanos() as f64 / f64::from(1 << 30);
    let scale = (ns_of_tick * f64::from(1 << 20)).round();
    shared.page().scale.store(scale as u32, SeqCst);
    let slow = shared.clock.ticks(slower).max(1);
    shared.page().slow.store(slow, SeqCst);
}

/// Settles, reports, and ends as the command did.
fn end(
    args: &Args,
    mut s: Supervisor,
    outcome: Outcome,
    json: Option<&mut Json>,
) -> anyhow::Result<i32> {
    let mut shown = false;
    let tty = std::io::stderr().is_terminal();
    s.settle_at_end(|line| {
        if tty && !args.quiet {
            shown = true;
            voice::say(&format!("\r\x1b[K{line}"));
        }
    });
    if shown {
        voice::say("\r\x1b[K");
    }
    s.end_recording();
    let report = report::run(&mut s, outcome);
    s.close();
    tell(args, &s, &report, tty);
    if let Some(json) = json {
        json.write(&report.to_json()).map_err(|e| {
            let state = "the command has ended; what it owed was dealt with as the dial says";
            let file = args.json.as_deref().unwrap_or(Path::new("-"));
            let what = format!("cannot write the JSON report to {}", file.display());
            Trouble::new(
                what,
                e.to_string(),
                "free space, or name another file",
                state,
            )
        })?;
    }
    if let (Outcome::Signaled(signal), true) = (outcome, report.exit_status != OURS) {
        signal::die_of(signal);
    }
    Ok(report.exit_status)
}

fn tell(args: &Args, s: &Supervisor, report: &RunReport, tty: bool) {
    if let Some(e) = &report.error {
        let name = &e.name;
        let why = if e.was_killed() {
            SettleError::WAS_KILLED.to_owned()
        } else {
            format!("the kernel reported {name} to a settle or flush there, ours or another's")
        };
        voice::say(&format!(
            "{}\n",
            Trouble::new(
                e.what(),
                why,
                "look at `dmesg`; check the disk, then run the command again",
                "what the command wrote since the last good settle may not be on the disk",
            )
        ));
    } else if report.exit_status == OURS && s.interrupts() >= 2 {
        voice::say(&format!(
            "{}\n",
            Trouble::new(
                "stopped before everything was settled",
                format!("{} interrupts", s.interrupts()),
                "run `sync`, or wait: the kernel goes on writing",
                format!("the ledger entry {} stays open until then", report.id),
            )
        ));
    }
    if args.summary || (tty && !args.quiet) {
        voice::say(&summary(report));
    } else {
        // Data may be lost: that is said to whoever wants no summary.
        voice::say(&warnings(report));
    }
}

fn not_started(what: &std::ffi::OsStr, e: &std::io::Error) -> i32 {
    let status = launch::failure_status(e);
    let (why, try_) = launch::why_not(what, e);
    let what = format!("cannot run {}", visible(&what.to_string_lossy()));
    voice::say(&format!("{}\n", Trouble::new(what, why, try_, NOT_STARTED)));
    status
}

/// Files that are not there before the command is started, and go where it is not.
struct NewFiles(Vec<PathBuf>);

impl NewFiles {
    fn of(files: [Option<&Path>; 2]) -> NewFiles {
        let files = files.into_iter().flatten();
        let new = files.filter(|path| path.symlink_metadata().is_err());
        NewFiles(new.map(Path::to_owned).collect())
    }

    fn stay(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// A report and a recording in one file would spoil each other.
fn refuse_one_file_for_both(args: &Args) -> Result<(), Trouble> {
    let (Some(json), Some(record)) = (&args.json, &args.recorded.record) else {
        return Ok(());
    };
    if is_one_file(json, record) {
        return Err(Trouble::new(
            format!("cannot record into {}", record.display()),
            "it is the file of --json",
            "name another one",
            NOT_STARTED,
        ));
    }
    Ok(())
}

/// Whether two paths lead to one file, which may not be there yet.
fn is_one_file(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => {
            (one.dev(), one.ino()) == (other.dev(), other.ino()) && one.is_file()
        }
        (Err(_), Err(_)) => place_of(one).is_some() && place_of(one) == place_of(other),
        _ => false,
    }
}

/// The folder in which a file would be made, and its name there.
fn place_of(path: &Path) -> Option<(PathBuf, OsString)> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = std::fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
    Some((folder, path.file_name()?.to_owned()))
}

/// Where the report goes. What is in a file stays until there is one.
enum Json {
    Stdout,
    File(Out),
}

impl Json {
    fn write(&mut self, text: &str) -> std::io::Result<()> {
        match self {
            Json::Stdout => voice::write_to(&mut std::io::stdout(), text),
            Json::File(out) => out.write_all(text.as_bytes()).and_then(|()| out.go()),
        }
    }
}

fn open_json(path: &Path) -> Result<Json, Trouble> {
    if path == Path::new("-") {
        return Ok(Json::Stdout);
    }
    let mut options = File::options();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .and_then(|file| out::share(&file).map(|()| Json::File(Out::new(file))))
        .map_err(|e| {
            let what = format!("cannot write the report {}", path.display());
            Trouble::new(
                what,
                e.to_string(),
                "name a file that you can write",
                NOT_STARTED,
            )
        })
}

fn locate_library(other_calls: OtherCalls) -> Result<PathBuf, Trouble> {
    let asked = if other_calls.io {
        Variant::Io
    } else {
        Variant::Ordinary
    };
    library::locate(launch::needed_here(asked)).map_err(|why| {
        let try_ = "name a folder of yours that is writable and mounted exec in \
                    XDG_CACHE_HOME, or `make install`";
        Trouble::new(
            "there is no folder for the preload library",
            why,
            try_,
            NOT_STARTED,
        )
    })
}

/// Pages of the sessions that we run inside of and that still live.
fn outer_pages() -> Vec<OsString> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let list = std::env::var_os("SYNCLATER_PAGE").unwrap_or_default();
    let pages = list
        .as_bytes()
        .split(|b| *b == b':')
        .filter(|p| !p.is_empty());
    pages
        .map(|p| OsString::from_vec(p.to_vec()))
        .filter(|p| Path::new(p).exists())
        .collect()
}

fn words(command: &[OsString]) -> Vec<String> {
    let words = command.iter().map(|a| a.to_string_lossy().into_owned());
    words.collect()
}

/// What is done first.
struct Early {
    start: Reading,
    /// Beside the rest of the start, which takes about as long (0.5 ms).
    watch: Option<JoinHandle<Escapes>>,
}

impl Early {
    fn begin(start: Reading) -> Early {
        Early {
            start,
            watch: std::thread::Builder::new().spawn(Escapes::watch).ok(),
        }
    }

    fn escapes(self) -> Escapes {
        let watch = self.watch.and_then(|t| t.join().ok());
        watch.unwrap_or_else(Escapes::watch)
    }
}
