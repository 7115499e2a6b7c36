//! Makes everything durable: what sync(2) does, and what it leaves out.

use crate::{blockdev, job, process, signal};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// As [`sync`]. For a child of [`job::Job::start`], which has `locks` meanwhile, and is ended by
/// SIGKILL alone.
#[must_use]
pub fn sync_in_job(locks: &[BorrowedFd<'_>]) -> i32 {
    process::leave_session();
    signal::hold_back_all();
    let _locks = job::keep_only(locks);
    sync();
    0
}

/// As two calls of sync(2), which reports no error, and flushes the disk of each XFS, as far as it
/// may be opened: where its log is clean sync(2) does not (xfs_fs_sync_fs, Linux 6.18), and it may
/// be in nobody's sight here. As sync(2) does for an ext4, it waits for each disk. An ext4 without
/// a journal is flushed in front of what it writes last, so by the second call only.
pub fn sync() {
    rustix::fs::sync();
    rustix::fs::sync();
    let all = std::fs::read_dir("/sys/fs/xfs").into_iter().flatten();
    for name in all.flatten().map(|e| e.file_name()) {
        // One after the other: one that is open may be in somebody's way.
        if let Some(disk) = disk(&name.to_string_lossy()) {
            let _ = rustix::fs::fsync(&disk);
        }
    }
}

fn disk(name: &str) -> Option<File> {
    let dev = blockdev::number_in(&Path::new("/sys/class/block").join(name).join("dev"))?;
    let number = rustix::fs::makedev(dev.0, dev.1);
    blockdev::open(dev, name, |it| it == number)
}
