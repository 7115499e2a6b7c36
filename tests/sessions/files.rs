//! The files of a session, and what other users can do to them.

use super::stage::{
    as_root, give_to_nobody, has_four_parts, program, Running, Stage, AS_NOBODY, SYNCLATER,
};
use crate::harness::command::{clean, run, Outcome};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Everything below a directory, and itself.
fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.to_owned());
    if path.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        for entry in std::fs::read_dir(path).expect("a directory") {
            walk(&entry.expect("entry").path(), found);
        }
    }
}

/// The session's folder of shared memory, as its own folder names it.
fn memory_of(session: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(session.join("lock")).ok()?;
    text.lines().next().map(|memory| session.join(memory))
}

#[test]
fn nobody_but_the_owner_can_write_what_a_session_stands_on() {
    let stage = Stage::new("modes");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let session = stage.run_dir().join(stage.id());
    let memory = memory_of(&session).unwrap_or_else(|| session.clone());
    let mut found = Vec::new();
    for dir in [&stage.run_dir(), &stage.state(), &memory] {
        walk(dir, &mut found);
    }
    for name in ["page", "slots", "control", "lock"] {
        assert!(found.iter().any(|p| p.ends_with(name)), "{name}: {found:?}");
    }
    for path in found {
        let seen = path.symlink_metadata().expect("metadata");
        let (mode, user) = (seen.mode() & 0o7777, rustix::process::geteuid().as_raw());
        assert_eq!(seen.uid(), user, "{}", path.display());
        assert_eq!(mode & 0o022, 0, "{}: {mode:o}", path.display());
        // What is written by victims, or answers requests, is for nobody else even to open.
        // And whoever can open the lock can hold it.
        let is_closed = path.ends_with("slots") || path.ends_with("lock");
        if seen.file_type().is_socket() || is_closed {
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        }
        // The ledger names commands and their arguments.
        if path.extension().is_some_and(|x| x == "json") {
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        }
    }
    victim.end().must_succeed();
    assert!(!memory.exists() && !session.exists());
}

/// The command was not started, and the message says what to do.
fn is_refused(stage: &Stage, outcome: &Outcome) {
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(!stage.work().join("ran").exists(), "{outcome}");
}

fn touch_in_session(stage: &Stage) -> Outcome {
    let mut command = stage.synclater(&["run", "--quiet", "--", "touch"]);
    run(command.arg(stage.work().join("ran")))
}

#[test]
fn a_link_in_the_place_of_the_session_folder_is_refused() {
    let stage = Stage::new("link");
    let elsewhere = stage.file("elsewhere");
    std::fs::rename(stage.run_dir(), &elsewhere).expect("rename");
    std::os::unix::fs::symlink(&elsewhere, stage.run_dir()).expect("link");
    is_refused(&stage, &touch_in_session(&stage));
    assert_eq!(std::fs::read_dir(elsewhere).expect("elsewhere").count(), 0);
}

#[test]
fn a_session_folder_that_others_may_write_is_refused() {
    let stage = Stage::new("writable");
    for mode in [0o777, 0o1777, 0o770] {
        let wide = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(stage.run_dir(), wide).expect("chmod");
        is_refused(&stage, &touch_in_session(&stage));
    }
}

#[test]
fn a_session_folder_of_another_user_is_refused() {
    if !as_root("a_session_folder_of_another_user_is_refused") {
        return;
    }
    let stage = Stage::new("foreign");
    give_to_nobody(&stage.run_dir());
    is_refused(&stage, &touch_in_session(&stage));
    // And nothing that he put there is believed: no lock is taken, nothing is asked.
    let planted = stage.run_dir().join("kelp");
    std::fs::create_dir(&planted).expect("a folder");
    std::fs::write(planted.join("lock"), "").expect("a lock");
    std::fs::write(planted.join("memory"), "/tmp/kelp").expect("a path");
    let ps = stage.ask(&["ps"]);
    assert_eq!(
        (ps.status.code(), ps.stdout.as_str()),
        (Some(125), ""),
        "{ps}"
    );
    assert!(ps.stderr.contains("belongs to user 65534"), "{ps}");
    assert!(planted.join("lock").exists());
}

#[test]
fn a_ledger_of_another_user_makes_everything_real() {
    if !as_root("a_ledger_of_another_user_makes_everything_real") {
        return;
    }
    let stage = Stage::new("foreign-ledger");
    give_to_nobody(&stage.state());
    let json = stage.json();
    let mut command = stage.synclater(&["run", "--quiet", &json[0], &json[1], "--"]);
    command.arg(program("hammer")).arg(stage.work());
    let outcome = run(command.args(["1", "23"])).must_succeed();
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert_eq!(stage.report()["real"], 23, "{:#}", stage.report());
}

/// A copy of synclater and of a victim where a user without rights can execute them.
fn programs_for_nobody(stage: &Stage) -> [PathBuf; 2] {
    let hammer = program("hammer");
    [Path::new(SYNCLATER), &hammer].map(|program| stage.copy_of(program))
}

fn as_nobody(stage: &Stage) -> std::process::Command {
    let mut command = stage.with_folders("env");
    command.args(AS_NOBODY).arg("env");
    command
}

