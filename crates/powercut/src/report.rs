//! What power cuts came to.
//!
//! Promise: JSON keys are fixed (`"version": 1`); what is not known is absent. Every failure is
//! told by the simplest state that shows it.

pub mod page;

use crate::cuts::{Cut, Moment, Reached};
use serde::Serialize;
use std::fmt::Write;
use synclater_text::layout::{command_line, shown, wrapped};
use synclater_text::number::{count, counted, seconds};

/// How a program did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CrashReport {
    /// Of this form: 1.
    pub version: u32,
    /// The file system.
    pub fs: String,
    /// The dial.
    pub until: String,
    /// The command.
    pub command: Vec<String>,
    /// How it ended: its exit status, or 128 and a signal's number; absent where it was ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Lines by which it acknowledged.
    pub acknowledged: u64,
    /// Writes of the disk.
    pub writes: u64,
    /// Of these: discards, and ranges to be made zeros.
    pub zeroed: u64,
    /// Flushes of the disk.
    pub flushes: u64,
    /// Cuts that were made; some gave a state that was known already.
    pub cuts: u64,
    /// States that were looked at, no two of them alike.
    pub states: u64,
    /// Of these: bad ones. Each was judged twice, on fresh mounts.
    pub bad: u64,
    /// Of these: bad when they were judged first, and good the second time.
    #[serde(skip_serializing_if = "is_zero")]
    pub flaky: u64,
    /// What the check said of the first of those; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flaky_said: Option<String>,
    /// By the kind of the cut: states, and bad ones.
    pub kinds: Vec<KindRow>,
    /// Each failure once.
    pub failures: Vec<Failure>,
    /// Whether every state that is worth a look was looked at.
    pub complete: bool,
    /// Seconds of the search.
    pub seconds: f64,
    /// The command that mounts the state on which the check itself failed; absent where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_failed_on: Option<String>,
    /// What is odd about the run, each in a sentence.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A run in time, for a picture. All times are seconds from its begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Its end.
    pub seconds: f64,
    /// Lines by which the program acknowledged.
    pub said: Vec<(f64, String)>,
    /// The program's sync requests: begin, end, and what for.
    pub syncs: Vec<(f64, f64, String)>,
    /// Writes of the disk, and how large.
    pub writes: Vec<(f64, String)>,
    /// Flushes of the disk.
    pub flushes: Vec<f64>,
    /// Cuts: states there, and bad ones.
    pub cuts: Vec<(f64, u64, u64)>,
}

/// States of one kind of cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindRow {
    /// In words.
    pub kind: String,
    /// How many.
    pub states: u64,
    /// Of these: bad ones.
    pub bad: u64,
}

/// One way in which it fails.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// Its number.
    pub id: String,
    /// What the program had said last; absent where it had said nothing yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The sync that was missing, where one was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// What is still bad with that sync: what is under way is not atomic, or is in an order that
    /// does not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<String>,
    /// What happened, in a sentence.
    pub sentence: String,
    /// How the state differs from what should be there, where a run with the missing sync tells.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// The program's last sync requests before the cut.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
    /// What the disk was asked right before the cut, and what was said meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// Why no sync is named, where one was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// What the check said.
    pub said: String,
    /// States that fail so.
    pub states: u64,
    /// The command that mounts exactly this state; absent where it was not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

/// The kind of a cut, in words.
#[must_use]
pub fn kind_of(cut: &Cut) -> &'static str {
    match (cut.moment, cut.reached) {
        (_, Reached::Some(_)) => "some of the pending writes, by chance",
        (_, Reached::Torn(..)) => "a torn write",
        (_, Reached::Without(_)) => "all but one pending write",
        (_, Reached::Only(_)) => "one pending write alone",
        (_, Reached::First(_)) => "the first pending writes",
        (Moment::Said, Reached::Nothing) => "acknowledged or ended, nothing pending reached",
        (Moment::Said, Reached::Everything) => "acknowledged or ended, all writes reached",
        (Moment::BeforeFlush, Reached::Nothing) => "before a flush, nothing pending reached",
        (Moment::BeforeFlush, Reached::Everything) => "before a flush, all writes reached",
        (Moment::End, Reached::Nothing) => "at the end, nothing pending reached",
        (Moment::End, Reached::Everything) => "at the end, all writes reached",
    }
}

