//! Files that appear whole or not at all.
//!
//! Promise: what is written stands under a hidden name, beside the final one, until it is durable;
//! then it is renamed. A killed writer leaves the hidden file at most, and the next one for the
//! same final name removes it. Two writers for the same name at a time: the second is refused.
//!
//! What it does not do: several files are renamed one after the other; each is whole, but a power
//! cut in between leaves some of them new and some old.

use crate::session::marks::marked;
use crate::session::told;
use rustix::fs::{flock, FlockOperation};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use synclater_sys::lock::lock;

/// Hidden files and folders that go when their export does not come to its end.
#[derive(Clone, Default)]
pub struct Unfinished(Arc<Mutex<Vec<PathBuf>>>);

impl Unfinished {
    fn lock(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        lock(&self.0)
    }

    /// Removes them, and holds up whoever is about to make another.
    pub fn remove(&self) -> impl Drop + use<'_> {
        let mut paths = self.lock();
        for path in paths.drain(..).rev() {
            // Folders go only where nothing else is in them by now.
            if std::fs::remove_file(&path).is_err() {
                let _ = std::fs::remove_dir(&path);
            }
        }
        paths
    }

    /// Makes a folder and those above it.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = dir
            .ancestors()
            .take_while(|d| !d.as_os_str().is_empty())
            .collect();
        let mut made = self.lock();
        for dir in missing.into_iter().rev().filter(|d| !d.exists()) {
            match std::fs::create_dir(dir) {
                Ok(()) => made.push(dir.to_owned()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes the hidden file for `path`.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::ResourceBusy`] where another process writes it.
    pub fn make(&self, path: PathBuf) -> io::Result<Part> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = path.with_file_name(format!(".{name}.part"));
        let mut paths = self.lock();
        let file = make_locked(&hidden)?;
        paths.push(hidden.clone());
        Ok(Part { path, hidden, file })
    }

    /// Makes all `parts` durable, then gives them their names; returns how many bytes each has.
    ///
    /// # Errors
    /// Those of fsync(2) and rename(2), with the file.
    pub fn publish(&self, parts: &[Part]) -> Result<Vec<u64>, (PathBuf, io::Error)> {
        let mut sizes = Vec::new();
        for part in parts {
            sync(&part.file, &part.path).map_err(|e| (part.path.clone(), e))?;
            let meta = part.file.metadata();
            sizes.push(meta.map_err(|e| (part.path.clone(), e))?.len());
        }
        let mut unfinished = self.lock();
        for part in parts {
            std::fs::rename(&part.hidden, &part.path).map_err(|e| (part.path.clone(), e))?;
            unfinished.retain(|p| *p != part.hidden);
        }
        // Each folder holds a new name, and so do those above that were made.
        let made = unfinished
            .drain(..)
            .filter_map(|d| Some(above(&d)?.to_owned()));
        let holders = parts
            .iter()
            .filter_map(|p| Some(above(&p.path)?.to_owned()));
        let mut dirs: Vec<PathBuf> = made.chain(holders).collect();
        dirs.sort();
        dirs.dedup();
        for dir in dirs {
            let synced = File::open(&dir).and_then(|folder| sync(&folder, &dir));
            synced.map_err(|e| (dir.clone(), e))?;
        }
        Ok(sizes)
    }
}

/// Makes a file or folder durable; sessions that owe there may have to be told what that is told.
fn sync(file: &File, path: &Path) -> io::Result<()> {
    marked(file.as_fd(), || {
        let synced = file.sync_all();
        synced.inspect_err(|e| told::note_of_ours(e, path))
    })
}

fn above(path: &Path) -> Option<&Path> {
    let dir = path.parent()?;
    let here = Path::new(".");
    Some(if dir.as_os_str().is_empty() {
        here
    } else {
        dir
    })
}

/// A new file that only we have, locked; one that a killed process left there goes.
fn make_locked(path: &Path) -> io::Result<File> {
    // Each turn is lost only to another process that made or removed the file in this instant.
    for _ in 0..100 {
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        match made {
            Ok(file) => {
                if lock_alone(&file).is_ok() && is_at(&file, path) {
                    return Ok(file);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
                let mut left = OpenOptions::new();
                match left.write(true).custom_flags(flags).open(path) {
                    Ok(file) if lock_alone(&file).is_err() => break,
                    Ok(_) => std::fs::remove_file(path)?,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Locks a file, unless somebody else has it locked.
fn lock_alone(file: &File) -> rustix::io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Whether the file is still the one of this name.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(ours), Ok(there)) => ours.ino() == there.ino() && ours.dev() == there.dev(),
        _ => false,
    }
}

/// A file that does not have its name yet.
pub struct Part {
    /// What it will be called.
    pub path: PathBuf,
    hidden: PathBuf,
    file: File,
}

impl Part {
    /// The file, for writing.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn writer(&self) -> io::Result<impl Write + Send> {
        Ok(io::BufWriter::with_capacity(
            1 << 18,
            self.file.try_clone()?,
        ))
    }
}
