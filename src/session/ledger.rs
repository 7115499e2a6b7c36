//! The ledger on disk: written before any request is put off, closed after the last settle.
//!
//! One file a session, `ID.json`. Promise: when the job that writes it has ended with 0, the entry
//! and its name are durable (file and folder synced by system calls that no preload sees).
//! Writing and closing run in processes of their own: the disk may be slow, the heartbeat may not.
//! What is read is input: a folder that others may write is refused, and so is an entry that is not
//! named after its session. No path is made of what an entry says.
//!
//! Sessions of several run folders may share a ledger, and have one name. So an entry has its
//! session's token: a session never writes over an entry with another one, and never removes it.

use super::alive::{self, Proof};
use super::dirs;
use super::filing::{self, read, Files, Fresh, Kind, OnLoss, CLOSED, HEARD, LOCK, LOST};
use super::losses::errno_name;
use rustix::fs::{flock, Access, AtFlags, FlockOperation, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use synclater_account::run::SettleError;
use synclater_policy::ledger::Entry;
use synclater_sys::job::Job;
use synclater_text::message::Trouble;

/// The ledger of one user.
#[derive(Clone, Debug)]
pub struct Ledger {
    dir: PathBuf,
    files: Files,
}

/// An entry, and its file.
pub struct Filed {
    /// Its file.
    pub path: PathBuf,
    /// What it says.
    pub entry: Entry,
}

/// What cannot be read: an entry, or the whole ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The file, or the folder.
    pub path: PathBuf,
    /// Why.
    pub why: String,
    what: &'static str,
    cannot: &'static str,
    remedy: &'static str,
}

impl Unread {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &str {
        self.remedy
    }

    /// An entry.
    #[must_use]
    pub fn entry(path: &Path, why: impl ToString) -> Unread {
        Unread {
            path: path.into(),
            why: why.to_string(),
            what: "ledger entry",
            cannot: "be read",
            remedy: "the release of synclater that wrote it; or check what its command wrote, and \
                     remove that file, and the session's folder if it is there",
        }
    }

    /// The entry of a session that lives where we cannot ask it.
    #[must_use]
    pub fn living(path: &Path) -> Unread {
        Unread {
            path: path.into(),
            why: "its session lives, in another run folder or container, or somebody settles it"
                .into(),
            what: "ledger entry",
            cannot: "be settled from here",
            remedy: "`synclater settle` there, with its SYNCLATER_RUN_DIR",
        }
    }

    /// The entry of a session that may live where we cannot see it.
    #[must_use]
    pub fn elsewhere(path: &Path) -> Unread {
        Unread {
            path: path.into(),
            why: "it ran in another container (a namespace of its own), and may run there still"
                .into(),
            what: "ledger entry",
            cannot: "be judged from here",
            remedy:
                "`synclater settle` in that container or on its host; where it is over: check what \
                     its command wrote, then `synclater status --forget` and its name",
        }
    }

    /// An entry of which it cannot be told whether a power cut has come since.
    #[must_use]
    pub fn of_no_boot(path: &Path) -> Unread {
        let (why, remedy) = if dirs::boot_id().is_empty() {
            (
                format!("{} cannot be read: this may be another boot", dirs::BOOT_ID),
                "`synclater settle` where all of /proc is in sight (systemd: ProcSubset=all)",
            )
        } else {
            (
                "it does not say in which boot it was written".into(),
                "check what its command wrote, then `synclater status --forget` and its name",
            )
        };
        Unread {
            path: path.into(),
            why,
            what: "ledger entry",
            cannot: "be judged from here",
            remedy,
        }
    }

    /// The page of a dead session whose programs cannot be told that it is over.
    #[must_use]
    pub fn page(path: &Path, why: impl ToString) -> Unread {
        Unread {
            path: path.into(),
            why: why.to_string(),
            what: "page",
            cannot: "be written",
            remedy: "make that file writable, then `synclater settle`",
        }
    }

