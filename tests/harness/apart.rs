//! Tests that are not to run at the same moment.
//!
//! A disk below a file system in user space may lie on any disk of the machine: where one of those
//! refuses something meanwhile, a session on it is told that, in doubt. So who has the one kind of
//! disk waits for those who have another, for a while: a test that has both goes on all the same.

use crate::wait::until;
use std::sync::{Mutex, MutexGuard};
use std::thread::{current, ThreadId};
use std::time::Duration;

/// A kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Served in user space.
    Served,
    /// One that refuses what it is asked.
    Refusing,
    /// Any, in sight of a session that is told whatever one of them refuses.
    Each,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim(ThreadId, Kind);

impl Claim {
    fn is_in_the_way_of(self, other: Claim) -> bool {
        self.0 != other.0 && (self.1 != other.1 || self.1 == Kind::Each)
    }
}

/// Who has one, and who waits for one, in the order in which they came.
struct Claims {
    have: Vec<Claim>,
    wait: Vec<Claim>,
}

static CLAIMS: Mutex<Claims> = Mutex::new(Claims {
    have: Vec::new(),
    wait: Vec::new(),
});

fn claims() -> MutexGuard<'static, Claims> {
    CLAIMS.lock().expect("nobody panics with it")
}

impl Claims {
    /// Whether nobody is in the way who has one or, of one who has none yet, waits for longer.
    fn is_free_for(&self, claim: Claim) -> bool {
        let has_one = self.have.iter().any(|other| other.0 == claim.0);
        let before = self.wait.iter().take_while(|other| **other != claim);
        let in_front = before.filter(|_| !has_one);
        let mut others = self.have.iter().chain(in_front);
        !others.any(|other| other.is_in_the_way_of(claim))
    }

    fn is_taken_by(&mut self, claim: Claim) -> bool {
        let is_free = self.is_free_for(claim);
        if is_free {
            self.take(claim);
        }
        is_free
    }

    fn take(&mut self, claim: Claim) {
        self.wait.retain(|other| *other != claim);
        self.have.push(claim);
    }
}

/// As long as it lives nobody else begins with another kind, but for who has waited long.
pub struct Apart(Claim);

impl Apart {
    /// Waits until no other test has another kind.
    pub fn from_others(kind: Kind) -> Apart {
        const PATIENCE: Duration = Duration::from_secs(30);
        let claim = Claim(current().id(), kind);
        claims().wait.push(claim);
        if !until(PATIENCE, || claims().is_taken_by(claim)) {
            claims().take(claim);
        }
        Apart(claim)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let mut claims = claims();
        let at = claims.have.iter().position(|one| *one == self.0);
        at.map(|at| claims.have.remove(at));
    }
}