/// How simple a cut is to explain: the least is the simplest.
#[must_use]
pub fn complexity(cut: &Cut) -> (u8, u8, usize) {
    let reached = match cut.reached {
        Reached::Nothing => 0,
        Reached::Everything => 1,
        Reached::First(_) => 2,
        Reached::Without(_) | Reached::Only(_) => 3,
        Reached::Torn(..) => 4,
        Reached::Some(_) => 5,
    };
    (u8::from(cut.moment != Moment::Said), reached, cut.at)
}

/// No write was pending.
const MEMORY_ONLY: &str =
    "all that had been sent to the disk was on it; what the kernel had only in \
    memory is lost";

/// What was in the disk's cache and what reached the disk, in words; of so many pending writes.
#[must_use]
pub fn reached_words(cut: &Cut, pending: usize) -> String {
    let all = counted(pending as u64, "write");
    let cache = match pending {
        0 => return MEMORY_ONLY.to_owned(),
        1 => "1 write was in the disk's cache".to_owned(),
        _ => format!("{all} were in the disk's cache"),
    };
    let reached = match cut.reached {
        Reached::Nothing => "nothing of it reached the disk".to_owned(),
        Reached::Everything => "all of it reached the disk".to_owned(),
        Reached::First(n) => format!("the first {n} reached the disk"),
        Reached::Without(n) => format!("all but number {} reached the disk", n + 1),
        Reached::Only(n) => format!("number {} alone reached the disk", n + 1),
        Reached::Torn(n, sectors) => format!(
            "the first {n} reached the disk, and {} of the next",
            counted(sectors.into(), "sector")
        ),
        Reached::Some(_) => "some of it reached the disk".to_owned(),
    };
    format!("{cache}; {reached}")
}

/// The line of what a check has said that tells what is wrong: the first, but of a traceback of
/// Python's the last.
#[must_use]
pub fn gist(said: &str) -> &str {
    let mut lines = said.lines().filter(|l| !l.trim().is_empty());
    match lines.next() {
        Some(first) if first.starts_with("Traceback") || first.starts_with("  File ") => {
            lines.next_back().unwrap_or(first)
        }
        first => first.unwrap_or(""),
    }
}

/// Digits of the shortest name of an object that is one for [`likeness`].
const HASH_MIN: usize = 16;

/// What makes two failures one: the check's words without their numbers and hashes.
#[must_use]
pub fn likeness(said: &str) -> String {
    let mut like = String::new();
    for word in said.split_inclusive(|c: char| !c.is_ascii_hexdigit() && c != '/') {
        let hash = word.trim_matches(|c: char| !c.is_ascii_hexdigit());
        match hash.bytes().filter(u8::is_ascii_hexdigit).count() {
            HASH_MIN.. => like.push_str(&word.replacen(hash, "#", 1)),
            _ => like.push_str(word),
        }
    }
    without_numbers(&like)
}

fn without_numbers(words: &str) -> String {
    let mut like = String::new();
    for c in words.chars().take(200) {
        let c = if c.is_ascii_digit() { '#' } else { c };
        let is_more = c == '#' && like.ends_with(['#']);
        let is_list = c == '#' && like.ends_with("#, ");
        if is_list {
            like.truncate(like.len() - 2);
        } else if !is_more {
            like.push(c);
        }
    }
    like
}

fn flushes(number: u64) -> String {
    match number {
        1 => "1 flush".to_owned(),
        n => format!("{} flushes", count(n)),
    }
}

impl Failure {
    fn render(&self, out: &mut String) {
        out.push('\n');
        let lead = format!("{}  ", self.id);
        out.push_str(&wrapped(&lead, &self.sentence));
        let said = gist(&self.said);
        if !said.is_empty() {
            out.push_str(&wrapped("    check:   ", &shown(said)));
        }
        if !self.differences.is_empty() {
            out.push_str(&wrapped(
                "    state:   ",
                &shown(&self.differences.join("; ")),
            ));
        }
        if !self.requests.is_empty() {
            let last = format!("last ones: {}", self.requests.join(", "));
            out.push_str(&wrapped("    syncs:   ", &shown(&last)));
        }
        if let Some(missing) = &self.missing {
            out.push_str(&wrapped("    missing: ", &shown(missing)));
        }
        if let Some(remaining) = &self.remaining {
            out.push_str(&wrapped("    remains: ", &shown(remaining)));
        }
        if let Some(advice) = &self.advice {
            out.push_str(&wrapped("    advice:  ", advice));
        }
        let times = counted(self.states, "state");
        out.push_str(&wrapped("    seen:    ", &format!("in {times}")));
        if let Some(replay) = &self.replay {
            out.push_str(&wrapped("    look:    ", &shown(replay)));
        }
    }
}

