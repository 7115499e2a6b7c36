//! Which requests are looked at, and which of them are slow.
//!
//! Looked at are requests for durability that were made for real and whose duration is known, in
//! the order in which they began. Hints (`sync_file_range`) make nothing durable and are left
//! out.

use super::set::{Layout, Set};
use super::SLOW_MIN;
use crate::analysis::modes;
use crate::record::table::{Done, Rows, Table, UNKNOWN};
use serde::Serialize;

/// Why a request counts as slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum How {
    /// There are two modes, and it belongs to the upper one.
    #[serde(rename = "upper mode")]
    UpperMode,
    /// It is one of a few that took several times as long as any other.
    #[serde(rename = "far above the others")]
    FarAbove,
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
    /// Looks with other bounds: what is slow by less, or by more, may have another cause.
    pub more: Vec<(u64, How)>,
}

impl<'a> Requests<'a> {
    /// Chooses them; `slower` is the duration that was asked for.
    pub fn of(table: &'a Table, slower: Option<u64>) -> Requests<'a> {
        let r = &table.rows;
        let kinds = (0..=u16::MAX).take(table.kinds.len());
        let durable: Vec<bool> = kinds.map(|k| table.is_durability(k)).collect();
        let count = u32::try_from(r.len()).unwrap_or(u32::MAX);
        let mut rows: Vec<u32> = (0..count)
            .filter(|row| is_looked_at(r, *row as usize, &durable))
            .collect();
        // Nearly sorted already, which makes a stable sort fast.
        rows.sort_by_key(|row| r.time_ns[*row as usize]);
        let mut sorted: Vec<u64> = rows.iter().map(|row| r.took_ns[*row as usize]).collect();
        sorted.sort_unstable();
        let mut looks = looks(&sorted, slower);
        let (over_ns, how) = looks.remove(0);
        let layout = Layout::new(rows.len());
        let slow = Set::of(&layout, |at| r.took_ns[rows[at] as usize] > over_ns);
        let median_ns = percentile(&sorted, 50);
        Requests {
            table,
            rows,
            layout,
            slow,
            over_ns,
            how,
            median_ns,
            more: looks,
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
        self.began(at)
            .saturating_add(i64::try_from(took).unwrap_or(i64::MAX))
    }

    /// Whether it is slow.
    pub fn is_slow(&self, at: usize) -> bool {
        self.table.rows.took_ns[self.rows[at] as usize] > self.over_ns
    }
}

/// Whether a row is looked at, where these of the kinds are `durable`.
fn is_looked_at(rows: &Rows, row: usize, durable: &[bool]) -> bool {
    let kind = durable.get(usize::from(rows.kind[row]));
    let real = matches!(rows.done[row], Done::Real | Done::Unknown);
    real && rows.took_ns[row] != UNKNOWN && *kind.unwrap_or(&true)
}

/// What to look at: the bounds above which requests are slow, the first one first; the wider ones
/// are for where the others show nothing.
fn looks(sorted: &[u64], slower: Option<u64>) -> Vec<(u64, How)> {
    if let Some(given) = slower {
        return vec![(given, How::OverTheGivenTime)];
    }
    let modes = modes::find(sorted.len(), |at| sorted[at]);
    let mut looks: Vec<(u64, How)> = upper_modes(&modes)
        .map(|from| (from.saturating_sub(1), How::UpperMode))
        .collect();
    let has_modes = !looks.is_empty();
    if let Some(from) = far_above(sorted) {
        let far = (from.saturating_sub(1), How::FarAbove);
        // A mode that lies far above all others is the same.
        let count = count_over(sorted, far.0);
        if looks.iter().all(|l| count_over(sorted, l.0) != count) {
            looks.push(far);
        }
    }
    if has_modes {
        return looks;
    }
    looks.push((percentile(sorted, 99), How::AboveP99));
    if sorted.len() < WIDER_BELOW {
        looks.push((percentile(sorted, 95), How::AboveP95));
        looks.push((percentile(sorted, 90), How::AboveP90));
    }
    looks
}

/// How many are greater.
fn count_over(sorted: &[u64], over_ns: u64) -> usize {
    sorted.len() - sorted.partition_point(|ns| *ns <= over_ns)
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

/// Where modes begin, the uppermost first, as `report` names them; without what is usual here.
fn upper_modes(modes: &[modes::Mode]) -> impl Iterator<Item = u64> + '_ {
    let below = (0..modes.len().saturating_sub(1)).rev();
    below
        .filter(|k| are_upper(&modes[k + 1..]))
        .map(|k| modes[k].to_ns)
}

/// Whether what is in these modes is neither usual nor too little.
fn are_upper(modes: &[modes::Mode]) -> bool {
    let share: f64 = modes.iter().map(|m| m.share).sum();
    let n: u64 = modes.iter().map(|m| m.n).sum();
    share <= UPPER_MAX && n >= UPPER_MIN
}

/// How many times as long as any other those take that lie far above them.
const FAR: f64 = 3.0;

/// Where a few begin that took several times as long as any other: they are too few for a mode.
/// The slowest hundredth hides them among the usual tail.
fn far_above(sorted: &[u64]) -> Option<u64> {
    let few = sorted.len().div_ceil(100).max(SLOW_MIN as usize);
    let first = sorted.len().checked_sub(few)?.max(1);
    let last = sorted.len() - SLOW_MIN as usize;
    let widest = (first..=last).max_by(|a, b| gap(sorted, *a).total_cmp(&gap(sorted, *b)))?;
    (gap(sorted, widest) >= FAR).then(|| sorted[widest])
}

/// How many times as long as the one before it this one is.
fn gap(sorted: &[u64], at: usize) -> f64 {
    sorted[at] as f64 / sorted[at - 1].max(1) as f64
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

    fn threshold(sorted: &[u64], slower: Option<u64>) -> (u64, How) {
        looks(sorted, slower)[0]
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
    fn a_few_that_lie_far_above_all_others_are_no_part_of_the_usual_tail() {
        let usual = || around(2e5, 9_980);
        let all = sorted(usual().chain(around(3e9, 20)).collect());
        let (over, how) = threshold(&all, None);
        assert_eq!(how, How::FarAbove);
        assert_eq!(all.iter().filter(|ns| **ns > over).count(), 20);
        let all = sorted(usual().chain(around(3e9, 7)).collect());
        assert_eq!(threshold(&all, None).1, How::AboveP99, "too few to tell");
    }

    #[test]
    fn what_was_asked_for_is_what_counts() {
        let all = sorted(around(2e5, 920).chain(around(3.1e7, 80)).collect());
        assert_eq!(threshold(&all, Some(7)), (7, How::OverTheGivenTime));
    }

    #[test]
    fn what_is_slow_by_less_has_a_look_of_its_own() {
        let modes = || around(2e5, 9_000).chain(around(3e7, 600));
        let all = sorted(modes().chain(around(4e9, 300)).collect());
        let two = looks(&all, None);
        assert_eq!(two.len(), 2, "{two:?}");
        assert!(two[0].0 > 30_000_000 && two[1].0 < 30_000_000, "{two:?}");
        // Too few for a mode.
        let all = sorted(modes().chain(around(4e9, 12)).collect());
        let two = looks(&all, None).into_iter().map(|(_, how)| how);
        assert_eq!(two.collect::<Vec<_>>(), [How::UpperMode, How::FarAbove]);
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
