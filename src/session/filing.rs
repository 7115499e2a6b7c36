//! The files of a ledger: how an entry comes to its name, is changed, and leaves.
//!
//! Promise: what is under an entry's name is whole at any time; behind a change that has succeeded
//! it is durable, and so is its name. An entry that was closed meanwhile does not come back. That a
//! write was lost stands in a file beside it (`ID.TOKEN.lost`), which whoever is told makes: so
//! nobody who writes the entry can take that away.
//!
//! What it does not do: where a file system cannot exchange two files (NFS), one may come back.
//!
//! Relies on: renameat2(2) with RENAME_EXCHANGE, which needs a file under either name; flock(2).

use super::dirs;
use super::folder::random_name;
use super::marks::marked;
use rustix::fs::{flock, renameat_with, FlockOperation, Mode, OFlags, RenameFlags, CWD};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use synclater_policy::ledger::{is_name, Entry};

/// The entry in a file, where that is ours and named after it, with the error that is noted beside
/// it.
pub(super) fn read(path: &Path) -> io::Result<Entry> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut entry = Entry::of_file(&name, &text_of(path)?).map_err(io::Error::other)?;
    if let Some(token) = entry.token.clone() {
        for kind in [LOST, HEARD] {
            let noted = noted(path, &token, kind)?;
            entry.error = entry.error.or(noted);
        }
    }
    Ok(entry)
}

/// The error that is noted beside an entry in a file of this kind.
pub(super) fn noted(path: &Path, token: &str, kind: &str) -> io::Result<Option<String>> {
    match beside(path, token, kind).map(|file| text_of(&file)) {
        None => Ok(None),
        Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Some(noted) => Ok(Some(noted?)),
    }
}

fn text_of(path: &Path) -> io::Result<String> {
    match dirs::distrust(&path.symlink_metadata()?) {
        Some(why) => Err(io::Error::other(why)),
        None => std::fs::read_to_string(path),
    }
}

/// The file of this kind that belongs to the entry in `path`, which has this `token`.
pub(super) fn beside(path: &Path, token: &str, kind: &str) -> Option<PathBuf> {
    is_random(token).then(|| path.with_extension(format!("{token}.{kind}")))
}

/// An entry that is being written: under a name that nobody else has, and locked. With it goes the
/// name.
pub(super) struct Fresh {
    path: PathBuf,
    fd: OwnedFd,
}

/// What files are called that are being written, those that prove by a lock that their session
/// lives, and those that say that it has lost a write.
const FRESH: &str = "new";
pub(super) const LOCK: &str = "lock";
pub(super) const LOST: &str = "lost";
/// The same, where somebody else was told that who settled there for himself.
pub(super) const HEARD: &str = "heard";
/// What was an entry, and was closed by somebody else than its session.
pub(super) const CLOSED: &str = "closed";

impl Fresh {
    /// What keeps others from removing it: as long as one has that.
    pub(super) fn lock(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same that may not be durable yet.
    fn written(path: &Path, text: &[u8]) -> io::Result<Fresh> {
        let fresh = Fresh::beside(path)?;
        let mut rest = text;
        while !rest.is_empty() {
            let n = rustix::io::write(&fresh.fd, rest)?;
            rest = &rest[n..];
        }
        Ok(fresh)
    }

    fn beside(path: &Path) -> io::Result<Fresh> {
        // One that is not locked yet may be removed for a dead writer's.
        for _ in 0..8 {
            let fresh = Fresh::unlocked(path.with_extension(format!("{}.{FRESH}", random_name())))?;
            // Where files cannot be locked, nobody removes them either.
            let _ = flock(&fresh.fd, FlockOperation::LockExclusive);
            if rustix::fs::fstat(&fresh.fd)?.st_nlink != 0 {
                return Ok(fresh);
            }
        }
        Err(rustix::io::Errno::AGAIN.into())
    }

    fn unlocked(path: PathBuf) -> io::Result<Fresh> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Fresh { path, fd })
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Is told what a sync of a file of a ledger was told, with the ledger's folder and the file:
/// whoever owes on its file system is told no more.
pub type OnLoss = fn(&io::Error, &Path, BorrowedFd<'_>);

/// How the files of a ledger are changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files {
    /// Called at once by the process that was told, before anything else is done.
    pub(super) on_loss: OnLoss,
}

impl Files {
    /// One that is written durably; its name is not yet.
    pub(super) fn fresh(&self, path: &Path, text: &[u8]) -> io::Result<Fresh> {
        let fresh = Fresh::written(path, text)?;
        self.sync(&fresh.fd, folder_of(path))?;
        Ok(fresh)
    }

