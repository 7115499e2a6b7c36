//! `synclater settle`: pay now.

use super::set::ask_named;
use super::{paid, OURS};
use crate::session::belongings::memory_of;
use crate::session::control::{self, sessions, Listens, Living, Request};
use crate::session::durable::{self, Settled};
use crate::session::ledger::Ledger;
use crate::session::stale::{self, Cleared};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_model::report::message::Trouble;
use synclater_sys::mount;

/// Makes durable what was asked for so far: of one session, of file systems, or of all sessions.
///
/// Exit status: 0 (also where a file system was written, and more is not known: a line says so), or
/// 125 where something could not be settled, the ledger could not be read, or a
/// session lives in another run folder or container; the rest is settled.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Sessions, as `synclater ps` names them, or paths (with a /) on the file systems to settle.
    #[arg(value_name = "SESSION|PATH")]
    what: Vec<String>,
}

/// How often it is looked whether a session listens or is gone.
const PAUSE: Duration = Duration::from_millis(10);

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
    let cleared = super::clear_stale();
    let mut is_whole = are_settled(&cleared);
    if args.what.is_empty() {
        is_whole &= settle_orphans();
    }
    // A dead one that is still there was told just now.
    let is_dead = |s: &Living| cleared.iter().any(|c| c.id == s.id);
    let living = || sessions().into_iter().filter(|s| !is_dead(s));
    let what: Vec<String> = if args.what.is_empty() {
        living().map(|s| s.id).collect()
    } else {
        args.what.clone()
    };
    let mut status = if is_whole { 0 } else { OURS };
    let mut ended = Vec::new();
    let all = args.what.is_empty();
    for name in &what {
        if all && has_ended(name) {
            ended.push(name);
            continue;
        }
        let said = if name.contains('/') || name == "." {
            path(name)
        } else {
            ask_named(name, &Request::Settle).map(|done| done.said)
        };
        match said {
            Ok(said) => super::print(&format!("{name}: {said}\n"))?,
            Err(_) if all && has_ended(name) => ended.push(name),
            Err(trouble) => {
                status = OURS;
                super::say(&format!("{trouble}\n"));
            }
        }
    }
    if !are_paid(&ended) {
        status = OURS;
    } else {
        for name in ended {
            super::print(&format!("{name}: ended meanwhile\n"))?;
        }
    }
    if what.is_empty() && is_whole {
        super::print("no sessions\n")?;
    }
    Ok(status)
}

/// Whether all that these sessions owed is settled, which ended meanwhile; says why not. Their
/// keepers are at it, if they have been killed; what those leave is settled in their place.
fn are_paid(ended: &[&String]) -> bool {
    /// How long it is waited for a keeper.
    const PATIENCE: Duration = Duration::from_secs(60);
    { ended.iter() }.for_each(|id| paid::wait_for(id, PATIENCE));
    let is_whole = ended.is_empty() || are_settled(&super::clear_stale()) & settle_orphans();
    // Not where it was said just now.
    is_whole && ended.iter().all(|id| paid::is_paid(id, PATIENCE))
}

fn are_settled(cleared: &[Cleared]) -> bool {
    cleared.iter().all(Cleared::is_whole)
}

/// Whether a session that was there is not any more. One that begins listens last, and one that
/// clears up behind itself takes its name away last: it waits for either.
fn has_ended(id: &str) -> bool {
    const PATIENCE: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    loop {
        let session = sessions().into_iter().find(|s| s.id == id);
        match session.map(|s| control::listens_in(&memory_of(&s.dir))) {
            None | Some(Listens::Nobody) => return true,
            Some(Listens::NotKnown) if begun.elapsed() < PATIENCE => sleep(PAUSE),
            Some(_) => return false,
        }
    }
}

/// Settles what sessions owe that are gone without a trace. Whether all of the ledger could be
/// read, and is durable.
fn settle_orphans() -> bool {
    match Ledger::existing() {
        Ok(None) => true,
        Ok(Some(ledger)) => {
            let (cleared, unread) = stale::settle_orphans(&ledger);
            { unread.iter() }.for_each(|u| super::say(&format!("{}\n", u.trouble())));
            tell_of_the_cut(&ledger);
            super::tell_cleared(&cleared) && unread.is_empty()
        }
        Err(trouble) => {
            super::say(&format!("{trouble}\n"));
            false
        }
    }
}

/// Sessions of another boot owe nothing that could be settled.
fn tell_of_the_cut(ledger: &Ledger) {
    let (filed, _) = ledger.entries();
    let cut = { filed.iter() }.filter(|f| stale::was_cut(&f.entry, ledger));
    let cut: Vec<&str> = cut.map(|f| f.entry.id.as_str()).collect();
    if !cut.is_empty() {
        let names = cut.join(", ");
        super::say(&format!(
            "synclater: cut by a reboot, and not settled: {names}; see `synclater status`\n"
        ));
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
        Ok(Settled::Durable) => Ok("file system settled".into()),
        Ok(Settled::Written(why)) => Ok(format!(
            "file system written; whether it is durable is not known: {why}"
        )),
        Err(e) => Err(trouble(e.to_string())),
    }
}
