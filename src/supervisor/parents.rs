//! Who descends from whom, by what /proc shows.

use std::time::Duration;
use synclater_sys::process::parent_of;

/// How much time of a processor it may take to look for the parents of one process: some hundred.
const PARENTS_FOR: Duration = Duration::from_millis(10);

/// The time that this thread has had on a processor so far.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

/// Whether `pid` descends from us. Orphans among our descendants are our children (subreaper).
pub(super) fn is_descendant(pid: u32) -> bool {
    let me = std::process::id();
    has_ancestor(pid, |at| at == me)
}

/// Whether `pid` is one of these, or one of its ancestors is.
pub(super) fn has_ancestor(pid: u32, is_it: impl Fn(u32) -> bool) -> bool {
    let mut at = pid;
    let begun = processor_time();
    for _ in 0..1000 {
        if processor_time().saturating_sub(begun) > PARENTS_FOR {
            return false;
        }
        if is_it(at) {
            return true;
        }
        match parent_of(at) {
            Some(parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}
