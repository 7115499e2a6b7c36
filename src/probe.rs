//! Measuring what syncs cost on a disk: each kind, by one thread and by several at once.
//!
//! Promise: the syncs are made by system calls that no preloaded library sees, so they are real in
//! a session too. What it writes lies in one folder, which goes with [`ScratchFolder`]; one that a
//! killed probe left goes with the next probe in the same folder.

use crate::session::folder::{make_locked, remove_abandoned};
use crate::session::marks::SyncMark;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use synclater_account::probe::IN_PLACE;

/// A measurement ends here also where time is left: the disk is not to be filled.
const COUNT_MAX: usize = 5000;
const PREFIX: &str = ".synclater-probe-";
/// What is written each time.
const BLOCK: [u8; 4096] = [0x5a; 4096];

/// A way to ask for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// fsync(2).
    Fsync,
    /// fdatasync(2).
    Fdatasync,
    /// fdatasync(2) of what was written over: the file is as long as before, and lies where it lay.
    InPlace,
    /// A write to a file opened with `O_DSYNC`.
    Dsync,
    /// pwritev2(2) with `RWF_DSYNC`.
    RwfDsync,
    /// syncfs(2).
    Syncfs,
    /// rename(2) and fsync(2) of the folder, as mail servers deliver.
    Rename,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::Fsync,
        Kind::Fdatasync,
        Kind::InPlace,
        Kind::Dsync,
        Kind::RwfDsync,
        Kind::Syncfs,
        Kind::Rename,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Fsync => "fsync",
            Kind::Fdatasync => "fdatasync",
            Kind::InPlace => IN_PLACE,
            Kind::Dsync => "O_DSYNC",
            Kind::RwfDsync => "RWF_DSYNC",
            Kind::Syncfs => "syncfs",
            Kind::Rename => "rename+fsync(dir)",
        }
    }
}

/// The folder that is written to; removed when it is dropped.
pub struct ScratchFolder {
    path: PathBuf,
    dir: OwnedFd,
    _lock: File,
}

impl ScratchFolder {
    /// Marks that there are syncs under way in it.
    pub fn marked(&self) -> Option<SyncMark> {
        SyncMark::on(self.dir.as_fd())
    }

    /// Makes it in `above`, and removes what a killed probe left there.
    ///
    /// # Errors
    /// Those of mkdir(2) and open(2).
    pub fn new(above: &Path) -> io::Result<ScratchFolder> {
        remove_abandoned(above, PREFIX);
        let (path, _lock) = make_locked(above, PREFIX)?;
        let dir = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(ScratchFolder { path, dir, _lock })
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.dir, name, flags, mode)?)
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What one measurement gave.
pub struct Series {
    /// Seconds that each sync took.
    pub took_s: Vec<f64>,
    /// Seconds that all took together.
    pub wall_s: f64,
}

/// Measures one kind by `threads` threads at once, for `patience` or until `stop`.
///
/// # Errors
/// The first that a thread met: `EOPNOTSUPP` for a kind that the file system has not, `ENOSPC`…
pub fn measure(
    place: &ScratchFolder,
    kind: Kind,
    threads: usize,
    patience: Duration,
    stop: &AtomicBool,
) -> io::Result<Series> {
    let begin = Instant::now();
    let end = begin + patience;
    let all = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|k| scope.spawn(move || hammer(place, kind, k, end, stop)))
            .collect();
        let ends = running
            .into_iter()
            .map(|t| t.join().expect("it does not panic"));
        ends.collect::<io::Result<Vec<_>>>()
    })?;
    Ok(Series {
        took_s: all.into_iter().flatten().collect(),
        wall_s: begin.elapsed().as_secs_f64(),
    })
}

fn hammer(
    place: &ScratchFolder,
    kind: Kind,
    thread: usize,
    end: Instant,
    stop: &AtomicBool,
) -> io::Result<Vec<f64>> {
    let flags = if kind == Kind::Dsync {
        OFlags::DSYNC
    } else {
        OFlags::empty()
    };
    let name = format!("{thread}");
    let file = place.open(&name, flags)?;
    if kind == Kind::InPlace {
        // The first one decides where it lies.
        sync_once(place, kind, &file, &name, 0)?;
    }
    let mut took_s = Vec::new();
    while took_s.len() < COUNT_MAX && Instant::now() < end && !stop.load(Relaxed) {
        let at = took_s.len() as u64;
        took_s.push(sync_once(place, kind, &file, &name, at)?.as_secs_f64());
    }
    let _ = rustix::fs::unlinkat(&place.dir, &name, AtFlags::empty());
    Ok(took_s)
}

/// Writes 4 KiB and makes them durable; the time of the latter.
fn sync_once(
    place: &ScratchFolder,
    kind: Kind,
    file: &OwnedFd,
    name: &str,
    at: u64,
) -> io::Result<Duration> {
    let in_place = kind == Kind::InPlace;
    let offset = if in_place { 0 } else { at * BLOCK.len() as u64 };
    match kind {
        Kind::Dsync | Kind::RwfDsync => {
            let rwf = kind == Kind::RwfDsync;
            let flags = if rwf {
                ReadWriteFlags::DSYNC
            } else {
                ReadWriteFlags::empty()
            };
            let begin = Instant::now();
            write_at(file, offset, flags)?;
            Ok(begin.elapsed())
        }
        Kind::Rename => {
            let fresh = format!("{name}.new");
            let new = place.open(&fresh, OFlags::empty())?;
            rustix::io::pwrite(&new, &BLOCK, 0)?;
            let begin = Instant::now();
            rustix::fs::renameat(&place.dir, &fresh, &place.dir, name)?;
            rustix::fs::fsync(&place.dir)?;
            Ok(begin.elapsed())
        }
        Kind::Fsync | Kind::Fdatasync | Kind::InPlace | Kind::Syncfs => {
            write_at(file, offset, ReadWriteFlags::empty())?;
            let begin = Instant::now();
            match kind {
                Kind::Fsync => rustix::fs::fsync(file)?,
                Kind::Fdatasync | Kind::InPlace => rustix::fs::fdatasync(file)?,
                _ => rustix::fs::syncfs(file)?,
            }
            Ok(begin.elapsed())
        }
    }
}

fn write_at(file: &OwnedFd, offset: u64, flags: ReadWriteFlags) -> rustix::io::Result<usize> {
    rustix::io::pwritev2(file, &[IoSlice::new(&BLOCK)], offset, flags)
}
