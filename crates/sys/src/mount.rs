//! What a path or descriptor lies on: mount ids, namespaces, UUIDs.
//!
//! Relies on statx(2): `STATX_MNT_ID` (Linux 5.8), `STATX_MNT_ID_UNIQUE` (Linux 6.8).

use rustix::fs::{statx, AtFlags, FileType, Mode, OFlags, StatxFlags, CWD};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The mask of statx(2) for the number of a mount that mountinfo shows (Linux 5.8).
pub const MNT_ID: u32 = 0x1000;

/// The id of the mount that `path` lies on.
///
/// # Errors
/// Those of statx(2); `ENOSYS` where the kernel does not fill the field in.
pub fn id_of_path(path: &Path, mask: u32) -> io::Result<u64> {
    id(CWD, path, AtFlags::NO_AUTOMOUNT, mask)
}

/// The id of the mount that a descriptor lies on.
///
/// # Errors
/// As [`id_of_path`].
pub fn id_of_fd(fd: impl AsFd, mask: u32) -> io::Result<u64> {
    id(fd, Path::new(""), AtFlags::EMPTY_PATH, mask)
}

fn id(at: impl AsFd, path: &Path, flags: AtFlags, mask: u32) -> io::Result<u64> {
    let want = StatxFlags::from_bits_retain(mask);
    let x = statx(at, path, flags | AtFlags::STATX_DONT_SYNC, want)?;
    if x.stx_mask & mask == 0 {
        return Err(io::Error::from_raw_os_error(
            rustix::io::Errno::NOSYS.raw_os_error(),
        ));
    }
    Ok(x.stx_mnt_id)
}

/// The number of what a descriptor lies on where statx shows it, as `major << 32 | minor`. On btrfs
/// each subvolume has another one than mountinfo shows, and so have some files of an overlay.
///
/// # Errors
/// Those of statx(2).
pub fn dev_of_fd(fd: impl AsFd) -> io::Result<u64> {
    what_is(fd).map(|(dev, _)| dev)
}

/// The same of a path, without asking its file system.
///
/// # Errors
/// Those of statx(2).
pub fn dev_of_path(path: &Path) -> io::Result<u64> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let x = statx(CWD, path, flags, StatxFlags::TYPE)?;
    Ok(u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor))
}

/// As [`dev_of_fd`], and what kind of file it is.
///
/// # Errors
/// Those of statx(2).
pub fn what_is(fd: impl AsFd) -> io::Result<(u64, FileType)> {
    place_of_fd(fd).map(|place| (place.dev, place.kind))
}

/// Whether a file lies on a file system that maps its files to disks. An overlay passes the
/// question on to where the file is (ovl_fiemap, Linux 4.19); FUSE, 9p, NFS and tmpfs answer
/// EOPNOTSUPP.
#[must_use]
pub fn file_has_map(file: impl AsFd) -> bool {
    crate::fsioctl::has_extent_map(file.as_fd())
}

/// The type and permissions of a file, as far as they are known without asking its file system.
///
/// # Errors
/// Those of statx(2).
pub fn mode_of_fd(fd: impl AsFd) -> io::Result<u32> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let x = statx(fd, "", flags, StatxFlags::TYPE | StatxFlags::MODE)?;
    Ok(x.stx_mode.into())
}

/// What a file system tells of itself that answers nothing else any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// XFS, and the number of its device: it says that also when it was shut down.
    Xfs(u64),
    /// btrfs, and a part of its UUID: its subvolumes have that in common.
    Btrfs(u64),
}

/// What holds the file of `fd`: one of those, or `None`.
#[must_use]
pub fn what_holds(fd: impl AsFd) -> Option<Holds> {
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    let kind = rustix::fs::fstatfs(&fd).ok()?.f_type;
    match kind {
        // huge_encode_dev, as those of stat(2) (xfs_fs_statfs, Linux 6.18).
        XFS => {
            let dev = number_of_file_system(&fd)?;
            let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
            Some(Holds::Xfs(u64::from(major) << 32 | u64::from(minor)))
        }
        BTRFS => Some(Holds::Btrfs(number_of_file_system(&fd)?)),
        _ => None,
    }
}

/// The number of the file system of `fd`: the first of two words of 32 bits.
fn number_of_file_system(fd: impl AsFd) -> Option<u64> {
    Some(rustix::fs::fstatvfs(fd).ok()?.f_fsid & u64::from(u32::MAX))
}

/// Where a descriptor lies.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorPlace {
    /// As [`dev_of_fd`]; 0 in a subvolume that was deleted.
    pub dev: u64,
    /// What kind of file it is.
    pub kind: FileType,
    /// The mount, by a number that no other mount has had since the machine started, or has as long
    /// as this one is held; 0 where the kernel does not tell it.
    pub mount: u64,
    /// Whether that number is never given again (Linux 6.8).
    pub is_unique: bool,
}

/// Where a descriptor lies.
///
/// # Errors
/// Those of statx(2).
pub fn place_of_fd(fd: impl AsFd) -> io::Result<DescriptorPlace> {
    const MNT_ID: u32 = 0x1000;
    const UNIQUE: u32 = 0x4000;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let want = StatxFlags::TYPE | StatxFlags::from_bits_retain(MNT_ID | UNIQUE);
    let x = statx(fd, "", flags, want)?;
    let is_told = x.stx_mask & (MNT_ID | UNIQUE) != 0;
    Ok(DescriptorPlace {
        dev: u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor),
        kind: FileType::from_raw_mode(x.stx_mode.into()),
        mount: if is_told { x.stx_mnt_id } else { 0 },
        is_unique: x.stx_mask & UNIQUE != 0,
    })
}

