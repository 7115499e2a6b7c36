//! How far the looking for processes has come that are to be attached.

use super::task::Who;
use crate::reach::selector::ProcessSelector;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use synclater_sys::births::Births;

/// How far the looking has come.
pub struct Finding {
    /// Tells of processes that begin, where the kernel does.
    pub(super) births: Option<Births>,
    /// To be looked at.
    pub(super) left: BTreeSet<u32>,
    /// Not meant, and not named any more: too many are.
    pub(super) passed_over: BTreeSet<Who>,
    /// What the looks since the last sweep began have taken.
    pub(super) took: Duration,
    pub(super) next: Instant,
    pub(super) next_sweep: Instant,
}

impl Finding {
    /// From now on.
    #[must_use]
    pub fn new(whom: &ProcessSelector) -> Finding {
        let births = (!whom.is_closed()).then(|| Births::listen().ok());
        Finding {
            births: births.flatten(),
            left: BTreeSet::new(),
            passed_over: BTreeSet::new(),
            took: Duration::ZERO,
            next: Instant::now(),
            next_sweep: Instant::now(),
        }
    }

    /// When to look again although nothing happened.
    #[must_use]
    pub fn next(&self) -> Instant {
        if self.left.is_empty() {
            self.next_sweep
        } else {
            self.next
        }
    }

    /// Nothing more is to be looked at.
    pub fn stop(&mut self) {
        self.left.clear();
    }
}
