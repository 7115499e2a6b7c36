//! What `status` says of sessions that ended with an open entry: cut by a reboot, not settled, or
//! with lost writes.
//!
//! Promise: of a cut, for each dial, both what may be lost (*when*) and what may be torn (*order*);
//! of each, what to do. The file systems that are named are "at least these".
//!
//! What it does not do: it does not look at the data; only the program's own check can.

use serde::Serialize;
use std::path::Path;

use crate::run::SettleError;
use synclater_policy::dial::Until;
use synclater_policy::ledger::{Entry, LedgerFs};
use synclater_text::layout::{columns, command_line, shown, truncated, wrapped};
use synclater_text::number::counted;

/// How a session ended whose entry is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Another boot than this one left the entry.
    Cut,
    /// It ended in this boot, and what it owed was not settled.
    Unsettled,
    /// The same, and its keeper, or another command, may be settling it at the moment.
    #[serde(rename = "unsettled")]
    BeingSettled,
    /// It ended in this boot, and the kernel told of a write that was lost, or could not tell.
    LostWrites,
}

impl Outcome {
    /// That of a session of this boot that has ended.
    #[must_use]
    pub fn of_ended(entry: &Entry, is_being_settled: bool) -> Outcome {
        match (&entry.error, is_being_settled) {
            (Some(_), _) => Outcome::LostWrites,
            (None, true) => Outcome::BeingSettled,
            (None, false) => Outcome::Unsettled,
        }
    }
}

/// A session that has ended and whose entry is open, as `status --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenSession {
    /// Version of this form: 1.
    pub version: u32,
    /// Session id.
    pub id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The name of the error by which the kernel told of a lost write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// When the session began: RFC 3339, UTC.
    pub started: String,
    /// The boot in which it began.
    pub boot_id: String,
    /// The dial that was in force.
    pub until: String,
    /// File systems that owed: at least these.
    pub filesystems: Vec<LedgerFs>,
    /// What may be lost or torn, and what to do about it.
    pub advice: String,
}

impl OpenSession {
    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;

    /// By its entry.
    #[must_use]
    pub fn new(entry: &Entry, outcome: Outcome) -> OpenSession {
        OpenSession {
            version: OpenSession::VERSION,
            id: entry.id.clone(),
            outcome,
            error: entry.error.clone(),
            command: entry.command.clone(),
            started: entry.started.clone(),
            boot_id: entry.boot_id.clone(),
            until: entry.until.clone(),
            filesystems: entry.filesystems.iter().map(after_reboot).collect(),
            advice: advice(entry, outcome),
        }
    }
}

/// What is known of a session whose entry cannot be read: its name, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadEntry {
    /// Version of this form: 1.
    pub version: u32,
    /// Its name, by that of the file.
    pub id: String,
    /// Always `unreadable`: how it ended is not known.
    pub outcome: &'static str,
    /// The file, or the folder.
    pub entry: String,
    /// Why it cannot be read.
    pub why: String,
    /// What to do.
    pub advice: String,
}

impl UnreadEntry {
    /// Of this file, or folder.
    #[must_use]
    pub fn new(entry: &Path, why: &str, advice: &str) -> UnreadEntry {
        let id = entry.file_stem().unwrap_or_default();
        UnreadEntry {
            version: OpenSession::VERSION,
            id: id.to_string_lossy().into_owned(),
            outcome: "unreadable",
            entry: entry.to_string_lossy().into_owned(),
            why: why.to_owned(),
            advice: advice.to_owned(),
        }
    }
}

/// One of what `status --json` lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Listed {
    /// A session that has ended with an open entry.
    Open(OpenSession),
    /// An entry that cannot be read.
    Unread(UnreadEntry),
}

/// A file system without what means nothing by now.
fn after_reboot(fs: &LedgerFs) -> LedgerFs {
    LedgerFs {
        mount_id: None,
        ..fs.clone()
    }
}

