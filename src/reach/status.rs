//! What /proc says of a process that may be reached: whose it is, who traces it, its filters.

use synclater_proc::status::Status;
use synclater_sys::process;

/// Whose a process is among the members of a session of `own`: the session's own user's where it
/// can become that one again by itself, otherwise its effective user's. `None` where it is gone.
#[must_use]
pub fn user_of(pid: u32, own: u32) -> Option<u32> {
    // The fourth is for files.
    match process::users_of(pid)[..] {
        [real, effective, saved, _] if ![real, saved].contains(&own) => Some(effective),
        [_, _, _, _] => Some(own),
        _ => None,
    }
}

/// Whether a thread's process has a handler for a signal; where that cannot be told, it may.
#[must_use]
pub fn handles(tid: u32, signal: u32) -> bool {
    let caught = process::status(tid)
        .ok()
        .and_then(|status| status.set("SigCgt"));
    caught.is_none_or(|signals| signals >> (signal - 1) & 1 == 1)
}

/// The number of a process for itself; `None` where it is gone.
#[must_use]
pub fn own_number_of(pid: u32) -> Option<u32> {
    process::status(pid).ok()?.own_pid()
}

/// What `/proc` says of a thread of a process; `None` where it is gone.
#[must_use]
pub fn of_thread(pid: u32, tid: u32) -> Option<Status> {
    let text = process::text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    Some(Status::parse(text))
}

/// How many seccomp filters a thread of a process has; `None` where it is gone.
#[must_use]
pub fn filters_of(pid: u32, tid: u32) -> Option<u64> {
    of_thread(pid, tid)?.number("Seccomp_filters")
}

/// Who traces a process; 0: nobody.
#[must_use]
pub fn tracer_of(pid: u32) -> u32 {
    let status = process::status(pid).unwrap_or_default();
    let tracer = status.number("TracerPid").and_then(|n| n.try_into().ok());
    tracer.unwrap_or(0)
}
