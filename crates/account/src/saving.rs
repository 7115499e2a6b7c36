//! What answering requests at once has saved: an estimate from what a sync costs on the same disk.
//!
//! Promise: no figure without [`ENOUGH`] syncs of that disk, or a measurement of it; the figure is
//! the median's, and never stands without its range.
//!
//! What it does not do: it knows neither what each request had to write, nor what the program would
//! have done while another thread waited.

use serde::{Deserialize, Serialize};

/// So many syncs of a run tell what one costs; the first few of a disk say nothing.
pub const ENOUGH: u64 = 100;

/// What a sync costs on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// How many were timed.
    pub count: u64,
    /// A quarter took less, or all of a cheaper kind, in seconds.
    pub low_s: f64,
    /// Median, in seconds.
    pub p50_s: f64,
    /// A quarter took more, in seconds.
    pub high_s: f64,
}

impl Cost {
    /// From how many syncs took how long: seconds and a number, in order. `None` of too few.
    #[must_use]
    pub fn of(took: impl Iterator<Item = (f64, u64)> + Clone) -> Option<Cost> {
        let count = took
            .clone()
            .fold(0, |sum: u64, (_, n)| sum.saturating_add(n));
        (count >= ENOUGH).then_some(())?;
        Some(Cost {
            count,
            low_s: percentile(took.clone(), count, 0.25)?,
            p50_s: percentile(took.clone(), count, 0.5)?,
            high_s: percentile(took, count, 0.75)?,
        })
    }
}

/// The seconds that `share` of the `count` syncs do not exceed (nearest rank).
fn percentile(took: impl Iterator<Item = (f64, u64)>, count: u64, share: f64) -> Option<f64> {
    let rank = ((count as f64 * share).ceil() as u64).max(1);
    let mut passed = 0u64;
    for (time_s, n) in took {
        passed = passed.saturating_add(n);
        if passed >= rank {
            return Some(time_s);
        }
    }
    None
}

/// The requests of one file system that were answered at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// How many.
    pub requests: u64,
    /// What one costs there, where that is known, and where it was measured, in words.
    pub cost: Option<(Cost, String)>,
}

impl Part {
    /// Seconds that all of them would have taken, each `of` its cost; 0 where that is unknown.
    fn all_s(&self, of: fn(&Cost) -> f64) -> f64 {
        let each = self.cost.as_ref().map_or(0.0, |(cost, _)| of(cost));
        each * self.requests as f64
    }
}

/// What was saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Saving {
    /// Seconds, at the median.
    pub about_s: f64,
    /// Seconds, at the least.
    pub from_s: f64,
    /// Seconds, at the most.
    pub to_s: f64,
    /// What a sync costs where most is saved, and where that was measured.
    pub basis: String,
    /// The median of that, in seconds.
    pub each_s: f64,
}

/// The share of requests of which the cost may be unknown.
const UNKNOWN_MAX: f64 = 0.05;

/// What requests have saved, of which `in_sequence` of all were one behind the other, and for which
/// settling took `settle_s` in the end. `None` where the cost is unknown of more than a few.
#[must_use]
pub fn saving(parts: &[Part], in_sequence: f64, settle_s: f64) -> Option<Saving> {
    let all: f64 = parts.iter().map(|p| p.requests as f64).sum();
    let unknown = parts.iter().filter(|p| p.cost.is_none());
    let unknown: f64 = unknown.map(|p| p.requests as f64).sum();
    if all == 0.0 || unknown > all * UNKNOWN_MAX {
        return None;
    }
    let share = (in_sequence / all).clamp(0.0, 1.0);
    let most = parts
        .iter()
        .max_by(|a, b| a.all_s(|c| c.p50_s).total_cmp(&b.all_s(|c| c.p50_s)))?;
    let (cost, basis) = most.cost.clone()?;
    Some(Saving {
        about_s: (sum_s(parts, |c| c.p50_s) * share - settle_s).max(0.0),
        from_s: (sum_s(parts, |c| c.low_s) * share - settle_s).max(0.0),
        to_s: (sum_s(parts, |c| c.high_s) - settle_s).max(0.0),
        basis,
        each_s: cost.p50_s,
    })
}

/// Seconds that all requests would have taken one after the other, each `of` its cost.
fn sum_s(parts: &[Part], of: fn(&Cost) -> f64) -> f64 {
    parts.iter().map(|p| p.all_s(of)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(requests: u64, p50_s: f64) -> Part {
        let cost = Cost {
            count: ENOUGH,
            low_s: p50_s * 0.9,
            p50_s,
            high_s: p50_s * 1.5,
        };
        Part {
            requests,
            cost: Some((cost, format!("{p50_s}"))),
        }
    }

    #[test]
    fn few_syncs_tell_no_cost() {
        let took = |n| Cost::of([(0.001, n), (0.004, n), (0.009, 2)].into_iter());
        assert_eq!(took(48), None);
        let cost = took(49).expect("enough");
        let want = (100, 0.001, 0.004, 0.004);
        assert_eq!((cost.count, cost.low_s, cost.p50_s, cost.high_s), want);
        let most = Cost::of([(1.0, u64::MAX), (2.0, u64::MAX)].into_iter());
        assert_eq!(most.expect("enough").high_s, 1.0);
    }

    #[test]
    fn what_was_saved_is_the_median_times_the_count_less_what_settling_took() {
        let s = saving(&[part(1000, 0.008)], 1000.0, 0.5).expect("known");
        assert_eq!((s.about_s, s.to_s, s.each_s), (7.5, 11.5, 0.008));
        assert!((s.from_s - 6.7).abs() < 1e-9, "{s:?}");
        let none = saving(&[part(10, 0.008)], 10.0, 0.5).expect("known");
        assert_eq!((none.about_s, none.to_s), (0.0, 0.0));
    }

    #[test]
    fn what_could_have_been_waited_for_at_once_is_not_added_up() {
        let s = saving(&[part(1000, 0.008)], 250.0, 0.0).expect("known");
        assert_eq!((s.about_s, s.to_s), (2.0, 12.0));
        let more = saving(&[part(1000, 0.008)], 4000.0, 0.0).expect("known");
        assert_eq!(more.about_s, 8.0);
    }

    #[test]
    fn a_disk_whose_cost_is_not_known_leaves_all_unknown() {
        let unknown = |requests| Part {
            requests,
            cost: None,
        };
        let with = |n| saving(&[part(100, 0.008), unknown(n)], 100.0 + n as f64, 0.0);
        assert_eq!(with(6), None);
        assert_eq!(with(5).expect("a few").about_s, 0.8);
        assert_eq!(saving(&[], 0.0, 0.0), None);
    }

    #[test]
    fn the_basis_is_that_of_where_most_was_saved() {
        let s = saving(&[part(900, 0.001), part(300, 0.008)], 1200.0, 0.0).expect("known");
        assert_eq!((s.basis.as_str(), s.each_s), ("0.008", 0.008));
        assert!((s.about_s - 3.3).abs() < 1e-9);
    }
}
