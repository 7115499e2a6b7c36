//! Which file system lies on a block device.

use super::filesystems::{dev_of, mounts_of};
use rustix::fs::{fstat, major, minor, stat, FileType};
use std::os::fd::{AsFd, OwnedFd};
use synclater_model::policy::filesystem::Mount;
use synclater_sys::mount;

/// A descriptor on a file system that is mounted in our sight and lies on a block device: its
/// number is the device's. That of btrfs is not; of its devices it names the one that was mounted.
#[must_use]
pub fn mounted_of(device: impl AsFd) -> Option<OwnedFd> {
    let device = fstat(device).ok()?.st_rdev;
    let number = u64::from(major(device)) << 32 | u64::from(minor(device));
    // Anybody's FUSE may say that it is a device.
    let is_source = |m: &Mount| {
        let is_it = |s: rustix::fs::Stat| {
            s.st_rdev == device && FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice
        };
        m.fstype == "btrfs" && stat(&m.source).is_ok_and(is_it)
    };
    let table = mounts_of("self");
    let mut its = { table.iter() }.filter(|m| dev_of(m) == number || is_source(m));
    its.find_map(|m| {
        let point = mount::open_for_sync(m.path()).ok()?;
        // Not what has been mounted over it.
        let id = mount::id_of_fd(&point, mount::MNT_ID).ok()?;
        (id == m.id).then_some(point)
    })
}
