//! What killed sessions have left: let go of by their names, and settled in their place.

use super::told::supervisor;
use super::*;
use crate::harness::command::run;
use crate::harness::disk::{keep_mounts_private, Disk, SlowDisk};
use crate::sessions::stage::as_root;
use rustix::process::{kill_process, Signal};
use serde_json::json;
use std::path::PathBuf;
use std::process::Stdio;

#[test]
fn what_a_killed_supervisor_left_is_taken_out_at_once() {
    is_taken_out_at_once(&Stage::new("left"));
}

#[test]
fn so_it_is_where_sessions_lie_in_memory() {
    if !as_root("so_it_is_where_sessions_lie_in_memory") {
        return;
    }
    keep_mounts_private();
    let stage = Stage::new("left-in-memory");
    let run_dir = stage.run_dir();
    run(clean("mount")
        .args(["-t", "tmpfs", "-o", "mode=711", "none"])
        .arg(&run_dir))
    .must_succeed();
    is_taken_out_at_once(&stage);
    run(clean("umount").arg("-l").arg(&run_dir)).must_succeed();
}

/// Kills it; nobody answers any more.
fn end_of_supervisor(stage: &Stage) {
    end_of(supervisor(stage));
}

fn end_of(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it runs");
    let is_gone = || rustix::process::test_kill_process(pid).is_err();
    assert!(until(LIMIT, is_gone), "it lives");
}

fn keeper(stage: &Stage) -> Pid {
    let is_it = |pid: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", number(*pid)));
        name.is_ok_and(|name| name.trim() == "synclater-keep")
    };
    stage
        .of_synclater()
        .into_iter()
        .find(is_it)
        .expect("a keeper")
}

#[test]
fn what_another_dead_session_of_the_same_name_left_stays() {
    let stages = ["same-name", "same-name-too"].map(Stage::new);
    let left = |stage: &Stage| {
        stage.leave_one_name();
        let mut victim = demand(stage);
        let session = stage.attach_to(&victim, "1h");
        stage.warm(&mut victim);
        // The session's folder stays as long as the keeper has not settled.
        let keeper = keeper(stage);
        kill_process(keeper, Signal::STOP).expect("it runs");
        end_of_supervisor(stage);
        (victim, session, keeper)
    };
    let all: Vec<_> = stages.iter().map(left).collect();
    let [(first, session, _), (second, same, _)] = &all[..] else {
        panic!("there are two");
    };
    assert_eq!(session, same);
    let outcome = stages[0].ask(&["detach", session, "--json"]);
    let told: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!((&told["id"], &told["let_go"]), (&json!(session), &json!(1)));
    // The keeper, which is stopped, has not settled.
    assert_eq!(told["settled"], json!(false), "{outcome}");
    assert_eq!(changed_code(first.pid()), Vec::<String>::new());
    assert_ne!(changed_code(second.pid()), Vec::<String>::new());
    for (_, _, keeper) in &all {
        kill_process(*keeper, Signal::CONT).expect("it is there");
    }
    assert!(until(LIMIT, || stages
        .iter()
        .all(|s| s.entries().is_empty())));
}

