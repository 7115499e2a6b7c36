//! Asks a directory's file system whether it can share blocks between files (reflinks).
//!
//! Promise: leaves nothing behind; both files are unnamed (O_TMPFILE), gone with their descriptors.
//! Relies on: FICLONE, ioctl_ficlone(2); file systems without it say EOPNOTSUPP or ENOTTY.

use rustix::fs::{ioctl_ficlone, openat, Mode, OFlags, CWD};
use rustix::io::{write, Errno};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Clones a block from one unnamed file in `dir` to another; whether that worked.
///
/// # Errors
/// What kept it from being tried: `dir` cannot be written, is full, or cannot hold unnamed files.
pub fn supports_clone(dir: &Path) -> io::Result<bool> {
    let source = unnamed_file(dir)?;
    let target = unnamed_file(dir)?;
    write(&source, &[0; 4096])?;
    match ioctl_ficlone(&target, &source) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// A file in `dir` that has no name and goes with its descriptor: O_TMPFILE of open(2).
///
/// # Errors
/// Those of open(2); `EOPNOTSUPP` where the file system has no such files.
pub fn unnamed_file(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(openat(CWD, dir, flags, Mode::RUSR | Mode::WUSR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tmpfs_cannot_clone_and_says_so() {
        assert!(!supports_clone(Path::new("/dev/shm")).expect("/dev/shm is writable"));
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_and_not_a_no() {
        let error = supports_clone(Path::new("/nonexistent")).expect_err("no such directory");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
