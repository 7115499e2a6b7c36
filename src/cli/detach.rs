//! `synclater detach`: ends a session that was attached.

use super::paid::is_paid;
use super::set::ask_named;
use super::OURS;
use crate::reach::attach::refusal::Refusal;
use crate::reach::attach::{AttachOutcome, SourceSession, Work};
use crate::reach::forkers::{name_of, Forkers};
use crate::reach::program::{self, Incarnation};
use crate::reach::selector::{self, Seen};
use crate::session::belongings::memory_of;
use crate::session::control::{self, is_there, listed, Request};
use crate::session::debtor::Debtor;
use crate::supervisor::last_report::LastReport;
use crate::supervisor::reached::{not_let_go, not_seen, still_held};
use crate::voice;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};
use synclater_sys::clock::{LeaseClock, Reading};
use synclater_sys::process;
use synclater_sys::sharing::MemorySurvey;
use synclater_text::message::Trouble;
use synclater_text::number::counted;

/// Ends a session that was attached: lets go of its processes, settles what they owe, and reports.
///
/// One that has ended by itself (--for, or with its last process) is reported once.
///
/// The session of a supervisor that was killed can be named too: its processes make every request
/// for real already; now they are what they were, byte for byte. Those of a session that lives,
/// another user's or in another SYNCLATER_RUN_DIR, are left alone.
///
/// Exit status: 0 where every process was let go of and everything is settled; 125 otherwise.
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES\n  synclater detach kelp\n  synclater detach kelp --json")]
pub struct Args {
    /// The session, as `synclater ps` and `synclater attach` name it.
    session: String,

    /// Print the report as JSON; of a session whose supervisor was killed: `id`, `let_go`
    /// (processes that were let go of now), `settled`.
    #[arg(long)]
    json: bool,
}

/// What is told of a session whose supervisor was killed.
#[derive(serde::Serialize)]
struct HadEnded<'a> {
    version: u32,
    id: &'a str,
    /// Processes that were let go of now.
    let_go: u64,
    /// Whether nothing is owed any more.
    settled: bool,
}

/// Asks the session's supervisor, or does it in its place.
///
/// # Errors
/// A [`Trouble`] where there is no such session, or it refuses.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    super::needs_proc("detach")?;
    let id = &args.session;
    // Whoever clears up may take away what says where its ledger is, and its memory.
    let debtor = Debtor::named(id);
    let memory = control::session(id).map(|s| memory_of(&s.dir));
    let _ = super::clear_stale();
    let lives = listed()?.iter().any(|s| s.id == *id && is_there(s));
    if lives {
        return ask(args);
    }
    // Another session may be called so, in another SYNCLATER_RUN_DIR say; its memory is not.
    let name = memory.as_deref().and_then(Path::file_name);
    let name = name.map_or(id.into(), OsStr::to_string_lossy);
    let left = selector::left_by(&name);
    match LastReport::take(id) {
        None if left.found.is_empty() => ask(args),
        last => let_go_of_all(args, &debtor, &name, left, last),
    }
}

/// Asks the session's supervisor.
fn ask(args: &Args) -> anyhow::Result<i32> {
    let done = ask_named(&args.session, &Request::Detach { json: args.json })?;
    voice::say(&done.wrong);
    voice::print(&done.said)?;
    Ok(done.status)
}

/// Lets go of what a session has left that is over, and says what it had to say. `left` is the
/// first look for what has memory called `name`.
fn let_go_of_all(
    args: &Args,
    debtor: &Debtor,
    name: &str,
    left: Seen,
    last: Option<LastReport>,
) -> anyhow::Result<i32> {
    let id = &args.session;
    let stuck = last.as_ref().map_or(&[][..], |l| &l.stuck);
    let Gone {
        freed,
        mut held,
        others,
        unseen,
    } = let_go_of_each(id, name, left, stuck)?;
    // Names are used again: those of another session were meant only where there is none but that.
    if freed == 0 && !held && last.is_none() {
        held = !others.is_empty();
        others.iter().for_each(|t| voice::say(&format!("{t}\n")));
    }
    if !args.json && (freed > 0 || (!held && last.is_none())) {
        let processes = counted(freed, "process");
        voice::print(&format!("{id}: had ended; {processes} let go of\n"))?;
    }
    for pid in unseen {
        held = true;
        voice::say(&format!("{}\n", not_seen(id, pid)));
    }
    let settled = is_paid(debtor, PATIENCE);
    held |= !settled;
    let mut status = 0;
    if args.json && last.is_none() {
        // What it counted has gone with its supervisor.
        let told = HadEnded {
            version: 1,
            id,
            let_go: freed,
            settled,
        };
        voice::print(&format!("{}\n", serde_json::to_string(&told)?))?;
    }
    if let Some(last) = last {
        voice::print(&last.said(args.json))?;
        // What could not be let go of then has been now, or is told of again.
        status = last.status_but_for_stuck();
        if held {
            // Nobody hears where it cannot be kept.
            let _ = last.keep();
        }
    }
    Ok(if held { OURS } else { status })
}

/// What became of the processes that a session has left.
#[derive(Default)]
struct Gone {
    /// So many were put back.
    freed: u64,
    /// One was not; it has been told of.
    held: bool,
    /// What is to be said of those of another session.
    others: Vec<Trouble>,
    /// Those of which it is not known.
    unseen: Vec<u32>,
}

