//! Whether a file system still takes what is written to it, asked behind a settle.
//!
//! A commit that fails is told to whoever waits in it alone: somebody else's fsync, an umount, the
//! kernel's own timer. Behind that, `syncfs` of another one finds nothing to commit and says 0
//! (ext4_sync_fs, btrfs_sync_fs, Linux 6.18; btrfs has become read-only by then, where
//! sync_filesystem asks it nothing). But from then on nobody can begin a transaction. So one is
//! begun that changes nothing: a name that no file has is taken out of the extended attributes.
//!
//! - ext4: begins a handle (ext4_xattr_set). An aborted journal is noticed there, and counted in
//!   `errors_count`, which tells it from a file system that root has made read-only. Where what is
//!   held takes no attribute (an immutable folder, a mount that is read-only by itself), root has
//!   the journal written out instead (EXT4_IOC_CHECKPOINT, Linux 5.14): EIO behind an abort. Where
//!   there is no journal either, the disk is asked what it has lost. Whoever may not have
//!   that (a user without rights, root of a container) asks by a file of his own (find.rs).
//!   Where none can be had that takes the question nothing is put off.
//! - btrfs: BTRFS_IOC_SYNC says EROFS behind an abort, and 0 where root has made it read-only.
//! - overlay: by a file of ours, whose upper file system begins the transaction. As long as that
//!   file is there nobody can make either read-only, so EROFS is an abort.
//! - XFS: its log's errors shut it down, which both syncfs and fsync tell.
//!
//! Not told: where we may not write there.

use super::ext4::lost_without_journal;
use super::losses::KILLED;
use super::opening;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use synclater_sys::job::{self, Job};
use synclater_sys::mount::{btrfs_sync, ext4_checkpoint};
use synclater_sys::wait;

const BTRFS: i64 = 0x9123_683e;
const EXT4: i64 = 0xef53;
const OVERLAY: i64 = 0x794c_7630;

/// No file has it.
const ATTRIBUTE: &str = "user.synclater.nothing";

/// How long it may take to begin one: on a frozen file system it waits for the thaw, and a freeze
/// has written everything.
const PATIENCE: Duration = Duration::from_secs(2);

/// 0, or why a file system takes nothing any more: EROFS of ext4 also where it was made read-only.
#[must_use]
pub fn ails(fd: BorrowedFd<'_>, file: Option<BorrowedFd<'_>>) -> i32 {
    match rustix::fs::fstatfs(fd).map_or(0, |s| s.f_type) {
        BTRFS => btrfs_sync(fd),
        OVERLAY => file.map_or(0, |file| in_time(file, begin)),
        EXT4 => in_time(file.unwrap_or(fd), |fd| match begin(fd) {
            // A folder that takes no attribute, or a mount that is read-only by itself: root has
            // another question.
            told if told == CANNOT_TELL || told == READ_ONLY => {
                let others = [ext4_checkpoint(fd), lost_without_journal(fd)];
                others.into_iter().find(|errno| *errno != 0).unwrap_or(told)
            }
            told => told,
        }),
        _ => 0,
    }
}

/// Asks in a process of its own; 0 where that takes too long. Where no process can be had it takes
/// as long as it does.
fn in_time(fd: BorrowedFd<'_>, ask: impl Fn(BorrowedFd<'_>) -> i32) -> i32 {
    let job = Job::start(|| {
        let kept = job::keep_only(&[fd]);
        let told = if_known(ask(kept[0].as_fd()));
        std::mem::forget(kept);
        told
    });
    let Ok(job) = job else {
        return if_known(ask(fd));
    };
    let _ = wait::any(&[(job.as_fd(), wait::For::Input)], PATIENCE);
    // What one that somebody else kills was told is gone with it.
    job.finished_or(KILLED).unwrap_or_else(|| {
        job.kill();
        0
    })
}

/// What was told; 0 where nothing could be.
fn if_known(told: i32) -> i32 {
    match told {
        CANNOT_TELL => 0,
        told => told,
    }
}

/// Whether a file takes the question, by asking: a mode, an ACL or an option of the mount may
/// refuse it. What has not answered within 0.4 s does not.
#[must_use]
pub fn takes_question(file: &OwnedFd) -> bool {
    let answered = opening::in_time(file.as_fd(), |file| match begin(file.as_fd()) {
        CANNOT_TELL => Err(std::io::ErrorKind::PermissionDenied.into()),
        _ => file.try_clone(),
    });
    answered.is_some()
}

const READ_ONLY: i32 = Errno::ROFS.raw_os_error();

/// No errno.
const CANNOT_TELL: i32 = -1;

/// Begins a transaction that changes nothing; 0, or an errno that tells of an abort.
fn begin(fd: BorrowedFd<'_>) -> i32 {
    match rustix::fs::fremovexattr(fd, ATTRIBUTE) {
        Err(e @ (Errno::ROFS | Errno::IO | Errno::UCLEAN)) => e.raw_os_error(),
        Err(Errno::NODATA) | Ok(()) => 0,
        Err(_) => CANNOT_TELL,
    }
}
