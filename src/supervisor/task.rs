//! A process that is about to be attached, or to be let go of.

use crate::reach::attach::refusal::Refusal;
use crate::reach::attach::Work;
use crate::reach::program;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often a process that is busy is tried again, and how long to wait before.
pub(super) const TRIES: u32 = 50;
const BETWEEN_TRIES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// What to do about somebody who is busy.
pub(super) const LATER: &str = "try again in a moment";

/// A process, and which program of it.
pub(super) type Who = (u32, program::Incarnation);

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
    /// How often each reason was met.
    met: BTreeMap<String, u32>,
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
            met: BTreeMap::new(),
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
        *self.met.entry(last.why.clone()).or_default() += 1;
        self.last = last;
        // A process that has just begun is ready within milliseconds.
        let [first, longest] = BETWEEN_TRIES;
        self.not_before = Instant::now() + longest.min(first * self.tries);
    }

    /// Why it is not possible: what was met most often. The last time may have met another thing,
    /// of the try before it, say.
    pub fn why(&self) -> &str {
        let most = self.met.iter().max_by_key(|(_, times)| **times);
        most.map_or(&self.last.why, |(why, _)| why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_met_most_often_is_the_reason() {
        let mut task = Task::new((0, (0, 0)), Doing::Attach);
        assert_eq!(task.why(), "");
        for why in ["no thread", "no memory", "no memory", "no thread stops"] {
            task.again(Refusal::new(why, LATER));
        }
        assert_eq!(task.why(), "no memory");
    }
}
