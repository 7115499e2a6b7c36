//! The last moments of a recording that is being made: who asks for what, how often, how long.
//!
//! Promise: a request counts in the interval in which it was answered, whenever its batch arrives.
//! Memory is bounded however many files and processes there are: of each grouping the heaviest
//! [`KEPT`] are kept in an interval, all others are one. Counts saturate.
//!
//! What it does not do: it has no clock; the caller says what time it is ([`Live::advance`]). Hints
//! (sync_file_range) are no sync requests and are not counted. Percentiles come from bins of 6 %.

use crate::record::table::{Done, Rows, Table, UNKNOWN};
use std::collections::{HashMap, VecDeque};
use std::str::FromStr;

/// Members of a grouping that an interval keeps apart.
pub const KEPT: usize = 2048;
/// Intervals in the history of a graph.
pub const HISTORY: usize = 240;
/// A request that is told later than this is not counted any more.
const LATE_NS: i64 = 10_000_000_000;
/// No interval is held open for longer than this after its end.
const LAG_MAX_NS: i64 = 5_000_000_000;
/// Intervals that are open at the same time.
const OPEN_MAX: usize = 64;

/// What requests are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Process: its number, executable and command.
    Process,
    /// File: its path, and where it is mounted.
    File,
    /// Device, and what it is made of.
    Device,
    /// Kind of call.
    Kind,
    /// The code that asked.
    Caller,
}

impl By {
    /// All, in the order in which they are offered.
    pub const ALL: [By; 5] = [By::Process, By::File, By::Device, By::Kind, By::Caller];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            By::Process => "process",
            By::File => "file",
            By::Device => "device",
            By::Kind => "kind",
            By::Caller => "caller",
        }
    }

    /// Its place in [`By::ALL`].
    #[must_use]
    pub fn place(self) -> usize {
        By::ALL.iter().position(|by| *by == self).unwrap_or(0)
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(name: &str) -> Result<By, String> {
        let found = By::ALL.into_iter().find(|by| by.name() == name);
        found.ok_or_else(|| format!("{name}: not one of process, file, device, kind, caller"))
    }
}

/// What requests have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Number of the process, of one.
    pub pid: Option<u32>,
    /// Executable, path, device, kind or code; empty where it is not known.
    pub name: String,
    /// Command line of a process, mount point of a file, what a device is made of; else empty.
    pub detail: String,
}

impl Key {
    /// Of no process.
    fn new(name: &str, detail: &str) -> Key {
        Key {
            pid: None,
            name: name.to_owned(),
            detail: detail.to_owned(),
        }
    }
}

/// Durations, in bins of equal ratio.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Bin and count, by bin.
    bins: Vec<(u16, u64)>,
    count: u64,
    max_ns: u64,
}

/// Sixteen bins from one power of two to the next.
fn bin_of(ns: u64) -> u16 {
    if ns < 16 {
        return ns as u16;
    }
    let power = 63 - ns.leading_zeros();
    let part = (ns >> (power - 4)) & 15;
    ((power - 3) * 16) as u16 + part as u16
}

/// The middle of a bin.
fn middle_of(bin: u16) -> u64 {
    if bin < 16 {
        return bin.into();
    }
    let (power, part) = (u32::from(bin) / 16 + 3, u64::from(bin) % 16);
    let width = 1u64 << (power - 4);
    ((16 + part) << (power - 4)).saturating_add(width / 2)
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.put(bin_of(ns), 1);
        self.max_ns = self.max_ns.max(ns);
    }

    fn put(&mut self, bin: u16, count: u64) {
        self.count = self.count.saturating_add(count);
        match self.bins.binary_search_by_key(&bin, |b| b.0) {
            Ok(at) => self.bins[at].1 = self.bins[at].1.saturating_add(count),
            Err(at) => self.bins.insert(at, (bin, count)),
        }
    }

    fn merge(&mut self, other: &Times) {
        for (bin, count) in &other.bins {
            self.put(*bin, *count);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The duration below which `share` of them lie, to 3 %; `None` without any.
    #[must_use]
    pub fn percentile_ns(&self, share: f64) -> Option<u64> {
        let rank = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut before = 0u64;
        let bin = self.bins.iter().find(|(_, count)| {
            before = before.saturating_add(*count);
            before >= rank
        });
        let bin = bin.or(self.bins.last())?;
        Some(middle_of(bin.0).min(self.max_ns))
    }

    /// The longest; `None` without any.
    #[must_use]
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }
}

