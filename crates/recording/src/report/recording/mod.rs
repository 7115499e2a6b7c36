//! What a recording tells, in full: the JSON of `synclater report`, and what its text is made from.
//!
//! Promise: every time has its unit in its key; what is not known is absent, never 0. Hints
//! (sync_file_range) are counted apart from requests for durability everywhere.

mod making;
mod missing;
mod picture;
mod text;

pub use missing::{missing, missing_end};
pub use text::{By, View};

use crate::analysis::heat::Heatmap;
use crate::analysis::histogram::Bin;
use crate::analysis::modes::Mode;
use crate::analysis::samples::Samples;
use crate::analysis::settings::Setting;
use crate::analysis::stats::Quantiles;
use serde::Serialize;
use synclater_account::escape::Escape;

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
    /// Whose requests the kernel was asked for, where not everybody's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub whose: String,
    /// Nanoseconds from which on other calls are slow, where they were timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slower_ns: Option<u64>,
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
    /// Processes whose requests are not in it, because the session did not reach them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub escaped: Vec<Escape>,
    /// Why it is not known who else escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escapes_unknown: Option<String>,
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
        synclater_text::json(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::table::{Done, File, Filesystem, Process, Sample, Settle, Table, UNKNOWN};
    use proptest::prelude::*;

    /// A row in a few numbers.
    type Sketch = (u32, i64, Option<u64>, u32, bool);

    fn table(sketches: &[Sketch]) -> Table {
        let text = |k: usize| format!("/srv/{k}\u{9b}{}", "x".repeat(k * 9));
        let mut t = Table {
            kinds: ["fsync", "sync_file_range", "msync"]
                .map(str::to_owned)
                .into(),
            callers: (0..3).map(text).collect(),
            reasons: vec![String::new(), "a network file system".into()],
            ..Table::default()
        };
        for k in 0..5 {
            t.filesystems.push(Filesystem {
                fstype: ["", "ext4", "nfs"][k % 3].into(),
                mount: text(k),
                device: text(k / 2),
                parents: text(k / 2),
            });
            t.files.push(File {
                path: text(k),
                filesystem: k as u32,
            });
            t.processes.push(Process {
                pid: Some(k as u32),
                exe: text(k / 2),
                ..Process::default()
            });
        }
        for (k, time, took, bits, known) in sketches {
            let r = &mut t.rows;
            r.time_ns.push(*time);
            r.took_ns.push(took.unwrap_or(UNKNOWN));
            r.process.push(k % 5);
            r.tid.push(bits % 3);
            r.file.push(bits % 5);
            r.kind.push((bits / 5 % 3) as u16);
            let all = [Done::Real, Done::Owed, Done::Unknown, Done::Nothing];
            r.done.push(all[*bits as usize / 16 % 4]);
            r.reason.push((bits / 64 % 2) as u16);
            r.errno.push((bits / 128 % 2) as u16);
            r.bytes.push(if *known { (*bits).into() } else { UNKNOWN });
            r.dirty.push(known.then_some(bits % 2 == 0));
            r.caller.push(k % 3);
        }
        let time_ns = sketches.first().map_or(0, |s| s.1);
        t.samples.push(Sample {
            time_ns,
            device: text(0),
            metric: "utilisation".into(),
            value: f64::MAX,
        });
        t.settles.push(Settle {
            time_ns,
            took_ns: u64::MAX - 1,
            filesystem: 1,
            debt: None,
            errno: 5,
        });
        t.io = t.rows.clone();
        t
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn whatever_the_rows_the_groups_add_up_and_the_text_fits(
            rows in proptest::collection::vec(
                (any::<u32>(), any::<i64>(), proptest::option::of(any::<u64>()), any::<u32>(),
                 any::<bool>()), 0..60),
            small in any::<bool>()
        ) {
            let calm = |r: Sketch| (r.0, r.1 >> 30, r.2.map(|t| t >> 30), r.3, r.4);
            let rows: Vec<Sketch> = rows
                .into_iter()
                .map(|r| if small { calm(r) } else { r })
                .collect();
            let t = table(&rows);
            let r = RecordingReport::of(&t, "\u{1b}[2Jx.rec");
            prop_assert_eq!(r.requests + r.hints, rows.len() as u64);
            let all = [&r.by_file, &r.by_process, &r.by_program, &r.by_kind, &r.by_filesystem,
                &r.by_device, &r.by_caller];
            let timed: u64 = r.histogram.iter().map(|b| b.n).sum();
            prop_assert_eq!(timed + r.untimed, r.real);
            for groups in all {
                let sum = |of: fn(&GroupRow) -> u64| groups.iter().map(of).sum::<u64>();
                prop_assert_eq!(sum(|g| g.requests), r.requests);
                prop_assert_eq!(sum(|g| g.real), r.real);
                let binned = sum(|g| g.histogram.iter().map(|b| b.n).sum());
                prop_assert_eq!(binned, timed);
                prop_assert_eq!(sum(|g| g.needless.unwrap_or(0)), r.needless.unwrap_or(0));
            }
            if let (Some(waiting), Some(sync)) = (r.waiting_s, r.sync_s) {
                prop_assert!(waiting <= sync * 1.000_001, "{} {}", waiting, sync);
            }
            let by = By::ALL.map(|(_, by)| by).to_vec();
            let text = r.render(&View { by, top: 9 });
            let steers = |c: char| c.is_control() && c != '\n';
            prop_assert!(!text.contains(steers) && !r.to_json().contains(steers));
            if small {
                let wide = text.lines().find(|l| l.chars().count() > 80 && !l.contains('/'));
                prop_assert_eq!(wide, None);
            }
        }
    }

    #[test]
    fn a_process_whose_end_was_not_seen_is_left_out_of_all_times_and_counted() {
        let t = table(&[(0, 0, None, 0, true), (1, 5, Some(7), 0, true)]);
        let r = RecordingReport::of(&t, "x.rec");
        assert_eq!((r.requests, r.real, r.untimed), (2, 2, 1));
        assert_eq!(r.sync_s, Some(7e-9));
        let absent = RecordingReport::of(&table(&[(0, 0, None, 0, true)]), "x.rec");
        assert_eq!(
            (absent.sync_s, absent.waiting_s, absent.real),
            (None, None, 1)
        );
        assert!(absent
            .render(&View {
                by: Vec::new(),
                top: 5
            })
            .contains("is not known"));
    }
}
