//! The file system that an entry of a ledger names: found again, and settled in its session's
//! place.
//!
//! Promise: what is settled is what the entry named. A mount's unique id says so, whatever its
//! device is called by now; else the UUID of what lies on the device with that name: a copy
//! elsewhere has the UUID, too.

use super::durable::{is_found_broken, Holding};
use super::find::{self, find_mounted, unique_id_at};
use super::opening::Opening;
use super::{filesystems, mounts};
use std::os::fd::BorrowedFd;
use std::path::Path;
use synclater_policy::ledger::LedgerFs;
use synclater_proc::mountinfo::Mount;
use synclater_sys::mount;

/// Settles the file system that an entry names: 0 or an errno. `None` where it is mounted nowhere
/// in our sight: whether its unmount has written everything cannot be told any more.
pub fn settle_again(
    fs: &LedgerFs,
    locks: &[BorrowedFd<'_>],
    note: impl Fn(i32, BorrowedFd<'_>),
) -> Option<i32> {
    let table = mounts::mounts_of("self");
    let there = Path::new(&fs.mount);
    // The device of the very mount may have another name by now.
    let of_type = table.iter().rev().filter(|m| m.fstype == fs.fstype);
    let alike = of_type.filter(|m| m.source == fs.source || is_its_mount(fs, m));
    let mut alike: Vec<&Mount> = alike.collect();
    // First what is at its point, the uppermost before others there.
    alike.sort_by_key(|m| m.path() != there);
    let mut its = alike
        .iter()
        .filter(|m| m.source.starts_with('/') || m.path() == there);
    if its.any(|m| is_found_broken(m)) {
        // It can tell nothing any more, and a repaired one has forgotten.
        return Some(rustix::io::Errno::IO.raw_os_error());
    }
    let found = on_its_mount(fs, &alike).or_else(|| by_its_uuid(fs, &alike))?;
    let held = Holding::new(found.fd, found.file, Opening::of(&found.mount));
    Some(held.settle_with(locks, note))
}

fn is_its_mount(fs: &LedgerFs, m: &Mount) -> bool {
    fs.mount_id.is_some() && unique_id_at(m) == fs.mount_id
}

/// The file system on the very mount that an entry names.
fn on_its_mount(fs: &LedgerFs, alike: &[&Mount]) -> Option<find::Found> {
    let mut there = alike.iter().filter(|m| is_its_mount(fs, m));
    let found = there.find_map(|m| find_mounted(m))?;
    // Another one may have come to its place since.
    (mount::unique_id_of_fd(&found.fd) == fs.mount_id).then_some(found)
}

/// The file system on another mount of it, or where the kernel does not number mounts for ever: one
/// of its device. Type and source are no proof: "overlay" is the source of every container's.
///
/// Nor is an overlay's UUID: a copy of its upper folder has it, too.
fn by_its_uuid(fs: &LedgerFs, alike: &[&Mount]) -> Option<find::Found> {
    fs.uuid.as_ref().filter(|_| fs.fstype != "overlay")?;
    let mut found = alike.iter().filter_map(|m| find_mounted(m));
    found.find(|found| filesystems::uuid_of(found) == fs.uuid)
}
