//! Which requests are looked at, and which of them are slow.
//!
//! Looked at are requests for durability that were made for real and whose duration is known, in
//! the order in which they began. Hints (`sync_file_range`) make nothing durable and are left
//! out.

use super::set::{Layout, Set};
use crate::analysis::modes;
use crate::record::table::{Done, Table, UNKNOWN};
use serde::Serialize;

/// Why a request counts as slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum How {
    /// There are two modes, and it belongs to the upper one.
    #[serde(rename = "upper mode")]
    UpperMode,
    /// It is among the slowest hundredth.
    #[serde(rename = "above p99")]
    AboveP99,
    /// It is among the slowest twentieth: a hundredth of a small recording shows nothing.
    #[serde(rename = "above p95")]
    AboveP95,
    /// It is among the slowest tenth, for the same reason.
    #[serde(rename = "above p90")]
    AboveP90,
    /// It took longer than was asked for.
    #[serde(rename = "over the given time")]
    OverTheGivenTime,
}

impl How {
    /// Whether more is looked at than the slowest hundredth, because that is small.
    pub fn is_wider(self) -> bool {
        matches!(self, How::AboveP95 | How::AboveP90)
    }
}

/// The requests that are looked at.
#[derive(Debug)]
pub struct Requests<'a> {
    /// The recording.
    pub table: &'a Table,
    /// Their rows, in the order in which they began.
    pub rows: Vec<u32>,
    /// Where each has its bit.
    pub layout: Layout,
    /// The slow ones.
    pub slow: Set,
    /// What took longer is slow.
    pub over_ns: u64,
    /// Why that.
    pub how: How,
    /// The median of all, 0 without any.
    pub median_ns: u64,
    /// Wider looks, to be taken if this one finds nothing.
    pub wider: Vec<(u64, How)>,
}

impl<'a> Requests<'a> {
    /// Chooses them; `slower` is the duration that was asked for.
    pub fn of(table: &'a Table, slower: Option<u64>) -> Requests<'a> {
        let r = &table.rows;
        let durable: Vec<bool> = { 0..=u16::MAX }
            .take(table.kinds.len())
            .map(|k| table.is_durability(k))
            .collect();
        let counts = |row: usize| {
            let kind = durable.get(usize::from(r.kind[row]));
            let real = matches!(r.done[row], Done::Real | Done::Unknown);
            real && r.took_ns[row] != UNKNOWN && *kind.unwrap_or(&true)
        };
        let count = u32::try_from(r.len()).unwrap_or(u32::MAX);
        let mut rows: Vec<u32> = (0..count).filter(|row| counts(*row as usize)).collect();
        // Nearly sorted already, which makes a stable sort fast.
        rows.sort_by_key(|row| r.time_ns[*row as usize]);
        let mut sorted: Vec<u64> = rows.iter().map(|row| r.took_ns[*row as usize]).collect();
        sorted.sort_unstable();
        let (over_ns, how) = threshold(&sorted, slower);
        let layout = Layout::new(rows.len());
        let slow = Set::of(&layout, |at| r.took_ns[rows[at] as usize] > over_ns);
        let median_ns = percentile(&sorted, 50);
        let small = how == How::AboveP99 && sorted.len() < WIDER_BELOW;
        let wider = match small {
            true => vec![
                (percentile(&sorted, 95), How::AboveP95),
                (percentile(&sorted, 90), How::AboveP90),
            ],
            false => Vec::new(),
        };
        Requests {
            table,
            rows,
            layout,
            slow,
            over_ns,
            how,
            median_ns,
            wider,
        }
    }

    /// Makes slow what took longer than this.
    pub fn look(&mut self, over_ns: u64, how: How) {
        (self.over_ns, self.how) = (over_ns, how);
        self.slow = Set::of(&self.layout, |at| {
            self.table.rows.took_ns[self.rows[at] as usize] > over_ns
        });
    }

    /// When a request began, nanoseconds since 1970.
    pub fn began(&self, at: usize) -> i64 {
        self.table.rows.time_ns[self.rows[at] as usize]
    }

    /// When it ended.
    pub fn ended(&self, at: usize) -> i64 {
        let took = self.table.rows.took_ns[self.rows[at] as usize];
        { self.began(at) }.saturating_add(i64::try_from(took).unwrap_or(i64::MAX))
    }

    /// Whether it is slow.
    pub fn is_slow(&self, at: usize) -> bool {
        self.table.rows.took_ns[self.rows[at] as usize] > self.over_ns
    }
}

fn threshold(sorted: &[u64], slower: Option<u64>) -> (u64, How) {
    if let Some(given) = slower {
        return (given, How::OverTheGivenTime);
    }
    if let Some(from) = upper_mode(sorted) {
        return (from.saturating_sub(1), How::UpperMode);
    }
    (percentile(sorted, 99), How::AboveP99)
}

/// The value below which so many of a hundred lie (nearest rank); 0 without any.
fn percentile(sorted: &[u64], hundredths: usize) -> u64 {
    let rank = sorted.len().saturating_mul(hundredths).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0)
}

