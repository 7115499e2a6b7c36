//! Makes everything durable: what sync(2) does, and what it leaves out.

use crate::job::{self, Job};
use crate::wait::{self, For};
use crate::{blockdev, process};
use rustix::fs::FileType;
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long disks have to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The name of a process that flushes a disk.
const NAME: &CStr = c"synclater-flush";

/// As sync(2), which reports no error. For a child of [`Job::start`], which has `locks` meanwhile,
/// and is ended by SIGKILL alone.
#[must_use]
pub fn sync_in_job(locks: &[BorrowedFd<'_>]) -> i32 {
    process::leave_session();
    crate::signal::hold_back_all();
    let _locks = job::keep_only(locks);
    sync();
    0
}

/// As sync(2), and flushes the disk of each XFS, as far as it may be opened, and answers within two
/// seconds: where its log is clean sync(2) does not (xfs_fs_sync_fs, Linux 6.18), and it may be in
/// nobody's sight here.
pub fn sync() {
    rustix::fs::sync();
    let until = Instant::now() + PATIENCE;
    let wait_for = |fd: BorrowedFd<'_>| {
        let left = until.saturating_duration_since(Instant::now());
        wait::any(&[(fd, For::Input)], left) == [true]
    };
    let (held_up, free): (Vec<_>, Vec<_>) = { disks_of_xfs().into_iter() }
        .map(|disk| (flushed_by(&disk), disk))
        .partition(|(other, _)| other.is_some());
    let mut all_jobs: Vec<Job> = free.iter().filter_map(|(_, disk)| flush(disk)).collect();
    for (other, disk) in held_up {
        // As long as one waits for its disk, so would the next.
        if other.is_none_or(|other| wait_for(other.as_fd())) {
            all_jobs.extend(flush(&disk));
        }
    }
    for job in all_jobs {
        // One that still waits ends when its disk answers.
        let _ = wait_for(job.as_fd());
        let _ = job.finished();
    }
}

struct Disk {
    file: File,
    /// Its number, as `st_rdev` of stat(2).
    number: u64,
}

fn disks_of_xfs() -> Vec<Disk> {
    let all = std::fs::read_dir("/sys/fs/xfs").into_iter().flatten();
    let disk = |name: &str| {
        let dev = blockdev::number_in(&Path::new("/sys/class/block").join(name).join("dev"))?;
        let number = rustix::fs::makedev(dev.0, dev.1);
        let file = blockdev::open(dev, name, |it| it == number)?;
        Some(Disk { file, number })
    };
    all.flatten()
        .filter_map(|e| disk(&e.file_name().to_string_lossy()))
        .collect()
}

/// Begins to flush a disk: in a child, which alone waits where it does not answer.
fn flush(disk: &Disk) -> Option<Job> {
    let flush =
        |fd: BorrowedFd<'_>| rustix::fs::fsync(fd).map_or_else(|e| e.raw_os_error(), |()| 0);
    let job = Job::start(|| {
        process::set_name(NAME);
        // It may outlive all else, and holds nothing up by that.
        let kept = job::keep_only(&[disk.file.as_fd()]);
        let status = flush(kept[0].as_fd());
        std::mem::forget(kept);
        status
    });
    if job.is_err() {
        let _ = flush(disk.file.as_fd());
    }
    job.ok()
}

/// What flushes a disk since an earlier time, and was left to us or to who started us.
fn flushed_by(disk: &Disk) -> Option<OwnedFd> {
    let children = [std::process::id(), process::parent()].map(|pid| {
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        list.unwrap_or_default()
    });
    let mut all = { children.iter() }
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse::<u32>().ok());
    all.find_map(|pid| {
        let other = process::watch(pid)?;
        flushes(pid, disk.number).then_some(other)
    })
}

fn flushes(pid: u32, number: u64) -> bool {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|m| m.st_uid());
    let is_ours = owner.is_ok_and(|uid| uid == process::effective_user());
    if !is_ours || name.trim_ascii_end() != NAME.to_bytes() {
        return false;
    }
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
    { files.flatten().flatten() }
        .filter_map(|file| rustix::fs::stat(file.path()).ok())
        .any(|s| s.st_rdev == number && FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice)
}