/// All of them as a JSON array, indented, with a newline at its end.
pub fn status_json(all: &[Listed]) -> String {
    synclater_text::json(&all)
}

/// Says what may be lost of what the session wrote, and what to do about it.
pub fn advice(entry: &Entry, outcome: Outcome) -> String {
    let forget = format!("`synclater status --forget {}`", shown(&entry.id));
    let check = format!(
        "check the data on {}: run the program's own check, or restore it from a copy",
        places(entry)
    );
    match outcome {
        Outcome::Cut => advice_of_cut(entry, &check, &forget),
        Outcome::Unsettled => format!(
            "Run `synclater settle`: where that says that everything is settled, nothing is lost. \
             Where it cannot, {check}. When that is done: {forget}."
        ),
        Outcome::BeingSettled => "Its keeper, or another command, may be at it: look again later, \
             or run `synclater settle`, which waits for it."
            .to_owned(),
        Outcome::LostWrites => format!(
            "{}, and settling again does not bring them back; `dmesg` may say which. So {check}. \
             When that is done: {forget}.",
            lost_by(entry)
        ),
    }
}

/// What is known of the writes of a session that has met an error.
fn lost_by(entry: &Entry) -> String {
    match entry.error.as_deref() {
        Some(SettleError::KILLED) => {
            let why = SettleError::WAS_KILLED;
            format!(
                "{}{}: writes may be lost",
                why[..1].to_uppercase(),
                &why[1..]
            )
        }
        Some(name) => format!("{}: writes were lost", shown(name)),
        None => "Writes were lost".to_owned(),
    }
}

fn advice_of_cut(entry: &Entry, check: &str, forget: &str) -> String {
    let order = order(entry);
    let lost = match &entry.error {
        Some(name) => format!("A write was lost before the cut: {}. ", shown(name)),
        None => String::new(),
    };
    let when = format!("{lost}{}", when(entry));
    if entry.until.parse() == Ok(Until::Now) {
        return format!(
            "{when} {order} Nothing has to be done for synclater's sake. Then: {forget}."
        );
    }
    format!(
        "{when} {order} {}{}; then run the command again. When that is done: {forget}.",
        check[..1].to_uppercase(),
        &check[1..]
    )
}

/// What may be lost: how far back from the cut.
fn when(entry: &Entry) -> String {
    match entry.until.parse() {
        Ok(Until::Now) => {
            "Each request was kept when it was made: as without synclater.".to_owned()
        }
        Ok(Until::Within(_)) => format!(
            "When: requests could wait {} and the time that settling took; what was asked for \
             within that time before the cut may be lost.",
            entry.until
        ),
        Ok(Until::Exit) => "When: nothing was settled before the command ended; what was asked \
             for during the whole run may be lost."
            .to_owned(),
        Ok(Until::Never) => "When: nothing was ever settled; all that the command wrote may be \
             lost, without a bound."
            .to_owned(),
        Err(_) => format!(
            "When: the dial \"{}\" is not known here; all that the command wrote may be lost.",
            shown(&entry.until)
        ),
    }
}

/// What may be torn: no bound in time gives the order back.
fn order(entry: &Entry) -> &'static str {
    match entry.until.parse() {
        Ok(Until::Now) => "Order: as the program asked for it.",
        Ok(Until::Within(_)) => {
            "Order: not kept; what was settled and not touched since is there, what was being \
             changed may be lost or torn: a mailbox of immutable files loses its last messages, a \
             database that updates in place may be corrupt."
        }
        _ => {
            "Order: not kept; what was there before and not touched since is there, what was \
             being changed may be lost or torn: a database that updates in place may be corrupt."
        }
    }
}

fn places(entry: &Entry) -> String {
    if entry.filesystems.is_empty() {
        return "every file system that the command wrote to (none was noted)".to_owned();
    }
    let mounts: Vec<String> = entry
        .filesystems
        .iter()
        .map(|one| shown(&one.mount))
        .collect();
    format!("at least {}", mounts.join(", "))
}

