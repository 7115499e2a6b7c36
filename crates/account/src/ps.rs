//! What `ps` shows: each living session with its processes, its debt and what escaped.
//!
//! Promise: the JSON keys are fixed, a key is absent when its value is not known; the text fits 80
//! columns, or the terminal; long commands are cut with `…`.
//!
//! What it does not do: it finds no sessions and measures nothing.

use serde::{Deserialize, Serialize};

use super::escape::{remedies, sentences, Escape};
use super::summary::bound_words;
use synclater_text::layout::{columns, command_line, shown, truncated, wrapped, wrapped_clauses};
use synclater_text::number::{count, counted, seconds, seconds_up};

/// One living session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PsSession {
    /// Version of this form: 1.
    pub version: u32,
    /// Session id.
    pub id: String,
    /// Process id of the supervisor.
    pub pid: u32,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The dial, as `--until` takes it.
    pub until: String,
    /// The longest dial of its rules, where that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules_until: Option<String>,
    /// Time until the relaxation ends by itself; absent when it ends with the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_left_s: Option<f64>,
    /// Requests that were answered but not yet carried out.
    pub debt: u64,
    /// When it began: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started: String,
    /// How long ago that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<f64>,
    /// Processes in which the library is mapped.
    pub processes: Vec<PsProcess>,
    /// Processes that the session does not reach.
    pub escaped: Vec<Escape>,
    /// Ways into programs that it has besides the library: `--follow`, `--net`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<String>,
    /// With a DURATION: its time and the longest settle time so far together, or twice the latter
    /// where that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_s: Option<f64>,
    /// Age of the oldest request that is not settled yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_s: Option<f64>,
    /// What stands in the way of relaxing, where anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// One process of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PsProcess {
    /// Process id.
    pub pid: u32,
    /// Full path of the executable.
    pub exe: String,
    /// Effective user: name, else number.
    pub user: String,
    /// The way in by which it was reached: `launch` and the like.
    pub how: String,
    /// Sync requests that it made.
    pub requests: u64,
    /// Of these, the ones that were answered at once.
    pub skipped: u64,
}

impl PsSession {
    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;
}

/// The sessions as a JSON array, indented, with a newline at its end.
pub fn to_json(sessions: &[PsSession]) -> String {
    synclater_text::json(&sessions)
}

/// The sessions as text; a blank line between two.
pub fn render(sessions: &[PsSession]) -> String {
    if sessions.is_empty() {
        return "no sessions\n".to_owned();
    }
    sessions
        .iter()
        .map(render_session)
        .collect::<Vec<_>>()
        .join("\n")
}

fn render_session(session: &PsSession) -> String {
    let head = format!("{}  {}", shown(&session.id), command_line(&session.command));
    let mut text = format!("{}\n", truncated(&head, columns()));
    text.push_str(&wrapped_clauses("  ", &facts(session)));
    if let Some(trouble) = &session.trouble {
        text.push_str(&wrapped("  ", &format!("trouble: {}", shown(trouble))));
    }
    if !session.processes.is_empty() {
        text.push_str(&process_line([
            "PID", "USER", "HOW", "REQUESTS", "SKIPPED", "EXE",
        ]));
    }
    for process in &session.processes {
        text.push_str(&render_process(process));
    }
    for sentence in sentences(&session.escaped) {
        text.push_str(&wrapped("  ", &sentence));
    }
    for remedy in remedies(&session.escaped, &session.ways) {
        text.push_str(&wrapped("  ", remedy));
    }
    text
}

/// What stands behind a session's dial where the longest dial of its rules is longer.
#[must_use]
pub fn by_rules(rules_until: Option<&str>) -> String {
    rules_until.map_or(String::new(), |until| {
        format!(" ({} by its rules)", shown(until))
    })
}

fn facts(session: &PsSession) -> Vec<String> {
    let by_rules = by_rules(session.rules_until.as_deref());
    let mut facts = vec![
        format!("until {}{by_rules}", shown(&session.until)),
        format!("supervisor {}", session.pid),
        format!("debt {}", counted(session.debt, "request")),
    ];
    let age = session
        .age_s
        .map(|age_s| format!("for {} now", seconds(age_s)));
    facts.splice(1..1, age);
    facts.extend(
        session
            .oldest_s
            .map(|age_s| format!("oldest {}", seconds_up(age_s))),
    );
    facts.extend(session.bound_s.map(|bound_s| {
        format!(
            "bound {}",
            bound_words(
                session.rules_until.as_ref().unwrap_or(&session.until),
                bound_s
            )
        )
    }));
    facts.extend(session.lease_left_s.map(|left_s| {
        if left_s > 0.0 {
            format!("lease left {}", seconds(left_s))
        } else {
            "its time is over: all requests are real".to_owned()
        }
    }));
    let last = facts.len() - 1;
    facts[..last].iter_mut().for_each(|fact| fact.push(','));
    facts
}

