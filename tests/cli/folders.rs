//! Folders that cannot be used: for the ledger, for sessions, for the library.

use crate::harness::command::{clean, run, Outcome};
use crate::harness::disk::keep_mounts_private;
use crate::harness::disk::{Disk, SmallFolder};
use crate::sessions::stage::{as_root, has_four_parts, program, Stage, SYNCLATER};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::{chown, PermissionsExt};
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
    // That of all tests may be root's.
    command.env_remove("XDG_CACHE_HOME");
    let outcome = run(command.arg(stage.work().join("ran")));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(!stage.work().join("ran").exists(), "{outcome}");
    for folder in CACHES {
        assert!(outcome.stderr.contains(folder), "{folder}: {outcome}");
    }
}

/// A command in a mount namespace that has a /dev/shm of its own, where the first so many names of
/// root's folder are another user's. The session's folder lies on a disk.
fn where_memory_is_anothers(names: usize, disk: &Disk, stage: &Stage) -> Command {
    let script = "mount -t tmpfs -o mode=1777 none /dev/shm && cd /dev/shm &&
        mkdir -m 700 synclater-0 && chown 12345 synclater-0 &&
        for k in $(seq 2 $NAMES); do mkdir -m 700 synclater-0-$k; chown 12345 synclater-0-$k; done
        exec \"$0\" \"$@\"";
    let mut command = stage.with_folders("unshare");
    command.env("SYNCLATER_RUN_DIR", disk.path());
    command.env("NAMES", names.to_string());
    command.args(["-m", "--propagation", "private", "bash", "-c", script]);
    command
}

/// What doctor says of the session's folder.
fn told_of_folder(command: &mut Command) -> String {
    let outcome = run(command.args([SYNCLATER, "doctor"]));
    let lines = outcome.stdout.lines();
    let told = lines.skip_while(|l| !l.contains("session directory"));
    let words = told.take(2).flat_map(str::split_whitespace);
    words.collect::<Vec<_>>().join(" ")
}

/// Another user namespace's root took it, say.
#[test]
fn where_the_folder_of_memory_is_anothers_there_is_another_one() {
    if !as_root("where_the_folder_of_memory_is_anothers_there_is_another_one") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 16), Stage::new("others-memory"));
    let taken = |names| where_memory_is_anothers(names, &disk, &stage);
    let told = told_of_folder(&mut taken(3));
    assert!(
        told.starts_with("ok") && told.contains("/dev/shm/synclater-0-4"),
        "{told}"
    );
    run(taken(3).args([SYNCLATER, "run", "--quiet", "--", "true"])).must_succeed();
    const WHOSE: &str = "belongs to user 12345";
    let outcome = run(taken(100).args([SYNCLATER, "run", "--", "true"]));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains(WHOSE), "{outcome}");
    let told = told_of_folder(&mut taken(100));
    assert!(told.contains(WHOSE) && !told.starts_with("ok"), "{told}");
}

/// Whoever is root in one user namespace is another user than root in the next one.
#[test]
fn root_in_a_user_namespace_has_memory_of_its_own() {
    if !as_root("root_in_a_user_namespace_has_memory_of_its_own") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 16), Stage::new("inner-root"));
    stage.open_to_others(0o755);
    let above = disk.path().parent().expect("a folder");
    std::fs::set_permissions(above, Permissions::from_mode(0o755)).expect("it is ours");
    for folder in [disk.path(), &stage.state(), &stage.work()] {
        chown(folder, Some(54321), None).expect("it is ours");
    }
    let mut command = where_memory_is_anothers(1, &disk, &stage);
    command.env("XDG_CACHE_HOME", stage.work());
    command.args(["setpriv", "--reuid=54321", "--clear-groups"]);
    command.args(["unshare", "-Ur", "unshare", "-Ur", SYNCLATER]);
    run(command.args(["run", "--quiet", "--", "true"])).must_succeed();
}

/// To a user whom a user namespace has no number for, everybody's folders show as its own.
#[test]
fn a_folder_of_nobody_known_is_not_taken_for_ones_own() {
    if !as_root("a_folder_of_nobody_known_is_not_taken_for_ones_own") {
        return;
    }
    let stage = Stage::new("unknown");
    stage.open_to_others(0o755);
    std::fs::set_permissions(stage.run_dir(), Permissions::from_mode(0o755)).expect("it is ours");
    chown(stage.run_dir(), Some(54321), None).expect("it is ours");
    // What it makes in that of all would be in the way of other users.
    let cache = stage.file("cache");
    std::fs::create_dir(&cache).expect("a folder");
    std::fs::set_permissions(&cache, Permissions::from_mode(0o1777)).expect("it is ours");
    for words in [&["run", "--", "true"][..], &["ps"]] {
        let mut command = stage.with_folders("setpriv");
        command.env("XDG_CACHE_HOME", &cache);
        command.args([
            "--reuid=12345",
            "--clear-groups",
            "unshare",
            "-U",
            SYNCLATER,
        ]);
        let outcome = run(command.args(words));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains("may be anybody's"), "{outcome}");
    }
}

#[test]
fn who_is_not_started_is_not_told_how_it_runs() {
    let stage = Stage::new("neither");
    let plain = stage.file("plain");
    std::fs::write(&plain, "").expect("a file");
    let mut command = stage.synclater(&["run", "--", "true"]);
    command.env("SYNCLATER_RUN_DIR", &plain);
    let outcome = run(command.env("SYNCLATER_STATE_DIR", &plain));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert_eq!(outcome.stderr.matches("state:").count(), 1, "{outcome}");
}
