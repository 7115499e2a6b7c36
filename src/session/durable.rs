//! What makes everything so far durable on each tested type of file system, and why.
//!
//! - ext4: `syncfs`. ext4_sync_fs (fs/ext4/super.c) waits for the journal's commit, and flushes the
//!   disk itself where no commit will have done so.
//! - ext4 with its journal elsewhere: `syncfs`, then `fsync` of a file of ours. The commit flushes
//!   the journal's disk, and that of the data only where the transaction has ordered data;
//!   ext4_fsync flushes the data's.
//! - ext4 without a journal, or not seen to have one when it was first held: `syncfs`, twice.
//!   ext4_sync_fs flushes, but sync_filesystem (fs/sync.c) writes extents, folders and bitmaps
//!   behind that; the second one flushes those.
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
//!
//! What syncfs answers is not all: of a commit that failed for somebody else it says 0 (health.rs);
//! ext4 tells an error of its own structures to `fsync` alone, and
//! throws the data away (mpage_map_and_submit_extent, fs/ext4/inode.c). It counts them.

use super::ext4::{
    count, counts_errors, disk_of, has_journal_elsewhere, has_no_journal_on, has_own_journal,
    ERR_EIO,
};
use super::health::ails;
use super::losses::{errno_of_fsync, KILLED};
use super::marks::SyncMark;
use super::opening::{self, Opening};
use super::{mounts, underway};
use rustix::fs::{makedev, FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synclater_policy::filesystem::{kind, upper_of, FsKind};
use synclater_proc::mountinfo::Mount;
use synclater_sys::job::{self, Job};
use synclater_sys::{blockdev, mount, process, signal};

/// How much later than its message an error may be counted.
const LATE: Duration = Duration::from_millis(500);

/// Whether `syncfs` alone cannot be shown to flush the disk of this file system.
#[must_use]
pub fn needs_file(mount: &Mount) -> bool {
    match mount.fstype.as_str() {
        "btrfs" => false,
        "ext4" => has_journal_elsewhere(mount.dev),
        _ => true,
    }
}

/// Whether it takes a file of ours to hear of a commit that has failed (health.rs): on an ext4 with
/// a journal whoever may not have that written out is refused it by most folders.
#[must_use]
pub fn asks_by_file(at: &Mount, fd: &OwnedFd) -> bool {
    at.fstype == "ext4" && !has_no_journal_on(at.dev) && !mount::may_checkpoint_ext4(fd)
}

fn is_btrfs(fd: BorrowedFd<'_>) -> bool {
    const BTRFS: rustix::fs::FsWord = 0x9123_683e; // linux/magic.h
    rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type == BTRFS)
}

/// What a file system had met when it was first held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    errors: Option<u64>,
    messages: Option<u64>,
    /// Its journal, or its type, was seen to need one `syncfs` alone. /sys may be gone later.
    needs_one: bool,
}

impl Past {
    /// That of the file system of `fd`.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Past {
        Past {
            errors: count(fd, "errors_count"),
            messages: count(fd, "msg_count"),
            needs_one: is_btrfs(fd) || disk_of(fd).is_some_and(|name| has_own_journal(&name)),
        }
    }

    /// How many bytes it takes, for another process.
    pub const SIZE: usize = 17;

    /// As bytes, for another process.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Past::SIZE] {
        let [errors, messages] = [self.errors, self.messages].map(|n| n.unwrap_or(u64::MAX));
        let mut bytes = [0; Past::SIZE];
        bytes[..8].copy_from_slice(&errors.to_le_bytes());
        bytes[8..16].copy_from_slice(&messages.to_le_bytes());
        bytes[16] = u8::from(self.needs_one);
        bytes
    }

    /// From [`Past::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; Past::SIZE]) -> Past {
        Past {
            errors: number_in(&bytes[..8]),
            messages: number_in(&bytes[8..16]),
            needs_one: bytes[16] == 1,
        }
    }

    /// Whether it has met an error since. The kernel counts one a moment after it has told of it.
    fn has_erred(self, fd: BorrowedFd<'_>) -> bool {
        let until = Instant::now() + LATE;
        while counts_more(fd, "msg_count", self.messages)
            && !counts_more(fd, "errors_count", self.errors)
            && Instant::now() < until
        {
            std::thread::sleep(LATE / 20);
        }
        counts_more(fd, "errors_count", self.errors)
    }
}

/// The number in these 8 bytes of [`Past::to_bytes`], if there was one.
fn number_in(bytes: &[u8]) -> Option<u64> {
    let word = bytes.try_into().map(u64::from_le_bytes);
    word.ok().filter(|n| *n != u64::MAX)
}