/// Sessions as text for people, a blank line between two.
///
/// Of `unread` entries more it is not known.
pub fn render_status(sessions: &[OpenSession], unread: usize) -> String {
    match (sessions.is_empty(), unread) {
        (true, 0) => return "no session was cut or left unsettled\n".to_owned(),
        (true, n) => {
            let unread = counted(n as u64, "file");
            return wrapped(
                "",
                &format!(
                    "no session is known to have been cut or left unsettled, but {unread} of the \
                     ledger cannot be read"
                ),
            );
        }
        (false, _) => {}
    }
    let each: Vec<String> = sessions.iter().map(render_session).collect();
    each.join("\n")
}

fn render_session(session: &OpenSession) -> String {
    let head = format!("{}  {}", shown(&session.id), command_line(&session.command));
    let mut text = format!("{}\n", truncated(&head, columns()));
    let (started, until) = (shown(&session.started), shown(&session.until));
    let how = match session.outcome {
        Outcome::Cut => "cut by a reboot",
        Outcome::Unsettled => "ended without settling",
        Outcome::BeingSettled => "ended without settling yet",
        Outcome::LostWrites if session.error.as_deref() == Some(SettleError::KILLED) => {
            "ended, and writes may be lost"
        }
        Outcome::LostWrites => "ended with lost writes",
    };
    text.push_str(&wrapped(
        "  ",
        &format!("{how}; started {started}, until {until}"),
    ));
    text.push_str("  file systems that owed, at least these:\n");
    for filesystem in &session.filesystems {
        text.push_str(&wrapped("    ", &describe(filesystem)));
    }
    if session.filesystems.is_empty() {
        text.push_str(match session.outcome {
            Outcome::Cut => "    none was noted before the cut\n",
            _ => "    none that is still mounted\n",
        });
    }
    text.push_str(&wrapped("  ", &session.advice));
    text
}

