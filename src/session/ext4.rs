//! What the kernel shows of an ext4: its journal, the errors that it counts, what its disk has
//! lost.
//!
//! Relies on: /sys/fs/ext4 (`journal_task`, `errors_count`, Linux 2.6.36; `msg_count`, 5.9) and
//! /proc/fs/jbd2. Where they are not in sight, a journal is taken to lie elsewhere, and nothing is
//! known to be counted.

use super::losses::errno_of_fsync;
use rustix::fs::makedev;
use std::os::fd::BorrowedFd;
use std::path::Path;
use synclater_proc::mountinfo::Mount;
use synclater_sys::{blockdev, mount};

/// Whether an ext4 has a journal, and not in inode 8 of its own, by what the kernel shows.
pub(super) fn has_journal_elsewhere(dev: (u32, u32)) -> bool {
    let Some(name) = disk_name(dev) else {
        return true;
    };
    !has_no_journal(&name) && !has_own_journal(&name)
}

pub(super) fn has_own_journal(name: &str) -> bool {
    Path::new(&format!("/proc/fs/jbd2/{name}-8")).exists()
}

fn has_no_journal(name: &str) -> bool {
    let task = std::fs::read_to_string(format!("/sys/fs/ext4/{name}/journal_task"));
    task.is_ok_and(|t| t.trim() == "<none>")
}

/// Whether one on this device is known to have none.
pub(super) fn has_no_journal_on(dev: (u32, u32)) -> bool {
    disk_name(dev).is_some_and(|name| has_no_journal(&name))
}

/// The name of the disk of a file system that lies on one.
pub(super) fn disk_of(fd: BorrowedFd<'_>) -> Option<String> {
    let (dev, _) = mount::what_is(fd).ok()?;
    disk_name(((dev >> 32) as u32, dev as u32))
}

/// The kernel's name of the disk with this number, or of its partition.
fn disk_name((major, minor): (u32, u32)) -> Option<String> {
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(device.file_name()?.to_string_lossy().into_owned())
}

/// What the disk of an ext4 without a journal has lost of folders, inodes and maps: they lie in the
/// disk's own pages, and of those ext4 asks only where it changes something. An error is told to
/// each who opens the disk until somebody has heard of it that way (errseq_sample, Linux 4.13). 0
/// where it is another file system, or its disk may not be opened, as by a user without rights.
#[must_use]
pub fn lost_without_journal(fd: BorrowedFd<'_>) -> i32 {
    let Ok((dev, _)) = mount::what_is(fd) else {
        return 0;
    };
    let dev = ((dev >> 32) as u32, dev as u32);
    let name = disk_name(dev).filter(|name| has_no_journal(name));
    let disk =
        name.and_then(|name| blockdev::open(dev, &name, |number| number == makedev(dev.0, dev.1)));
    disk.map_or(0, errno_of_fsync)
}

/// What an ext4 counts in sysfs(5): `errors_count` (Linux 2.6.36) or `msg_count` (5.9).
pub(super) fn count(fd: BorrowedFd<'_>, which: &str) -> Option<u64> {
    number(&disk_of(fd)?, which)
}

/// A number that sysfs has of the ext4 on the disk of this name.
fn number(name: &str, which: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/fs/ext4/{name}/{which}")).ok()?;
    text.trim().parse().ok()
}

/// What ext4 calls an error of its disk (EXT4_ERR_EIO, fs/ext4/ext4.h).
pub(super) const ERR_EIO: u64 = 2;

/// Whether an ext4 counts errors of its own structures, which only e2fsck(8) takes back. What it
/// cannot place then stays in memory behind a syncfs that says 0, and is not counted once more:
/// blocks that are known to be spoilt are passed over (mpage_map_and_submit_extent, Linux 6.18).
/// Of errors of its disk alone (EXT4_ERR_EIO) it tells as others do.
pub(super) fn counts_errors(mount: &Mount) -> bool {
    let Some(name) = disk_name(mount.dev).filter(|_| mount.fstype == "ext4") else {
        return false;
    };
    let errors = ["first_error_errcode", "last_error_errcode"];
    number(&name, "errors_count").is_some_and(|n| n > 0)
        && errors
            .iter()
            .any(|which| number(&name, which) != Some(ERR_EIO))
}
