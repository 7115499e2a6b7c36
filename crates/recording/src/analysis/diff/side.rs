//! One of the two recordings, reduced to what is compared, so that the recording itself can go
//! before the other one is read.
//!
//! Promise: counts, sums and percentiles come from every request. What is kept is bounded by the
//! number of requests, and much less where groups are large: 1,024 cells and 10,001 quantiles each.
//! Of the many groups that are too small to be judged (a Maildir's files), the names are kept of
//! the costliest only; the others are found again by a hash of 64 bits.
//!
//! What it does not do: hints, requests that were put off, skipped or refused, are counted apart
//! and compared nowhere.

use super::name::{By, Named};
use super::ENOUGH;
use crate::analysis::bootstrap::CELLS_MAX;
use crate::record::table::{Done, Rows, Table, UNKNOWN};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Steps between the quantiles that are kept of a large group.
const STEPS: usize = 10_000;

/// Groups that are too small to be judged, and yet keep their names.
const SMALL_NAMED: usize = 1_000;

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
    /// Median, where any duration is known.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// What it takes to draw it anew; not of one that is too small to be judged.
    pub(super) detail: Option<Box<Detail>>,
}

/// A group's durations in time and in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    /// Quantiles, in steps of 1 in 10,000; all durations where those are fewer.
    quantiles: Vec<u64>,
    /// Whether those are all.
    all: bool,
    pub pieces: Vec<Piece>,
}

/// The groups of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    pub named: BTreeMap<String, Group>,
    /// By the hash of their names, in its order.
    unnamed: Vec<(u64, Group)>,
}

impl Groups {
    pub fn get(&self, name: &str) -> Option<&Group> {
        self.named.get(name).or_else(|| {
            let found = self
                .unnamed
                .binary_search_by_key(&hash(name), |(hash, _)| *hash);
            found.ok().map(|at| &self.unnamed[at].1)
        })
    }

    /// The hashes of all names.
    pub fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        let named = self.named.keys().map(|name| hash(name));
        named.chain(self.unnamed.iter().map(|(hash, _)| *hash))
    }
}

/// The same for the same name in every recording.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
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
    pub(super) groups: Vec<(By, Groups)>,
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
        let mut known: Vec<u64> = ranks.iter().map(|r| took_ns(rows, order, *r)).collect();
        known.retain(|t| *t != UNKNOWN);
        known.sort_unstable();
        let mut group = Group {
            requests: ranks.len() as u64,
            timed: known.len() as u64,
            sync_s: seconds(known.iter().map(|t| u128::from(*t)).sum()),
            p50_ns: quantile(&known, 0.5),
            p99_ns: quantile(&known, 0.99),
            detail: None,
        };
        if group.timed >= ENOUGH {
            let timed = ranks.iter().map(|r| (*r, took_ns(rows, order, *r)));
            let pieces = pieces(timed, group.p50_ns.unwrap_or(0), size);
            group.detail = Some(Box::new(Detail {
                pieces,
                all: known.len() <= STEPS + 1,
                quantiles: thinned(known),
            }));
        }
        group
    }
}

/// How long the request at `rank` of `order` took.
fn took_ns(rows: &Rows, order: &[u32], rank: u32) -> u64 {
    rows.took_ns[order[rank as usize] as usize]
}

/// The value of rank `share` among sorted ones.
fn quantile(sorted: &[u64], share: f64) -> Option<u64> {
    sorted.get(rank(sorted.len(), share)).copied()
}

/// The requests of each cell summed up: those whose duration is known.
fn pieces(timed: impl Iterator<Item = (u32, u64)>, p50_ns: u64, size: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (rank, took) in timed.filter(|(_, took)| *took != UNKNOWN) {
        let cell = u16::try_from(rank as usize / size).unwrap_or(u16::MAX);
        if pieces.last().is_none_or(|p| p.cell != cell) {
            pieces.push(Piece {
                cell,
                ..Piece::default()
            });
        }
        if let Some(piece) = pieces.last_mut() {
            piece.timed += 1;
            piece.below += u32::from(took <= p50_ns);
            piece.took_s += took as f64 / 1e9;
        }
    }
    pieces.shrink_to_fit();
    pieces
}

