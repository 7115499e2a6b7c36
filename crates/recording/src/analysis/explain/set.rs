//! Sets of requests, as bits: a block of neighbours in time begins with a word of its own.
//!
//! Promise: a set takes a bit a request, and few more for small recordings.

/// How requests are laid out: neighbours in time in blocks of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Requests.
    pub total: usize,
    /// Requests of a block; the last may have fewer.
    pub block: usize,
    /// Words of a block.
    words: usize,
}

/// Blocks at most, about; so many are enough for any test.
const BLOCKS: usize = 4096;
/// Blocks of a small recording.
const FEW: usize = 512;

impl Layout {
    /// Blocks as small as makes sense: of 8 requests at least, [`FEW`] at least where there are
    /// more, [`BLOCKS`] at most.
    pub fn new(total: usize) -> Layout {
        let block = if total < 64 * FEW {
            (total / FEW).clamp(8, 64)
        } else {
            (total / (64 * BLOCKS)).clamp(1, 16) * 64
        };
        let words = block.div_ceil(64);
        Layout {
            total,
            block,
            words,
        }
    }

    /// How many blocks.
    pub fn blocks(&self) -> usize {
        self.total.div_ceil(self.block)
    }

    /// The words of a block.
    fn of(&self, block: usize) -> std::ops::Range<usize> {
        block * self.words..(block + 1) * self.words
    }

    /// Requests of the blocks before this one.
    pub fn first(&self, block: usize) -> usize {
        (block * self.block).min(self.total)
    }
}

/// A set of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set(Vec<u64>);

impl Set {
    /// Those for which `holds` says so; it is asked once for each, in order.
    pub fn of(layout: &Layout, mut holds: impl FnMut(usize) -> bool) -> Set {
        let mut words = vec![0u64; layout.blocks() * layout.words];
        for block in 0..layout.blocks() {
            let first = layout.first(block);
            let last = layout.first(block + 1);
            let start = layout.of(block).start;
            for at in first..last {
                let offset = at - first;
                words[start + offset / 64] |= u64::from(holds(at)) << (offset % 64);
            }
        }
        Set(words)
    }

    /// All of them.
    pub fn all(layout: &Layout) -> Set {
        Set::of(layout, |_| true)
    }

    /// The words of a block.
    pub fn words(&self, layout: &Layout, block: usize) -> &[u64] {
        &self.0[layout.of(block)]
    }

    /// Those in it, in order.
    pub fn members<'s>(&'s self, layout: &'s Layout) -> impl Iterator<Item = usize> + 's {
        (0..layout.blocks()).flat_map(move |block| {
            let (first, words) = (layout.first(block), self.words(layout, block));
            (first..layout.first(block + 1))
                .filter(move |at| words[(at - first) / 64] >> ((at - first) % 64) & 1 == 1)
        })
    }

    /// How many are in it.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// How many are in both.
    pub fn common(&self, other: &Set) -> u64 {
        let words = self.0.iter().zip(&other.0);
        words.map(|(a, b)| u64::from((a & b).count_ones())).sum()
    }

    /// How many are in all three.
    pub fn common_of_three(&self, b: &Set, c: &Set) -> u64 {
        let words = self.0.iter().zip(&b.0).zip(&c.0);
        words
            .map(|((a, b), c)| u64::from((a & b & c).count_ones()))
            .sum()
    }

    /// As [`Set::common_of_three`] and [`Set::common`], of every `step`-th word.
    pub fn common_of_some(&self, b: &Set, c: &Set, step: usize) -> (u64, u64) {
        let words = self.0.iter().zip(&b.0).zip(&c.0).step_by(step.max(1));
        words.fold((0, 0), |(two, three), ((a, b), c)| {
            let both = a & b;
            let all = both & c;
            (
                two + u64::from(both.count_ones()),
                three + u64::from(all.count_ones()),
            )
        })
    }

    /// Those in both.
    pub fn and(&self, other: &Set) -> Set {
        Set(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect())
    }

    /// Those in this one that are not in the other.
    pub fn without(&self, other: &Set) -> Set {
        Set(self.0.iter().zip(&other.0).map(|(a, b)| a & !b).collect())
    }

    /// The share of what is in either that is in both; 0 for two empty sets.
    pub fn overlap(&self, other: &Set) -> f64 {
        let both = self.common(other);
        let either = self.count() + other.count() - both;
        if either == 0 {
            return 0.0;
        }
        both as f64 / either as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sets_count_as_lists_do(total in 1usize..9000, a in 2usize..7, b in 2usize..7) {
            let layout = Layout::new(total);
            let x = Set::of(&layout, |i| i % a == 0);
            let y = Set::of(&layout, |i| i % b == 1);
            let count = |f: &dyn Fn(usize) -> bool| (0..total).filter(|i| f(*i)).count() as u64;
            prop_assert_eq!(x.count(), count(&|i| i % a == 0));
            prop_assert_eq!(x.common(&y), count(&|i| i % a == 0 && i % b == 1));
            prop_assert_eq!(x.without(&y).count(), count(&|i| i % a == 0 && i % b != 1));
            prop_assert_eq!(x.and(&y).count(), x.common(&y));
            let all = Set::all(&layout);
            prop_assert_eq!(all.common_of_three(&x, &y), x.common(&y));
            prop_assert_eq!(all.common_of_some(&x, &y, 1), (x.count(), x.common(&y)));
            let blocks: u64 = (0..layout.blocks())
                .flat_map(|k| x.words(&layout, k).iter().map(|w| u64::from(w.count_ones())))
                .sum();
            prop_assert_eq!(blocks, x.count());
            prop_assert!(layout.first(layout.blocks()) == total);
        }
    }
}
