//! How the threads of a process are, and who traces them.

use super::{Class, NAP};
use std::io;
use std::thread::sleep;
use synclater_sys::ptrace::Thread;
use synclater_sys::{process, threads};

/// The threads of a process, in their order.
pub fn threads_of(pid: u32) -> Vec<u32> {
    let mut all = threads::of(pid);
    all.sort_unstable();
    all
}

/// The state of a thread, as one letter (proc(5)); `?` where it is gone.
pub(super) fn state(pid: u32, tid: u32) -> char {
    let stat = process::stat(&format!("{pid}/task/{tid}"));
    stat.map_or('?', |stat| stat.state())
}

/// Where a thread is that cannot be stopped now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deep {
    /// It is about to make a thread that may run in the same memory, or waits for its child of
    /// vfork(2), which does.
    Clone,
    /// In another call.
    Other,
}

/// Where a thread is that was asked to stop and is in state D; `None` where it is not, or runs
/// again. System calls: vfork, clone, clone3.
pub(super) fn deep(pid: u32, tid: u32, class: Class) -> Option<Deep> {
    // In this order: behind its call it would have stopped. Read the other way round the call may
    // be the one of a thread that stands still by now.
    let text = process::text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    if state(pid, tid) != 'D' {
        return None;
    }
    let (vfork, clone) = match class {
        Class::Long => ("58", "56"),
        Class::Small => ("190", "120"),
    };
    match text.split_whitespace().next()? {
        "running" => None,
        call if call == "435" || call == vfork || call == clone => Some(Deep::Clone),
        _ => Some(Deep::Other),
    }
}

/// Begins to trace a thread, also where somebody else does so for a moment (`waits`).
pub(super) fn seize(tid: u32) -> io::Result<Thread> {
    const TRIES: u32 = 10;
    for _ in 1..TRIES {
        match Thread::seize(tid) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => sleep(NAP * 25),
            seized => return seized,
        }
    }
    Thread::seize(tid)
}
