//! Makes the report of a table.

use super::missing::missing;
use super::{About, DialRow, GroupRow, LostBy, RecordingReport, SettleRow};
use super::{ThresholdRow, TogetherRow};
use crate::analysis::dials::{Dial, Savings};
use crate::analysis::groups::{self, Group, Groups, Marks, Sums};
use crate::analysis::heat::Heatmap;
use crate::analysis::histogram::Histogram;
use crate::analysis::order::{ByTime, Order};
use crate::analysis::requests::Requests;
use crate::analysis::samples::Samples;
use crate::analysis::stats::{rank, seconds, share};
use crate::analysis::together::Together;
use crate::analysis::{modes, roles, settings, thresholds, together, waiting};
use crate::record::table::{Table, UNKNOWN};
use std::collections::HashMap;
use std::thread::scope;
use synclater_text::number;

/// The most groups of requests that come together.
const TOGETHER_MAX: usize = 20;

/// A text, unless it is empty.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// A text, or what stands for none.
fn or(text: &str, none: &str) -> String {
    some(text).unwrap_or_else(|| none.to_owned())
}

const NOT_KNOWN: &str = "(not known)";

/// Numbers for values: the same number for the same value.
struct Numbered {
    of: Vec<u32>,
    names: Vec<String>,
    /// The first index that has this value.
    first: Vec<usize>,
}

impl Numbered {
    fn of(values: impl Iterator<Item = String>) -> Numbered {
        let mut ids: HashMap<String, u32> = HashMap::new();
        let mut all = Numbered {
            of: Vec::new(),
            names: Vec::new(),
            first: Vec::new(),
        };
        for (index, value) in values.enumerate() {
            let next = u32::try_from(all.names.len()).unwrap_or(u32::MAX);
            let id = *ids.entry(value).or_insert_with_key(|value| {
                all.names.push(value.clone());
                all.first.push(index);
                next
            });
            all.of.push(id);
        }
        all
    }

    fn get(&self, index: u32) -> u32 {
        self.of.get(index as usize).copied().unwrap_or(u32::MAX)
    }
}

/// A group as it is shown, without what is particular to its dimension.
fn row(name: String, group: &Group, all_ns: u64) -> GroupRow {
    let Group {
        sums,
        marks,
        histogram,
        ..
    } = group;
    let sync_s = known_seconds(sums);
    GroupRow {
        name,
        requests: sums.requests,
        real: sums.real,
        needless: (sums.dirty_known > 0).then_some(sums.needless),
        bytes: (sums.bytes_known > 0).then_some(sums.bytes),
        sync_s,
        share: sync_s.map(|s| share(s, seconds(all_ns))),
        p50_ns: marks.map(|m| m.p50_ns),
        p90_ns: marks.map(|m| m.p90_ns),
        p99_ns: marks.map(|m| m.p99_ns),
        max_ns: marks.map(|m| m.max_ns),
        histogram: histogram.bins(),
        ..GroupRow::default()
    }
}

/// Seconds of waiting, unless all that would tell is unknown.
fn known_seconds(sums: &Sums) -> Option<f64> {
    (sums.timed > 0 || sums.real == 0).then(|| seconds(sums.sync_ns))
}

/// The groups of a dimension; `finish` adds what is particular to it.
fn rows(
    groups: &Groups,
    all_ns: u64,
    finish: impl Fn(usize, GroupRow) -> GroupRow,
) -> (Vec<GroupRow>, usize) {
    let top = groups.top.iter();
    let rows = top.map(|g| finish(g.key as usize, row(String::new(), g, all_ns)));
    (rows.collect(), groups.total)
}

/// Makes groups of one recording by its dimensions.
struct Dimensions<'a> {
    table: &'a Table,
    order: &'a Order<'a>,
}

type Dimension = (Vec<GroupRow>, usize);

