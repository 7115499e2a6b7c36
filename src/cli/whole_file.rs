//! A file that appears whole or not at all, at the place of the one that was there.
//!
//! Promise: until the last byte is on the disk, whatever had the name keeps it; a device, pipe or
//! socket is written into and never replaced; where writing fails, nothing of it is left.
//!
//! What it does not do: it makes no folders, and does not guard against being killed in the middle,
//! which leaves a file with a name of its own.

use crate::record::out;
use crate::session::marks::marked;
use crate::session::told;
use crate::voice;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a file is to appear.
pub enum WholeFile {
    /// `-`.
    Stdout,
    /// A device, pipe or socket.
    Special(PathBuf),
    /// A file, or nothing yet.
    Regular(PathBuf),
}

impl WholeFile {
    /// Looks at the place, before work is put into what is to be written there.
    ///
    /// # Errors
    /// A folder that is not there, a folder with this very name, or `source` itself: what is read
    /// must not be written over.
    pub fn at(path: &Path, source: &Path) -> io::Result<WholeFile> {
        if path == Path::new("-") {
            return Ok(WholeFile::Stdout);
        }
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Ok(found) if is_the_same(&found, source) => {
                Err(io::Error::other("it is the recording itself"))
            }
            // A link keeps leading to the file.
            Ok(found) if found.is_file() => {
                // Taken for a moment: it is not written into, but replaced.
                File::open(path).map_or(Ok(()), |file| out::share(&file))?;
                Ok(WholeFile::Regular(fs::canonicalize(path)?))
            }
            Ok(_) => Ok(WholeFile::Special(path.to_owned())),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                fs::metadata(folder_of(path))?;
                path.file_name().ok_or(ErrorKind::InvalidInput)?;
                Ok(WholeFile::Regular(path.to_owned()))
            }
            Err(e) => Err(e),
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Those of the file; a reader of stdout that has gone away is none.
    pub fn write(&self, text: &str) -> io::Result<()> {
        match self {
            WholeFile::Stdout => match voice::write_to(&mut io::stdout().lock(), text) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
                result => result,
            },
            WholeFile::Special(path) => write_into(path, text),
            WholeFile::Regular(path) => replace(path, text),
        }
    }
}

/// A pipe that nobody reads is an error: whoever waited for a reader would do so for ever.
fn write_into(path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NXIO) => return Err(io::Error::other("nobody reads it")),
        opened => opened?,
    };
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    File::from(fd).write_all(text.as_bytes())
}

fn is_the_same(found: &fs::Metadata, other: &Path) -> bool {
    fs::metadata(other).is_ok_and(|o| (o.dev(), o.ino()) == (found.dev(), found.ino()))
}

fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut fresh_name = std::ffi::OsString::from(".");
    fresh_name.push(name);
    fresh_name.push(format!(".{}.new", std::process::id()));
    let fresh = folder_of(path).join(fresh_name);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&fresh)?;
    let written = fill(file, path, text).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Synced before it gets its name: a power cut must not leave an empty file there.
fn fill(mut file: File, path: &Path, text: &str) -> io::Result<()> {
    if let Ok(before) = fs::metadata(path) {
        file.set_permissions(before.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    marked(file.as_fd(), || {
        let synced = file.sync_all();
        synced.inspect_err(|e| told::note_of_ours(e, folder_of(path)))
    })
}
