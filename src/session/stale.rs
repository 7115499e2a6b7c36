//! What dead sessions left: found by the next command, settled, cleared away.
//!
//! A session's folder has a `lock` file that the supervisor and its keeper hold locked as long as
//! either lives; in it stands where the session's memory lies, if that is elsewhere. A folder whose
//! lock can be taken is stale. Its debt (the ledger entry of this
//! boot) is settled first; the entry is closed only when that succeeded.

use super::belongings::{forget_unborn, memory_of};
use super::control::{self, Living};
use super::ledger::Ledger;
use super::{dirs, filesystems};
use crate::folder::take_lock;
use std::path::Path;
use synclater_model::ledger::Entry;
use synclater_sys::{job, mount};

/// What was cleared away, for one line to the user each.
#[derive(Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Session id.
    pub id: String,
    /// File systems that were settled in its place.
    pub settled: Vec<String>,
    /// What could not be settled: the ledger entry stays open.
    pub failed: Vec<String>,
}

/// Clears away what dead sessions left; sessions that live are not touched.
pub fn clear() -> Vec<Cleared> {
    let ledger = Ledger::existing();
    let entries = ledger.as_ref().map(|l| l.entries().0).unwrap_or_default();
    let mut cleared = Vec::new();
    forget_unborn();
    for session in control::sessions() {
        let Some(_lock) = take_lock(&session.dir) else {
            continue;
        };
        let entry = entries
            .iter()
            .find(|e| e.id == session.id && !e.is_cut(&dirs::boot_id()));
        cleared.push(clear_one(&session, entry, ledger.as_ref()));
    }
    cleared
}

fn clear_one(session: &Living, entry: Option<&Entry>, ledger: Option<&Ledger>) -> Cleared {
    let mut out = Cleared {
        id: session.id.clone(),
        settled: Vec::new(),
        failed: Vec::new(),
    };
    if let Some(entry) = entry.filter(|e| e.until != "never") {
        for fs in &entry.filesystems {
            let done = settle_again(&fs.mount, &fs.source);
            (if done {
                &mut out.settled
            } else {
                &mut out.failed
            })
            .push(fs.mount.clone());
        }
    }
    if let (Some(_), Some(ledger), true) = (entry, ledger, out.failed.is_empty()) {
        let _ = ledger.close_here(&session.id);
    }
    let memory = memory_of(&session.dir);
    let ours = memory
        .symlink_metadata()
        .is_ok_and(|m| dirs::distrust(&m).is_none());
    let name = memory.file_name().unwrap_or_default().to_string_lossy();
    if ours && name.starts_with(&session.id) {
        let _ = std::fs::remove_dir_all(&memory);
    }
    let _ = std::fs::remove_dir_all(&session.dir);
    out
}

/// Settles the file system that is mounted at `point`; one that is not mounted any more was synced
/// by its unmount.
fn settle_again(point: &str, source: &str) -> bool {
    if !filesystems::is_mounted(point, source) {
        return true;
    }
    use std::os::fd::AsFd;
    mount::open_point(Path::new(point)).is_ok_and(|fd| job::syncfs(fd.as_fd()) == 0)
}
