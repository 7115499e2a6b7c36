//! What dead sessions left: found by the next command, settled, cleared away.
//!
//! A session's folder has a `lock` file that the supervisor and its keeper hold locked as long as
//! either lives; in it stands where the session's memory lies, if that is elsewhere, and its
//! ledger. A folder whose lock can be taken is stale. Its debt (its entry of this boot, in the
//! ledger that the lock file names) is settled first; the entry is closed only when that succeeded.
//! Where the entry cannot be read, nobody knows what is owed: then everything stays as it is.

use super::again::settle_again;
use super::alive::Found;
use super::belongings::{
    self, folder_id, forget_unborn, ledger_of, memory_of, without_mount, Kept,
};
use super::control::{self, Living};
use super::debtor::Debtor;
use super::folder::take_lock;
use super::ledger::{Filed, Ledger, Unread};
use super::life::{life_by_number, life_of, was_cut, Life};
use super::losses::errno_name;
use super::{closing, dirs, shared, told, underway};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use synclater_account::run::SettleError;
use synclater_policy::ledger::{Boot, Entry};
use synclater_sys::everything;
use synclater_sys::job::Job;

/// What was cleared away, for one line to the user each.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Session id.
    pub id: String,
    /// File systems that were settled in its place.
    pub settled: Vec<String>,
    /// What could not be settled: the ledger entry stays open.
    pub failed: Vec<String>,
    /// The name of the error of a write that was lost: maybe on a file system that has gone since.
    pub error: Option<String>,
    /// Its entry, where it had one that can be read.
    pub entry: PathBuf,
    /// The session's folder, which stays, and what would say what it owed.
    pub left: Option<(PathBuf, Unread)>,
}

impl Cleared {
    fn nothing(id: &str) -> Cleared {
        Cleared {
            id: id.to_owned(),
            ..Cleared::default()
        }
    }

    /// Whether all that it owed is durable.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.failed.is_empty() && self.left.is_none() && self.error.is_none()
    }
}

/// Clears away what dead sessions left; sessions that live are not touched.
pub fn clear() -> Vec<Cleared> {
    forget_unborn();
    let _ = underway::note_killed();
    let all = control::sessions();
    all.iter().filter_map(clear_if_dead).collect()
}

fn clear_if_dead(session: &Living) -> Option<Cleared> {
    let mut lock = take_lock(&session.dir)?;
    if !session.page().exists() && matches!(entry_of(session), Ok(Some(_))) {
        // Not with its lock: others would take it for one that lives.
        drop(lock);
        shared::wait_for_lease();
        lock = take_lock(&session.dir)?;
    }
    match pay(session, lock.as_fd()) {
        Ok((out, true)) => {
            remove_files(session);
            Some(out.unwrap_or_else(|| Cleared::nothing(&session.id)))
        }
        Ok((out, false)) => out,
        Err(unread) => Some(Cleared {
            left: Some((session.dir.clone(), unread)),
            ..Cleared::nothing(&session.id)
        }),
    }
}

/// Settles what a dead session owes; also says whether its folder may go.
fn pay(session: &Living, lock: BorrowedFd<'_>) -> Result<(Option<Cleared>, bool), Unread> {
    // The entry is written before the first debt.
    let page = session.page();
    let has_lost = shared::error_in(&page).is_some();
    if has_lost {
        // Who has closed its entry may not have seen the page.
        closing::reopen(session).map_err(|e| Unread::lost(&page, e))?;
    }
    let Some((mut filed, ledger)) = entry_of(session)? else {
        let is_closed_again = has_lost && closing::was_closed_untold(session);
        return if is_closed_again {
            Err(Unread::lost(&page, "somebody else has closed its entry"))
        } else {
            Ok((None, true))
        };
    };
    shared::relaxes_no_more(&page).map_err(|e| Unread::page(&page, e))?;
    let is_told = is_told_of_a_lost_write(session, &mut filed, &ledger);
    let out = settle_alone(&filed, &ledger, Some((session, lock)))?;
    let is_open = out.as_ref().is_some_and(|out| !out.is_whole());
    // Its folder alone says where its ledger is.
    let is_elsewhere = dirs::state_dir().as_deref() != Some(ledger.dir());
    Ok((out, is_told && !(is_open && is_elsewhere)))
}

