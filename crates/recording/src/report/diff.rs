//! What `synclater diff` shows: how two recordings differ, by group.
//!
//! Promise: each change has its interval and says when it may be chance; the unit of the changes is
//! told once, above them. JSON has every group that was looked at, text the costliest ones.

use crate::analysis::diff::name::By;
use crate::analysis::diff::side::Side;
use crate::analysis::diff::{Alike, Change, Diff, Estimate, Figures, Per};
use crate::record::header::Header;
use serde::Serialize;
use std::fmt::Write as _;
use synclater_text::layout::{shown, wrapped, wrapped_clauses};
use synclater_text::number::{count, counted, seconds};

/// Groups of one kind that the text shows: those that changed, and those within noise.
const SHOWN: (usize, usize) = (10, 5);

/// One of the recordings.
#[derive(Clone, Debug, Serialize)]
pub struct Recording {
    /// The file.
    pub file: String,
    /// The machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// When it began.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// Requests for durability that were made for real.
    pub requests: u64,
    /// Those that were not.
    pub not_real: u64,
    /// Requests that the recording lost.
    pub lost: u64,
    /// From its first event to its last.
    pub wall_s: f64,
    /// Spent in the requests.
    pub sync_s: f64,
    /// What is missing of it; empty for a whole one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub missing: String,
}

impl Recording {
    /// From what was read of `file`; `missing` says what was not.
    #[must_use]
    pub fn new(file: &str, header: &Header, side: &Side, missing: String) -> Recording {
        Recording {
            file: file.to_owned(),
            host: header.host.clone(),
            started: header.started.clone(),
            requests: side.requests,
            not_real: side.others,
            lost: side.lost,
            wall_s: side.wall_s,
            sync_s: side.all.sync_s,
            missing,
        }
    }

    fn render(&self, letter: char) -> String {
        let mut clauses = vec![format!("{}:", shown(&self.file))];
        let facts = [&self.host, &self.started].into_iter();
        clauses.extend(facts.filter(|f| !f.is_empty()).map(|f| shown(f) + ","));
        let requests = counted(self.requests, "request");
        let wall = seconds(self.wall_s);
        clauses.push(format!("{requests} made for real in {wall},"));
        clauses.push(format!("{} of it in syncs", seconds(self.sync_s)));
        let mut text = wrapped_clauses(&format!("{letter}  "), &clauses);
        if self.not_real > 0 {
            let words = format!("{} more were not made for real", count(self.not_real));
            text.push_str(&wrapped("   ", &words));
        }
        if self.lost > 0 {
            let words = format!("{} were lost by the recorder", count(self.lost));
            text.push_str(&wrapped("   ", &words));
        }
        if !self.missing.is_empty() {
            text.push_str(&wrapped("   ", &shown(&self.missing)));
        }
        text
    }
}

#[derive(Serialize)]
struct Part {
    requests: u64,
    sync_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_ns: Option<u64>,
}

impl From<Figures> for Part {
    fn from(f: Figures) -> Part {
        Part {
            requests: f.requests,
            sync_s: f.sync_s,
            p50_ns: f.p50_ns,
            p99_ns: f.p99_ns,
        }
    }
}

#[derive(Serialize)]
struct Group<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<By>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    only_in: Option<&'static str>,
    a: Part,
    b: Part,
    change_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    change_low_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change_high_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ratio_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_ratio_high: Option<f64>,
    within_noise: bool,
    sentence: String,
}

