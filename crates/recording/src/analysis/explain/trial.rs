//! Whether more of the slow requests lie in a set than chance puts there.
//!
//! Slow requests come in clusters: one bad flush holds up all who wait for it, a journal commit or
//! another machine's burst makes a hundred neighbours slow. A test that takes each for a witness of
//! its own finds causes everywhere. So:
//!
//! - Two comparisons, each blind to what drifts with time. *Within time*: in each block of
//!   neighbours the slow ones are dealt out anew, so only a contrast among requests of the same
//!   moment counts (device, file, process, kind, size). *Across time*: in each eighth of the
//!   recording they are dealt out anew; this is for what all requests of a moment share (the
//!   second of the minute).
//! - Counts are deflated by the design effect (Kish 1965; Rao and Scott 1984), so that what is
//!   left is a number of independent events: how much more the slow ones inside vary from one
//!   stretch of the inside to the next than independent ones would (Pearson's dispersion, for
//!   stretches of a few requests up to an 8th of all; outside likewise). A cluster counts once,
//!   even if all clusters point the same way. A disk that is bad now and then, for ten seconds
//!   each, has few events; a process that is slow all its short life has many. Across time, what
//!   is common to whole periods is dealt out by periods (64 of them): the variance of their
//!   surplus, about zero, over that of requests. So one process that happens to live in one bad
//!   minute is one event.
//! - What is left is a binomial tail, which bounds the exact one ([`super::odds::ln_tail`]).
//!
//! That is what permuting blocks would give, without the millions of permutations that p values
//! after so many hypotheses need.
//!
//! What it does not do: correct for how many sets are tried; the caller knows that.

use super::odds::ln_tail;
use super::set::{Layout, Set};

/// Stretches between which slow ones are compared with each other.
const STRETCHES: [usize; 7] = [512, 256, 128, 64, 32, 16, 8];
/// Groups of equal size across time.
const PERIODS: usize = 64;
/// Parts of the recording within which times are compared.
const WINDOWS: usize = 8;
/// The least lift that is worth a word.
const LIFT_MIN: f64 = 1.5;
/// Where most requests are inside, no lift is that great: how many times as likely a slow one has
/// to be inside as outside instead, and the least lift then.
const RATIO_MIN: f64 = 2.0;
const WIDE_LIFT_MIN: f64 = 1.15;

/// Requests inside and outside of a set, in one stratum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Requests.
    pub total: f64,
    /// Slow ones.
    pub slow: f64,
    /// Requests inside.
    pub inside: f64,
    /// Slow ones inside.
    pub slow_inside: f64,
}

impl Counts {
    fn of(cell: &[u64], set: &[u64], slow: &[u64]) -> Counts {
        let mut n = [0u32; 4];
        for ((c, i), s) in cell.iter().zip(set).zip(slow) {
            n[0] += c.count_ones();
            n[1] += (c & s).count_ones();
            n[2] += (c & i).count_ones();
            n[3] += (c & i & s).count_ones();
        }
        let [total, slow, inside, slow_inside] = n.map(f64::from);
        Counts {
            total,
            slow,
            inside,
            slow_inside,
        }
    }

    /// Those of one block of a cell.
    fn of_block(layout: &Layout, block: usize, cell: &Set, set: &Set, slow: &Set) -> Counts {
        let (inside, slow) = (set.words(layout, block), slow.words(layout, block));
        Counts::of(cell.words(layout, block), inside, slow)
    }

    fn add(&mut self, other: &Counts) {
        self.total += other.total;
        self.slow += other.slow;
        self.inside += other.inside;
        self.slow_inside += other.slow_inside;
    }

    /// Whether it has an inside and an outside, slow ones and others.
    fn tells(&self) -> bool {
        self.inside > 0.0 && self.inside < self.total && self.slow > 0.0 && self.slow < self.total
    }

    /// Slow ones that chance puts inside.
    fn expected(&self) -> f64 {
        self.inside * self.slow / self.total
    }

    /// The surplus of slow ones inside, where `rates` are those of the stratum.
    fn surplus(&self, rates: &Counts) -> f64 {
        let (r, p) = (rates.inside / rates.total, rates.slow / rates.total);
        self.slow_inside - r * self.slow - p * self.inside + r * p * self.total
    }

