//! What a session has on disk: its folder under a name that nobody else has, the lock that tells
//! other commands that it lives, and the folder of the memory it shares with its victims.
//!
//! Promise: a folder is locked before it has a session's name, so that no command takes a young
//! session for a dead one. The folder is not removed at the end but kept for the next session (its
//! name is `.spare` then): on a disk mounted with `discard`, removing one waits for the disk.

use super::dirs;
use super::last_report::LastReport;
use crate::folder::{make_locked, random_name, remove_abandoned, take_lock};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use synclater_model::report::message::Trouble;

/// How things stand after a failure.
pub const NOT_STARTED: &str = "the command was not started; nothing was changed";

/// The folders and the lock of one session.
#[derive(Clone, Debug)]
pub struct Belongings {
    /// Session id.
    pub id: String,
    /// The session's folder.
    pub dir: PathBuf,
    /// Where page, slots and the control socket lie: `dir`, or a folder in memory.
    pub memory: PathBuf,
    /// Locked as long as the file is open, here or in the keeper.
    pub lock: Arc<File>,
}

/// Where the session in `dir` has its memory, as its lock file says.
#[must_use]
pub fn memory_of(dir: &Path) -> PathBuf {
    let text = std::fs::read_to_string(dir.join("lock")).unwrap_or_default();
    match text.lines().next() {
        Some(memory) if !memory.is_empty() => memory.into(),
        _ => dir.to_path_buf(),
    }
}

impl Belongings {
    /// Makes them in the folder `run` under an id that is not `taken` elsewhere.
    ///
    /// # Errors
    /// What failed, as a message for the user; nothing is left behind.
    pub fn make(run: &Path, taken: impl Fn(&str) -> bool) -> Result<Belongings, Trouble> {
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
                return Belongings::with_memory(id, &dir, run, lock).inspect_err(|_| {
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
        lock: Arc<File>,
    ) -> Result<Belongings, Trouble> {
        let base = dirs::memory_dir(run);
        let mut memory = dir.to_path_buf();
        let mut line = String::from("\n");
        if base != run {
            dirs::make(&base, "the folder of shared memory")?;
            // Sessions of another run folder may have the same id.
            memory = base.join(format!("{id}.{}", random_name()));
            line = format!("{}\n", memory.display());
        }
        // Never shortened: on a disk mounted with `discard` that waits for the disk.
        lock.write_all_at(line.as_bytes(), 0)
            .map_err(|e| cannot_make(dir, &e))?;
        if base != run {
            let made = DirBuilder::new().mode(dirs::mode()).create(&memory);
            made.map_err(|e| cannot_make(&memory, &e))?;
        }
        Ok(Belongings {
            id,
            dir: dir.to_path_buf(),
            memory,
            lock,
        })
    }

    /// Gives them back: the session has no files any more. Where it has left processes behind their
    /// memory keeps the name of its folder, which nobody else may have then.
    pub fn give_back(&self, has_left_some: bool) {
        if self.memory != self.dir {
            let _ = std::fs::remove_dir_all(&self.memory);
        }
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
    take_lock(&dir).map(|lock| (dir, lock))
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
