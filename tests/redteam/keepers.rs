//! Keepers: what they settle while supervisors stand still or are dead, also where they are killed
//! themselves, have too little, or wait for a disk.

use super::broken::owing;
use super::ledger::{has_ended, is_settled, kill};
use super::told::on_slow_disk;
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{Disk, SlowDisk, SmallDisk};
use crate::sessions::death::children;
use crate::sessions::stage::{as_root, give_to_nobody, AS_NOBODY};
use crate::wait::until;
use rustix::process::{getrlimit, kill_process, prlimit, Pid, Resource, Rlimit, Signal};

/// The process of a session that takes this name, which it does by itself.
pub(super) fn named(stage: &Stage, name: &str) -> Pid {
    let mut found = None;
    let lives = until(LIMIT, || {
        let all = stage.of_synclater();
        found = all.into_iter().find(|pid| is_named(*pid, name));
        found.is_some()
    });
    assert!(lives, "nobody of the session is {name}");
    found.expect("it lives")
}

fn is_named(pid: Pid, name: &str) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    comm.is_ok_and(|comm| comm.trim() == name)
}

/// Whether it settles: then it has a child.
fn has_a_child(pid: Pid) -> bool {
    let pid = pid.as_raw_nonzero();
    let path = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(path).is_ok_and(|t| !t.trim().is_empty())
}

#[test]
fn what_a_keeper_took_that_was_killed_while_it_settled_is_known() {
    if !as_root("what_a_keeper_took_that_was_killed_while_it_settled_is_known") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::new("taken"));
    let mut scribe = owing(&disk, &stage);
    let (supervisor, keeper) = (scribe.pid(), named(&stage, "synclater-keep"));
    kill_process(supervisor, Signal::STOP).expect("it lives");
    // At once: it settles for some milliseconds. Where it is missed, the keeper has told.
    let limit = Instant::now() + Duration::from_secs(5);
    while !has_a_child(keeper) && Instant::now() < limit {}
    kill_process(keeper, Signal::KILL).expect("it lives");
    kill_process(supervisor, Signal::CONT).expect("it lives");
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}\n{:#}", stage.report());
}

/// How many files it may open, from now on; what that was before.
pub(super) fn set_limit(pid: Pid, files: Option<u64>) -> Option<u64> {
    let limit = |most| Rlimit {
        current: files,
        maximum: most,
    };
    let hard = getrlimit(Resource::Nofile).maximum;
    let before = prlimit(Some(pid), Resource::Nofile, limit(hard));
    before.expect("root may").current
}

/// With too many files open the kernel leaves out what a message brings.
#[test]
fn a_keeper_that_could_not_take_a_file_system_closes_no_entry() {
    if !as_root("a_keeper_that_could_not_take_a_file_system_closes_no_entry") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("too-many-files"));
    let mut scribe = scribe(&stage, &[]);
    let keeper = named(&stage, "synclater-keep");
    let is_open = |fd: &u64| Path::new(&format!("/proc/{keeper}/fd/{fd}")).is_symlink();
    let full = (0..).find(|fd| !is_open(fd));
    let before = set_limit(keeper, full);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    set_limit(keeper, before);
    scribe.send(Signal::KILL);
    let ended = || !stage.of_synclater().contains(&keeper);
    assert!(until(LIMIT, ended), "the keeper lives");
    let settle = stage.ask(&["settle"]);
    is_settled(&stage, &settle);
    are_whole(disk.cut().path(), &["a", "warm"]);
}

/// It was killed while no other could be had.
#[test]
fn a_new_keeper_is_told_of_what_owed_before_it() {
    if !as_root("a_new_keeper_is_told_of_what_owed_before_it") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("next-keeper"));
    let mut scribe = scribe(&stage, &["--until", "1h"]);
    warm(&stage, &mut scribe, disk.path());
    let supervisor = scribe.pid();
    let lives = |pid: Pid| stage.of_synclater().contains(&pid);
    let keeper = named(&stage, "synclater-keep");
    let before = set_limit(supervisor, Some(3));
    kill_process(keeper, Signal::KILL).expect("it lives");
    assert!(until(LIMIT, || !lives(keeper)));
    set_limit(supervisor, before);
    stage.ask(&["set", &stage.id(), "-u", "2h"]).must_succeed();
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    scribe.send(Signal::KILL);
    stage.ask(&["settle"]).must_succeed();
    are_whole(disk.cut().path(), &["a", "warm"]);
}

