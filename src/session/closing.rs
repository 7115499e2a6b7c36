//! How an entry is closed by somebody else than its session, and how that learns of it.
//!
//! The session's folder may be looked at later, from where it is in sight: its page and lock file
//! say that there was an entry, and without one nobody would know what became of it. So both are
//! told; where one of them is not in sight (another mount namespace's) the entry itself stays in
//! the ledger under another name, `ID.TOKEN.closed`, until that boot is over.

use super::belongings::{self, ledger_of, Kept};
use super::control::{self, Living};
use super::debtor::Debtor;
use super::ledger::{Filed, Ledger};
use super::mounts::mounts_of;
use super::{dirs, shared, told};
use std::io;
use std::path::Path;
use synclater_policy::filesystem::answers;
use synclater_policy::ledger::Entry;
use synclater_proc::mountinfo::mount_of;

/// Closes the entry of a dead session.
///
/// # Errors
/// Those of removing and renaming a file in the ledger.
pub fn close(filed: &Filed, ledger: &Ledger) -> io::Result<()> {
    if is_told(&filed.entry) {
        ledger.close_here(filed)
    } else {
        ledger.close_and_say_so(filed)
    }
}

/// The session that has written an entry, in whatever run folder, if its folder is in sight.
pub(super) fn session_of(entry: &Entry) -> Option<Living> {
    let named = entry.folder.as_ref().map(|dir| Living {
        id: entry.id.clone(),
        dir: dir.into(),
    });
    let own = control::session(&entry.id);
    own.into_iter()
        .chain(named.filter(|s| may_be_looked_at(&s.dir)))
        .filter(is_ours)
        .find(|s| Debtor::of(s).has_written(entry))
}

fn is_ours(session: &Living) -> bool {
    let seen = session.dir.symlink_metadata();
    seen.is_ok_and(|m| dirs::distrust(&m).is_none())
}

/// Whether a folder lies where a look has an end: what a program serves (FUSE), or another machine,
/// may never answer.
fn may_be_looked_at(dir: &Path) -> bool {
    let table = mounts_of("self");
    mount_of(&table, dir).is_some_and(|m| answers(&m.fstype))
}

/// Whether the session's folder says from now on that its entry may be gone, wherever it is.
fn is_told(entry: &Entry) -> bool {
    session_of(entry).is_some_and(|session| {
        let page = shared::is_being_closed(&session.page());
        page.is_ok() && belongings::is_being_closed(&session.dir).is_ok()
    })
}

/// Whether somebody else has closed the entry of a dead session.
pub(super) fn was_closed(session: &Living) -> bool {
    beside(session).is_some_and(|(ledger, token)| ledger.was_closed(&session.id, &token))
}

/// Whether its entry was closed by who did not know that it had lost a write.
pub(super) fn was_closed_untold(session: &Living) -> bool {
    beside(session).is_some_and(|(ledger, token)| ledger.was_closed_untold(&session.id, &token))
}

/// Opens its entry again, where it was closed by who did not know that it had lost a write.
///
/// # Errors
/// Those of renameat2(2) and fsync(2): another session may have its name by now.
pub(super) fn reopen(session: &Living) -> io::Result<()> {
    match beside(session) {
        Some((ledger, token)) if ledger.was_closed_untold(&session.id, &token) => {
            ledger.reopen(&session.id, &token)
        }
        _ => Ok(()),
    }
}

/// Removes a session's folder, and then what says that its entry was closed.
pub(super) fn remove_folder(session: &Living) {
    let beside = beside(session);
    let _ = std::fs::remove_dir_all(&session.dir);
    if let Some((ledger, token)) = beside.filter(|_| !session.dir.exists()) {
        ledger.forget_closed(&session.id, &token);
    }
}

/// The ledger of a dead session, and what tells it from others of its name.
fn beside(session: &Living) -> Option<(Ledger, String)> {
    let kept = ledger_of(&session.dir);
    let token = kept.token()?.clone();
    let Kept::In { ledger, .. } = kept else {
        return None;
    };
    Some((Ledger::at(&ledger, told::note_of_ledger).ok()??, token))
}

/// Programs of the sessions that wrote these entries, which are dead, put nothing off any more.
pub(super) fn relax_no_more(dead: &[Filed]) {
    let told: Vec<bool> = dead.iter().map(relaxes_no_more).collect();
    if told.contains(&false) {
        shared::wait_for_lease();
    }
}

/// Whether the page of an entry's session says from now on that nothing is put off.
fn relaxes_no_more(filed: &Filed) -> bool {
    let page = session_of(&filed.entry).map(|session| session.page());
    page.is_some_and(|page| page.exists() && shared::relaxes_no_more(&page).is_ok())
}
