//! Mounts as /proc shows them: those in our sight, those of another process, and which of them a
//! descriptor or an entry of the ledger means.
//!
//! Promise: a file system that was shut down is found as well: it answers nothing itself.
//! What it does not do: of a file system that is mounted nowhere in sight it knows no name.

use super::opening::known_at;
use rustix::fs::OFlags;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use synclater_policy::ledger::LedgerFs;
use synclater_proc::mountinfo::{parse_mountinfo, Mount};
use synclater_sys::mount::{self, Holds};
use synclater_sys::process;

/// A mount's superblock, as one number.
#[must_use]
pub fn dev_of(m: &Mount) -> u64 {
    u64::from(m.dev.0) << 32 | u64::from(m.dev.1)
}

/// The mounts that process `pid` sees; empty where /proc is not mounted.
#[must_use]
pub fn mounts_of(pid: &str) -> Vec<Mount> {
    parse_mountinfo(&std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default())
}

/// The first of the mounts that process `pid` sees: as many as can be read and looked through in
/// some hundredths of a second (4 MiB of text). Who made that namespace may have made any number.
#[must_use]
pub fn first_mounts_of(pid: u32) -> Vec<Mount> {
    const MOST: u64 = 4 << 20;
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(format!("/proc/{pid}/mountinfo")) {
        let _ = file.take(MOST).read_to_end(&mut text);
    }
    // The last line may have been cut.
    let whole = text
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    parse_mountinfo(&text[..whole])
}

/// Whether an entry means the file system that is mounted there. What is no path is the source of
/// many.
#[must_use]
pub fn is_of(fs: &LedgerFs, m: &Mount) -> bool {
    m.fstype == fs.fstype
        && m.source == fs.source
        && (m.source.starts_with('/') || m.path() == Path::new(&fs.mount))
}

/// The number of the mount of `fd`, also of a file system that was shut down: it answers nothing
/// itself.
#[must_use]
pub fn mount_of_fd(fd: BorrowedFd<'_>) -> Option<u64> {
    let info = process::text(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|l| l.strip_prefix("mnt_id:"))?;
    id.trim().parse().ok()
}

/// Where the file system of `fd` is mounted in our sight, or may be: its own mount need not be.
#[must_use]
pub fn mounts_beside(fd: BorrowedFd<'_>) -> Vec<Mount> {
    beside(fd, mounts_of("self"))
}

/// The same of a table of mounts that has been read.
pub(super) fn beside(fd: BorrowedFd<'_>, mut table: Vec<Mount>) -> Vec<Mount> {
    let id = mount_of_fd(fd);
    if let Some(dev) = table.iter().find(|m| Some(m.id) == id).map(|m| m.dev) {
        table.retain(|m| m.dev == dev);
        return table;
    }
    let kind = mount::what_holds(fd);
    // The number of a file of btrfs is its subvolume's.
    let dev = match kind {
        Some(Holds::Xfs(dev)) => Some(dev),
        _ => mount::what_is(fd).ok().map(|(dev, _)| dev),
    };
    let is_btrfs = matches!(kind, Some(Holds::Btrfs(_)));
    table.retain(|m| dev == Some(dev_of(m)) || is_btrfs && is_btrfs_of(m, kind));
    table
}

/// Whether a mount is one of the btrfs that is held by this.
fn is_btrfs_of(m: &Mount, kind: Option<Holds>) -> bool {
    let there = known_at(m.path(), OFlags::empty());
    let there = there.filter(|fd| mount_of_fd(fd.as_fd()) == Some(m.id));
    m.fstype == "btrfs" && there.is_some_and(|fd| mount::what_holds(fd) == kind)
}

/// Tells whether an entry means the file system of `fd`: what is no path is the source of many, and
/// a mount may have been moved since, which keeps its number.
pub(super) fn names_file_system_of(fd: BorrowedFd<'_>) -> impl Fn(&LedgerFs) -> bool {
    let (mounts, id) = (mounts_beside(fd), mount::unique_id_of_fd(fd));
    move |fs| id.is_some() && fs.mount_id == id || mounts.iter().any(|m| is_of(fs, m))
}