impl Dimensions<'_> {
    fn by(&self, values: usize, key: impl Fn(usize) -> u32) -> Groups {
        groups::by(
            self.order.requests,
            values,
            RecordingReport::GROUPS_MAX,
            key,
        )
    }

    fn file(&self) -> Dimension {
        let (table, rows_) = (self.table, &self.table.rows);
        let groups = self.by(table.files.len(), |i| rows_.file[i]);
        rows(&groups, self.order.sum_ns, |key, row| {
            let file = &table.files[key];
            let filesystem = table.filesystems.get(file.filesystem as usize);
            GroupRow {
                name: or(&file.path, "(no file)"),
                fstype: filesystem.and_then(|f| some(&f.fstype)),
                mount: filesystem.and_then(|f| some(&f.mount)),
                device: filesystem.and_then(|f| some(&f.device)),
                ..row
            }
        })
    }

    fn process(&self) -> Dimension {
        let (table, rows_) = (self.table, &self.table.rows);
        let groups = self.by(table.processes.len(), |i| rows_.process[i]);
        rows(&groups, self.order.sum_ns, |key, row| {
            let process = &table.processes[key];
            GroupRow {
                name: roles::name(process),
                pid: process.pid,
                exe: some(&process.exe),
                role: roles::role(process),
                uid: process.uid,
                ..row
            }
        })
    }

    fn program(&self) -> Dimension {
        let (table, rows_) = (self.table, &self.table.rows);
        let names = Numbered::of(table.processes.iter().map(roles::name));
        let groups = self.by(names.names.len(), |i| names.get(rows_.process[i]));
        rows(&groups, self.order.sum_ns, |key, row| {
            let process = &table.processes[names.first[key]];
            GroupRow {
                name: names.names[key].clone(),
                exe: some(&process.exe),
                role: roles::role(process),
                ..row
            }
        })
    }

    fn kind(&self) -> Dimension {
        let (table, rows_) = (self.table, &self.table.rows);
        let groups = self.by(table.kinds.len(), |i| rows_.kind[i].into());
        rows(&groups, self.order.sum_ns, |key, row| GroupRow {
            name: or(&table.kinds[key], NOT_KNOWN),
            ..row
        })
    }

    /// The file system of row `i`.
    fn where_it_lies(&self, i: usize) -> u32 {
        let file = self.table.files.get(self.table.rows.file[i] as usize);
        file.map_or(u32::MAX, |f| f.filesystem)
    }

    fn filesystem(&self) -> Dimension {
        let table = self.table;
        let groups = self.by(table.filesystems.len(), |i| self.where_it_lies(i));
        rows(&groups, self.order.sum_ns, |key, row| {
            let filesystem = &table.filesystems[key];
            GroupRow {
                name: or(&filesystem.mount, NOT_KNOWN),
                fstype: some(&filesystem.fstype),
                device: some(&filesystem.device),
                ..row
            }
        })
    }

    fn device(&self) -> Dimension {
        let table = self.table;
        let names = Numbered::of(table.filesystems.iter().map(|f| f.device.clone()));
        let groups = self.by(names.names.len(), |i| names.get(self.where_it_lies(i)));
        rows(&groups, self.order.sum_ns, |key, row| GroupRow {
            name: or(&names.names[key], NOT_KNOWN),
            parents: some(&table.filesystems[names.first[key]].parents),
            ..row
        })
    }

    fn caller(&self) -> Dimension {
        let (table, rows_) = (self.table, &self.table.rows);
        let groups = self.by(table.callers.len(), |i| rows_.caller[i]);
        rows(&groups, self.order.sum_ns, |key, row| GroupRow {
            name: or(&table.callers[key], NOT_KNOWN),
            ..row
        })
    }
}

/// What was found by walking in the order of time.
struct InTime {
    by_time: ByTime,
    waiting_ns: u64,
    together: Vec<Together>,
}

impl InTime {
    fn of(requests: &Requests) -> InTime {
        let by_time = ByTime::of(requests);
        InTime {
            waiting_ns: waiting::union_ns(requests, &by_time),
            together: together::find(requests, &by_time),
            by_time,
        }
    }
}

