//! Which file system lies on which block device.

use super::filesystems::{dev_of, mounts_of};
use super::opening::known_at;
use rustix::fs::{fstat, major, minor, stat, FileType, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
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

/// Whether a file system with this device number lies on a disk with that one, or may: where what
/// it lies on is not known (btrfs, overlays), on any.
#[must_use]
pub fn may_lie_on(dev: (u32, u32), disk: (u32, u32)) -> bool {
    let mut seen = Vec::new();
    match dev.0 {
        0 => true,
        _ => lies_on(dev, disk, &mut seen),
    }
}

/// Down through partitions, what RAID and LVM put together, and the files of loop devices.
fn lies_on(dev: (u32, u32), disk: (u32, u32), seen: &mut Vec<(u32, u32)>) -> bool {
    let at = std::fs::canonicalize(format!("/sys/dev/block/{}:{}", dev.0, dev.1));
    let Ok(at) = at else {
        // A file on what is no disk.
        return false;
    };
    if dev == disk || seen.contains(&dev) {
        return dev == disk;
    }
    seen.push(dev);
    let whole = match at.join("partition").exists() {
        true => at.parent().unwrap_or(&at).to_path_buf(),
        false => at,
    };
    let parts = std::fs::read_dir(whole.join("slaves"))
        .into_iter()
        .flatten();
    let parts = parts
        .flatten()
        .filter_map(|e| number_in(&e.path().join("dev")));
    let file = std::fs::read_to_string(whole.join("loop/backing_file"));
    // Without a question to whoever serves it.
    let known = |path: String| known_at(Path::new(path.trim_end()), OFlags::empty());
    let file = file.ok().and_then(known);
    let file = file.and_then(|file| mount::what_is(file).ok());
    let file = file.map(|(dev, _)| ((dev >> 32) as u32, dev as u32));
    let all = { number_in(&whole.join("dev")).into_iter() }.chain(parts);
    let mut all = all.chain(file).collect::<Vec<_>>().into_iter();
    all.any(|below| lies_on(below, disk, seen))
}

/// A device number as sysfs has it.
fn number_in(file: &Path) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string(file).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
