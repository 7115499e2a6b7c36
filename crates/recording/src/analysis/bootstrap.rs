//! Confidence intervals of figures that come from a sequence in time: a moving block bootstrap.
//!
//! Requests that follow each other are alike: a disk that is slow now is slow in a moment. To draw
//! single requests anew would take them for independent, and the interval would be far too narrow.
//! So runs of neighbours are drawn, each as long as the likeness lasts. The blocks are circular
//! (what follows the end is the beginning), so that every cell is drawn equally often. Their length
//! is chosen from the sequence's own autocorrelation, as Politis and White (2004), corrected by
//! Patton, Politis and White (2009), give it for circular blocks; see [`block_length`].
//!
//! The sequence is one of at most [`CELLS_MAX`] cells, each of which sums up consecutive requests.
//! A draw takes whole cells, as it would with any block length from one cell on, so summing up
//! loses nothing but block lengths below a cell. With sums from the left, a block costs two
//! look-ups however many requests are in it: [`DRAWS`] draws cost the same for a thousand requests
//! and for ten million.
//!
//! Few blocks vary less than what they were taken from: an interval is made wider by
//! [`Blocks::widening`].
//!
//! Promise: the same cells and the same seed give the same interval, on every machine.
//!
//! What it does not do: it knows only what varies within the sequence. What differs from one day
//! to the next is not in it, nor is a trend longer than a third of it.

use synclater_random::Random;

/// The most cells that a sequence is divided into.
pub const CELLS_MAX: usize = 1024;

/// How often a sequence is drawn anew: the ends of a 95 % interval are then the 25th value from
/// each side, and move by less than a tenth of the interval's width with another seed.
pub const DRAWS: usize = 999;

/// The share of draws that an interval leaves out on each side: 95 % are within.
const OUTSIDE: f64 = 0.025;

/// A sequence of cells with `K` sums each, ready to be drawn in blocks.
#[derive(Clone, Debug)]
pub struct Blocks<const K: usize> {
    /// Sums of the cells before each, twice around.
    before: Vec<[f64; K]>,
    cells: usize,
    length: usize,
}

impl<const K: usize> Blocks<K> {
    /// Blocks of `length` cells, at least one and at most all of them.
    #[must_use]
    pub fn new(cells: &[[f64; K]], length: usize) -> Blocks<K> {
        let mut sum = [0.0; K];
        let mut before = Vec::with_capacity(cells.len() * 2 + 1);
        before.push(sum);
        for cell in cells.iter().chain(cells) {
            for (s, c) in sum.iter_mut().zip(cell) {
                *s += c;
            }
            before.push(sum);
        }
        Blocks {
            before,
            cells: cells.len(),
            length: length.clamp(1, cells.len().max(1)),
        }
    }

    /// By how much the distance of an interval's ends from the value is too short with so few
    /// blocks: Student's distribution instead of the normal one, and the variance that goes into
    /// the blocks' own mean. 1.01 for a hundred blocks, 1.2 for ten, 3 for three.
    #[must_use]
    pub fn widening(&self) -> f64 {
        let share = self.length as f64 / self.cells.max(1) as f64;
        let freedom = (1.0 / share - 1.0).max(1.0);
        // Cornish and Fisher's expansion of Student's 97.5 % over the normal one's, 1.96.
        let student = 1.0 + 1.21 / freedom + 1.44 / (freedom * freedom);
        student / (1.0 - share).max(0.5).sqrt()
    }

    /// The sums of as many cells as there are, in blocks drawn at random.
    pub fn draw(&self, random: &mut Random) -> [f64; K] {
        let mut sums = [0.0; K];
        let mut left = self.cells;
        while left > 0 {
            let length = self.length.min(left);
            let first = random.below(self.cells as u64) as usize;
            let (from, to) = (&self.before[first], &self.before[first + length]);
            for k in 0..K {
                sums[k] += to[k] - from[k];
            }
            left -= length;
        }
        sums
    }
}

/// The ends of the middle 95 % of `values`; `None` where there is none, or one is no number.
#[must_use]
pub fn interval(mut values: Vec<f64>) -> Option<(f64, f64)> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let outside = (values.len() as f64 * OUTSIDE) as usize;
    Some((values[outside], values[last - outside]))
}

/// Autocovariances of `values` at the lags 0 to `lags`.
fn autocovariances(values: &[f64], lags: usize) -> Vec<f64> {
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n as f64;
    let off: Vec<f64> = values.iter().map(|v| v - mean).collect();
    (0..=lags.min(n - 1))
        .map(|lag| autocovariance(&off, lag))
        .collect()
}

/// The autocovariance at one lag of values that are `off` their mean by so much.
fn autocovariance(off: &[f64], lag: usize) -> f64 {
    let products = off.iter().zip(&off[lag..]).map(|(a, b)| a * b);
    products.sum::<f64>() / off.len() as f64
}