#[derive(Serialize)]
struct LeftOut {
    by: By,
    groups: u64,
    change_s: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    per: &'static str,
    measure: &'static str,
    a: &'a Recording,
    b: &'a Recording,
    all: Group<'a>,
    groups: Vec<Group<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

/// Two recordings and how they differ.
pub struct Report {
    /// The first.
    pub a: Recording,
    /// The second.
    pub b: Recording,
    /// How they differ.
    pub diff: Diff,
}

impl Report {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let left_out = self.diff.left_out.iter().map(|l| LeftOut {
            by: l.by,
            groups: l.groups,
            change_s: l.change_s,
        });
        synclater_text::json(&Json {
            version: 1,
            per: self.diff.per.word(),
            measure: self.measure(),
            a: &self.a,
            b: &self.b,
            all: self.group(&self.diff.all),
            groups: self.diff.groups.iter().map(|c| self.group(c)).collect(),
            left_out: left_out.collect(),
        })
    }

    fn group<'a>(&self, c: &'a Change) -> Group<'a> {
        let cost = c.change_s.interval;
        let median = c.p50_ratio.and_then(|r| r.interval);
        let clauses = self.amount(c).into_iter().chain(self.clauses(c));
        let what: Vec<String> = clauses.collect();
        Group {
            by: c.by,
            name: &c.name,
            only_in: only_in(c),
            a: c.a.into(),
            b: c.b.into(),
            change_s: c.change_s.value,
            change_low_s: cost.map(|i| i.0),
            change_high_s: cost.map(|i| i.1),
            p50_ratio: c.p50_ratio.map(|r| r.value),
            p50_ratio_low: median.map(|i| i.0),
            p50_ratio_high: median.map(|i| i.1),
            within_noise: c.within_noise,
            sentence: format!("{}: {}", shown(&c.name), what.join("; ")),
        }
    }

    /// In what changes are measured, and why.
    fn measure(&self) -> &'static str {
        match (self.diff.per, self.diff.alike) {
            (Per::Run, Alike::Work) => {
                "seconds of the whole recordings, which hold about as many requests"
            }
            (Per::Run, Alike::Time) => "seconds of the whole recordings, which took about as long",
            (Per::Run, Alike::Nothing) => {
                "seconds of the whole recordings, which differ in length and in requests"
            }
            (Per::Second, _) => "seconds in syncs per second of the recording",
            (Per::Request, _) => "seconds in syncs per request of the recording",
        }
    }

    fn amount(&self, c: &Change) -> Option<String> {
        (!c.is_few()).then(|| {
            let unit = match self.diff.per {
                Per::Run => "",
                Per::Second => " per second",
                Per::Request => " per request",
            };
            let words = signed(c.change_s.value);
            match (c.within_noise, c.change_s.excludes(0.0)) {
                (true, _) => format!("within noise: {words}{unit}"),
                (false, true) => format!("{words}{unit}"),
                // It is the median that has changed.
                (false, false) => format!("cost within noise: {words}{unit}"),
            }
        })
    }

    /// What there is to say of a change besides its amount.
    fn clauses(&self, c: &Change) -> Vec<String> {
        let mut clauses = Vec::new();
        if let Some(side) = only_in(c) {
            let requests = counted(c.a.requests.max(c.b.requests), "request");
            let letter = side.to_uppercase();
            clauses.push(format!("only in {letter}, {requests}"));
        }
        if c.is_few() {
            let (a, b) = (count(c.a.requests), count(c.b.requests));
            let cost = signed(c.change_s.value);
            clauses.push(format!("{a} and {b} requests are too few to tell ({cost})"));
            return clauses;
        }
        clauses.extend(interval_of(&c.change_s));
        clauses.extend(medians(c));
        if let (Some(a), Some(b)) = (c.a.p99_ns, c.b.p99_ns) {
            clauses.push(format!("p99 {} → {}", ns(a), ns(b)));
        }
        clauses
    }

    /// As text for a terminal.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = self.a.render('A');
        out.push_str(&self.b.render('B'));
        out.push('\n');
        if self.a.requests == 0 || self.b.requests == 0 {
            let which = match (self.a.requests, self.b.requests) {
                (0, 0) => "Neither recording has",
                (0, _) => "A does not have",
                _ => "B does not have",
            };
            let words = format!("{which} any request that was made for real: nothing to compare.");
            out.push_str(&wrapped("", &words));
            return out;
        }
        let all: Vec<String> = self.amount(&self.diff.all).into_iter().collect();
        let all = [all, self.clauses(&self.diff.all)].concat();
        out.push_str(&wrapped_clauses("In all: ", &joined(&all)));
        let measure = self.measure();
        let words = format!("Changes from A to B, in {measure}; with 95 % intervals.");
        out.push_str(&wrapped("", &words));
        let mut by: Vec<By> = self.diff.groups.iter().filter_map(|c| c.by).collect();
        by.dedup();
        for by in by {
            out.push_str(&self.table(by));
        }
        let judged = self.diff.groups.iter().filter(|c| !c.is_few()).count();
        if judged >= 20 {
            let words = format!(
                "One interval in twenty misses by chance: of these {judged} groups about {} may.",
                judged / 20
            );
            out.push('\n');
            out.push_str(&wrapped("", &words));
        }
        out
    }

    /// The groups of one kind, within noise or not.
    fn groups_by(&self, by: By, noise: bool) -> impl Iterator<Item = &Change> {
        let groups = self.diff.groups.iter();
        groups.filter(move |c| c.by == Some(by) && c.within_noise == noise)
    }

    fn table(&self, by: By) -> String {
        let mut out = format!("\nBy {}\n", by.word());
        for c in self.groups_by(by, false).take(SHOWN.0) {
            let cost = signed(c.change_s.value);
            let is_cost = c.change_s.excludes(0.0);
            self.line(&mut out, if is_cost { &cost } else { "median only" }, c);
        }
        let more = self.groups_by(by, false).count().saturating_sub(SHOWN.0);
        if more > 0 {
            let _ = writeln!(out, "{:>16}  {} more changed", "", count(more as u64));
        }
        for c in self.groups_by(by, true).take(SHOWN.1) {
            let word = if c.is_few() { "too few" } else { "noise" };
            self.line(&mut out, word, c);
        }
        let more = self.groups_by(by, true).count().saturating_sub(SHOWN.1);
        if more > 0 {
            let _ = writeln!(
                out,
                "{:>16}  {} more within noise, or too few",
                "",
                count(more as u64)
            );
        }
        for l in self.diff.left_out.iter().filter(|l| l.by == by) {
            let others = counted(l.groups, "other");
            let _ = writeln!(
                out,
                "{:>16}  {others} whose changes are smaller, together",
                signed(l.change_s)
            );
        }
        out
    }

    fn line(&self, out: &mut String, amount: &str, c: &Change) {
        let lead = format!("{amount:>16}  ");
        out.push_str(&wrapped_clauses(&lead, &[shown(&c.name)]));
        let under = " ".repeat(lead.chars().count() + 2);
        out.push_str(&wrapped_clauses(&under, &joined(&self.clauses(c))));
    }
}

