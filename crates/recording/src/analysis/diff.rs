//! Two recordings compared: by how much each group's syncs cost more or less, and whether that is
//! more than noise.
//!
//! What a change costs is the difference of the seconds that were spent in syncs, in one of three
//! measures ([`Per`]). Seconds of the whole recordings can be compared where both hold the same
//! work (about as many requests) or the same time; otherwise it is seconds per second of recording.
//!
//! Its interval comes from a bootstrap of each recording by itself ([`super::bootstrap`]): both are
//! drawn anew in blocks of consecutive requests, 999 times, and the change is computed from each
//! pair of draws. A draw is scaled to as many requests as the recording has where the work is the
//! same (how many requests a job makes is no chance), and to as much time where it is not (how
//! many come in a second is chance). Where both hold the same work and yet differ by a few
//! requests, what those few cost is taken as noise, and the interval is made wider by it.
//!
//! The interval of the medians' ratio comes from the same draws, by Bahadur's representation: the
//! share of requests below the median is drawn, and the quantile that this share points to is
//! looked up among all durations. So a drawn median is a duration that was measured, two modes are
//! no trouble, and a draw needs no sorting.
//!
//! Promise: the same two recordings give the same figures. A group is within noise when neither the
//! interval of the cost nor that of the median excludes "no change", and always with few requests,
//! for which there is no interval.
//!
//! What it does not do: noise is what varies within a recording. Two recordings of the same machine
//! on two days differ by more; to see by how much, compare two from before. One interval in twenty
//! misses the truth by chance: among forty groups, expect two.

pub mod name;
pub mod side;

use self::name::By;
use self::side::{Detail, Group, Side};
use super::bootstrap::{block_length, interval, Blocks, DRAWS};
use std::collections::BTreeSet;
use synclater_random::Random;

/// Groups of one kind that are looked at in full; those that cost less are summed up.
pub const GROUPS_MAX: usize = 200;

/// With fewer requests on a side there is no interval, and nothing is said to be more than noise.
pub const ENOUGH: u64 = 20;

/// Recordings hold the same work when their requests differ by no more than this share.
const SAME_WORK: f64 = 0.02;

/// Recordings hold the same time when their lengths differ by no more than this share.
const SAME_TIME: f64 = 0.05;

/// In what a change is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Seconds of the whole recordings.
    Run,
    /// Seconds of syncs per second of recording.
    Second,
    /// Seconds of syncs per request of the recording.
    Request,
}

impl Per {
    /// As on the command line and in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Per::Run => "run",
            Per::Second => "second",
            Per::Request => "request",
        }
    }
}

impl std::str::FromStr for Per {
    type Err = String;

    fn from_str(word: &str) -> Result<Per, String> {
        let all = [Per::Run, Per::Second, Per::Request];
        let found = all.into_iter().find(|per| per.word() == word);
        found.ok_or_else(|| "write run, second or request".to_owned())
    }
}

/// In what two recordings are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alike {
    /// They hold about as many requests.
    Work,
    /// They took about as long.
    Time,
    /// Neither.
    Nothing,
}

/// A value and the interval that holds it in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// What was measured.
    pub value: f64,
    /// Its interval, where the draws gave one.
    pub interval: Option<(f64, f64)>,
}

impl Estimate {
    /// A value without an interval.
    fn of(value: f64) -> Estimate {
        Estimate {
            value,
            interval: None,
        }
    }

    /// Whether `no_change` is not within the interval.
    #[must_use]
    pub fn excludes(&self, no_change: f64) -> bool {
        self.interval
            .is_some_and(|(low, high)| no_change < low || no_change > high)
    }
}

/// What is known of a group in one recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// How many requests.
    pub requests: u64,
    /// How long they took together.
    pub sync_s: f64,
    /// Median.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// How many have a known duration.
    pub timed: u64,
}

/// How one group changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// By what it is grouped; `None` for all requests.
    pub by: Option<By>,
    /// Its name.
    pub name: String,
    /// In the first recording.
    pub a: Figures,
    /// In the second.
    pub b: Figures,
    /// What the change costs, in seconds; see [`Diff::per`].
    pub change_s: Estimate,
    /// Median of the second divided by that of the first, where both have one above 0.
    pub p50_ratio: Option<Estimate>,
    /// Whether it may be chance.
    pub within_noise: bool,
}

