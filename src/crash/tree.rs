//! Reads what lies in a folder, without a trace: no time of access changes.

use rustix::fs::{Dir, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use synclater_powercut::tree::{block, Entry, Tree, BLOCK};

/// Bytes and entries that are read, at most.
const BYTES_MAX: u64 = 256 << 20;
const ENTRIES_MAX: usize = 20_000;

const QUIET: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOATIME);

/// Everything below `folder`.
///
/// # Errors
/// `FileTooLarge` for more than 256 MiB or 20,000 entries; those of open(2) and read(2), but what
/// goes away meanwhile is no error.
pub fn read(folder: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut bytes = 0;
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let at = folder.join(&below);
        let flags = QUIET | OFlags::DIRECTORY;
        let Some(fd) = found(rustix::fs::open(&at, flags, Mode::empty()))? else {
            continue;
        };
        for entry in Dir::new(fd)? {
            let name = entry?.file_name().to_owned();
            let name = OsStr::from_bytes(name.to_bytes());
            let is_top = below.as_os_str().is_empty();
            if name == "." || name == ".." || is_top && name == "lost+found" {
                continue;
            }
            let path = below.join(name);
            let Some(entry) = read_entry(&folder.join(&path), &mut bytes)? else {
                continue;
            };
            if entry == Entry::Folder {
                folders.push(path.clone());
            }
            tree.insert(readable(&path), entry);
            if tree.len() > ENTRIES_MAX || bytes > BYTES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
    }
    Ok(tree)
}

/// A path as text; two paths are never one.
fn readable(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => path.as_os_str().as_bytes().escape_ascii().to_string(),
    }
}

/// What is there; `None` where nothing is any more, or something else.
fn found<T>(result: rustix::io::Result<T>) -> io::Result<Option<T>> {
    use rustix::io::Errno;
    match result {
        Ok(got) => Ok(Some(got)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn read_entry(path: &Path, bytes: &mut u64) -> io::Result<Option<Entry>> {
    let about = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        about => about?,
    };
    if about.is_dir() {
        return Ok(Some(Entry::Folder));
    }
    if about.is_symlink() {
        let to = found(rustix::fs::readlink(path, Vec::new()))?;
        return Ok(to.map(|to| Entry::Link(to.to_string_lossy().into_owned())));
    }
    if !about.is_file() {
        return Ok(Some(Entry::Other));
    }
    let Some(fd) = found(rustix::fs::open(path, QUIET, Mode::empty()))? else {
        return Ok(None);
    };
    let mut file = File::from(fd);
    let (mut length, mut blocks) = (0, Vec::new());
    let mut part = Vec::with_capacity(BLOCK);
    loop {
        part.clear();
        (&mut file).take(BLOCK as u64).read_to_end(&mut part)?;
        if part.is_empty() {
            return Ok(Some(Entry::File(length, blocks)));
        }
        length += part.len() as u64;
        *bytes += part.len() as u64;
        if *bytes > BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        blocks.push(block(&part));
    }
}