impl RecordingReport {
    /// All that `table` tells; `file` is its name. Uses two threads.
    #[must_use]
    pub fn of(table: &Table, file: &str) -> RecordingReport {
        let requests = Requests::durability(table);
        let (order, in_time) = scope(|s| {
            let order = s.spawn(|| Order::of(&requests));
            let in_time = InTime::of(&requests);
            (order.join().expect("sorting does not panic"), in_time)
        });
        let span = table.span_ns();
        let d = Dimensions {
            table,
            order: &order,
        };
        let mut report = RecordingReport {
            version: RecordingReport::VERSION,
            recording: about(table, file),
            ..RecordingReport::default()
        };
        scope(|s| {
            let half = s.spawn(|| (d.file(), d.process(), d.program()));
            (report.by_kind, report.by_kind_total) = d.kind();
            (report.by_filesystem, report.by_filesystem_total) = d.filesystem();
            (report.by_device, report.by_device_total) = d.device();
            (report.by_caller, report.by_caller_total) = d.caller();
            let (by_file, by_process, by_program) = half.join().expect("it does not panic");
            (report.by_file, report.by_file_total) = by_file;
            (report.by_process, report.by_process_total) = by_process;
            (report.by_program, report.by_program_total) = by_program;
        });
        report.counts(table, &order);
        report.times(&order, &in_time, span);
        report.advice(&order, &in_time);
        report.heatmap = Heatmap::of(&order, span.unwrap_or_default());
        report.samples = Samples::of(table, span.unwrap_or_default());
        report.settles = settles(table);
        report.by_hint = by_hint(table);
        report.io = io(table);
        report
    }

    fn counts(&mut self, table: &Table, order: &Order) {
        let requests = order.requests;
        let all = groups::sums(requests, 1, |_| 0)[0];
        self.requests = all.requests;
        self.real = all.real;
        self.untimed = all.real - all.timed;
        self.hints = table.rows.len() as u64 - all.requests;
        let all_rows = requests.all().map(|i| i as usize);
        let failed = all_rows.filter(|i| requests.has(*i) && table.rows.errno[*i] != 0);
        self.failed = failed.count() as u64;
        self.needless = (all.dirty_known > 0).then_some(all.needless);
        self.needless_known_of = all.dirty_known;
        self.sync_s = known_seconds(&all);
        self.escaped.clone_from(&table.escaped);
        self.escapes_unknown.clone_from(&table.escapes_unknown);
        self.lost = table.lost.values().fold(0, |sum, n| sum.saturating_add(*n));
        let losers = table.processes.iter().filter_map(|p| {
            let pid = p.pid.filter(|pid| table.lost.contains_key(pid))?;
            Some((pid, some(&p.exe)?))
        });
        let exes: HashMap<u32, String> = losers.collect();
        let by = table.lost.iter().map(|(pid, lost)| LostBy {
            pid: (*pid != 0).then_some(*pid),
            exe: exes.get(pid).cloned(),
            lost: *lost,
        });
        self.lost_by_process = by.collect();
        self.lost_by_process
            .sort_by_key(|l| (std::cmp::Reverse(l.lost), l.pid));
    }

    fn times(&mut self, order: &Order, in_time: &InTime, span: Option<(i64, i64)>) {
        let wall_ns = span.map_or(0, |(first, last)| last.abs_diff(first));
        self.wall_s = (wall_ns > 0).then(|| seconds(wall_ns));
        self.waiting_s = self.sync_s.map(|_| seconds(in_time.waiting_ns));
        if let (Some(wall_s), Some(waiting_s)) = (self.wall_s, self.waiting_s) {
            self.waiting_share = Some(share(waiting_s, wall_s));
            self.waiting_threads_mean = self.sync_s.map(|s| share(s, wall_s));
        }
        self.quantiles = order.quantiles();
        let mut histogram = Histogram::default();
        self.by_kind_histogram(order, &mut histogram);
        self.histogram = histogram.bins();
        self.modes = modes::find(order.len(), |place| order.sorted[place]);
        self.modes_sentence = modes_sentence(&self.modes);
    }

    /// The histogram of all: those of all kinds together, where all kinds are listed.
    fn by_kind_histogram(&self, order: &Order, histogram: &mut Histogram) {
        if self.by_kind_total > self.by_kind.len() {
            order.sorted.iter().for_each(|took| histogram.add(*took));
            return;
        }
        for bin in self.by_kind.iter().flat_map(|kind| &kind.histogram) {
            histogram.add_many(bin.from_ns, bin.n);
        }
    }

