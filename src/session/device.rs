//! Which file system lies on which block device.

use super::durable::has_log_elsewhere;
use super::mounts::{dev_of, mounts_of};
use rustix::fs::{fstat, major, makedev, minor, stat, Dev, FileType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use synclater_proc::mountinfo::Mount;
use synclater_sys::blockdev::number_in;
pub use synclater_sys::blockdev::Number;
use synclater_sys::mount::{self, Holds};
use synclater_sys::patient::Patient;

/// A descriptor on a file system that is mounted in our sight and lies on a block device: its
/// number is the device's. That of btrfs is not; of its devices it names the one that was mounted.
#[must_use]
pub fn mounted_of(device: impl AsFd) -> Option<OwnedFd> {
    let device = fstat(device).ok()?.st_rdev;
    let number = u64::from(major(device)) << 32 | u64::from(minor(device));
    let table = mounts_of("self");
    let all = table.iter();
    let mut its = all.filter(|m| dev_of(m) == number || is_btrfs_of(m, device));
    its.find_map(|m| {
        let point = mount::open_for_sync(m.path()).ok()?;
        // Not what has been mounted over it.
        let id = mount::id_of_fd(&point, mount::MNT_ID).ok()?;
        (id == m.id).then_some(point)
    })
}

/// Whether a mount is that of a btrfs, with this device as its source.
fn is_btrfs_of(m: &Mount, device: Dev) -> bool {
    // Anybody's FUSE may say that it is a device.
    m.fstype == "btrfs"
        && stat(&m.source).is_ok_and(|s| {
            s.st_rdev == device && FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice
        })
}

/// Whether the btrfs of `fd` lies on this disk, or may, in whichever namespace it is mounted: its
/// own number is no disk's. `None` where it is another file system, or /sys does not name it.
fn btrfs_lies_on(fd: impl AsFd, disk: Number) -> Option<bool> {
    matches!(mount::what_holds(&fd), Some(Holds::Btrfs(_))).then_some(())?;
    let uuid = mount::btrfs_uuid_of_fd(fd)?;
    let all = disks_in(&Path::new("/sys/fs/btrfs").join(uuid))?;
    (!all.is_empty()).then(|| all.iter().any(|dev| lies_on(*dev, disk)))
}

/// Whether a file system lies on this disk, or may, by a descriptor on it that is held, or else by
/// its number.
#[must_use]
pub fn may_lie(held: Option<BorrowedFd<'_>>, dev: u64, disk: Number) -> bool {
    let known = held.and_then(|fd| btrfs_lies_on(fd, disk));
    known.unwrap_or_else(|| may_lie_on(dev, disk))
}

/// Whether a file system with this device number lies on this disk, or may: what is not known does.
/// A file system of several disks may lie on any.
fn may_lie_on(dev: u64, disk: Number) -> bool {
    let table = mounts_of("self");
    let at = table.iter().find(|m| dev_of(m) == dev);
    at.map_or_else(|| lies_on(parts(dev), disk), |m| may_mount_lie_on(m, disk))
}

/// The same of the file system of a mount.
fn may_mount_lie_on(m: &Mount, disk: Number) -> bool {
    match m.fstype.as_str() {
        "btrfs" => disks_of_btrfs(m).is_none_or(|all| all.iter().any(|dev| lies_on(*dev, disk))),
        // Its folders are known by their paths alone, which may lead elsewhere by now.
        "overlay" => true,
        _ => has_log_elsewhere(m) || lies_on(m.dev, disk),
    }
}

fn parts(dev: u64) -> Number {
    ((dev >> 32) as u32, dev as u32)
}

/// The disks of the btrfs whose first one is mounted: the kernel lists them by its UUID alone.
fn disks_of_btrfs(m: &Mount) -> Option<Vec<Number>> {
    let first = stat(&m.source).ok()?.st_rdev;
    let first = (major(first), minor(first));
    let all = std::fs::read_dir("/sys/fs/btrfs").ok()?.flatten();
    all.filter_map(|one| disks_in(&one.path()))
        .find(|disks| disks.contains(&first))
}

/// The disks of the btrfs with this folder in /sys.
fn disks_in(folder: &Path) -> Option<Vec<Number>> {
    let devices = std::fs::read_dir(folder.join("devices"));
    let devices = devices.into_iter().flatten().flatten();
    devices.map(|e| number_in(&e.path().join("dev"))).collect()
}

/// Down through partitions, what RAID and LVM put together, and the files of loop devices.
fn lies_on(dev: Number, disk: Number) -> bool {
    let (mut left, mut seen) = (vec![dev], Vec::new());
    let mut patient = Patient::default();
    while let Some(dev) = left.pop() {
        if dev == disk {
            return true;
        }
        if seen.contains(&dev) {
            continue;
        }
        if has_hidden_paths(dev) && folder_of(disk).is_none() {
            return true;
        }
        seen.push(dev);
        match below(dev, &mut patient) {
            Some(below) => left.extend(below),
            None => return true,
        }
    }
    false
}

/// Whether a disk is reached by others that no number is shown of: those of an NVMe disk with
/// several paths are hidden, and it is they that refuse something (nvme_mpath_alloc_disk, Linux
/// 4.15).
fn has_hidden_paths(dev: Number) -> bool {
    folder_of(dev).is_some_and(|at| at.iter().any(|part| part == "nvme-subsystem"))
}

/// The folder in /sys of a block device.
fn folder_of(dev: Number) -> Option<PathBuf> {
    std::fs::canonicalize(format!("/sys/dev/block/{}:{}", dev.0, dev.1)).ok()
}

/// What a block device lies on, itself or nothing for a disk; `None` where that is not known.
fn below(dev: Number, patient: &mut Patient) -> Option<Vec<Number>> {
    let at = folder_of(dev)?;
    let whole = if at.join("partition").exists() {
        at.parent()?.to_path_buf()
    } else {
        at
    };
    let mut all = vec![number_in(&whole.join("dev"))?];
    for part in std::fs::read_dir(whole.join("slaves"))
        .into_iter()
        .flatten()
    {
        all.push(number_in(&part.ok()?.path().join("dev"))?);
    }
    match whole.join("loop/backing_file").try_exists() {
        Ok(true) => all.extend(below_loop(&whole, all[0], patient)?),
        Ok(false) => {}
        Err(_) => return None,
    }
    Some(all)
}

/// The disk of the file of a loop device, of which the device itself tells: the path that sysfs has
/// may lead to another file by now. None where a program serves it (FUSE), or memory.
fn below_loop(
    whole: &Path,
    (major, minor): Number,
    patient: &mut Patient,
) -> Option<Option<Number>> {
    let node = Path::new("/dev").join(whole.file_name()?);
    let (dev, rdev) = patient.file_of_loop(&node, makedev(major, minor))?;
    let dev = if rdev == 0 { dev } else { rdev };
    let number = (rustix::fs::major(dev), rustix::fs::minor(dev));
    if number.0 != 0 {
        return Some(Some(number));
    }
    let table = mounts_of("self");
    let at = table.iter().find(|m| m.dev == number)?;
    let has_disks =
        matches!(at.fstype.as_str(), "btrfs" | "overlay" | "zfs") || at.source.starts_with("/dev/");
    (!has_disks).then_some(None)
}
