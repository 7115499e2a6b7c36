//! One of the two recordings, reduced to what is compared, so that the recording itself can go
//! before the other one is read.
//!
//! Promise: counts, sums and percentiles come from every request. What is kept is bounded by the
//! number of requests, and much less where groups are large: 1,024 cells and 10,001 quantiles each.
//!
//! What it does not do: hints, requests that were put off, skipped or refused, are counted apart
//! and compared nowhere.

use super::name::{By, Named};
use crate::analysis::bootstrap::CELLS_MAX;
use crate::record::table::{Done, Rows, Table, UNKNOWN};
use std::collections::BTreeMap;

/// Steps between the quantiles that are kept of a large group.
const STEPS: usize = 10_000;

/// What the requests of a group in one cell sum up to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    pub cell: u16,
    /// How many whose duration is known.
    pub timed: u32,
    /// How many took no longer than the group's median.
    pub below: u32,
    pub took_s: f64,
}

/// The requests of a group in one recording.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// How many.
    pub requests: u64,
    /// How long they took together.
    pub sync_s: f64,
    /// How many have a known duration.
    pub timed: u64,
    /// Their quantiles, in steps of 1 in 10,000; all durations where those are fewer.
    quantiles: Vec<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    pub(super) pieces: Vec<Piece>,
}

/// One recording.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Requests for durability that were made for real.
    pub requests: u64,
    /// Requests for durability that were not: put off, skipped or refused.
    pub others: u64,
    /// Requests that the recording lost.
    pub lost: u64,
    /// From its first event to its last.
    pub wall_s: f64,
    /// All requests.
    pub all: Group,
    pub(super) groups: Vec<(By, BTreeMap<String, Group>)>,
    /// For each cell how many requests it has, and how much time passed from its first one to that
    /// of the next cell.
    pub(super) cells: Vec<(f64, f64)>,
}

/// The place of the value of rank `share` among `count` sorted ones (nearest rank).
fn rank(count: usize, share: f64) -> usize {
    let rank = (count as f64 * share).ceil() as usize;
    rank.clamp(1, count.max(1)) - 1
}

fn seconds(ns: u128) -> f64 {
    ns as f64 / 1e9
}

impl Group {
    /// From the requests at `ranks` of `order`; cells are `size` requests each.
    fn of(rows: &Rows, order: &[u32], ranks: &[u32], size: usize) -> Group {
        let took = |rank: u32| rows.took_ns[order[rank as usize] as usize];
        let mut known: Vec<u64> = ranks.iter().map(|r| took(*r)).collect();
        known.retain(|t| *t != UNKNOWN);
        known.sort_unstable();
        let p50 = known.get(rank(known.len(), 0.5)).copied().unwrap_or(0);
        let mut pieces: Vec<Piece> = Vec::new();
        for (rank, took) in ranks.iter().map(|r| (*r, took(*r))) {
            if took == UNKNOWN {
                continue;
            }
            let cell = u16::try_from(rank as usize / size).unwrap_or(u16::MAX);
            if pieces.last().is_none_or(|p| p.cell != cell) {
                pieces.push(Piece {
                    cell,
                    ..Piece::default()
                });
            }
            let Some(piece) = pieces.last_mut() else {
                continue;
            };
            piece.timed += 1;
            piece.below += u32::from(took <= p50);
            piece.took_s += took as f64 / 1e9;
        }
        pieces.shrink_to_fit();
        Group {
            requests: ranks.len() as u64,
            timed: known.len() as u64,
            sync_s: seconds(known.iter().map(|t| u128::from(*t)).sum()),
            p99_ns: known.get(rank(known.len(), 0.99)).copied(),
            pieces,
            quantiles: thinned(known),
        }
    }

    /// The value below which `share` of the durations lie.
    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let n = self.quantiles.len();
        if self.timed as usize == n {
            return self.quantiles.get(rank(n, share)).copied();
        }
        let step = (share * STEPS as f64).ceil().clamp(0.0, STEPS as f64);
        self.quantiles.get(step as usize).copied()
    }

    /// Median, where any duration is known.
    #[must_use]
    pub fn p50_ns(&self) -> Option<u64> {
        self.quantile(0.5)
    }
}