impl Change {
    /// Whether it is too small to be judged.
    #[must_use]
    pub fn is_few(&self) -> bool {
        self.a.timed.max(self.b.timed) < ENOUGH
            || (self.is_in_both() && self.a.timed.min(self.b.timed) < ENOUGH)
    }

    /// Whether both recordings have requests of this group.
    #[must_use]
    pub fn is_in_both(&self) -> bool {
        self.a.requests > 0 && self.b.requests > 0
    }
}

/// Groups that were not looked at in full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftOut {
    /// By what they are grouped.
    pub by: By,
    /// How many.
    pub groups: u64,
    /// What their changes cost together.
    pub change_s: f64,
}

/// Two recordings compared.
#[derive(Clone, Debug)]
pub struct Diff {
    /// In what changes are measured.
    pub per: Per,
    /// Why.
    pub alike: Alike,
    /// All requests.
    pub all: Change,
    /// Groups: by what, in the order that was asked for; then the costliest change first.
    pub groups: Vec<Change>,
    /// Those that are not among them.
    pub left_out: Vec<LeftOut>,
}

fn differs(a: f64, b: f64) -> f64 {
    (a - b).abs() / a.max(b)
}

/// `a` over `b`; no number where `b` is not above 0.
fn over(a: f64, b: f64) -> f64 {
    if b > 0.0 {
        a / b
    } else {
        f64::NAN
    }
}

fn alike(a: &Side, b: &Side) -> Alike {
    // Nothing is unlike nothing: both are NaN then, and no number is below any.
    if differs(a.requests as f64, b.requests as f64) <= SAME_WORK {
        Alike::Work
    } else if differs(a.wall_s, b.wall_s) <= SAME_TIME {
        Alike::Time
    } else {
        Alike::Nothing
    }
}

/// How the seconds of draws become what is compared.
#[derive(Clone, Copy)]
struct Measure {
    per: Per,
    alike: Alike,
}

impl Measure {
    /// The seconds of one side, from sums that belong to so many requests and so much time.
    fn of(self, side: &Side, took_s: f64, requests: f64, wall_s: f64) -> f64 {
        match (self.per, self.alike) {
            (Per::Run, Alike::Time) => over(took_s, wall_s) * side.wall_s,
            (Per::Run, _) => over(took_s, requests) * side.requests as f64,
            (Per::Second, _) => over(took_s, wall_s),
            (Per::Request, _) => over(took_s, requests),
        }
    }

    fn whole(self, side: &Side, group: Option<&Group>) -> f64 {
        let Some(group) = group else { return 0.0 };
        self.of(side, group.sync_s, side.requests as f64, side.wall_s)
    }

    /// How much of `sync_s` is due to requests that only one side of the same work has.
    fn odd(self, a: &Side, b: &Side, sync_s: f64) -> f64 {
        match (self.per, self.alike) {
            (Per::Run, Alike::Work) => sync_s * differs(a.requests as f64, b.requests as f64),
            _ => 0.0,
        }
    }
}

/// A group of one side, ready to be drawn: seconds, how many are timed, how many of them are below
/// the median, requests of the recording, time of the recording.
struct Drawn<'a> {
    side: &'a Side,
    detail: &'a Detail,
    /// Share of its requests that took no longer than the median.
    below: f64,
    blocks: Blocks<5>,
}

/// The length of blocks for the ratio of two figures of each cell, by what is left when its mean is
/// taken away.
fn length_of(cells: &[[f64; 5]], value: usize, weight: usize) -> usize {
    let mean = sum(cells, value) / sum(cells, weight);
    let off: Vec<f64> = cells.iter().map(|c| c[value] - mean * c[weight]).collect();
    block_length(&off)
}

/// The sum of one figure of all cells.
fn sum(cells: &[[f64; 5]], figure: usize) -> f64 {
    cells.iter().map(|c| c[figure]).sum()
}

