//! What `run` reports when it is over: the JSON of `--json FILE` and its facts.
//!
//! Promise: the keys are fixed; a key is absent when its value is not known, never 0. Times are in
//! seconds, as the keys say.
//!
//! What it does not do: the text for people is in [`super::summary`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::escape::Escape;

/// The report of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Version of this form: 1.
    pub version: u32,
    /// Session id.
    pub id: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The dial, as `--until` takes it.
    pub until: String,
    /// Sync requests that were seen, however they were answered.
    pub requests: u64,
    /// Requests that were answered at once.
    pub skipped: u64,
    /// Requests that were made as real calls.
    pub real: u64,
    /// Of the skipped requests, those that have been made durable since.
    pub settled: u64,
    /// How often a file system was settled, in the background and at the end; absent when never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settles: Option<u64>,
    /// Time that settling took once the command had ended; absent when nothing was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_s: Option<f64>,
    /// Time saved, estimated from what a real request costs; absent without a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_s_estimate: Option<f64>,
    /// The least of that, by the quarter of syncs that took longest and by that which took
    /// shortest: the range of the estimate; absent with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_s_from: Option<f64>,
    /// The most of that; absent with the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_s_to: Option<f64>,
    /// What a real request costs, the median; absent with the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_s_each: Option<f64>,
    /// Where the cost of a real request was measured, in words; absent with the estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_basis: Option<String>,
    /// Of `skipped`, those on file systems in memory, of which nothing survives a power cut; absent
    /// where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_memory: Option<u64>,
    /// Mount points at which this user may not write, so not measure either. Not part of the JSON.
    #[serde(skip)]
    pub not_writable: Vec<String>,
    /// File systems that owed.
    pub filesystems: Vec<RunFilesystem>,
    /// Processes that the session did not reach.
    pub escaped: Vec<Escape>,
    /// Ways into programs that the session had besides the library: `--follow`, `--net`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<String>,
    /// Why it cannot be told what escaped; absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escapes_unknown: Option<String>,
    /// Exit status of `synclater`.
    pub exit_status: i32,
    /// Calls of `sync_file_range`, which ask for write-back but not for durability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<u64>,
    /// Requests that were answered with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// Requests that could have been skipped but were made real, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept_real: BTreeMap<String, u64>,
    /// The longest dial of the rules, where it is longer than `until`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules_until: Option<String>,
    /// Rules that decided about no process and no request, each in words; absent without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched_rules: Vec<String>,
    /// Where the longest dial is a DURATION: its time and the longest settle time together, or
    /// twice the latter where that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_s: Option<f64>,
    /// Measured age of the oldest request when it had been settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_s: Option<f64>,
    /// Time that the program spent in real sync calls, all threads added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_s: Option<f64>,
    /// True at the dial `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never_settled: Option<bool>,
    /// File systems that could not be settled, on which no request of the session is known to have
    /// been put off: each with its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubts: Option<Vec<String>>,
    /// The recording, where one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// Requests in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<u64>,
    /// Requests that are missing in it, because a ring was full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording_lost: Option<u64>,
    /// The write-back error that stands in the way of durability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SettleError>,
}

/// A file system that owed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFilesystem {
    /// Where it is mounted.
    pub mount: String,
    /// Type of the file system.
    pub fstype: String,
    /// What is mounted there.
    pub device: String,
    /// Requests that it owed; absent when they were not told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

/// Why a file system could not be settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleError {
    /// Where it is mounted.
    pub mount: String,
    /// What is mounted there.
    pub device: String,
    /// The errno's number.
    pub errno: i32,
    /// The errno's name, such as `EIO`, or [`SettleError::KILLED`].
    pub name: String,
}

impl SettleError {
    /// What it is called where the process that settled was killed, and with it what the disk
    /// answered, which it may tell nobody else.
    pub const KILLED: &str = "ECANCELED";

    /// Why writes may be lost that are not known to be, for people.
    pub const WAS_KILLED: &str =
        "a process that settled there was killed, and with it what the disk answered";

