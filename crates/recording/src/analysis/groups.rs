//! Requests by file, process, kind and so on: sums, exact percentiles, histograms.
//!
//! Promise: every request belongs to exactly one group of a dimension, so that the sums of all
//! groups are the totals; percentiles are exact.
//!
//! What it does not do: details of more groups than are asked for. Sums cost 64 bytes a group,
//! details 15 KiB; both are walks over the rows from the first to the last, whatever the number of
//! groups.

use super::histogram::Histogram;
use super::requests::Requests;
use super::stats::{rank, WHOLE};
use crate::record::table::UNKNOWN;
use std::cmp::Reverse;

/// The percentiles of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// What can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests.
    pub requests: u64,
    /// Those that were made for real.
    pub real: u64,
    /// Those of the real ones whose duration is known.
    pub timed: u64,
    /// Nanoseconds of them.
    pub sync_ns: u64,
    /// Real ones of which it is known whether anything was dirty.
    pub dirty_known: u64,
    /// Real ones with nothing dirty.
    pub needless: u64,
    /// Requests with a known number of bytes.
    pub bytes_known: u64,
    /// These bytes.
    pub bytes: u64,
}

impl Sums {
    /// Counts row `i`, which is one of `requests`.
    pub fn add(&mut self, requests: &Requests, i: usize) {
        let rows = requests.rows;
        self.requests += 1;
        if rows.bytes[i] != UNKNOWN {
            self.bytes_known += 1;
            self.bytes = self.bytes.saturating_add(rows.bytes[i]);
        }
        if !requests.is_real(i) {
            return;
        }
        self.real += 1;
        if rows.took_ns[i] != UNKNOWN {
            self.timed += 1;
            self.sync_ns = self.sync_ns.saturating_add(rows.took_ns[i]);
        }
        if let Some(dirty) = rows.dirty[i] {
            self.dirty_known += 1;
            self.needless += u64::from(!dirty);
        }
    }
}

/// A group of requests that have something in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Which value of the dimension.
    pub key: u32,
    /// Its sums.
    pub sums: Sums,
    /// Its percentiles; `None` where no duration is known.
    pub marks: Option<Marks>,
    /// Its durations.
    pub histogram: Histogram,
}

/// The groups of one dimension.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    /// Those that cost the most, most first.
    pub top: Vec<Group>,
    /// How many there are.
    pub total: usize,
}

/// The sums of each of `values` groups; `key` gives the group of a row.
#[must_use]
pub fn sums(requests: &Requests, values: usize, key: impl Fn(usize) -> u32) -> Vec<Sums> {
    let mut all = vec![Sums::default(); values];
    for i in requests.all().map(|i| i as usize) {
        if requests.has(i) {
            if let Some(group) = all.get_mut(key(i) as usize) {
                group.add(requests, i);
            }
        }
    }
    all
}

/// Groups by `key`, which is less than `values`; details of the `most` that cost the most.
#[must_use]
pub fn by(requests: &Requests, values: usize, most: usize, key: impl Fn(usize) -> u32) -> Groups {
    let all = sums(requests, values, &key);
    let mut keys: Vec<u32> = (0u32..)
        .zip(&all)
        .filter(|(_, g)| g.requests > 0)
        .map(|(k, _)| k)
        .collect();
    let total = keys.len();
    // Slots are numbers of 16 bits; nobody looks at more groups than that.
    let most = most.min(usize::from(u16::MAX));
    if keys.len() > most && most > 0 {
        keys.select_nth_unstable_by_key(most - 1, |k| costliest_first(&all, *k));
    }
    keys.truncate(most);
    keys.sort_unstable_by_key(|k| costliest_first(&all, *k));
    let top = keys
        .iter()
        .map(|k| Group {
            key: *k,
            sums: all[*k as usize],
            marks: None,
            histogram: Histogram::default(),
        })
        .collect();
    let mut groups = Groups { top, total };
    drop(all);
    detail(&mut groups.top, requests, values, key);
    groups
}

