//! Whether the session that wrote an entry of the ledger lives, in whatever run folder and
//! container.
//!
//! Promise: one that lives is never said to have ended: where neither its lock nor its number is in
//! sight, that is said.
//! Relies on flock(2), and on /proc for entries of a release that had no lock.

use super::alive::Found;
use super::dirs;
use super::ledger::Ledger;
use super::pids::Numbers;
use std::path::Path;
use synclater_policy::ledger::Entry;
use synclater_sys::{mount, process};

/// What is known of a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives.
    Lives,
    /// It has ended.
    Ended,
    /// It is, or was, in a pid namespace that is not in our sight.
    NotKnown,
}

/// Whether the session that wrote an entry was cut: of another boot, and dead. Containers may have
/// boot ids of their own.
#[must_use]
pub fn was_cut(entry: &Entry, ledger: &Ledger) -> bool {
    entry.is_cut(&dirs::boot_id()) && life_of(entry, ledger) != Life::Lives
}

/// Whether the session that wrote an entry lives, in whatever run folder and container.
#[must_use]
pub fn life_of(entry: &Entry, ledger: &Ledger) -> Life {
    match ledger.lock_beside(entry, false) {
        Found::Held => Life::Lives,
        Found::Free(_) => Life::Ended,
        Found::Another(_) | Found::Nothing => match life_by_number(entry) {
            // Numbers of another boot are in nobody's sight.
            Life::NotKnown if entry.is_cut(&dirs::boot_id()) => Life::Ended,
            life => life,
        },
        Found::NotTold => match life_by_number(entry) {
            Life::Lives => Life::Lives,
            _ if entry.is_cut(&dirs::boot_id()) => Life::Ended,
            _ => Life::NotKnown,
        },
    }
}

/// Whether the session that wrote an entry has ended, also where what it had begun to settle, or
/// another command, is still at that.
#[must_use]
pub fn has_ended(entry: &Entry, ledger: &Ledger) -> bool {
    match life_of(entry, ledger) {
        Life::Ended => true,
        Life::Lives => life_by_number(entry) == Life::Ended,
        Life::NotKnown => false,
    }
}

/// The same where nothing is locked, by the number of the supervisor and when it was started. A
/// number may be another's by now, and anybody can have its name: not its user.
pub(super) fn life_by_number(entry: &Entry) -> Life {
    let ours = mount::namespace_number(Path::new("/proc/self/ns/pid"));
    let theirs = entry.pid_ns.unwrap_or(ours);
    match Numbers::now().of(entry.pid, theirs) {
        Some(pid) => life_of_process(pid, entry),
        None if theirs == ours || mount::is_in_outermost_pid_namespace() => Life::Ended,
        None => Life::NotKnown,
    }
}

/// Whether process `pid` is the supervisor that wrote an entry. Seen from another user namespace
/// its user has another number, and from another time namespace it has begun at another time.
fn life_of_process(pid: u32, entry: &Entry) -> Life {
    match process::text(format!("/proc/{pid}/comm")) {
        _ if process::is_ended(pid) => return Life::Ended,
        Ok(name) if !name.starts_with("synclater") => return Life::Ended,
        Ok(_) => {}
        Err(_) => return Life::NotKnown,
    }
    let is_ours = process::effective_user_of(pid) == Some(process::effective_user());
    let started = entry.pid_started;
    let is_as_old = started.is_none() || started == process::began(pid);
    let theirs = pid.to_string();
    let numbers_are_ours =
        ["user", "time"].map(|kind| namespace("self", kind) == namespace(&theirs, kind));
    if is_as_old && is_ours {
        Life::Lives
    } else if numbers_are_ours == [true; 2] {
        Life::Ended
    } else {
        Life::NotKnown
    }
}

/// The number of a process's namespace of this kind.
fn namespace(process: &str, kind: &str) -> u64 {
    let link = format!("/proc/{process}/ns/{kind}");
    mount::namespace_number(Path::new(&link))
}
