//! What the kernel tells once: that a write was lost. Whoever it was told, and whatever became of
//! him, the next one who settles knows.

use super::broken::{kill_all, SmallLedger};
use super::keepers::{named, waits_for_one};
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{Disk, SlowDisk};
use crate::sessions::death::{children, is_gone, waiting_for_disk, waits_for_disk};
use crate::sessions::stage::as_root;
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::path::PathBuf;

/// A session that owes on a disk whose flush takes `flush_ms` from `becomes_slow` on; its keeper.
pub(super) fn on_slow_disk(stage: &Stage, flush_ms: u32) -> (SlowDisk, Running, Pid) {
    let slow = SlowDisk::quick_at_first(flush_ms);
    let mut scribe = scribe(stage, &["--until", "1h"]);
    warm(stage, &mut scribe, &slow.path());
    save(&mut scribe, &slow.path(), &["slow"]);
    let keeper = named(stage, "synclater-keep");
    (slow, scribe, keeper)
}

/// The kernel tells of a lost write once.
#[test]
fn a_lost_write_is_known_of_a_keeper_that_was_killed_while_another_disk_took_its_time() {
    let name = "a_lost_write_is_known_of_a_keeper_that_was_killed_while_another_disk_took_its_time";
    if !as_root(name) {
        return;
    }
    let (bad, stage) = (SlowDisk::new("ext4", 64, 0), Stage::new("two-disks"));
    let (slow, mut scribe, keeper) = on_slow_disk(&stage, 3000);
    warm(&stage, &mut scribe, &bad.path());
    save(&mut scribe, &bad.path(), &["lost"]);
    let like = bad.path().with_file_name("img.bad");
    std::fs::write(&like, "kkkkkkkk").expect("what a saved file is full of");
    slow.becomes_slow();
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || waits_for_one(keeper)));
    kill_process(keeper, Signal::KILL).expect("it lives");
    std::fs::remove_file(like).expect("it was bad");
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert_eq!(stage.entries().len(), 1, "{told}");
    scribe.end();
    drop(slow);
}

/// Loop devices, and sticks, get the names of others that are gone.
#[test]
fn what_was_lost_on_another_that_had_the_name_of_its_device_is_not_its_own() {
    if !as_root("what_was_lost_on_another_that_had_the_name_of_its_device_is_not_its_own") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("same-name"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    super::ledger::kill(&stage, &scribe);
    let (path, text) = super::ledger::entry_of(&stage);
    let mut entry: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    entry["error"] = "EIO".into();
    std::fs::write(&path, entry.to_string()).expect("an entry");
    let settle = || stage.ask(&["settle", &disk.path().to_string_lossy()]);
    let told = settle();
    assert_eq!(told.status.code(), Some(125), "{told}");
    let all = entry["filesystems"].as_array_mut().expect("some");
    let its = all.iter_mut().find(|fs| fs["source"] == *disk.device());
    let its = its.expect("it owes there");
    assert!(its["uuid"].is_string(), "{its}");
    its["uuid"] = "11111111-1111-1111-1111-111111111111".into();
    std::fs::write(&path, entry.to_string()).expect("an entry");
    settle().must_succeed();
}

/// A session that owes on a disk that is slow, and loses what it was told, from now on.
fn on_lossy_disk(stage: &Stage) -> (SlowDisk, Running, Pid) {
    let (disk, scribe, keeper) = on_slow_disk(stage, 2000);
    is_lossy(&disk);
    (disk, scribe, keeper)
}

fn is_lossy(disk: &SlowDisk) {
    let like = disk.path().with_file_name("img.bad");
    std::fs::write(like, "kkkkkkkk").expect("what a saved file is full of");
    disk.becomes_slow();
}

/// What settled it lives on, and is the only one that the kernel has told.
fn is_told_once_more(stage: &Stage, disk: &SlowDisk) {
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    std::fs::remove_file(disk.path().with_file_name("img.bad")).expect("it was bad");
    std::fs::write(disk.quick(), "").expect("it is quick again");
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert_eq!(stage.entries().len(), 1, "{told}");
}

#[test]
fn a_lost_write_is_known_though_the_keeper_is_killed_while_it_settles() {
    if !as_root("a_lost_write_is_known_though_the_keeper_is_killed_while_it_settles") {
        return;
    }
    let stage = Stage::new("orphaned-settle");
    let (disk, mut scribe, keeper) = on_lossy_disk(&stage);
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || waits_for_one(keeper)));
    let settling = children(keeper, "");
    kill_process(keeper, Signal::KILL).expect("it lives");
    assert!(until(LIMIT, || settling.iter().all(is_gone)));
    is_told_once_more(&stage, &disk);
    scribe.end();
}