/// Clauses with the semicolons between them.
fn joined(clauses: &[String]) -> Vec<String> {
    let mut joined = clauses.to_vec();
    if let Some((_, before)) = joined.split_last_mut() {
        before.iter_mut().for_each(|clause| clause.push(';'));
    }
    joined
}

fn only_in(c: &Change) -> Option<&'static str> {
    match (c.a.requests, c.b.requests) {
        (0, 0) => None,
        (0, _) => Some("b"),
        (_, 0) => Some("a"),
        _ => None,
    }
}

fn ns(ns: u64) -> String {
    seconds(ns as f64 / 1e9)
}

/// `12 s more`, `0.3 s less`, `no change`.
fn signed(change_s: f64) -> String {
    match change_s {
        0.0 => "no change".to_owned(),
        c if c < 0.0 => format!("{} less", seconds(-c)),
        c => format!("{} more", seconds(c)),
    }
}

/// `95 %: 10 s to 14 s`, or with the directions where the ends differ in them.
fn interval_of(change: &Estimate) -> Option<String> {
    let (low, high) = change.interval?;
    Some(if low > 0.0 {
        format!("95 %: {} to {}", seconds(low), seconds(high))
    } else if high < 0.0 {
        format!("95 %: {} to {}", seconds(-high), seconds(-low))
    } else {
        format!("95 %: {} to {}", signed(low), signed(high))
    })
}

