//! The sync that was missing: found by making it, in another run, before each acknowledgement.
//!
//! While it is made the program waits for its write of the acknowledgement to return, so nothing of
//! the program need be changed, and nothing comes in between.

use super::disk::recorded::Recorded;
use super::disk::Said;
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::Arc;

/// Folders and files that are tried, at most.
const LEFT_MAX: usize = 24;
/// Those that are looked at for that.
const SEEN_MAX: usize = 1000;

/// A sync.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Closing {
    /// fsync of a folder, named from the top.
    Folder(PathBuf),
    /// fsync of a file.
    File(PathBuf),
    /// fsync of each folder.
    Folders,
    /// fsync of each file.
    Files,
    /// syncfs.
    Everything,
}

impl Closing {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Closing::Folder(path) if path.as_os_str().is_empty() => "fsync of its folder".into(),
            Closing::Folder(path) => format!("fsync of the folder {}", path.display()),
            Closing::File(path) => format!("fsync of {}", path.display()),
            Closing::Folders => "fsync of each folder".to_owned(),
            Closing::Files => "fsync of each file".to_owned(),
            Closing::Everything => "syncfs of the file system".to_owned(),
        }
    }

    /// Makes it. What is not there has nothing to be made durable.
    pub fn make(&self, place: &Path) {
        match self {
            Closing::Folder(path) | Closing::File(path) => sync(&place.join(path), false),
            Closing::Everything => sync(place, true),
            Closing::Folders => {
                let (folders, _) = seen_in(place);
                folders
                    .iter()
                    .for_each(|path| sync(&place.join(path), false));
            }
            Closing::Files => {
                let (_, files) = seen_in(place);
                files.iter().for_each(|path| sync(&place.join(path), false));
            }
        }
    }
}

fn sync(path: &Path, whole: bool) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    if let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) {
        let _ = if whole {
            rustix::fs::syncfs(fd)
        } else {
            rustix::fs::fsync(fd)
        };
    }
}

/// Has `before` done from now on before anything counts as said, while the program waits.
pub fn attend(disk: &Arc<Recorded>, mut before: impl FnMut(&Said) + Send + 'static) {
    let (to, from) = channel::<Said>();
    let releasing = disk.clone();
    std::thread::spawn(move || {
        for said in from {
            before(&said);
            releasing.release(said);
        }
    });
    disk.hold(to);
}

/// Folders from the top down, and files, those that changed last first; of so many.
fn seen_in(place: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut folders = vec![PathBuf::new()];
    let mut files = Vec::new();
    let mut at = 0;
    while at < folders.len() && folders.len() + files.len() < SEEN_MAX {
        let entries = std::fs::read_dir(place.join(&folders[at]));
        for entry in entries.into_iter().flatten().flatten() {
            let path = folders[at].join(entry.file_name());
            match entry.metadata() {
                Ok(about) if about.is_dir() && path.as_os_str() != "lost+found" => {
                    folders.push(path);
                }
                Ok(about) if about.is_file() => files.push((about.modified().ok(), path)),
                _ => {}
            }
        }
        at += 1;
    }
    files.sort_by(|a, b| b.cmp(a));
    (folders, files.into_iter().map(|(_, path)| path).collect())
}

/// The syncs to be tried for what is there: of folders from the top down, then of files, those that
/// changed last first; and of all of either.
#[must_use]
pub fn left_in(place: &Path) -> Vec<Closing> {
    let (mut folders, files) = seen_in(place);
    folders.truncate(LEFT_MAX / 2);
    let files = files.into_iter().map(Closing::File);
    let some = folders
        .into_iter()
        .map(Closing::Folder)
        .chain(files)
        .take(LEFT_MAX);
    some.chain([Closing::Folders, Closing::Files]).collect()
}
