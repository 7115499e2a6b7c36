//! `synclater ps`: the living sessions.

use super::detach::until_finished;
use super::set::stands_still;
use crate::reach::attach::{AttachOutcome, Work};
use crate::reach::{program, selector};
use crate::session::belongings::memory_of;
use crate::session::control::{ask, has_ended, listed, Answer, Living, Request};
use crate::voice;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synclater_account::ps;
use synclater_sys::clock::{LeaseClock, Reading};
use synclater_text::message::Trouble;

/// How long processes that sessions have left are looked for.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the last steps of a session take at most.
const ENDING: Duration = Duration::from_secs(1);

/// Lists sessions: processes, dial, debt, lease left, and what escaped.
///
/// Names, on stderr, processes that a session has left whose supervisor was killed.
///
/// Exit status: 0, or 125 where it cannot be told which sessions there are, what one has to tell,
/// or what a dead one owes.
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES\n  synclater ps\n  synclater ps --json")]
pub struct Args {
    /// Print JSON: an array of sessions.
    #[arg(long)]
    json: bool,
}

/// Prints the sessions.
///
/// # Errors
/// None of its own; a session that does not answer is named on stderr.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let cleared = super::clear_stale();
    let left = cleared.iter().filter(|c| c.left.is_some());
    let left: Vec<&str> = left.map(|c| c.id.as_str()).collect();
    let mut rows = Vec::new();
    let mut living = Vec::new();
    let mut all_answer = true;
    let sessions = listed()?.into_iter();
    for session in sessions.filter(|s| !left.contains(&s.id.as_str())) {
        match asked(&session) {
            Ok(Answer::Session { session: row }) => rows.push(*row),
            Ok(_) => voice::say(&format!(
                "synclater: {} answered something else\n",
                session.id
            )),
            // It ended while we looked, or is about to.
            Err(_) if !session.dir.exists() => {}
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                voice::say(&format!(
                    "synclater: session {}: its supervisor was killed; its debt is being settled\n",
                    session.id
                ));
                continue;
            }
            Err(e) if (has_ended(&e) || e.kind() == ErrorKind::NotFound) && has_gone(&session) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                all_answer = false;
                let what = format!("session {} cannot be shown", session.id);
                voice::say(&format!("{}\n", stands_still(&session, what)));
            }
            Err(e) => {
                all_answer = false;
                let trouble = Trouble::new(
                    format!("session {} cannot be shown", session.id),
                    e.to_string(),
                    format!("look at who has made {}", session.dir.display()),
                    "it was not asked, and nothing was changed",
                );
                voice::say(&format!("{trouble}\n"));
            }
        }
        living.push(session);
    }
    let all_told = cleared.iter().all(|c| c.left.is_none());
    if args.json {
        voice::print(&ps::to_json(&rows))?;
    } else if all_told && all_answer || !rows.is_empty() {
        voice::print(&ps::render(&rows))?;
    }
    name_left(&living);
    Ok(if all_told && all_answer {
        0
    } else {
        super::OURS
    })
}

/// Asks it; again where it ended, or was killed, before it had answered: the next time tells which.
fn asked(session: &Living) -> Result<Answer, Error> {
    let mut answer = ask(session, &Request::Ps);
    let begun = Instant::now();
    while answer.as_ref().is_err_and(is_cut) && session.dir.exists() && begun.elapsed() < ENDING {
        std::thread::sleep(ENDING / 100);
        answer = ask(session, &Request::Ps);
    }
    answer
}

/// Whether a session ended, or was killed, before it had answered.
fn is_cut(e: &Error) -> bool {
    has_ended(e) && e.kind() != ErrorKind::ConnectionRefused
}

/// Whether the folder of a session that ends is gone, too, a moment later.
fn has_gone(session: &Living) -> bool {
    let begun = Instant::now();
    while session.dir.exists() && begun.elapsed() < ENDING {
        std::thread::sleep(ENDING / 100);
    }
    !session.dir.exists()
}

/// Names processes that sessions which were killed have left.
fn name_left(living: &[Living]) {
    let known: Vec<PathBuf> = living.iter().map(|s| memory_of(&s.dir)).collect();
    let candidates = selector::outside(&known);
    if candidates.is_empty() {
        return;
    }
    let clock = LeaseClock::new(Reading::now());
    let begun = Instant::now();
    let mut left: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for pid in candidates {
        if begun.elapsed() > PATIENCE {
            voice::say("synclater: some processes could not be looked at in time\n");
            break;
        }
        // By a process of ours: whose memory lies on a dead disk may be waited for for ever.
        let told = Work::look(pid, clock).map(until_finished);
        if let Ok(AttachOutcome::Left { session: Some(id) }) = told {
            left.entry(id).or_default().push(pid);
        }
    }
    for (id, pids) in left {
        let all: Vec<String> = pids.iter().map(|pid| with_name(*pid)).collect();
        let trouble = Trouble::new(
            format!("session {id} ended without letting go of its processes"),
            format!(
                "the code of {} still leads through the gate",
                all.join(", ")
            ),
            format!("synclater detach {id}"),
            "they make every sync request for real",
        );
        voice::say(&format!("{trouble}\n"));
    }
}

/// A process's number with the name of what it executes.
fn with_name(pid: u32) -> String {
    let exe = program::exe_of(pid);
    let name = Path::new(&exe).file_name().unwrap_or_default();
    format!("{pid} ({})", name.to_string_lossy())
}
