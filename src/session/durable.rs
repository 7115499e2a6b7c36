//! What makes everything so far durable on each tested type of file system, and why.
//!
//! - ext4: `syncfs`. ext4_sync_fs (fs/ext4/super.c) waits for the journal's commit, and flushes the
//!   disk itself where no commit will have done so; without a journal it always does.
//! - ext4 with its journal elsewhere: `syncfs`, then `fsync` of a file of ours. The commit flushes
//!   the journal's disk, and that of the data only where the transaction has ordered data;
//!   ext4_fsync flushes the data's.
//! - XFS: `syncfs`, then `fsync` of a file of ours. xfs_fs_sync_fs (fs/xfs/xfs_super.c) forces the
//!   log, and a log that is clean is not written: no flush. xfs_file_fsync flushes the data's disk
//!   where the log's write has not.
//! - btrfs: `syncfs`. btrfs_sync_fs waits for the data and commits the transaction that this has
//!   begun: the superblocks are written behind a flush of all devices.
//! - overlay: `syncfs`, then `fsync` of a file of ours. ovl_sync_fs passes it to the upper file
//!   system, which may be any of these; ovl_fsync goes to the file there.
//!
//! The sources are those of Linux 6.18. A mount with `nobarrier` promises no more than it does to
//! `fsync`: there no flush is ever sent. XFS with a real-time device stays real: its flush would
//! have to go to that, too.

use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use synclater_model::policy::filesystem::{kind, FsKind, Mount};
use synclater_sys::job::{self, Job};
use synclater_sys::{mount, socket, wait};

/// How long a file of ours may take to be made: the heartbeat waits.
const PATIENCE: Duration = Duration::from_millis(400);

/// Whether `syncfs` alone cannot be shown to flush the disk of this file system.
#[must_use]
pub fn needs_file(mount: &Mount) -> bool {
    match mount.fstype.as_str() {
        "btrfs" => false,
        "ext4" => has_journal_elsewhere(mount.dev),
        _ => true,
    }
}

/// Whether an ext4 has a journal, and not in inode 8 of its own, by what the kernel shows.
fn has_journal_elsewhere(dev: (u32, u32)) -> bool {
    let (major, minor) = dev;
    let Ok(device) = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        return true;
    };
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let task = std::fs::read_to_string(format!("/sys/fs/ext4/{name}/journal_task"));
    let has_none = task.is_ok_and(|t| t.trim() == "<none>");
    !has_none && !Path::new(&format!("/proc/fs/jbd2/{name}-8")).exists()
}

/// Why a file system of a tested type must stay real all the same; `None` where it need not.
#[must_use]
pub fn distrust(mount: &Mount) -> Option<&'static str> {
    let real_time = mount
        .super_options
        .split(',')
        .any(|o| o.starts_with("rtdev="));
    if mount.fstype == "xfs" && real_time {
        return Some("it has a real-time device");
    }
    let is_broken = mount.has("emergency_ro") || mount.has("shutdown");
    is_broken.then_some("it has met an error before")
}

/// Makes everything so far durable on the file system of `fd`, with a `file` of ours there where
/// one is needed; 0 or an errno. It may take as long as the disk does. Where the disk counts its
/// flushes and has counted none meanwhile, it is flushed once more, as root.
#[must_use]
pub fn settle(fd: BorrowedFd<'_>, file: Option<BorrowedFd<'_>>) -> i32 {
    let disk = Disk::below(fd);
    let before = disk.as_ref().and_then(Disk::flushes);
    let done = match (job::syncfs(fd), file) {
        (0, Some(file)) => flush(file),
        (errno, _) => errno,
    };
    // Each flush that is counted began behind what syncfs had written, or it is none of ours.
    let is_seen = || disk.as_ref().and_then(Disk::flushes) > before;
    match (done, before) {
        (0, Some(n)) if n > 0 && !is_seen() => disk.map_or(0, |d| d.flush()),
        _ => done,
    }
}

fn flush(file: impl AsFd) -> i32 {
    rustix::fs::fsync(file).map_or_else(rustix::io::Errno::raw_os_error, |()| 0)
}

/// The disk below a file system that has one alone.
struct Disk {
    dev: (u32, u32),
    /// Its folder in /sys; a partition counts no flushes, so it is that of the whole.
    folder: PathBuf,
}

