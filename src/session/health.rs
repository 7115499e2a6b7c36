//! Whether a file system still takes what is written to it, asked behind a settle.
//!
//! A commit that fails is told to whoever waits in it alone: somebody else's fsync, an umount, the
//! kernel's own timer. Behind that, `syncfs` of another one finds nothing to commit and says 0
//! (ext4_sync_fs, btrfs_sync_fs, Linux 6.18; btrfs has become read-only by then, where
//! sync_filesystem asks it nothing). But from then on nobody can begin a transaction. So one is
//! begun that changes nothing: a name that no file has is taken out of the extended attributes.
//!
//! - ext4: begins a handle (ext4_xattr_set). An aborted journal is noticed there, and counted in
//!   `errors_count`, which tells it from a file system that root has made read-only.
//! - btrfs: BTRFS_IOC_SYNC says EROFS behind an abort, and 0 where root has made it read-only.
//! - overlay: by a file of ours, whose upper file system begins the transaction. As long as that
//!   file is there nobody can make either read-only, so EROFS is an abort.
//! - XFS: its log's errors shut it down, which both syncfs and fsync tell.
//!
//! Not told: where we may not write there, as a user without rights.

use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use synclater_sys::mount::btrfs_sync;

const BTRFS: i64 = 0x9123_683e;
const EXT4: i64 = 0xef53;
const OVERLAY: i64 = 0x794c_7630;

/// No file has it.
const ATTRIBUTE: &str = "user.synclater.nothing";

/// 0, or why a file system takes nothing any more: of ext4 also where it was made read-only.
#[must_use]
pub fn ails(fd: BorrowedFd<'_>, file: Option<BorrowedFd<'_>>) -> i32 {
    let kind = rustix::fs::fstatfs(fd).map_or(0, |s| s.f_type);
    match kind {
        BTRFS => btrfs_sync(fd),
        OVERLAY => file.map_or(0, begin),
        EXT4 => begin(fd),
        _ => 0,
    }
}

/// Begins a transaction that changes nothing; 0, or an errno that tells of an abort.
fn begin(fd: BorrowedFd<'_>) -> i32 {
    match rustix::fs::fremovexattr(fd, ATTRIBUTE) {
        Err(e @ (Errno::ROFS | Errno::IO | Errno::UCLEAN)) => e.raw_os_error(),
        // There is none of that name; or it takes none, or none from us.
        _ => 0,
    }
}
