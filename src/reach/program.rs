//! Which program a process executes, and whether it is still that one.

use synclater_sys::process;

/// What it executes; where that may not be told, the name that it bears.
#[must_use]
pub fn exe_of(pid: u32) -> String {
    if let Ok(link) = std::fs::read_link(format!("/proc/{pid}/exe")) {
        return without_mark(&link.to_string_lossy());
    }
    let name = process::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// A file's name, without what the kernel puts behind that of a deleted one.
#[must_use]
pub fn without_mark(name: &str) -> String {
    name.strip_suffix(" (deleted)").unwrap_or(name).to_owned()
}

/// One program in one process: when the process began, and where the program's code and its stack
/// do, as one number, which differs from one execution to the next: the stack's place is a random
/// one, the code's is that of the file where it is not position-independent.
pub type Incarnation = (u64, u64);

/// Which program a process executes at present; `None` where it is gone.
#[must_use]
pub fn incarnation(pid: u32) -> Option<Incarnation> {
    let stat = process::stat(&pid.to_string())?;
    let place = stat.code()?.wrapping_add(stat.stack()?);
    // The first thread may have ended before others.
    let lives = !stat.has_ended() || process::is_running(pid);
    lives.then_some((stat.started()?, place))
}

/// What a program's code begins at for those who may not know; its stack does at 0.
const HIDDEN: u64 = 1;

/// Whether a process still executes `program`. One that has begun to hide it (PR_SET_DUMPABLE)
/// does as long as it is our user's: whoever gains rights executes something else.
#[must_use]
pub fn executes(pid: u32, program: Incarnation) -> bool {
    let Some(now) = incarnation(pid) else {
        return false;
    };
    now == program || (may_be_same(now, program) && is_of_our_user(pid))
}

fn is_of_our_user(pid: u32) -> bool {
    process::effective_user_of(pid) == Some(process::effective_user())
}

/// Whether `now` is `program`, or hides what it is.
#[must_use]
pub fn may_be_same(now: Incarnation, program: Incarnation) -> bool {
    now == program || (now.0 == program.0 && now.1 == HIDDEN)
}

/// Whether a process has begun within the last second: it may still be looking for its libraries.
#[must_use]
pub fn is_young(pid: u32) -> bool {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let now: Option<f64> = uptime.split(' ').next().and_then(|s| s.parse().ok());
    // Ticks of a hundredth, whatever the kernel's own are (USER_HZ).
    let age = now
        .zip(incarnation(pid))
        .map(|(now, (began, _))| now - began as f64 / 100.0);
    age.is_some_and(|age| age < 1.0)
}
