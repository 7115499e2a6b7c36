//! A mail spool on two paths: `explain` names the bad one, and none where both are alike.
//!
//! Two slow disks with the same median flush, deliveries spread over both at random, crossed with
//! users, processes, sizes, folders, files and kinds of sync that have nothing to do with it.

use crate::cli::explain::{json, write, Request};
use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use crate::harness::disk::{Erratic, SlowDisk};
use crate::harness::limits::{count, needs_root};
use crate::harness::victims::tool;
use crate::sessions::stage::Stage;
use serde_json::Value;
use std::path::{Path, PathBuf};

const FLUSH_MS: u32 = 2;
const DELIVERIES: u32 = 600;
const PROCESSES: u32 = 4;

/// Two disks; each is bad or not.
struct Spool {
    disks: [SlowDisk; 2],
    seed: u64,
}

impl Spool {
    fn new(seed: u64, bad: [bool; 2]) -> Spool {
        let disk = |k: usize| {
            let erratic = Erratic {
                bad_ms: 30,
                bad_share: if bad[k] { 0.08 } else { 0.0 },
                seed: 2 * seed + k as u64,
            };
            SlowDisk::erratic("ext4", 128, FLUSH_MS, erratic)
        };
        Spool {
            disks: [disk(0), disk(1)],
            seed,
        }
    }

    fn paths(&self) -> [PathBuf; 2] {
        [self.disks[0].path(), self.disks[1].path()]
    }

    /// The deliveries, as a command; `log` is where they note what they timed themselves.
    fn deliver(&self, log: &Path) -> Vec<String> {
        let numbers = [self.seed, DELIVERIES.into(), PROCESSES.into()];
        let mut words = vec![tool("deliver").display().to_string()];
        words.extend(numbers.iter().map(u64::to_string));
        words.push(log.display().to_string());
        words.extend(self.paths().iter().map(|p| p.display().to_string()));
        words
    }

    /// What the deliveries timed, as a recording.
    fn timed_by_itself(&self) -> Value {
        let dir = Dir::new("spool");
        let (log, file) = (dir.join("log"), dir.join("spool.rec"));
        let words = self.deliver(&log);
        run(clean(&words[0]).args(&words[1..])).must_succeed();
        let lines = std::fs::read_to_string(&log).expect("the log");
        let requests: Vec<Request> = lines.lines().map(|line| self.request(line)).collect();
        assert!(
            requests.len() as u32 > 2 * DELIVERIES,
            "{} syncs",
            requests.len()
        );
        write(&file, &requests, true);
        json(&[], &file)
    }

    /// What `synclater record` sees of the deliveries.
    fn recorded(&self) -> Value {
        let stage = Stage::new("spool");
        let file = stage.file("spool.rec");
        let mut record = stage.synclater(&["record", "-o"]);
        record.arg(&file).arg("--");
        run(record.args(self.deliver(Path::new("-")))).must_succeed();
        let report = json(&[], &file);
        let total = report["total"].as_u64().expect("a count");
        assert!(total > u64::from(2 * DELIVERIES), "{report:#}");
        assert_eq!(report["lost"], 0, "{report:#}");
        report
    }

    fn request(&self, line: &str) -> Request {
        let mut words = line.splitn(6, ' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("{line}"));
        let (time, took, pid, kind, bytes) = (word(), word(), word(), word(), word());
        let path = word();
        let on = |disk: &&SlowDisk| Path::new(path).starts_with(disk.path());
        let disk = self.disks.iter().find(on).expect("a disk");
        Request {
            time_ns: time.parse().expect("a time"),
            took_ns: took.parse().expect("a duration"),
            pid: pid.parse().expect("a process"),
            kind: kind.into(),
            bytes: bytes.parse().expect("a size"),
            path: path.into(),
            mount: disk.path().display().to_string(),
            device: disk.device(),
        }
    }
}

/// The first cause is the second disk, by device and mount.
fn must_name_the_bad_path(spool: &Spool, report: &Value) {
    let seed = spool.seed;
    let cause = &report["causes"][0];
    let names = &cause["dimensions"];
    let bad = &spool.disks[1];
    assert_eq!(names["device"], bad.device(), "seed {seed}: {report:#}");
    assert_eq!(
        names["mount"],
        bad.path().display().to_string(),
        "seed {seed}: {report:#}"
    );
    let number = |key: &str| cause[key].as_f64().expect("a number");
    assert!(number("lift") > 1.5, "seed {seed}: {report:#}");
    assert!(number("coverage") > 0.8, "seed {seed}: {report:#}");
    assert!(number("p_value") < 0.01, "seed {seed}: {report:#}");
    println!("seed {seed}: {}", cause["sentence"]);
}

fn causes(report: &Value) -> usize {
    report["causes"].as_array().expect("a list").len()
}

#[test]
fn soak_the_bad_one_of_two_paths_is_named_first() {
    if !needs_root("soak_the_bad_one_of_two_paths_is_named_first") {
        return;
    }
    for seed in 1..=count(2, 20) as u64 {
        let spool = Spool::new(seed, [false, true]);
        must_name_the_bad_path(&spool, &spool.recorded());
    }
}

#[test]
fn soak_no_path_is_named_where_both_are_alike() {
    if !needs_root("soak_no_path_is_named_where_both_are_alike") {
        return;
    }
    let seeds = count(2, 20) as u64;
    let mut alarms = Vec::new();
    for seed in 1..=seeds {
        // Both as bad, or both as good.
        let spool = Spool::new(seed, [seed % 2 == 0; 2]);
        let report = spool.recorded();
        println!("seed {seed}: {}", report["nothing"]);
        if causes(&report) > 0 {
            alarms.push(format!("seed {seed}: {report:#}"));
        }
    }
    assert!(alarms.len() <= 1, "{}", alarms.join("\n"));
}

#[test]
fn the_bad_path_is_named_from_what_the_deliveries_timed_themselves() {
    if !needs_root("the_bad_path_is_named_from_what_the_deliveries_timed_themselves") {
        return;
    }
    let spool = Spool::new(21, [false, true]);
    must_name_the_bad_path(&spool, &spool.timed_by_itself());
}
