//! A process that is about to be attached, or to be let go of.

use crate::reach::attach::target::{self, Refusal};
use crate::reach::attach::Work;
use std::time::{Duration, Instant};

/// How often a process that is busy is tried again, and how long to wait before.
pub(super) const TRIES: u32 = 50;
const BETWEEN_TRIES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// What to do about somebody who is busy.
pub(super) const LATER: &str = "try again in a moment";

/// A process, and which program of it.
pub(super) type Who = (u32, target::Incarnation);

pub(super) enum Doing {
    Attach,
    Detach,
}

/// A process that is about to be stopped.
pub(super) struct Task {
    pub who: Who,
    pub doing: Doing,
    /// How often it was busy.
    pub tries: u32,
    pub not_before: Instant,
    /// Why it was not possible the last time.
    pub last: Refusal,
    pub work: Option<Work>,
    /// The longest time that its process stood still, in any of the tries.
    pub pause: Duration,
}

impl Task {
    pub fn new(who: Who, doing: Doing) -> Task {
        Task {
            who,
            doing,
            tries: 0,
            not_before: Instant::now(),
            last: Refusal::new("", LATER),
            work: None,
            pause: Duration::ZERO,
        }
    }

    /// Whether its program may have begun when it was found: its libraries come within the second
    /// that so many tries take.
    pub fn is_new(&self) -> bool {
        self.tries < TRIES / 2
    }

    /// Has it tried once more, in a moment.
    pub fn again(&mut self, last: Refusal) {
        self.tries += 1;
        self.last = last;
        // A process that has just begun is ready within milliseconds.
        let [first, longest] = BETWEEN_TRIES;
        self.not_before = Instant::now() + longest.min(first * self.tries);
    }
}
