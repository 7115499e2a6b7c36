//! The threads of a process, and whether they share their descriptors (unshare(2), `CLONE_FILES`).

use crate::process::is_ended;
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

/// The threads of a process that are in /proc, in no order; none where it is gone.
#[must_use]
pub fn of(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whether two threads have the same table of descriptors (kcmp(2)); false where nobody can tell.
#[must_use]
pub fn share_descriptors(a: u32, b: u32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    compare(a, b, KCMP_FILES).is_ok_and(|order| order == 0)
}

/// What kcmp(2) says of two threads; 0 where they have the same.
pub(crate) fn compare(a: u32, b: u32, what: libc::c_int) -> io::Result<i64> {
    // SAFETY: kcmp takes numbers here.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, what, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        order => Ok(order),
    }
}
