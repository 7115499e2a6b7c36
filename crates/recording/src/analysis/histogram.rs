//! A histogram on a logarithmic scale: two buckets an octave, integer bounds.
//!
//! Promise: every value of 64 bits has one bucket; buckets of two histograms are the same, so that
//! they merge by adding.

use serde::Serialize;

/// How many buckets there are.
pub const BUCKETS: usize = 128;

/// One bucket with its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The least value that falls into it.
    pub from_ns: u64,
    /// The first value above it.
    pub to_ns: u64,
    /// How many values fell into it.
    pub n: u64,
}

/// Counts by logarithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: [0; BUCKETS],
        }
    }
}

/// Upper halves of octaves begin here: 2^(k + 1/2), rounded to the nearest integer.
const fn middle(octave: u32) -> u64 {
    // The square of the bound is 2^(2k+1); isqrt rounds down, and the half is tested by hand:
    // (r + 1/2)^2 = r^2 + r + 1/4 is never an integer, so ties do not exist.
    let square = 1u128 << (2 * octave + 1);
    let root = square.isqrt();
    if square - root * root > root {
        (root + 1) as u64
    } else {
        root as u64
    }
}

const MIDDLES: [u64; 64] = {
    let mut all = [0; 64];
    let mut k = 0;
    while k < 64 {
        all[k as usize] = middle(k);
        k += 1;
    }
    // Between 1 and 2 there is nothing to divide.
    all[0] = u64::MAX;
    all
};

/// The bucket of a value: 0 for 0, 1 for 1, then two an octave.
#[must_use]
pub fn bucket_of(value: u64) -> usize {
    if value < 2 {
        return value as usize;
    }
    let octave = value.ilog2() as usize;
    2 * octave + usize::from(value >= MIDDLES[octave])
}

/// The least value of a bucket. That of [`BUCKETS`] and beyond is the greatest value there is.
#[must_use]
pub fn from_of(bucket: usize) -> u64 {
    match bucket {
        0 | 1 => bucket as u64,
        b if b >= BUCKETS => u64::MAX,
        b if b % 2 == 0 => 1 << (b / 2),
        b => MIDDLES[b / 2],
    }
}

impl Histogram {
    /// Counts one value.
    pub fn add(&mut self, value: u64) {
        self.add_many(value, 1);
    }

    /// Counts a value `n` times.
    pub fn add_many(&mut self, value: u64, n: u64) {
        let place = &mut self.counts[bucket_of(value)];
        *place = place.saturating_add(n);
    }

    /// Takes the values of another one in.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// How many values.
    #[must_use]
    pub fn total(&self) -> u64 {
        let counts = self.counts.iter();
        counts.fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// First and last bucket that hold anything.
    #[must_use]
    pub fn span(&self) -> Option<(usize, usize)> {
        let first = self.counts.iter().position(|n| *n > 0)?;
        let last = self.counts.iter().rposition(|n| *n > 0)?;
        Some((first, last))
    }

    /// The buckets from the first to the last that holds anything, without a gap.
    #[must_use]
    pub fn bins(&self) -> Vec<Bin> {
        let Some((first, last)) = self.span() else {
            return Vec::new();
        };
        let bins = (first..=last).map(|b| Bin {
            from_ns: from_of(b),
            to_ns: from_of(b + 1),
            n: self.counts[b],
        });
        bins.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_rise_and_are_half_an_octave_apart() {
        let bounds: Vec<u64> = (0..BUCKETS).map(from_of).collect();
        assert_eq!(&bounds[..12], [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45]);
        assert!(bounds.windows(2).all(|w| w[0] < w[1]));
        for (b, bound) in bounds.iter().enumerate().skip(20) {
            let want = 2f64.powf(b as f64 / 2.0);
            assert!((*bound as f64 / want - 1.0).abs() < 1e-3, "{b}: {bound}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(from_of(BUCKETS), u64::MAX);
    }

    fn of(values: &[u64]) -> Histogram {
        let mut h = Histogram::default();
        values.iter().for_each(|v| h.add(*v));
        h
    }

    proptest! {
        #[test]
        fn a_value_lies_between_the_bounds_of_its_bucket(
            bits in 0u32..64, low in any::<u64>()
        ) {
            let value = low >> bits;
            let b = bucket_of(value);
            prop_assert!(from_of(b) <= value);
            prop_assert!(value < from_of(b + 1) || value == u64::MAX);
        }

        #[test]
        fn bins_count_what_a_sort_of_the_raw_data_counts(
            mut values in proptest::collection::vec((0u32..64, any::<u64>()), 0..300)
        ) {
            let mut values: Vec<u64> = values.drain(..).map(|(s, v)| v >> s).collect();
            let h = of(&values);
            values.sort_unstable();
            let below = |bound| values.partition_point(|v| *v < bound) as u64;
            let bins = h.bins();
            for bin in &bins {
                let to = if bin.to_ns == u64::MAX { values.len() as u64 } else { below(bin.to_ns) };
                prop_assert_eq!(bin.n, to - below(bin.from_ns));
            }
            prop_assert!(bins.windows(2).all(|w| w[0].to_ns == w[1].from_ns));
            prop_assert_eq!(h.total(), values.len() as u64);
            prop_assert_eq!(bins.iter().map(|b| b.n).sum::<u64>(), values.len() as u64);
        }

        #[test]
        fn merging_is_the_same_as_counting_all(
            a in proptest::collection::vec(any::<u64>(), 0..100),
            b in proptest::collection::vec(any::<u64>(), 0..100)
        ) {
            let mut both = of(&a);
            both.merge(&of(&b));
            prop_assert_eq!(both, of(&[a, b].concat()));
        }
    }
}
