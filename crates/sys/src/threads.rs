//! What threads and processes share: tables of descriptors (unshare(2), `CLONE_FILES`), memory.

use crate::process::{effective_user_of, is_ended};
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

/// Whether two processes can be compared here: kcmp(2) may be missing, or forbidden.
#[must_use]
pub fn can_compare() -> bool {
    let us = std::process::id();
    share_memory(us, us)
}

/// Another process of its user that has the memory of `pid`: by clone(2) with `CLONE_VM`, or
/// vfork(2). None of others is compared, nor one that has code of another size: kcmp(2), as
/// /proc/PID/stat, waits for one that is just executing something (exec_update_lock, Linux 6.18),
/// and that may wait for whom it likes.
#[must_use]
pub fn who_shares_memory(pid: u32) -> Option<u32> {
    let ours = code_pages(&pid.to_string()).filter(|pages| *pages != 0)?;
    let user = effective_user_of(pid)?;
    let shares = |other: u32, thread: u32| {
        effective_user_of(other) == Some(user) && share_memory(pid, thread)
    };
    let has_it = |other: &u32| match code_pages(&other.to_string()) {
        // One whose first thread has ended has none by its own number; the kernel's have none.
        Some(0) => with_number(&format!("/proc/{other}/task"))
            .into_iter()
            .any(|tid| {
                tid != *other
                    && code_pages(&format!("{other}/task/{tid}")) == Some(ours)
                    && shares(*other, tid)
            }),
        pages => pages == Some(ours) && shares(*other, *other),
    };
    crate::process::all().find(|other| *other != pid && has_it(other))
}

/// Whether a process is not just executing something: then whoever asks for its `stat` or `exe`
/// waits, on Linux 6.18, for as long as that takes. It has no code yet, as the kernel's have.
#[must_use]
pub fn has_code(pid: u32) -> bool {
    code_pages(&pid.to_string()).is_some_and(|pages| pages != 0)
}

/// How many pages of code a process or thread has (`text` of statm, proc(5)); nobody waits for it.
fn code_pages(name: &str) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{name}/statm")).ok()?;
    statm.split(' ').nth(3)?.parse().ok()
}

fn with_number(folder: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

fn share(a: u32, b: u32, what: libc::c_int) -> bool {
    // SAFETY: kcmp takes numbers here.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, what, 0, 0) == 0 }
}