    fn sync_dir(&self, dir: &Path, ledger: &Path) -> io::Result<()> {
        let fd = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.sync(&fd, ledger)
    }

    /// Makes a file of the ledger in this folder durable, or the folder above. Who owes there is
    /// told no more what that is told.
    fn sync(&self, file: &OwnedFd, ledger: &Path) -> io::Result<()> {
        marked(file.as_fd(), || {
            let synced = rustix::fs::fsync(file).map_err(io::Error::from);
            synced.inspect_err(|e| (self.on_loss)(e, ledger, file.as_fd()))
        })
    }

    /// Writes a new entry.
    ///
    /// # Errors
    /// Those of writing a file; `EEXIST` where another one has the name.
    pub(super) fn write_new(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        let fresh = self.fresh(path, entry.to_json().as_bytes())?;
        take_free_name(&fresh.path, path)?;
        self.make_durable(path, &fresh.fd)
    }

    /// Writes an entry in the place of an earlier one of the same session.
    ///
    /// # Errors
    /// Those of writing a file; `ENOENT` where there is none any more, `EEXIST` where another
    /// session's has the name by now.
    pub(super) fn write_again(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        let fresh = self.fresh(path, entry.to_json().as_bytes())?;
        match exchange(&fresh.path, path) {
            Ok(()) => {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                let was = text_of(&fresh.path).ok();
                let was = was.and_then(|text| Entry::of_file(&name, &text).ok());
                if was.is_some_and(|was| was.token != entry.token) {
                    exchange(&fresh.path, path)?;
                    return Err(Errno::EXIST.into());
                }
            }
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(&fresh.path, path)?,
            Err(e) => return Err(e.into()),
        }
        self.make_durable(path, &fresh.fd)
    }

    /// Notes beside the entry in `path` that a write was lost.
    ///
    /// # Errors
    /// Those of rename(2) and fsync(2).
    pub(super) fn note_loss(
        &self,
        fresh: &Fresh,
        path: &Path,
        token: &str,
        kind: &str,
    ) -> io::Result<()> {
        let lost = beside(path, token, kind).ok_or(Errno::INVAL)?;
        std::fs::rename(&fresh.path, lost)?;
        self.make_durable(path, &fresh.fd)
    }

    /// The same where nothing is prepared: it has its name also if it cannot be made durable, as
    /// those who live see it then.
    ///
    /// # Errors
    /// Those of writing a file.
    pub(super) fn note_at_once(
        &self,
        path: &Path,
        token: &str,
        kind: &str,
        text: &[u8],
    ) -> io::Result<()> {
        let fresh = Fresh::written(path, text)?;
        let synced = self.sync(&fresh.fd, folder_of(path));
        self.note_loss(&fresh, path, token, kind)?;
        synced
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// Those of unlink(2) and fsync(2); none where there is no such entry.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => self.sync_dir(folder_of(path), folder_of(path)),
        }
    }

