//! Rows in the order of their duration and of their time, as lists of their numbers.
//!
//! With the first, every percentile of every group is found by one walk. A list takes 4 bytes a
//! row; sorting takes 16 bytes a row for a while.

use super::requests::Requests;
use super::stats::Quantiles;

/// Rows whose duration counts, shortest first.
pub struct Order<'a> {
    /// The rows that it is made of.
    pub requests: &'a Requests<'a>,
    /// Their numbers.
    pub rows: Vec<u32>,
    /// Nanoseconds of all of them together.
    pub sum_ns: u64,
}

impl<'a> Order<'a> {
    /// Sorts.
    #[must_use]
    pub fn of(requests: &'a Requests<'a>) -> Order<'a> {
        let waited = |i: u32| requests.waited_ns(i as usize).map(|took| (took, i));
        let counted = requests.all().filter_map(waited).count();
        let mut pairs: Vec<(u64, u32)> = Vec::with_capacity(counted);
        pairs.extend(requests.all().filter_map(waited));
        pairs.sort_unstable();
        let sum_ns = { pairs.iter() }.fold(0u64, |sum, (took, _)| sum.saturating_add(*took));
        let rows = pairs.iter().map(|(_, row)| *row).collect();
        Order {
            requests,
            rows,
            sum_ns,
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The duration at a place, from 0.
    #[must_use]
    pub fn at(&self, place: usize) -> u64 {
        let row = self.rows[place] as usize;
        self.requests.rows.took_ns[row]
    }

    /// Percentiles of all.
    #[must_use]
    pub fn quantiles(&self) -> Option<Quantiles> {
        Quantiles::of(self.len(), self.sum_ns, |place| self.at(place))
    }

    /// The sorted durations of those rows that `is` names.
    pub fn only(&self, is: impl Fn(usize) -> bool) -> Vec<u64> {
        let these = self.rows.iter().map(|row| *row as usize).filter(|i| is(*i));
        these.map(|i| self.requests.rows.took_ns[i]).collect()
    }
}

/// All rows in the order of their time, those that ask for nothing here among them.
pub enum ByTime {
    /// They are in that order already: so many.
    AsTheyAre(u32),
    /// Their numbers.
    Sorted(Vec<u32>),
}

impl ByTime {
    /// Sorts, where that is needed. Rows of the same time keep their order.
    #[must_use]
    pub fn of(requests: &Requests) -> ByTime {
        let time = &requests.rows.time_ns;
        if time.is_sorted() {
            return ByTime::AsTheyAre(requests.all().end);
        }
        let mut rows: Vec<u32> = requests.all().collect();
        rows.sort_by_key(|i| time[*i as usize]);
        ByTime::Sorted(rows)
    }

    /// Their numbers, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let (as_they_are, sorted) = match self {
            ByTime::AsTheyAre(n) => (0..*n, &[][..]),
            ByTime::Sorted(rows) => (0..0, &rows[..]),
        };
        as_they_are
            .chain(sorted.iter().copied())
            .map(|i| i as usize)
    }
}
