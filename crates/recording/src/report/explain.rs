//! What `explain` prints: the causes of slow requests in sentences, and the figures beside them.
//!
//! Promise: text fits 80 columns where its words can be broken; the JSON has every figure of it.

use crate::analysis::explain::{percent, Cause, Explanation, How};
use std::fmt::Write;
use synclater_text::layout::{padded, shown, truncated, wrapped};
use synclater_text::number::{count, counted, seconds};

/// Columns of a cause's name in the table.
const NAME: usize = 33;

impl Explanation {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        synclater_text::json(self)
    }

    /// As text for a terminal.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = self.what_is_slow();
        if let Some(nothing) = &self.nothing {
            out.push('\n');
            let (first, rest) = nothing.split_at(nothing.chars().next().map_or(0, char::len_utf8));
            out.push_str(&wrapped("", &format!("{}{rest}.", first.to_uppercase())));
        }
        for (number, cause) in (1..).zip(&self.causes) {
            out.push('\n');
            out.push_str(&wrapped(&format!("{number}  "), &cause.sentence));
        }
        if !self.causes.is_empty() {
            out.push('\n');
            out.push_str(&table(&self.causes));
        }
        let notes = self.notes();
        if !notes.is_empty() {
            out.push('\n');
            out.push_str(&notes);
        }
        out
    }

    /// How many are slow, and why they count as that.
    fn what_is_slow(&self) -> String {
        if self.total == 0 {
            return String::new();
        }
        let over = seconds(self.slow_over_ns as f64 / 1e9);
        let why = match self.how {
            How::UpperMode => "which is where the upper of two modes begins",
            How::FarAbove => "several times as long as all others",
            How::AboveP99 => "the 99th percentile, for there are no two modes",
            How::AboveP95 => "the 95th percentile: with it more is found than with the 99th",
            How::AboveP90 => "the 90th percentile: with it more is found than with the 99th",
            How::OverTheGivenTime => "the time that was given",
        };
        let median = seconds(self.median_ns as f64 / 1e9);
        let (slow, total) = (count(self.slow), counted(self.total, "sync"));
        let text = format!("{slow} of {total} took over {over}, {why}; the median is {median}.");
        wrapped("", &text)
    }

    /// What else is to be said, a paragraph each.
    fn notes(&self) -> String {
        let mut out = String::new();
        for cause in &self.explained {
            let (name, share) = (name(cause), percent(cause.coverage));
            let text = format!("{name} ({share}); one above explains it.");
            out += &wrapped("Not a cause:  ", &text);
        }
        for sign in &self.signs {
            let (name, share) = (name(sign), percent(sign.coverage));
            let text = format!("{name} ({share}); slow requests bring it about.");
            out += &wrapped("A sign:       ", &text);
        }
        if self.behind_another > 0 {
            let n = counted(self.behind_another, "slow sync");
            let text = format!("{n} began while another one was in flight on the same device.");
            out += &wrapped("In a queue:   ", &text);
        }
        if let Some(t) = &self.together {
            let (slow, all) = (count(t.slow), counted(t.requests, "sync"));
            let (length, after) = (seconds(t.for_s), seconds(t.after_s));
            let text = format!(
                "{slow} of the slow ones are among {all} in a row, within {length}, {after} after \
                 the first sync. What else went on then?"
            );
            out += &wrapped("Together:     ", &text);
        }
        if self.tried > 0 {
            let (values, dimensions) = (count(self.tried_values), count(self.tried_dimensions));
            let pairs = counted(self.tried.saturating_sub(self.tried_values), "pair");
            let times = match self.tried_times {
                0 => String::new(),
                n => format!(
                    ", among them the best of {} that come back",
                    counted(n, "time")
                ),
            };
            let text = format!(
                "{values} values of {dimensions} dimensions{times}, and their {pairs}; p and what \
                 is named are corrected for all of them."
            );
            out += &wrapped("Tried:        ", &text);
        }
        if self.left_out > 0 {
            let n = counted(self.left_out, "request");
            let text = format!("{n}: not made for real, of unknown duration, or a mere hint.");
            out += &wrapped("Left out:     ", &text);
        }
        if self.lost > 0 {
            let n = counted(self.lost, "request");
            let text = format!("{n}, which the recorder had no room for.");
            out += &wrapped("Lost:         ", &text);
        }
        if let Some(why) = &self.incomplete {
            out += &wrapped("Incomplete:   ", &format!("{}.", shown(why)));
        }
        out
    }
}