/// Whether an ext4 counts more than it did `before`; false where it did not count then.
fn counts_more(fd: BorrowedFd<'_>, which: &str, before: Option<u64>) -> bool {
    before.is_some_and(|n| count(fd, which).is_some_and(|now| now > n))
}

/// What settles a superblock: descriptors on it, which keep it.
pub struct Holding {
    fd: OwnedFd,
    file: Option<OwnedFd>,
    past: Past,
    opening: Opening,
}

impl Holding {
    /// A descriptor on it, and where one is needed a file there that flushes its disk.
    #[must_use]
    pub fn new(fd: OwnedFd, file: Option<OwnedFd>, opening: Opening) -> Holding {
        let past = Past::of(fd.as_fd());
        Holding {
            fd,
            file,
            past,
            opening,
        }
    }

    /// The same of another process, with what it knows of the past.
    #[must_use]
    pub fn received(fd: OwnedFd, file: Option<OwnedFd>, past: Past) -> Holding {
        Holding {
            fd,
            file,
            past,
            opening: Opening::Apart,
        }
    }

    /// Descriptors of their own on the same: an open file is told of a lost write once, so two that
    /// share one would not both hear of it.
    ///
    /// # Errors
    /// As [`Opening::again`].
    pub fn again(&self) -> io::Result<Holding> {
        let (file, opening) = (self.file.as_ref(), self.opening);
        Ok(Holding {
            fd: opening.again(&self.fd)?,
            file: file.map(|file| opening.again(file)).transpose()?,
            past: self.past,
            opening: self.opening,
        })
    }

    /// The descriptor on it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptors, and the past.
    #[must_use]
    pub fn parts(&self) -> (Vec<BorrowedFd<'_>>, Past) {
        let fds = std::iter::once(&self.fd).chain(&self.file);
        (fds.map(AsFd::as_fd).collect(), self.past)
    }

