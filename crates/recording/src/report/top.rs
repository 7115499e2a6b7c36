//! What `top` shows of the last moments of a session: figures, and a table to be sorted.
//!
//! Promise: JSON keys are fixed (`"version": 1`), one object a line; what is not known is absent.
//! Members that a limit leaves out are in `others`, so that a table adds up.
//!
//! What it does not do: it draws nothing; names are as they are, and must go through
//! [`synclater_text::layout::shown`] on their way to a terminal.

use crate::analysis::live::{By, Key, Sums, Window};
use serde::Serialize;
use synclater_account::ps::PsSession;

/// One look at a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Top {
    /// Of this form: 1.
    pub version: u32,
    /// End of the time that the figures are about, RFC 3339 in UTC.
    pub time: String,
    /// The session, where it has answered.
    #[serde(flatten)]
    pub session: Option<TopSession>,
    /// Seconds that the figures are about.
    pub seconds: f64,
    /// All requests.
    #[serde(flatten)]
    pub figures: Figures,
    /// Requests a second that were lost on the way here, a ring being full; they are in
    /// `requests_per_s` and nowhere else.
    pub lost_per_s: f64,
    /// What the lines are: `process`, `file`, `device`, `kind`, `caller`.
    pub by: String,
    /// The heaviest members of the grouping; those that programs waited for the longest first.
    pub lines: Vec<Line>,
    /// All other members together, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub others: Option<Figures>,
}

/// What the session says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopSession {
    /// Session id.
    pub session: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The dial, as `--until` takes it.
    pub until: String,
    /// The longest dial of its rules, where that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules_until: Option<String>,
    /// Time until the relaxation ends by itself; absent when it ends with the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_left_s: Option<f64>,
    /// Requests that were answered but not yet carried out.
    pub debt: u64,
    /// Age of the oldest request that is not settled yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_s: Option<f64>,
    /// Processes that the session does not reach.
    pub escaped: usize,
}

/// What requests came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests a second.
    pub requests_per_s: f64,
    /// Of these: made for real.
    pub real_per_s: f64,
    /// Of these: answered at once.
    pub skipped_per_s: f64,
    /// Share of all the time that programs waited for sync requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_share: Option<f64>,
    /// Median of the real ones, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_s: Option<f64>,
    /// 99th percentile of the real ones, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_s: Option<f64>,
    /// Longest of the real ones, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_s: Option<f64>,
    /// Share of the real ones that had nothing to do, among those of which that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needless_share: Option<f64>,
}

/// One member of a grouping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The process's number, of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Executable, path, device, kind or code; empty where it is not known.
    pub name: String,
    /// Command line of a process, mount point of a file, what a device is made of.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Its requests.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What a table is sorted by, the greatest first; names from A to Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Requests a second.
    Requests,
    /// Real ones a second.
    Real,
    /// Share of the waiting time.
    Time,
    /// Median.
    P50,
    /// 99th percentile.
    P99,
    /// Longest.
    Max,
    /// Share of needless ones.
    Needless,
    /// Name.
    Name,
}

impl Sort {
    /// All, in the order of the columns.
    pub const ALL: [Sort; 8] = [
        Sort::Requests,
        Sort::Real,
        Sort::Time,
        Sort::P50,
        Sort::P99,
        Sort::Max,
        Sort::Needless,
        Sort::Name,
    ];

    /// The one so many columns to the right; round the end.
    #[must_use]
    pub fn moved(self, by: isize) -> Sort {
        let at = Sort::ALL.iter().position(|s| *s == self).unwrap_or(0);
        let at = isize::try_from(at).unwrap_or(0).saturating_add(by);
        let at = at.rem_euclid(Sort::ALL.len().cast_signed());
        Sort::ALL[at.unsigned_abs()]
    }
}

fn in_seconds(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| ns as f64 / 1e9)
}

