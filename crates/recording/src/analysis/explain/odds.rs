//! How improbable a count is by chance: tails of the binomial distribution, for counts that need
//! not be whole.
//!
//! Promise: everything is finite and in order for any input; results are natural logarithms, so
//! that a probability of 1e-4000 is not 0.

use std::f64::consts::PI;

/// The logarithm of the gamma function, for x > 0 (Lanczos, g = 7).
fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (PI / (PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let others = C.iter().enumerate().skip(1);
    let sum = others.fold(C[0], |sum, (i, c)| sum + c / (x + i as f64));
    0.5 * (2.0 * PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The continued fraction of the incomplete beta function (Lentz).
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    /// It takes about the square root of the counts; this is enough for 1e9.
    const STEPS: u32 = 40_000;
    let mut c = 1.0;
    let mut d = 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for m in 1..STEPS {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / not_zero(1.0 + even * d);
        c = not_zero(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / not_zero(1.0 + odd * d);
        c = not_zero(1.0 + odd / c);
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-12 {
            break;
        }
    }
    h
}

/// A number that can be divided by: one that is about 0 becomes a tiny one.
fn not_zero(v: f64) -> f64 {
    const TINY: f64 = 1e-300;
    if v.abs() < TINY {
        TINY
    } else {
        v
    }
}

/// Logarithm of the regularized incomplete beta function.
fn ln_beta(x: f64, a: f64, b: f64) -> f64 {
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    if x < (a + 1.0) / (a + b + 2.0) {
        return (front + (fraction(a, b, x) / a).ln()).min(0.0);
    }
    let rest = (front + (fraction(b, a, 1.0 - x) / b).ln()).exp();
    (-rest.min(1.0)).ln_1p()
}

/// Logarithm of the probability of `hits` or more in `draws`, each a hit with probability `share`.
///
/// It bounds the tail of the hypergeometric distribution (a fixed number of slow ones is dealt out
/// to all requests) and that of draws whose probabilities differ and have `share` as their mean
/// (Hoeffding 1956, 1963). Counts that need not be whole come from [`super::trial`].
pub fn ln_tail(hits: f64, draws: f64, share: f64) -> f64 {
    let known = hits.is_finite() && draws.is_finite() && share.is_finite();
    if !known || hits <= 0.0 || share >= 1.0 {
        return 0.0;
    }
    if share <= 0.0 {
        return f64::NEG_INFINITY;
    }
    ln_beta(share, hits, (draws - hits).max(0.0) + 1.0)
}

/// The least share for which as many hits are not too improbable: the lower end of the interval of
/// Clopper and Pearson, at a probability of `exp(ln_level)`.
pub fn lower_bound(hits: f64, draws: f64, ln_level: f64) -> f64 {
    if hits.is_nan() || draws.is_nan() || hits <= 0.0 || draws <= 0.0 {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, (hits / draws).min(1.0));
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if ln_tail(hits, draws, middle) < ln_level {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// How much a division into inside and outside tells about which requests are slow: the G statistic
/// of the table, in nats, positive where the inside has more slow ones than its share.
pub fn information(slow_inside: f64, inside: f64, slow: f64, total: f64) -> f64 {
    let (outside, fast) = (total - inside, total - slow);
    let g = of_cell(slow_inside, inside * slow, total)
        + of_cell(slow - slow_inside, outside * slow, total)
        + of_cell(inside - slow_inside, inside * fast, total)
        + of_cell(outside - (slow - slow_inside), outside * fast, total);
    if slow_inside * total >= slow * inside {
        g.max(0.0)
    } else {
        -g.max(0.0)
    }
}

/// What a cell of the table tells, where the sums of its row and its column have this product.
fn of_cell(seen: f64, product: f64, total: f64) -> f64 {
    if seen <= 0.0 {
        0.0
    } else {
        seen * (seen * total / product).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tail, added up.
    fn added_up(hits: u64, draws: u64, share: f64) -> f64 {
        let choose = |k: u64| {
            ln_gamma(draws as f64 + 1.0)
                - ln_gamma(k as f64 + 1.0)
                - ln_gamma((draws - k) as f64 + 1.0)
        };
        let term = |k: u64| {
            (choose(k) + k as f64 * share.ln() + (draws - k) as f64 * (1.0 - share).ln()).exp()
        };
        (hits..=draws).map(term).sum()
    }

    #[test]
    fn ten_heads_in_ten_throws_are_one_in_1024() {
        assert!((ln_tail(10.0, 10.0, 0.5).exp() - 1.0 / 1024.0).abs() < 1e-12);
        assert!((ln_gamma(11.0).exp() - 3_628_800.0).abs() < 1e-3);
    }

    #[test]
    fn a_tail_far_out_is_not_zero() {
        let tail = ln_tail(1e6, 1e6, 0.01);
        assert!((tail / (1e6 * 0.01f64.ln()) - 1.0).abs() < 1e-6, "{tail}");
    }

    #[test]
    fn what_divides_slow_from_fast_exactly_tells_most() {
        let all = information(50.0, 500.0, 50.0, 1000.0);
        assert!(all > information(45.0, 500.0, 50.0, 1000.0));
        assert!(all > information(50.0, 900.0, 50.0, 1000.0));
        assert!(information(25.0, 500.0, 50.0, 1000.0).abs() < 1e-9);
        assert!(information(5.0, 500.0, 50.0, 1000.0) < 0.0);
    }

    proptest! {
        #[test]
        fn a_tail_is_the_sum_of_its_terms(
            draws in 1u64..300, part in 0.0f64..1.0, share in 0.001f64..0.999
        ) {
            let hits = ((draws as f64 * part) as u64).max(1);
            let want = added_up(hits, draws, share);
            let got = ln_tail(hits as f64, draws as f64, share).exp();
            prop_assert!((got - want).abs() < 1e-9 + want * 1e-6, "{got} {want}");
        }

        #[test]
        fn any_input_gives_a_logarithm_of_a_probability(
            hits in proptest::num::f64::ANY, draws in proptest::num::f64::ANY,
            share in proptest::num::f64::ANY
        ) {
            let (hits, draws) = (hits.clamp(-1.0, 1e9), draws.clamp(-1.0, 1e9));
            let tail = ln_tail(hits, draws, share);
            prop_assert!(!tail.is_nan() && tail <= 1e-9, "{tail}");
            let bound = lower_bound(hits, draws, -10.0);
            prop_assert!((0.0..=1.0).contains(&bound));
        }

        #[test]
        fn a_lower_bound_is_a_share_at_which_the_count_is_improbable(
            draws in 1u64..500, part in 0.0f64..1.0
        ) {
            let hits = ((draws as f64 * part) as u64).max(1) as f64;
            let low = lower_bound(hits, draws as f64, 0.01f64.ln());
            prop_assert!(low <= hits / draws as f64);
            prop_assert!(ln_tail(hits, draws as f64, low) < 0.0101f64.ln());
        }
    }
}