/// What requests come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How many.
    pub requests: u64,
    /// Of these: made for real.
    pub real: u64,
    /// Of these: answered at once.
    pub skipped: u64,
    /// Nanoseconds that programs waited for all of them.
    pub took_ns: u64,
    /// Real ones of which it is known whether anything was dirty.
    pub known: u64,
    /// Of these: nothing was.
    pub needless: u64,
    /// What the real ones took.
    pub times: Times,
}

impl Sums {
    /// Adds the request of a row.
    fn add(&mut self, rows: &Rows, row: usize) {
        let (took_ns, dirty) = (rows.took_ns[row], rows.dirty[row]);
        self.requests = self.requests.saturating_add(1);
        let known = took_ns != UNKNOWN;
        if known {
            self.took_ns = self.took_ns.saturating_add(took_ns);
        }
        match rows.done[row] {
            Done::Real | Done::Unknown => {
                self.real = self.real.saturating_add(1);
                self.known = self.known.saturating_add(dirty.is_some().into());
                let needless = dirty == Some(false);
                self.needless = self.needless.saturating_add(needless.into());
                if known {
                    self.times.add(took_ns);
                }
            }
            Done::Owed | Done::Skipped => self.skipped = self.skipped.saturating_add(1),
            Done::Nothing => {}
        }
    }

    /// Adds those of `other`.
    pub fn merge(&mut self, other: &Sums) {
        self.requests = self.requests.saturating_add(other.requests);
        self.real = self.real.saturating_add(other.real);
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.took_ns = self.took_ns.saturating_add(other.took_ns);
        self.known = self.known.saturating_add(other.known);
        self.needless = self.needless.saturating_add(other.needless);
        self.times.merge(&other.times);
    }

    /// What groups are compared by: how long programs waited, then how often.
    fn weight(&self) -> (u64, u64) {
        (self.took_ns, self.requests)
    }
}

/// The members of one grouping.
#[derive(Clone, Debug, Default)]
struct Groups {
    members: HashMap<Key, Sums>,
    others: Sums,
}

impl Groups {
    fn add(&mut self, key: Key, sums: &Sums) {
        self.members.entry(key).or_default().merge(sums);
        if self.members.len() >= 2 * KEPT {
            self.compact();
        }
    }

    /// Keeps the heaviest: those that programs waited for the longest.
    fn compact(&mut self) {
        if self.members.len() <= KEPT {
            return;
        }
        let mut all: Vec<(Key, Sums)> = self.members.drain().collect();
        all.sort_by(|(a, x), (b, y)| {
            let heavier = y.weight().cmp(&x.weight());
            heavier.then_with(|| a.cmp(b))
        });
        for (_, light) in all.drain(KEPT..) {
            self.others.merge(&light);
        }
        self.members.extend(all);
    }
}

/// What was answered in one interval.
#[derive(Clone, Debug, Default)]
struct Interval {
    total: Sums,
    lost: u64,
    groups: [Groups; By::ALL.len()],
}

/// One interval in the history.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Requests, with those that were lost on the way here.
    pub requests: u64,
    /// Nanoseconds, of the real ones; `None` where there was none.
    pub p99_ns: Option<u64>,
}

/// How time is divided.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Length of an interval; at least a millisecond is taken.
    pub interval_ns: i64,
    /// Intervals that a [`Window`] holds; at least one is taken.
    pub window: usize,
    /// How late batches arrive: an interval is closed so long after its end, or later while they
    /// are found to arrive later.
    pub lag_ns: i64,
}

/// The last intervals together.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// All requests.
    pub total: Sums,
    /// Requests that did not get here: a ring was full.
    pub lost: u64,
    /// Those that have a member of the grouping in common, in no order.
    pub members: Vec<(Key, Sums)>,
    /// Those of members too light to be kept apart.
    pub others: Sums,
}

