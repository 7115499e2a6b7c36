//! `synclater status`: what the ledger says of sessions that a power cut, or something else, ended.

use crate::session::control::{self, Living};
use crate::session::ledger::{nowhere, Filed, Ledger, Unread};
use crate::session::life::{self, life_of, was_cut, Life};
use crate::session::stale::{self, Cleared};
use crate::session::{closing, dirs, told};
use crate::voice;
use synclater_account::status::{
    render_status, status_json, Listed, OpenSession, Outcome, UnreadEntry,
};
use synclater_policy::ledger::{Boot, Entry};
use synclater_text::layout::visible;
use synclater_text::message::Trouble;

/// Names the sessions that were cut by a power failure or crash, that ended without settling, or
/// that lost writes: what they owed, and what to do.
///
/// Exit status: 0 where there is none, 1 where there is one, or an entry cannot be read.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print JSON: an array of these sessions; "outcome" is "cut", "unsettled" or "lost_writes", or
    /// "unreadable" where the entry that would say it cannot be read.
    #[arg(long)]
    json: bool,

    /// Close the entry of such a session, once you have checked its data.
    #[arg(long, value_name = "ID")]
    forget: Option<String>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater status
  synclater status --json
  synclater status --forget kelp";

/// Prints what has ended with an open entry.
///
/// # Errors
/// A [`Trouble`] where the ledger is not to be trusted, or an entry to forget is not there or
/// cannot be removed.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    if dirs::state_dir().is_none() {
        return Err(nowhere().into());
    }
    let mut told = super::clear_stale();
    told.retain(|c| c.left.is_some());
    let ledger = Ledger::existing(told::note_of_ledger)?;
    let (filed, mut bad) = ledger.as_ref().map(Ledger::entries).unwrap_or_default();
    let boot = dirs::boot_id();
    let not_known = filed
        .iter()
        .filter(|f| f.entry.boot(&boot) == Boot::NotKnown);
    let of_no_boot = not_known.filter(|f| {
        let ledger = ledger.as_ref();
        ledger.is_none_or(|ledger| !lives(&f.entry, ledger))
    });
    bad.extend(of_no_boot.map(|f| Unread::of_no_boot(&f.path)));
    for unread in bad.iter().filter(|u| !is_told(u, &told)) {
        voice::say(&format!("{}\n", unread.trouble()));
    }
    if let Some(id) = &args.forget {
        return forget(id, &filed, ledger.as_ref());
    }
    let open = ledger.as_ref().map(|ledger| ended(&filed, &boot, ledger));
    let open = open.unwrap_or_default();
    let mut unread: Vec<&Unread> = told
        .iter()
        .filter_map(|c| Some(&c.left.as_ref()?.1))
        .collect();
    unread.extend(bad.iter().filter(|u| !is_told(u, &told)));
    let is_clean = open.is_empty() && unread.is_empty();
    voice::print(&if args.json {
        let open = open.into_iter().map(Listed::Open);
        let unread = unread.iter().map(|u| Listed::Unread(of_unread(u)));
        status_json(&open.chain(unread).collect::<Vec<_>>())
    } else {
        render_status(&open, unread.len())
    })?;
    Ok(i32::from(!is_clean))
}

/// Whether an entry was told of when it was cleared up.
fn is_told(unread: &Unread, told: &[Cleared]) -> bool {
    told.iter()
        .any(|c| c.left.as_ref().is_some_and(|(_, left)| left == unread))
}

/// Whether the session of an entry lives, or somebody settles in its place.
fn lives(entry: &Entry, ledger: &Ledger) -> bool {
    life_of(entry, ledger) == Life::Lives
}

fn of_unread(unread: &Unread) -> UnreadEntry {
    UnreadEntry::new(&unread.path, &unread.why, unread.remedy())
}

/// Those of the entries whose sessions have ended.
fn ended(filed: &[Filed], boot: &str, ledger: &Ledger) -> Vec<OpenSession> {
    let mut living = control::sessions();
    living.retain(control::is_there);
    let entries = filed.iter().map(|filed| &filed.entry);
    let open = entries.filter_map(|entry| {
        let outcome = outcome(entry, boot, ledger, &living)?;
        Some(OpenSession::new(entry, outcome))
    });
    open.collect()
}

/// How the session of an entry has ended, which is none of the `living`; nothing where it has not.
fn outcome(entry: &Entry, boot: &str, ledger: &Ledger, living: &[Living]) -> Option<Outcome> {
    if was_cut(entry, ledger) {
        return Some(Outcome::Cut);
    }
    let is_there = living.iter().any(|s| s.id == entry.id);
    let has_ended = entry.boot(boot) == Boot::This && !is_there && life::has_ended(entry, ledger);
    has_ended.then(|| {
        let is_being_settled = lives(entry, ledger);
        Outcome::of_ended(entry, is_being_settled)
    })
}

fn forget(id: &str, filed: &[Filed], ledger: Option<&Ledger>) -> anyhow::Result<i32> {
    let is_there = control::sessions().iter().any(|s| s.id == id);
    let known = ledger.and_then(|ledger| {
        let mut of_name = filed.iter().filter(|f| f.entry.id == id);
        let over =
            of_name.find(|f| was_cut(&f.entry, ledger) || !(is_there || lives(&f.entry, ledger)));
        Some((ledger, over?))
    });
    let Some((ledger, known)) = known else {
        let why = "no session of this name has ended with an open entry";
        return Err(cannot_forget(id, why.into()).into());
    };
    let closed = closing::close(known, ledger);
    closed.map_err(|e| cannot_forget(id, e.to_string()))?;
    stale::forget(&known.entry);
    voice::print(&format!("{id}: forgotten\n"))?;
    Ok(0)
}

fn cannot_forget(id: &str, why: String) -> Trouble {
    let what = format!("cannot forget {}", visible(id));
    Trouble::new(what, why, "synclater status", "the ledger is as it was")
}
