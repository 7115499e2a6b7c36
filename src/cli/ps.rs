//! `synclater ps`: the living sessions.

use crate::session::control::{ask, sessions, Answer, Request};
use synclater_model::report::ps;

/// Lists sessions: processes, dial, debt, lease left, and what escaped.
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
    super::clear_stale();
    let mut rows = Vec::new();
    for session in sessions() {
        match ask(&session, &Request::Ps) {
            Ok(Answer::Session { session }) => rows.push(*session),
            Ok(_) => super::say(&format!(
                "synclater: {} answered something else\n",
                session.id
            )),
            // It ended while we looked.
            Err(_) if !session.dir.exists() => {}
            Err(e) => super::say(&format!(
                "synclater: session {} does not answer: {e}\n",
                session.id
            )),
        }
    }
    super::print(&if args.json {
        ps::to_json(&rows)
    } else {
        ps::render(&rows)
    })?;
    Ok(0)
}
