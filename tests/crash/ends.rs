//! How a laboratory ends: by itself, by a key, killed, and where it cannot begin.

use super::*;
use crate::harness::command::{clean, LIMIT};
use crate::harness::disk::Disk;
use crate::sessions::stage::{has_four_parts, pass, SYNCLATER};
use crate::wait::until;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Devices of laboratories whose folders lie in `temp`, devices whose laboratory has gone away
/// without them, and processes. Their mounts are seen by none but these.
fn left(temp: &Path) -> Vec<String> {
    let temp = temp.to_string_lossy();
    let mut left = Vec::new();
    for entry in std::fs::read_dir("/sys/block").expect("devices").flatten() {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        let ours = |b: &String| b.contains(&*temp) || b.trim().starts_with("/disk-");
        left.extend(backing.ok().filter(ours));
    }
    let variable = format!("TMPDIR={temp}\0");
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&variable) {
            left.push(entry.path().display().to_string());
        }
    }
    left
}

/// The laboratory's own process: the child of the first one of its pid namespace.
fn innermost(outer: u32) -> Option<rustix::process::Pid> {
    let child_of = |pid: u32| {
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        list.ok()?.split_whitespace().next()?.parse::<u32>().ok()
    };
    let inner = child_of(child_of(outer)?)?;
    rustix::process::Pid::from_raw(inner as i32)
}

/// A laboratory that goes on for a minute, with its folder in `temp`.
fn long(stage: &Stage, temp: &Path, budget: &str) -> Command {
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["crash", "--no-rerun", "--json", "--budget", budget]);
    command
        .args(["--check", "builtin:prefix"])
        .env("TMPDIR", temp);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn folders_in(temp: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(temp).expect("the folder");
    entries.flatten().map(|e| e.file_name()).collect()
}

#[test]
fn soak_nothing_is_left_of_a_laboratory_that_is_killed() {
    if !can_cut("soak_nothing_is_left_of_a_laboratory_that_is_killed") {
        return;
    }
    let stage = Stage::new("crash_killed");
    let temp = stage.file("temp");
    std::fs::create_dir(&temp).expect("a folder");
    let cycles = count(5, 60);
    for cycle in 0..cycles {
        let before = folders_in(&temp);
        let mut child = long(&stage, &temp, "60s").spawn().expect("it starts");
        let is_new = || folders_in(&temp).iter().any(|name| !before.contains(name));
        assert!(until(LIMIT, is_new), "it makes nothing");
        // At several points of its life.
        pass(Duration::from_millis(1200 * cycle as u64 / cycles as u64));
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        assert!(until(LIMIT, || left(&temp).is_empty()), "{:?}", left(&temp));
    }
    // The next one takes the folders away, but one that may be being made just now.
    assert!(!folders_in(&temp).is_empty());
    run(&mut long(&stage, &temp, "5")).must_succeed();
    let old = |e: &std::fs::DirEntry| {
        let files = std::fs::read_dir(e.path()).expect("a folder").flatten();
        files.filter(|f| f.file_name() != "lock").count() > 0
    };
    let entries = std::fs::read_dir(&temp).expect("it").flatten();
    assert_eq!(entries.filter(old).count(), 0);
}

#[test]
fn a_laboratory_whose_inside_is_killed_says_so() {
    if !can_cut("a_laboratory_whose_inside_is_killed_says_so") {
        return;
    }
    let stage = Stage::new("crash_inside");
    let temp = stage.file("temp");
    std::fs::create_dir(&temp).expect("a folder");
    let mut command = long(&stage, &temp, "60s");
    let child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut inner = None;
    let found = || {
        inner = innermost(child.id());
        inner.is_some()
    };
    assert!(until(LIMIT, found), "it starts nothing");
    let inner = inner.expect("a process");
    rustix::process::kill_process(inner, rustix::process::Signal::KILL).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(has_four_parts(&said) && said.contains("signal 9"), "{said}");
    let gone = || left(&temp).is_empty() && folders_in(&temp).is_empty();
    assert!(until(LIMIT, gone), "{:?}", left(&temp));
}