fn is_taken_out_at_once(stage: &Stage) {
    let mut victim = demand(stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    // The session's folder stays as long as the keeper has not settled.
    let keeper = keeper(stage);
    kill_process(keeper, Signal::STOP).expect("it runs");
    kill_process(supervisor(stage), Signal::KILL).expect("it runs");
    let left = format!("session {session} ended without letting go of its processes");
    // Another test's may be called so, too.
    let its = format!("{} (demand)", number(victim.pid()));
    let named = || {
        let said = stage.ask(&["ps"]).must_succeed().stderr;
        said.contains(&left) && said.contains(&its)
    };
    assert!(until(LIMIT, named), "{}", stage.ask(&["ps"]));
    let outcome = stage.ask(&["detach", &session]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stdout.contains("1 process let go of"), "{outcome}");
    assert!(
        outcome.stderr.contains("not everything is settled"),
        "{outcome}"
    );
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    assert!(!named());
    kill_process(keeper, Signal::CONT).expect("it is there");
    assert!(until(LIMIT, || stage.entries().is_empty()));
}

#[test]
fn ps_names_a_supervisor_that_is_killed_while_it_is_asked() {
    let stage = Stage::new("left-asked");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    // The session's folder stays as long as the keeper has not settled.
    let keeper = keeper(&stage);
    kill_process(keeper, Signal::STOP).expect("it runs");
    let supervisor = supervisor(&stage);
    kill_process(supervisor, Signal::STOP).expect("it runs");
    let mut command = stage.synclater(&["ps"]);
    let asks = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let asks = asks.expect("it starts");
    let pid = Pid::from_child(&asks);
    let waits = || {
        let at = std::fs::read_to_string(format!("/proc/{}/wchan", number(pid)));
        at.expect("it runs").contains("poll")
    };
    assert!(until(LIMIT, waits), "it does not ask");
    kill_process(pid, Signal::STOP).expect("it waits");
    end_of(supervisor);
    kill_process(pid, Signal::CONT).expect("it is stopped");
    let ended = asks.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    let killed = format!("session {session}: its supervisor was killed");
    assert!(said.contains(&killed), "{said}");
    assert!(ended.status.success(), "{said}");
    kill_process(keeper, Signal::CONT).expect("it is there");
    assert!(until(LIMIT, || stage.entries().is_empty()));
}

#[test]
fn detach_waits_for_whoever_settles_in_a_dead_sessions_place() {
    if !as_root("detach_waits_for_whoever_settles_in_a_dead_sessions_place") {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 64, 1000), Stage::new("slowly"));
    let mut victim = demand_in(&stage, &disk.path());
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    end_of_supervisor(&stage);
    let outcome = stage.ask(&["detach", &session]).must_succeed();
    assert!(stage.entries().is_empty(), "{outcome}");
}

/// A process that a session has left, and its name, which nobody can settle: its disk is nowhere in
/// sight.
fn left_unsettled(stage: &Stage, disk: &Disk) -> (Running, String) {
    let mut victim = demand_in(stage, disk.path());
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let keeper = keeper(stage);
    kill_process(keeper, Signal::STOP).expect("it runs");
    end_of_supervisor(stage);
    kill_process(keeper, Signal::KILL).expect("it is there");
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    (victim, session)
}

#[test]
fn detach_tells_of_what_could_not_be_settled_in_a_dead_sessions_place() {
    if !as_root("detach_tells_of_what_could_not_be_settled_in_a_dead_sessions_place") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("unsettled"));
    let (_victim, session) = left_unsettled(&stage, &disk);
    // Its own ledger counts, whatever the next command has.
    let elsewhere = |words: &[&str]| {
        let mut command = stage.synclater(words);
        let outcome = run(command.env("SYNCLATER_STATE_DIR", stage.file("elsewhere")));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        outcome
    };
    elsewhere(&["settle"]);
    let outcome = elsewhere(&["detach", &session]);
    assert!(outcome.stdout.contains("1 process let go of"), "{outcome}");
    elsewhere(&["settle"]);
    let outcome = stage.ask(&["detach", &session]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert_eq!(stage.entries().len(), 1);
}

#[test]
fn detach_says_no_good_while_another_command_settles_in_a_dead_sessions_place() {
    if !as_root("detach_says_no_good_while_another_command_settles_in_a_dead_sessions_place") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("at-it"));
    let (_victim, session) = left_unsettled(&stage, &disk);
    // Its folder goes, and its entry stays.
    assert_eq!(stage.ask(&["settle"]).status.code(), Some(125));
    let files = std::fs::read_dir(stage.state()).expect("the ledger");
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|x| x == "lock");
    let lock = files.flatten().map(|f| f.path()).find(is_lock);
    let lock = std::fs::File::open(lock.expect("a lock")).expect("it opens");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("nobody has it");
    let outcome = stage.ask(&["detach", &session]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("is at it"), "{outcome}");
}
