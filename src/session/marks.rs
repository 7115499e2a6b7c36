//! Marks of syncs of ours under way: files in memory, each locked until its process has ended.
//!
//! Promise: a mark has its name only once it is whole and locked, so that nobody takes it for one
//! that a killed process has left. What becomes of those is for `underway`.
//! What it does not do: where none can be made (no room, no folder), it is synced without one.

use super::folder::random_name;
use super::pids::Numbers;
use super::{dirs, mounts};
use rustix::fs::{flock, linkat, AtFlags, FlockOperation, Mode, OFlags, CWD};
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use synclater_policy::ledger::LedgerFs;
use synclater_proc::mountinfo::{parse_mountinfo, Mount};
use synclater_sys::{mount, process, signal};

/// What is synced: a file system as whoever syncs it sees it, who may be in another namespace, or
/// before it is mounted anew.
#[derive(Clone, Debug, Default)]
pub struct SyncedFs {
    /// Where it is mounted, as lines of mountinfo.
    lines: Vec<u8>,
    mounts: Vec<Mount>,
    uuid: Option<String>,
    /// The mount of what is synced, which has its number wherever it is moved to.
    mount_id: Option<u64>,
    /// The disk that is synced, where none is known that is mounted of it.
    disk: Option<u64>,
    /// The boot, by the name that whoever syncs knows: containers may have their own.
    boot: String,
}

impl SyncedFs {
    /// That of a descriptor.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> SyncedFs {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = mounts::beside(fd, parse_mountinfo(&table));
        let lines = table.split_inclusive(|b| *b == b'\n');
        let lines: Vec<&[u8]> = lines.filter(|line| is_line_of(&mounts, line)).collect();
        SyncedFs {
            lines: lines.concat(),
            uuid: mount::uuid_of_fd(fd),
            mount_id: mount::unique_id_of_fd(fd),
            mounts,
            ..SyncedFs::default()
        }
    }

    /// A disk of which nothing is known to be mounted.
    #[must_use]
    pub fn on_disk(disk: BorrowedFd<'_>) -> SyncedFs {
        SyncedFs {
            disk: rustix::fs::fstat(disk).map(|s| s.st_rdev).ok(),
            ..SyncedFs::default()
        }
    }

    /// The boot in which it was synced.
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether an entry means it.
    #[must_use]
    pub fn is(&self, fs: &LedgerFs) -> bool {
        if self.mount_id.is_some() && fs.mount_id == self.mount_id {
            return true;
        }
        match (self.disk, self.mounts.is_empty()) {
            (Some(disk), _) => rustix::fs::stat(&fs.source).is_ok_and(|s| s.st_rdev == disk),
            // It was mounted where nobody sees it. A copy of an overlay has its UUID.
            (None, true) => fs.fstype != "overlay" && self.uuid.is_some() && fs.uuid == self.uuid,
            (None, false) => self.mounts.iter().any(|m| mounts::is_of(fs, m)),
        }
    }

    /// Whether it may be this one.
    #[must_use]
    pub fn may_be(&self, other: &SyncedFs) -> bool {
        let is_its_disk = self.disk.is_some() && self.disk == other.disk;
        let is_its_mount = self.mount_id.is_some() && self.mount_id == other.mount_id;
        is_its_disk || is_its_mount || self.mounts.iter().any(|m| other.has_named(m))
    }

    /// Whether one of its mounts is named as this one is.
    fn has_named(&self, m: &Mount) -> bool {
        self.mounts.iter().any(|own| name_of(own) == name_of(m))
    }
}

/// Whether a line of mountinfo is that of one of these mounts.
fn is_line_of(mounts: &[Mount], line: &[u8]) -> bool {
    let id = parse_mountinfo(line).first().map(|m| m.id);
    mounts.iter().any(|m| Some(m.id) == id)
}

/// The type and the source of a mount; its point, too, where the source is no path.
fn name_of(m: &Mount) -> (&str, &str, Option<&[u8]>) {
    let point = Some(&m.point[..]).filter(|_| !m.source.starts_with('/'));
    (&m.fstype, &m.source, point)
}

/// The mark of a sync under way; it goes with this.
pub struct SyncMark {
    path: PathBuf,
    _lock: File,
}

