//! The power-cut laboratory: it finds what is known to be wrong, is quiet about what is right, and
//! leaves nothing behind. Needs root, FUSE and loop devices.

use crate::harness::command::{run, Outcome, LIMIT};
use crate::harness::limits::{count, needs_root, skip};
use crate::sessions::stage::{has_four_parts, Stage, SYNCLATER};
use crate::wait::until;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn can_cut(name: &str) -> bool {
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
    let report = serde_json::from_str(&outcome.stdout).unwrap_or(Value::Null);
    (outcome, report)
}

/// The SQLite of a pragma `synchronous`, on a file system.
fn sqlite(fs: &str, synchronous: &str, states: usize) -> Value {
    let stage = Stage::new("crash_sqlite");
    let (folder, states) = (bug("sqlite-last-commit"), states.to_string());
    let check = format!("/usr/bin/python3 -B {}/check.py", folder.display());
    let writer = folder.join("writer.py");
    let pragma = format!("SYNCHRONOUS={synchronous}");
    let rows = "ROWS=12";
    let words = [
        "--fs", fs, "--budget", &states, "--check", &check, "--", "env", &pragma, rows,
    ];
    let program = ["/usr/bin/python3", "-B", writer.to_str().expect("text")];
    let (outcome, report) = crash(&stage, &[&words[..], &program].concat());
    let bad = report["bad"]
        .as_u64()
        .unwrap_or_else(|| panic!("{outcome}"));
    assert_eq!(outcome.status.code(), Some(i32::from(bad > 0)), "{outcome}");
    assert_eq!(report["acknowledged"], 12, "{outcome}");
    report
}

#[test]
fn soak_sqlite_loses_its_last_commit_for_want_of_a_sync_of_the_folder() {
    if !can_cut("soak_sqlite_loses_its_last_commit_for_want_of_a_sync_of_the_folder") {
        return;
    }
    for fs in ["ext4", "xfs", "btrfs"] {
        let report = sqlite(fs, "full", count(40, 500));
        println!("{fs}, full: {} of {} bad", report["bad"], report["states"]);
        assert!(report["bad"].as_u64() > Some(5), "{report:#}");
        let first = &report["failures"][0];
        assert!(
            first["said"]
                .as_str()
                .is_some_and(|s| s.starts_with("lost")),
            "{report:#}"
        );
        let missing = first["missing"].as_str().unwrap_or_default();
        assert!(
            missing.starts_with("fsync of its folder before"),
            "{report:#}"
        );
        let report = sqlite(fs, "extra", count(40, 500));
        println!("{fs}, extra: {} of {} bad", report["bad"], report["states"]);
        assert_eq!(report["bad"], 0, "{report:#}");
        assert!(report["states"].as_u64() >= Some(40), "{report:#}");
    }
}

const WRITER: &str = r#"
import os
f = os.open("log", os.O_CREAT | os.O_RDWR)
os.fsync(os.open(".", os.O_RDONLY))
for n in range(30):
    os.pwrite(f, b"%8d" % n * 512, 4096 * n)
    os.fsync(f)
    print(n, flush=True)
"#;
const CHECKER: &str = r#"
import sys
data = open(sys.argv[1] + "/log", "rb").read() if open(sys.argv[2]).read() else b""
for n in map(int, open(sys.argv[2])):
    if data[4096 * n:4096 * n + 4096] != b"%8d" % n * 512:
        print("lost", n)
        sys.exit(1)
"#;

/// The words for a writer that syncs each record before it acknowledges it.
fn honest(stage: &Stage) -> (String, String) {
    let (writer, checker) = (stage.file("writer.py"), stage.file("checker.py"));
    std::fs::write(&writer, WRITER).expect("a file");
    std::fs::write(&checker, CHECKER).expect("a file");
    let check = format!("/usr/bin/python3 -B {}", checker.display());
    (check, writer.display().to_string())
}

#[test]
fn soak_a_writer_that_syncs_loses_nothing_but_on_a_disk_that_lies_or_without_syncs() {
    let name = "soak_a_writer_that_syncs_loses_nothing_but_on_a_disk_that_lies_or_without_syncs";
    if !can_cut(name) {
        return;
    }
    let stage = Stage::new("crash_honest");
    let (check, writer) = honest(&stage);
    let states = count(60, 2000).to_string();
    for fs in ["ext4", "xfs", "btrfs"] {
        let words = |more: &[&str]| -> Value {
            let words = [
                &[
                    "--fs",
                    fs,
                    "--no-rerun",
                    "--budget",
                    &states,
                    "--check",
                    &check,
                ][..],
                more,
                &["--", "/usr/bin/python3", "-B", &writer],
            ];
            let (outcome, report) = crash(&stage, &words.concat());
            assert!(report["states"].as_u64() > Some(5), "{outcome}");
            println!(
                "{fs} {more:?}: {} of {} bad",
                report["bad"], report["states"]
            );
            report
        };
        let report = words(&[]);
        assert_eq!(report["bad"], 0, "{report:#}");
        for more in [&["--lies"][..], &["-u", "never"]] {
            let report = words(more);
            assert!(report["bad"].as_u64() > Some(0), "{more:?}: {report:#}");
        }
    }
}