/// A socket takes some 300 messages.
#[test]
fn a_keeper_that_stands_still_is_replaced_before_it_misses_a_word() {
    if !as_root("a_keeper_that_stands_still_is_replaced_before_it_misses_a_word") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("deaf"));
    let mut scribe = scribe(&stage, &["--until", "never"]);
    warm(&stage, &mut scribe, disk.path());
    let keeper = named(&stage, "synclater-keep");
    kill_process(keeper, Signal::STOP).expect("it lives");
    let id = stage.id();
    let set = |dial: &str| stage.ask(&["set", &id, "-u", dial]).must_succeed();
    for _ in 0..400 {
        set("never");
    }
    set("exit");
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    scribe.send(Signal::KILL);
    // Where it is still there, it goes by what it has heard.
    let _ = kill_process(keeper, Signal::CONT);
    stage.ask(&["settle"]).must_succeed();
    are_whole(disk.cut().path(), &["a"]);
}

fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.ok()?.rsplit(") ").next()?.chars().next()
}

/// Whether it waits in the kernel, for a disk.
pub(super) fn is_in_kernel(pid: Pid) -> bool {
    state(pid) == Some('D')
}

/// Whether of what `keeper` settles only one file system is left, which takes its time.
pub(super) fn waits_for_one(keeper: Pid) -> bool {
    let states: Vec<_> = children(keeper, "").into_iter().filter_map(state).collect();
    states.iter().filter(|s| **s == 'D').count() == 1
        && states.iter().all(|s| matches!(s, 'D' | 'Z'))
}

#[test]
fn a_keeper_that_waits_for_one_disk_hears_that_the_supervisor_is_dead() {
    if !as_root("a_keeper_that_waits_for_one_disk_hears_that_the_supervisor_is_dead") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("one-hangs"));
    let (slow, mut scribe, keeper) = on_slow_disk(&stage, 12_000);
    warm(&stage, &mut scribe, disk.path());
    slow.becomes_slow();
    scribe.send(Signal::STOP);
    assert!(until(LIMIT, || waits_for_one(keeper)));
    scribe.send(Signal::CONT);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    scribe.send(Signal::KILL);
    let killed = Instant::now();
    let is_there = || disk.cut().path().join("a").exists();
    assert!(until(LIMIT, is_there));
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    scribe.end();
    std::fs::write(slow.quick(), "").expect("it is quick again");
    drop(slow);
}

#[test]
fn a_keeper_that_can_begin_no_process_settles_by_itself() {
    if !as_root("a_keeper_that_can_begin_no_process_settles_by_itself") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("no-process"));
    let mut scribe = scribe(&stage, &["--until", "1h"]);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    let keeper = named(&stage, "synclater-keep");
    set_limit(keeper, Some(3));
    scribe.send(Signal::KILL);
    let ended = || !stage.of_synclater().contains(&keeper);
    assert!(until(LIMIT, ended), "the keeper lives");
    are_whole(disk.cut().path(), &["a"]);
    scribe.end();
    stage.ask(&["settle"]).must_succeed();
}

/// It was killed while the first entry was being written, and no other could be had.
#[test]
fn nothing_is_relaxed_without_a_keeper_behind_the_first_entry() {
    if !as_root("nothing_is_relaxed_without_a_keeper_behind_the_first_entry") {
        return;
    }
    let stage = Stage::new("first-entry");
    let ledger = SlowDisk::new("ext4", 64, 1500);
    let mut scribe = scribe_with_ledger_on(&stage, &ledger, "1s");
    // Whoever writes the entry is there: a supervisor without descriptors starts nobody.
    assert!(until(LIMIT, || ledger_has(&ledger, "lock")));
    let keeper = named(&stage, "synclater-keep");
    let before = set_limit(scribe.pid(), Some(3));
    kill_process(keeper, Signal::KILL).expect("it lives");
    assert!(until(LIMIT, || ledger_has(&ledger, "json")));
    // A second flush follows behind the name of the entry; two heartbeats are behind that.
    crate::sessions::stage::pass(Duration::from_secs(4));
    set_limit(scribe.pid(), before);
    let counted = stage.counted();
    save(&mut scribe, &stage.work(), &["b"]);
    assert_eq!(stage.counted().1, counted.1, "{:#}", stage.session());
    warm(&stage, &mut scribe, &stage.work());
    ends_well(&stage, &mut scribe);
}

