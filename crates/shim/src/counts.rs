//! The counters of the slots, read as hostile input: sums saturate, nothing is an index.

use crate::page::{Slot, KEPT_MAX, KEPT_WORDS};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

/// The counters of one process, or of several added up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Covered requests.
    pub requests: u64,
    /// Made for real.
    pub real: u64,
    /// Answered with an error.
    pub failed: u64,
    /// `sync_file_range` calls.
    pub hints: u64,
    /// Lease clock ticks spent in real requests.
    pub ticks: u64,
    /// Those of `real` whose time is in `ticks`.
    pub timed: u64,
    /// Those of `real` that another process made: the net's.
    pub elsewhere: u64,
    /// Requests kept real, by reason.
    pub kept: [u64; KEPT_MAX],
    /// `SLOT_*` flags seen.
    pub flags: u32,
}

impl Counts {
    /// What stands in a slot. Victims write it: any value is possible in any field.
    #[must_use]
    pub fn read(slot: &Slot) -> Counts {
        let mut c = Counts {
            flags: slot.flags.load(SeqCst),
            ..Counts::default()
        };
        for s in &slot.shard {
            let one = Counts {
                requests: s.requests.load(SeqCst),
                real: s.real.load(SeqCst),
                failed: s.failed.load(SeqCst),
                hints: s.hints.load(SeqCst),
                ticks: s.ticks.load(SeqCst),
                timed: s.timed.load(SeqCst),
                elsewhere: s.elsewhere.load(SeqCst),
                ..Counts::default()
            };
            c.add(&one);
        }
        c.kept = std::array::from_fn(|k| slot.kept[k].load(SeqCst).into());
        c
    }

    /// Requests that were answered at once.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.requests
            .saturating_sub(self.real)
            .saturating_sub(self.failed)
    }

    /// Adds what another one counted; sums saturate.
    pub fn add(&mut self, other: &Counts) {
        plus(&mut self.requests, other.requests);
        plus(&mut self.real, other.real);
        plus(&mut self.failed, other.failed);
        plus(&mut self.hints, other.hints);
        plus(&mut self.ticks, other.ticks);
        plus(&mut self.timed, other.timed);
        plus(&mut self.elsewhere, other.elsewhere);
        self.kept
            .iter_mut()
            .zip(other.kept)
            .for_each(|(a, b)| plus(a, b));
        self.flags |= other.flags;
    }

    /// Reasons for which requests were kept real, in words, with their number.
    #[must_use]
    pub fn kept_words(&self) -> BTreeMap<String, u64> {
        let words = KEPT_WORDS.iter().zip(self.kept).filter(|(_, n)| *n > 0);
        words.map(|(w, n)| ((*w).to_owned(), n)).collect()
    }
}

fn plus(a: &mut u64, b: u64) {
    *a = a.saturating_add(b);
}
