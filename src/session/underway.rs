//! Settles under way: each has a mark in memory, which one that was killed leaves.
//!
//! Promise: where a process that settles is killed, what its disk has answered is gone with it, and
//! told to nobody again (a flush that failed). Whoever waits for that process notes it as
//! [`KILLED`](super::durable::KILLED). Where he was killed as well, whoever is about to say
//! "durable" in this run folder finds the mark, and notes it for all that owe there.
//!
//! What it does not do: marks of another run folder are not in sight; where none can be made (no
//! room, no folder), it is settled without one.
//!
//! Relies on flock(2): a mark is locked from before it has its name until its process has ended.

use super::{dirs, told};
use crate::folder::random_name;
use rustix::fs::{flock, linkat, AtFlags, FlockOperation, Mode, OFlags, CWD};
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synclater_model::ledger::LedgerFs;
use synclater_model::policy::filesystem::Mount;
use synclater_sys::{mount, process};

/// A file system, by what tells it also once it has been mounted anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    dev: (u32, u32),
    /// `None` where it tells none.
    uuid: Option<String>,
}

impl Place {
    /// That of a descriptor.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Option<Place> {
        let mounted = { told::mounts_beside(fd).first() }.map(|m| m.dev);
        let told = || mount::what_is(fd).ok().map(|(dev, _)| dev);
        let dev = mounted.or_else(|| told().map(|dev| ((dev >> 32) as u32, dev as u32)))?;
        let uuid = mount::uuid_of_fd(fd);
        Some(Place { dev, uuid })
    }

    /// That on a disk.
    #[must_use]
    pub fn on_disk(disk: BorrowedFd<'_>) -> Option<Place> {
        let number = rustix::fs::fstat(disk).ok()?.st_rdev;
        let dev = (rustix::fs::major(number), rustix::fs::minor(number));
        Some(Place { dev, uuid: None })
    }

    /// Whether an entry means it.
    #[must_use]
    pub fn is(&self, fs: &LedgerFs, table: &[Mount]) -> bool {
        match (&self.uuid, &fs.uuid) {
            // A copy of an overlay's upper folder has its UUID, too.
            (Some(ours), Some(its)) if fs.fstype != "overlay" => ours == its,
            _ => { table.iter() }.any(|m| m.dev == self.dev && told::is_of(fs, m)),
        }
    }

    /// Whether it may be this one.
    #[must_use]
    pub fn may_be(&self, other: &Place) -> bool {
        match (&self.uuid, &other.uuid) {
            (Some(ours), Some(its)) => ours == its,
            _ => self.dev == other.dev,
        }
    }

    fn from_words(words: &[&str]) -> Option<Place> {
        let [major, minor, uuid] = words else {
            return None;
        };
        Some(Place {
            dev: (major.parse().ok()?, minor.parse().ok()?),
            uuid: Some((*uuid).to_owned()).filter(|uuid| uuid != NONE),
        })
    }
}

/// Stands for a UUID that is not known.
const NONE: &str = "-";

/// The mark of a settle; it goes with this.
pub struct Mark {
    path: PathBuf,
    _lock: File,
}

impl Mark {
    /// Marks that this process settles a file system from now on; `None` where that cannot be.
    #[must_use]
    pub fn of(place: &Place) -> Option<Mark> {
        const NAMED_IN: &str = "SYNCLATER_RUN_DIR";
        dirs::make(&dirs::run_dir(), "the run folder", NAMED_IN).ok()?;
        let (dir, prefix) = marks_of_run()?;
        dirs::make(&dir, "the folder of memory", NAMED_IN).ok()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&dir, flags, Mode::RUSR | Mode::WUSR).ok()?;
        // Whoever finds it unlocked takes it for one of a process that was killed.
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let (major, minor) = place.dev;
        let uuid = place.uuid.as_deref().unwrap_or(NONE);
        let (boot, pid) = (dirs::boot_id(), std::process::id());
        let mut lock = File::from(file);
        writeln!(lock, "{boot} {pid} {major} {minor} {uuid}").ok()?;
        let path = dir.join(format!("{prefix}{}", random_name()));
        let unnamed = format!("/proc/self/fd/{}", lock.as_raw_fd());
        linkat(CWD, unnamed, CWD, &path, AtFlags::SYMLINK_FOLLOW).ok()?;
        Some(Mark { path, _lock: lock })
    }

    /// The same of the file system of `fd`.
    #[must_use]
    pub fn on(fd: BorrowedFd<'_>) -> Option<Mark> {
        Place::of(fd).as_ref().and_then(Mark::of)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where the marks of our run folder lie, and what their names begin with: a folder of memory may
/// have those of several.
fn marks_of_run() -> Option<(PathBuf, String)> {
    let run = dirs::run_dir();
    let seen = run.symlink_metadata().ok()?;
    let prefix = format!(".settling.{}.{}.", seen.dev(), seen.ino());
    Some((dirs::memory_dir(&run), prefix))
}

/// Notes, for all that owe there, each settle that was killed and that nobody has noted yet, as
/// well as can be: the file systems.
pub fn note_killed() -> Vec<Place> {
    let Some((dir, prefix)) = marks_of_run() else {
        return Vec::new();
    };
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let marks = files.filter(|f| f.file_name().to_string_lossy().starts_with(&prefix));
    let mut places = Vec::new();
    for path in marks.map(|f| f.path()) {
        if let Some((_until_it_is_noted, place)) = left_at(&path) {
            told::note_killed_on(&place);
            let _ = std::fs::remove_file(path);
            places.push(place);
        }
    }
    places
}

/// The mark at `path`, locked, where its process was killed.
fn left_at(path: &Path) -> Option<(File, Place)> {
    /// How long what is killed may take behind its system call, and another one who notes it.
    const PATIENCE: Duration = Duration::from_millis(200);
    let seen = path.symlink_metadata().ok()?;
    if dirs::distrust(&seen).is_some() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let [boot, pid, place @ ..] = &words[..] else {
        return None;
    };
    let (place, pid) = (Place::from_words(place)?, pid.parse().ok()?);
    let begun = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if settles_still(pid) || begun.elapsed() > PATIENCE {
            return None;
        }
        std::thread::sleep(PATIENCE / 200);
    }
    // It has ended by itself, or another one has noted it.
    if file.metadata().ok()?.nlink() == 0 {
        return None;
    }
    if *boot != dirs::boot_id() {
        let _ = std::fs::remove_file(path);
        return None;
    }
    Some((file, place))
}

/// Whether a process lives, and goes on to: then it notes by itself what it is told.
fn settles_still(pid: u32) -> bool {
    !process::is_ended(pid) && !process::has_pending(pid, Signal::KILL.as_raw())
}