/// Mounts, devices and folders of laboratories.
fn left() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    let of_ours = |l: &&str| l.contains("synclater-crash");
    let mut left: Vec<String> = mounts.lines().filter(of_ours).map(str::to_owned).collect();
    for entry in std::fs::read_dir("/sys/block").expect("devices").flatten() {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        left.extend(backing.ok().filter(|b| b.contains("synclater-crash")));
    }
    left
}

#[test]
fn nothing_is_left_of_a_laboratory_that_is_killed() {
    if !can_cut("nothing_is_left_of_a_laboratory_that_is_killed") {
        return;
    }
    let stage = Stage::new("crash_killed");
    let (check, writer) = honest(&stage);
    let temp = stage.file("temp");
    std::fs::create_dir(&temp).expect("a folder");
    let start = |budget: &str| {
        let mut command = stage.with_folders(SYNCLATER);
        command.args(["crash", "--no-rerun", "--budget", budget, "--check", &check]);
        command
            .args(["--", "/usr/bin/python3", "-B", &writer])
            .env("TMPDIR", &temp);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let made = || std::fs::read_dir(&temp).expect("the folder").count();
    for _ in 0..count(3, 30) {
        let mut child = start("60s").spawn().expect("it starts");
        assert!(until(LIMIT, || made() > 0), "it makes nothing");
        // At several points of its life.
        crate::sessions::stage::pass(std::time::Duration::from_millis(400));
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        let ours = || left().iter().any(|l| l.contains(&*temp.to_string_lossy()));
        assert!(until(LIMIT, || !ours()), "{:?}", left());
    }
    // The next one takes the folders away.
    assert!(made() > 0);
    run(&mut start("5")).must_succeed();
    let young = std::time::Duration::from_secs(60);
    let old = |e: &std::fs::DirEntry| {
        let made = e.metadata().and_then(|m| m.modified()).expect("a time");
        made.elapsed().is_ok_and(|age| age > young)
    };
    assert!(!std::fs::read_dir(&temp)
        .expect("it")
        .flatten()
        .any(|e| old(&e)));
}

#[test]
fn what_cannot_be_cut_is_told() {
    let stage = Stage::new("crash_errors");
    let told = |words: &[&str], why: &str| {
        let outcome = run(stage.synclater(&["crash"]).args(words));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert!(outcome.stderr.contains(why), "{why}: {outcome}");
    };
    if !can_cut("what_cannot_be_cut_is_told") {
        return told(&["--check", "true", "--", "true"], "only root");
    }
    told(&["--check", "true", "--", "/no/such/program"], "status 127");
    told(
        &["--check", "exit 3;", "--", "touch", "{}/a"],
        "the check itself failed",
    );
    told(
        &[
            "--check",
            "sleep 60;",
            "--patience",
            "200ms",
            "--",
            "touch",
            "{}/a",
        ],
        "longer than",
    );
    told(
        &["--setup", "exit 7", "--check", "true", "--", "true"],
        "--setup command failed",
    );
    told(
        &[
            "--mkfs",
            "--no-such-option",
            "--check",
            "true",
            "--",
            "true",
        ],
        "cannot make ext4",
    );
    let text = run(&mut told_nobody(&stage)).stderr;
    assert!(text.contains("only root"), "{text}");
}

/// The same as a user without rights.
fn told_nobody(stage: &Stage) -> Command {
    let mut command = stage.with_folders("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", SYNCLATER]);
    command.args(["crash", "--check", "true", "--", "true"]);
    command
}

#[test]
fn a_program_that_never_ends_is_ended() {
    if !can_cut("a_program_that_never_ends_is_ended") {
        return;
    }
    let stage = Stage::new("crash_endless");
    let script = "(sleep 1000 &) ; echo begun; sync -d . ; sleep 1000";
    let words = [
        "--for",
        "1s",
        "--no-rerun",
        "--budget",
        "20",
        "--check",
        "true",
        "--",
        "sh",
    ];
    let (outcome, report) = crash(&stage, &[&words[..], &["-c", script]].concat());
    assert_eq!(outcome.status.code(), Some(0), "{outcome}");
    assert!(report.get("status").is_none(), "{report:#}");
    assert_eq!(report["acknowledged"], 1, "{report:#}");
}