/// Both are killed, and the supervisor cannot notice that of the other one.
fn kill_with_keeper(stage: &Stage, scribe: &Running) {
    let keeper = named(stage, "synclater-keep");
    scribe.send(Signal::STOP);
    kill_process(keeper, Signal::KILL).expect("it lives");
    scribe.send(Signal::KILL);
}

/// A copy has the UUID, and what is owed is not on it.
#[test]
fn what_a_dead_session_owes_is_not_found_on_a_copy() {
    if !as_root("what_a_dead_session_owes_is_not_found_on_a_copy") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("on-a-copy"));
    let copy = disk.cut();
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a", "b", "c"]);
    kill_with_keeper(&stage, &scribe);
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(told.stderr.contains("is not mounted here"), "{told}");
    drop(copy);
    scribe.end();
}

/// A btrfs shows the present name of its device: whoever scans that by another one changes it.
#[test]
fn what_a_dead_session_owes_is_found_whatever_the_name_of_its_device_is_by_now() {
    let name = "what_a_dead_session_owes_is_found_whatever_the_name_of_its_device_is_by_now";
    if !as_root(name) {
        return;
    }
    let (disk, stage) = (Disk::new("btrfs", 160), Stage::new("other-name"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a", "b", "c"]);
    kill_with_keeper(&stage, &scribe);
    let (before, other) = (disk.device(), stage.file("other"));
    let number = rustix::fs::stat(before.as_str()).expect("a device").st_rdev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let mut make = clean("mknod");
    make.arg(&other).arg("b");
    run(make.args([major.to_string(), minor.to_string()])).must_succeed();
    run(clean("btrfs").args(["device", "scan"]).arg(&other)).must_succeed();
    assert_ne!(disk.device(), before);
    let told = stage.ask(&["settle"]).must_succeed();
    assert!(told.stderr.contains("had been killed; synced"), "{told}");
    are_whole(disk.cut().path(), &["a", "b", "c"]);
    assert!(stage.entries().is_empty());
    scribe.end();
}

#[test]
fn what_a_keeper_is_at_is_said_to_be_settled_yet() {
    let stage = Stage::new("at-it");
    let mut scribe = scribe(&stage, &[]);
    let keeper = named(&stage, "synclater-keep");
    kill_process(keeper, Signal::STOP).expect("it lives");
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || has_ended(&scribe)), "the supervisor lives");
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stdout.contains("may be at it"), "{status}");
    kill_process(keeper, Signal::CONT).expect("it lives");
    assert!(until(LIMIT, || stage.entries().is_empty()), "it stays open");
    let _ = scribe.end();
}

/// On XFS a file of one's own is needed, and its top folder is mostly root's.
#[test]
fn the_dead_are_settled_for_where_their_user_may_write_in_a_folder_alone() {
    if !as_root("the_dead_are_settled_for_where_their_user_may_write_in_a_folder_alone") {
        return;
    }
    let (disk, stage) = (Disk::new("xfs", 320), Stage::for_nobody("home"));
    let home = disk.path().join("home");
    std::fs::create_dir(&home).expect("a folder");
    give_to_nobody(&home);
    crate::programs::let_others_in(disk.path());
    let [ours, its] = [Path::new(SYNCLATER), &tool("scribe")].map(|program| stage.copy_of(program));
    let as_nobody = |words: &[&str]| {
        let mut command = stage.with_folders(AS_NOBODY[0]);
        command.env("HOME", &home);
        command.args(&AS_NOBODY[1..]).arg(&ours).args(words);
        command
    };
    let mut command = as_nobody(&["run", "--quiet", "--"]);
    command.arg(its);
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    let owes = until(LIMIT, || {
        save(&mut scribe, &home, &["warm"]);
        stage.entries().len() == 1
    });
    assert!(owes, "it owes nothing");
    let is_keeper = |pid: &Pid| is_named(*pid, "synclater-keep");
    let is_kept = || stage.of_synclater().iter().any(is_keeper);
    assert!(until(LIMIT, is_kept), "it has no keeper");
    kill(&stage, &scribe);
    let without = run(as_nobody(&["settle"]).env("HOME", "/nowhere"));
    assert_eq!(without.status.code(), Some(125), "{without}");
    assert_eq!(without.stderr.matches("TMPDIR=").count(), 1, "{without}");
    let settle = run(&mut as_nobody(&["settle"]));
    assert_eq!(settle.status.code(), Some(0), "{settle}");
    assert!(settle.stderr.contains("synced"), "{settle}");
}