fn medians(c: &Change) -> Option<String> {
    let (a, b) = (c.a.p50_ns?, c.b.p50_ns?);
    let mut words = format!("median {} → {}", ns(a), ns(b));
    if let Some(ratio) = c.p50_ratio {
        let _ = write!(words, ", {} times", times(ratio.value));
        if let Some((low, high)) = ratio.interval {
            let _ = write!(words, " ({} to {})", times(low), times(high));
        }
    }
    Some(words)
}

/// A ratio, with enough digits to tell it from 1.
fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => count(r.round().min(1e18) as u64),
        r if r >= 10.0 => format!("{r:.1}"),
        r if r >= 0.1 => format!("{r:.2}"),
        r => format!("{r:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, cost: [f64; 3], ratio: [f64; 3]) -> Change {
        let estimate = |[low, value, high]: [f64; 3]| Estimate {
            value,
            interval: Some((low, high)),
        };
        let figures = Figures {
            requests: 1234,
            sync_s: 1.0,
            p50_ns: Some(1_000_000),
            p99_ns: Some(9_000_000),
            timed: 1234,
        };
        let (change_s, p50_ratio) = (estimate(cost), estimate(ratio));
        Change {
            by: Some(By::File),
            name: name.into(),
            a: figures,
            b: figures,
            change_s,
            p50_ratio: Some(p50_ratio),
            within_noise: !change_s.excludes(0.0) && !p50_ratio.excludes(1.0),
        }
    }

    fn report(per: Per, groups: Vec<Change>) -> Report {
        let side = Side::default();
        let recording = |file| {
            let empty = Recording::new(file, &Header::default(), &side, String::new());
            Recording {
                requests: 1,
                ..empty
            }
        };
        Report {
            a: recording("a.rec"),
            b: recording("b.rec"),
            diff: Diff {
                per,
                alike: Alike::Nothing,
                all: change("all requests", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
                groups,
                left_out: Vec::new(),
            },
        }
    }

    #[test]
    fn what_changed_in_its_median_only_is_not_sold_as_a_cost() {
        let same = [0.9, 1.0, 1.1];
        let groups = vec![
            change("/cost", [-3.0, -2.0, -1.0], same),
            change("/median", [-1.0, 2.0, 3.0], [1.1, 1.2, 1.3]),
            change("/noise", [-1.0, 2.0, 3.0], same),
        ];
        let report = report(Per::Run, groups);
        let text = report.render();
        for line in [
            "     2.0 s less  /cost",
            "     median only  /median",
            "  noise  /noise",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
        let begins = |k: usize, with: &str| {
            let sentence = json["groups"][k]["sentence"].as_str().expect("a sentence");
            assert!(sentence.starts_with(with), "{sentence}");
        };
        begins(
            0,
            "/cost: 2.0 s less; 95 %: 1.0 s to 3.0 s; median 1.0 ms → 1.0 ms, 1.00 times",
        );
        begins(
            1,
            "/median: cost within noise: 2.0 s more; 95 %: 1.0 s less to 3.0 s more;",
        );
        begins(2, "/noise: within noise: 2.0 s more;");
    }

    #[test]
    fn the_unit_is_told_and_a_name_cannot_steer_the_terminal() {
        let groups = vec![change(
            "/a\x1b[2J\u{202e}",
            [1.0, 2.0, 3.0],
            [1.0, 2.0, 3.0],
        )];
        let report = report(Per::Second, groups);
        let text = report.render();
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text}");
        assert!(text.contains("In all: 2.0 s more per second;"), "{text}");
        assert!(text.contains("per second of the recording; with"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    }
}