/// Whether an entry says that the session has lost a write, if it has: its page remembers that
/// where it could not be written, and is kept until it can.
fn is_told_of_a_lost_write(session: &Living, filed: &mut Filed, ledger: &Ledger) -> bool {
    let lost = shared::error_in(&session.page());
    let Some(errno) = lost.filter(|_| filed.entry.error.is_none()) else {
        return true;
    };
    filed.entry.error = Some(errno_name(errno));
    ledger.note_error(&filed.path, errno).is_ok()
}

/// What a dead session owes, and the ledger that says so: its own, wherever whoever looks has one.
fn entry_of(session: &Living) -> Result<Option<(Filed, Ledger)>, Unread> {
    let kept = ledger_of(&session.dir);
    let Some((filed, ledger)) = look_up(&session.id, &kept)? else {
        return Ok(None);
    };
    let Some(filed) = filed.filter(|f| f.entry.token.as_ref() == kept.token()) else {
        if closing::was_closed(session) {
            return Ok(None);
        }
        // A mount over it, or a link: its own one may say more.
        let was_entered = was_entered(session).unwrap_or_else(|| is_another(&ledger, &kept));
        return if was_entered {
            Err(Unread::ledger(
                ledger.dir(),
                "the session has had an entry, and it is not there",
            ))
        } else {
            Ok(None)
        };
    };
    let boot = if shared::is_in_memory(&session.page()) {
        // No reboot leaves that, whatever a container says of its boots.
        Boot::This
    } else {
        filed.entry.boot(&dirs::boot_id())
    };
    match boot {
        Boot::This => Ok(Some((filed, ledger))),
        Boot::Another => Ok(None),
        Boot::NotKnown => Err(Unread::of_no_boot(&filed.path)),
    }
}

/// Whether the folder of a ledger is another one than a session's lock file says.
fn is_another(ledger: &Ledger, kept: &Kept) -> bool {
    kept.folder()
        .is_some_and(|told| folder_id(ledger.dir()).as_ref() != Some(told))
}

/// Whether a session has had an entry, as its page says. One that lies on a disk may be of another
/// boot, which the lock file knows.
fn was_entered(session: &Living) -> Option<bool> {
    let page = session.page();
    let in_memory = shared::is_in_memory(&page).then(|| shared::was_entered(&page));
    in_memory
        .flatten()
        .or_else(|| belongings::was_entered(&session.dir))
        .or_else(|| shared::was_entered(&page))
}

/// The ledger of a session, where `kept` says, and what it has under the name `id`, whosever it is.
fn look_up(id: &str, kept: &Kept) -> Result<Option<(Option<Filed>, Ledger)>, Unread> {
    let dir = match kept {
        Kept::In { ledger, .. } => Some(ledger.clone()),
        Kept::Nowhere => None,
        Kept::NotTold => dirs::state_dir(),
        Kept::NotRead(why) => {
            let lock = dirs::run_dir().join(id).join("lock");
            return Err(Unread::lock(&lock, why));
        }
    };
    let Some(dir) = dir else {
        return Ok(None);
    };
    match Ledger::at(&dir, told::note_of_ledger).map_err(|why| Unread::ledger(&dir, why))? {
        Some(ledger) => Ok(Some((ledger.entry(id)?, ledger))),
        None if kept.token().is_some() => Err(Unread::ledger(&dir, "there is no such folder")),
        None => Ok(None),
    }
}

/// Removes what a dead session has left, whose entry is closed by somebody's word: not what another
/// one of its name has.
pub fn forget(entry: &Entry) {
    if let Some(session) = closing::session_of(entry) {
        if let Some(_lock) = take_lock(&session.dir) {
            remove_files(&session);
        }
    }
}

/// Removes a session's folder, and its memory.
fn remove_files(session: &Living) {
    let memory = memory_of(&session.dir);
    let ours = memory
        .symlink_metadata()
        .is_ok_and(|m| dirs::distrust(&m).is_none());
    let name = memory.file_name().unwrap_or_default().to_string_lossy();
    if ours && name.starts_with(&session.id) {
        let _ = std::fs::remove_dir_all(&memory);
    }
    closing::remove_folder(session);
}