#[test]
fn a_lost_write_is_known_though_both_are_killed_while_the_supervisor_settles() {
    if !as_root("a_lost_write_is_known_though_both_are_killed_while_the_supervisor_settles") {
        return;
    }
    let stage = Stage::new("both-killed");
    let (disk, mut scribe, keeper) = on_lossy_disk(&stage);
    let mut settle = Running::start(&stage, stage.synclater(&["settle", &stage.id()]));
    assert!(until(LIMIT, || waits_for_disk(scribe.pid())));
    let settling = children(scribe.pid(), "synclater");
    kill_all(&[scribe.pid(), keeper]);
    assert!(until(LIMIT, || settling.iter().all(is_gone)));
    is_told_once_more(&stage, &disk);
    settle.end();
    scribe.end();
}

/// The entry has no room for it, and the session is over.
#[test]
fn a_lost_write_is_known_though_run_is_interrupted_twice_and_its_ledger_is_full() {
    if !as_root("a_lost_write_is_known_though_run_is_interrupted_twice_and_its_ledger_is_full") {
        return;
    }
    let stage = Stage::new("twice-and-full");
    let ledger = SmallLedger::of(&stage);
    let (disk, mut scribe, _) = on_lossy_disk(&stage);
    ledger.fill();
    scribe.no_more();
    assert!(until(LIMIT, || waits_for_disk(scribe.pid())));
    let settling = children(scribe.pid(), "synclater");
    for _ in 0..2 {
        scribe.send(Signal::INT);
        crate::sessions::stage::pass(Duration::from_millis(100));
    }
    assert_eq!(scribe.end().status.code(), Some(125));
    assert!(until(LIMIT, || settling.iter().all(is_gone)));
    ledger.make_room();
    is_told_once_more(&stage, &disk);
}

/// A `settle` in a dead session's place on a lossy disk, ended by `end`, which knows what settles.
fn a_settle_is_ended(name: &str, end: impl Fn(&Running, &[Pid])) {
    if !as_root(name) {
        return;
    }
    let stage = Stage::new("interrupted-settle");
    let (disk, mut scribe, _) = on_lossy_disk(&stage);
    super::ledger::kill(&stage, &scribe);
    let mut settle = Running::start(&stage, stage.synclater(&["settle"]));
    // The disk that the stage lies on is quick, and settled before.
    let settling = || children(settle.pid(), "");
    let stays = || {
        let before = settling();
        crate::sessions::stage::pass(Duration::from_millis(300));
        waits_for_one(settle.pid()) && settling() == before
    };
    assert!(until(LIMIT, stays));
    let settling = settling();
    end(&settle, &settling);
    settle.end();
    is_told_once_more(&stage, &disk);
    scribe.end();
}

#[test]
fn a_lost_write_is_known_though_the_settle_in_its_place_is_interrupted() {
    let name = "a_lost_write_is_known_though_the_settle_in_its_place_is_interrupted";
    a_settle_is_ended(name, |settle, settling| {
        // As a service is stopped; a terminal sends SIGINT to the whole group.
        for pid in [settling, &[settle.pid()]].concat() {
            kill_process(pid, Signal::TERM).expect("it lives");
        }
        assert!(until(LIMIT, || settling.iter().all(is_gone)));
    });
}

#[test]
fn a_lost_write_is_known_though_the_settle_in_its_place_stood_still_and_was_ended() {
    let name = "a_lost_write_is_known_though_the_settle_in_its_place_stood_still_and_was_ended";
    a_settle_is_ended(name, |settle, settling| {
        settle.send(Signal::STOP);
        assert!(until(LIMIT, || settling.iter().all(is_gone)));
        settle.send(Signal::TERM);
        settle.send(Signal::CONT);
    });
}

/// Its run folder is gone with it, as that of a user who has logged out: the entry alone is left.
fn lose_run_folder(stage: &Stage) {
    std::fs::remove_dir_all(stage.run_dir()).expect("the run folder");
}

#[test]
fn a_lost_write_is_known_in_another_run_folder_than_the_keepers() {
    if !as_root("a_lost_write_is_known_in_another_run_folder_than_the_keepers") {
        return;
    }
    let stage = Stage::new("keeper-was-told");
    let (disk, mut scribe, keeper) = on_lossy_disk(&stage);
    // For longer than its lease: then its keeper settles.
    scribe.send(Signal::STOP);
    assert!(until(LIMIT, || waits_for_disk(keeper)));
    let settling = children(keeper, "");
    assert!(until(LIMIT, || settling.iter().all(is_gone)));
    kill_all(&[keeper, scribe.pid()]);
    lose_run_folder(&stage);
    is_told_once_more(&stage, &disk);
    scribe.end();
}