/// The mount that a descriptor lies on, by a number that no other mount has before the next reboot;
/// `None` where the kernel does not tell one (before Linux 6.8).
#[must_use]
pub fn unique_id_of_fd(fd: impl AsFd) -> Option<u64> {
    let place = place_of_fd(fd).ok()?;
    place.is_unique.then_some(place.mount)
}

/// Opens a mount point for `syncfs`, without following a link at its end.
///
/// # Errors
/// Those of open(2).
pub fn open_point(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Whether a descriptor is a block device.
#[must_use]
pub fn is_block_device(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| {
        rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::BlockDevice
    })
}

/// The number in a namespace link such as `/proc/self/ns/mnt`, 0 where it cannot be read.
#[must_use]
pub fn namespace_number(link: &Path) -> u64 {
    let Ok(target) = std::fs::read_link(link) else {
        return 0;
    };
    let text = target.to_string_lossy().into_owned();
    text.split(['[', ']'])
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// The UUID under which udev lists a device, where there is one.
#[must_use]
pub fn uuid_of_device(device: &Path) -> Option<String> {
    let device = std::fs::canonicalize(device).ok()?;
    std::fs::read_dir("/dev/disk/by-uuid")
        .ok()?
        .flatten()
        .find_map(|e| {
            let same = std::fs::canonicalize(e.path()).is_ok_and(|p| p == device);
            same.then(|| e.file_name().to_string_lossy().into_owned())
        })
}

/// The UUID that the mounted file system itself tells (FS_IOC_GETFSUUID, Linux 6.9).
#[must_use]
pub fn uuid_of_fd(fd: impl AsFd) -> Option<String> {
    crate::fsioctl::filesystem_uuid(fd.as_fd())
}

/// The UUID by which /sys/fs/btrfs names the btrfs of `fd`; `None` of another file system.
#[must_use]
pub fn btrfs_uuid_of_fd(fd: impl AsFd) -> Option<String> {
    crate::fsioctl::btrfs_uuid(fd.as_fd())
}

/// Has a btrfs commit what it has (BTRFS_IOC_SYNC): 0 or an errno. EROFS behind a transaction that
/// was aborted, whoever has heard of that, and not for being mounted read-only.
#[must_use]
pub fn btrfs_sync(fd: impl AsFd) -> i32 {
    crate::fsioctl::btrfs_sync(fd.as_fd())
}

/// Has an ext4 write its journal out (EXT4_IOC_CHECKPOINT, Linux 5.14, root): EIO behind an abort;
/// 0 also where it cannot be asked.
#[must_use]
pub fn ext4_checkpoint(fd: impl AsFd) -> i32 {
    match crate::fsioctl::ext4_checkpoint(fd.as_fd(), 0) {
        e if e == rustix::io::Errno::IO.raw_os_error() => e,
        _ => 0,
    }
}

/// Whether [`ext4_checkpoint`] would be answered: root of the machine is, on Linux 5.14 and later,
/// and nobody else hears where there is no journal.
#[must_use]
pub fn may_checkpoint_ext4(fd: impl AsFd) -> bool {
    let told = crate::fsioctl::ext4_checkpoint(fd.as_fd(), crate::fsioctl::DRY_RUN);
    told == 0 || told == rustix::io::Errno::NODEV.raw_os_error()
}

/// What kind of file a path leads to, links followed; as /proc/PID/map_files shows what is mapped.
///
/// # Errors
/// Those of statx(2).
pub fn kind_at(path: &Path) -> io::Result<FileType> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let x = statx(CWD, path, flags, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(x.stx_mode.into()))
}

/// A path as this process reaches it through another process's root.
#[must_use]
pub fn through_root(pid: u32, path: &[u8]) -> PathBuf {
    let mut p = PathBuf::from(format!("/proc/{pid}/root")).into_os_string();
    p.push(OsStr::from_bytes(path));
    PathBuf::from(p)
}

/// Whether the file system at `path` forbids execution; `None` where it cannot be told.
#[must_use]
pub fn forbids_exec(path: &Path) -> Option<bool> {
    let v = rustix::fs::statvfs(path).ok()?;
    Some(v.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// Whether `path` lies in memory (tmpfs).
#[must_use]
pub fn is_tmpfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type as u64 == 0x0102_1994)
}

/// Whether we are in the pid namespace that all others are in (`PROC_PID_INIT_INO`,
/// linux/proc_ns.h).
#[must_use]
pub fn is_in_outermost_pid_namespace() -> bool {
    const OUTERMOST: u64 = 0xefff_fffc;
    namespace_number(Path::new("/proc/self/ns/pid")) == OUTERMOST
}

/// Whether `path` lies on an overlay: what its inode says is that of a file in one of its layers.
#[must_use]
pub fn is_overlay(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type as u64 == 0x794c_7630)
}

/// Opens any path for `syncfs` or `fsync`, following links.
///
/// # Errors
/// Those of open(2).
pub fn open_for_sync(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
