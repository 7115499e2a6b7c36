//! `synclater status`: what the ledger says after a power cut.

use crate::session::ledger::{Filed, Ledger, Unread};
use crate::session::stale::{self, life_of, was_cut, Life};
use crate::session::{closing, control, dirs};
use synclater_model::ledger::{cut_sessions, render_status, status_json, Boot, Entry};
use synclater_model::report::message::Trouble;
use synclater_model::report::text::shown;

/// Names the sessions that were cut by a power failure or crash, what they owed, and what to do.
///
/// Exit status: 0 where nothing was cut, 1 where something was, or an entry cannot be read.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print JSON: an array of cut sessions.
    #[arg(long)]
    json: bool,

    /// Close the entry of a cut session, once you have checked its data.
    #[arg(long, value_name = "ID")]
    forget: Option<String>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater status
  synclater status --json
  synclater status --forget kelp";

/// Prints what was cut.
///
/// # Errors
/// A [`Trouble`] where the ledger is not to be trusted, or an entry to forget is not there or
/// cannot be removed.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let mut told = super::clear_stale();
    told.retain(|c| c.left.is_some());
    let ledger = Ledger::existing()?;
    let (filed, mut bad) = ledger.as_ref().map(Ledger::entries).unwrap_or_default();
    let boot = dirs::boot_id();
    let of_no_boot = |f: &&Filed| {
        let lives = |l| life_of(&f.entry, l) == Life::Lives;
        f.entry.boot(&boot) == Boot::NotKnown && !ledger.as_ref().is_some_and(lives)
    };
    let of_no_boot = filed.iter().filter(of_no_boot);
    bad.extend(of_no_boot.map(|f| Unread::of_no_boot(&f.path)));
    let is_told = |u: &Unread| {
        told.iter()
            .any(|c| c.left.as_ref().is_some_and(|(_, l)| l == u))
    };
    for unread in bad.iter().filter(|u| !is_told(u)) {
        super::say(&format!("{}\n", unread.trouble()));
    }
    if let Some(id) = &args.forget {
        return forget(id, &filed, ledger.as_ref());
    }
    let entries: Vec<Entry> = filed.into_iter().map(|f| f.entry).collect();
    let is_cut = |e: &&Entry| ledger.as_ref().is_some_and(|l| was_cut(e, l));
    let cut: Vec<Entry> = entries.iter().filter(is_cut).cloned().collect();
    let text = if args.json {
        status_json(&cut_sessions(&cut, &boot))
    } else {
        render_status(&cut)
    };
    super::print(&text)?;
    if let Some(ledger) = ledger.filter(|_| !args.json) {
        unsettled(&entries, &boot, &ledger)?;
    }
    let is_clean = cut.is_empty() && bad.is_empty() && told.is_empty();
    Ok(i32::from(!is_clean))
}

/// Entries of this boot that belong to no living session: settling failed, or was stopped.
fn unsettled(entries: &[Entry], boot: &str, ledger: &Ledger) -> Result<(), Trouble> {
    let mut living = control::sessions();
    living.retain(control::is_there);
    let has_ended = |e: &&Entry| stale::has_ended(e, ledger);
    for e in entries
        .iter()
        .filter(|e| e.boot(boot) == Boot::This && !living.iter().any(|s| s.id == e.id))
        .filter(has_ended)
    {
        let list: Vec<String> = e.filesystems.iter().map(|f| shown(&f.mount)).collect();
        let (id, all, each) = (&e.id, list.join(", "), list.join(" "));
        let yet = match life_of(e, ledger) {
            Life::Lives => " yet (its keeper, or another command, may be at it: look again later)",
            Life::Ended | Life::NotKnown => "",
        };
        let what = match list.is_empty() {
            true => format!(
                "{id}: writes were lost, on a file system that was unmounted since (`dmesg` tells);"
            ),
            false => format!(
                "{id}: ended without settling {all}{yet}, or writes were lost there \
                 (`dmesg` tells); run `synclater settle {each}`,"
            ),
        };
        super::print(&format!(
            "{what} check what the command wrote, then `synclater status --forget {id}`\n"
        ))?;
    }
    Ok(())
}

fn forget(id: &str, filed: &[Filed], ledger: Option<&Ledger>) -> anyhow::Result<i32> {
    let trouble = |why: String| {
        let what = format!("cannot forget {id}");
        Trouble::new(what, why, "synclater status", "the ledger is as it was")
    };
    let lives = control::sessions().iter().any(|s| s.id == id);
    let is_over = |e: &Entry, ledger: &Ledger| {
        was_cut(e, ledger) || !(lives || life_of(e, ledger) == Life::Lives)
    };
    let known = ledger.and_then(|ledger| {
        let is_it = |f: &&Filed| f.entry.id == id && is_over(&f.entry, ledger);
        Some((ledger, filed.iter().find(is_it)?))
    });
    let Some((ledger, known)) = known else {
        return Err(trouble("no cut session has this name".into()).into());
    };
    let closed = closing::close(known, ledger);
    closed.map_err(|e| trouble(e.to_string()))?;
    stale::forget(&known.entry);
    super::print(&format!("{id}: forgotten\n"))?;
    Ok(0)
}