/// The sorted `values`, or their quantiles in [`STEPS`] steps where those are fewer.
fn thinned(values: Vec<u64>) -> Vec<u64> {
    if values.len() <= STEPS + 1 {
        return values;
    }
    let at = |step: usize| values[rank(values.len(), step as f64 / STEPS as f64)];
    (0..=STEPS).map(at).collect()
}

impl Side {
    /// Reduces a recording, for comparing it by each of `by`.
    #[must_use]
    pub fn of(table: &Table, by: &[By]) -> Side {
        let rows = &table.rows;
        let asks = |row: &usize| table.is_durability(rows.kind[*row]);
        let order = in_order_of_time(table);
        let size = order.len().div_ceil(CELLS_MAX).max(1);
        let every: Vec<u32> = (0..order.len()).map(|r| r as u32).collect();
        let group = |by: &By| {
            let named = by.names(table);
            (*by, groups(rows, &order, size, &named))
        };
        let asked = (0..rows.len()).filter(asks).count();
        Side {
            requests: order.len() as u64,
            others: (asked - order.len()) as u64,
            lost: table.lost.values().fold(0, |sum, n| sum.saturating_add(*n)),
            wall_s: table.span_ns().map_or(0.0, |(a, b)| between(a, b)),
            all: Group::of(rows, &order, &every, size),
            groups: by.iter().map(group).collect(),
            cells: cells(table, &order, size),
        }
    }

    pub(super) fn groups(&self, by: By) -> Option<&BTreeMap<String, Group>> {
        let found = self.groups.iter().find(|(b, _)| *b == by);
        found.map(|(_, groups)| groups)
    }
}

/// Seconds between two times.
fn between(from: i64, to: i64) -> f64 {
    (i128::from(to) - i128::from(from)) as f64 / 1e9
}

/// The places of the requests that are compared, by the time at which they began.
fn in_order_of_time(table: &Table) -> Vec<u32> {
    let rows = &table.rows;
    let real = |row: &u32| {
        let row = *row as usize;
        // What does not say what became of it was put off by nobody.
        let real = matches!(rows.done[row], Done::Real | Done::Unknown);
        real && table.is_durability(rows.kind[row])
    };
    let end = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let mut order: Vec<u32> = (0..end).filter(real).collect();
    // Stable, and quick for what is nearly in order.
    order.sort_by_key(|row| rows.time_ns[*row as usize]);
    order
}

/// Requests and time of each cell; the first begins and the last ends with the recording.
fn cells(table: &Table, order: &[u32], size: usize) -> Vec<(f64, f64)> {
    let (first, last) = table.span_ns().unwrap_or_default();
    let start = |rank: usize| order.get(rank).map(|r| table.rows.time_ns[*r as usize]);
    let count = order.len().div_ceil(size);
    let cell = |k: usize| {
        let from = if k == 0 { Some(first) } else { start(k * size) };
        let to = start((k + 1) * size).unwrap_or(last);
        let requests = order.len().min((k + 1) * size) - k * size;
        (requests as f64, between(from.unwrap_or(to), to).max(0.0))
    };
    (0..count).map(cell).collect()
}

/// Divides the requests into groups, each in the order of time.
fn groups(rows: &Rows, order: &[u32], size: usize, named: &Named) -> BTreeMap<String, Group> {
    let mut ends = vec![0usize; named.names.len() + 1];
    for row in order {
        ends[named.group(*row as usize) + 1] += 1;
    }
    for g in 1..ends.len() {
        ends[g] += ends[g - 1];
    }
    let mut next = ends.clone();
    let mut ranks = vec![0u32; order.len()];
    for (rank, row) in order.iter().enumerate() {
        let place = &mut next[named.group(*row as usize)];
        ranks[*place] = rank as u32;
        *place += 1;
    }
    let of = |(g, name): (usize, &String)| {
        let ranks = &ranks[ends[g]..ends[g + 1]];
        (!ranks.is_empty()).then(|| (name.clone(), Group::of(rows, order, ranks, size)))
    };
    named.names.iter().enumerate().filter_map(of).collect()
}