#[test]
fn a_signal_ends_the_search_and_what_was_found_is_told() {
    if !can_cut("a_signal_ends_the_search_and_what_was_found_is_told") {
        return;
    }
    let stage = Stage::new("crash_signal");
    let temp = stage.file("temp");
    std::fs::create_dir(&temp).expect("a folder");
    let child = long(&stage, &temp, "10min").spawn().expect("it starts");
    let has_begun = || innermost(child.id()).is_some();
    assert!(until(LIMIT, has_begun), "it starts nothing");
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    // Nothing bad was found, and that says nothing yet.
    assert_eq!(output.status.code(), Some(125), "{report:#}");
    assert_eq!(report["complete"], false, "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("ended before its time"), "{notes}");
    assert_eq!((left(&temp), folders_in(&temp).len()), (Vec::new(), 0));
}

/// What is asked for, as one would type it, and what the message has to name.
const REFUSED: [(&str, &str); 10] = [
    ("--check true -- /no/such/program", "status 127"),
    ("--check true -- false", "status 1"),
    ("--check /no/such/check -- touch {}/a", "not found"),
    (
        "--setup false --check true -- true",
        "--setup command failed",
    ),
    (
        "--mkfs --no-such-option --check true -- true",
        "cannot make ext4",
    ),
    ("-o no_such_option --check true -- true", "no_such_option"),
    ("--fs xfs --size 64M --check true -- true", "smallest disk"),
    (
        "--html /no/such/folder/a --check true -- true",
        "cannot write the page",
    ),
    ("--replay no/such", "none is kept"),
    ("--replay ../../etc/F1", "none is kept"),
];

#[test]
fn what_cannot_be_cut_is_told() {
    let stage = Stage::new("crash_errors");
    let told = |words: &[&str], why: &str| {
        let outcome = run(stage.synclater(&["crash"]).args(words));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert!(outcome.stderr.contains(why), "{why}: {outcome}");
    };
    told(&["--check", "true"], "no command");
    if !can_cut("what_cannot_be_cut_is_told") {
        return told(&["--check", "true", "--", "true"], "only root");
    }
    let broken = |check, why| told(&["--check", check, "--", "touch", "{}/a"], why);
    broken("exit 3;", "the check itself failed");
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
    for (words, why) in REFUSED {
        told(&words.split(' ').collect::<Vec<_>>(), why);
    }
    let refused = run(stage
        .synclater(&["crash", "--check", "builtin:x"])
        .args(["--", "true"]));
    assert!(refused.stderr.contains("builtin:sqlite"), "{refused}");
}

#[test]
fn what_the_machine_lacks_is_told() {
    if !can_cut("what_the_machine_lacks_is_told") {
        return;
    }
    let stage = Stage::new("crash_lacks");
    let mut nobody = stage.with_folders("setpriv");
    nobody.args(["--reuid", "65534", "--clear-groups", SYNCLATER]);
    let outcome = run(nobody.args(["crash", "--check", "true", "--", "true"]));
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(outcome.stderr.contains("only root"), "{outcome}");
    for (script, why) in [
        (
            "mount -t tmpfs none /dev && exec \"$0\" crash --check true -- true",
            "/dev/fuse",
        ),
        // Whoever has no place for its folder.
        (
            "TMPDIR=/no/such/folder exec \"$0\" crash --check true -- true",
            "/no/such/folder",
        ),
        (
            "mount -t tmpfs none /usr/sbin && exec \"$0\" crash --fs xfs --check true -- true",
            "install xfsprogs",
        ),
    ] {
        let mut bare = stage.with_folders("unshare");
        let outcome = run(bare
            .args(["-m", "sh", "-c", script, SYNCLATER])
            .current_dir(stage.work()));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert!(outcome.stderr.contains(why), "{outcome}");
    }
}

#[test]
fn a_program_that_never_ends_and_one_that_goes_into_the_background_are_ended() {
    if !can_cut("a_program_that_never_ends_and_one_that_goes_into_the_background_are_ended") {
        return;
    }
    let stage = Stage::new("crash_endless");
    let words = [
        "--for",
        "1s",
        "--no-rerun",
        "--budget",
        "20",
        "--check",
        "true #",
        "--",
        "sh",
    ];
    let script = |script: &str| crash(&stage, &[&words[..], &["-c", script]].concat());
    let (outcome, report) = script("echo a >a; sync a; echo begun; sleep 1000");
    assert!(report.get("status").is_none(), "{outcome}");
    assert_eq!(number(&report, "acknowledged"), 1, "{outcome}");
    assert!(
        report["notes"][0]
            .as_str()
            .is_some_and(|n| n.contains("(--for)")),
        "{outcome}"
    );
    let (outcome, report) = script("setsid sleep 1000 & echo a >a; sync a; echo done");
    assert_eq!(report["status"], 0, "{outcome}");
    let note = report["notes"][0].as_str().unwrap_or_default();
    assert!(note.starts_with("1 process of it still ran"), "{outcome}");
}

#[test]
fn a_check_that_leaves_servers_behind_does_not_keep_the_state_busy() {
    if !can_cut("a_check_that_leaves_servers_behind_does_not_keep_the_state_busy") {
        return;
    }
    let stage = Stage::new("crash_strays");
    let check = "cd $1 && (setsid sleep 1000 >/dev/null 2>&1 &)";
    let words = [
        "--no-rerun",
        "--budget",
        "20",
        "--check",
        check,
        "--",
        "sh",
        "-c",
    ];
    let (outcome, report) = crash(
        &stage,
        &[&words[..], &["echo a >a; sync a; echo a"]].concat(),
    );
    assert_eq!(number(&report, "bad"), 0, "{outcome}");
    assert!(number(&report, "states") > 2, "{outcome}");
}

#[test]
fn a_disk_that_others_unmount_meanwhile_is_not_kept_busy() {
    if !can_cut("a_disk_that_others_unmount_meanwhile_is_not_kept_busy") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 16), Stage::new("crash_others"));
    // As systemd has it.
    run(clean("mount").args(["--make-rshared", "/"])).must_succeed();
    let temp = stage.file("temp");
    std::fs::create_dir(&temp).expect("a folder");
    let (begun, go) = (stage.file("begun"), stage.file("go"));
    run(clean("mkfifo").arg(&go)).must_succeed();
    let script = "touch \"$0\"; read word <\"$1\"; echo >a";
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["crash", "--no-rerun", "--json", "--budget", "2"]);
    command.args(["--check", "true", "--", "sh", "-c", script]);
    command.arg(&begun).arg(&go).env("TMPDIR", &temp);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut laboratory = command.spawn().expect("a laboratory");
    let runs = until(LIMIT, || begun.exists());
    let device = disk.device();
    run(clean("umount").arg(disk.path())).must_succeed();
    // The device goes with its last mount.
    let name = device.rsplit('/').next().expect("a name").to_owned();
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    let image = disk.image().display().to_string();
    let is_in_use = || std::fs::read_to_string(&backing).is_ok_and(|b| b.trim() == image);
    // Before the laboratory's own patience with the program is over.
    let goes = until(Duration::from_secs(20), || !is_in_use());
    // Both ends: the word stays until it is read, and nobody waits here if the program has ended.
    let go = std::fs::File::options().read(true).write(true).open(&go);
    let mut go = go.expect("a pipe");
    go.write_all(b"go\n").expect("a word");
    let end = laboratory.wait().expect("its end");
    assert!(runs && goes, "{device} is still there; {end}");
    assert_eq!(end.code(), Some(0));
}
