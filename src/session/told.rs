//! What the kernel tells once: that a write was lost.
//!
//! Promise: whoever was told notes it, at once and by himself, in the entry of the session that it
//! settles for, and in those of the others that owe on the same file system: dead ones have no
//! descriptor any more that would be told, and a disk that could not be flushed is told to nobody
//! else (blkdev_issue_flush, Linux 6.18). Whom it concerns is judged behind that.
//!
//! What it does not do: entries of other ledgers are not in sight, and of a file system that is
//! mounted nowhere in sight it is not known what it was called.

use super::control::{self, Living};
use super::debtor::Debtor;
use super::ledger::{Filed, Ledger, Unread};
use super::life::{life_of, Life};
use super::losses::{loss, KILLED};
use super::marks::SyncedFs;
use super::mounts::{self, is_of, names_file_system_of};
use super::{dirs, shared};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use synclater_policy::ledger::{Boot, Entry, LedgerFs};
use synclater_proc::mountinfo::{mount_of, Mount};
use synclater_sys::mount;

/// Notes what was told of the file system of `fd` for session `id` with this `token`, as well as
/// can be.
pub fn note(ledger: &Ledger, (id, token): (&str, &str), errno: i32, fd: BorrowedFd<'_>) {
    ledger.note_own(id, token, errno);
    let mut others = owing_on(ledger, fd);
    others.retain(|one| one.entry.token.as_deref() != Some(token));
    note_heard(ledger, errno, &others);
}

/// Notes it in the entries of all sessions that owe there.
pub fn note_for_others(ledger: &Ledger, errno: i32, fd: BorrowedFd<'_>) {
    note_heard(ledger, errno, &owing_on(ledger, fd));
}

/// The same of what lies at a path that cannot be opened: one that was shut down says EIO to that.
pub fn note_for_others_at(ledger: &Ledger, errno: i32, path: &Path) {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if let Ok(there) = rustix::fs::open(path, flags, Mode::empty()) {
        return note_for_others(ledger, errno, there.as_fd());
    }
    let table = mounts::mounts_of("self");
    let path = std::path::absolute(path).unwrap_or_default();
    let at: Vec<Mount> = mount_of(&table, &path).cloned().into_iter().collect();
    note_heard(ledger, errno, &owing(ledger, &at));
}

/// Notes what a sync of a file of ours was told, as well as can be: a report, say, that lies where
/// sessions owe. Nothing is lost where a disk is only full.
pub fn note_of_ours(e: &std::io::Error, place: &Path) {
    // A folder that was made for it is gone by now, and one of our own folder's names none.
    let there = place.ancestors().find(|p| !is_gone(p));
    let place = there.unwrap_or(Path::new("."));
    let ledger = Ledger::existing(note_of_ledger).ok().flatten();
    match (loss(e), ledger) {
        (Some(errno), Some(ledger)) => note_for_others_at(&ledger, errno, place),
        (Some(errno), None) => {
            let there = mount::open_for_sync(place).ok();
            note_without_ledger(errno, there.as_ref().map(AsFd::as_fd));
        }
        (None, _) => {}
    }
}