impl Detail {
    /// The value below which `share` of the durations lie.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        if self.all {
            return quantile(&self.quantiles, share);
        }
        let step = (share * STEPS as f64).ceil().clamp(0.0, STEPS as f64);
        self.quantiles.get(step as usize).copied()
    }
}

/// The sorted `values`, or their quantiles in [`STEPS`] steps where those are fewer.
fn thinned(values: Vec<u64>) -> Vec<u64> {
    if values.len() <= STEPS + 1 {
        return values;
    }
    (0..=STEPS)
        .map(|step| values[rank(values.len(), step as f64 / STEPS as f64)])
        .collect()
}

impl Side {
    /// Reduces a recording, for comparing it by each of `by`.
    #[must_use]
    pub fn of(table: &Table, by: &[By]) -> Side {
        let rows = &table.rows;
        let order = in_order_of_time(table);
        let size = order.len().div_ceil(CELLS_MAX).max(1);
        let every: Vec<u32> = (0..order.len()).map(|r| r as u32).collect();
        let asked = (0..rows.len())
            .filter(|row| table.is_durability(rows.kind[*row]))
            .count();
        Side {
            requests: order.len() as u64,
            others: (asked - order.len()) as u64,
            lost: table.lost.values().fold(0, |sum, n| sum.saturating_add(*n)),
            wall_s: table.span_ns().map_or(0.0, |(a, b)| between(a, b)),
            all: Group::of(rows, &order, &every, size),
            groups: by
                .iter()
                .map(|by| (*by, groups(rows, &order, size, &by.names(table))))
                .collect(),
            cells: cells(table, &order, size),
        }
    }

    pub(super) fn groups(&self, by: By) -> Option<&Groups> {
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
    let end = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let mut order: Vec<u32> = (0..end)
        .filter(|row| is_compared(table, *row as usize))
        .collect();
    // Stable, and quick for what is nearly in order.
    order.sort_by_key(|row| rows.time_ns[*row as usize]);
    order
}

/// Whether the request of a row is for durability, and was made for real.
fn is_compared(table: &Table, row: usize) -> bool {
    // What does not say what became of it was put off by nobody.
    let is_real = matches!(table.rows.done[row], Done::Real | Done::Unknown);
    is_real && table.is_durability(table.rows.kind[row])
}

/// Requests and time of each cell; the first begins and the last ends with the recording.
fn cells(table: &Table, order: &[u32], size: usize) -> Vec<(f64, f64)> {
    let (first, last) = table.span_ns().unwrap_or_default();
    let mut from = first;
    let mut cells = Vec::with_capacity(order.len().div_ceil(size));
    for (k, cell) in order.chunks(size).enumerate() {
        let next = order.get((k + 1) * size);
        let to = next.map_or(last, |row| table.rows.time_ns[*row as usize]);
        cells.push((cell.len() as f64, between(from, to).max(0.0)));
        from = to;
    }
    cells
}

/// Divides the requests into groups, each in the order of time.
fn groups(rows: &Rows, order: &[u32], size: usize, named: &Named) -> Groups {
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
    let all = named.names.iter().enumerate().filter_map(|(g, name)| {
        let ranks = &ranks[ends[g]..ends[g + 1]];
        (!ranks.is_empty()).then(|| (name, Group::of(rows, order, ranks, size)))
    });
    with_names(all)
}

/// Gives names to the groups that can be judged, and to the costliest of the others.
fn with_names<'a>(all: impl Iterator<Item = (&'a Cow<'a, str>, Group)>) -> Groups {
    let (mut large, mut small): (Vec<_>, Vec<_>) = all.partition(|(_, g)| g.detail.is_some());
    if small.len() > SMALL_NAMED {
        small.select_nth_unstable_by(SMALL_NAMED, |x, y| {
            let costlier = y.1.sync_s.total_cmp(&x.1.sync_s);
            costlier.then(x.0.cmp(y.0))
        });
    }
    let unnamed = small.split_off(small.len().min(SMALL_NAMED));
    large.append(&mut small);
    let named = large.into_iter().map(|(name, g)| (name.to_string(), g));
    let hashed = unnamed.into_iter().map(|(name, g)| (hash(name), g));
    let mut unnamed: Vec<_> = hashed.collect();
    unnamed.sort_unstable_by_key(|(hash, _)| *hash);
    Groups {
        named: named.collect(),
        unnamed,
    }
}
