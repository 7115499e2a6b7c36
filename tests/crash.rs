//! The power-cut laboratory: it finds what is known to be wrong, is quiet about what is right, and
//! leaves nothing behind. Needs root, FUSE and loop devices.

mod answers;
mod bugs;
mod disks;
mod ends;

use crate::harness::command::{run, Outcome};
use crate::harness::limits::{count, needs_root, skip};
use crate::sessions::stage::Stage;
use serde_json::Value;
use std::path::{Path, PathBuf};

const FILE_SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

pub fn can_cut(name: &str) -> bool {
    if !needs_root(name) {
        return false;
    }
    let lacks = |path: &&&str| !Path::new(path).exists();
    match ["/dev/fuse", "/dev/loop-control"].iter().find(lacks) {
        Some(path) => {
            skip(name, &format!("there is no {path}"));
            false
        }
        None => true,
    }
}

fn bug(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("bugs")
        .join(name)
}

/// `synclater crash --json` with these words, and its report.
fn crash(stage: &Stage, words: &[&str]) -> (Outcome, Value) {
    let mut command = stage.synclater(&["crash", "--json"]);
    let outcome = run(command.args(words));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or(Value::Null);
    let bad = report["bad"]
        .as_u64()
        .unwrap_or_else(|| panic!("{outcome}"));
    assert_eq!(outcome.status.code(), Some(i32::from(bad > 0)), "{outcome}");
    (outcome, report)
}

/// The number of a report's key.
fn number(report: &Value, key: &str) -> u64 {
    report[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {report:#}"))
}

/// A key of a report's first failure.
fn first<'a>(report: &'a Value, key: &str) -> &'a str {
    let value = report["failures"][0][key].as_str();
    value.unwrap_or_else(|| panic!("{key}: {report:#}"))
}
