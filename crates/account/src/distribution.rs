//! How times are distributed: bins of equal ratio, and a line of blocks over a logarithmic axis.
//!
//! Promise: each time is in exactly one bin, and a column with anything in it is never blank.
//!
//! What it does not do: nothing is smoothed. The height of a block is the share of its column in
//! the highest one of its line, so that lines compare in shape, not in number.

use serde::Serialize;
use synclater_text::layout::width;
use synclater_text::number::seconds;

/// Bins of a decade.
const BINS: f64 = 10.0;
/// Times below count as this one: no clock tells them apart, and 0 has no logarithm.
const SHORTEST_S: f64 = 1e-9;
/// Times above count as this one, a century.
const LONGEST_S: f64 = 1e9 * 3.2;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How many times lie from one bound to the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Lower bound in seconds, itself within.
    pub from_s: f64,
    /// Upper bound in seconds, itself outside.
    pub to_s: f64,
    /// How many.
    pub n: u64,
}

fn within(time_s: f64) -> f64 {
    if time_s.is_nan() {
        return SHORTEST_S;
    }
    time_s.clamp(SHORTEST_S, LONGEST_S)
}

fn edge(at: i32) -> f64 {
    10f64.powf(f64::from(at) / BINS)
}

/// The bins that hold any of the times, ten to a decade, shortest first.
#[must_use]
pub fn bins(times_s: &[f64]) -> Vec<Bin> {
    let mut counts = std::collections::BTreeMap::new();
    for time_s in times_s {
        let time_s = within(*time_s);
        let mut at = (time_s.log10() * BINS).floor() as i32;
        // At an edge the logarithm may round to the other side.
        if time_s < edge(at) {
            at -= 1;
        } else if time_s >= edge(at + 1) {
            at += 1;
        }
        *counts.entry(at).or_insert(0) += 1;
    }
    counts
        .into_iter()
        .map(|(at, n)| Bin {
            from_s: edge(at),
            to_s: edge(at + 1),
            n,
        })
        .collect()
}

/// A logarithmic axis of whole decades.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// Its begin: ten to the power of this, in seconds.
    first: i32,
    decades: usize,
    /// Columns of a decade.
    each: usize,
}

impl Axis {
    /// Over all times from the shortest to the longest, in at most `columns` if they suffice for
    /// one a decade; its scale takes one more.
    #[must_use]
    pub fn over(shortest_s: f64, longest_s: f64, columns: usize) -> Axis {
        let (shortest_s, longest_s) = (within(shortest_s), within(longest_s));
        let mut first = shortest_s.log10().floor() as i32;
        // As for bins: powers of ten are not exact.
        if shortest_s < power(first) {
            first -= 1;
        }
        let mut last = first + 1;
        while power(last) <= longest_s {
            last += 1;
        }
        let decades = usize::try_from(last - first).unwrap_or(1);
        Axis {
            first,
            decades,
            each: (columns / decades).max(1),
        }
    }

    fn columns(&self) -> usize {
        self.decades * self.each
    }

    fn column(&self, time_s: f64) -> usize {
        let decades = within(time_s).log10() - f64::from(self.first);
        // Saturates at 0 below the axis.
        let column = (decades * self.each as f64).floor() as usize;
        column.min(self.columns() - 1)
    }

    /// A line of blocks: how many of the times are in each column. Without blanks at its end.
    #[must_use]
    pub fn line(&self, times_s: &[f64]) -> String {
        let mut counts = vec![0usize; self.columns()];
        for time_s in times_s {
            counts[self.column(*time_s)] += 1;
        }
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let highest = BLOCKS.len() - 1;
        let blocks = counts.iter().map(|n| BLOCKS[(n * highest).div_ceil(most)]);
        let line: String = blocks.collect();
        line.trim_end().to_owned()
    }