    /// The page of a dead session that has lost a write, where no entry can say so.
    #[must_use]
    pub fn lost(path: &Path, why: impl ToString) -> Unread {
        Unread {
            path: path.into(),
            why: why.to_string(),
            what: "page",
            cannot: "be noted in the ledger, and it says that a write was lost",
            remedy:
                "look at `dmesg`, and at what the command wrote; then remove the session's folder",
        }
    }

    /// An entry in which nothing can be noted.
    #[must_use]
    pub fn full(path: &Path, why: impl ToString) -> Unread {
        Unread {
            path: path.into(),
            why: why.to_string(),
            what: "ledger entry",
            cannot: "be settled: there is no room to note what a settle may tell",
            remedy: "room on that disk, then `synclater settle`",
        }
    }

    /// The lock file of a session, which says where its ledger is.
    #[must_use]
    pub fn lock(path: &Path, why: impl ToString) -> Unread {
        Unread {
            path: path.into(),
            why: why.to_string(),
            what: "lock file, which names its ledger,",
            cannot: "be read",
            remedy: "make it readable, then `synclater settle`",
        }
    }

    /// A ledger.
    #[must_use]
    pub fn ledger(dir: &Path, why: impl ToString) -> Unread {
        Unread {
            path: dir.into(),
            why: why.to_string(),
            what: "ledger",
            cannot: "be read",
            remedy: "put that folder right; or check what the command wrote, and remove the \
                     session's folder",
        }
    }

    /// As a message about what belongs to no session in sight.
    #[must_use]
    pub fn trouble(&self) -> Trouble {
        let (what, path) = (self.what, self.path.display());
        Trouble::new(
            format!("{what} {path} cannot {}", self.cannot),
            self.why.clone(),
            self.remedy,
            "nothing of it was settled; it stays as it is",
        )
    }

    /// As a message about what session `id` owed, whose folder is `dir`.
    #[must_use]
    pub fn trouble_of(&self, id: &str, dir: &Path) -> Trouble {
        let (what, path) = (self.what, self.path.display());
        Trouble::new(
            format!(
                "session {id} ended, and its {what} {path} cannot {}",
                self.cannot
            ),
            self.why.clone(),
            self.remedy,
            format!(
                "nothing of it was settled; its entry and its folder {} stay",
                dir.display()
            ),
        )
    }
}

/// No ledger can be found or made.
#[must_use]
pub fn nowhere() -> Trouble {
    Trouble::new(
        "there is no folder for the ledger",
        "HOME and XDG_STATE_HOME name no folder",
        "name one in SYNCLATER_STATE_DIR",
        "nothing was changed",
    )
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(EIO)
}

impl Ledger {
    fn in_folder(dir: PathBuf, on_loss: OnLoss) -> Ledger {
        let files = Files { on_loss };
        Ledger { dir, files }
    }