/// The last moments.
#[derive(Clone, Debug)]
pub struct Live {
    setup: Setup,
    /// How late batches arrive at the moment.
    lag_ns: i64,
    /// Begin of the first open interval.
    begin_ns: i64,
    open: VecDeque<Interval>,
    closed: VecDeque<Interval>,
    history: VecDeque<Point>,
}

impl Live {
    /// From the moment `now_ns` (since 1970) on.
    #[must_use]
    pub fn new(setup: Setup, now_ns: i64) -> Live {
        let setup = Setup {
            interval_ns: setup.interval_ns.max(1_000_000),
            window: setup.window.max(1),
            lag_ns: setup.lag_ns.clamp(0, LAG_MAX_NS),
        };
        Live {
            setup,
            lag_ns: setup.lag_ns,
            begin_ns: now_ns,
            open: VecDeque::new(),
            closed: VecDeque::new(),
            history: VecDeque::new(),
        }
    }

    /// Adds the requests of one batch, which has arrived at `now_ns`.
    pub fn add(&mut self, batch: &Table, now_ns: i64) {
        let rows = &batch.rows;
        let mut places: Vec<Option<usize>> = Vec::with_capacity(rows.len());
        for i in 0..rows.len() {
            let took = rows.took_ns[i];
            let took = if took == UNKNOWN { 0 } else { took };
            let took = i64::try_from(took).unwrap_or(i64::MAX);
            let counted = batch.is_durability(rows.kind[i]);
            let end = rows.time_ns[i].saturating_add(took);
            places.push(self.place(end).filter(|_| counted));
            let late = now_ns.saturating_sub(end);
            if (self.lag_ns..LAG_MAX_NS).contains(&late) {
                self.lag_ns = (late + late / 8).min(LAG_MAX_NS);
            }
        }
        let last = places.iter().flatten().max().copied();
        for place in 0..=last.unwrap_or(0) {
            if places.contains(&Some(place)) {
                let chosen = (0..rows.len()).filter(|i| places[*i] == Some(place));
                let chosen: Vec<usize> = chosen.collect();
                self.interval(place).add(batch, &chosen);
            }
        }
        let lost = batch.lost.values().fold(0u64, |a, b| a.saturating_add(*b));
        let time = rows.time_ns.iter().copied();
        let time = time.chain(batch.samples.iter().map(|s| s.time_ns)).max();
        // A batch that tells of losses alone is as late as any other.
        if let Some(place) = self.place(time.unwrap_or(self.begin_ns)) {
            let to = &mut self.interval(place).lost;
            *to = to.saturating_add(lost);
        }
    }

    /// The open interval, by number, of what was answered at a time.
    fn place(&self, at_ns: i64) -> Option<usize> {
        let since = at_ns.saturating_sub(self.begin_ns);
        let place = since.div_euclid(self.setup.interval_ns);
        match usize::try_from(place) {
            Ok(place) => Some(place.min(OPEN_MAX - 1)),
            Err(_) => (since >= -LATE_NS).then_some(0),
        }
    }

    fn interval(&mut self, place: usize) -> &mut Interval {
        while self.open.len() <= place {
            self.open.push_back(Interval::default());
        }
        &mut self.open[place]
    }

    /// Closes the intervals that are over at `now_ns` (since 1970); how many.
    pub fn advance(&mut self, now_ns: i64) -> usize {
        let due = now_ns
            .saturating_sub(self.lag_ns)
            .saturating_sub(self.begin_ns);
        let due = due.div_euclid(self.setup.interval_ns);
        let stepped_back = due < -2 - LAG_MAX_NS / self.setup.interval_ns;
        if stepped_back || due > HISTORY as i64 {
            // Somebody set the clock, or we stood still for long.
            *self = Live::new(self.setup, now_ns);
            return 0;
        }
        let due = usize::try_from(due).unwrap_or(0);
        for _ in 0..due {
            self.close();
        }
        if due > 0 {
            self.lag_ns = self.setup.lag_ns.max(self.lag_ns - self.lag_ns / 8);
        }
        due
    }

