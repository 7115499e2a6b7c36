//! What a session has on disk: its folder under a name that nobody else has, the lock that tells
//! other commands that it lives, and the folder of the memory it shares with its victims.
//!
//! Promise: a folder is locked before it has a session's name, so that no command takes a young
//! session for a dead one. The folder is not removed at the end but kept for the next session (its
//! name is `.spare` then): on a disk mounted with `discard`, removing one waits for the disk.

use super::dirs;
use super::last_report::LastReport;
use super::ledger::Ledger;
use crate::folder::{make_locked, random_name, remove_abandoned, take_lock};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use synclater_model::report::message::Trouble;
use synclater_sys::mount;

/// How things stand after a failure.
pub const NOT_STARTED: &str = "the command was not started; nothing was changed";

/// The folders and the lock of one session.
#[derive(Clone, Debug)]
pub struct Belongings {
    /// Session id.
    pub id: String,
    /// What tells it from sessions of the same name, which other run folders may have.
    pub token: String,
    /// The session's folder.
    pub dir: PathBuf,
    /// Where page, slots and the control socket lie: a folder in memory. No other session has ever
    /// had it: what outlives this one goes on naming it, and may not join the next of its id.
    pub memory: PathBuf,
    /// Locked as long as the file is open, here or in the keeper.
    pub lock: Arc<File>,
}

/// Where the session in `dir` has its memory, as its lock file says.
#[must_use]
pub fn memory_of(dir: &Path) -> PathBuf {
    let text = said_by_lock(dir).unwrap_or_default();
    match text.split(|b| *b == b'\n').next() {
        Some(memory) => dir.join(OsStr::from_bytes(memory)),
        None => dir.to_path_buf(),
    }
}

/// What a session's lock file says of its ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its entry, if it has one, is in a folder.
    In {
        /// The folder.
        ledger: PathBuf,
        /// What the entry says too, if it is this session's.
        token: String,
        /// Its [`folder_id`], if it was told.
        folder: Option<String>,
    },
    /// It has no ledger, so it has nothing to settle.
    Nowhere,
    /// Nothing: it was killed before, or is one of a release that did not say it.
    NotTold,
    /// Its lock file cannot be read, and why.
    NotRead(String),
}

/// Where the session in `dir` has its ledger, as its lock file says.
#[must_use]
pub fn ledger_of(dir: &Path) -> Kept {
    let text = match said_by_lock(dir) {
        Ok(text) => text,
        Err(e) => return Kept::NotRead(e.to_string()),
    };
    let behind = text.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
    // What has no end was not written, or is what is left of a longer text of before.
    let ends = split_at_nul(&text[behind..]);
    let Some((ledger, (token, rest))) = ends.and_then(|(l, rest)| Some((l, split_at_nul(rest)?)))
    else {
        return Kept::NotTold;
    };
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match ledger {
        [] => Kept::Nowhere,
        ledger => Kept::In {
            ledger: OsStr::from_bytes(ledger).into(),
            token: text(token),
            folder: split_at_nul(rest).map(|(folder, _)| text(folder)),
        },
    }
}

impl Kept {
    /// What tells the session from others of its name.
    #[must_use]
    pub fn token(&self) -> Option<&String> {
        match self {
            Kept::In { token, .. } => Some(token),
            Kept::Nowhere | Kept::NotTold | Kept::NotRead(_) => None,
        }
    }

    /// The [`folder_id`] that was told of the ledger.
    #[must_use]
    pub fn folder(&self) -> Option<&String> {
        match self {
            Kept::In { folder, .. } => folder.as_ref().filter(|told| !told.is_empty()),
            Kept::Nowhere | Kept::NotTold | Kept::NotRead(_) => None,
        }
    }
}

/// What tells a folder from another one that its path may lead to later: its device, its inode, and
/// its mount by a number that is never given again (0 before Linux 6.8): a device's is.
#[must_use]
pub fn folder_id(dir: &Path) -> Option<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::open(dir, flags, Mode::empty()).ok()?);
    let seen = folder.metadata().ok()?;
    let mount = mount::unique_id_of_fd(&folder).unwrap_or(0);
    Some(format!("{}:{}:{mount}", seen.dev(), seen.ino()))
}

/// The same without the mount, which has another number in each mount namespace.
#[must_use]
pub fn without_mount(folder_id: &str) -> &str {
    folder_id
        .rsplit_once(':')
        .map_or(folder_id, |(file, _)| file)
}

/// The text of a lock file; none where there is no such file.
fn said_by_lock(dir: &Path) -> io::Result<Vec<u8>> {
    match std::fs::read(dir.join("lock")) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

fn split_at_nul(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| *b == 0)?;
    Some((&text[..at], &text[at + 1..]))
}

impl Belongings {
    /// Makes them in the folder `run` under an id that no entry of the `ledger` has, for a command
    /// that begins with so many seccomp `filters`.
    ///
    /// # Errors
    /// What failed, as a message for the user; nothing is left behind.
    pub fn make(run: &Path, ledger: Option<&Ledger>, filters: u32) -> Result<Belongings, Trouble> {
        let taken = |id: &str| ledger.is_some_and(|l| l.path(id).exists());
        // Locked before it has a name: another command would take an unlocked one for a dead
        // session's.
        let (fresh, lock) = spare(run)
            .map_or_else(|| make_locked(run, UNBORN), Ok)
            .map_err(|e| cannot_make(run, &e))?;
        for id in ids().filter(|id| !taken(id)) {
            let dir = run.join(&id);
            // Where somebody was faster the folder is not empty, and the next name is tried.
            if !dir.exists() && std::fs::rename(&fresh, &dir).is_ok() {
                let lock = Arc::new(lock);
                LastReport::forget(&id);
                let memory = format!("{id}.{}.{filters}", random_name());
                let made = Belongings::with_memory(id, &dir, run, &memory, lock, ledger);
                return made.inspect_err(|_| {
                    let _ = std::fs::remove_dir_all(dir);
                });
            }
        }
        let all = io::Error::other("every session name is taken");
        Err(cannot_make(run, &all))
    }