    /// Opens the ledger, making its folder.
    ///
    /// # Errors
    /// Why there is none, as a message for the user.
    pub fn open(on_loss: OnLoss) -> Result<Ledger, Trouble> {
        let Some(dir) = dirs::state_dir() else {
            return Err(nowhere());
        };
        if dirs::boot_id().is_empty() {
            return Err(Trouble::new(
                "the ledger cannot say in which boot it is written",
                format!("{} cannot be read", dirs::BOOT_ID),
                "mount all of /proc, not processes alone (systemd: ProcSubset=all)",
                "nothing was changed",
            ));
        }
        dirs::make(&dir, "the ledger", "SYNCLATER_STATE_DIR")?;
        let (may, flags) = (Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        rustix::fs::accessat(rustix::fs::CWD, &dir, may, flags).map_err(|e| {
            Trouble::new(
                format!("cannot write the ledger in {}", dir.display()),
                e.to_string(),
                "make it writable, or name another folder in SYNCLATER_STATE_DIR",
                "nothing was changed",
            )
        })?;
        Ok(Ledger::in_folder(dir, on_loss))
    }

    /// The ledger for reading and closing; there may be none.
    ///
    /// # Errors
    /// Why it cannot be trusted, as a message for the user.
    pub fn existing(on_loss: OnLoss) -> Result<Option<Ledger>, Trouble> {
        let Some(dir) = dirs::state_dir() else {
            return Ok(None);
        };
        Ledger::at(&dir, on_loss).map_err(|why| {
            Trouble::new(
                format!("cannot use {} as the ledger", dir.display()),
                why,
                "look at who has put what there: a ledger has to be a folder of yours that nobody \
                 else may write; SYNCLATER_STATE_DIR names another one",
                "none of its entries was believed, settled or removed",
            )
        })
    }

    /// The ledger in `dir`, if there is such a folder.
    ///
    /// # Errors
    /// Why it cannot be trusted, or looked at.
    pub fn at(dir: &Path, on_loss: OnLoss) -> Result<Option<Ledger>, String> {
        let seen = match dir.symlink_metadata() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            seen => seen.map_err(|e| e.to_string())?,
        };
        match dirs::distrust(&seen) {
            Some(why) => Err(why),
            None if !seen.is_dir() => Err("it is no folder".into()),
            None => Ok(Some(Ledger::in_folder(dir.into(), on_loss))),
        }
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the entry of session `id` lies.
    #[must_use]
    pub fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Starts writing `entry` durably, over an earlier one of the same session only: the job ends
    /// with `EEXIST` where another session's has the name. With the first comes the `proof` that
    /// the session lives.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn write(&self, entry: &Entry, proof: &mut Proof) -> io::Result<Job> {
        let (ledger, entry) = (self.clone(), entry.clone());
        let wanted_at: Vec<_> = proof.wanted_at().into_iter().collect();
        Job::start(move || {
            let wanted_at = synclater_sys::job::keep_only(&wanted_at);
            ledger.remove_abandoned();
            let done = ledger.write_here(&entry, wanted_at.first());
            done.map_or_else(|e| errno(&e), |()| 0)
        })
    }

    fn write_here(&self, entry: &Entry, wanted_at: Option<&OwnedFd>) -> io::Result<()> {
        if let (Some(lock), Some(wanted_at)) = (self.lock_of(entry), wanted_at) {
            alive::prove(&lock, wanted_at.as_fd())?;
        }
        let path = self.path(&entry.id);
        // One that cannot be read is another's, too.
        match read(&path) {
            Ok(there) if there.token == entry.token => self.files.write_again(&path, entry),
            _ => self.files.write_new(&path, entry),
        }
    }

    /// The entry that the session `id` with this `token` has written, if there is one.
    ///
    /// # Errors
    /// Why what has its name cannot be read.
    pub fn own_entry(&self, id: &str, token: &str) -> Result<Option<Filed>, Unread> {
        let there = self.entry(id)?;
        Ok(there.filter(|f| f.entry.token.as_deref() == Some(token)))
    }

    /// Closes an entry in this process, durably.
    ///
    /// # Errors
    /// Those of unlink(2) and fsync(2).
    pub fn close_here(&self, filed: &Filed) -> io::Result<()> {
        self.files.remove(&filed.path)?;
        self.remove_beside(filed);
        Ok(())
    }

    /// The same, so that its session finds that it was closed.
    ///
    /// # Errors
    /// Those of rename(2) and fsync(2).
    pub fn close_and_say_so(&self, filed: &Filed) -> io::Result<()> {
        let (entry, path) = (&filed.entry, &filed.path);
        let token = entry.token.as_deref();
        let closed = token.and_then(|t| filing::beside(path, t, CLOSED));
        match closed {
            Some(closed) => self.files.put_aside(path, &closed)?,
            None => self.files.remove(path)?,
        }
        // Whoever closes it knows what is said of a lost write, which stays where that was said.
        match &entry.token {
            Some(token) if entry.error.is_some() => self.remove_lock(&entry.id, token),
            _ => self.remove_beside(filed),
        }
        Ok(())
    }

    /// Whether the entry that the session `id` with this `token` had was closed by somebody else.
    #[must_use]
    pub fn was_closed(&self, id: &str, token: &str) -> bool {
        let closed = filing::beside(&self.path(id), token, CLOSED);
        closed.is_some_and(|path| path.symlink_metadata().is_ok())
    }