/// The block length, in cells, that makes the error of a circular block bootstrap of the mean of
/// `values` smallest. At least n^(1/3), where likeness was not found but may be there; at most a
/// third of the sequence, so that a draw has three blocks.
#[must_use]
pub fn block_length(values: &[f64]) -> usize {
    let n = values.len();
    if n < 4 {
        return 1;
    }
    let size = n as f64;
    let most = (3.0 * size.sqrt()).min(size / 3.0).max(1.0);
    let least = size.cbrt().ceil().min(most);
    // How many lags in a row have to be negligible, and how far to look.
    let calm = (size.log10().sqrt().ceil() as usize).max(5);
    let lags = size.sqrt().ceil() as usize + calm;
    let r = autocovariances(values, lags);
    if r[0] <= 0.0 || !r[0].is_finite() {
        return least as usize;
    }
    let negligible = 2.0 * (size.log10() / size).sqrt() * r[0];
    let alike = (0..r.len())
        .find(|m| is_negligible(r[m + 1..].iter().take(calm), negligible))
        .unwrap_or(r.len());
    let window = (2 * alike).clamp(1, r.len() - 1);
    let (mut spectrum, mut slope) = (r[0], 0.0);
    for (k, c) in r.iter().enumerate().take(window + 1).skip(1) {
        let flat_top = (2.0 * (1.0 - k as f64 / window as f64)).clamp(0.0, 1.0);
        spectrum += 2.0 * flat_top * c;
        slope += 2.0 * flat_top * k as f64 * c;
    }
    let best = (1.5 * (slope / spectrum).powi(2)).cbrt() * size.cbrt();
    // Not above 0 where slow and fast take turns: then any length makes the interval too wide.
    let best = if spectrum > 0.0 { best } else { least };
    best.ceil().clamp(least, most) as usize
}

/// Whether there are autocovariances, and all of them are closer to 0 than `limit`.
fn is_negligible<'a>(mut values: impl ExactSizeIterator<Item = &'a f64>, limit: f64) -> bool {
    values.len() > 0 && values.all(|c| c.abs() < limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sequence around 0, each value of which keeps `likeness` of the one before.
    fn sequence(likeness: f64, n: usize, seed: u64) -> Vec<[f64; 1]> {
        let mut random = Random::new(seed);
        let mut even = || {
            let sum: u64 = (0..12).map(|_| random.draw() >> 32).sum();
            sum as f64 / 4_294_967_296.0 - 6.0
        };
        let mut last = even();
        let mut next = |_| {
            last = likeness * last + (1.0 - likeness * likeness).sqrt() * even();
            [last]
        };
        (0..n).map(&mut next).collect()
    }

    /// How many of 100 sequences around 0 have an interval that holds 0.
    fn held(likeness: f64, n: usize, length: Option<usize>) -> usize {
        let holds = |seed: &u64| {
            let cells = sequence(likeness, n, *seed);
            let values: Vec<f64> = cells.iter().map(|c| c[0]).collect();
            let length = length.unwrap_or_else(|| block_length(&values));
            let blocks = Blocks::new(&cells, length);
            let mut random = Random::new(*seed);
            let draws = (0..DRAWS).map(|_| blocks.draw(&mut random)[0]).collect();
            let (low, high) = interval(draws).expect("numbers");
            let (sum, wider) = (values.iter().sum::<f64>(), blocks.widening());
            let ends = (sum + (low - sum) * wider, sum + (high - sum) * wider);
            ends.0 <= 0.0 && 0.0 <= ends.1
        };
        (0..100).filter(holds).count()
    }

    #[test]
    fn an_interval_holds_the_truth_about_as_often_as_it_says() {
        for (likeness, n, least) in [
            (0.0, 30, 85),
            (0.0, 1000, 87),
            (0.5, 1000, 87),
            (0.9, 1000, 83),
        ] {
            let held = held(likeness, n, None);
            assert!(held >= least, "{held} of 100: likeness {likeness}, {n}");
        }
    }

    #[test]
    fn without_blocks_likeness_would_be_taken_for_knowledge() {
        let single = held(0.9, 1000, Some(1));
        assert!(single <= 60, "{single} of 100");
    }

    #[test]
    fn blocks_are_as_long_as_neighbours_are_alike() {
        let length = |likeness: f64| {
            let values = sequence(likeness, 1000, 3);
            block_length(&values.iter().map(|c| c[0]).collect::<Vec<_>>())
        };
        assert_eq!(length(0.0), 10);
        assert!((10..40).contains(&length(0.5)), "{}", length(0.5));
        assert!(length(0.95) > 2 * length(0.5), "{}", length(0.95));
        assert_eq!(block_length(&[1.0; 27]), 3);
        assert_eq!(block_length(&[]), 1);
    }

    #[test]
    fn an_interval_leaves_out_a_fortieth_on_each_side() {
        let ends = interval((0..999).rev().map(f64::from).collect());
        assert_eq!(ends, Some((24.0, 974.0)));
        assert_eq!(interval(Vec::new()), None);
        assert_eq!(interval(vec![1.0, f64::NAN]), None);
    }

    proptest! {
        #[test]
        fn a_draw_has_as_many_cells_as_there_are_and_only_values_that_are_there(
            values in proptest::collection::vec(0u32..1000, 1..80), length in 0usize..100, seed: u64
        ) {
            let cells: Vec<[f64; 2]> = values.iter().map(|v| [f64::from(*v), 1.0]).collect();
            let blocks = Blocks::new(&cells, length);
            let [sum, count] = blocks.draw(&mut Random::new(seed));
            prop_assert_eq!(count, values.len() as f64);
            let (least, most) = (values.iter().min().unwrap(), values.iter().max().unwrap());
            prop_assert!(sum >= f64::from(*least) * count && sum <= f64::from(*most) * count);
            prop_assert_eq!(blocks.draw(&mut Random::new(seed)), [sum, count]);
        }

        #[test]
        fn any_sequence_has_a_block_length_within_it(
            values in proptest::collection::vec(any::<f64>(), 0..100)
        ) {
            let length = block_length(&values);
            prop_assert!((1..=values.len().max(1)).contains(&length));
        }
    }
}
