//! What a recording tells, in full: the JSON of `synclater report`, and what its text is made from.
//!
//! Promise: every time has its unit in its key; what is not known is absent, never 0. Hints
//! (sync_file_range) are counted apart from requests for durability everywhere.

mod making;
mod picture;
mod text;

pub use making::missing;
pub use text::{By, View};

use crate::analysis::heat::Heatmap;
use crate::analysis::histogram::Bin;
use crate::analysis::modes::Mode;
use crate::analysis::samples::Samples;
use crate::analysis::settings::Setting;
use crate::analysis::stats::Quantiles;
use serde::Serialize;

/// What the recording says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct About {
    /// The file.
    pub file: String,
    /// The machine's name.
    pub host: String,
    /// Its kernel.
    pub kernel: String,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// The command; empty for the whole machine.
    pub command: Vec<String>,
    /// The dial when it began.
    pub until: String,
    /// `library` or `kernel`: who saw the requests.
    pub engine: String,
    /// Whether it has its end and all columns.
    pub complete: bool,
    /// What is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Requests that a process made and that its ring lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostBy {
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// How many.
    pub lost: u64,
}

/// Requests that have a file, a process, a kind and so on in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupRow {
    /// What they have in common.
    pub name: String,
    /// How many.
    pub requests: u64,
    /// Those that were made for real.
    pub real: u64,
    /// Real ones with nothing to make durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needless: Option<u64>,
    /// Bytes that were written before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Seconds that threads waited for them, all together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_s: Option<f64>,
    /// Their share of the waiting of the whole recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// Longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    /// Their durations.
    pub histogram: Vec<Bin>,
    /// Of a file or file system: its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fstype: Option<String>,
    /// Of a file: where its file system is mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
    /// Of a file or file system: its device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Of a device: what it is made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parents: Option<String>,
    /// Of a process: its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Of a process: its executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// Of a process: its role within its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Of a process: its user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// Requests that always come together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TogetherRow {
    /// The program, and kind and file of each.
    pub what: String,
    /// How often they came.
    pub times: u64,
    /// How many requests each time.
    pub requests_each: u64,
    /// Seconds that one sync for each time would save.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves_s: Option<f64>,
    /// The same in words.
    pub sentence: String,
}

/// A limit that people know, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThresholdRow {
    /// What it is about.
    pub name: String,
    /// The limit.
    pub limit_ns: u64,
    /// What was measured.
    pub measured_ns: u64,
    /// Of which percentile: `p99`, `max`.
    pub quantile: String,
    /// Whether it is kept.
    pub ok: bool,
    /// The same in words.
    pub sentence: String,
    /// Who says so.
    pub source: String,
}

/// What a dial would save.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DialRow {
    /// The dial, as `--until` takes it.
    pub until: String,
    /// Seconds on the clock, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_s: Option<f64>,
    /// What a power cut can take then: when, and order.
    pub at_stake: String,
    /// Both in words.
    pub sentence: String,
}

/// What settling a file system took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettleRow {
    /// Where it is mounted.
    pub mount: String,
    /// How many settles.
    pub n: u64,
    /// Seconds of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_s: Option<f64>,
    /// The longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    /// How many failed.
    pub failed: u64,
}

/// All that a recording tells. At most [`RecordingReport::GROUPS_MAX`] groups of each dimension;
/// `by_..._total` says how many there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // The groups' names say what they are by.
pub struct RecordingReport {
    /// Of this form: 1.
    pub version: u32,
    /// What it says of itself.
    pub recording: About,
    /// Requests for durability.
    pub requests: u64,
    /// Those that were made for real.
    pub real: u64,
    /// Requests for write-back only: no durability, not counted anywhere else.
    pub hints: u64,
    /// Requests that got an error.
    pub failed: u64,
    /// Requests that were made but not recorded.
    pub lost: u64,
    /// By whom.
    pub lost_by_process: Vec<LostBy>,
    /// Real ones whose end was not seen: they are in no sum of times.
    pub untimed: u64,
    /// Length of the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
    /// Seconds that threads waited, all together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_s: Option<f64>,
    /// Seconds in which at least one thread waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_s: Option<f64>,
    /// Their share of the recording, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_share: Option<f64>,
    /// How many threads waited on the average: `sync_s` by `wall_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_threads_mean: Option<f64>,
    /// Percentiles of all durations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<Quantiles>,
    /// All durations.
    pub histogram: Vec<Bin>,
    /// The speeds that they have.
    pub modes: Vec<Mode>,
    /// The same in words, where there is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modes_sentence: Option<String>,
    pub by_file: Vec<GroupRow>,
    pub by_file_total: usize,
    pub by_process: Vec<GroupRow>,
    pub by_process_total: usize,
    /// Processes of one program and role together.
    pub by_program: Vec<GroupRow>,
    pub by_program_total: usize,
    pub by_kind: Vec<GroupRow>,
    pub by_kind_total: usize,
    pub by_filesystem: Vec<GroupRow>,
    pub by_filesystem_total: usize,
    pub by_device: Vec<GroupRow>,
    pub by_device_total: usize,
    pub by_caller: Vec<GroupRow>,
    pub by_caller_total: usize,
    /// Hints by kind.
    pub by_hint: Vec<GroupRow>,
    /// Time against latency.
    pub heatmap: Heatmap,
    /// Real requests with nothing to make durable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needless: Option<u64>,
    /// Of how many it is known.
    pub needless_known_of: u64,
    /// Requests that always come together.
    pub together: Vec<TogetherRow>,
    /// Limits that people know.
    pub thresholds: Vec<ThresholdRow>,
    /// What each dial would save.
    pub dials: Vec<DialRow>,
    /// The programs' own settings.
    pub settings: Vec<Setting>,
    /// Figures of the machine.
    pub samples: Samples,
    /// What settling took.
    pub settles: Vec<SettleRow>,
    /// Calls that are no sync requests, by kind: the slow ones and, where their times are known by
    /// powers of two only, the others.
    pub io: Vec<GroupRow>,
}

impl RecordingReport {
    /// Version of the form that this crate writes.
    pub const VERSION: u32 = 1;
    /// The most groups of a dimension.
    pub const GROUPS_MAX: usize = 100;

    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        super::json(self)
    }
}
