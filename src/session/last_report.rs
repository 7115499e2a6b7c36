//! The report of a session that ended while nobody asked for it: kept for whoever names it next.
//!
//! Promise: told once. Not promised: that it survives a power cut, or that many are kept; the
//! ledger is another thing, and is closed by then.

use super::dirs;
use crate::reach::attach::target::Incarnation;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use synclater_model::report::number::counted;
use synclater_model::report::run::{summary, RunReport};

/// So many are kept, the youngest.
const MOST: usize = 64;

/// What is told at the end of a session that was attached.
#[derive(Debug, Serialize, Deserialize)]
pub struct LastReport {
    /// Processes that were let go of.
    pub let_go: u64,
    /// Whether nothing but that was wrong, if anything: all is settled, and recorded.
    pub is_whole: bool,
    /// Processes that could not be let go of, and which program each executed then.
    pub stuck: Vec<(u32, Incarnation)>,
    /// The report.
    pub report: RunReport,
}

impl LastReport {
    /// As text, or as JSON.
    #[must_use]
    pub fn said(&self, json: bool) -> String {
        if json {
            return self.report.to_json();
        }
        let (id, n) = (&self.report.id, counted(self.let_go, "process"));
        format!("synclater: {id}: {n} let go of\n{}", summary(&self.report))
    }

    /// The status that it ends with where every process has been let go of since.
    #[must_use]
    pub fn status_but_for_stuck(&self) -> i32 {
        if self.is_whole {
            0
        } else {
            self.report.exit_status
        }
    }

    /// Keeps it.
    ///
    /// # Errors
    /// Those of the folder's files; there may be no such folder.
    pub fn keep(&self) -> io::Result<()> {
        let dir = folder().ok_or(io::ErrorKind::NotFound)?;
        let made = dirs::make(&dir, "the folder of last reports", "SYNCLATER_STATE_DIR");
        made.map_err(io::Error::other)?;
        forget_the_oldest(&dir);
        let path = dir.join(format!("{}.json", self.report.id));
        let fresh = path.with_extension("new");
        // What it names is nobody else's business.
        let mut file = { std::fs::OpenOptions::new() }
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(fresh, path)
    }

    /// Forgets that of an earlier session `id`: another one takes the name.
    pub fn forget(id: &str) {
        if let Some(dir) = folder() {
            // Mostly there is none.
            let _ = std::fs::remove_file(dir.join(format!("{id}.json")));
        }
    }

    /// That of session `id`, which is forgotten then.
    #[must_use]
    pub fn take(id: &str) -> Option<LastReport> {
        let dir = folder()?;
        let seen = dir.symlink_metadata().ok()?;
        let is_name = !id.contains('/') && dirs::distrust(&seen).is_none();
        let path = is_name.then(|| dir.join(format!("{id}.json")))?;
        let text = std::fs::read(&path).ok()?;
        std::fs::remove_file(path).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

fn folder() -> Option<PathBuf> {
    dirs::state_dir().map(|dir| dir.join("reports"))
}

/// Makes room for one more.
fn forget_the_oldest(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let age = |e: &std::fs::DirEntry| e.metadata().and_then(|m| m.modified());
    let mut all: Vec<(SystemTime, PathBuf)> = { entries }
        .filter_map(|e| Some((age(&e).ok()?, e.path())))
        .collect();
    all.sort_unstable();
    let more = (all.len() + 1).saturating_sub(MOST);
    for (_, path) in all.drain(..more) {
        let _ = std::fs::remove_file(path);
    }
}