#[test]
fn a_user_without_rights_has_sessions_too() {
    if !as_root("a_user_without_rights_has_sessions_too") {
        return;
    }
    let stage = Stage::for_nobody("unprivileged");
    let [synclater, hammer] = programs_for_nobody(&stage);
    let report = stage.work().join("report.json");
    let mut command = as_nobody(&stage);
    command
        .arg(synclater)
        .args(["run", "--summary", "--json"])
        .arg(&report)
        .arg("--");
    command.arg(hammer).arg(stage.work()).args(["2", "2003"]);
    let outcome = run(&mut command).must_succeed();
    let text = std::fs::read_to_string(report).expect("the report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["requests"], 4006, "{report:#}");
    assert!(report["skipped"].as_u64() > Some(2003), "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(stage.entries().is_empty());
    assert!(outcome.stderr.contains("durable"), "{outcome}");
}

#[test]
fn another_user_can_neither_ask_nor_open_a_session() {
    if !as_root("another_user_can_neither_ask_nor_open_a_session") {
        return;
    }
    let stage = Stage::new("asked");
    stage.open_to_others(0o755);
    let run_mode = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(stage.run_dir(), run_mode).expect("chmod");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let session = stage.run_dir().join(stage.id());
    let memory = memory_of(&session).unwrap_or_else(|| session.clone());
    let script =
        "! cat \"$1/slots\" && ! (: >>\"$1/page\") && ! (: >\"$2/x\") && ! rm -f \"$1/page\"";
    let mut command = clean("env");
    command.args(AS_NOBODY).args(["sh", "-c", script, "sh"]);
    let tried = run(command.arg(&memory).arg(&session));
    assert_eq!(tried.stdout, "", "{tried}");
    tried.must_succeed();
    let ask = "use IO::Socket::UNIX; IO::Socket::UNIX->new($ARGV[0]) or die $!";
    let mut command = clean("env");
    command.args(AS_NOBODY).args(["/usr/bin/perl", "-e", ask]);
    let tried = run(command.arg(memory.join("control")));
    assert!(tried.stderr.contains("Permission denied"), "{tried}");
    victim.end().must_succeed();
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_the_command_starts() {
    if !as_root("a_folder_that_cannot_be_written_is_refused_before_the_command_starts") {
        return;
    }
    crate::harness::disk::keep_mounts_private();
    let stage = Stage::new("folders");
    let mount = |options: &str| {
        let mut command = clean("mount");
        command.args(["-t", "tmpfs", "-o", options, "none"]);
        run(command.arg(stage.run_dir())).must_succeed();
    };
    mount("ro,mode=755");
    is_refused(&stage, &touch_in_session(&stage));
    run(clean("umount").arg(stage.run_dir())).must_succeed();
    // Two pages: one for the directory's own entry.
    mount("size=8k,mode=755");
    let outcome = touch_in_session(&stage);
    let left = stage.left_in_run_dir();
    run(clean("umount").arg(stage.run_dir())).must_succeed();
    is_refused(&stage, &outcome);
    assert!(left.is_empty(), "{left:?} {outcome}");
}

#[test]
fn a_stale_session_is_cleared_by_the_next_command_whatever_is_missing_in_it() {
    let stage = Stage::new("stale");
    let dir = stage.run_dir().join("kelp");
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("lock"), "").expect("a lock");
    // A path that a session never writes must not be removed.
    let precious = stage.file("precious");
    std::fs::create_dir(&precious).expect("a folder");
    std::fs::write(dir.join("memory"), precious.display().to_string()).expect("a path");
    stage.ask(&["ps"]).must_succeed();
    assert!(!dir.exists());
    assert!(precious.exists());
    drop(Running::start(
        &stage,
        stage.synclater(&["run", "--quiet", "--", "true"]),
    ));
}

#[test]
fn a_session_in_another_run_folder_touches_nothing_of_this_one() {
    let stage = Stage::new("two-folders");
    let other = Stage::new("two-folders");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let session = stage.run_dir().join(stage.id());
    let memory = memory_of(&session).unwrap_or_else(|| session.clone());
    // Names repeat after some dozens.
    for round in 0..150 {
        other.ask(&["run", "--quiet", "--", "true"]).must_succeed();
        assert!(
            memory.join("page").exists(),
            "gone after {round} sessions elsewhere"
        );
    }
    victim.end().must_succeed();
}

#[test]
fn a_folder_of_sessions_may_have_a_long_name() {
    let stage = Stage::new("long");
    let long = stage.file(&"l".repeat(100));
    for name in ["", "/run"] {
        std::fs::create_dir(format!("{}{name}", long.display())).expect("a folder");
    }
    let mut command = stage.with_folders(SYNCLATER);
    command.env("SYNCLATER_RUN_DIR", long.join("run"));
    // The shared memory lies there, too, where that is in memory.
    let asks = format!("{SYNCLATER} ps && {SYNCLATER} settle");
    command.args(["run", "--quiet", "--", "sh", "-c", &asks]);
    let outcome = run(&mut command).must_succeed();
    assert!(outcome.stdout.contains(": settled"), "{outcome}");
}