    /// The axis and what it says, two lines below `lead` blanks. Labels that have no room are left
    /// out.
    #[must_use]
    pub fn scale(&self, lead: usize) -> String {
        let margin = " ".repeat(lead);
        let mut marks = String::from("├");
        let mut labels = String::new();
        for decade in 0..=self.decades {
            let at = decade * self.each;
            if decade > 0 {
                marks.push_str(&"─".repeat(self.each - 1));
                marks.push(if decade == self.decades { '┤' } else { '┼' });
            }
            let label = seconds(power(self.first + decade as i32));
            let takes = width(&label);
            let used = width(&labels);
            // The last one ends where the axis does.
            let at = if decade == self.decades {
                (at + 1).saturating_sub(takes)
            } else {
                at
            };
            if used == 0 || used < at {
                labels.push_str(&" ".repeat(at - used));
                labels.push_str(&label);
            }
        }
        format!("{margin}{marks}\n{margin}{labels}\n")
    }
}

fn power(of_ten: i32) -> f64 {
    10f64.powi(of_ten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_speeds_are_two_hills() {
        let times: Vec<f64> = (0..100)
            .map(|k| if k % 12 == 0 { 0.031 } else { 0.0002 })
            .collect();
        let axis = Axis::over(0.0002, 0.031, 36);
        assert_eq!(axis.line(&times), "   █                         ▁");
        assert_eq!(
            axis.scale(2),
            "  ├───────────┼───────────┼───────────┤\n  100 µs      1.0 ms      10 ms  0.10 s\n"
        );
        let bins = bins(&times);
        assert_eq!(bins.iter().map(|b| b.n).collect::<Vec<_>>(), [91, 9]);
        assert!(bins[0].from_s <= 0.0002 && 0.0002 < bins[0].to_s);
    }

    #[test]
    fn a_bound_belongs_to_the_bin_above() {
        for power in -9..9 {
            let bin = bins(&[10f64.powi(power)])[0];
            let ratio = bin.from_s / 10f64.powi(power);
            assert!((0.999..1.001).contains(&ratio), "{power}: {bin:?}");
        }
    }

    #[test]
    fn times_that_are_none_do_no_harm() {
        let odd = [
            0.0,
            -1.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
        ];
        assert_eq!(bins(&odd).iter().map(|b| b.n).sum::<u64>(), 6);
        let axis = Axis::over(f64::NAN, f64::INFINITY, 54);
        assert!(axis.line(&odd).chars().count() <= 54);
        assert!(!Axis::over(0.0, 0.0, 0).scale(0).is_empty());
        assert_eq!(Axis::over(1.0, 1.0, 10).line(&[]), "");
    }

    proptest! {
        #[test]
        fn each_time_is_in_one_bin_and_each_bin_holds_what_it_says(
            times in proptest::collection::vec(1e-9f64..1e9, 0..200)
        ) {
            let bins = bins(&times);
            prop_assert!(bins.windows(2).all(|w| w[0].to_s <= w[1].from_s));
            for bin in &bins {
                let inside = times.iter().filter(|t| (bin.from_s..bin.to_s).contains(*t));
                prop_assert_eq!(inside.count() as u64, bin.n);
            }
            prop_assert_eq!(bins.iter().map(|b| b.n).sum::<u64>(), times.len() as u64);
        }

        #[test]
        fn no_column_with_a_time_is_blank_and_the_line_fits(
            times in proptest::collection::vec(1e-9f64..1e3, 1..200)
        ) {
            let sorted = |f: fn(f64, f64) -> f64| times.iter().copied().reduce(f).expect("one");
            let axis = Axis::over(sorted(f64::min), sorted(f64::max), 53);
            let line: Vec<char> = axis.line(&times).chars().collect();
            prop_assert!(line.len() <= 53);
            prop_assert!(line.contains(&'█'));
            for time in times {
                prop_assert_ne!(line[axis.column(time)], ' ');
            }
            for text in axis.scale(26).lines() {
                prop_assert!(text.chars().count() <= 80, "{}", text);
            }
        }
    }
}