/// What sorts a group before those that cost less; of the same cost the first number comes first.
fn costliest_first(all: &[Sums], key: u32) -> (Reverse<(u64, u64)>, u32) {
    let group = &all[key as usize];
    (Reverse((group.sync_ns, group.requests)), key)
}

/// Parts of an octave, for finding percentiles.
const PARTS: u64 = 64;
/// Narrow buckets: [`PARTS`] an octave, and one for each value below that.
const NARROW: usize = (64 - 6 + 1) * PARTS as usize;

/// The narrow bucket of a value.
fn narrow(value: u64) -> usize {
    if value < PARTS {
        return value as usize;
    }
    let above = value.ilog2() - PARTS.ilog2();
    (u64::from(above + 1) * PARTS + (value >> above) % PARTS) as usize
}

/// The shares of [`Marks`].
const SHARES: [u64; 4] = [5_000, 9_000, 9_900, WHOLE];

/// A percentile that is looked for: its narrow bucket is known, the values in it are collected.
struct Wanted {
    bucket: usize,
    /// Its place among the values of that bucket.
    place: usize,
    values: Vec<u64>,
}

impl Wanted {
    /// Where the percentile lies by the counts of narrow buckets.
    fn of(counts: &[u32], n: u64, share: u64) -> Wanted {
        let place = rank(usize::try_from(n).unwrap_or(usize::MAX), share);
        let mut below = 0;
        for (bucket, count) in counts.iter().enumerate() {
            let here = *count as usize;
            if place < below + here {
                return Wanted {
                    bucket,
                    place: place - below,
                    values: Vec::with_capacity(here),
                };
            }
            below += here;
        }
        Wanted {
            bucket: usize::MAX,
            place: 0,
            values: Vec::new(),
        }
    }

    fn value(mut self) -> Option<u64> {
        let place = self.place;
        (place < self.values.len()).then(|| *self.values.select_nth_unstable(place).1)
    }
}

