//! What threads and processes share: tables of descriptors (unshare(2), `CLONE_FILES`), memory.

use crate::job::Job;
use crate::process::is_ended;
use crate::wait;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

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

/// Whether two processes can be compared here: kcmp(2) may be missing, or forbidden.
#[must_use]
pub fn can_compare() -> bool {
    let us = std::process::id();
    share_memory(us, us)
}

/// Another process that has the memory of `pid`: by clone(2) with `CLONE_VM`, or vfork(2). All that
/// are in sight are asked, 2 µs each (Linux 6.18).
#[must_use]
pub fn who_shares_memory(pid: u32) -> Option<u32> {
    // A process that has ended has no memory; nor has the first thread of one that goes on.
    let ended = Job::start(|| 0).ok();
    let ended = ended.filter(|job| wait::any(&[(job.as_fd(), wait::For::Input)], LIMIT)[0]);
    let has_none = |other: u32| {
        ended
            .as_ref()
            .is_some_and(|job| share_memory(job.pid(), other))
    };
    let has_it = |other: &u32| {
        let shares = || share_memory(pid, *other);
        *other != pid && (shares() || (has_none(*other) && has_thread_with_memory_of(pid, *other)))
    };
    let found = crate::process::all().find(has_it);
    let _ = ended.map(|job| job.finished());
    found
}

/// How long it is waited for a process that has nothing to do.
const LIMIT: Duration = Duration::from_secs(1);

/// Whether a thread but the first one has the memory of `pid`.
fn has_thread_with_memory_of(pid: u32, other: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{other}/task"));
    { threads.into_iter().flatten().flatten() }
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .any(|tid| tid != other && share_memory(pid, tid))
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