    /// The same by who did not know of a lost write: it is said neither in it nor beside it.
    #[must_use]
    pub fn was_closed_untold(&self, id: &str, token: &str) -> bool {
        let closed = filing::beside(&self.path(id), token, CLOSED);
        closed.is_some_and(|closed| filing::says_no_error(&closed, &self.path(id), token))
    }

    /// Has an entry that somebody else has closed under its name again.
    ///
    /// # Errors
    /// Those of renameat2(2) and fsync(2); `EEXIST` where another one has the name.
    pub fn reopen(&self, id: &str, token: &str) -> io::Result<()> {
        let path = self.path(id);
        match filing::beside(&path, token, CLOSED) {
            Some(closed) => self.files.take_back(&closed, &path),
            None => Ok(()),
        }
    }

    /// Nobody will ask that any more.
    pub fn forget_closed(&self, id: &str, token: &str) {
        let path = self.path(id);
        // Without it they may tell of an entry that is open.
        if matches!(remove_kind(&path, token, CLOSED), Some(Ok(()))) {
            let _ = [LOST, HEARD].map(|kind| remove_kind(&path, token, kind));
        }
    }

    fn remove_beside(&self, filed: &Filed) {
        let entry = &filed.entry;
        let token = entry.token.as_deref().unwrap_or_default();
        self.remove_lock(&entry.id, token);
        for kind in [LOST, HEARD] {
            let _ = remove_kind(&filed.path, token, kind);
        }
    }

    /// Removes the lock of a session that has no entry any more, or never had one. One that cannot
    /// be removed goes with the next that is written.
    pub fn remove_lock(&self, id: &str, token: &str) {
        let _ = self.lock_at(id, token).map(std::fs::remove_file);
    }

    /// What the lock says of the session that wrote an entry; it is taken where nobody has it, and
    /// for oneself by whoever settles in its place.
    #[must_use]
    pub fn lock_beside(&self, entry: &Entry, for_oneself: bool) -> alive::Found {
        let path = self.lock_of(entry);
        path.map_or(alive::Found::Nothing, |p| alive::take(&p, for_oneself))
    }

    /// Where the lock of the session that wrote an entry lies.
    fn lock_of(&self, entry: &Entry) -> Option<PathBuf> {
        self.lock_at(&entry.id, entry.token.as_deref()?)
    }

    fn lock_at(&self, id: &str, token: &str) -> Option<PathBuf> {
        filing::beside(&self.path(id), token, LOCK)
    }

