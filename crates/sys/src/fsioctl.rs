//! What a file system is asked by ioctl(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// BTRFS_IOC_SYNC: 0 or an errno.
pub(crate) fn btrfs_sync(fd: BorrowedFd<'_>) -> i32 {
    const BTRFS_IOC_SYNC: libc::c_ulong = 0x9408;
    // SAFETY: the call takes no argument.
    match unsafe { libc::ioctl(fd.as_raw_fd(), BTRFS_IOC_SYNC) } {
        0 => 0,
        _ => io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    }
}

/// BTRFS_IOC_FS_INFO: the UUID by which /sys/fs/btrfs names it; another file system refuses.
pub(crate) fn btrfs_uuid(fd: BorrowedFd<'_>) -> Option<String> {
    const BTRFS_IOC_FS_INFO: libc::c_ulong = 0x8400_941f;
    let mut answer = [0u64; 128];
    // SAFETY: the call writes at most the 1,024 bytes of `answer`, as its number says.
    let r = unsafe { libc::ioctl(fd.as_raw_fd(), BTRFS_IOC_FS_INFO, answer.as_mut_ptr()) };
    // Behind max_id and num_devices.
    let bytes: Vec<u8> = answer[2..4].iter().flat_map(|w| w.to_ne_bytes()).collect();
    (r == 0).then(|| as_text(&bytes))
}

/// A UUID as people write it.
fn as_text(uuid: &[u8]) -> String {
    let hex: Vec<String> = uuid.iter().map(|b| format!("{b:02x}")).collect();
    let parts = [0..4, 4..6, 6..8, 8..10, 10..16];
    parts.map(|part| hex[part].concat()).join("-")
}

/// EXT4_IOC_CHECKPOINT_FLAG_DRY_RUN: nothing but whether it may be asked.
pub(crate) const DRY_RUN: u32 = 4;

/// EXT4_IOC_CHECKPOINT with these flags: 0 or an errno.
pub(crate) fn ext4_checkpoint(fd: BorrowedFd<'_>, flags: u32) -> i32 {
    const EXT4_IOC_CHECKPOINT: libc::c_ulong = 0x4004_662b;
    // SAFETY: the call reads the four bytes of `flags`.
    match unsafe { libc::ioctl(fd.as_raw_fd(), EXT4_IOC_CHECKPOINT, &raw const flags) } {
        0 => 0,
        _ => io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO),
    }
}

/// FS_IOC_GETFSUUID: `{ u8 len; u8 uuid[16]; }`.
pub(crate) fn filesystem_uuid(fd: BorrowedFd<'_>) -> Option<String> {
    const FS_IOC_GETFSUUID: libc::c_ulong = 0x8011_1500;
    let mut answer = [0u8; 17];
    // SAFETY: the call writes at most the 17 bytes of `answer`, as its number says.
    let r = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_GETFSUUID, answer.as_mut_ptr()) };
    if r != 0 || answer[0] != 16 || answer[1..] == [0; 16] {
        return None;
    }
    Some(as_text(&answer[1..]))
}

/// FS_IOC_FIEMAP of no extents: `struct fiemap`, without any `struct fiemap_extent` behind it.
pub(crate) fn has_extent_map(fd: BorrowedFd<'_>) -> bool {
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    // fm_start, fm_length, fm_flags and fm_mapped_extents, fm_extent_count and reserved.
    let mut map = [0u64, u64::MAX, 0, 0];
    // SAFETY: the call reads and writes the 32 bytes of `map`, as its number says, and no extents.
    unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, map.as_mut_ptr()) == 0 }
}