    /// Begins to make everything so far durable there, which takes as long as the disk does, by a
    /// process that goes on if we are interrupted or killed. Nobody else is
    /// told what the kernel tells that: it has `locks` as long as it lives, and notes an errno by
    /// itself, also where somebody waits for it: he may stand still, and end.
    ///
    /// # Errors
    /// As [`Job::start`].
    pub fn begin(
        &self,
        locks: &[BorrowedFd<'_>],
        note: impl Fn(i32, BorrowedFd<'_>),
    ) -> io::Result<Job> {
        let (fds, past) = self.parts();
        let all: Vec<BorrowedFd<'_>> = [&fds[..], locks].concat();
        Job::start(|| {
            process::leave_session();
            signal::hold_back_all();
            let kept = job::keep_only(&all);
            let _mark = SyncMark::on(kept[0].as_fd());
            let errno = settle_by(&kept[..fds.len()], past);
            if errno != 0 {
                note(errno, kept[0].as_fd());
            }
            errno
        })
    }

    /// As [`Holding::begin`], and waits for it; settles here where no process can be had. Where
    /// somebody kills that one, what its disk has answered is gone with it, and told to nobody
    /// again (a FLUSH that failed): that is noted as [`KILLED`].
    #[must_use]
    pub fn settle_with(&self, locks: &[BorrowedFd<'_>], note: impl Fn(i32, BorrowedFd<'_>)) -> i32 {
        let Ok(job) = self.begin(locks, &note) else {
            return self.settle_here(note);
        };
        job.ending().unwrap_or_else(|| {
            note(KILLED, self.fd.as_fd());
            let _ = underway::note_killed();
            KILLED
        })
    }

    /// Settles in this process, which is told what there is to be noted.
    #[must_use]
    pub fn settle_here(&self, note: impl Fn(i32, BorrowedFd<'_>)) -> i32 {
        let _until_it_is_noted = (signal::HeldBack::all(), SyncMark::on(self.fd.as_fd()));
        let errno = settle_by(&self.parts().0, self.past);
        if errno != 0 {
            note(errno, self.fd.as_fd());
        }
        errno
    }
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
    if is_broken(mount) {
        return Some("it has met an error before");
    }
    let is_volatile = mount.has("volatile") || mount.has("fsync=volatile");
    if mount.fstype == "overlay" && is_volatile {
        return Some("it is mounted volatile: it syncs nothing");
    }
    let upper = upper_mount(mount)?;
    (!may_lie_below(&upper)).then_some("what it writes to is not on the tested list")
}

/// Whether a file system may be what an overlay writes to.
fn may_lie_below(upper: &Mount) -> bool {
    // None writes to another overlay (ovl_get_upper): a path that leads to one leads astray.
    let is_tested = kind(&upper.fstype) == FsKind::Tested && upper.fstype != "overlay";
    is_tested && distrust(upper).is_none()
}

/// Whether a file system has met an error that it does not come back from.
#[must_use]
pub fn is_broken(mount: &Mount) -> bool {
    mount.has("emergency_ro") || mount.has("shutdown") || counts_errors(mount)
}

/// The same by a look: one that was shut down says EIO to that. What lies over it is not asked.
#[must_use]
pub fn is_found_broken(at: &Mount) -> bool {
    is_broken(at) || answers_eio(at) == Some(true)
}

/// Whether a mount answers a look with EIO; `None` where it answers, or cannot be looked at.
fn answers_eio(at: &Mount) -> Option<bool> {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    let there = opening::known_at(at.path(), OFlags::empty())?;
    let error = mount::what_is(&there).err()?;
    let is_it = mounts::mount_of_fd(there.as_fd()) == Some(at.id);
    Some(is_it && error.raw_os_error() == Some(EIO))
}

/// Whether a part of a file system lies on another disk than it names.
#[must_use]
pub fn has_log_elsewhere(mount: &Mount) -> bool {
    match mount.fstype.as_str() {
        "ext4" => has_journal_elsewhere(mount.dev),
        _ => mount
            .super_options
            .split(',')
            .any(|o| o.starts_with("logdev=")),
    }
}

/// What an overlay writes to, where its path is one of ours.
#[must_use]
pub fn upper_mount(mount: &Mount) -> Option<Mount> {
    use std::os::unix::ffi::OsStrExt;
    let path = upper_of(mount)?;
    let path = Path::new(std::ffi::OsStr::from_bytes(&path));
    let id = mount::id_of_fd(opening::known_at(path, OFlags::empty())?, mount::MNT_ID).ok()?;
    let table = mounts::mounts_of("self");
    table.into_iter().find(|m| m.id == id)
}

/// Whether the files of an overlay lie on a disk, with a `file` of ours there; other file systems
/// do. What it writes to may be out of sight, or another thing than its path leads us to: a FUSE
/// server with a disk of its own.
#[must_use]
pub fn is_below_known(mount: &Mount, file: Option<&OwnedFd>) -> bool {
    mount.fstype != "overlay" || file.is_some_and(mount::file_has_map)
}

/// Settles by the parts of a [`Holding`], in a process that has nothing else: see
/// [`Holding::begin`].
#[must_use]
pub fn settle_by(fds: &[impl AsFd], past: Past) -> i32 {
    let Some(fd) = fds.first().map(AsFd::as_fd) else {
        return rustix::io::Errno::BADF.raw_os_error();
    };
    let file = fds.get(1).map(AsFd::as_fd);
    let done = settle(fd, file.filter(|_| !past.needs_one), past);
    if done != 0 {
        return done;
    }
    let told = ails(fd, file);
    if past.has_erred(fd) {
        return match count(fd, "last_error_errcode") {
            // Its disk took or gave something not: as fsync says it.
            Some(ERR_EIO) => rustix::io::Errno::IO.raw_os_error(),
            // What ext4 says of structures that it cannot make sense of.
            _ => rustix::io::Errno::UCLEAN.raw_os_error(),
        };
    }
    // Where it counts none, root has made it read-only.
    if past.errors.is_some() && told == rustix::io::Errno::ROFS.raw_os_error() {
        return 0;
    }
    told
}

/// Makes everything so far durable on the file system of `fd`, with a `file` of ours there where
/// one is needed; 0 or an errno. Where the disk has counted no flush meanwhile, it is flushed
/// once more, as root.
fn settle(fd: BorrowedFd<'_>, file: Option<BorrowedFd<'_>>, past: Past) -> i32 {
    let disk = Disk::below(fd);
    let before = disk.as_ref().and_then(Disk::flushes);
    let done = match (job::syncfs(fd), file) {
        (0, Some(file)) => errno_of_fsync(file),
        (0, None) if !past.needs_one => job::syncfs(fd),
        (errno, _) => errno,
    };
    match (done, before, disk) {
        // Each flush that is counted began behind what syncfs had written, or it is none of ours.
        (0, Some(_), Some(disk)) if disk.flushes() <= before => disk.flush(),
        _ => done,
    }
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
        let folder = if at.join("partition").exists() {
            at.parent()?.to_path_buf()
        } else {
            at
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
        let name = self.folder.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let opened = blockdev::open(self.dev, &name, |number| self.has_number(number));
        opened.map_or(0, errno_of_fsync)
    }

    /// Whether it has this number, itself or the whole that it is a part of.
    fn has_number(&self, number: u64) -> bool {
        number == makedev(self.dev.0, self.dev.1) || name_is(&self.folder, number)
    }
}

/// Whether the disk with this folder has this number.
fn name_is(folder: &Path, number: u64) -> bool {
    let text = std::fs::read_to_string(folder.join("dev")).unwrap_or_default();
    let own = (rustix::fs::major(number), rustix::fs::minor(number));
    text.trim() == format!("{}:{}", own.0, own.1)
}

/// A new file without a name below `dir`, made by a process of its own, since the disk may be slow,
/// or the folder another program's. `None` where it cannot be had, or not in time.
#[must_use]
pub fn file_below(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    opening::in_time(dir, |dir| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(dir, ".", flags, mode)?)
    })
}

/// How far a file system has been settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// All that it had is durable.
    Durable,
    /// All that it had is written; why more is not known, as part of a sentence.
    Written(&'static str),
    /// Nothing: why nothing there outlives a power cut, as part of a sentence.
    Never(&'static str),
}

/// Settles the file system that a descriptor lies on, whatever its type. As [`Holding::begin`] does
/// it notes an errno, where sessions may owe.
///
/// # Errors
/// Those of syncfs(2) and fsync(2).
pub fn settle_at(fd: &OwnedFd, note: impl Fn(i32, BorrowedFd<'_>)) -> io::Result<Settled> {
    let past = Past::of(fd.as_fd());
    let id = mount_or_note(fd, &note)?;
    let table = mounts::mounts_of("self");
    // Also what is on no list here: it may be mounted in sight elsewhere.
    let Some(at) = table.iter().find(|m| m.id == id) else {
        settle_by_file(fd, None, past, &note)?;
        return Ok(Settled::Written("it is not among the mounts"));
    };
    let doubt = match kind(&at.fstype) {
        FsKind::Untested(why) => Some(why),
        FsKind::Tested => distrust(at),
        FsKind::Memory => {
            settle_by_file(fd, None, past, &note)?;
            return Ok(Settled::Never("its files lie in memory"));
        }
        FsKind::Pseudo => {
            settle_by_file(fd, None, past, &note)?;
            return Ok(Settled::Never("it stores nothing"));
        }
    };
    if !needs_file(at) {
        let file = asks_by_file(at, fd).then(|| file_below(fd.as_fd()));
        settle_by_file(fd, file.flatten().as_ref(), past, &note)?;
        return Ok(doubt.map_or(Settled::Durable, Settled::Written));
    }
    let file = file_that_flushes(fd, at)?;
    settle_by_file(fd, file.as_ref(), past, &note)?;
    let why = doubt.or_else(|| is_not_flushed(at, file.as_ref()));
    Ok(why.map_or(Settled::Durable, Settled::Written))
}

/// The mount of a descriptor. One whose file system was shut down answers that with EIO, which is
/// noted.
fn mount_or_note(fd: &OwnedFd, note: impl Fn(i32, BorrowedFd<'_>)) -> io::Result<u64> {
    const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
    let id = mount::id_of_fd(fd, mount::MNT_ID);
    id.inspect_err(|e| {
        if e.raw_os_error() == Some(EIO) {
            note(EIO, fd.as_fd());
        }
    })
}

/// Settles by a descriptor, and by a file there that flushes its disk, where it takes one.
fn settle_by_file(
    fd: &OwnedFd,
    file: Option<&OwnedFd>,
    past: Past,
    note: impl Fn(i32, BorrowedFd<'_>),
) -> io::Result<()> {
    let file = file.map(OwnedFd::try_clone).transpose()?;
    let held = Holding::received(fd.try_clone()?, file, past);
    match held.settle_with(&[], note) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A file whose fsync flushes the disk of the file system of `fd`, which is mounted `at`: one of
/// ours, or that of `fd` itself.
fn file_that_flushes(fd: &OwnedFd, at: &Mount) -> io::Result<Option<OwnedFd>> {
    let (_, what) = mount::what_is(fd)?;
    let made = file_below(fd.as_fd()).or_else(|| file_below(point_of(at)?.as_fd()));
    // A file of an overlay may not lie where others are written to.
    let is_one = what == FileType::RegularFile && at.fstype != "overlay";
    Ok(match made {
        None if is_one => fd.try_clone().ok(),
        made => made,
    })
}

/// The point of a mount. `None` where others have mounted something over it: another one's disk
/// would be flushed.
fn point_of(at: &Mount) -> Option<OwnedFd> {
    let point = mount::open_point(at.path()).ok()?;
    (mount::id_of_fd(&point, mount::MNT_ID).ok()? == at.id).then_some(point)
}

/// Why it is not known that the disk of a file system was flushed by this file.
fn is_not_flushed(at: &Mount, file: Option<&OwnedFd>) -> Option<&'static str> {
    match file {
        None => Some("nothing was found that flushes its disk's cache"),
        Some(_) if !is_below_known(at, file) => Some("no disk is known below this overlay"),
        Some(_) => None,
    }
}