    /// Its variance if each request is a witness of its own.
    fn variance(&self, rates: &Counts) -> f64 {
        let (r, p) = (rates.inside / rates.total, rates.slow / rates.total);
        let (q, o) = ((1.0 - p).powi(2), (1.0 - r).powi(2));
        let (p, r) = (p.powi(2), r.powi(2));
        let fast_inside = self.inside - self.slow_inside;
        let slow_outside = self.slow - self.slow_inside;
        let fast_outside = (self.total - self.inside - slow_outside).max(0.0);
        self.slow_inside * o * q + fast_inside * o * p + slow_outside * r * q + fast_outside * r * p
    }
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Logarithm of the probability that chance does as much.
    pub ln_p: f64,
    /// Independent slow ones inside.
    pub hits: f64,
    /// Independent slow ones.
    pub draws: f64,
    /// Their share that chance puts inside.
    pub share: f64,
    /// How many requests stand for one that is independent.
    pub effect: f64,
    /// Slow ones inside over those that chance puts there.
    pub lift: f64,
    /// How many times as likely a slow one is inside as outside.
    pub ratio: f64,
}

impl Evidence {
    /// No evidence at all.
    pub const NONE: Evidence = Evidence {
        ln_p: 0.0,
        hits: 0.0,
        draws: 0.0,
        share: 1.0,
        effect: 1.0,
        lift: 1.0,
        ratio: 1.0,
    };

    fn new(slow_inside: f64, slow: f64, expected: f64, effect: f64) -> Evidence {
        if slow <= 0.0 || expected <= 0.0 || expected >= slow {
            return Evidence::NONE;
        }
        let effect = if effect.is_finite() {
            effect.max(1.0)
        } else {
            slow
        };
        let (hits, draws, share) = (slow_inside / effect, slow / effect, expected / slow);
        let lift = slow_inside / expected;
        let outside = (slow - slow_inside) / (slow - expected);
        let ln_p = if slow_inside > expected {
            ln_tail(hits, draws, share)
        } else {
            0.0
        };
        Evidence {
            ln_p,
            hits,
            draws,
            share,
            effect,
            lift,
            ratio: lift / outside.max(1e-9),
        }
    }

    /// Whether the difference is worth a word, were it certain.
    fn is_large(&self) -> bool {
        is_large(self.lift, self.ratio)
    }
}

/// Whether a lift is worth a word; `ratio` is that of the shares inside and outside.
pub fn is_large(lift: f64, ratio: f64) -> bool {
    lift >= LIFT_MIN || (ratio >= RATIO_MIN && lift >= WIDE_LIFT_MIN)
}

/// Surplus and variance of a block.
type Block = (f64, f64);

fn sum(blocks: &[Block]) -> Block {
    blocks
        .iter()
        .fold((0.0, 0.0), |s, b| (s.0 + b.0, s.1 + b.1))
}

/// The design effect if the blocks are what is independent.
fn effect_of(blocks: &[Block]) -> f64 {
    let variance: f64 = blocks.iter().map(|b| b.1).sum();
    if variance <= 0.0 {
        return 1.0;
    }
    blocks.iter().map(|b| b.0 * b.0).sum::<f64>() / variance
}

/// Slow ones of a block, and how many there would be at the same rate everywhere.
type Rate = (f64, f64);

/// How many slow ones come together, from how they vary between stretches: 1 if independently.
fn dispersion(blocks: &[Rate]) -> f64 {
    let expected: f64 = blocks.iter().map(|b| b.1).sum();
    if expected <= 0.0 {
        return 1.0;
    }
    STRETCHES
        .map(|stretches| dispersion_between(stretches, blocks, expected))
        .into_iter()
        .fold(1.0, f64::max)
}

/// How many slow ones come together, from how they vary between so many stretches.
fn dispersion_between(stretches: usize, blocks: &[Rate], expected: f64) -> f64 {
    let (mut one, mut before) = ((0.0, 0.0), 0.0);
    let (mut sum, mut count) = (0.0, 0u32);
    for (seen, e) in blocks {
        one.0 += seen;
        one.1 += e;
        before += e;
        let ends = before >= expected * f64::from(count + 1) / stretches as f64;
        if ends && one.1 > 0.0 {
            sum += (one.0 - one.1).powi(2) / one.1;
            count += 1;
            one = (0.0, 0.0);
        }
    }
    // What chance alone makes of it counts for nothing: one and a half standard deviations.
    let free = f64::from(count.max(2) - 1);
    sum / free / (1.0 + 1.5 * (2.0 / free).sqrt())
}