    fn advice(&mut self, order: &Order, in_time: &InTime) {
        let top = in_time.together.iter().take(TOGETHER_MAX);
        self.together = top.map(together_row).collect();
        let measured = thresholds::of(order);
        self.thresholds = measured.iter().map(threshold_row).collect();
        let savings = Savings::of(order, &in_time.by_time);
        let dials = savings.dials(in_time.waiting_ns);
        // Without a request there is nothing to save.
        let dials = dials.iter().filter(|_| self.requests > 0);
        self.dials = dials.map(dial_row).collect();
        self.settings = settings::of(order.requests);
    }
}

fn about(table: &Table, file: &str) -> About {
    let h = &table.header;
    let missing = missing(table);
    About {
        file: file.to_owned(),
        host: h.host.clone(),
        kernel: h.kernel.clone(),
        started: h.started.clone(),
        command: h.command.clone(),
        until: h.until.clone(),
        engine: h.engine.clone(),
        whose: h.whose.clone(),
        slower_ns: h.slower_ns,
        complete: missing.is_none(),
        missing,
    }
}

/// A duration for people.
fn time(ns: u64) -> String {
    number::seconds(seconds(ns))
}

fn modes_sentence(modes: &[modes::Mode]) -> Option<String> {
    if modes.len() < 2 {
        return None;
    }
    Some(modes.iter().map(near).collect::<Vec<_>>().join(", "))
}

/// Where a mode lies, and its share.
fn near(mode: &modes::Mode) -> String {
    let percent = mode.share * 100.0;
    let digits = usize::from(!(2.0..=98.0).contains(&percent));
    format!("{percent:.digits$} % near {}", time(mode.near_ns))
}

fn together_row(t: &Together) -> TogetherRow {
    let parts = t.parts.iter().map(|(kind, file)| match file.as_str() {
        "" => kind.clone(),
        file => format!("{kind} {file}"),
    });
    let parts: Vec<String> = parts.collect();
    let parts = parts.join(" + ");
    let saves_s = (t.timed > 0).then(|| seconds(t.saves_ns));
    let each = t.parts.len();
    let saves = match saves_s {
        Some(s) => format!(
            "; one sync instead of the {each} would save {}",
            number::seconds(s)
        ),
        None => String::new(),
    };
    let sentence = format!(
        "{} makes {each} requests right after each other, {}: {parts}{saves}",
        t.program,
        number::counted(t.times, "time"),
    );
    TogetherRow {
        what: format!("{}: {parts}", t.program),
        times: t.times,
        requests_each: each as u64,
        saves_s,
        sentence,
    }
}

fn threshold_row(m: &thresholds::Measured) -> ThresholdRow {
    let t = &m.threshold;
    let which = match t.quantile() {
        "max" => "the longest",
        _ => "the 99th percentile",
    };
    let of = number::counted(m.n, "request");
    let sentence = if m.is_ok() {
        format!(
            "{}: {which} of {of} is {}, below {} as it must be",
            t.name,
            time(m.measured_ns),
            time(t.limit_ns)
        )
    } else {
        format!(
            "{}: {which} of {of} is {}, not below {}: {}",
            t.name,
            time(m.measured_ns),
            time(t.limit_ns),
            t.above
        )
    };
    ThresholdRow {
        name: t.name.to_owned(),
        limit_ns: t.limit_ns,
        measured_ns: m.measured_ns,
        quantile: t.quantile().to_owned(),
        ok: m.is_ok(),
        sentence,
        source: t.source.to_owned(),
    }
}

fn dial_row(dial: &Dial) -> DialRow {
    let saves = match dial.saved_s {
        Some(s) => format!("saves at most {}", number::seconds(s)),
        None => "saves what this recording does not tell: nothing was made for real".to_owned(),
    };
    DialRow {
        until: dial.until.to_owned(),
        saved_s: dial.saved_s,
        at_stake: dial.at_stake.to_owned(),
        sentence: format!("{} {saves}. {}", dial.until, dial.at_stake),
    }
}