    /// Removes what writers have left that were killed, and what belongs to no entry any more.
    fn remove_abandoned(&self) {
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for path in files.map(|e| e.path()) {
            let Some(kind) = Kind::of(&path) else {
                continue;
            };
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else {
                continue;
            };
            let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_free && !self.may_be_needed(&path, &kind) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Whether a file that nobody has locked tells of an entry that its session is dead.
    fn may_be_needed(&self, path: &Path, kind: &Kind) -> bool {
        match kind {
            Kind::Fresh => false,
            Kind::Closed { id } => !filing::is_of_another_boot(path, id),
            Kind::Beside { id, token } => match self.entry(id) {
                Ok(Some(there)) if there.entry.token.as_ref() == Some(token) => true,
                Ok(_) => self.was_closed(id, token),
                Err(_) => true,
            },
        }
    }

    /// Notes durably in the entry in the file `path` that a write was lost: the kernel tells of it
    /// once, so whoever settles in its place cannot see that any more.
    ///
    /// # Errors
    /// Those of writing a file; `ENOENT` where there is no such entry.
    pub fn note_error(&self, path: &Path, errno: i32) -> io::Result<()> {
        self.note_in(path, errno, LOST)
    }

    /// The same of what somebody was told who settled for himself.
    ///
    /// # Errors
    /// As [`Ledger::note_error`].
    pub fn note_heard(&self, path: &Path, errno: i32) -> io::Result<()> {
        self.note_in(path, errno, HEARD)
    }

    /// What the session `id` with this `token` has been told by others: the name of an error.
    ///
    /// # Errors
    /// Those of reading a file; `ENOENT` where its entry is not there.
    pub fn heard(&self, id: &str, token: &str) -> io::Result<Option<String>> {
        // What is not in sight says nothing of what is.
        match self.own_entry(id, token) {
            Ok(Some(_)) => filing::noted(&self.path(id), token, HEARD),
            Ok(None) => Err(io::ErrorKind::NotFound.into()),
            Err(unread) => Err(io::Error::other(unread.why)),
        }
    }

    fn note_in(&self, path: &Path, errno: i32, kind: &str) -> io::Result<()> {
        let mut entry = read(path)?;
        let token = entry.token.as_deref();
        let there = token.map(|token| filing::noted(path, token, kind));
        if there.transpose()?.flatten().is_some() {
            // Whoever noted that may have been killed before its name was durable.
            return self.files.sync_folder_of(path);
        }
        let name = errno_name(errno);
        let Some(token) = entry.token.clone() else {
            entry.error = Some(name);
            return self.files.write_again(path, &entry);
        };
        self.files.note_at_once(path, &token, kind, name.as_bytes())
    }

    /// Notes that in the entry that the session `id` with this `token` has written, as well as can
    /// be.
    pub fn note_own(&self, id: &str, token: &str, errno: i32) {
        if let Ok(Some(own)) = self.own_entry(id, token) {
            let _ = self.note_error(&own.path, errno);
        }
    }

    /// Makes room for that note before it is known whether it will be needed: a full disk has none
    /// at the moment that it is.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn prepare_note(&self, filed: &Filed) -> io::Result<Note> {
        Ok(Note {
            ledger: self.clone(),
            path: filed.path.clone(),
            token: filed.entry.token.clone(),
            fresh: self.files.fresh(&filed.path, errno_name(EIO).as_bytes())?,
        })
    }

    /// The entry of session `id`, if it has one.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn entry(&self, id: &str) -> Result<Option<Filed>, Unread> {
        let path = self.path(id);
        match read(&path) {
            Ok(entry) => Ok(Some(Filed { path, entry })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Unread::entry(&path, e)),
        }
    }

    /// All entries that can be read, and the files that cannot; the folder is among these where it
    /// cannot be listed.
    #[must_use]
    pub fn entries(&self) -> (Vec<Filed>, Vec<Unread>) {
        let mut files = match paths_in(&self.dir) {
            Ok(files) => files,
            Err(e) => return (Vec::new(), vec![Unread::ledger(&self.dir, e)]),
        };
        files.retain(|p| p.extension().is_some_and(|x| x == "json"));
        files.sort();
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for path in files {
            match read(&path) {
                Ok(entry) => good.push(Filed { path, entry }),
                // It was closed meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => bad.push(Unread::entry(&path, e)),
            }
        }
        (good, bad)
    }
}

/// Removes the file of this kind beside an entry, where there can be one.
fn remove_kind(path: &Path, token: &str, kind: &str) -> Option<io::Result<()>> {
    filing::beside(path, token, kind).map(std::fs::remove_file)
}

fn paths_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(dir)?;
    files.map(|e| Ok(e?.path())).collect()
}

/// Room for the note that a write was lost, in an entry.
pub struct Note {
    ledger: Ledger,
    path: PathBuf,
    token: Option<String>,
    fresh: Fresh,
}

impl Note {
    /// What keeps others from removing it: as long as one has that.
    #[must_use]
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.fresh.lock()
    }

    /// Notes it, with the name of EIO where there is no room for another, if none is noted yet but
    /// that it may be so.
    ///
    /// # Errors
    /// Those of rename(2) and fsync(2).
    pub fn write(&self, errno: i32) -> io::Result<()> {
        let there = read(&self.path).ok().and_then(|there| there.error);
        if there.is_some_and(|e| e != SettleError::KILLED) {
            return Ok(());
        }
        let noted = self.ledger.note_error(&self.path, errno);
        match &self.token {
            Some(token) => noted.or_else(|_| {
                self.ledger
                    .files
                    .note_loss(&self.fresh, &self.path, token, LOST)
            }),
            None => noted,
        }
    }
}

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();
