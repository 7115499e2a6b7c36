//! Which file system is settled when: again where it is asked for while it is being settled, and
//! all that is held in front of a sync(2).
//!
//! Promise: whoever asks for a row has it settled by a settle that begins after he asked, in
//! whatever order rows are asked for and end: no debt is dropped. A disk reports a refused flush
//! once, and sync(2), which returns no error, would lose that report. So sync(2) begins only once
//! each row that was being settled when it was asked for has ended, and is not to be settled again.
//!
//! What it does not do: it begins nothing and waits for nothing. Its owner does, and says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use synclater_shim::page::ALL_FS;

/// How long the settle of a request of this `age` may wait that is to be kept `within` a time: so
/// that one that takes a quarter longer than the longest so far `took` has ended by then. Half of
/// the time is waited at least: what takes longer is late whenever it begins.
pub(super) fn time_left(within: Duration, took: Duration, age: Duration) -> Duration {
    let early = (took + took / 4).min(within / 2);
    (within - early).saturating_sub(age)
}

/// What its owner is to do about a row that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Begin to settle it.
    Begins,
    /// Nothing: it is settled once more when what is under way has ended.
    Waits,
    /// Ask for all that is held, then say so by [`Schedule::held_were_asked`].
    HeldFirst,
}

/// The settles under way, of each row by `J`, and those that are to come.
#[derive(Debug)]
pub(super) struct Schedule<J> {
    running: BTreeMap<usize, J>,
    again: BTreeSet<usize>,
    /// What is being settled in front of sync(2), where that was asked for.
    before_sync: Option<BTreeSet<usize>>,
}

impl<J> Default for Schedule<J> {
    fn default() -> Schedule<J> {
        Schedule {
            running: BTreeMap::new(),
            again: BTreeSet::new(),
            before_sync: None,
        }
    }
}

impl<J> Schedule<J> {
    /// Row `row` is to be settled; [`ALL_FS`] stands for sync(2).
    pub(super) fn ask(&mut self, row: usize) -> Asked {
        if self.running.contains_key(&row) {
            self.again.insert(row);
            return Asked::Waits;
        }
        match &self.before_sync {
            _ if row != ALL_FS => Asked::Begins,
            None => Asked::HeldFirst,
            Some(_) => {
                self.again.insert(ALL_FS);
                Asked::Waits
            }
        }
    }

    /// All that is held was asked for: sync(2) comes behind what is being settled now. Whether it
    /// begins at once, as there is nothing.
    pub(super) fn held_were_asked(&mut self) -> bool {
        self.before_sync = Some(self.running.keys().copied().collect());
        self.is_sync_next()
    }

    /// A settle of a row has begun.
    pub(super) fn has_begun(&mut self, row: usize, job: J) {
        self.running.insert(row, job);
    }

    /// The settle of a row has ended. Whether it is to be asked for once more.
    pub(super) fn has_ended(&mut self, row: usize) -> bool {
        self.running.remove(&row);
        self.again.remove(&row)
    }

    /// Behind [`Schedule::has_ended`]: whether sync(2) begins now, as this row was the last in
    /// front of it. Not where it is being settled again, or another one is.
    pub(super) fn lets_sync_begin(&mut self, row: usize) -> bool {
        if self.running.contains_key(&row) {
            return false;
        }
        let rows = self.before_sync.as_mut();
        let was_in_front = rows.is_some_and(|rows| rows.remove(&row));
        was_in_front && self.is_sync_next()
    }

    fn is_sync_next(&mut self) -> bool {
        self.before_sync.take_if(|rows| rows.is_empty()).is_some()
    }

    /// Whether nothing is being settled.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether a row is being settled.
    pub(super) fn is_settling(&self, row: usize) -> bool {
        self.running.contains_key(&row)
    }

    /// Whether a row needs nobody who asks for it: it is being settled, or sync(2) is to come.
    pub(super) fn is_seen_to(&self, row: usize) -> bool {
        self.is_settling(row) || row == ALL_FS && self.before_sync.is_some()
    }

    /// The rows that are being settled.
    pub(super) fn rows(&self) -> BTreeSet<usize> {
        self.running.keys().copied().collect()
    }

