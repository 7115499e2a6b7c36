//! `synclater detach`: ends a session that was attached.

use super::set::ask_named;
use crate::reach::attach::{Told, Work};
use crate::reach::whom;
use crate::session::control::{sessions, Request};
use crate::session::supervisor::reaching::still_held;
use std::time::{Duration, Instant};
use synclater_model::report::message::Trouble;
use synclater_model::report::number::counted;

/// Ends a session that was attached: lets go of its processes, settles what they owe, and reports.
///
/// The session of a supervisor that was killed can be named too: its processes make every request
/// for real already; now they are what they were, byte for byte.
#[derive(clap::Args)]
#[command(after_help = "EXAMPLES\n  synclater detach kelp\n  synclater detach kelp --json")]
pub struct Args {
    /// The session, as `synclater ps` and `synclater attach` name it.
    session: String,

    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Asks the session's supervisor, or does it in its place.
///
/// # Errors
/// A [`Trouble`] where there is no such session, or it refuses.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    super::clear_stale();
    let lives = sessions().iter().any(|s| s.id == args.session);
    let left = if lives {
        Vec::new()
    } else {
        whom::left_by(&args.session)
    };
    if left.is_empty() {
        let said = ask_named(&args.session, &Request::Detach { json: args.json })?;
        super::print(&said)?;
        return Ok(0);
    }
    let mut freed = 0;
    for pid in left {
        freed += u64::from(let_go(pid)?);
    }
    let processes = counted(freed, "process");
    super::print(&format!(
        "{}: had ended; {processes} let go of\n",
        args.session
    ))?;
    Ok(0)
}

/// Lets go of a process that a dead session left; whether there was anything to be put back.
fn let_go(pid: u32) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let mut why = String::new();
    while begun.elapsed() < Duration::from_secs(5) {
        match until_finished(Work::detach(pid)?) {
            Told::Detached { sites, marked, .. } => {
                if let Some(why) = still_held(marked) {
                    super::say(&format!("synclater: {pid}: {why}\n"));
                }
                return Ok(sites > 0);
            }
            Told::Refused { refusal } => return Err(not_let_go(pid, &refusal.why)),
            Told::Busy { why: now } => why = now,
            Told::Attached { .. } => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(not_let_go(pid, &why))
}

fn until_finished(mut work: Work) -> Told {
    use std::os::fd::AsFd;
    loop {
        if let Some(told) = work.finished() {
            return told;
        }
        let fds = [(work.as_fd(), synclater_sys::wait::For::Input)];
        let _ = synclater_sys::wait::any(&fds, Duration::from_secs(1));
    }
}

fn not_let_go(pid: u32, why: &str) -> anyhow::Error {
    let state = "it makes every sync request for real; its code still leads through the gate";
    Trouble::new(
        format!("cannot let go of {pid}"),
        why,
        "try again in a moment",
        state,
    )
    .into()
}
