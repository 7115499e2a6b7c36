//! Histogram and heat map in characters.

use crate::analysis::heat::Heatmap;
use crate::analysis::histogram::Bin;
use crate::analysis::stats::seconds;
use std::fmt::Write as _;
use synclater_text::number::{self, count};

/// The most lines of a histogram.
const LINES_MAX: usize = 24;
/// The longest bar.
const BAR: u64 = 48;
/// The most lines of a heat map.
const HEAT_LINES: usize = 20;
/// The most columns of a heat map.
const HEAT_COLUMNS: usize = 60;

fn time(ns: u64) -> String {
    number::seconds(seconds(ns))
}

/// A bar of eighths of a character; never empty for something.
fn bar(n: u64, most: u64) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    if n == 0 || most == 0 {
        return String::new();
    }
    let eighths = (u128::from(n) * u128::from(BAR * 8) / u128::from(most)).max(1) as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(PARTS[eighths % 8]);
    }
    bar
}

/// Durations with a bar each, on one screen: buckets are taken together where there are many.
pub fn histogram(bins: &[Bin]) -> String {
    let each = bins.len().div_ceil(LINES_MAX).max(1);
    let lines: Vec<(u64, u64)> = bins
        .chunks(each)
        .map(|part| {
            (
                part[0].from_ns,
                part.iter().fold(0u64, |n, b| n.saturating_add(b.n)),
            )
        })
        .collect();
    let most = lines.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let mut text = String::new();
    for (from, n) in lines {
        let line = format!("{:>9} │{:<48} {}", time(from), bar(n, most), count(n));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Time from left to right, duration upwards, the more requests the darker.
pub fn heat(map: &Heatmap) -> String {
    let across = map.columns.div_ceil(HEAT_COLUMNS).max(1);
    let up = map.rows().div_ceil(HEAT_LINES).max(1);
    let (columns, lines) = (map.columns.div_ceil(across), map.rows().div_ceil(up));
    let mut counts = vec![vec![0u64; columns]; lines];
    for [column, row, n] in &map.cells {
        let cell = &mut counts[*row as usize / up][*column as usize / across];
        *cell = cell.saturating_add(*n);
    }
    let most = counts.iter().flatten().copied().max().unwrap_or(0);
    let mut text = String::new();
    for (line, cells) in counts.iter().enumerate().rev() {
        let cells: String = cells.iter().map(|n| shade(*n, most)).collect();
        let from = time(map.edges_ns[line * up]);
        let _ = writeln!(text, "{from:>9} │{}", cells.trim_end());
    }
    let length = time(map.step_ns.saturating_mul(map.columns as u64));
    let dashes = "─".repeat(columns);
    let room = columns.saturating_sub(3);
    let _ = writeln!(text, "{:>9} └{dashes}\n{:>11}0 s{length:>room$}", "", "");
    text
}

/// Darker by the logarithm of the count.
fn shade(n: u64, most: u64) -> char {
    const SHADES: [char; 4] = ['░', '▒', '▓', '█'];
    if n == 0 {
        return ' ';
    }
    let level = (n as f64).ln_1p() / (most as f64).ln_1p() * SHADES.len() as f64;
    SHADES[(level.ceil() as usize).clamp(1, SHADES.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bar_is_as_long_as_its_share_and_never_empty_for_something() {
        assert_eq!(bar(0, 10), "");
        assert_eq!(bar(1, u64::MAX), "▏");
        assert_eq!(bar(u64::MAX, u64::MAX).chars().count(), 48);
        assert_eq!(bar(5, 10), "█".repeat(24));
    }

    #[test]
    fn a_heat_map_has_the_slow_ones_above_and_time_from_left_to_right() {
        let map = Heatmap {
            from_ns: 0,
            step_ns: 1_000_000_000,
            columns: 4,
            edges_ns: vec![1_000_000, 2_000_000, 4_000_000],
            cells: vec![[0, 0, 100], [3, 1, 1]],
        };
        let want = "   2.0 ms │   ░\n   1.0 ms │█\n          └────\n           0 s4.0 s\n";
        assert_eq!(heat(&map), want);
    }

    proptest! {
        #[test]
        fn pictures_fit_the_screen(
            counts in proptest::collection::vec(0u64..1_000_000_000_000, 1..128),
            columns in 1usize..=120, rows in 1usize..=40
        ) {
            let from_ns = |k: usize| 1u64 << (k / 2).min(45);
            let bin = |(k, n): (usize, &u64)| Bin { from_ns: from_ns(k), to_ns: 0, n: *n };
            let bins: Vec<Bin> = counts.iter().enumerate().map(bin).collect();
            let map = Heatmap {
                from_ns: 0,
                step_ns: 77_777_777,
                columns,
                edges_ns: (0..=rows as u64).map(|k| k * 1_000).collect(),
                cells: vec![[columns as u64 - 1, rows as u64 - 1, 7]],
            };
            for text in [histogram(&bins), heat(&map)] {
                prop_assert!(text.lines().count() <= 24);
                prop_assert!(text.lines().all(|l| l.chars().count() <= 80), "{}", text);
            }
        }
    }
}