fn figures(sums: &Sums, seconds: f64, all_ns: u64) -> Figures {
    Figures {
        requests_per_s: sums.requests as f64 / seconds,
        real_per_s: sums.real as f64 / seconds,
        skipped_per_s: sums.skipped as f64 / seconds,
        time_share: share(sums.took_ns, all_ns),
        p50_s: in_seconds(sums.times.percentile_ns(0.5)),
        p99_s: in_seconds(sums.times.percentile_ns(0.99)),
        max_s: in_seconds(sums.times.max_ns()),
        needless_share: share(sums.needless, sums.known),
    }
}

/// A part of a whole that is not 0.
fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

impl Line {
    fn new(key: Key, sums: &Sums, seconds: f64, all_ns: u64) -> Line {
        Line {
            pid: key.pid,
            name: key.name,
            detail: key.detail,
            figures: figures(sums, seconds, all_ns),
        }
    }

    /// Whether any of its words contains `text`, in whatever case.
    #[must_use]
    pub fn contains(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let pid = self.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let words = [&pid, &self.name, &self.detail];
        words.iter().any(|w| w.to_lowercase().contains(&text))
    }

    /// What a table is sorted by; less than any figure where there is none.
    fn value(&self, by: Sort) -> f64 {
        let f = &self.figures;
        let value = match by {
            Sort::Requests => Some(f.requests_per_s),
            Sort::Real => Some(f.real_per_s),
            Sort::Time => f.time_share,
            Sort::P50 => f.p50_s,
            Sort::P99 => f.p99_s,
            Sort::Max => f.max_s,
            Sort::Needless => f.needless_share,
            Sort::Name => None,
        };
        value.unwrap_or(-1.0)
    }

    /// Its name, with what tells it from others of the same name.
    fn full_name(&self) -> (&str, &str, Option<u32>) {
        (&self.name, &self.detail, self.pid)
    }
}

/// Puts the greatest first; of equal ones, and of those that have no value, the first name.
pub fn sort(lines: &mut [Line], by: Sort) {
    lines.sort_by(|a, b| {
        let greatest_first = b.value(by).total_cmp(&a.value(by));
        greatest_first.then_with(|| a.full_name().cmp(&b.full_name()))
    });
}

impl TopSession {
    /// From what `ps` knows.
    #[must_use]
    pub fn of(session: &PsSession) -> TopSession {
        TopSession {
            session: session.id.clone(),
            command: session.command.clone(),
            until: session.until.clone(),
            rules_until: session.rules_until.clone(),
            lease_left_s: session.lease_left_s,
            debt: session.debt,
            oldest_s: session.oldest_s,
            escaped: session.escaped.len(),
        }
    }
}

impl Top {
    /// From the last intervals, with at most `lines` members told apart.
    #[must_use]
    pub fn new(
        window: Window,
        by: By,
        session: Option<TopSession>,
        time: String,
        lines: usize,
    ) -> Top {
        let seconds = window.seconds;
        let all_ns = window.total.took_ns;
        let mut members = window.members;
        members.sort_by(|(a, x), (b, y)| weight(y).cmp(&weight(x)).then_with(|| a.cmp(b)));
        let mut others = window.others;
        for (_, light) in members.drain(lines.min(members.len())..) {
            others.merge(&light);
        }
        let mut total = figures(&window.total, seconds, 0);
        let lost_per_s = window.lost as f64 / seconds;
        total.requests_per_s += lost_per_s;
        let told = members.into_iter();
        let told = told.map(|(key, sums)| Line::new(key, &sums, seconds, all_ns));
        Top {
            version: 1,
            time,
            session,
            seconds,
            figures: total,
            lost_per_s,
            by: by.name().to_owned(),
            lines: told.collect(),
            others: (others.requests > 0).then(|| figures(&others, seconds, all_ns)),
        }
    }

    /// As one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string(self).expect("all keys of our JSON are text");
        text.push('\n');
        text
    }
}

/// What a member of a grouping weighs: waiting first, then requests.
fn weight(sums: &Sums) -> (u64, u64) {
    (sums.took_ns, sums.requests)
}

#[cfg(test)]
mod tests;