    /// Whether it is not known what the disk answered.
    #[must_use]
    pub fn was_killed(&self) -> bool {
        self.name == SettleError::KILLED
    }

    /// What became of writes, and where: a sentence.
    #[must_use]
    pub fn what(&self) -> String {
        let are = if self.was_killed() { "may be" } else { "were" };
        format!("writes {are} lost on {} ({})", self.mount, self.device)
    }
}

impl RunReport {
    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;

    /// Why requests are kept real that are made before their file system is known to a session.
    pub const STARTING: &str = "the session was still starting on that file system";

    /// Why requests are kept real of a session whose dial is at `now`.
    pub const AT_NOW: &str = "the dial was at now";

    /// The same of one whose dial is later: what its supervisor was about then is not counted.
    pub const NONE_LATER: &str =
        "nothing was put off just then: the dial was at now, or the session stood still or ended";

    /// The same where `--for` is over.
    pub const FOR_IS_OVER: &str =
        "nothing was put off just then: --for was over, or the session stood still or ended";

    /// As [`Self::STARTING`], where it could not start: what it needs was not to be had.
    pub const NOT_STARTED: &str = "what a late request needs could not be had: see the message";

    /// The same where rules say which requests may be late.
    pub const BY_RULE_OR_NOT_STARTED: &str =
        "a rule says now, none matches, or what it needs could not be had: see the message";

    /// A report of a run in which nothing has been seen yet.
    pub fn new(id: impl Into<String>, command: &[String], until: impl Into<String>) -> RunReport {
        RunReport {
            version: RunReport::VERSION,
            id: id.into(),
            command: command.to_vec(),
            until: until.into(),
            requests: 0,
            skipped: 0,
            real: 0,
            settled: 0,
            settles: None,
            settle_s: None,
            saved_s_estimate: None,
            saved_s_from: None,
            saved_s_to: None,
            saved_s_each: None,
            saved_basis: None,
            in_memory: None,
            not_writable: Vec::new(),
            filesystems: Vec::new(),
            escaped: Vec::new(),
            ways: Vec::new(),
            escapes_unknown: None,
            exit_status: 0,
            hints: None,
            failed: None,
            kept_real: BTreeMap::new(),
            rules_until: None,
            unmatched_rules: Vec::new(),
            bound_s: None,
            oldest_s: None,
            real_s: None,
            never_settled: None,
            doubts: None,
            recording: None,
            recorded: None,
            recording_lost: None,
            error: None,
        }
    }

    /// The report as JSON, indented, with a newline at its end.
    pub fn to_json(&self) -> String {
        synclater_text::json(self)
    }

    /// True when every covered request is durable: nothing failed to settle, nothing is left.
    pub fn is_durable(&self) -> bool {
        self.error.is_none() && self.settled >= self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_absent() {
        let report = RunReport::new("kelp", &["make".to_owned()], "exit");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let mut keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        let want = [
            "command",
            "escaped",
            "exit_status",
            "filesystems",
            "id",
            "real",
            "requests",
            "settled",
            "skipped",
            "until",
            "version",
        ];
        assert_eq!(keys, want);
        assert_eq!(json["version"], 1);
    }

    #[test]
    fn json_reads_back() {
        let mut report = RunReport::new("kelp", &["make".to_owned()], "1s");
        report.error = Some(SettleError {
            mount: "/srv".into(),
            device: "/dev/sdb1".into(),
            errno: 5,
            name: "EIO".into(),
        });
        report.kept_real.insert("a block device".into(), 3);
        report.bound_s = Some(1.21);
        assert_eq!(
            serde_json::from_str::<RunReport>(&report.to_json()).unwrap(),
            report
        );
    }

    #[test]
    fn a_run_is_durable_when_nothing_is_left_and_nothing_failed() {
        let mut report = RunReport::new("kelp", &[], "exit");
        assert!(report.is_durable());
        report.skipped = 23;
        assert!(!report.is_durable());
        report.settled = 23;
        assert!(report.is_durable());
    }
}