impl<'a> Drawn<'a> {
    fn new(side: &'a Side, group: &'a Group, measure: Measure) -> Option<Drawn<'a>> {
        let detail = group.detail.as_deref()?;
        let mut cells: Vec<[f64; 5]> = side
            .cells
            .iter()
            .map(|(requests, wall_s)| [0.0, 0.0, 0.0, *requests, *wall_s])
            .collect();
        for piece in &detail.pieces {
            let cell = &mut cells[usize::from(piece.cell)];
            cell[0] = piece.took_s;
            cell[1] = piece.timed.into();
            cell[2] = piece.below.into();
        }
        let by_time = match (measure.per, measure.alike) {
            (Per::Run, Alike::Time) | (Per::Second, _) => 4,
            _ => 3,
        };
        // Likeness of what is left when the mean is taken away, of both figures; the longer counts.
        let length = length_of(&cells, 0, by_time).max(length_of(&cells, 2, 1));
        let below: u64 = detail.pieces.iter().map(|p| u64::from(p.below)).sum();
        Some(Drawn {
            side,
            detail,
            below: below as f64 / group.timed as f64,
            blocks: Blocks::new(&cells, length),
        })
    }

    /// The group's cost and median in one draw.
    fn draw(&self, measure: Measure, random: &mut Random) -> (f64, f64) {
        let [took_s, timed, below, requests, wall_s] = self.blocks.draw(random);
        let cost = measure.of(self.side, took_s, requests, wall_s);
        let share = 0.5 + self.below - over(below, timed);
        let median = share.is_finite().then(|| self.detail.quantile(share));
        (cost, median.flatten().map_or(f64::NAN, |m| m as f64))
    }
}

fn figures(group: Option<&Group>) -> Figures {
    let Some(group) = group else {
        return Figures::default();
    };
    Figures {
        requests: group.requests,
        sync_s: group.sync_s,
        p50_ns: group.p50_ns,
        p99_ns: group.p99_ns,
        timed: group.timed,
    }
}

/// The value and the interval that draws of it give. Draws that came to nothing are left out, as
/// long as they are the fewer. The interval is `wider` times as wide, and holds the value.
fn estimate(value: f64, mut draws: Vec<f64>, wider: f64) -> Estimate {
    draws.retain(|d| d.is_finite());
    let are_enough = draws.len() > DRAWS / 2;
    let ends = are_enough.then(|| interval(draws)).flatten();
    Estimate {
        value,
        interval: ends.map(|(low, high)| {
            let below = (low.min(value) - value) * wider;
            let above = (high.max(value) - value) * wider;
            (value + below, value + above)
        }),
    }
}

/// As [`estimate`], for a ratio: its logarithm is what varies evenly to both sides.
fn ratio(value: f64, draws: impl Iterator<Item = f64>, wider: f64) -> Estimate {
    let log = estimate(value.ln(), draws.map(f64::ln).collect(), wider);
    let ends = log
        .interval
        .map(|(low, high)| (low.exp().min(value), high.exp().max(value)));
    Estimate {
        value,
        interval: ends,
    }
}

/// What is compared.
struct Pair<'a> {
    a: &'a Side,
    b: &'a Side,
    measure: Measure,
}