impl CrashReport {
    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;

    /// States a minute.
    #[must_use]
    pub fn per_minute(&self) -> u64 {
        (self.states as f64 / self.seconds.max(1e-9) * 60.0) as u64
    }

    /// As JSON, with a line end.
    #[must_use]
    pub fn to_json(&self) -> String {
        synclater_text::json(self)
    }

    /// For people.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}", command_line(&self.command));
        let about = format!(
            "{}, dial {}: {}, {}, {}",
            self.fs,
            shown(&self.until),
            counted(self.writes, "write"),
            flushes(self.flushes),
            counted(self.acknowledged, "acknowledgement"),
        );
        out.push_str(&wrapped("", &about));
        out.push('\n');
        let verdict = match (self.bad, &self.check_failed_on) {
            (0, None) if self.flaky > 0 => "none is surely bad".to_owned(),
            (0, None) => "none is bad".to_owned(),
            (0, Some(_)) => "none was judged bad before the check itself failed".to_owned(),
            (n, _) => format!("{} BAD", count(n)),
        };
        let rest = if self.complete {
            ""
        } else {
            "; more are possible"
        };
        let states = format!(
            "{} in {} ({} a minute), {verdict}{rest}.",
            counted(self.states, "state"),
            seconds(self.seconds),
            count(self.per_minute())
        );
        out.push_str(&wrapped("", &states));
        for row in &self.kinds {
            let bad = match row.bad {
                0 => String::new(),
                n => format!("{} bad", count(n)),
            };
            let _ = writeln!(out, "  {:>7} {:<52} {bad:>10}", count(row.states), row.kind);
        }
        if let Some(said) = &self.flaky_said {
            let words = format!(
                "{} bad when judged first and good when mounted and judged again: {}",
                counted(self.flaky, "state"),
                gist(said)
            );
            out.push_str(&wrapped("flaky: ", &shown(&words)));
        }
        for note in &self.notes {
            out.push_str(&wrapped("note: ", &shown(note)));
        }
        for failure in &self.failures {
            failure.render(&mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_differ_in_numbers_only_are_one() {
        assert_eq!(likeness("lost [12]"), likeness("lost [3]"));
        assert_eq!(likeness("lost [12, 13]"), likeness("lost [3]"));
        assert_ne!(likeness("lost [12]"), likeness("corrupt page 3"));
        assert_eq!(
            gist("Traceback (most)\n  File \"a\"\nKeyError: 3\n"),
            "KeyError: 3"
        );
        assert_eq!((gist("lost 3\nmore"), gist("")), ("lost 3", ""));
        let object = |name: &str| likeness(&format!("error: .git/objects/{name} is empty"));
        let (one, other) = (
            "83/e9fa031b7c0f5f3f3fb7bc29a2",
            "af/00bb11b5cc0d3f1f3fb7bc29a3",
        );
        assert_eq!(object(one), object(other));
        assert_eq!(object(one), "error: .git/objects/# is empty");
    }

    #[test]
    fn behind_an_acknowledgement_with_nothing_reached_is_the_simplest() {
        let cut = |moment, reached| Cut {
            at: 3,
            moment,
            reached,
        };
        let simple = cut(Moment::Said, Reached::Nothing);
        for other in [
            cut(Moment::Said, Reached::Everything),
            cut(Moment::BeforeFlush, Reached::Nothing),
            cut(Moment::Said, Reached::Some(7)),
        ] {
            assert!(complexity(&simple) < complexity(&other), "{other:?}");
        }
    }

    #[test]
    fn the_words_say_what_was_there_and_what_reached_the_disk() {
        let cut = |reached| Cut {
            at: 3,
            moment: Moment::Said,
            reached,
        };
        let words = reached_words(&cut(Reached::Nothing), 3);
        let want = "3 writes were in the disk's cache; nothing of it reached the disk";
        assert_eq!(words, want);
        let words = reached_words(&cut(Reached::Without(1)), 3);
        assert!(
            words.ends_with("all but number 2 reached the disk"),
            "{words}"
        );
        assert_eq!(reached_words(&cut(Reached::Nothing), 0), MEMORY_ONLY);
    }
}