/// Dimension and value; of a pair, both.
fn name(cause: &Cause) -> String {
    let alone = std::slice::from_ref(&cause.dimensions);
    let parts = if cause.pair.is_empty() {
        alone
    } else {
        &cause.pair
    };
    let firsts = parts.iter().filter_map(|p| p.0.first());
    let named = firsts.map(|(k, v)| format!("{} {}", words(k), shown(v)));
    named.collect::<Vec<_>>().join(" + ")
}

/// A dimension's name in words.
fn words(key: &str) -> String {
    key.replace('_', " ")
}

fn table(causes: &[Cause]) -> String {
    let mut out = format!(
        "{:<NAME$}{:>8}{:>12}{:>11}{:>7}{:>9}\n",
        "cause", "covers", "slow there", "elsewhere", "lift", "p"
    );
    for (number, cause) in (1..).zip(causes) {
        let name = truncated(&format!("{number}  {}", name(cause)), NAME - 1);
        let _ = writeln!(
            out,
            "{}{:>8}{:>12}{:>11}{:>7.1}{:>9}",
            padded(&name, NAME),
            percent(cause.coverage),
            percent(cause.slow_share),
            percent(cause.elsewhere_share),
            cause.lift,
            probability(cause.p_value)
        );
    }
    out
}

/// A probability: `0.003`, `7e-15`; what is too small for a number is `<1e-99`.
fn probability(p: f64) -> String {
    match p {
        p if p < 1e-99 => "<1e-99".into(),
        p if p < 0.001 => format!("{p:.0e}"),
        p => format!("{p:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::explain::{explain, Dimensions};
    use crate::record::table::Table;
    use synclater_text::layout::{width, COLUMNS};

    fn cause(value: &str, parts: usize) -> Cause {
        let names = [("device", value), ("in_flight", "at least 4")];
        let names = names.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
        let pair = names.iter().map(|n| Dimensions(vec![n.clone()]));
        Cause {
            pair: pair.take(if parts == 2 { 2 } else { 0 }).collect(),
            dimensions: Dimensions(names),
            coverage: 0.97,
            lift: 1.94,
            lift_low: 1.5,
            slow_over_ns: 12_000_000,
            p_value: 1e-200,
            requests: 1000,
            slow: 81,
            leaders_only: false,
            of_the_rest: false,
            slow_share: 0.081,
            elsewhere_share: 0.002,
            sentence: "97 % of the slow syncs went to /dev/loop1. ".repeat(3),
        }
    }

    fn explanation() -> Explanation {
        Explanation {
            slow: 84,
            total: 2000,
            slow_over_ns: 12_000_000,
            median_ns: 400_000,
            causes: vec![cause("/dev/loop1", 1), cause(&"/very/long".repeat(9), 2)],
            explained: vec![cause("\x1b[2J", 1)],
            signs: vec![cause("x", 1)],
            tried: 5000,
            tried_values: 100,
            lost: 3,
            incomplete: Some("cut off".into()),
            nothing: None,
            ..explain(&Table::default(), None)
        }
    }

    #[test]
    fn the_text_fits_a_terminal_and_says_all() {
        let text = explanation().render();
        for want in [
            "84 of 2,000 syncs took over 12 ms",
            "1  device /dev/loop1                 97 %       8.1 %      0.2 %    1.9   <1e-99",
            "Not a cause:  device \\u{1b}[2J",
            "Lost:         3 requests",
            "Incomplete:   cut off.",
        ] {
            assert!(text.contains(want), "{want}: {text}");
        }
        for line in text.lines() {
            assert!(width(line) <= COLUMNS, "{line}");
        }
    }

    #[test]
    fn names_come_in_order_of_use_in_the_json() {
        let json = explanation().to_json();
        let (device, other) = (json.find("\"device\""), json.find("\"in_flight\""));
        assert!(device.is_some() && device < other, "{json}");
        assert!(json.contains("\"how\": \"above p99\""), "{json}");
    }

    #[test]
    fn a_recording_without_requests_says_so() {
        let text = explain(&Table::default(), None).render();
        assert!(
            text.contains("Nothing to explain: it has no request"),
            "{text}"
        );
    }
}
