//! `synclater set`: moves the dial of a live session.

use crate::reach::attach::refusal::Refusal;
use crate::reach::attach::tracer::traced_by;
use crate::reach::status::tracer_of;
use crate::session::belongings::memory_of;
use crate::session::control::{self, ask, listed, Answer, Listens, Living, Request};
use crate::voice;
use std::time::{Duration, Instant};
use synclater_policy::dial::Until;
use synclater_policy::duration::parse_duration;
use synclater_sys::process;
use synclater_text::layout::visible;
use synclater_text::message::Trouble;

/// Changes a live session: all its processes follow at their next request, without a restart.
#[derive(clap::Args)]
#[command(
    after_help = "EXAMPLES\n  synclater set kelp -u now\n  synclater set kelp -u 1s --for 2h"
)]
pub struct Args {
    /// The session, as `synclater ps` names it.
    session: String,

    /// The new dial; where rules have dials of their own, those stay.
    #[arg(
        short,
        long,
        value_name = "WHEN",
        required_unless_present = "for_",
        allow_hyphen_values = true
    )]
    until: Option<Until>,

    /// Ends the relaxation after this time, from now.
    #[arg(long = "for", value_name = "T", value_parser = parse_duration)]
    #[arg(allow_hyphen_values = true)]
    for_: Option<Duration>,
}

/// Asks the session's supervisor.
///
/// # Errors
/// A [`Trouble`] where there is no such session or it refuses.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let _ = super::clear_stale();
    let request = Request::Set {
        until: args.until.map(|u| u.to_string()),
        for_s: args.for_.map(|t| t.as_secs_f64()),
    };
    let id = &args.session;
    voice::print(&format!("{}\n", ask_named(id, &request)?.said))?;
    let what = format!("what {id} had put off before is not durable");
    let is_now = args.until == Some(Until::Now);
    match is_now
        .then(|| super::paid::lost_elsewhere(id, what))
        .flatten()
    {
        None => Ok(0),
        Some(trouble) => Err(trouble.into()),
    }
}

/// What a session has done.
pub struct Done {
    /// In words.
    pub said: String,
    /// What it could not do, as it is told; empty where it could do everything.
    pub wrong: String,
    /// The status to end with.
    pub status: i32,
}

/// Asks the session named `id` for something that ends in words.
///
/// # Errors
/// A [`Trouble`] where there is no such session, it does not answer, or it refuses.
pub fn ask_named(id: &str, request: &Request) -> Result<Done, Trouble> {
    let all = listed()?;
    let Some(session) = all.iter().find(|s| s.id == id) else {
        let names: Vec<&str> = all.iter().map(|s: &Living| s.id.as_str()).collect();
        let there = if names.is_empty() {
            "there are none".into()
        } else {
            names.join(", ")
        };
        return Err(Trouble::new(
            format!("there is no session {}", visible(id)),
            format!("running sessions of this user: {there}"),
            "synclater ps; synclater status, of those that have ended",
            "nothing was changed",
        ));
    };
    let (why, try_): (String, String) = match ask(session, request) {
        Ok(Answer::Done { said }) => {
            return Ok(Done {
                said,
                wrong: String::new(),
                status: 0,
            })
        }
        Ok(Answer::Ended {
            said,
            wrong,
            status,
        }) => {
            return Ok(Done {
                said,
                wrong,
                status,
            })
        }
        Ok(Answer::Lost { why }) => {
            let what = match request {
                Request::Settle => format!("cannot settle {id}"),
                _ => format!("what {id} had put off before is not durable"),
            };
            return Err(Trouble::new(
                what,
                why,
                super::paid::FOR_ERRORS,
                super::paid::NOT_KNOWN,
            ));
        }
        Ok(Answer::Refused { why, remedy }) => {
            let remedy = Some(remedy).filter(|remedy| !remedy.is_empty());
            (why, remedy.unwrap_or_else(|| "synclater ps".into()))
        }
        Ok(Answer::Session { .. } | Answer::Watching { .. }) => {
            ("it answered another question".into(), "synclater ps".into())
        }
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            let what = format!("session {id} did not do it");
            return Err(stands_still(session, what));
        }
        Err(e) if control::has_ended(&e) || is_gone(session, &e) => {
            return Err(ended_meanwhile(id));
        }
        Err(e) => (e.to_string(), "synclater ps".into()),
    };
    Err(Trouble::new(
        format!("session {id} did not do it"),
        why,
        try_,
        "the session is as it was",
    ))
}

/// Whether a session that could not be asked has ended: it takes its socket away first, and its
/// folder in the next moment. Without a socket a folder that stays is of one out of sight.
fn is_gone(session: &Living, e: &std::io::Error) -> bool {
    const CLEARING_UP: Duration = Duration::from_secs(1);
    const NAP: Duration = Duration::from_millis(5);
    let begun = Instant::now();
    while e.kind() == std::io::ErrorKind::NotFound
        && session.dir.exists()
        && begun.elapsed() < CLEARING_UP
    {
        std::thread::sleep(NAP);
    }
    !session.dir.exists()
}

/// It ends, or was killed, while it is asked.
fn ended_meanwhile(id: &str) -> Trouble {
    Trouble::new(
        format!("session {id} did not do it"),
        control::UNANSWERED,
        format!("synclater status, which names {id} where it owes something; synclater settle"),
        "every request is real within two seconds; what was put off is settled in its end, or by \
         its keeper, but for what was put off at never",
    )
}

/// Nobody answers in time.
pub fn stands_still(session: &Living, what: String) -> Trouble {
    let (who, try_) = match control::listens_in(&memory_of(&session.dir)) {
        Listens::Supervisor { pid: 0, .. } => (
            "its supervisor, in another pid namespace, does not answer".into(),
            "try again, or ask from within its container; it may be stopped or frozen".into(),
        ),
        Listens::Supervisor { pid, .. } if tracer_of(pid) != 0 => {
            let Refusal { why, try_ } = traced_by(tracer_of(pid).into());
            (format!("of its supervisor, process {pid}: {why}"), try_)
        }
        Listens::Supervisor { pid, .. } if process::is_stopped(pid) => (
            format!("its supervisor, process {pid}, is stopped (SIGSTOP, Ctrl-Z)"),
            format!("kill -CONT {pid}, or fg in its shell; then try again"),
        ),
        Listens::Supervisor { pid, .. } => {
            let at = process::text(format!("/proc/{pid}/wchan")).unwrap_or_default();
            let at = Some(at.trim()).filter(|at| !["", "0"].contains(at));
            let at = at.map_or(String::new(), |at| format!(" (in the kernel's {at})"));
            (
                format!("its supervisor, process {pid}, does not answer{at}"),
                "try again; it may be frozen (cgroup)".into(),
            )
        }
        _ => (
            "its supervisor does not answer".into(),
            "try again; it may have ended by now".into(),
        ),
    };
    let state = "every request is real two seconds after it stood still; its keeper settles what \
                 it owes, but for what was put off at never";
    Trouble::new(what, who, try_, state)
}
