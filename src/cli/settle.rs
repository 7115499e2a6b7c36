//! `synclater settle`: pay now.

use super::set::ask_named;
use super::OURS;
use crate::session::control::{sessions, Request};
use crate::session::ledger::Ledger;
use crate::session::{durable, stale};
use std::path::Path;
use synclater_model::report::message::Trouble;
use synclater_sys::mount;

/// Makes durable what was asked for so far: of one session, of file systems, or of all sessions.
///
/// Exit status: 0, or 125 where something could not be settled, or the ledger could not be read;
/// the rest is.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Sessions, as `synclater ps` names them, or paths (with a /) on the file systems to settle.
    #[arg(value_name = "SESSION|PATH")]
    what: Vec<String>,
}

/// How things stand where something was not settled.
pub const NOT_KNOWN: &str = "nothing is known to be durable that was not before";

const EXAMPLES: &str = "\
EXAMPLES
  synclater settle
  synclater settle kelp
  synclater settle /srv/mail";

/// Settles each, also behind one that cannot be; waits for the end.
///
/// # Errors
/// Those of the output; what could not be settled is told, and gives the status 125.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let mut is_whole = super::clear_stale();
    if args.what.is_empty() {
        is_whole &= settle_orphans();
    }
    let all = || sessions().into_iter().map(|s| s.id).collect();
    let what: Vec<String> = if args.what.is_empty() {
        all()
    } else {
        args.what.clone()
    };
    let mut status = if is_whole { 0 } else { OURS };
    for name in &what {
        let said = if name.contains('/') || name == "." {
            path(name)
        } else {
            ask_named(name, &Request::Settle).map(|done| done.said)
        };
        match said {
            Ok(said) => super::print(&format!("{name}: {said}\n"))?,
            Err(trouble) => {
                status = OURS;
                super::say(&format!("{trouble}\n"));
            }
        }
    }
    if what.is_empty() && is_whole {
        super::print("no sessions\n")?;
    }
    Ok(status)
}

/// Settles what sessions owe that are gone without a trace. Whether all of the ledger could be
/// read, and is durable.
fn settle_orphans() -> bool {
    match Ledger::existing() {
        Ok(None) => true,
        Ok(Some(ledger)) => {
            let (cleared, unread) = stale::settle_orphans(&ledger);
            { unread.iter() }.for_each(|u| super::say(&format!("{}\n", u.trouble())));
            super::tell_cleared(&cleared) && unread.is_empty()
        }
        Err(trouble) => {
            super::say(&format!("{trouble}\n"));
            false
        }
    }
}

fn path(name: &str) -> Result<String, Trouble> {
    let trouble = |why: String| {
        let state = NOT_KNOWN;
        Trouble::new(
            format!("cannot settle {name}"),
            why,
            "look at `dmesg` for write errors",
            state,
        )
    };
    let fd = mount::open_for_sync(Path::new(name)).map_err(|e| trouble(e.to_string()))?;
    if mount::is_block_device(&fd) {
        rustix::fs::fsync(&fd).map_err(|e| trouble(e.to_string()))?;
        return Ok("device settled".into());
    }
    match durable::settle_at(&fd) {
        Ok(true) => Ok("file system settled".into()),
        Ok(false) => {
            Ok("file system written; nothing was found that flushes its disk's cache".into())
        }
        Err(e) => Err(trouble(e.to_string())),
    }
}
