//! Numbers of processes of other pid namespaces, as ours.

use std::collections::HashMap;
use std::path::Path;
use synclater_proc::status::Status;
use synclater_sys::{mount, process};

/// Our numbers for processes, as of one moment: /proc is gone through at most once.
#[derive(Debug)]
pub struct Numbers {
    own_ns: Option<u64>,
    elsewhere: Option<HashMap<(u64, u32), u32>>,
}

impl Numbers {
    /// As of now.
    #[must_use]
    pub fn now() -> Numbers {
        Numbers {
            own_ns: None,
            elsewhere: None,
        }
    }

    /// As of now, where our pid namespace is known.
    #[must_use]
    pub fn in_namespace(own_ns: u64) -> Numbers {
        Numbers {
            own_ns: Some(own_ns),
            elsewhere: None,
        }
    }

    /// Whether /proc has been gone through: to ask again costs nothing.
    #[must_use]
    pub fn have_looked(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Our pid namespace, looked for once; 0 where /proc does not tell.
    fn own_ns(&mut self) -> u64 {
        *self
            .own_ns
            .get_or_insert_with(|| mount::namespace_number(Path::new("/proc/self/ns/pid")))
    }

    /// Whether /proc tells who is who.
    pub fn are_known(&mut self) -> bool {
        self.own_ns() != 0
    }

    /// Our number for the process that calls itself `pid` in the pid namespace `ns` (0 or 1: not
    /// known).
    pub fn of(&mut self, pid: u32, ns: u64) -> Option<u32> {
        if pid == 0 || pid > i32::MAX as u32 {
            return None;
        }
        if ns <= 1 || ns == self.own_ns() {
            return Some(pid);
        }
        let elsewhere = self.elsewhere.get_or_insert_with(|| nested().collect());
        elsewhere.get(&(ns, pid)).copied()
    }
}

/// Processes of pid namespaces inside ours: namespace, the number there, and ours.
fn nested() -> impl Iterator<Item = ((u64, u32), u32)> {
    process::all().filter_map(|p| {
        let status = process::status(p).ok().filter(Status::is_nested)?;
        let pid = status.own_pid()?;
        let ns = mount::namespace_number(Path::new(&format!("/proc/{p}/ns/pid")));
        Some(((ns, pid), p))
    })
}
