//! How much of the time at least one thread waited for a sync.
//!
//! The sum over threads can be longer than the recording; the union cannot, and no gain by putting
//! syncs off can be greater than it.

use super::order::ByTime;
use super::requests::Requests;

/// Nanoseconds in which at least one request was under way.
#[must_use]
pub fn union_ns(requests: &Requests, by_time: &ByTime) -> u64 {
    let mut total = 0u64;
    let mut until = i64::MIN;
    for i in by_time.iter() {
        let Some(took) = requests.waited_ns(i) else {
            continue;
        };
        let from = requests.rows.time_ns[i].max(until);
        let to = end_of(requests.rows.time_ns[i], took);
        if to > from {
            total = total.saturating_add(to.abs_diff(from));
            until = to;
        }
    }
    total
}

/// When something ended.
#[must_use]
pub fn end_of(time_ns: i64, took_ns: u64) -> i64 {
    time_ns.saturating_add(i64::try_from(took_ns).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::requests::Requests;
    use crate::record::table::{Done, Table, UNKNOWN};
    use proptest::prelude::*;

    fn table(intervals: &[(i64, u64)]) -> Table {
        let mut t = Table {
            kinds: vec!["fsync".into()],
            ..Table::default()
        };
        for (time, took) in intervals {
            t.rows.time_ns.push(*time);
            t.rows.took_ns.push(*took);
            t.rows.kind.push(0);
            t.rows.done.push(Done::Real);
        }
        t
    }

    fn union(intervals: &[(i64, u64)]) -> u64 {
        let t = table(intervals);
        let requests = Requests::durability(&t);
        union_ns(&requests, &ByTime::of(&requests))
    }

    #[test]
    fn two_that_wait_at_once_count_once() {
        assert_eq!(union(&[(0, 10), (5, 10)]), 15);
        assert_eq!(union(&[(20, 5), (0, 10), (2, 3)]), 15);
        assert_eq!(union(&[(0, UNKNOWN), (0, 7)]), 7);
        assert_eq!(union(&[]), 0);
        assert_eq!(union(&[(i64::MIN, 1), (i64::MAX, u64::MAX - 1)]), 1);
    }

    proptest! {
        #[test]
        fn the_union_is_the_number_of_moments_at_which_anyone_waits(
            intervals in proptest::collection::vec((0i64..300, 0u64..40), 0..60)
        ) {
            let waits = |at: i64| intervals.iter().any(|(t, d)| *t <= at && at < t + *d as i64);
            let want = (0..400).filter(|at| waits(*at)).count() as u64;
            prop_assert_eq!(union(&intervals), want);
        }
    }
}
