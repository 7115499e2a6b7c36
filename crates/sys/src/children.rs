//! Children of ours: how they change, and which there are.
//!
//! Promise: the end of a job is told to its [`job::Job`] alone.

use crate::job;

/// Makes orphans among our descendants our children, so that the session's processes can be told.
pub fn adopt_orphans() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// What waiting for a child told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited with this status.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// A signal stopped it.
    Stopped,
    /// It goes on.
    Continued,
}

/// The next change of state among our children, without waiting: of `first`, then of others. Not
/// of a job, whose end belongs to its [`job::Job`].
#[must_use]
pub fn next_change(first: u32) -> Option<(u32, Change)> {
    let jobs = job::children();
    let stands_or_goes_on = libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG;
    let how = libc::WEXITED | stands_or_goes_on;
    // A job may have the number of one that has ended.
    let first = Some(first).filter(|pid| *pid != 0 && !jobs.contains(pid));
    if let Some(change) = first.and_then(|pid| wait_info(libc::P_PID, pid, how)) {
        return Some(change);
    }
    loop {
        let (pid, change) = wait_info(libc::P_ALL, 0, how | libc::WNOWAIT)?;
        if !jobs.contains(&pid) {
            return wait_info(libc::P_PID, pid, how);
        }
        if matches!(change, Change::Exited(_) | Change::Signaled(_)) {
            // It hides what has changed in others as long as nobody asks how it ended.
            let mut others = children().into_iter().filter(|pid| !jobs.contains(pid));
            return others.find_map(|pid| wait_info(libc::P_PID, pid, how));
        }
        // Nobody wants to know, and it hides what has changed in others.
        wait_info(libc::P_PID, pid, stands_or_goes_on)?;
    }
}

fn wait_info(kind: libc::idtype_t, id: u32, how: i32) -> Option<(u32, Change)> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` has room for the answer.
    let r = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), how) };
    // SAFETY: zeroed is a valid siginfo_t, and waitid may have filled it in.
    let info = unsafe { info.assume_init() };
    // SAFETY: after waitid the fields of SIGCHLD are the ones in use; zeroed they read 0.
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    if r != 0 || pid == 0 {
        return None;
    }
    let change = match info.si_code {
        libc::CLD_EXITED => Change::Exited(status),
        libc::CLD_KILLED | libc::CLD_DUMPED => Change::Signaled(status),
        libc::CLD_CONTINUED => Change::Continued,
        _ => Change::Stopped,
    };
    Some((pid.unsigned_abs(), change))
}

/// Our children, zombies too, by number; as /proc says it.
#[must_use]
pub fn children() -> Vec<u32> {
    let mut all = Vec::new();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        let list = std::fs::read_to_string(task.path().join("children"));
        let list = list.unwrap_or_default();
        all.extend(
            list.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    all
}