/// The slow ones inside and outside, block by block.
struct Rates {
    inside: Vec<Rate>,
    outside: Vec<Rate>,
}

impl Rates {
    fn of(layout: &Layout, cells: &[Set], set: &Set, slow: &Set) -> Rates {
        let blocks = layout.blocks();
        let mut rates = Rates {
            inside: vec![(0.0, 0.0); blocks],
            outside: vec![(0.0, 0.0); blocks],
        };
        for cell in cells {
            let mut all = Counts::default();
            for block in 0..blocks {
                all.add(&Counts::of_block(layout, block, cell, set, slow));
            }
            if !all.tells() {
                continue;
            }
            let inside = all.slow_inside / all.inside;
            let outside = (all.slow - all.slow_inside) / (all.total - all.inside);
            for block in 0..blocks {
                let c = Counts::of_block(layout, block, cell, set, slow);
                rates.inside[block].0 += c.slow_inside;
                rates.inside[block].1 += inside * c.inside;
                rates.outside[block].0 += c.slow - c.slow_inside;
                rates.outside[block].1 += outside * (c.total - c.inside);
            }
        }
        rates
    }

    /// The design effect of clusters of any length on the surplus, where chance puts `share` of the
    /// slow ones inside.
    fn effect(&self, share: f64) -> f64 {
        let slow_inside: f64 = self.inside.iter().map(|b| b.0).sum();
        let slow_outside: f64 = self.outside.iter().map(|b| b.0).sum();
        let inside = slow_inside * (1.0 - share).powi(2);
        let outside = slow_outside * share.powi(2);
        if inside + outside <= 0.0 {
            return 1.0;
        }
        let together = dispersion(&self.inside) * inside + dispersion(&self.outside) * outside;
        together / (inside + outside)
    }
}

/// Compares among neighbours in time. `cells` divide the requests that are looked at into strata.
fn within_time(layout: &Layout, cells: &[Set], set: &Set, slow: &Set, rates: &Rates) -> Evidence {
    let (mut hits, mut draws, mut expected) = (0.0, 0.0, 0.0);
    for block in 0..layout.blocks() {
        let (inside, slow) = (set.words(layout, block), slow.words(layout, block));
        for cell in cells {
            let c = Counts::of(cell.words(layout, block), inside, slow);
            if c.tells() {
                hits += c.slow_inside;
                draws += c.slow;
                expected += c.expected();
            }
        }
    }
    Evidence::new(hits, draws, expected, rates.effect(expected / draws))
}

/// Compares times with each other.
fn across_time(
    layout: &Layout,
    cells: &[Set],
    set: &Set,
    slow: &Set,
    clusters: &Rates,
) -> Evidence {
    let all = layout.blocks();
    let mut fine: Vec<Block> = vec![(0.0, 0.0); all];
    let (mut hits, mut draws, mut expected) = (0.0, 0.0, 0.0);
    let mut counts: Vec<Counts> = Vec::with_capacity(all / WINDOWS + 1);
    for cell in cells {
        for window in 0..WINDOWS {
            let (first, last) = (all * window / WINDOWS, all * (window + 1) / WINDOWS);
            counts.clear();
            let blocks = first..last;
            counts.extend(blocks.map(|b| Counts::of_block(layout, b, cell, set, slow)));
            let mut rates = Counts::default();
            counts.iter().for_each(|c| rates.add(c));
            if !rates.tells() {
                continue;
            }
            for (block, c) in (first..last).zip(&counts) {
                fine[block].0 += c.surplus(&rates);
                fine[block].1 += c.variance(&rates);
            }
            hits += rates.slow_inside;
            draws += rates.slow;
            expected += rates.expected();
        }
    }
    let periods: Vec<Block> = (0..PERIODS)
        .map(|k| sum(&fine[all * k / PERIODS..all * (k + 1) / PERIODS]))
        .collect();
    let effect = effect_of(&periods).max(clusters.effect(expected / draws));
    Evidence::new(hits, draws, expected, effect)
}

