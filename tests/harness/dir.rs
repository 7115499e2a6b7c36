//! Scratch directories: gone with their guard, kept and named when the test has failed.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A directory on a disk file system, for its owner only.
pub struct Dir {
    path: PathBuf,
}

impl Dir {
    /// # Panics
    /// If it cannot be made.
    pub fn new(name: &str) -> Dir {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = disk_backed().join(format!("sl-{name}-{}-{number}", std::process::id()));
        make(&path);
        Dir { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A new directory in this one.
    pub fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        make(&path);
        path
    }
}

fn make(path: &Path) {
    let made = std::fs::DirBuilder::new().mode(0o700).create(path);
    made.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The usual place for temporary files, or /var/tmp where that is in memory: there nothing is owed.
fn disk_backed() -> PathBuf {
    let usual = std::env::temp_dir();
    if file_system_of(&usual) == "tmpfs" {
        "/var/tmp".into()
    } else {
        usual
    }
}

/// The type of the file system at a path, by the longest mount point above it.
fn file_system_of(path: &Path) -> String {
    let path = path.canonicalize().expect("the temporary directory");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let above = mounts.lines().filter_map(|line| {
        let at = Path::new(line.split(' ').nth(4)?);
        let kind = line.split(" - ").nth(1)?.split(' ').next()?;
        path.starts_with(at).then_some((at.as_os_str().len(), kind))
    });
    let nearest = above.max_by_key(|(length, _)| *length);
    nearest.map_or(String::new(), |(_, kind)| kind.to_owned())
}

impl Drop for Dir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept: {}", self.path.display());
        } else if let Err(e) = std::fs::remove_dir_all(&self.path) {
            eprintln!("not removed: {}: {e}", self.path.display());
        }
    }
}

#[test]
fn a_directory_goes_with_its_guard() {
    let dir = Dir::new("guard");
    let path = dir.make("below");
    assert!(path.is_dir());
    drop(dir);
    assert!(!path.exists());
}