/// Settles what an entry names, if nobody else does: the kernel tells of a lost write once, so of
/// two who settle at once one would hear of it, and the other close the entry. A session
/// whose folder is there comes with it, and the lock of that. Its programs put nothing off by then.
pub(super) fn settle_alone(
    filed: &Filed,
    ledger: &Ledger,
    folder: Option<(&Living, BorrowedFd<'_>)>,
) -> Result<Option<Cleared>, Unread> {
    // Seen by way of another mount, the locks of one that lives are other ones.
    match life_of(&filed.entry, ledger) {
        Life::Lives => return Err(Unread::living(&filed.path)),
        Life::NotKnown => return Err(Unread::elsewhere(&filed.path)),
        Life::Ended => {}
    }
    let lock = match ledger.lock_beside(&filed.entry, true) {
        Found::Held => return Err(Unread::living(&filed.path)),
        Found::NotTold => return Err(Unread::elsewhere(&filed.path)),
        Found::Free(lock) | Found::Another(lock) => Some(lock),
        Found::Nothing => None,
    };
    // As it stands now: somebody may have settled it since it was read.
    let now = ledger.entry(&filed.entry.id)?;
    let mut now = now.filter(|now| now.entry.token == filed.entry.token);
    if let Some(now) = &mut now {
        // One that could not be noted there.
        now.entry.error = now.entry.error.take().or(filed.entry.error.clone());
    }
    let session = folder.map(|(session, _)| session);
    let locks = lock.iter().map(AsFd::as_fd);
    let locks: Vec<BorrowedFd<'_>> = locks.chain(folder.map(|(_, lock)| lock)).collect();
    now.map(|now| settle_filed(&now, ledger, session, &locks))
        .transpose()
}

/// What a session whose supervisor is dead has left to settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Debt {
    /// Nothing.
    Paid,
    /// Its keeper, or another command, is at it.
    BeingPaid,
    /// It could not be settled: the entry in this file stays open.
    Open(PathBuf),
}

impl Debtor {
    /// What it has left to settle once it is dead, behind [`clear`].
    ///
    /// # Errors
    /// Why what would say it cannot be read.
    pub fn debt(&self) -> Result<Debt, Unread> {
        let Some((filed, ledger)) = self.entry()? else {
            return Ok(Debt::Paid);
        };
        let is_its = self.is_there() || self.is_told();
        Ok(match life_of(&filed.entry, &ledger) {
            // Another one with this name, of another run folder: nobody's keeper, nor another
            // command that settles in its place.
            Life::Lives if !is_its && life_by_number(&filed.entry) == Life::Lives => Debt::Paid,
            Life::Lives => Debt::BeingPaid,
            Life::Ended | Life::NotKnown => Debt::Open(filed.path),
        })
    }

    /// The name of an error that somebody else was told on a file system on which it owes, as long
    /// as it lives: it may not have been told itself.
    ///
    /// # Errors
    /// Why what would say it cannot be read.
    pub fn lost_elsewhere(&self) -> Result<Option<String>, Unread> {
        if self.session().is_none() {
            return Ok(None);
        }
        let Some((filed, ledger)) = self.entry()? else {
            return Ok(None);
        };
        let Some(token) = &filed.entry.token else {
            return Ok(None);
        };
        let heard = ledger.heard(&filed.entry.id, token);
        if heard.is_err() && self.session().is_none() {
            // It has closed its entry meanwhile, and would not have with that beside it.
            return Ok(None);
        }
        heard.map_err(|e| Unread::ledger(&filed.path, e.to_string()))
    }

    /// Settles in its place what it left, if its folder is gone; that is done by [`clear`] else.
    ///
    /// # Errors
    /// Why what would say it cannot be read, or that somebody settles it.
    pub fn settle(&self) -> Result<Option<Cleared>, Unread> {
        match self.entry()? {
            Some((filed, ledger)) if !self.is_there() => {
                closing::relax_no_more(std::slice::from_ref(&filed));
                settle_alone(&filed, &ledger, None)
            }
            _ => Ok(None),
        }
    }

    fn entry(&self) -> Result<Option<(Filed, Ledger)>, Unread> {
        if let Some(session) = self.session() {
            return entry_of(&session);
        }
        let Some((filed, ledger)) = look_up(&self.id, &self.kept)? else {
            return Ok(None);
        };
        let Some(token) = self.kept.token() else {
            let filed = filed.filter(|f| !was_cut(&f.entry, &ledger));
            return Ok(filed.map(|f| (f, ledger)));
        };
        let filed = filed.filter(|f| f.entry.token.as_ref() == Some(token));
        // Something lies over the folder that would say it: not in another mount namespace alone.
        let told = self.kept.folder();
        if filed.is_none() && told.is_some_and(|told| !is_that(ledger.dir(), told)) {
            let why = "it is not the folder that it was";
            return Err(Unread::ledger(ledger.dir(), why));
        }
        Ok(filed.map(|f| (f, ledger)))
    }
}

