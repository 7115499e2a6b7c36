//! What the kernel tells once: that a write was lost.
//!
//! Promise: whoever was told notes it, at once and by himself, in the entry of the session that it
//! settles for, and in those of the others that owe on the same file system: dead ones have no
//! descriptor any more that would be told, and a disk that could not be flushed is told to nobody
//! else (blkdev_issue_flush, Linux 6.18). Whom it concerns is judged behind that.
//!
//! What it does not do: entries of other ledgers are not in sight, and of a file system that is
//! mounted nowhere in sight it is not known what it was called.

use super::filesystems::dev_of;
use super::ledger::{Filed, Ledger};
use super::stale::{life_of, page_of, Debtor, Life};
use super::{control, dirs, filesystems, shared};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use synclater_model::ledger::{Boot, Entry, LedgerFs};
use synclater_model::policy::filesystem::{mount_of, Mount};
use synclater_sys::{mount, process};

/// What is said of an error behind its name.
pub const TO_OTHERS: &str = " was told to somebody else who settled there: writes were lost";

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
    let table = filesystems::mounts_of("self");
    let at: Vec<Mount> = mount_of(&table, path).cloned().into_iter().collect();
    note_heard(ledger, errno, &owing(ledger, &at));
}

/// Notes what a sync of a file of ours was told, as well as can be: a report, say, that lies where
/// sessions owe. Nothing is lost where a disk is only full.
pub fn note_of_ours(e: &std::io::Error, place: &Path) {
    let is_loss = |errno: &i32| *errno == rustix::io::Errno::IO.raw_os_error();
    let ledger = Ledger::existing().ok().flatten();
    if let (Some(errno), Some(ledger)) = (e.raw_os_error().filter(is_loss), ledger) {
        note_for_others_at(&ledger, errno, place);
    }
}

fn note_heard(ledger: &Ledger, errno: i32, entries: &[Filed]) {
    // First those in memory: a ledger may have no room, or lie on that disk.
    let living: Vec<(Debtor, PathBuf)> = { control::sessions().iter() }
        .map(|s| (Debtor::of(s), page_of(s)))
        .collect();
    for one in entries {
        { living.iter() }
            .filter(|(debtor, _)| debtor.has_written(&one.entry))
            .for_each(|(_, page)| shared::tell(page, errno));
    }
    for one in entries {
        let _ = ledger.note_heard(&one.path, errno);
    }
}

/// Sessions that owe on the file system of `fd`.
#[must_use]
pub fn owing_on(ledger: &Ledger, fd: BorrowedFd<'_>) -> Vec<Filed> {
    owing(ledger, &mounts_beside(fd))
}

/// Sessions that owe on a file system that is mounted so.
fn owing(ledger: &Ledger, mounts: &[Mount]) -> Vec<Filed> {
    let boot = dirs::boot_id();
    let owes = |e: &Entry| {
        let is_named = |m: &Mount| e.filesystems.iter().any(|fs| is_of(fs, m));
        // What lives does, whatever a container calls its boot.
        let is_now = || e.boot(&boot) == Boot::This || life_of(e, ledger) == Life::Lives;
        mounts.iter().any(is_named) && is_now()
    };
    let (mut filed, _) = ledger.entries();
    filed.retain(|f| owes(&f.entry));
    filed
}

/// A session of which it is known that it has lost a write on the file system of `fd`, and the name
/// of the error.
#[must_use]
pub fn known_on(ledger: &Ledger, fd: BorrowedFd<'_>) -> Option<(String, String)> {
    { owing_on(ledger, fd).into_iter() }.find_map(|f| Some((f.entry.id, f.entry.error?)))
}

/// Whether an entry means the file system that is mounted there. What is no path is the source of
/// many.
fn is_of(fs: &LedgerFs, m: &Mount) -> bool {
    let is_there = || m.source.starts_with('/') || m.path() == Path::new(&fs.mount);
    m.fstype == fs.fstype && m.source == fs.source && is_there()
}

/// The number of the mount of `fd`, also of a file system that was shut down: it answers nothing
/// itself.
#[must_use]
pub fn mount_of_fd(fd: BorrowedFd<'_>) -> Option<u64> {
    let info = process::text(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|l| l.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Where the file system of `fd` is mounted in our sight, or may be: its own mount need not be. One
/// that was shut down says no number, and those of btrfs are its subvolumes'.
#[must_use]
pub fn mounts_beside(fd: BorrowedFd<'_>) -> Vec<Mount> {
    let mut table = filesystems::mounts_of("self");
    let id = mount_of_fd(fd);
    if let Some(dev) = table.iter().find(|m| Some(m.id) == id).map(|m| m.dev) {
        table.retain(|m| m.dev == dev);
        return table;
    }
    let dev = mount::what_is(fd).ok().map(|(dev, _)| dev);
    let may_be = |m: &Mount| dev.is_none_or(|dev| dev_of(m) == dev || m.fstype == "btrfs");
    table.retain(may_be);
    table
}
