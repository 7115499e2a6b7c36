//! Threads of a process that have open files of their own (unshare(2), `CLONE_FILES`).

use crate::process::{is_ended, share_descriptors};
use std::io;

/// One thread of each table of descriptors that a process has; none of one that has ended.
///
/// # Errors
/// Those of reading its threads in /proc.
pub fn with_files(pid: u32) -> io::Result<Vec<u32>> {
    let mut known: Vec<u32> = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Some(task) = task?.file_name().to_str().and_then(|t| t.parse().ok()) else {
            continue;
        };
        // A leader that has ended has none.
        if !known.iter().any(|k| share_descriptors(*k, task)) && !is_ended(task) {
            known.push(task);
        }
    }
    Ok(known)
}
