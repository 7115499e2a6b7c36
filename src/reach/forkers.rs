//! Whoever may have forked what is found once a session lets go of its processes.
//!
//! What was forked by a process that was attached has its code, and leads through the gate; where
//! its memory cannot be looked at, nothing but what it is called, or executes, says that it may be.

use super::program::exe_of;
use std::collections::BTreeSet;
use synclater_sys::{process, sharing};

/// Processes that are, or were, attached.
#[derive(Clone, Debug, Default)]
pub struct Forkers {
    names: BTreeSet<String>,
    exes: BTreeSet<String>,
}

impl Forkers {
    /// Adds one that executes `exe`, and was called `name` at some time.
    pub fn add(&mut self, exe: &str, name: &str) {
        self.exes.insert(exe.to_owned());
        self.names.insert(name.to_owned());
    }

    /// Whether a process executes what one of these does.
    #[must_use]
    pub fn execute_the_same(&self, pid: u32) -> bool {
        // One that is just executing something is no fork of anybody, and keeps us waiting.
        sharing::has_code(pid) && self.exes.contains(&exe_of(pid))
    }

    /// Whether a process is called as one of these is, or was. It keeps nobody waiting.
    #[must_use]
    pub fn are_called_like(&self, pid: u32) -> bool {
        self.names.contains(&name_of(pid))
    }

    /// Whether a process that may not be looked at may have been forked by one of these since
    /// `began`, in ticks: it is our user's, and called like one of them.
    #[must_use]
    pub fn may_have_hidden(&self, pid: u32, began: Option<u64>) -> bool {
        // Its parent says nothing: whoever has forked it may have ended, or execute something else.
        self.are_called_like(pid)
            && process::effective_user_of(pid) == Some(process::effective_user())
            && process::began(pid).is_some_and(|its| Some(its) >= began)
    }
}

/// What a process is called, which whoever hides its memory tells all the same; what it forks is
/// called so, too.
#[must_use]
pub fn name_of(pid: u32) -> String {
    process::text(format!("/proc/{pid}/comm")).unwrap_or_default()
}
