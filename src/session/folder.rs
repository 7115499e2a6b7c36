//! Folders that tell by a lock whether whoever made them lives.
//!
//! Promise: a folder is locked before anything else is in it; one whose maker was killed is told
//! from one that is being made just now, and from one that another user has put there.

use super::dirs;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// 22 digits that nobody guesses and nobody else has: process numbers are no names across pid
/// namespaces.
#[must_use]
pub fn random_name() -> String {
    let mut random = [0u8; 11];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a folder in `above` whose name begins with `prefix`, locked as long as the file is open.
///
/// # Errors
/// Those of mkdir(2) and open(2); nothing is left behind.
pub fn make_locked(above: &Path, prefix: &str) -> io::Result<(PathBuf, File)> {
    let dir = above.join(format!("{prefix}{}", random_name()));
    DirBuilder::new().mode(dirs::mode()).create(&dir)?;
    let lock = new_lock(&dir).inspect_err(|_| {
        let _ = std::fs::remove_dir_all(&dir);
    })?;
    Ok((dir, lock))
}

/// The lock of a new folder, locked.
fn new_lock(dir: &Path) -> io::Result<File> {
    // Whoever can open it can lock it.
    let lock = File::options()
        .mode(0o600)
        .create_new(true)
        .write(true)
        .open(dir.join("lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Takes the lock of the folder `dir`, if nobody holds it, for as long as the file is open.
#[must_use]
pub fn take_lock(dir: &Path) -> Option<File> {
    let path = dir.join("lock");
    let file = File::options().read(true).write(true).open(&path).ok()?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()?;
    // Another folder may have this name by now.
    let (ours, there) = (file.metadata().ok()?, path.metadata().ok()?);
    (ours.ino() == there.ino() && ours.dev() == there.dev()).then_some(file)
}

/// Removes our folders in `above` whose names begin with `prefix` and whose makers were killed.
pub fn remove_abandoned(above: &Path, prefix: &str) {
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
    for dir in named.map(|e| e.path()) {
        let seen = dir.symlink_metadata();
        let ours = seen.is_ok_and(|m| dirs::distrust(&m).is_none());
        if ours && !is_young(&dir) && take_lock(&dir).is_some() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Whether it may be being made just now: not locked yet, for an instant, and with nothing in it.
fn is_young(dir: &Path) -> bool {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let empty = files.filter(|f| f.file_name() != "lock").count() == 0;
    let made = dir.metadata().and_then(|m| m.modified());
    let age = made.ok().and_then(|t| t.elapsed().ok());
    empty && age.is_none_or(|a| a < Duration::from_secs(60))
}