/// Whether a folder is the one of which this was told, by way of whatever mount.
fn is_that(dir: &Path, told: &str) -> bool {
    let now = folder_id(dir);
    now.is_some_and(|now| without_mount(&now) == without_mount(told))
}

/// Settles what an entry names, in place of its session, and closes it where all was.
fn settle_filed(
    filed: &Filed,
    ledger: &Ledger,
    session: Option<&Living>,
    locks: &[BorrowedFd<'_>],
) -> Result<Cleared, Unread> {
    let mut out = if filed.entry.is_never {
        Ok(Cleared::nothing(&filed.entry.id))
    } else {
        settle_entry(filed, ledger, locks).map_err(|e| Unread::full(&filed.path, e))
    }?;
    if filed.entry.is_free() {
        let _ = closing::close(filed, ledger);
        return Ok(out);
    }
    // Another one who settled may have been told since they were read, or killed.
    let _ = underway::note_killed();
    let now = ledger.entry(&filed.entry.id)?;
    let now = now.filter(|now| now.entry.token == filed.entry.token);
    out.error = out.error.or(now.and_then(|now| now.entry.error));
    let of_page = match out.error {
        None => error_in_page(session, &filed.entry),
        Some(_) => None,
    };
    if let Some(errno) = of_page {
        let noted = ledger.note_error(&filed.path, errno);
        noted.map_err(|e| Unread::full(&filed.path, e))?;
        out.error = Some(errno_name(errno));
    }
    if out.is_whole() {
        let _ = closing::close(filed, ledger);
    }
    Ok(out)
}

/// The error that the page of a session says, or of who has written the entry.
fn error_in_page(session: Option<&Living>, entry: &Entry) -> Option<i32> {
    let session = session.cloned().or_else(|| closing::session_of(entry))?;
    shared::error_in(&session.page())
}

/// Fails where it could not be noted that a write was lost: the next one that asks is not told.
fn settle_entry(filed: &Filed, ledger: &Ledger, locks: &[BorrowedFd<'_>]) -> io::Result<Cleared> {
    let entry = &filed.entry;
    let mut out = Cleared::nothing(&entry.id);
    out.entry.clone_from(&filed.path);
    out.error.clone_from(&entry.error);
    let note = ledger.prepare_note(filed)?;
    let locks = &[locks, &[note.lock()]].concat();
    if entry.sync {
        // First: a disk reports a refused flush once, and sync(2) would lose that report.
        settle_each(entry, ledger, &note, locks, &mut out)?;
        // What the session knows of is settled behind that, by what makes it durable.
        let job = Job::start(|| everything::sync_in_job(locks));
        if job.map_or(true, |job| job.result() != 0) {
            everything::sync();
        }
    }
    settle_each(entry, ledger, &note, locks, &mut out)?;
    if entry.error.is_some() {
        // Which one that was the entry does not say.
        out.failed.append(&mut out.settled);
    }
    Ok(out)
}

/// Settles each file system of an entry. One that has failed before has failed: a disk reports a
/// refused flush once.
fn settle_each(
    entry: &Entry,
    ledger: &Ledger,
    note: &super::ledger::Note,
    locks: &[BorrowedFd<'_>],
    out: &mut Cleared,
) -> io::Result<()> {
    for fs in &entry.filesystems {
        let answer = settle_again(fs, locks, |errno, fd| {
            let _ = note.write(errno);
            told::note_for_others(ledger, errno, fd);
        });
        out.settled.retain(|mount| *mount != fs.mount);
        match answer {
            Some(0) if !out.failed.contains(&fs.mount) => out.settled.push(fs.mount.clone()),
            _ if !out.failed.contains(&fs.mount) => out.failed.push(fs.mount.clone()),
            _ => {}
        }
        if let Some(errno @ 1..) = answer {
            note.write(errno)?;
            // What is known counts more than what may be.
            if out.error.as_ref().is_none_or(|e| e == SettleError::KILLED) {
                out.error = Some(errno_name(errno));
            }
        }
    }
    Ok(())
}
