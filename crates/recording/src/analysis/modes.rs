//! Whether durations have one speed or several: "92 % near 0.2 ms, 8 % near 31 ms".
//!
//! Durations are looked at on a logarithmic scale. There are two modes where a stretch of that
//! scale, the valley, is much thinner than a stretch below and a stretch above it, and so much
//! thinner that chance is no explanation. A long tail only gets thinner, so it makes no mode.
//!
//! How sure: for one density that rises and then falls, the share of values that fall into the
//! valley, out of those in the valley and the stretch beside it, is at least the valley's share of
//! the width of both. The bound of Chernoff says how improbable as few values as were found are
//! then. Less than `CHANCE_LN`, which leaves room for the thousands of valleys that are tried,
//! on both sides, is a valley. A part that holds less than `SHARE_MIN` of all is an exception and
//! no mode, and modes less than `APART_MIN` apart make no difference to anybody.

use super::stats::rank;
use serde::Serialize;

/// Steps of the scale in an octave.
const STEPS: usize = 8;
/// Logarithm of the probability below which chance is no explanation: 1 in a million.
const CHANCE_LN: f64 = -13.8;
/// The density of a valley, at most, as a share of that on either side.
const DEPTH_MAX: f64 = 0.5;
/// The least share of a mode.
const SHARE_MIN: f64 = 0.005;
/// The least ratio of the medians of two neighbours.
const APART_MIN: f64 = 3.0;
/// Widths of the stretches beside a valley, in steps.
const WIDTHS: [usize; 6] = [2, 4, 8, 16, 24, 32];
/// The widest valley that is tried, in steps.
const VALLEY_MAX: usize = 64;
/// The most modes that are told apart.
pub const MODES_MAX: usize = 4;

/// One of the speeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mode {
    /// Its share of all values, from 0 to 1.
    pub share: f64,
    /// Its median.
    pub near_ns: u64,
    /// Its least value.
    pub from_ns: u64,
    /// The end of its range: the valley above it, or its greatest value.
    pub to_ns: u64,
    /// How many values.
    pub n: u64,
}

/// Sorted values, looked at by place.
struct Sorted<F> {
    n: usize,
    at: F,
}

