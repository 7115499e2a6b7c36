//! What threads and processes share: tables of descriptors (unshare(2), `CLONE_FILES`), memory.

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

/// Whether two threads have the same table of descriptors (kcmp(2)); false where nobody can tell.
#[must_use]
pub fn share_descriptors(a: u32, b: u32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    share(a, b, KCMP_FILES)
}

/// Whether two processes have the same memory, as a child of vfork(2) has that of its parent until
/// it executes something; false where nobody can tell.
#[must_use]
pub fn share_memory(a: u32, b: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    share(a, b, KCMP_VM)
}

/// Another process that has the memory of `pid`: by clone(2) with `CLONE_VM`, or vfork(2). All that
/// are in sight are asked, 1 µs each (Linux 6.18).
#[must_use]
pub fn who_shares_memory(pid: u32) -> Option<u32> {
    crate::process::all().find(|other| *other != pid && share_memory(pid, *other))
}

/// The same of what the threads of a process have started themselves.
#[must_use]
pub fn child_that_shares_memory(pid: u32, threads: &[u32]) -> Option<u32> {
    let children = |tid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
        let all = text.unwrap_or_default();
        let all: Vec<u32> = all.split(' ').filter_map(|c| c.parse().ok()).collect();
        all.into_iter()
    };
    { threads.iter() }
        .flat_map(children)
        .find(|child| share_memory(pid, *child))
}

fn share(a: u32, b: u32, what: libc::c_int) -> bool {
    // SAFETY: kcmp takes numbers here.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, what, 0, 0) == 0 }
}
