//! What `status` says of sessions that a power cut ended.
//!
//! Promise: for each dial, both what may be lost (*when*) and what may be torn (*order*), then
//! what to do. The file systems that are named are "at least these".
//!
//! What it does not do: it does not look at the data; only the program's own check can.

use serde::{Deserialize, Serialize};

use super::text::{command_line, shown, truncated, wrapped, COLUMNS};
use crate::ledger::{Entry, LedgerFs};
use crate::policy::dial::Until;

/// A session that was cut, as `status --json` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutSession {
    /// Version of this form: 1.
    pub version: u32,
    /// Session id.
    pub id: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// When the session began: RFC 3339, UTC.
    pub started: String,
    /// The boot that was cut.
    pub boot_id: String,
    /// The dial that was in force.
    pub until: String,
    /// Directory that was kept consistent, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistent: Option<String>,
    /// File systems that owed: at least these.
    pub filesystems: Vec<LedgerFs>,
    /// What the cut may have done and what to do about it.
    pub advice: String,
}

impl CutSession {
    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;
}

impl From<&Entry> for CutSession {
    fn from(entry: &Entry) -> CutSession {
        CutSession {
            version: CutSession::VERSION,
            id: entry.id.clone(),
            command: entry.command.clone(),
            started: entry.started.clone(),
            boot_id: entry.boot_id.clone(),
            until: entry.until.clone(),
            consistent: entry.consistent.clone(),
            filesystems: { entry.filesystems.iter() }.map(after_reboot).collect(),
            advice: advice(entry),
        }
    }
}

/// A file system without what means nothing by now.
fn after_reboot(fs: &LedgerFs) -> LedgerFs {
    LedgerFs {
        mount_id: None,
        ..fs.clone()
    }
}

/// Those of the entries that another boot than this one left open.
pub fn cut_sessions(entries: &[Entry], this_boot: &str) -> Vec<CutSession> {
    entries
        .iter()
        .filter(|entry| entry.is_cut(this_boot))
        .map(CutSession::from)
        .collect()
}

/// The cut sessions as a JSON array, indented, with a newline at its end.
pub fn status_json(sessions: &[CutSession]) -> String {
    super::json(&sessions)
}

/// Says what the cut may have done to what the session wrote, and what to do about it.
pub fn advice(entry: &Entry) -> String {
    let (id, order) = (shown(&entry.id), order(entry));
    let lost = |name: &String| format!("A write was lost before the cut: {}. ", shown(name));
    let lost = entry.error.as_ref().map(lost).unwrap_or_default();
    let when = format!("{lost}{}", when(entry));
    if entry.until.parse() == Ok(Until::Now) {
        return format!(
            "{when} {order} Nothing has to be done for synclater's sake. \
             Then: `synclater status --forget {id}`."
        );
    }
    format!(
        "{when} {order} Check the data on {}: run the program's own check, or restore it from a \
         copy; then run the command again. When that is done: `synclater status --forget {id}`.",
        places(entry)
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

/// Entries as text for people, a blank line between two. All of them are taken to be cut: the
/// caller leaves out those of this boot.
pub fn render_status(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no session was cut\n".to_owned();
    }
    entries
        .iter()
        .map(render_entry)
        .collect::<Vec<_>>()
        .join("\n")
}

fn render_entry(entry: &Entry) -> String {
    let head = format!("{}  {}", shown(&entry.id), command_line(&entry.command));
    let mut text = format!("{}\n", truncated(&head, COLUMNS));
    let (started, until) = (shown(&entry.started), shown(&entry.until));
    text.push_str(&wrapped(
        "  ",
        &format!("cut by a reboot; started {started}, until {until}"),
    ));
    if let Some(dir) = &entry.consistent {
        text.push_str(&wrapped("  ", &format!("consistent {}", shown(dir))));
    }
    text.push_str("  file systems that owed, at least these:\n");
    for filesystem in &entry.filesystems {
        text.push_str(&wrapped("    ", &describe(filesystem)));
    }
    if entry.filesystems.is_empty() {
        text.push_str("    none was noted before the cut\n");
    }
    text.push_str(&wrapped("  ", &advice(entry)));
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
    use super::super::text::width;
    use super::*;

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
            consistent: None,
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
            let advice = advice(&entry(until));
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
        let advice = advice(&entry("now"));
        assert!(advice.contains("as without synclater") && advice.contains("--forget kelp"));
        assert!(!advice.contains("may be lost"));
    }

    #[test]
    fn a_duration_says_how_far_back_and_the_others_that_it_was_all() {
        assert!(advice(&entry("1s")).contains("requests could wait 1s and the time that settling"));
        assert!(advice(&entry("exit")).contains("during the whole run may be lost"));
        assert!(advice(&entry("never")).contains("without a bound"));
    }

    #[test]
    fn a_session_without_a_known_file_system_is_not_said_to_have_none() {
        let mut unknown = entry("exit");
        unknown.filesystems.clear();
        assert!(advice(&unknown).contains("every file system that the command wrote to"));
        assert!(render_status(&[unknown]).contains("none was noted before the cut"));
    }

    #[test]
    fn only_sessions_of_another_boot_are_cut() {
        let entries = [
            entry("exit"),
            Entry {
                boot_id: "other".into(),
                ..entry("1s")
            },
        ];
        let cut = cut_sessions(&entries, "other\n");
        assert_eq!(cut.len(), 1);
        assert_eq!(cut[0], CutSession::from(&entries[0]));
        assert_eq!(status_json(&[]), "[]\n");
    }

    #[test]
    fn json_has_the_keys_that_others_rely_on() {
        let text = status_json(&cut_sessions(&[entry("exit")], "other"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in [
            "version", "id", "command", "started", "boot_id", "until", "advice",
        ] {
            assert!(!json[0][key].is_null(), "{key}");
        }
        assert_eq!(json[0]["filesystems"][0]["uuid"], "7d4c");
        assert!(json[0].get("consistent").is_none());
    }

    #[test]
    fn the_text_for_people_says_at_least_these_and_fits_a_terminal() {
        let hostile = Entry {
            command: vec!["\x1b[2J".repeat(40)],
            ..entry("never")
        };
        let text = render_status(&[entry("exit"), hostile]);
        assert!(text.starts_with(
            "kelp  make install\n  cut by a reboot; started 2025-01-31T12:00:00Z, until exit\n  \
             file systems that owed, at least these:\n    /srv (ext4, /dev/sdb1, UUID 7d4c)\n"
        ));
        assert!(!text.contains('\x1b'));
        assert!(text.lines().all(|line| width(line) <= COLUMNS), "{text}");
        assert_eq!(render_status(&[]), "no session was cut\n");
    }
}