    fn close(&mut self) {
        let mut interval = self.open.pop_front().unwrap_or_default();
        interval.groups.iter_mut().for_each(Groups::compact);
        self.history.push_back(Point {
            requests: interval.total.requests.saturating_add(interval.lost),
            p99_ns: interval.total.times.percentile_ns(0.99),
        });
        self.closed.push_back(interval);
        self.begin_ns = self.begin_ns.saturating_add(self.setup.interval_ns);
        while self.closed.len() > self.setup.window {
            self.closed.pop_front();
        }
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// When the last interval that was closed ended, nanoseconds since 1970.
    #[must_use]
    pub fn closed_until_ns(&self) -> i64 {
        self.begin_ns
    }

    /// Length of an interval in seconds.
    #[must_use]
    pub fn interval_s(&self) -> f64 {
        self.setup.interval_ns as f64 / 1e9
    }

    /// The intervals that were closed last, grouped; `None` before the first.
    #[must_use]
    pub fn window(&self, by: By) -> Option<Window> {
        if self.closed.is_empty() {
            return None;
        }
        let mut sum = Interval::default();
        let mut members: HashMap<&Key, Sums> = HashMap::new();
        for interval in &self.closed {
            sum.total.merge(&interval.total);
            sum.lost = sum.lost.saturating_add(interval.lost);
            let groups = &interval.groups[by.place()];
            sum.groups[0].others.merge(&groups.others);
            for (key, sums) in &groups.members {
                members.entry(key).or_default().merge(sums);
            }
        }
        let [first, ..] = sum.groups;
        let members = members.into_iter().map(|(k, s)| (k.clone(), s));
        Some(Window {
            seconds: self.interval_s() * self.closed.len() as f64,
            total: sum.total,
            lost: sum.lost,
            members: members.collect(),
            others: first.others,
        })
    }

    /// One point for each interval, the latest last.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = &Point> {
        self.history.iter()
    }
}

impl Interval {
    /// Adds the requests with the numbers `chosen`.
    fn add(&mut self, batch: &Table, chosen: &[usize]) {
        let rows = &batch.rows;
        chosen.iter().for_each(|i| self.total.add(rows, *i));
        for (by, groups) in By::ALL.into_iter().zip(&mut self.groups) {
            // By number in the batch first: texts are looked at once a batch.
            let mut sums: HashMap<u32, Sums> = HashMap::new();
            for i in chosen {
                let number = match by {
                    By::Process => rows.process[*i],
                    By::File => rows.file[*i],
                    By::Device => {
                        let file = batch.files.get(rows.file[*i] as usize);
                        file.map_or(0, |f| f.filesystem)
                    }
                    By::Kind => rows.kind[*i].into(),
                    By::Caller => rows.caller[*i],
                };
                sums.entry(number).or_default().add(rows, *i);
            }
            let mut sums: Vec<(u32, Sums)> = sums.into_iter().collect();
            sums.sort_unstable_by_key(|(number, _)| *number);
            for (number, sums) in &sums {
                groups.add(key_of(batch, by, *number as usize), sums);
            }
        }
    }
}

fn key_of(batch: &Table, by: By, number: usize) -> Key {
    // Numbers of a table are in its lists, but for kinds beyond the 65,535th.
    match by {
        By::Process => batch
            .processes
            .get(number)
            .map_or_else(Key::default, |p| Key {
                pid: p.pid,
                ..Key::new(&p.exe, &p.command)
            }),
        By::File => batch.files.get(number).map_or_else(Key::default, |f| {
            let place = batch.filesystems.get(f.filesystem as usize);
            Key::new(&f.path, place.map_or("", |p| &p.mount))
        }),
        By::Device => batch
            .filesystems
            .get(number)
            .map_or_else(Key::default, |f| Key::new(&f.device, &f.parents)),
        By::Kind => Key::new(batch.kinds.get(number).map_or("", |k| k), ""),
        By::Caller => Key::new(batch.callers.get(number).map_or("", |c| c), ""),
    }
}

#[cfg(test)]
mod tests;