/// Lets go of each, and of what they have forked meanwhile. `stuck` is what the session itself
/// could not let go of.
fn let_go_of_each(
    id: &str,
    name: &str,
    mut left: Seen,
    stuck: &[(u32, Incarnation)],
) -> std::io::Result<Gone> {
    let clock = LeaseClock::new(Reading::now());
    let (mut gone, mut known) = (Gone::default(), MemorySurvey::nobody());
    let (mut done, mut forkers) = (BTreeSet::new(), Forkers::default());
    let until = Instant::now() + STORM;
    loop {
        let found = left
            .found
            .iter()
            .filter_map(|pid| Some((*pid, process::began(*pid)?)));
        let mut fresh: Vec<_> = found.collect();
        fresh.retain(|who| done.insert(*who));
        // What they have forked executes what they do.
        for (pid, _) in &fresh {
            forkers.add(&program::exe_of(*pid), &name_of(*pid));
        }
        let before = gone.freed;
        for (pid, _) in &fresh {
            match let_go(id, name != id, (*pid, &mut known), clock)? {
                LetGo::Freed { sites } => gone.freed += u64::from(sites > 0),
                LetGo::Others(trouble) => gone.others.push(trouble),
                LetGo::Held(trouble) => {
                    gone.held = true;
                    voice::say(&format!("{trouble}\n"));
                }
            }
        }
        // What is forked by those that are as they were is so, too, whatever memory it has.
        if gone.freed == before {
            break;
        }
        if Instant::now() > until {
            gone.held = true;
            voice::say(&format!("{}\n", forks_too_fast(id)));
            break;
        }
        left = selector::left_by(name);
    }
    let first = done.iter().map(|(_, began)| *began).min();
    let hidden = |pid: &u32| is_stuck(*pid, stuck) || forkers.may_have_hidden(*pid, first);
    gone.unseen = left.silent;
    gone.unseen
        .retain(|pid| hidden(pid) || forkers.execute_the_same(*pid));
    gone.unseen.extend(left.closed.into_iter().filter(hidden));
    Ok(gone)
}

/// Whether the session itself could not let go of a process, which executes the same as then.
fn is_stuck(pid: u32, stuck: &[(u32, Incarnation)]) -> bool {
    stuck
        .iter()
        .any(|(of, program)| *of == pid && program::executes(pid, *program))
}

/// So long it is looked for what is forked meanwhile.
const STORM: Duration = Duration::from_secs(60);

/// What is said where each look finds another one.
fn forks_too_fast(id: &str) -> Trouble {
    Trouble::new(
        format!("cannot let go of all that {id} has left"),
        format!(
            "after {} s of it there are still new ones: they fork",
            STORM.as_secs()
        ),
        format!("end what forks, or once it forks less: synclater detach {id}"),
        "they make every sync request for real; code of theirs may still lead through the gate",
    )
}

/// How long it is waited for whoever settles in a dead session's place.
const PATIENCE: Duration = Duration::from_secs(5);

/// What became of a process that a session of the name is about.
enum LetGo {
    /// So many sites were put back.
    Freed {
        /// How many.
        sites: u64,
    },
    /// It is left as it was, and why.
    Held(Trouble),
    /// It is in another session of this name, which lives.
    Others(Trouble),
}

/// Lets go of a process that the dead session `id` left; `is_its` where its memory says so, and not
/// only a name that another one may have.
fn let_go(
    id: &str,
    is_its: bool,
    (pid, known): (u32, &mut MemorySurvey),
    clock: LeaseClock,
) -> std::io::Result<LetGo> {
    let begun = Instant::now();
    let whose = SourceSession { page: None, clock };
    let mut last = Refusal::new("", "try again in a moment");
    let Some(program) = program::incarnation(pid) else {
        return Ok(LetGo::Freed { sites: 0 });
    };
    while begun.elapsed() < Duration::from_secs(5) {
        known.renew();
        match until_finished(Work::detach(pid, whose, known)?) {
            AttachOutcome::Detached { sites, marked, .. } => {
                if let Some(why) = still_held(marked) {
                    voice::say(&format!("synclater: {pid}: {why}\n"));
                }
                return Ok(LetGo::Freed { sites });
            }
            // It has ended meanwhile, or executes something else.
            AttachOutcome::Refused { .. } | AttachOutcome::Busy { .. }
                if !program::executes(pid, program) =>
            {
                return Ok(LetGo::Freed { sites: 0 });
            }
            AttachOutcome::Refused { refusal } => {
                return Ok(LetGo::Held(not_let_go(id, pid, &refusal)));
            }
            // Its lease runs for a moment.
            AttachOutcome::Others { refusal } if is_its => last = refusal,
            AttachOutcome::Others { refusal } => return Ok(LetGo::Others(others(pid, refusal))),
            AttachOutcome::Busy { why } => last.why = why,
            AttachOutcome::Attached { .. } | AttachOutcome::Left { .. } => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(LetGo::Held(not_let_go(id, pid, &last)))
}

/// A process of another session of this name.
fn others(pid: u32, refusal: Refusal) -> Trouble {
    let what = format!("{pid} is not let go of");
    let state = format!("nothing was changed; {pid} is in that session as before");
    Trouble::new(what, refusal.why, refusal.try_, state)
}

/// Waits for some work, which gives up by itself.
pub fn until_finished(mut work: Work) -> AttachOutcome {
    use std::os::fd::AsFd;
    loop {
        if let Some(told) = work.finished() {
            return told;
        }
        let fds = [(work.as_fd(), synclater_sys::wait::For::Input)];
        let _ = synclater_sys::wait::any(&fds, Duration::from_secs(1));
    }
}
