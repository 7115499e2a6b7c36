//! What a session has on disk: its folder under a name that nobody else has, the lock that tells
//! other commands that it lives, and the folder of the memory it shares with its victims.
//!
//! Promise: a folder is locked before it has a session's name, so that no command takes a young
//! session for a dead one. The folder is not removed at the end but kept for the next session (its
//! name is `.spare` then): on a disk mounted with `discard`, removing one waits for the disk.

use super::dirs;
use super::folder::{make_locked, random_name, remove_abandoned, take_lock};
use super::ledger::Ledger;
use super::shelf;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use synclater_sys::mount;
use synclater_text::message::Trouble;

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
    /// Where the lock file says whether there is an entry.
    mark_at: u64,
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
    match ledger {
        [] => Kept::Nowhere,
        ledger => Kept::In {
            ledger: OsStr::from_bytes(ledger).into(),
            token: lossy(token),
            folder: split_at_nul(rest).map(|(folder, _)| lossy(folder)),
        },
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
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

/// What a lock file says of an entry in the ledger.
const ENTRY: u8 = b'1';
const NO_ENTRY: u8 = b'0';

/// What a lock file says of an entry.
struct Mark {
    /// Where it does.
    at: u64,
    has_entry: bool,
    /// In which boot; empty where it was not told.
    boot: String,
}

/// What a lock file of this text says of an entry; `None` where it does not.
fn mark_in(text: &[u8]) -> Option<Mark> {
    let behind = text.iter().position(|b| *b == b'\n')? + 1;
    let (_, rest) = split_at_nul(&text[behind..])?;
    let (_, rest) = split_at_nul(rest)?;
    let (_, rest) = split_at_nul(rest)?;
    let (mark, boot) = split_at_nul(rest)?;
    let (boot, _) = split_at_nul(boot)?;
    let has_entry = match mark {
        [ENTRY] => true,
        [NO_ENTRY] => false,
        _ => return None,
    };
    Some(Mark {
        at: (text.len() - rest.len()) as u64,
        has_entry,
        boot: lossy(boot),
    })
}

/// Whether the session in `dir` has an entry in its ledger, as its lock file says; `None` where it
/// does not say it. Of another boot no entry is missed: a closed one may have left its mark, since
/// nobody waits for the disk there, and what was put off then nobody can settle.
#[must_use]
pub fn was_entered(dir: &Path) -> Option<bool> {
    let mark = mark_in(&said_by_lock(dir).ok()?)?;
    let now = dirs::boot_id();
    let is_of_another_boot = !mark.boot.is_empty() && !now.is_empty() && mark.boot != now;
    Some(mark.has_entry && !is_of_another_boot)
}

/// From now on the entry of the dead session in `dir` may be gone: somebody settles what it says,
/// and closes it.
///
/// # Errors
/// Those of writing its lock file.
pub fn is_being_closed(dir: &Path) -> io::Result<()> {
    let Some(mark) = mark_in(&said_by_lock(dir)?).filter(|mark| mark.has_entry) else {
        return Ok(());
    };
    let lock = File::options().write(true).open(dir.join("lock"))?;
    lock.write_all_at(&[NO_ENTRY], mark.at)
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
        // Locked before it has a name: another command would take an unlocked one for a dead
        // session's. One of an earlier session may lie in a lower layer of a container's overlay,
        // which lets no folder of that be renamed (EXDEV).
        let kept = spare(run).and_then(|spare| with_name(run, spare, ledger).ok());
        let named = kept.map_or_else(
            || make_locked(run, UNBORN).and_then(|fresh| with_name(run, fresh, ledger)),
            Ok,
        );
        let (id, dir, lock) = named.map_err(|e| cannot_make(run, &e))?;
        let lock = Arc::new(lock);
        shelf::REPORTS.forget(&id);
        let memory = format!("{id}.{}.{filters}", random_name());
        let made = Belongings::with_memory(id, &dir, run, &memory, lock, ledger);
        made.inspect_err(|_| {
            remove_folder(&dir);
        })
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
        let mut made = Belongings {
            id,
            token: random_name(),
            dir: dir.to_path_buf(),
            memory,
            lock,
            mark_at: 0,
        };
        // Before there is memory: what no lock file names nobody removes.
        made.tell(ledger)?;
        let created = DirBuilder::new().mode(dirs::mode()).create(&made.memory);
        created.map_err(|e| cannot_make(&made.memory, &e))?;
        Ok(made)
    }

    /// Has the lock file say where the memory and the ledger lie, and the token: a line, and what
    /// ends with NUL, as a path may hold anything else.
    fn tell(&mut self, ledger: Option<&Ledger>) -> Result<(), Trouble> {
        let mut text = Vec::new();
        let below = self.memory.strip_prefix(&self.dir);
        let memory = below.unwrap_or(&self.memory);
        text.extend_from_slice(memory.as_os_str().as_bytes());
        text.push(b'\n');
        text.extend(ledger.map_or(&[][..], |l| l.dir().as_os_str().as_bytes()));
        text.push(0);
        text.extend_from_slice(self.token.as_bytes());
        text.push(0);
        let folder = ledger.and_then(|l| folder_id(l.dir()));
        text.extend_from_slice(folder.unwrap_or_default().as_bytes());
        text.push(0);
        self.mark_at = text.len() as u64;
        text.extend_from_slice(&[NO_ENTRY, 0]);
        text.extend_from_slice(dirs::boot_id().as_bytes());
        text.push(0);
        // Never shortened: on a disk mounted with `discard` that waits for the disk.
        let written = self.lock.write_all_at(&text, 0);
        written.map_err(|e| cannot_make(&self.dir, &e))
    }

    /// The session's folder, for whoever settles in its place by its entry; `None` where its name
    /// is no text.
    #[must_use]
    pub fn folder(&self) -> Option<String> {
        let dir = std::path::absolute(&self.dir).ok()?;
        dir.into_os_string().into_string().ok()
    }

    /// Has the lock file say whether the session has an entry in its ledger. Where the page is
    /// lost, as with a container that was killed and started again, nothing else does.
    ///
    /// # Errors
    /// Those of writing it.
    pub fn say_entered(&self, has_entry: bool) -> io::Result<()> {
        let mark = if has_entry { ENTRY } else { NO_ENTRY };
        self.lock.write_all_at(&[mark], self.mark_at)
    }

    /// Gives them back: the session has no files any more. Where it has left processes behind their
    /// memory keeps the name of its folder, which nobody else may have then.
    pub fn give_back(&self, has_left_some: bool) {
        // The folder is nobody's now, and the next session's before that has written its own text.
        let _ = self.say_entered(false);
        let _ = std::fs::remove_dir_all(&self.memory);
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for file in files.filter(|f| f.file_name() != "lock") {
            let _ = std::fs::remove_file(file.path());
        }
        let spare = self.dir.with_file_name(SPARE);
        if has_left_some || std::fs::rename(&self.dir, spare).is_err() {
            remove_folder(&self.dir);
        }
    }
}