/// Recordings with fewer requests have a slowest hundredth that is too small to find much with.
const WIDER_BELOW: usize = 50_000;
/// The upper mode's share, at most: more is what is usual here.
const UPPER_MAX: f64 = 0.6;
/// The upper mode's requests, at least.
const UPPER_MIN: u64 = 12;

/// Where the upper mode begins, as `report` names it, unless it is what is usual here.
fn upper_mode(sorted: &[u64]) -> Option<u64> {
    let modes = modes::find(sorted.len(), |at| sorted[at]);
    let upper = modes.last()?;
    let fits = upper.share <= UPPER_MAX && upper.n >= UPPER_MIN;
    modes::slow_from(&modes).filter(|_| fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Durations spread around some, by a bell of about an eighth of a decade.
    fn around(near_ns: f64, count: usize) -> impl Iterator<Item = u64> {
        (0..count).map(move |k| {
            let part = (k as f64 + 0.5) / count as f64 - 0.5;
            (near_ns * (part * 1.5 + part.powi(3) * 4.0).exp()) as u64
        })
    }

    fn sorted(parts: Vec<u64>) -> Vec<u64> {
        let mut all = parts;
        all.sort_unstable();
        all
    }

    #[test]
    fn slow_is_the_upper_of_two_modes() {
        let all = sorted(around(2e5, 920).chain(around(3.1e7, 80)).collect());
        let (over, how) = threshold(&all, None);
        assert_eq!(how, How::UpperMode);
        assert!((500_000..15_000_000).contains(&over), "{over}");
    }

    #[test]
    fn a_long_tail_is_no_mode() {
        // A share of 1/k takes k times as long.
        let all = sorted((1..20_000u64).map(|k| 1_000_000_000 / k).collect());
        let (over, how) = threshold(&all, None);
        assert_eq!(how, How::AboveP99);
        assert_eq!(all.iter().filter(|ns| **ns > over).count(), 199);
    }

    #[test]
    fn what_was_asked_for_is_what_counts() {
        let all = sorted(around(2e5, 920).chain(around(3.1e7, 80)).collect());
        assert_eq!(threshold(&all, Some(7)), (7, How::OverTheGivenTime));
    }

    proptest! {
        #[test]
        fn any_durations_have_a_threshold(all in proptest::collection::vec(any::<u64>(), 0..300)) {
            let all = sorted(all);
            let (over, how) = threshold(&all, None);
            prop_assert!(all.is_empty() || how == How::UpperMode || over <= all[all.len() - 1]);
        }

        #[test]
        fn one_bell_has_no_upper_mode(near in 1e3f64..1e9, count in 20usize..3000) {
            let all = sorted(around(near, count).collect());
            prop_assert_eq!(threshold(&all, None).1, How::AboveP99);
        }
    }
}