fn render_process(process: &PsProcess) -> String {
    process_line([
        &process.pid.to_string(),
        &truncated(&shown(&process.user), 12),
        &truncated(&shown(&process.how), 8),
        &count(process.requests),
        &count(process.skipped),
        &shown(&process.exe),
    ])
}

/// One line of the table. Counts that are too long push what follows to the right; then the
/// executable, which comes last, is cut shorter.
fn process_line([pid, user, how, requests, skipped, exe]: [&str; 6]) -> String {
    let line = format!("  {pid:>7}  {user:<12} {how:<8} {requests:>11} {skipped:>11}  {exe}");
    format!("{}\n", truncated(&line, columns()))
}

#[cfg(test)]
mod tests {
    use super::super::escape::CLEARED_ENVIRONMENT;
    use super::*;
    use synclater_text::layout::{width, COLUMNS};

    fn session() -> PsSession {
        PsSession {
            version: PsSession::VERSION,
            id: "kelp".into(),
            pid: 4100,
            command: vec!["make".into(), "-j2".into(), "a target".into()],
            until: "1s".into(),
            rules_until: None,
            lease_left_s: Some(59.7),
            debt: 2_300,
            started: String::new(),
            age_s: None,
            processes: vec![PsProcess {
                pid: 4121,
                exe: "/usr/bin/make".into(),
                user: "build".into(),
                how: "launch".into(),
                requests: 4_813,
                skipped: 4_811,
            }],
            escaped: vec![Escape {
                pid: 4130,
                exe: "/usr/bin/sudo".into(),
                why: CLEARED_ENVIRONMENT.into(),
                requests: None,
            }],
            ways: Vec::new(),
            bound_s: Some(1.21),
            oldest_s: None,
            trouble: None,
        }
    }

    #[test]
    fn trouble_is_told_below_the_facts() {
        let mut troubled = session();
        troubled.trouble = Some("cannot write the ledger entry /x/kelp.json: no space".into());
        let text = render(&[troubled]);
        let line = "\n  trouble: cannot write the ledger entry /x/kelp.json: no space\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_session_is_shown_with_its_processes_and_escapes() {
        let want = "\
kelp  make -j2 'a target'
  until 1s, supervisor 4100, debt 2,300 requests, bound 1.3 s, lease left 60 s
      PID  USER         HOW         REQUESTS     SKIPPED  EXE
     4121  build        launch         4,813       4,811  /usr/bin/make
  escaped: sudo (4130), requests kept real, not counted: lost the library
  (cleared environment)
  to keep the library: --follow, or hand on LD_PRELOAD, SYNCLATER_PAGE and
  SYNCLATER_UNTIL
";
        assert_eq!(render(&[session()]), want);
    }

    #[test]
    fn nothing_is_wider_than_a_terminal() {
        let mut wide = session();
        wide.command.push("x".repeat(200));
        wide.processes[0].exe = format!("/{}", "é".repeat(200));
        wide.processes[0].requests = u64::MAX;
        for line in render(&[wide.clone(), wide]).lines() {
            assert!(width(line) <= COLUMNS, "{line}");
        }
    }

    #[test]
    fn a_name_with_control_characters_is_shown_escaped() {
        let mut hostile = session();
        hostile.processes[0].exe = "/tmp/\x1b[2J".into();
        hostile.command = vec!["\x07".into()];
        assert!(!render(&[hostile]).contains(['\x1b', '\x07']));
    }

    #[test]
    fn no_session_is_said_in_text_and_empty_in_json() {
        assert_eq!(render(&[]), "no sessions\n");
        assert_eq!(to_json(&[]), "[]\n");
    }

    #[test]
    fn what_is_not_known_is_absent_from_json() {
        let json: serde_json::Value = serde_json::from_str(&to_json(&[session()])).unwrap();
        let one = json[0].as_object().unwrap();
        assert!(!one.contains_key("oldest_s"));
        assert_eq!(one["lease_left_s"], 59.7);
        assert_eq!(one["processes"][0]["how"], "launch");
    }
}