    fn with_memory(
        id: String,
        dir: &Path,
        run: &Path,
        name: &str,
        lock: Arc<File>,
        ledger: Option<&Ledger>,
    ) -> Result<Belongings, Trouble> {
        let base = dirs::memory_dir(run);
        if base != run {
            let instead = "SYNCLATER_RUN_DIR, which lies in memory (tmpfs) as well";
            dirs::make(&base, "the folder of shared memory", instead)?;
        }
        let above = if base == run { dir } else { &base };
        let memory = above.join(name);
        let made = Belongings {
            id,
            token: random_name(),
            dir: dir.to_path_buf(),
            memory,
            lock,
        };
        // Before there is memory: what no lock file names nobody removes.
        made.tell(ledger)?;
        let created = DirBuilder::new().mode(dirs::mode()).create(&made.memory);
        created.map_err(|e| cannot_make(&made.memory, &e))?;
        Ok(made)
    }

    /// Has the lock file say where the memory and the ledger lie, and the token: a line, and what
    /// ends with NUL, as a path may hold anything else.
    fn tell(&self, ledger: Option<&Ledger>) -> Result<(), Trouble> {
        let mut text = Vec::new();
        let memory = { self.memory.strip_prefix(&self.dir) }.unwrap_or(&self.memory);
        text.extend_from_slice(memory.as_os_str().as_bytes());
        text.push(b'\n');
        text.extend(ledger.map_or(&[][..], |l| l.dir().as_os_str().as_bytes()));
        text.push(0);
        text.extend_from_slice(self.token.as_bytes());
        text.push(0);
        let folder = ledger.and_then(|l| folder_id(l.dir()));
        text.extend_from_slice(folder.unwrap_or_default().as_bytes());
        text.push(0);
        // Never shortened: on a disk mounted with `discard` that waits for the disk.
        { self.lock.write_all_at(&text, 0) }.map_err(|e| cannot_make(&self.dir, &e))
    }

    /// Gives them back: the session has no files any more. Where it has left processes behind their
    /// memory keeps the name of its folder, which nobody else may have then.
    pub fn give_back(&self, has_left_some: bool) {
        let _ = std::fs::remove_dir_all(&self.memory);
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for file in files.filter(|f| f.file_name() != "lock") {
            let _ = std::fs::remove_file(file.path());
        }
        let spare = self.dir.with_file_name(SPARE);
        if has_left_some || std::fs::rename(&self.dir, spare).is_err() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// No session has these names: they are hidden.
const SPARE: &str = ".spare";
const UNBORN: &str = ".new-";

/// Removes folders of sessions that were killed before they had a name.
pub fn forget_unborn() {
    remove_abandoned(&dirs::run_dir(), UNBORN);
}

/// The folder that an earlier session left, if it is ours to take.
fn spare(run: &Path) -> Option<(PathBuf, File)> {
    let dir = run.join(SPARE);
    let lock = take_lock(&dir)?;
    // Somebody else may have one of an earlier release open.
    let is_private = lock.metadata().is_ok_and(|m| m.mode() & 0o077 == 0);
    if !is_private {
        let _ = std::fs::remove_dir_all(&dir);
    }
    is_private.then_some((dir, lock))
}

fn cannot_make(dir: &Path, e: &io::Error) -> Trouble {
    Trouble::new(
        format!("cannot make the session in {}", dir.display()),
        e.to_string(),
        "make the folder writable, or name another one in SYNCLATER_RUN_DIR",
        NOT_STARTED,
    )
}

/// Short words, in an order that differs from run to run; then numbered ones.
fn ids() -> impl Iterator<Item = String> {
    const WORDS: [&str; 64] = [
        "alder", "amber", "anchor", "apple", "aspen", "basil", "birch", "bluff", "brook", "cedar",
        "clover", "coral", "cove", "crane", "delta", "dune", "ember", "fern", "finch", "fjord",
        "flint", "forest", "gale", "garnet", "glade", "grove", "harbor", "hazel", "heron", "inlet",
        "iris", "ivy", "jade", "juniper", "kelp", "lagoon", "larch", "lark", "lily", "linden",
        "maple", "marsh", "meadow", "moss", "oak", "opal", "orchid", "otter", "pearl", "pine",
        "plum", "quartz", "reef", "ridge", "river", "robin", "sage", "shore", "spruce", "stone",
        "thorn", "tulip", "willow", "wren",
    ];
    let start = std::process::id() as usize;
    let word = move |k: usize| WORDS[(start + k) % WORDS.len()];
    let numbered =
        (2..1000).flat_map(move |n| (0..WORDS.len()).map(move |k| format!("{}{n}", word(k))));
    (0..WORDS.len())
        .map(move |k| word(k).to_owned())
        .chain(numbered)
}
