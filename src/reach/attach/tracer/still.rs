//! How long a process stands still for a tracer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The longest time that all threads of a process were kept from running at once, for somebody who
/// looks when their tracer is gone.
#[derive(Clone, Debug, Default)]
pub struct Still {
    since: Rc<Cell<Option<Instant>>>,
    longest: Rc<Cell<Duration>>,
}

impl Still {
    /// Notes that its threads are asked to stop, unless they were before.
    pub(super) fn begins(&self) {
        let now = Instant::now();
        self.since.set(self.since.get().or(Some(now)));
    }

    /// Notes that they run on.
    pub(super) fn ends(&self) {
        if let Some(since) = self.since.take() {
            self.longest.set(self.longest.get().max(since.elapsed()));
        }
    }

    /// The longest time that is over.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest.get()
    }
}
