//! Tests that are not to run at the same moment.
//!
//! A disk below a file system in user space may lie on any disk of the machine: where one of those
//! refuses something meanwhile, a session on it is told that, in doubt. So who has the one kind of
//! disk waits for those who have the other, for a while: a test that has both goes on all the same.

use crate::wait::until;
use std::sync::Mutex;
use std::thread::{current, ThreadId};
use std::time::Duration;

/// A kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Served in user space.
    Served,
    /// One that refuses what it is asked.
    Refusing,
}

static HAVE: Mutex<Vec<(ThreadId, Kind)>> = Mutex::new(Vec::new());

/// As long as it lives nobody else begins with the other kind, but for who has waited long.
pub struct Apart(ThreadId, Kind);

impl Apart {
    /// Waits until no other test has the other kind.
    pub fn from_others(kind: Kind) -> Apart {
        const PATIENCE: Duration = Duration::from_secs(30);
        let me = current().id();
        let is_free = || {
            let mut have = HAVE.lock().expect("nobody panics with it");
            let is_in_the_way = |(who, its): &(ThreadId, Kind)| *who != me && *its != kind;
            let is_free = !have.iter().any(is_in_the_way);
            if is_free {
                have.push((me, kind));
            }
            is_free
        };
        if !until(PATIENCE, is_free) {
            HAVE.lock().expect("nobody panics with it").push((me, kind));
        }
        Apart(me, kind)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let mut have = HAVE.lock().expect("nobody panics with it");
        let at = have.iter().position(|one| *one == (self.0, self.1));
        at.map(|at| have.remove(at));
    }
}
