//! States that failed, kept for a look: a sparse image of each, in a folder for each laboratory.
//!
//! Promise: an image is never changed; who looks at one gets a copy. Only the newest laboratories'
//! folders are kept, and only folders that were made here are removed.

use super::fs::Kind;
use crate::session::dirs;
use rustix::fs::SeekFrom;
use rustix::mount::MountFlags;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use synclater_powercut::log::Image;
use synclater_powercut::store::Store;
use synclater_sys::clone::unnamed_file;
use synclater_sys::loopdev::{Loop, Through};

/// In the state directory.
const HOME: &str = "crash";
/// Folders that are kept.
const KEPT_MAX: usize = 20;
/// Bytes of one folder, at most.
const BYTES_MAX: u64 = 2 << 30;
/// In each folder; what has none is none of ours.
const ABOUT: &str = "about.json";
const PIECE: usize = 1 << 20;

/// What is known of a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// Its number, as in the report.
    pub id: String,
    /// The file system, as mount(8) names it.
    pub fs: String,
    /// Bytes of a sector.
    pub sector: u32,
    /// Options of mount(8).
    pub options: String,
    /// What happened.
    pub sentence: String,
    /// What the check said.
    pub said: String,
    /// The check that failed.
    pub check: String,
    /// Where the program ran, and the check looked; empty in what earlier releases have kept.
    #[serde(default)]
    pub place: PathBuf,
}

/// Where all of them lie.
#[must_use]
pub fn home() -> Option<PathBuf> {
    dirs::state_dir().map(|dir| dir.join(HOME))
}

/// The folder of one laboratory.
pub struct Shelf {
    dir: PathBuf,
    name: String,
    about: Vec<About>,
    bytes: u64,
}