fn describe(filesystem: &LedgerFs) -> String {
    let LedgerFs {
        mount,
        fstype,
        source,
        uuid,
        ..
    } = filesystem;
    let uuid = uuid
        .as_ref()
        .map_or(String::new(), |uuid| format!(", UUID {}", shown(uuid)));
    format!(
        "{} ({}, {}{uuid})",
        shown(mount),
        shown(fstype),
        shown(source)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use synclater_text::layout::width;

    fn entry(until: &str) -> Entry {
        Entry {
            version: Entry::VERSION,
            id: "kelp".into(),
            token: None,
            boot_id: "1d5e2c5c-0f1c-4a54-8e39-0d4f9a3c0c11".into(),
            pid: 4100,
            pid_ns: None,
            pid_started: None,
            folder: None,
            sync: false,
            command: vec!["make".into(), "install".into()],
            started: "2025-01-31T12:00:00Z".into(),
            until: until.into(),
            is_never: false,
            promised: true,
            error: None,
            filesystems: vec![LedgerFs {
                mount: "/srv".into(),
                fstype: "ext4".into(),
                source: "/dev/sdb1".into(),
                uuid: Some("7d4c".into()),
                mount_id: None,
            }],
        }
    }

    #[test]
    fn advice_says_when_and_order_and_what_to_do_for_each_dial() {
        for until in ["1s", "exit", "never", "a dial of tomorrow"] {
            let advice = advice(&entry(until), Outcome::Cut);
            for words in [
                "When: ",
                "Order: not kept",
                "torn",
                "at least /srv",
                "--forget kelp",
            ] {
                assert!(
                    advice.contains(words),
                    "{until}: {words} is not in: {advice}"
                );
            }
        }
    }

    #[test]
    fn a_measured_session_lost_nothing_to_synclater() {
        let advice = advice(&entry("now"), Outcome::Cut);
        assert!(advice.contains("as without synclater") && advice.contains("--forget kelp"));
        assert!(!advice.contains("may be lost"));
    }

    #[test]
    fn a_duration_says_how_far_back_and_the_others_that_it_was_all() {
        let of_cut = |until| advice(&entry(until), Outcome::Cut);
        assert!(of_cut("1s").contains("requests could wait 1s and the time that settling"));
        assert!(of_cut("exit").contains("during the whole run may be lost"));
        assert!(of_cut("never").contains("without a bound"));
    }

    #[test]
    fn a_session_without_a_known_file_system_is_not_said_to_have_none() {
        let mut unknown = entry("exit");
        unknown.filesystems.clear();
        let unknown = OpenSession::new(&unknown, Outcome::Cut);
        let named = "every file system that the command wrote to";
        assert!(unknown.advice.contains(named));
        assert!(render_status(&[unknown], 0).contains("none was noted before the cut"));
    }

    #[test]
    fn what_ended_in_this_boot_is_settled_or_checked() {
        let lost = |name: &str| Entry {
            error: Some(name.into()),
            ..entry("1s")
        };
        let said = |entry: &Entry, is_being_settled| {
            let outcome = Outcome::of_ended(entry, is_being_settled);
            let open = OpenSession::new(entry, outcome);
            let json = status_json(&[Listed::Open(open.clone())]);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            let outcome = json[0]["outcome"].as_str().unwrap().to_owned();
            (outcome, json[0]["error"].clone(), render_status(&[open], 0))
        };
        let (outcome, error, text) = said(&entry("1s"), false);
        assert_eq!((outcome.as_str(), error.is_null()), ("unsettled", true));
        assert!(text.contains("ended without settling;"), "{text}");
        assert!(text.contains("`synclater settle`"), "{text}");
        let (outcome, _, text) = said(&entry("1s"), true);
        assert_eq!(outcome, "unsettled");
        assert!(text.contains("may be at it"), "{text}");
        let (outcome, error, text) = said(&lost("EIO"), true);
        assert_eq!((outcome.as_str(), error), ("lost_writes", "EIO".into()));
        for words in ["EIO: writes were lost", "/srv", "--forget kelp"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (_, _, text) = said(&lost(SettleError::KILLED), false);
        assert!(text.contains("writes may be lost"), "{text}");
        assert!(text.contains("ended, and writes may be lost;"), "{text}");
        assert!(!text.contains("ECANCELED"), "{text}");
    }

    #[test]
    fn json_has_the_keys_that_others_rely_on() {
        let cut = OpenSession::new(&entry("exit"), Outcome::Cut);
        let text = status_json(&[Listed::Open(cut)]);
        assert_eq!(status_json(&[]), "[]\n");
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in [
            "version", "id", "outcome", "command", "started", "boot_id", "until", "advice",
        ] {
            assert!(!json[0][key].is_null(), "{key}");
        }
        assert_eq!(json[0]["filesystems"][0]["uuid"], "7d4c");
    }

    #[test]
    fn the_text_for_people_says_at_least_these_and_fits_a_terminal() {
        let hostile = Entry {
            command: vec!["\x1b[2J".repeat(40)],
            ..entry("never")
        };
        let cut = [entry("exit"), hostile].map(|entry| OpenSession::new(&entry, Outcome::Cut));
        let text = render_status(&cut, 0);
        assert!(text.starts_with(
            "kelp  make install\n  cut by a reboot; started 2025-01-31T12:00:00Z, until exit\n  \
             file systems that owed, at least these:\n    /srv (ext4, /dev/sdb1, UUID 7d4c)\n"
        ));
        assert!(!text.contains('\x1b'));
        assert!(text.lines().all(|line| width(line) <= columns()), "{text}");
        assert_eq!(
            render_status(&[], 0),
            "no session was cut or left unsettled\n"
        );
    }
}