/// Percentiles and histograms, by two walks over the rows: the first counts in narrow buckets, the
/// second collects the values of those buckets in which a percentile lies.
fn detail(top: &mut [Group], requests: &Requests, values: usize, key: impl Fn(usize) -> u32) {
    const NONE: u16 = u16::MAX;
    let mut slots = vec![NONE; values];
    for (slot, group) in (0u16..).zip(top.iter()) {
        slots[group.key as usize] = slot;
    }
    let rows = || {
        requests.all().filter_map(|i| {
            let took = requests.waited_ns(i as usize)?;
            let slot = *slots.get(key(i as usize) as usize)?;
            (slot != NONE).then_some((usize::from(slot), took))
        })
    };
    let mut counts = vec![0u32; NARROW * top.len()];
    for (slot, took) in rows() {
        counts[slot * NARROW + narrow(took)] += 1;
        top[slot].histogram.add(took);
    }
    let counted = counts.chunks(NARROW).zip(top.iter());
    let mut wanted: Vec<[Wanted; 4]> = counted
        .map(|(counts, group)| SHARES.map(|s| Wanted::of(counts, group.sums.timed, s)))
        .collect();
    for (slot, took) in rows() {
        let bucket = narrow(took);
        for one in wanted[slot].iter_mut().filter(|w| w.bucket == bucket) {
            one.values.push(took);
        }
    }
    for (group, wanted) in top.iter_mut().zip(wanted) {
        let [p50, p90, p99, max] = wanted.map(Wanted::value);
        group.marks = p50.and_then(|p50_ns| {
            Some(Marks {
                p50_ns,
                p90_ns: p90?,
                p99_ns: p99?,
                max_ns: max?,
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::order::Order;
    use crate::analysis::stats::percentile;
    use crate::record::table::{Done, Table};
    use proptest::prelude::*;

    /// A row: group, duration, whether it was real, whether anything was dirty, hint or not.
    type Sketch = (u32, Option<u64>, bool, Option<bool>, bool);

    fn table(sketches: &[Sketch]) -> Table {
        let mut t = Table {
            kinds: vec!["fsync".into(), "sync_file_range".into()],
            ..Table::default()
        };
        let r = &mut t.rows;
        for (k, s) in sketches.iter().enumerate() {
            r.time_ns.push(k as i64);
            r.took_ns.push(s.1.unwrap_or(UNKNOWN));
            r.process.push(s.0);
            r.kind.push(u16::from(s.4));
            r.done.push(if s.2 { Done::Real } else { Done::Owed });
            r.bytes.push(if s.2 { s.0.into() } else { UNKNOWN });
            r.dirty.push(s.3);
        }
        t
    }

    fn sketch() -> impl Strategy<Value = Sketch> {
        (
            0u32..9,
            proptest::option::of(
                (0u32..63, any::<u64>()).prop_map(|(bits, took)| took >> bits >> 1),
            ),
            proptest::bool::weighted(0.8),
            proptest::option::of(any::<bool>()),
            proptest::bool::weighted(0.2),
        )
    }

    proptest! {
        #[test]
        fn the_sums_of_the_groups_are_the_totals(
            rows in proptest::collection::vec(sketch(), 0..200)
        ) {
            let t = table(&rows);
            let requests = Requests::durability(&t);
            let order = Order::of(&requests);
            let one = by(&requests, 1, 5, |_| 0);
            let many = by(&requests, 9, 100, |i| t.rows.process[i]);
            let mut sum = Sums::default();
            let mut histogram = Histogram::default();
            for g in &many.top {
                sum.requests += g.sums.requests;
                sum.real += g.sums.real;
                sum.timed += g.sums.timed;
                sum.sync_ns = sum.sync_ns.saturating_add(g.sums.sync_ns);
                sum.dirty_known += g.sums.dirty_known;
                sum.needless += g.sums.needless;
                sum.bytes_known += g.sums.bytes_known;
                sum.bytes += g.sums.bytes;
                histogram.merge(&g.histogram);
            }
            let whole = one.top.first().map(|g| g.sums).unwrap_or_default();
            prop_assert_eq!(sum, whole);
            prop_assert_eq!(sum.requests, rows.iter().filter(|r| !r.4).count() as u64);
            prop_assert_eq!((sum.timed, sum.sync_ns), (order.len() as u64, order.sum_ns));
            prop_assert_eq!(histogram.total(), sum.timed);
        }

        #[test]
        fn percentiles_of_a_group_are_those_of_its_sorted_values(
            rows in proptest::collection::vec(sketch(), 0..200)
        ) {
            let t = table(&rows);
            let requests = Requests::durability(&t);
            for g in by(&requests, 9, 4, |i| t.rows.process[i]).top {
                let mine = rows.iter().filter(|r| r.0 == g.key && r.2 && !r.4);
                let mut took: Vec<u64> = mine.filter_map(|r| r.1).collect();
                took.sort_unstable();
                let p = |share| percentile(&took, share);
                let want = p(5_000).map(|p50_ns| Marks {
                    p50_ns,
                    p90_ns: p(9_000).expect("some"),
                    p99_ns: p(9_900).expect("some"),
                    max_ns: *took.last().expect("some"),
                });
                prop_assert_eq!(g.marks, want);
            }
        }
    }

    #[test]
    fn those_that_cost_the_most_come_first_and_the_others_are_counted() {
        let rows: Vec<Sketch> = (0..9)
            .map(|g| (g, Some(10 * u64::from(g % 5)), true, None, false))
            .collect();
        let t = table(&rows);
        let requests = Requests::durability(&t);
        let groups = by(&requests, 9, 3, |i| t.rows.process[i]);
        assert_eq!(groups.total, 9);
        let keys: Vec<u32> = groups.top.iter().map(|g| g.key).collect();
        assert_eq!(keys, [4, 3, 8]);
    }
}