impl Shelf {
    /// Makes one, and removes the oldest of those that are too many.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn new() -> io::Result<Shelf> {
        let state = dirs::state_dir();
        let state = state.ok_or_else(|| io::Error::other("no folder for it is known"))?;
        dirs::make(&state, "the folder of states", "SYNCLATER_STATE_DIR")
            .map_err(|t| io::Error::other(format!("{}: {}", t.what, t.why)))?;
        let home = state.join(HOME);
        make_private(&home)?;
        remove_oldest(&home, KEPT_MAX - 1);
        let name = crate::session::folder::random_name()[..8].to_owned();
        let dir = home.join(&name);
        make_private(&dir)?;
        let shelf = Shelf {
            dir,
            name,
            about: Vec::new(),
            bytes: 0,
        };
        // From now on it is one that is removed some day, whatever becomes of us.
        shelf.note(&shelf.about)?;
        Ok(shelf)
    }

    /// Notes what is kept, in a file that is whole at any moment.
    fn note(&self, about: &[About]) -> io::Result<()> {
        let new = self.dir.join("about.new");
        std::fs::write(&new, serde_json::to_string_pretty(about)?)?;
        std::fs::rename(new, self.dir.join(ABOUT))
    }

    /// Keeps a state; the words that lead to it.
    ///
    /// # Errors
    /// Those of write(2); `StorageFull` behind 2 GiB. Nothing of this state is left then.
    pub fn put(
        &mut self,
        about: About,
        image: &Image,
        store: &Store,
        acknowledged: &[u8],
    ) -> io::Result<String> {
        let image_file = self.dir.join(format!("{}.img", about.id));
        let acks_file = self.dir.join(format!("{}.acknowledged", about.id));
        let written = write_image(&image_file, image, store, BYTES_MAX - self.bytes)
            .and_then(|bytes| std::fs::write(&acks_file, acknowledged).map(|()| bytes));
        let id = format!("{}/{}", self.name, about.id);
        let mut all = self.about.clone();
        all.push(about.clone());
        let noted = written.and_then(|bytes| {
            self.note(&all)?;
            Ok(bytes)
        });
        self.bytes += noted.inspect_err(|_| {
            let _ = std::fs::remove_file(&image_file);
            let _ = std::fs::remove_file(&acks_file);
        })?;
        self.about = all;
        Ok(format!("synclater crash --replay {id}"))
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        if self.about.is_empty() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn make_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn remove_oldest(home: &Path, but: usize) {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    let ours = entries
        .map(|e| e.path())
        .filter(|p| p.join(ABOUT).is_file());
    let mut all: Vec<PathBuf> = ours.collect();
    all.sort_by_key(|p| std::cmp::Reverse(p.metadata().and_then(|m| m.modified()).ok()));
    for old in all.iter().skip(but) {
        let _ = std::fs::remove_dir_all(old);
    }
}

/// Writes what is not zeros; how many bytes that were.
fn write_image(path: &Path, image: &Image, store: &Store, most: u64) -> io::Result<u64> {
    let unit = store.unit();
    let file = File::create(path)?;
    file.set_len((image.0.len() * unit) as u64)?;
    let mut bytes = 0;
    for (at, content) in image
        .0
        .iter()
        .enumerate()
        .filter(|(_, content)| **content != 0)
    {
        bytes += unit as u64;
        if bytes > most {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all_at(store.get(*content), (at * unit) as u64)?;
    }
    Ok(bytes)
}

/// A state that is there for a look.
pub struct Replayed {
    /// What is known of it.
    pub about: About,
    /// Where it is mounted.
    pub at: PathBuf,
    /// The folders that were made for that, the innermost first.
    pub made: Vec<PathBuf>,
    /// A file with what had been acknowledged.
    pub acknowledged: PathBuf,
}

/// Why there is nothing to look at.
pub enum NoReplay {
    /// No such state is kept.
    Unknown(String),
    /// Something is in the way of the place.
    InTheWay(PathBuf),
    /// It cannot be done.
    Failed(&'static str, io::Error),
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> NoReplay {
    move |e| NoReplay::Failed(what, e)
}

/// Mounts a copy of a state, and leaves it mounted.
///
/// # Errors
/// See [`NoReplay`]; nothing is left then.
pub fn replay(id: &str) -> Result<Replayed, NoReplay> {
    let (run, name) = id.split_once('/').ok_or_else(unknown)?;
    if !is_plain(run) || !is_plain(name) {
        return Err(unknown());
    }
    let dir = home().ok_or_else(unknown)?.join(run);
    let all = std::fs::read(dir.join(ABOUT)).map_err(|_| unknown())?;
    let all: Vec<About> = serde_json::from_slice(&all).map_err(|_| unknown())?;
    let about = all.into_iter().find(|a| a.id == name).ok_or_else(unknown)?;
    let kind = Kind::of_name(&about.fs).ok_or_else(unknown)?;
    let own = std::env::temp_dir().join(format!("synclater-{run}-{name}"));
    let (at, made) = match make_place(&about.place) {
        Ok(made) => (about.place.clone(), made),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            return Err(NoReplay::InTheWay(about.place));
        }
        // What names itself by its path is not found there.
        Err(_) => (make_folder(own.clone())?, vec![own]),
    };
    let mounted = mount_copy(&dir.join(format!("{name}.img")), &about, kind, &at);
    if let Err(e) = mounted {
        remove(&made);
        return Err(e);
    }
    Ok(Replayed {
        acknowledged: dir.join(format!("{name}.acknowledged")),
        about,
        at,
        made,
    })
}

/// Removes folders that were made, as far as they are empty.
fn remove(made: &[PathBuf]) {
    for dir in made {
        let _ = std::fs::remove_dir(dir);
    }
}

/// Makes the folder where a program ran, and those above it that are not there, below one that
/// nobody else can exchange; those that it made, the innermost first.
fn make_place(place: &Path) -> io::Result<Vec<PathBuf>> {
    let above = place.ancestors().skip(1);
    let there = above.clone().find(|dir| dir.symlink_metadata().is_ok());
    let there = there.ok_or(io::ErrorKind::NotFound)?;
    for dir in there.ancestors() {
        let seen = dir.symlink_metadata()?;
        if !seen.is_dir() || dirs::distrust_above(&seen).is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    let missing = above
        .take_while(|dir| *dir != there)
        .map(|dir| (dir, 0o711));
    let mut missing: Vec<(&Path, u32)> = missing.collect();
    missing.insert(0, (place, 0o700));
    let mut made = Vec::new();
    for (dir, mode) in missing.into_iter().rev() {
        if let Err(e) = DirBuilder::new().mode(mode).create(dir) {
            remove(&made);
            return Err(e);
        }
        made.insert(0, dir.to_path_buf());
    }
    Ok(made)
}

fn make_folder(at: PathBuf) -> Result<PathBuf, NoReplay> {
    match DirBuilder::new().mode(0o700).create(&at) {
        Ok(()) => Ok(at),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(NoReplay::InTheWay(at)),
        Err(e) => Err(NoReplay::Failed("cannot make a folder to mount it at", e)),
    }
}

fn unknown() -> NoReplay {
    NoReplay::Unknown(known())
}

/// Whether a word has letters and digits alone, and so stays below the folder that it is joined to.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn mount_copy(image: &Path, about: &About, kind: Kind, at: &Path) -> Result<(), NoReplay> {
    // The copy has no name: it goes away with the device, and that with the mount.
    let copy = unnamed_file(&std::env::temp_dir()).map_err(failed("cannot make a copy of it"))?;
    let copy = File::from(copy);
    copy_sparse(image, &copy).map_err(failed("cannot make a copy of it"))?;
    // Where /dev has no node, in a folder that nobody else can write.
    let nodes = std::env::temp_dir().join(format!(
        "synclater-{}",
        crate::session::folder::random_name()
    ));
    let made = DirBuilder::new().mode(0o700).create(&nodes);
    made.map_err(failed("cannot make a folder for a device"))?;
    let mounted = mount_device(&copy, about, kind, at, &nodes);
    let _ = std::fs::remove_dir_all(&nodes);
    mounted
}

fn mount_device(
    copy: &File,
    about: &About,
    kind: Kind,
    at: &Path,
    nodes: &Path,
) -> Result<(), NoReplay> {
    let device = Loop::new(copy, about.sector, Through::Cache, nodes);
    let device = device.map_err(failed("cannot make a loop device of it"))?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    kind.mount(&about.options, device.path(), at, safe)
        .map_err(failed("cannot mount it"))
}

fn copy_sparse(from: &Path, mut to: &File) -> io::Result<()> {
    let mut from = File::open(from)?;
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    let mut piece = vec![0; PIECE];
    loop {
        let data = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No more data.
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let hole = rustix::fs::seek(&from, SeekFrom::Hole(data))?;
        rustix::fs::seek(&from, SeekFrom::Start(data))?;
        rustix::fs::seek(to, SeekFrom::Start(data))?;
        let mut left = (hole - data) as usize;
        while left > 0 {
            let part = left.min(PIECE);
            from.read_exact(&mut piece[..part])?;
            to.write_all(&piece[..part])?;
            left -= part;
        }
        at = hole;
    }
}

/// The states that can be looked at, in words.
fn known() -> String {
    let home = home();
    let entries = home
        .iter()
        .flat_map(|h| std::fs::read_dir(h).into_iter().flatten().flatten());
    let mut ids: Vec<String> = Vec::new();
    for entry in entries {
        let about = std::fs::read(entry.path().join(ABOUT)).unwrap_or_default();
        let all: Vec<About> = serde_json::from_slice(&about).unwrap_or_default();
        let run = entry.file_name().to_string_lossy().into_owned();
        ids.extend(all.iter().map(|a| format!("{run}/{}", a.id)));
    }
    if ids.is_empty() {
        "none is kept".to_owned()
    } else {
        format!("those that are kept: {}", ids.join(", "))
    }
}