fn is_gone(path: &Path) -> bool {
    let seen = path.symlink_metadata();
    seen.is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

fn note_heard(ledger: &Ledger, errno: i32, entries: &[Filed]) {
    // First those in memory: a ledger may have no room, or lie on that disk.
    tell_living(errno, entries);
    for one in entries {
        let _ = ledger.note_heard(&one.path, errno);
    }
}

/// Tells living sessions of our run folder that have written one of these entries, or have no
/// ledger: where those owe is not known.
fn tell_living(errno: i32, entries: &[Filed]) {
    for session in control::sessions() {
        let debtor = Debtor::of(&session);
        if debtor.has_no_ledger() || entries.iter().any(|one| debtor.has_written(&one.entry)) {
            shared::tell(&session.page(), errno);
        }
    }
}

/// Notes it where whoever is told has no ledger: for living sessions that have none either, and in
/// those that others have.
pub fn note_without_ledger(errno: i32, fd: Option<BorrowedFd<'_>>) {
    tell_living(errno, &[]);
    if let Some(fd) = fd {
        for dir in ledgers_of(&control::sessions()) {
            if let Ok(Some(ledger)) = Ledger::at(&dir, note_of_ledger) {
                note_for_others(&ledger, errno, fd);
            }
        }
    }
}

/// The folders of the ledgers that sessions have.
fn ledgers_of(sessions: &[Living]) -> BTreeSet<PathBuf> {
    let all = sessions.iter();
    all.filter_map(|s| Debtor::of(s).ledger()).collect()
}

/// Notes that somebody was killed who synced a file system, in the entries of all sessions that owe
/// there, and for those that have no ledger. Whether that could be done.
pub fn note_killed_on(killed_on: &SyncedFs) -> bool {
    let (Ok(sessions), Ok(own)) = (control::listed(), Ledger::existing(note_of_ledger)) else {
        return false;
    };
    tell_living(KILLED, &[]);
    let mut is_noted = sessions.iter().all(|s| Debtor::of(s).can_be_read());
    let mut dirs = ledgers_of(&sessions);
    dirs.extend(own.map(|ledger| ledger.dir().to_owned()));
    for dir in dirs {
        let Ok(Some(ledger)) = Ledger::at(&dir, note_of_ledger) else {
            is_noted = false;
            continue;
        };
        let (owing, unread) = owing_where(&ledger, killed_on.boot(), |fs| killed_on.is(fs));
        is_noted &= !unread.iter().any(|unread| is_out_of_reach(&unread.path));
        tell_living(KILLED, &owing);
        is_noted &= owing.iter().all(|one| note_killed(&ledger, one));
    }
    is_noted
}

/// Notes in an entry that somebody was killed. Whether that could be done.
fn note_killed(ledger: &Ledger, one: &Filed) -> bool {
    match ledger.note_heard(&one.path, KILLED) {
        // It has closed its entry meanwhile.
        Err(e) => e.kind() == ErrorKind::NotFound,
        Ok(()) => true,
    }
}

/// Whether what could not be read may be, by another process: a whole ledger, or where too much is
/// open. An entry that nobody can read keeps nobody from noting in the others.
fn is_out_of_reach(path: &Path) -> bool {
    use rustix::io::Errno;
    let too_much = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    let error = File::open(path).err();
    let errno = error.and_then(|e| Errno::from_io_error(&e));
    errno.is_some_and(|errno| too_much.contains(&errno)) || path.is_dir() && errno.is_some()
}

/// Notes it for whoever owes on a file system of this device that is mounted nowhere in sight.
pub fn note_for_device(ledger: &Ledger, errno: i32, device: BorrowedFd<'_>) {
    let number = rustix::fs::fstat(device).map(|s| s.st_rdev).ok();
    let (mut filed, _) = ledger.entries();
    filed.retain(|f| f.entry.filesystems.iter().any(|fs| is_from(fs, number)));
    note_heard(ledger, errno, &filed);
}

/// Whether the source of a file system is the device with this number, if it is known.
fn is_from(fs: &LedgerFs, number: Option<u64>) -> bool {
    let source = rustix::fs::stat(&fs.source).ok();
    number.is_some() && source.map(|s| s.st_rdev) == number
}

/// Notes that a sync of a file of the ledger in folder `dir` was told of a lost write: sessions may
/// owe on its file system.
pub fn note_of_ledger(e: &std::io::Error, dir: &Path, file: BorrowedFd<'_>) {
    static IS_NOTING: AtomicBool = AtomicBool::new(false);
    // The note is synced as well, and told the same.
    let Some(errno) = loss(e).filter(|_| !IS_NOTING.swap(true, Ordering::SeqCst)) else {
        return;
    };
    if let Ok(Some(ledger)) = Ledger::at(dir, note_of_ledger) {
        note_for_others(&ledger, errno, file);
    }
    IS_NOTING.store(false, Ordering::SeqCst);
}

/// Sessions that owe on the file system of `fd`.
#[must_use]
pub fn owing_on(ledger: &Ledger, fd: BorrowedFd<'_>) -> Vec<Filed> {
    let is_it = names_file_system_of(fd);
    owing_where(ledger, &dirs::boot_id(), is_it).0
}

/// Sessions that owe on a file system that is mounted so.
fn owing(ledger: &Ledger, mounts: &[Mount]) -> Vec<Filed> {
    let boot = dirs::boot_id();
    owing_where(ledger, &boot, |fs| mounts.iter().any(|m| is_of(fs, m))).0
}

/// Sessions that owe, in this boot, on a file system that is meant, and what cannot be read.
fn owing_where(
    ledger: &Ledger,
    boot: &str,
    is_meant: impl Fn(&LedgerFs) -> bool,
) -> (Vec<Filed>, Vec<Unread>) {
    let (mut filed, unread) = ledger.entries();
    filed.retain(|Filed { entry, .. }| {
        entry.filesystems.iter().any(&is_meant) && is_of_boot(entry, boot, ledger)
    });
    (filed, unread)
}

fn is_of_boot(entry: &Entry, boot: &str, ledger: &Ledger) -> bool {
    // What lives is, whatever a container calls its boot.
    entry.boot(boot) == Boot::This || life_of(entry, ledger) == Life::Lives
}

/// A session of which it is known that it has lost a write on the file system of `fd`, and the name
/// of the error.
#[must_use]
pub fn known_on(ledger: &Ledger, fd: BorrowedFd<'_>) -> Option<(String, String)> {
    let (is_it, uuid) = (names_file_system_of(fd), mount::uuid_of_fd(fd));
    let owing = owing_on(ledger, fd).into_iter();
    let mut owing = owing.map(|f| f.entry).filter(|e| {
        let mut all = e.filesystems.iter();
        !e.is_never
            && (all.any(|fs| !is_another(fs, uuid.as_ref()) && is_it(fs))
                || life_of(e, ledger) == Life::Lives)
    });
    owing.find_map(|e| Some((e.id, e.error?)))
}

/// Whether the file system of an entry is another one than that with this UUID.
fn is_another(fs: &LedgerFs, uuid: Option<&String>) -> bool {
    // A device has its name from another one that is gone. What is mounted keeps it; an overlay's
    // UUID says nothing (stale.rs).
    let differs = fs.uuid.is_some() && uuid.is_some() && fs.uuid.as_ref() != uuid;
    differs && fs.fstype != "overlay"
}
