//! Exact percentiles by nearest rank, and sums that cannot overflow.
//!
//! Promise: a percentile is one of the values, never one between two of them.

use serde::Serialize;

/// Ten-thousandths: the whole.
pub const WHOLE: u64 = 10_000;

/// The place (from 0) of a percentile among `n` sorted values; `share` is in ten-thousandths.
/// For `n` of 0 it is 0.
#[must_use]
pub fn rank(n: usize, share: u64) -> usize {
    let n = n as u64;
    let rank = (u128::from(n) * u128::from(share)).div_ceil(u128::from(WHOLE));
    // At most n, which is a usize.
    (rank as u64).clamp(1, n.max(1)) as usize - 1
}

/// The percentile of sorted values; `None` without any.
#[must_use]
pub fn percentile(sorted: &[u64], share: u64) -> Option<u64> {
    sorted.get(rank(sorted.len(), share)).copied()
}

/// Nanoseconds as seconds.
#[must_use]
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// `part` of `whole`, 0 where the whole is 0.
#[must_use]
pub fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        part / whole
    } else {
        0.0
    }
}

/// The percentiles of a whole recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// 99.99th percentile.
    pub p9999_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Mean, rounded down.
    pub mean_ns: u64,
}

impl Quantiles {
    /// Of `n` values, where `at` gives the one at a place of the sorted row; `None` without any.
    #[must_use]
    pub fn of(n: usize, sum: u64, at: impl Fn(usize) -> u64) -> Option<Quantiles> {
        if n == 0 {
            return None;
        }
        Some(Quantiles {
            min_ns: at(0),
            p50_ns: at(rank(n, 5_000)),
            p90_ns: at(rank(n, 9_000)),
            p99_ns: at(rank(n, 9_900)),
            p999_ns: at(rank(n, 9_990)),
            p9999_ns: at(rank(n, 9_999)),
            max_ns: at(n - 1),
            mean_ns: sum / n as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_has_no_percentile() {
        assert_eq!(percentile(&[], 5_000), None);
        assert_eq!(Quantiles::of(0, 0, |_| 7), None);
        assert_eq!(rank(0, 9_999), 0);
    }

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let values: Vec<u64> = (1..=1000).collect();
        for (share, want) in [
            (0, 1),
            (1, 1),
            (5_000, 500),
            (9_990, 999),
            (9_999, 1000),
            (10_000, 1000),
        ] {
            assert_eq!(percentile(&values, share), Some(want), "{share}");
        }
        assert_eq!(percentile(&[7], 5_000), Some(7));
    }

    proptest! {
        #[test]
        fn at_least_the_share_lies_at_or_below_a_percentile_and_no_smaller_value_does(
            mut values in proptest::collection::vec(any::<u64>(), 1..300), share in 0u64..=WHOLE
        ) {
            values.sort_unstable();
            let p = percentile(&values, share).expect("some");
            let at_or_below = values.iter().filter(|v| **v <= p).count() as u64;
            prop_assert!(at_or_below * WHOLE >= share * values.len() as u64);
            let below = values.iter().filter(|v| **v < p).count() as u64;
            prop_assert!(below == 0 || below * WHOLE < share * values.len() as u64);
        }
    }
}
