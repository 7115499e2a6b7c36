//! Small files that commands leave each other in the state folder: the youngest of a kind.
//!
//! Promise: nobody else could write what is read, and only whoever keeps it may read it. Not
//! promised: that it survives a power cut, or that many are kept.

use super::dirs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// So many are kept, the youngest.
const MOST: usize = 64;

/// Reports of sessions that ended while nobody asked for them. One of an earlier session goes when
/// another one takes its name.
pub const REPORTS: Shelf = Shelf("reports");

/// One kind of file: the name of its folder below the state folder.
#[derive(Clone, Copy, Debug)]
pub struct Shelf(pub &'static str);

impl Shelf {
    fn folder(self) -> Option<PathBuf> {
        dirs::state_dir().map(|dir| dir.join(self.0))
    }

    fn trusted(self) -> Option<PathBuf> {
        let dir = self.folder()?;
        let seen = dir.symlink_metadata().ok()?;
        dirs::distrust(&seen).is_none().then_some(dir)
    }

    /// Keeps `content` as `name`, instead of what has that name.
    ///
    /// # Errors
    /// Those of the folder's files; there may be no such folder.
    pub fn keep(self, name: &str, content: &[u8]) -> io::Result<()> {
        let dir = self.folder().ok_or(io::ErrorKind::NotFound)?;
        let made = dirs::make(&dir, "a folder of the state", "SYNCLATER_STATE_DIR");
        made.map_err(io::Error::other)?;
        forget_the_oldest(&dir);
        let path = dir.join(format!("{name}.json"));
        let fresh = path.with_extension("new");
        // What it names is nobody else's business.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(content)?;
        std::fs::rename(fresh, path)
    }

    /// Forgets what is kept as `name`.
    pub fn forget(self, name: &str) {
        if let Some(dir) = self.folder() {
            // Mostly there is none.
            let _ = std::fs::remove_file(dir.join(format!("{name}.json")));
        }
    }

    /// What is kept as `name`, which is forgotten then.
    #[must_use]
    pub fn take(self, name: &str) -> Option<Vec<u8>> {
        let dir = self.trusted().filter(|_| !name.contains('/'))?;
        let path = dir.join(format!("{name}.json"));
        let content = std::fs::read(&path).ok()?;
        std::fs::remove_file(path).ok()?;
        Some(content)
    }

    /// All that are kept.
    pub fn all(self) -> impl Iterator<Item = Vec<u8>> {
        let dir = self.trusted().and_then(|dir| std::fs::read_dir(dir).ok());
        let files = dir.into_iter().flatten().flatten().map(|e| e.path());
        files
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .filter_map(|path| std::fs::read(path).ok())
    }
}

/// Makes room for one more.
fn forget_the_oldest(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let all = entries.filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())));
    let mut all: Vec<(SystemTime, PathBuf)> = all.collect();
    all.sort_unstable();
    let more = (all.len() + 1).saturating_sub(MOST);
    for (_, path) in all.drain(..more) {
        let _ = std::fs::remove_file(path);
    }
}
