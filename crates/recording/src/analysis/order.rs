//! Durations in order, and rows in the order of their time.
//!
//! Sorted durations take 8 bytes a request, the order of time 4 where rows are not in it already.

use super::requests::Requests;
use super::stats::Quantiles;

/// The durations that count, shortest first.
pub struct Order<'a> {
    /// The rows that they are of.
    pub requests: &'a Requests<'a>,
    /// Nanoseconds.
    pub sorted: Vec<u64>,
    /// Nanoseconds of all of them together.
    pub sum_ns: u64,
}

impl<'a> Order<'a> {
    /// Sorts.
    #[must_use]
    pub fn of(requests: &'a Requests<'a>) -> Order<'a> {
        let sorted = sorted(requests, |_| true);
        let sum_ns = sorted
            .iter()
            .fold(0u64, |sum, took| sum.saturating_add(*took));
        Order {
            requests,
            sorted,
            sum_ns,
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Percentiles of all.
    #[must_use]
    pub fn quantiles(&self) -> Option<Quantiles> {
        Quantiles::of(self.len(), self.sum_ns, |place| self.sorted[place])
    }

    /// The sorted durations of those rows that `is` names.
    pub fn only(&self, is: impl Fn(usize) -> bool) -> Vec<u64> {
        sorted(self.requests, is)
    }
}

fn sorted(requests: &Requests, is: impl Fn(usize) -> bool) -> Vec<u64> {
    let rows = requests.all().map(|i| i as usize).filter(|i| is(*i));
    let took = rows.filter_map(|i| requests.waited_ns(i));
    let mut all = Vec::with_capacity(took.clone().count());
    all.extend(took);
    all.sort_unstable();
    all
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