/// Also where there is no descriptor left to look for what is in it.
fn remove_folder(dir: &Path) {
    let _ = std::fs::remove_file(dir.join("lock"));
    if std::fs::remove_dir(dir).is_err() {
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// No session has these names: they are hidden.
const SPARE: &str = ".spare";
const UNBORN: &str = ".new-";

/// What rename(2) says of a folder where there is one that is not empty, or a file.
const TAKEN: [io::ErrorKind; 3] = [
    io::ErrorKind::AlreadyExists,
    io::ErrorKind::DirectoryNotEmpty,
    io::ErrorKind::NotADirectory,
];

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

/// Gives a folder the name of a session that no other one has, nor an entry of the `ledger`. Where
/// that fails the folder is removed.
fn with_name(
    run: &Path,
    (fresh, lock): (PathBuf, File),
    ledger: Option<&Ledger>,
) -> io::Result<(String, PathBuf, File)> {
    let mut failed = io::Error::other("every session name is taken");
    for id in ids().filter(|id| !is_taken(id, ledger)) {
        let dir = run.join(&id);
        if dir.exists() {
            continue;
        }
        match std::fs::rename(&fresh, &dir) {
            Ok(()) => return Ok((id, dir, lock)),
            // Somebody was faster: the folder is not empty.
            Err(e) if TAKEN.contains(&e.kind()) => {}
            Err(e) => {
                failed = e;
                break;
            }
        }
    }
    let _ = std::fs::remove_dir_all(fresh);
    Err(failed)
}

/// Whether an entry of the ledger has this name.
fn is_taken(id: &str, ledger: Option<&Ledger>) -> bool {
    ledger.is_some_and(|l| l.path(id).exists())
}

fn cannot_make(dir: &Path, e: &io::Error) -> Trouble {
    const ANOTHER: &str = "name another one in SYNCLATER_RUN_DIR";
    let (why, remedy) = match dirs::keeps_no_files(dir) {
        Some(why) => (why, ANOTHER.to_owned()),
        None => (
            e.to_string(),
            format!("make the folder writable, or {ANOTHER}"),
        ),
    };
    Trouble::new(
        format!("cannot make the session in {}", dir.display()),
        why,
        remedy,
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
    let (before, behind) = WORDS.split_at(std::process::id() as usize % WORDS.len());
    let words = behind.iter().chain(before);
    let each = words.clone().map(|word| (*word).to_owned());
    each.chain((2..1000).flat_map(move |n| words.clone().map(move |word| format!("{word}{n}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its entry was gone at the end, and nobody had said so.
    #[test]
    fn a_folder_that_is_given_back_has_no_entry() {
        let run = Path::new("/dev/shm").join(format!("belongings-{}", std::process::id()));
        DirBuilder::new().create(&run).expect("a run folder");
        let (dir, lock) = make_locked(&run, UNBORN).expect("a session's folder");
        let made = Belongings::with_memory("kelp".into(), &dir, &run, "m", Arc::new(lock), None);
        let made = made.expect("a session's belongings");
        let here = || was_entered(&dir);
        assert_eq!(here(), Some(false));
        made.say_entered(true).expect("the lock file is ours");
        assert_eq!(here(), Some(true));
        made.give_back(false);
        assert_eq!(was_entered(&run.join(SPARE)), Some(false));
        std::fs::remove_dir_all(&run).expect("the run folder");
    }
}
