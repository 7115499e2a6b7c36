//! Folders that cannot be used: for the ledger, for sessions, for the library.

use crate::harness::command::{clean, run, Outcome};
use crate::harness::disk::keep_mounts_private;
use crate::harness::disk::SmallFolder;
use crate::sessions::stage::{as_root, has_four_parts, program, Stage};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUESTS: u64 = 23;

/// Runs a hammer with a report.
fn hammered(stage: &Stage, change: impl Fn(&mut Command)) -> (Outcome, Value) {
    let json = stage.json();
    let mut command = stage.synclater(&["run", "--quiet"]);
    command
        .args(json)
        .arg("--")
        .arg(program("hammer"))
        .arg(stage.work());
    command.args(["1", &REQUESTS.to_string()]);
    change(&mut command);
    let outcome = run(&mut command);
    (outcome, stage.report())
}

fn is_all_real(outcome: &Outcome, report: &Value) {
    assert!(outcome.status.success(), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains("made for real"), "{outcome}");
    assert_eq!(report["real"], REQUESTS, "{report:#}");
    assert_eq!(report["skipped"], 0, "{report:#}");
}

#[test]
fn without_a_ledger_everything_is_real_and_said_to_be() {
    let stage = Stage::new("no-ledger");
    let plain = stage.file("plain");
    std::fs::write(&plain, "").expect("a file");
    for folder in [Path::new("/proc/nowhere"), &plain, &plain.join("below")] {
        let (outcome, report) = hammered(&stage, |c| {
            c.env("SYNCLATER_STATE_DIR", folder);
        });
        is_all_real(&outcome, &report);
    }
}

#[test]
fn a_full_disk_for_the_ledger_makes_everything_real() {
    if !as_root("a_full_disk_for_the_ledger_makes_everything_real") {
        return;
    }
    let stage = Stage::new("full-ledger");
    let small = SmallFolder::over(&stage.state());
    small.fill();
    let (outcome, report) = hammered(&stage, |_| {});
    is_all_real(&outcome, &report);
    let left = std::fs::read_dir(stage.state()).expect("state").count();
    assert_eq!(left, 1, "more than what filled it is left");
}

/// Mounts that forbid execution over folders, made where they are missing.
struct NoExec {
    mounted: Vec<PathBuf>,
    made: Vec<PathBuf>,
}

impl NoExec {
    fn over(folders: &[&str]) -> NoExec {
        keep_mounts_private();
        let mut all = NoExec {
            mounted: Vec::new(),
            made: Vec::new(),
        };
        for folder in folders.iter().map(PathBuf::from) {
            if std::fs::create_dir(&folder).is_ok() {
                all.made.push(folder.clone());
            }
            let mut mount = clean("mount");
            mount.args(["-t", "tmpfs", "-o", "noexec,mode=755", "none"]);
            run(mount.arg(&folder)).must_succeed();
            all.mounted.push(folder);
        }
        all
    }
}

impl Drop for NoExec {
    fn drop(&mut self) {
        for folder in &self.mounted {
            run(clean("umount").arg("-l").arg(folder));
        }
        for folder in &self.made {
            // Another session may have begun to use it.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

const CACHES: [&str; 3] = [
    "/var/cache/synclater",
    "/var/lib/synclater-lib",
    "/run/synclater-lib",
];

#[test]
fn a_cache_that_forbids_execution_is_passed_over() {
    if !as_root("a_cache_that_forbids_execution_is_passed_over") {
        return;
    }
    let _no_exec = NoExec::over(&CACHES[..1]);
    let stage = Stage::new("noexec");
    let (outcome, report) = hammered(&stage, |_| {});
    assert!(
        outcome.status.success() && outcome.stderr.is_empty(),
        "{outcome}"
    );
    assert_eq!(report["requests"], REQUESTS, "{report:#}");
}

#[test]
fn without_a_folder_that_allows_execution_the_command_is_not_started() {
    if !as_root("without_a_folder_that_allows_execution_the_command_is_not_started") {
        return;
    }
    let _no_exec = NoExec::over(&CACHES);
    let stage = Stage::new("noexec");
    let mut command = stage.synclater(&["run", "--quiet", "--", "touch"]);
    let outcome = run(command.arg(stage.work().join("ran")));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(!stage.work().join("ran").exists(), "{outcome}");
    for folder in CACHES {
        assert!(outcome.stderr.contains(folder), "{folder}: {outcome}");
    }
}
