//! The ledger on disk: written before any request is put off, closed after the last settle.
//!
//! One file a session, `ID.json`. Promise: when the job that writes it has ended with 0, the entry
//! and its name are durable (file and folder synced by system calls that no preload sees).
//! Writing and closing run in processes of their own: the disk may be slow, the heartbeat may not.

use super::dirs;
use super::durable::errno_name;
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use std::io;
use std::path::{Path, PathBuf};
use synclater_model::ledger::Entry;
use synclater_sys::job::Job;

/// The ledger of one user.
#[derive(Clone, Debug)]
pub struct Ledger {
    dir: PathBuf,
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error()
        .unwrap_or(rustix::io::Errno::IO.raw_os_error())
}

impl Ledger {
    /// Opens the ledger, making its folder.
    ///
    /// # Errors
    /// Why there is none, as a message for the user.
    pub fn open() -> Result<Ledger, synclater_model::report::message::Trouble> {
        let Some(dir) = dirs::state_dir() else {
            return Err(synclater_model::report::message::Trouble::new(
                "there is no folder for the ledger",
                "neither HOME nor XDG_STATE_HOME is set",
                "name one in SYNCLATER_STATE_DIR",
                "nothing was changed",
            ));
        };
        dirs::make(&dir, "the ledger")?;
        let (may, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        rustix::fs::accessat(rustix::fs::CWD, &dir, may, flags).map_err(|e| {
            synclater_model::report::message::Trouble::new(
                format!("cannot write the ledger in {}", dir.display()),
                e.to_string(),
                "make it writable, or name another folder in SYNCLATER_STATE_DIR",
                "nothing was changed",
            )
        })?;
        Ok(Ledger { dir })
    }

    /// The ledger for reading; it may not exist.
    #[must_use]
    pub fn existing() -> Option<Ledger> {
        dirs::state_dir()
            .filter(|d| d.is_dir())
            .map(|dir| Ledger { dir })
    }

    /// Where the entry of session `id` lies.
    #[must_use]
    pub fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Starts writing `entry` durably.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn write(&self, entry: &Entry) -> io::Result<Job> {
        let (path, text) = (self.path(&entry.id), entry.to_json());
        let dir = self.dir.clone();
        Job::start(move || {
            let _ = synclater_sys::job::keep_only(&[]);
            let fresh = path.with_extension("new");
            write_durably(&dir, &path, &fresh, text.as_bytes()).map_or_else(
                |e| {
                    let _ = std::fs::remove_file(&fresh);
                    errno(&e)
                },
                |()| 0,
            )
        })
    }

    /// Closes an entry in this process, durably.
    ///
    /// # Errors
    /// Those of unlink(2) and fsync(2).
    pub fn close_here(&self, id: &str) -> io::Result<()> {
        close_durably(&self.dir, &self.path(id))
    }

    /// Notes durably in the entry of session `id` that a write was lost: the kernel tells of it
    /// once, so whoever settles in its place cannot see that any more.
    ///
    /// # Errors
    /// Those of writing a file; `ENOENT` where there is no such entry.
    pub fn note_error(&self, id: &str, errno: i32) -> io::Result<()> {
        let path = self.path(id);
        let text = std::fs::read_to_string(&path)?;
        let mut entry = Entry::from_json(&text).map_err(io::Error::other)?;
        entry.error.get_or_insert_with(|| errno_name(errno));
        let fresh = path.with_extension("new");
        write_durably(&self.dir, &path, &fresh, entry.to_json().as_bytes())
    }

    /// All entries that can be read, and the files that cannot, with the reason.
    #[must_use]
    pub fn entries(&self) -> (Vec<Entry>, Vec<(PathBuf, String)>) {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let files = std::fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path());
        let mut files: Vec<PathBuf> = files
            .filter(|p| p.extension().is_some_and(|x| x == "json"))
            .collect();
        files.sort();
        for path in files {
            match std::fs::read_to_string(&path).map_err(|e| e.to_string()) {
                Err(why) => bad.push((path, why)),
                Ok(text) => match Entry::from_json(&text) {
                    Ok(entry) => good.push(entry),
                    Err(why) => bad.push((path, why.to_string())),
                },
            }
        }
        (good, bad)
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    let fd = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(fd)?)
}

fn write_durably(dir: &Path, path: &Path, fresh: &Path, text: &[u8]) -> io::Result<()> {
    let _ = std::fs::remove_file(fresh);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(fresh, flags, Mode::RUSR | Mode::WUSR)?;
    let mut rest = text;
    while !rest.is_empty() {
        let n = rustix::io::write(&fd, rest)?;
        rest = &rest[n..];
    }
    rustix::fs::fsync(&fd)?;
    std::fs::rename(fresh, path)?;
    sync_dir(dir)?;
    // The folder itself may be new.
    match dir.parent().map_or(Ok(()), sync_dir) {
        // Where the folder above cannot be opened, its whole file system is made durable instead.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(rustix::fs::syncfs(&fd)?),
        done => done,
    }
}

fn close_durably(dir: &Path, path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => sync_dir(dir),
    }
}