    /// Gives an entry that is closed the name by which its session finds it.
    ///
    /// # Errors
    /// Those of rename(2) and fsync(2); none where there is no such entry.
    pub(super) fn put_aside(&self, path: &Path, closed: &Path) -> io::Result<()> {
        match std::fs::rename(path, closed) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => self.sync_dir(folder_of(path), folder_of(path)),
        }
    }

    /// Gives it the name of an entry again.
    ///
    /// # Errors
    /// Those of renameat2(2) and fsync(2); `EEXIST` where another one has the name.
    pub(super) fn take_back(&self, closed: &Path, path: &Path) -> io::Result<()> {
        if take_free_name(closed, path)? {
            let _ = std::fs::remove_file(closed);
        }
        self.sync_dir(folder_of(path), folder_of(path))
    }

    /// Makes the names beside an entry durable.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub(super) fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        self.sync_dir(folder_of(path), folder_of(path))
    }

    /// Makes the name of an entry durable, whose `file` is.
    fn make_durable(&self, path: &Path, file: &OwnedFd) -> io::Result<()> {
        let dir = folder_of(path);
        self.sync_dir(dir, dir)?;
        // The folder itself may be new.
        match dir
            .parent()
            .map_or(Ok(()), |above| self.sync_dir(above, dir))
        {
            // Where the folder above cannot be opened, its whole file system is made durable
            // instead.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => marked(file.as_fd(), || {
                let synced = rustix::fs::syncfs(file).map_err(io::Error::from);
                synced.inspect_err(|e| (self.on_loss)(e, dir, file.as_fd()))
            }),
            done => done,
        }
    }
}

/// What a file is for, beside the entries.
pub(super) enum Kind {
    /// It becomes an entry.
    Fresh,
    /// It proves that its session lives, or says what that has lost.
    Beside { id: String, token: String },
    /// It was an entry.
    Closed { id: String },
}

impl Kind {
    /// By a name that only ours have: `ID.RANDOM.new`, `ID.TOKEN.lock`, and the like.
    pub(super) fn of(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_str()?;
        let parts: Vec<&str> = name.split('.').collect();
        let [id, random, kind] = parts[..] else {
            return None;
        };
        match kind {
            _ if !is_name(id) || !is_random(random) => None,
            FRESH => Some(Kind::Fresh),
            CLOSED => Some(Kind::Closed { id: id.to_owned() }),
            LOCK | LOST | HEARD => Some(Kind::Beside {
                id: id.to_owned(),
                token: random.to_owned(),
            }),
            _ => None,
        }
    }
}

fn is_random(word: &str) -> bool {
    word.len() == 22 && word.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Gives two files each other's name.
fn exchange(one: &Path, other: &Path) -> rustix::io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// Gives a file a name that no file has (`EEXIST` where one does). Whether it keeps its own, too.
fn take_free_name(fresh: &Path, path: &Path) -> io::Result<bool> {
    match renameat_with(CWD, fresh, CWD, path, RenameFlags::NOREPLACE) {
        // A file system that cannot do that can link (NFS), which replaces nothing either.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(fresh, path).map(|()| true),
        done => Ok(done.map(|()| false)?),
    }
}

/// Whether what was the entry in `path`, which had this `token`, says of no lost write, nor does a
/// file beside it.
pub(super) fn says_no_error(closed: &Path, path: &Path, token: &str) -> bool {
    if closed.symlink_metadata().is_err() {
        return false;
    }
    let text = text_of(closed).ok();
    let entry = text.and_then(|text| Entry::from_json(&text).ok());
    !(entry.is_some_and(|entry| entry.error.is_some())
        || is_noted(path, token, LOST)
        || is_noted(path, token, HEARD))
}

/// Whether a file of this kind beside an entry notes something.
fn is_noted(path: &Path, token: &str, kind: &str) -> bool {
    matches!(noted(path, token, kind), Ok(Some(_)))
}

/// Whether what was an entry of session `id` is one of another boot, and no container's that names
/// its boots itself.
pub(super) fn is_of_another_boot(closed: &Path, id: &str) -> bool {
    let text = text_of(closed).unwrap_or_default();
    let is_cut = Entry::of_file(id, &text).is_ok_and(|entry| entry.is_cut(&dirs::boot_id()));
    let changed = closed.symlink_metadata().map(|m| m.ctime()).ok();
    is_cut
        && changed
            .zip(booted())
            .is_some_and(|(changed, booted)| changed < booted)
}

/// When this boot began, proc_stat(5).
fn booted() -> Option<i64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let mut lines = stat.lines();
    lines.find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}