fn settles(table: &Table) -> Vec<SettleRow> {
    let mounts = Numbered::of(table.settles.iter().map(|s| mount(table, s.filesystem)));
    let rows = mounts.names.iter().map(|mount| SettleRow {
        mount: or(mount, NOT_KNOWN),
        n: 0,
        sync_s: None,
        max_ns: None,
        failed: 0,
    });
    let mut rows: Vec<SettleRow> = rows.collect();
    for (settle, row) in table.settles.iter().zip(&mounts.of) {
        let row = &mut rows[*row as usize];
        row.n += 1;
        row.failed += u64::from(settle.errno != 0);
        if settle.took_ns != UNKNOWN {
            row.sync_s = Some(row.sync_s.unwrap_or(0.0) + seconds(settle.took_ns));
            row.max_ns = Some(row.max_ns.unwrap_or(0).max(settle.took_ns));
        }
    }
    rows
}

/// Where a file system is mounted; empty where that is not known.
fn mount(table: &Table, filesystem: u32) -> String {
    let filesystem = table.filesystems.get(filesystem as usize);
    filesystem.map_or(String::new(), |f| f.mount.clone())
}

fn by_hint(table: &Table) -> Vec<GroupRow> {
    let hints = Requests::hints(table);
    if !hints.all().any(|i| hints.has(i as usize)) {
        return Vec::new();
    }
    let rows_ = &table.rows;
    let kinds = table.kinds.len();
    let groups = groups::by(&hints, kinds, RecordingReport::GROUPS_MAX, |i| {
        rows_.kind[i].into()
    });
    let all = groups::sums(&hints, 1, |_| 0)[0];
    let (rows, _) = rows(&groups, all.sync_ns, |key, row| GroupRow {
        name: or(&table.kinds[key], NOT_KNOWN),
        ..row
    });
    rows
}

/// Other calls by kind: the slow ones, and the counts of the faster ones.
fn io(table: &Table) -> Vec<GroupRow> {
    if table.io.is_empty() && table.io_rest.is_empty() {
        return Vec::new();
    }
    let requests = Requests::io(table);
    let order = Order::of(&requests);
    let kinds = table.kinds.len();
    let slow = groups::sums(&requests, kinds, |i| table.io.kind[i].into());
    let mut all = Vec::new();
    for (kind, name) in (0u16..).zip(&table.kinds) {
        let mut sums = slow[usize::from(kind)];
        let rest = table.io_rest.iter().filter(|rest| rest.kind == kind);
        // A value, and how often it came: the faster ones count as their upper bound.
        let most = table.header.slower_ns.unwrap_or(u64::MAX);
        let mut values: Vec<(u64, u64)> = rest.map(|r| (r.below_ns.min(most), r.count)).collect();
        let mut histogram = Histogram::default();
        for (below, n) in &values {
            histogram.add_many(below / 2, *n);
            sums.requests = sums.requests.saturating_add(*n);
            sums.real = sums.real.saturating_add(*n);
        }
        for took in order.only(|i| table.io.kind[i] == kind) {
            histogram.add(took);
            values.push((took, 1));
        }
        if sums.requests == 0 {
            continue;
        }
        values.sort_unstable();
        let group = Group {
            key: kind.into(),
            sums,
            marks: marks(&values),
            histogram,
        };
        all.push(row(or(name, NOT_KNOWN), &group, order.sum_ns));
    }
    all.sort_by(|a, b| {
        cost(b)
            .partial_cmp(&cost(a))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    all
}

/// Seconds of waiting, and how many requests.
fn cost(row: &GroupRow) -> (f64, f64) {
    (row.sync_s.unwrap_or(0.0), row.requests as f64)
}

/// Percentiles of values that came so many times, least first.
fn marks(values: &[(u64, u64)]) -> Option<Marks> {
    let n = values
        .iter()
        .fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    Some(Marks {
        p50_ns: value_at(values, rank(n, 5_000))?,
        p90_ns: value_at(values, rank(n, 9_000))?,
        p99_ns: value_at(values, rank(n, 9_900))?,
        max_ns: value_at(values, rank(n, 10_000))?,
    })
}

/// The value at a place (from 0) of such values.
fn value_at(values: &[(u64, u64)], place: usize) -> Option<u64> {
    let mut passed = 0u64;
    for (value, times) in values {
        passed = passed.saturating_add(*times);
        if passed > place as u64 {
            return Some(*value);
        }
    }
    None
}
