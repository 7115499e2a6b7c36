//! Time against latency: how many requests of which duration ended when.
//!
//! A grid of at most [`COLUMNS_MAX`] by [`ROWS_MAX`] cells; only cells that hold something are
//! listed. Rows are buckets of the histogram, or as many of them together as the height asks for.

use super::histogram::{bucket_of, from_of};
use super::order::Order;
use serde::Serialize;

/// The most columns.
pub const COLUMNS_MAX: usize = 120;
/// The most rows.
pub const ROWS_MAX: usize = 40;

/// A heat map.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Heatmap {
    /// Time at which the first column begins, nanoseconds since 1970.
    pub from_ns: i64,
    /// Time that a column takes.
    pub step_ns: u64,
    /// How many columns.
    pub columns: usize,
    /// Bounds of the rows, one more than there are rows.
    pub edges_ns: Vec<u64>,
    /// Column, row, and how many requests.
    pub cells: Vec<[u64; 3]>,
}

impl Heatmap {
    /// Of all requests in `order`, by the time at which each began; `span` is that of the
    /// recording. Empty without requests.
    #[must_use]
    pub fn of(order: &Order, span: (i64, i64)) -> Heatmap {
        if order.is_empty() {
            return Heatmap::default();
        }
        let first = bucket_of(order.sorted[0]);
        let last = bucket_of(order.sorted[order.len() - 1]);
        let each = (last - first + 1).div_ceil(ROWS_MAX);
        let rows = (last - first + 1).div_ceil(each);
        let edges_ns = (0..=rows).map(|r| from_of(first + r * each)).collect();
        let length = span.1.abs_diff(span.0).saturating_add(1);
        let step_ns = length.div_ceil(COLUMNS_MAX as u64);
        let columns = length.div_ceil(step_ns) as usize;
        let mut counts = vec![0u64; columns * rows];
        let requests = order.requests.rows;
        for i in order.requests.all().map(|i| i as usize) {
            let Some(took) = order.requests.waited_ns(i) else {
                continue;
            };
            let after = requests.time_ns[i].max(span.0).abs_diff(span.0);
            let column = usize::try_from(after / step_ns).unwrap_or(usize::MAX);
            let row = (bucket_of(took) - first) / each;
            counts[column.min(columns - 1) * rows + row] += 1;
        }
        let full = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        let cells = full.map(|(k, n)| [(k / rows) as u64, (k % rows) as u64, *n]);
        Heatmap {
            from_ns: span.0,
            step_ns,
            columns,
            edges_ns,
            cells: cells.collect(),
        }
    }

    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.edges_ns.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::requests::Requests;
    use crate::record::table::{Done, Table};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_request_lies_in_the_cell_of_its_time_and_duration(
            rows in proptest::collection::vec((0i64..5_000_000, 0u32..64, any::<u64>()), 1..200)
        ) {
            let mut t = Table { kinds: vec!["fsync".into()], ..Table::default() };
            for (time, bits, took) in &rows {
                t.rows.time_ns.push(*time);
                t.rows.took_ns.push((took >> bits).min(u64::MAX - 1));
                t.rows.kind.push(0);
                t.rows.done.push(Done::Real);
            }
            let requests = Requests::durability(&t);
            let order = Order::of(&requests);
            let heat = Heatmap::of(&order, (0, 5_000_000));
            prop_assert!(heat.columns <= COLUMNS_MAX && heat.rows() <= ROWS_MAX);
            prop_assert!(heat.edges_ns.windows(2).all(|w| w[0] < w[1]));
            let total: u64 = heat.cells.iter().map(|c| c[2]).sum();
            prop_assert_eq!(total, rows.len() as u64);
            for [column, row, n] in &heat.cells {
                let edge = |k: u64| heat.edges_ns[k as usize];
                let here = |i: &usize| {
                    let (time, took) = (t.rows.time_ns[*i] as u64, t.rows.took_ns[*i]);
                    let last = *row as usize + 1 == heat.rows();
                    time / heat.step_ns == *column
                        && edge(*row) <= took
                        && (took < edge(row + 1) || last)
                };
                prop_assert_eq!((0..rows.len()).filter(here).count() as u64, *n);
            }
        }
    }
}