    /// Each settle under way.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (usize, &J)> {
        self.running.iter().map(|(row, job)| (*row, job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELD: usize = 4;

    /// An owner who begins what he is told to, and writes down who waits for what.
    #[derive(Default)]
    struct Owner {
        schedule: Schedule<()>,
        /// Rows that somebody has asked for since they were begun last.
        owed: BTreeSet<usize>,
        /// What has to end before sync(2) may begin.
        in_front: BTreeSet<usize>,
        /// No process is to be had: what begins has ended before anything else happens.
        alone: bool,
    }

    impl Owner {
        fn ask(&mut self, row: usize) {
            self.owed.insert(row);
            self.asks(row);
        }

        fn asks(&mut self, row: usize) {
            match self.schedule.ask(row) {
                Asked::Begins => self.begin(row),
                Asked::Waits => {}
                Asked::HeldFirst => {
                    (0..HELD).for_each(|held| self.ask(held));
                    self.in_front = self.schedule.rows();
                    if self.schedule.held_were_asked() {
                        self.begin(ALL_FS);
                    }
                }
            }
        }

        fn begin(&mut self, row: usize) {
            assert!(
                !self.schedule.is_settling(row),
                "{row} is settled twice at once"
            );
            assert!(
                row != ALL_FS || self.in_front.is_empty(),
                "{:?}",
                self.in_front
            );
            self.owed.remove(&row);
            if self.alone {
                self.has_ended(row, false)
            } else {
                self.schedule.has_begun(row, ())
            }
        }

        /// Ends the settle of a row, if there is one.
        fn end(&mut self, row: usize, fails: bool) {
            if self.schedule.is_settling(row) {
                self.has_ended(row, fails);
            }
        }

        /// Where it is asked for again, it begins unless it `fails` to.
        fn has_ended(&mut self, row: usize, fails: bool) {
            let is_asked_again = self.schedule.has_ended(row);
            if is_asked_again && fails && row != ALL_FS {
                // It is held no more: nothing can be settled, and whoever let go has settled it.
                self.owed.remove(&row);
            } else if is_asked_again {
                self.asks(row);
            }
            if !self.schedule.is_settling(row) {
                self.in_front.remove(&row);
            }
            if self.schedule.lets_sync_begin(row) {
                self.begin(ALL_FS);
            }
        }
    }

    fn row() -> impl Strategy<Value = usize> {
        prop_oneof![3 => 0..HELD, 1 => Just(ALL_FS)]
    }

    proptest! {
        #[test]
        fn whoever_asks_has_it_settled_by_a_settle_that_begins_behind_that(
            steps in proptest::collection::vec((row(), 0..7u8), 0..200)
        ) {
            let mut owner = Owner::default();
            for (row, what) in steps {
                match what {
                    0..2 => owner.ask(row),
                    2..5 => owner.end(row, what == 4),
                    _ => owner.alone = what == 5,
                }
            }
            // From then on nobody asks: each ends, and what is to come does.
            for _ in 0..8 {
                let rows = owner.schedule.rows();
                rows.into_iter().for_each(|row| owner.end(row, false));
            }
            prop_assert!(owner.schedule.is_idle(), "{:?}", owner.schedule);
            prop_assert_eq!(owner.owed, BTreeSet::new());
            prop_assert!(!owner.schedule.is_seen_to(ALL_FS));
        }
    }

    proptest! {
        #[test]
        fn a_request_is_kept_in_time_where_a_settle_leaves_that(
            within in 1u32..1 << 30, took in 0u32..1 << 30, age in 0u32..1 << 30
        ) {
            let [within, took, age] = [within, took, age].map(|n| Duration::from_micros(n.into()));
            let begins = age + time_left(within, took, age);
            prop_assert!(begins >= within / 2);
            prop_assert!(begins <= within.max(age));
            let is_young = age <= within / 2;
            if is_young && took + took / 4 <= within / 2 {
                prop_assert!(begins + took + took / 4 <= within);
            }
        }
    }

    #[test]
    fn a_sync_waits_for_what_is_settled_again_in_front_of_it() {
        let mut owner = Owner::default();
        owner.ask(ALL_FS);
        owner.ask(1);
        (0..HELD).for_each(|row| owner.end(row, false));
        assert!(owner.schedule.is_settling(1) && !owner.schedule.is_settling(ALL_FS));
        owner.end(1, false);
        assert!(owner.schedule.is_settling(ALL_FS));
    }
}