/// The better of both comparisons, where it is large enough; its probability is doubled for the
/// choice.
pub fn trial(layout: &Layout, cells: &[Set], set: &Set, slow: &Set) -> Evidence {
    let rates = Rates::of(layout, cells, set, slow);
    let both = [
        within_time(layout, cells, set, slow, &rates),
        across_time(layout, cells, set, slow, &rates),
    ];
    let large = both.into_iter().filter(Evidence::is_large);
    let best = large.min_by(|a, b| a.ln_p.total_cmp(&b.ln_p));
    let mut best = best.unwrap_or(Evidence::NONE);
    best.ln_p = (best.ln_p + 2f64.ln()).min(0.0);
    best
}

/// The comparison of times alone: for what all requests of a moment share.
pub fn trial_of_times(layout: &Layout, cells: &[Set], set: &Set, slow: &Set) -> Evidence {
    let rates = Rates::of(layout, cells, set, slow);
    let found = across_time(layout, cells, set, slow, &rates);
    if found.is_large() {
        found
    } else {
        Evidence::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sets(total: usize, set: fn(usize) -> bool, slow: fn(usize) -> bool) -> (Layout, Set, Set) {
        let layout = Layout::new(total);
        (layout, Set::of(&layout, set), Set::of(&layout, slow))
    }

    fn both(total: usize, set: fn(usize) -> bool, slow: fn(usize) -> bool) -> (f64, f64) {
        let (layout, set, slow) = sets(total, set, slow);
        let all = [Set::all(&layout)];
        let rates = Rates::of(&layout, &all, &set, &slow);
        let one = within_time(&layout, &all, &set, &slow, &rates).ln_p;
        (one, across_time(&layout, &all, &set, &slow, &rates).ln_p)
    }

    #[test]
    fn slow_ones_that_all_lie_in_a_mixed_set_are_evidence() {
        let (within, _) = both(5000, |i| i % 2 == 0, |i| i % 34 == 0);
        assert!(within < -20.0, "{within}");
    }

    #[test]
    fn one_long_episode_in_one_long_set_is_none() {
        let set = |i: usize| (2000..2600).contains(&i);
        let (within, across) = both(10_000, set, |i| (2010..2590).contains(&i));
        assert!(within > -7.0 && across > -7.0, "{within} {across}");
    }

    #[test]
    fn a_set_and_slow_ones_that_both_grow_with_time_are_none() {
        // Shares that rise from 0 to 1 with time, independent of each other at each moment.
        let set = |i: usize| i.wrapping_mul(7919) % 20_000 < i;
        let slow = |i: usize| i.wrapping_mul(104_729) % 40_000 < i;
        let (layout, set, slow) = sets(20_000, set, slow);
        let found = trial(&layout, &[Set::all(&layout)], &set, &slow);
        assert_eq!(found.ln_p, 0.0);
    }

    #[test]
    fn every_minute_s_first_second_is_evidence_across_time() {
        let (_, across) = both(60_000, |i| i % 3000 < 50, |i| i % 3000 < 40);
        assert!(across < -20.0, "{across}");
    }

    #[test]
    fn what_a_stratum_explains_is_none() {
        let (layout, cause, slow) = sets(8000, |i| i % 4 == 0, |i| i % 20 == 0);
        let proxy = Set::of(&layout, |i| i % 4 == 0 && i % 3 == 0);
        let all = Set::all(&layout);
        let cells = [all.and(&cause), all.without(&cause)];
        assert!(trial(&layout, &cells, &proxy, &slow).ln_p > -3.0);
        assert!(trial(&layout, &[all], &proxy, &slow).ln_p < -3.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_sets_give_finite_evidence(
            a in proptest::collection::vec(any::<(bool, bool)>(), 1..3000)
        ) {
            let layout = Layout::new(a.len());
            let (set, slow) = (Set::of(&layout, |i| a[i].0), Set::of(&layout, |i| a[i].1));
            let found = trial(&layout, &[Set::all(&layout)], &set, &slow);
            prop_assert!(found.ln_p <= 0.0 && found.ln_p > -60.0, "{found:?}");
            prop_assert!(found.effect >= 1.0);
        }
    }
}