impl Pair<'_> {
    fn value(&self, a: Option<&Group>, b: Option<&Group>) -> f64 {
        let value = self.measure.whole(self.b, b) - self.measure.whole(self.a, a);
        if value.is_finite() {
            value
        } else {
            0.0
        }
    }

    fn change(&self, by: Option<By>, name: &str, a: Option<&Group>, b: Option<&Group>) -> Change {
        let (fa, fb) = (figures(a), figures(b));
        let medians = match (fa.p50_ns, fb.p50_ns) {
            (Some(a), Some(b)) if a > 0 && b > 0 => Some(b as f64 / a as f64),
            _ => None,
        };
        let mut change = Change {
            by,
            name: name.to_owned(),
            a: fa,
            b: fb,
            change_s: Estimate::of(self.value(a, b)),
            p50_ratio: medians.map(Estimate::of),
            within_noise: true,
        };
        if !change.is_few() {
            self.estimate(&mut change, a, b);
            let moved = change.p50_ratio.is_some_and(|r| r.excludes(1.0));
            change.within_noise = !(change.change_s.excludes(0.0) || moved);
        }
        change
    }

    /// Puts the intervals into `change`.
    fn estimate(&self, change: &mut Change, a: Option<&Group>, b: Option<&Group>) {
        let measure = self.measure;
        let drawn_a = a.and_then(|g| Drawn::new(self.a, g, measure));
        let drawn_b = b.and_then(|g| Drawn::new(self.b, g, measure));
        let by = change.by.map_or("all", By::word);
        let mut random = Random::of(&format!("{by} {}", change.name));
        let mut pairs = Vec::with_capacity(DRAWS);
        for _ in 0..DRAWS {
            let a = draw(drawn_a.as_ref(), measure, &mut random);
            let b = draw(drawn_b.as_ref(), measure, &mut random);
            pairs.push((a, b));
        }
        let sides = [&drawn_a, &drawn_b].into_iter().flatten();
        let wider = sides.map(|s| s.blocks.widening()).fold(1.0, f64::max);
        let costs = pairs.iter().map(|(a, b)| b.0 - a.0).collect();
        let cost = estimate(change.change_s.value, costs, wider);
        let sync_s = change.a.sync_s.max(change.b.sync_s);
        let odd = measure.odd(self.a, self.b, sync_s);
        let ends = cost.interval.map(|(low, high)| (low - odd, high + odd));
        change.change_s.interval = ends;
        if let Some(medians) = change.p50_ratio {
            let draws = pairs.iter().map(|(a, b)| b.1 / a.1);
            change.p50_ratio = Some(ratio(medians.value, draws, wider));
        }
    }

    fn groups(&self, by: By) -> (Vec<Change>, Option<LeftOut>) {
        let (Some(a), Some(b)) = (self.a.groups(by), self.b.groups(by)) else {
            return (Vec::new(), None);
        };
        let names: BTreeSet<&String> = a.named.keys().chain(b.named.keys()).collect();
        let mut costs: Vec<(f64, &String)> = names
            .iter()
            .map(|name| (self.value(a.get(name), b.get(name)), *name))
            .collect();
        costs.sort_by(|x, y| y.0.abs().total_cmp(&x.0.abs()).then(x.1.cmp(y.1)));
        costs.truncate(GROUPS_MAX);
        let changes: Vec<Change> = costs
            .iter()
            .map(|(_, name)| self.change(Some(by), name, a.get(name), b.get(name)))
            .collect();
        let mut every: Vec<u64> = a.hashes().chain(b.hashes()).collect();
        every.sort_unstable();
        every.dedup();
        // Each request is in one group: what the shown ones do not explain is the others'.
        let all = self.value(Some(&self.a.all), Some(&self.b.all));
        let left_out = LeftOut {
            by,
            groups: (every.len() - changes.len().min(every.len())) as u64,
            change_s: all - costs.iter().map(|(cost, _)| cost).sum::<f64>(),
        };
        let is_rest = left_out.groups > 0;
        (changes, is_rest.then_some(left_out))
    }
}

/// The cost and the median of a side in one draw; of a side without requests nothing, and none.
fn draw(side: Option<&Drawn>, measure: Measure, random: &mut Random) -> (f64, f64) {
    side.map_or((0.0, f64::NAN), |s| s.draw(measure, random))
}

/// Compares two recordings that were reduced for the same `by`; `per` is chosen where it is `None`.
#[must_use]
pub fn diff(a: &Side, b: &Side, by: &[By], per: Option<Per>) -> Diff {
    let alike = alike(a, b);
    let chosen = match alike {
        Alike::Work | Alike::Time => Per::Run,
        // Without a length there is nothing to divide by.
        Alike::Nothing if a.wall_s <= 0.0 || b.wall_s <= 0.0 => Per::Run,
        Alike::Nothing => Per::Second,
    };
    let per = per.unwrap_or(chosen);
    let measure = Measure { per, alike };
    let pair = Pair { a, b, measure };
    let all_a = (a.requests > 0).then_some(&a.all);
    let all_b = (b.requests > 0).then_some(&b.all);
    let mut found = Diff {
        per,
        alike,
        all: pair.change(None, "all requests", all_a, all_b),
        groups: Vec::new(),
        left_out: Vec::new(),
    };
    for by in by {
        let (changes, left_out) = pair.groups(*by);
        found.groups.extend(changes);
        found.left_out.extend(left_out);
    }
    found
}

#[cfg(test)]
mod tests;
