//! `synclater doctor`: what works on this machine, and what to do about what does not.
//!
//! Promise: each check says what was seen, what that means for synclater, and what to do.
//! Changes nothing; the clone probe uses unnamed files, the preload check runs `cat` once.
//! Not promised: that a session works; a check that cannot know says `unknown`.

mod attach;
mod directories;
mod kernel;
mod library;
mod mounts;

use crate::voice;
use serde::Serialize;
use synclater_text::layout::{columns, width};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Works, or is not needed here.
    Ok,
    /// Works with a limit that is worth knowing.
    Warn,
    /// Something that synclater relies on does not work.
    Bad,
    /// Could not be found out.
    Unknown,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Bad => "BAD",
            Status::Unknown => "unknown",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at; the same on every machine.
    pub name: String,
    /// How it came out.
    pub status: Status,
    /// The values that were found.
    pub seen: String,
    /// What that means for a session.
    pub means: String,
    /// What to do; empty where there is nothing to do.
    #[serde(rename = "do", skip_serializing_if = "String::is_empty")]
    pub do_: String,
}

impl Check {
    fn new(name: &str, status: Status, seen: impl Into<String>, means: impl Into<String>) -> Self {
        let (seen, means) = (seen.into(), means.into());
        let (name, do_) = (name.to_owned(), String::new());
        Check {
            name,
            status,
            seen,
            means,
            do_,
        }
    }

    /// Adds what to do about it.
    fn advise(mut self, what: impl Into<String>) -> Self {
        self.do_ = what.into();
        self
    }
}

#[derive(Serialize)]
struct Report {
    version: u32,
    checks: Vec<Check>,
}

/// Everything that can be looked at, in the order in which it matters.
pub fn checks() -> Vec<Check> {
    let table = crate::session::mounts::mounts_of("self");
    let mut all = Vec::from_iter(proc_check());
    all.extend(library::library_checks(
        crate::reach::library::locate(crate::reach::library::Variant::Ordinary),
        &table,
    ));
    all.extend(directories::directory_checks(&table));
    all.extend(kernel::kernel_checks());
    all.push(attach::attach_check());
    all.push(attach::follow_check());
    all.push(attach::net_check());
    all.extend(mounts::mount_checks(&table));
    all
}

/// Where /proc does not tell of our processes: all else that is looked at may be as it should.
fn proc_check() -> Option<Check> {
    let trouble = super::needs_proc("put requests off").err()?;
    let means = "Every request is real, whatever stands below: members cannot be told.";
    Some(Check::new("processes", Status::Bad, trouble.why, means).advise(trouble.try_))
}

/// Prints the checks; the exit status is 1 where one is bad, else 0.
///
/// # Errors
/// Where standard output cannot be written.
pub fn run(json: bool) -> anyhow::Result<i32> {
    let checks = checks();
    let bad = checks.iter().any(|c| c.status == Status::Bad);
    let text = if json {
        serde_json::to_string_pretty(&Report { version: 1, checks })? + "\n"
    } else {
        text(&checks)
    };
    voice::print(&text)?;
    Ok(i32::from(bad))
}

fn text(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let head = format!("{:<8}{}:", check.status.word(), check.name);
        out.push_str(&wrapped(&head, &check.seen));
        out.push_str(&wrapped(INDENT, &check.means));
        if !check.do_.is_empty() {
            out.push_str(&wrapped(INDENT, &format!("do: {}", check.do_)));
        }
    }
    let ok = number_of(checks, Status::Ok);
    let warn = number_of(checks, Status::Warn);
    let bad = number_of(checks, Status::Bad);
    let unknown = number_of(checks, Status::Unknown);
    out.push_str(&format!(
        "\n{ok} ok, {warn} warn, {bad} bad, {unknown} unknown\n"
    ));
    out
}

fn number_of(checks: &[Check], status: Status) -> usize {
    checks.iter().filter(|c| c.status == status).count()
}

const INDENT: &str = "        ";

/// `head` and the text behind it, wrapped to 80 columns; further lines are indented.
fn wrapped(head: &str, text: &str) -> String {
    let mut lines = vec![head.to_owned()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        let blank = if line.ends_with(' ') { "" } else { " " };
        if width(line) + blank.len() + width(word) > columns() {
            lines.push(format!("{INDENT}{word}"));
        } else {
            line.push_str(blank);
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> Check {
        Check::new("kernel", Status::Warn, "5.10.0", "a word ".repeat(30)).advise("nothing")
    }

    #[test]
    fn no_line_of_an_explanation_is_wider_than_80_columns() {
        let text = text(&[check()]);
        assert!(text.lines().all(|l| width(l) <= columns()), "{text}");
        assert_eq!(text.matches("word").count(), 30);
    }

    #[test]
    fn json_has_the_key_do_and_leaves_it_out_when_there_is_nothing_to_do() {
        let with = serde_json::to_value(check()).expect("json");
        assert_eq!(
            (&with["status"], &with["do"]),
            (&"warn".into(), &"nothing".into())
        );
        let without = Check {
            do_: String::new(),
            ..check()
        };
        assert!(serde_json::to_value(without)
            .expect("json")
            .get("do")
            .is_none());
    }
}