impl SyncMark {
    /// Marks that this process syncs a file system from now on; `None` where that cannot be.
    #[must_use]
    pub fn of(fs: &SyncedFs) -> Option<SyncMark> {
        const NAMED_IN: &str = "SYNCLATER_RUN_DIR";
        dirs::make(&dirs::run_dir(), "the run folder", NAMED_IN).ok()?;
        let (run, prefix) = marks_of_run()?;
        let born = birth_of(&run).map_or(NONE.into(), |born| born.to_string());
        let dir = dirs::memory_dir(&run);
        dirs::make(&dir, "the folder of memory", NAMED_IN).ok()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&dir, flags, Mode::RUSR | Mode::WUSR).ok()?;
        // Whoever finds it unlocked takes it for one of a process that was killed.
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut lock = File::from(file);
        let uuid = fs.uuid.as_deref().unwrap_or(NONE);
        let [mount, disk] =
            [fs.mount_id, fs.disk].map(|n| n.map_or(NONE.into(), |n| n.to_string()));
        let (pid, ns) = (std::process::id(), own_pid_namespace());
        let head = format!(
            "{} {pid} {ns} {uuid} {mount} {disk} {born}\n",
            dirs::boot_id()
        );
        lock.write_all(&[head.as_bytes(), &fs.lines].concat())
            .ok()?;
        let path = dir.join(format!("{prefix}{}", random_name()));
        let unnamed = format!("/proc/self/fd/{}", lock.as_raw_fd());
        linkat(CWD, unnamed, CWD, &path, AtFlags::SYMLINK_FOLLOW).ok()?;
        Some(SyncMark { path, _lock: lock })
    }

    /// The same of the file system of `fd`.
    #[must_use]
    pub fn on(fd: BorrowedFd<'_>) -> Option<SyncMark> {
        SyncMark::of(&SyncedFs::of(fd))
    }
}

impl Drop for SyncMark {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Syncs something of our own on the file system of `fd`, marked: by `sync`, which notes what it is
/// told.
pub fn marked<T>(fd: BorrowedFd<'_>, sync: impl FnOnce() -> T) -> T {
    let _until_it_is_noted = (signal::HeldBack::all(), SyncMark::on(fd));
    sync()
}

/// Stands for what is not known.
const NONE: &str = "-";

fn own_pid_namespace() -> u64 {
    mount::namespace_number(Path::new("/proc/self/ns/pid"))
}

/// Our run folder, and what the names of its marks begin with: a folder of memory may have those of
/// several.
fn marks_of_run() -> Option<(PathBuf, String)> {
    let run = dirs::run_dir();
    let seen = run.symlink_metadata().ok()?;
    let prefix = format!(".syncing.{}.{}.", seen.dev(), seen.ino());
    Some((run, prefix))
}

/// When a folder was made, in nanoseconds: what tells it from one that had its inode before. None
/// where its file system does not say (statx(2), `STATX_BTIME`), nor on an overlay, whose copy of a
/// lower folder keeps its inode and is younger.
fn birth_of(dir: &Path) -> Option<u128> {
    if mount::is_overlay(dir) {
        return None;
    }
    let made = dir.symlink_metadata().ok()?.created().ok()?;
    let since = made.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_nanos())
}

/// A mark that a killed process has left.
pub(super) struct Left {
    path: PathBuf,
    /// Locked where that process has ended.
    lock: Option<File>,
    /// What it synced.
    pub(super) fs: SyncedFs,
}

impl Left {
    /// Removes it, where what its process has asked for is over.
    pub(super) fn is_noted(&self) {
        if self.lock.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The marks of this run folder that killed processes have left.
pub(super) fn left() -> Vec<Left> {
    let Some((run, prefix)) = marks_of_run() else {
        return Vec::new();
    };
    let dirs = dirs::memory_dirs(&run).into_iter();
    let files = dirs.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    let marks = files.filter(|f| f.file_name().to_string_lossy().starts_with(&prefix));
    let born = birth_of(&run);
    marks
        .map(|f| f.path())
        .filter_map(|path| {
            let (lock, fs) = left_at(&path, born)?;
            Some(Left { path, lock, fs })
        })
        .collect()
}

/// The mark at `path` where its process was killed; locked where that has ended. Until then what it
/// has asked for may still be refused, also what others wrote meanwhile. None of a run folder
/// that was not `born` when ours was: another one had its inode.
fn left_at(path: &Path, born: Option<u128>) -> Option<(Option<File>, SyncedFs)> {
    let seen = path.symlink_metadata().ok()?;
    if dirs::distrust(&seen).is_some() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|b| *b == b'\n')?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let [boot, pid, ns, uuid, mount, disk, its_birth] = head.split(' ').collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
    if is_locked && !is_killed(pid.parse().ok()?, ns.parse().ok()?) {
        return None;
    }
    // One that has ended by itself has removed it before, and so has another one who noted it.
    if file.metadata().ok()?.nlink() == 0 {
        return None;
    }
    let its_birth = its_birth.parse::<u128>().ok();
    if its_birth.zip(born).is_some_and(|(its, born)| its != born) {
        return None;
    }
    // What lies in memory is of this boot, whatever a container calls its own.
    if boot != dirs::boot_id() && !mount::is_tmpfs(path) {
        return None;
    }
    let lines = bytes[end + 1..].to_vec();
    let fs = SyncedFs {
        mounts: parse_mountinfo(&lines),
        lines,
        uuid: Some(uuid.to_owned()).filter(|uuid| uuid != NONE),
        mount_id: mount.parse().ok(),
        disk: disk.parse().ok(),
        boot: boot.to_owned(),
    };
    Some(((!is_locked).then_some(file), fs))
}

/// Whether a process, by its number in a pid namespace, has ended or is about to: it notes nothing
/// any more.
fn is_killed(pid: u32, ns: u64) -> bool {
    let ours = Numbers::now().of(pid, ns);
    ours.is_some_and(|pid| {
        process::is_ended(pid) || process::has_pending(pid, Signal::KILL.as_raw())
    })
}