impl<F: Fn(usize) -> u64> Sorted<F> {
    /// How many values, of those from `from` on, are below `bound`.
    fn below(&self, bound: u64) -> usize {
        let (mut low, mut high) = (0, self.n);
        while low < high {
            let middle = low + (high - low) / 2;
            if (self.at)(middle) < bound {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The median of those at the places from `low` to before `high`.
    fn median(&self, low: usize, high: usize) -> u64 {
        (self.at)(low + rank(high - low, 5_000))
    }

    /// The mode of those at these places; `valley` is the one above it, where there is one.
    fn mode(&self, low: usize, high: usize, valley: Option<u64>) -> Mode {
        Mode {
            share: (high - low) as f64 / self.n as f64,
            near_ns: self.median(low, high),
            from_ns: (self.at)(low),
            to_ns: valley.unwrap_or_else(|| (self.at)(self.n - 1)),
            n: (high - low) as u64,
        }
    }
}

/// The bound at a step of the scale; the first is 0.
fn bound(step: usize) -> u64 {
    match step {
        0 => 0,
        // Saturates at the end of the scale.
        s => 2f64.powf(s as f64 / STEPS as f64) as u64,
    }
}

/// The modes of `n` sorted values, slowest last; `at` gives the value at a place. One mode where
/// there is no valley; none without values.
#[must_use]
pub fn find(n: usize, at: impl Fn(usize) -> u64) -> Vec<Mode> {
    if n == 0 {
        return Vec::new();
    }
    let sorted = Sorted { n, at };
    let counts: Vec<usize> = (0..=64 * STEPS).map(|s| sorted.below(bound(s))).collect();
    let mut valleys = Vec::new();
    split(&counts, 0, 64 * STEPS, n, &sorted, &mut valleys);
    valleys.sort_unstable();
    let mut edges = vec![0];
    edges.extend(valleys.iter().map(|v| sorted.below(*v)));
    edges.push(n);
    let parts = edges.windows(2).enumerate();
    parts
        .filter(|(_, w)| w[1] > w[0])
        .map(|(k, w)| sorted.mode(w[0], w[1], valleys.get(k).copied()))
        .collect()
}

/// Where the slow ones begin: the valley below the uppermost mode, if there is more than one.
#[must_use]
pub fn slow_from(modes: &[Mode]) -> Option<u64> {
    let below = modes.len().checked_sub(2)?;
    Some(modes[below].to_ns)
}

/// Finds the clearest valley between two steps, then those on either side of it.
fn split<F: Fn(usize) -> u64>(
    counts: &[usize],
    from: usize,
    to: usize,
    n: usize,
    sorted: &Sorted<F>,
    valleys: &mut Vec<u64>,
) {
    if valleys.len() + 1 >= MODES_MAX {
        return;
    }
    let Some(valley) = clearest(counts, from, to, n, sorted) else {
        return;
    };
    valleys.push(bound(valley));
    split(counts, from, valley, n, sorted, valleys);
    split(counts, valley, to, n, sorted, valleys);
}

/// The step in the middle of the clearest valley.
fn clearest<F: Fn(usize) -> u64>(
    counts: &[usize],
    from: usize,
    to: usize,
    n: usize,
    sorted: &Sorted<F>,
) -> Option<usize> {
    // Empty stretches at the ends hold no valley.
    let first = (from..to).find(|s| counts[s + 1] > counts[from])?;
    let last = (from..to).rev().find(|s| counts[*s] < counts[to])? + 1;
    let mut best: Option<(f64, usize)> = None;
    for a in first + 1..last {
        for b in a + 1..last.min(a + VALLEY_MAX + 1) {
            let middle = (a + b) / 2;
            if !are_modes(counts, (from, middle, to), n) {
                continue;
            }
            let sure = improbability(counts, (a, b), (from, to));
            if sure < CHANCE_LN && best.is_none_or(|(other, _)| sure < other) {
                best = Some((sure, middle));
            }
        }
    }
    let middle = best?.1;
    let low = sorted.median(counts[from], counts[middle]) as f64;
    let high = sorted.median(counts[middle], counts[to]) as f64;
    (high >= APART_MIN * low).then_some(middle)
}

/// Whether both sides of a step hold enough to be a mode.
fn are_modes(counts: &[usize], (from, middle, to): (usize, usize, usize), n: usize) -> bool {
    let least = SHARE_MIN * n as f64;
    let sides = [counts[middle] - counts[from], counts[to] - counts[middle]];
    sides.iter().all(|side| *side as f64 >= least && *side > 0)
}

/// Logarithm of the probability of so empty a stretch from `a` to `b` by chance: of its less
/// improbable side, at that side's clearest width. The stretches beside it end at `from` and `to`.
fn improbability(counts: &[usize], (a, b): (usize, usize), (from, to): (usize, usize)) -> f64 {
    let valley = (counts[b] - counts[a], b - a);
    let (mut below, mut above) = (0f64, 0f64);
    for w in WIDTHS {
        if a >= from + w {
            below = below.min(chance_ln(valley, (counts[a] - counts[a - w], w)));
        }
        if b + w <= to {
            above = above.min(chance_ln(valley, (counts[b + w] - counts[b], w)));
        }
    }
    below.max(above)
}

/// Of a valley and a stretch beside it, each a count and a width: the logarithm of a bound for the
/// probability of so few in the valley, were it as dense as the stretch. 0 where it is not thin.
fn chance_ln(valley: (usize, usize), beside: (usize, usize)) -> f64 {
    let n = (valley.0 + beside.0) as f64;
    if beside.0 == 0 {
        return 0.0;
    }
    let density = valley.0 as f64 / valley.1 as f64;
    let density_beside = beside.0 as f64 / beside.1 as f64;
    if density > DEPTH_MAX * density_beside {
        return 0.0;
    }
    let p = valley.0 as f64 / n;
    let q = valley.1 as f64 / (valley.1 + beside.1) as f64;
    -n * (divergence(p, q) + divergence(1.0 - p, 1.0 - q))
}

/// What one outcome adds to the divergence of Kullback and Leibler; `p` and `q` are its shares.
fn divergence(p: f64, q: f64) -> f64 {
    if p > 0.0 {
        p * (p / q).ln()
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use synclater_random::Random;

    /// Log-normal: its median, and the deviation of its natural logarithm.
    fn log_normal(random: &mut Random, median: f64, spread: f64) -> u64 {
        let radius = (-2.0 * (1.0 - random.part()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.part()).cos();
        (median * (spread * normal).exp()) as u64
    }

    fn modes(mut values: Vec<u64>) -> Vec<Mode> {
        values.sort_unstable();
        find(values.len(), |k| values[k])
    }

    #[test]
    fn no_values_have_no_mode_and_one_value_has_one() {
        assert!(modes(Vec::new()).is_empty());
        for value in [0, 1, 7, u64::MAX] {
            let one = modes(vec![value]);
            assert_eq!((one.len(), one[0].near_ns, one[0].n), (1, value, 1));
        }
        assert_eq!(modes(vec![5; 1000]).len(), 1);
    }

    #[test]
    fn eight_in_a_hundred_near_31_ms_are_a_mode() {
        let mut random = Random::new(1);
        let mut values: Vec<u64> = (0..92).map(|_| log_normal(&mut random, 2e5, 0.3)).collect();
        values.extend((0..8).map(|_| log_normal(&mut random, 3.1e7, 0.1)));
        let found = modes(values);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].n, found[1].n), (92, 8));
        let slow = slow_from(&found).expect("two modes");
        assert!((1_000_000..31_000_000).contains(&slow), "{slow}");
    }

    #[test]
    fn three_speeds_are_three_modes() {
        let mut random = Random::new(2);
        let median = |k: u32| [5e3, 3e5, 2e7][k as usize % 3];
        let values = (0..9_000).map(|k| log_normal(&mut random, median(k), 0.3));
        let found = modes(values.collect());
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.windows(2).all(|w| w[0].to_ns <= w[1].from_ns));
    }

    #[test]
    fn a_few_outliers_are_no_mode() {
        let mut random = Random::new(3);
        let mut values: Vec<u64> = (0..10_000)
            .map(|_| log_normal(&mut random, 2e5, 0.3))
            .collect();
        values.extend((0..40).map(|_| log_normal(&mut random, 3e7, 0.2)));
        assert_eq!(modes(values).len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn one_log_normal_with_a_tail_has_one_mode(
            seed in any::<u64>(), n in 1usize..40_000, spread in 0.02f64..1.5,
            tail in 0.0f64..0.3, weight in 0.5f64..4.0
        ) {
            let mut random = Random::new(seed);
            let value = |random: &mut Random| {
                let body = log_normal(random, 2e5, spread) as f64;
                // A tail as of a power law, which begins at the body.
                let stretch = if random.part() < tail {
                    (1.0 - random.part()).powf(-1.0 / weight)
                } else {
                    1.0
                };
                (body * stretch) as u64
            };
            let values = (0..n).map(|_| value(&mut random)).collect();
            let found = modes(values);
            prop_assert_eq!(found.len(), 1, "{:?}", found);
        }

        #[test]
        fn one_in_a_hundred_five_times_as_slow_is_found(
            seed in any::<u64>(), n in 5_000usize..30_000, spread in 0.02f64..0.25,
            apart in 5f64..500.0, share in 0.01f64..0.5
        ) {
            let mut random = Random::new(seed);
            let slow = (n as f64 * share) as usize;
            let mut values: Vec<u64> = (0..n - slow)
                .map(|_| log_normal(&mut random, 2e5, spread))
                .collect();
            values.extend((0..slow).map(|_| log_normal(&mut random, 2e5 * apart, spread)));
            let found = modes(values);
            prop_assert_eq!(found.len(), 2, "{:?}", found);
            let near = |mode: &Mode, want: f64| (mode.near_ns as f64 / want - 1.0).abs() < 0.1;
            prop_assert!(near(&found[0], 2e5) && near(&found[1], 2e5 * apart), "{:?}", found);
            prop_assert!((found[1].share - share).abs() < 0.005, "{:?}", found);
        }

        #[test]
        fn modes_share_out_all_values_in_order(
            values in proptest::collection::vec((0u32..64, any::<u64>()), 1..400)
        ) {
            let mut values: Vec<u64> = values.into_iter().map(|(s, v)| v >> s).collect();
            let found = modes(values.clone());
            values.sort_unstable();
            prop_assert_eq!(found.iter().map(|m| m.n).sum::<u64>(), values.len() as u64);
            prop_assert!((found.iter().map(|m| m.share).sum::<f64>() - 1.0).abs() < 1e-9);
            for m in &found {
                prop_assert!(m.from_ns <= m.near_ns && m.near_ns <= m.to_ns);
            }
        }
    }
}