#[test]
fn a_lost_write_is_known_though_who_waits_for_it_stands_still() {
    if !as_root("a_lost_write_is_known_though_who_waits_for_it_stands_still") {
        return;
    }
    let stage = Stage::new("stands-still");
    let (disk, mut scribe, keeper) = on_lossy_disk(&stage);
    let mut settle = Running::start(&stage, stage.synclater(&["settle", &stage.id()]));
    assert!(until(LIMIT, || waits_for_disk(scribe.pid())));
    let settling = waiting_for_disk(scribe.pid());
    scribe.send(Signal::STOP);
    kill_process(keeper, Signal::KILL).expect("it lives");
    assert!(until(LIMIT, || settling.iter().all(is_gone)));
    kill_all(&[scribe.pid()]);
    lose_run_folder(&stage);
    is_told_once_more(&stage, &disk);
    settle.end();
    scribe.end();
}

#[test]
fn a_lost_write_is_known_to_what_is_left_of_a_session_though_a_path_was_settled() {
    let name = "a_lost_write_is_known_to_what_is_left_of_a_session_though_a_path_was_settled";
    if !as_root(name) {
        return;
    }
    let stage = Stage::new("path-was-told");
    let (disk, mut scribe, _) = on_lossy_disk(&stage);
    super::ledger::kill(&stage, &scribe);
    lose_run_folder(&stage);
    let path = disk.path().display().to_string();
    let told = stage.ask(&["settle", &path]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    is_told_once_more(&stage, &disk);
    scribe.end();
}

/// Who is told has not noted it yet where the ledger's disk takes its time.
#[test]
fn a_lost_write_is_known_though_a_path_is_settled_beside_what_is_left() {
    if !as_root("a_lost_write_is_known_though_a_path_is_settled_beside_what_is_left") {
        return;
    }
    let (stage, ledger) = (Stage::new("path-beside"), SlowDisk::new("ext4", 64, 300));
    let state = ledger.path().join("state");
    let disk = SlowDisk::new("ext4", 64, 0);
    let mut command = session(&stage, &["--until", "1h"]);
    command.env("SYNCLATER_STATE_DIR", &state);
    command.arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    warm(&stage, &mut scribe, &disk.path());
    save(&mut scribe, &disk.path(), &["lost"]);
    let like = disk.path().with_file_name("img.bad");
    std::fs::write(&like, "kkkkkkkk").expect("what a saved file is full of");
    super::ledger::kill(&stage, &scribe);
    lose_run_folder(&stage);
    let path = disk.path().display().to_string();
    let with_ledger = |words: &[&str]| {
        let mut command = stage.synclater(words);
        command.env("SYNCLATER_STATE_DIR", &state);
        command
    };
    let mut all = Running::start(&stage, with_ledger(&["settle"]));
    let mut one = Running::start(&stage, with_ledger(&["settle", &path]));
    let (all, one) = (all.end(), one.end());
    let is_told = [&all, &one].iter().any(|t| t.status.code() == Some(125));
    assert!(is_told, "{all}\n{one}");
    std::fs::remove_file(like).expect("it was bad");
    let told = run(&mut with_ledger(&["settle"]));
    assert_eq!(told.status.code(), Some(125), "{told}");
    scribe.end();
}

#[test]
fn a_lost_write_is_known_to_each_dead_session_that_owes_there() {
    if !as_root("a_lost_write_is_known_to_each_dead_session_that_owes_there") {
        return;
    }
    let (one, other) = (Stage::new("one-of-two"), Stage::new("other-of-two"));
    let (disk, mut first, _) = on_slow_disk(&one, 2000);
    let mut command = session(&other, &["--until", "1h"]);
    command.env("SYNCLATER_STATE_DIR", one.state());
    command.arg(tool("scribe"));
    let mut second = Running::start(&other, command);
    second.be_ready();
    warm(&other, &mut second, &disk.path());
    is_lossy(&disk);
    for (stage, scribe) in [(&one, &first), (&other, &second)] {
        super::ledger::kill(stage, scribe);
        lose_run_folder(stage);
    }
    let told = one.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert_eq!(one.entries().len(), 2, "{told}");
    first.end();
    second.end();
}

#[test]
fn what_others_were_told_is_said_by_the_session_that_owes_there() {
    let stage = Stage::new("heard");
    let mut scribe = scribe(&stage, &["--until", "1h"]);
    save(&mut scribe, &stage.work(), &["a"]);
    let id = stage.id();
    stage.ask(&["settle", &id]).must_succeed();
    let note = note_of_others(&stage);
    std::fs::write(note, "EIO").expect("a note");
    for ask in [&["settle", &id][..], &["set", &id, "--until", "now"]] {
        let told = stage.ask(ask);
        assert_eq!(told.status.code(), Some(125), "{told}");
    }
    // What was promised before stays so.
    stage.ask(&["set", &id, "--until", "never"]).must_succeed();
    kill_all(&stage.of_synclater());
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert_eq!(stage.entries().len(), 1, "{told}");
    scribe.end();
}

/// Where a command of another run folder notes what it was told.
fn note_of_others(stage: &Stage) -> PathBuf {
    let entry = stage.entries().remove(0);
    let text = std::fs::read_to_string(&entry).expect("the entry");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let token = json["token"].as_str().expect("a token");
    entry.with_extension(format!("{token}.heard"))
}