impl Disk {
    /// The disk of ext4 and XFS; `None` where the number is none of a disk, or its cache needs no
    /// flush.
    fn below(fd: BorrowedFd<'_>) -> Option<Disk> {
        let (dev, _) = mount::what_is(fd).ok()?;
        let dev = ((dev >> 32) as u32, dev as u32);
        let at = std::fs::canonicalize(format!("/sys/dev/block/{}:{}", dev.0, dev.1)).ok()?;
        let folder = match at.join("partition").exists() {
            true => at.parent()?.to_path_buf(),
            false => at,
        };
        let cache = std::fs::read_to_string(folder.join("queue/write_cache")).ok()?;
        (cache.trim() == "write back").then_some(Disk { dev, folder })
    }

    /// Flushes that it has made: the 16th number of its `stat` (Linux 5.5).
    fn flushes(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join("stat")).ok()?;
        text.split_whitespace().nth(15)?.parse().ok()
    }

    /// Flushes it; 0 where it may not be opened, as by a user without rights.
    fn flush(&self) -> i32 {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let name = self.folder.file_name().unwrap_or_default();
        let by_number = PathBuf::from(format!("/dev/block/{}:{}", self.dev.0, self.dev.1));
        let whole = Path::new("/dev").join(name);
        let is_it = |file: &std::fs::File| {
            let Ok(meta) = file.metadata() else {
                return false;
            };
            let number = rustix::fs::makedev(self.dev.0, self.dev.1);
            meta.file_type().is_block_device()
                && (meta.rdev() == number || name_is(&self.folder, meta.rdev()))
        };
        let open = |path: PathBuf| std::fs::File::open(path).ok().filter(is_it);
        open(by_number).or_else(|| open(whole)).map_or(0, flush)
    }
}

/// Whether the disk with this folder has this number.
fn name_is(folder: &Path, number: u64) -> bool {
    let text = std::fs::read_to_string(folder.join("dev")).unwrap_or_default();
    let own = (rustix::fs::major(number), rustix::fs::minor(number));
    text.trim() == format!("{}:{}", own.0, own.1)
}

/// A new file without a name below `dir`, made by a process of its own, since the disk may be slow.
/// `None` where it cannot be had, or not in 0.4 s.
#[must_use]
pub fn file_below(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()?;
    let job = Job::start(|| {
        let kept = job::keep_only(&[dir, theirs.as_fd()]);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&kept[0], ".", flags, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .and_then(|file| socket::send(&kept[1], b"f", &[file.as_fd()]));
        // The child's, whose owners are its parent's.
        std::mem::forget(kept);
        i32::from(made.is_err())
    });
    drop(theirs);
    let job = job.ok()?;
    if !wait::any(&[(ours.as_fd(), wait::For::Input)], PATIENCE)[0] {
        job.kill();
        return None;
    }
    let (_, fds) = socket::receive(&ours, &mut [0u8; 1]).ok()?;
    fds.into_iter().next()
}

/// The file behind `theirs` once more, for reading, as an open file of its own: what somebody
/// else's open file carries (locks, that it is written to) must not live as long as ours.
///
/// # Errors
/// `EACCES` where it may not be read, and the like.
pub fn opened_again(theirs: impl AsFd) -> io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", theirs.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(link, flags, Mode::empty())?)
}

/// Settles the file system that a descriptor lies on, whatever its type. Whether its disk is known
/// to have been flushed.
///
/// # Errors
/// Those of syncfs(2) and fsync(2).
pub fn settle_at(fd: &OwnedFd) -> io::Result<bool> {
    let result = |errno| match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    };
    let id = mount::id_of_fd(fd, 0x1000)?;
    let table = super::filesystems::mounts_of("self");
    let Some(at) = table.iter().find(|m| m.id == id) else {
        return result(settle(fd.as_fd(), None)).map(|()| false);
    };
    if kind(&at.fstype) != FsKind::Tested || !needs_file(at) {
        return result(settle(fd.as_fd(), None)).map(|()| true);
    }
    let (_, what) = mount::what_is(fd)?;
    let point = || mount::open_point(at.path()).ok();
    let made = file_below(fd.as_fd()).or_else(|| file_below(point()?.as_fd()));
    let own = || {
        (what == FileType::RegularFile)
            .then(|| fd.try_clone().ok())
            .flatten()
    };
    let file = made.or_else(own);
    result(settle(fd.as_fd(), file.as_ref().map(AsFd::as_fd))).map(|()| file.is_some())
}
