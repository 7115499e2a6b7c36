//! A DURATION: settled in the background, by the age of the oldest request.

use super::death::{children, is_gone, named_child};
use super::stage::{as_root, pass, program, Running, Stage, SyncLog, AS_NOBODY, SYNCLATER};
use crate::harness::command::{clean, run, LIMIT};
use crate::harness::disk::{flushes, SlowDisk};
use crate::harness::limits::is_root;
use crate::harness::victims::tool;
use crate::wait::until;
use rustix::process::{kill_process, Signal};
use std::path::Path;
use std::time::{Duration, Instant};

const T: Duration = Duration::from_millis(800);

/// What a busy machine may take more.
const SLACK: Duration = Duration::from_millis(700);

/// A session at 800 ms under strace, of a user without rights: where the kernel's events may be
/// counted, a write that is lost elsewhere on the machine is a reason to settle in between.
fn unprivileged(stage: &Stage) -> (Running, SyncLog) {
    let work = stage.work();
    let programs = [Path::new(SYNCLATER), &program("demand")].map(|from| {
        let to = work.join(from.file_name().expect("a name"));
        crate::harness::command::copy_program(from, &to);
        to
    });
    let mut command = stage.with_folders("env");
    if is_root() {
        command.args(AS_NOBODY);
    }
    let log = stage.traced(&mut command, "syncfs", "work/synclater.log");
    command.arg(&programs[0]);
    command.args(["run", "--quiet", "-u", "800ms", "--"]);
    command.arg(&programs[1]).arg(&work);
    (Running::start(stage, command), log)
}

#[test]
fn each_debt_is_settled_by_its_own_age_and_not_by_a_tick() {
    let stage = if is_root() {
        Stage::for_nobody("ages")
    } else {
        Stage::new("ages")
    };
    let (mut victim, log) = unprivileged(&stage);
    let warm = until(LIMIT, || {
        assert_eq!(victim.sync("file"), 0);
        log.count("syncfs") > 0
    });
    assert!(warm, "nothing is put off: {}", victim.stderr());
    // Idle times that no period of T, or of a part of it, has in common.
    for idle_ms in [0, 170, 390, 530, 710] {
        // What was owed before is paid by then.
        pass(T + SLACK + Duration::from_millis(idle_ms));
        let before = log.count("syncfs");
        let asked = Instant::now();
        assert_eq!(victim.sync("file"), 0);
        assert!(
            until(LIMIT, || log.count("syncfs") > before),
            "never settled"
        );
        let age = asked.elapsed();
        assert!(age <= T + SLACK, "settled after {age:?}");
        // It may begin early by what settling takes, up to half of T.
        assert!(
            age >= T / 2 - T / 10,
            "after {idle_ms} ms idle: settled after {age:?} already"
        );
    }
    victim.end().must_succeed();
}

#[test]
fn the_oldest_request_is_not_older_than_the_bound() {
    let stage = Stage::new("bound");
    let json = stage.json();
    let mut victim = stage.demand(&["-u", "300ms", &json[0], &json[1]]);
    stage.warm(&mut victim);
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert_eq!(victim.sync("file"), 0);
        let session = stage.session();
        let bound = session["bound_s"].as_f64().expect("a bound");
        assert!(bound >= 0.3, "{session:#}");
        let oldest = session["oldest_s"].as_f64().unwrap_or(0.0);
        assert!(oldest <= bound + SLACK.as_secs_f64(), "{session:#}");
    }
    victim.end().must_succeed();
    let report = stage.report();
    let seconds = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{report:#}"));
    assert!(
        seconds("oldest_s") <= seconds("bound_s") + SLACK.as_secs_f64(),
        "{report:#}"
    );
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
}

/// Who asks right behind the beginning of a settle waits for that one, and for the next.
#[test]
fn the_bound_holds_where_settling_takes_longer_than_the_dial() {
    let name = "the_bound_holds_where_settling_takes_longer_than_the_dial";
    if !as_root(name) {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 64, 400), Stage::new("slow-bound"));
    let mut command = stage.with_folders(SYNCLATER);
    command
        .args(["run", "--quiet", "-u", "100ms"])
        .args(stage.json());
    command.arg("--").arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    let save = format!("save {}", disk.path().join("a").display());
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        scribe.tell(&save);
        assert_eq!(scribe.hear(), "save 0");
    }
    scribe.end().must_succeed();
    let report = stage.report();
    let seconds = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{report:#}"));
    assert!(seconds("bound_s") > 0.8, "{report:#}");
    assert!(
        seconds("oldest_s") <= seconds("bound_s") + 0.1,
        "{report:#}"
    );
}

#[test]
fn a_stricter_dial_is_kept_from_the_age_that_a_debt_has_already() {
    let stage = Stage::new("stricter");
    let mut victim = stage.demand(&["-u", "1h"]);
    stage.warm(&mut victim);
    let id = stage.id();
    stage.ask(&["set", &id, "-u", "500ms"]).must_succeed();
    let paid = until(T + SLACK, || stage.session()["debt"] == 0);
    assert!(paid, "{:#}", stage.session());
    victim.end().must_succeed();
}

#[test]
fn a_debt_is_shown_until_its_settle_has_ended() {
    if !as_root("a_debt_is_shown_until_its_settle_has_ended") {
        return;
    }
    let disk = SlowDisk::new("ext4", 64, 1000);
    let stage = Stage::new("shown");
    let mut victim = stage.demand_on(&disk.path(), &["-u", "100ms"]);
    stage.warm(&mut victim);
    let id = stage.id();
    stage.ask(&["settle", &id]).must_succeed();
    assert_eq!(victim.sync("file"), 0);
    let asked = Instant::now();
    // The flush alone takes a second, so nothing can be durable before.
    while asked.elapsed() < Duration::from_millis(900) {
        let session = stage.session();
        if asked.elapsed() < Duration::from_millis(900) {
            assert_ne!(
                session["debt"],
                0,
                "after {:?}: {session:#}",
                asked.elapsed()
            );
            assert!(session["oldest_s"].is_number(), "{session:#}");
        }
    }
    victim.end().must_succeed();
}

/// While the supervisor stood still its keeper took the debt, and was killed with what settles it.
#[test]
fn what_a_killed_keeper_was_settling_is_settled_by_its_age() {
    if !as_root("what_a_killed_keeper_was_settling_is_settled_by_its_age") {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 64, 500), Stage::new("taken-debt"));
    let mut commits_seldom = clean("mount");
    commits_seldom.args(["-o", "remount,commit=300"]);
    run(commits_seldom.arg(disk.path())).must_succeed();
    let mut victim = stage.demand_on(&disk.path(), &["-u", "10s"]);
    stage.warm(&mut victim);
    assert_eq!(victim.sync("file"), 0);
    let keeper = named_child(victim.pid(), "synclater-keep");
    victim.send(Signal::STOP);
    let mut settling = Vec::new();
    let settles = until(LIMIT, || {
        settling = children(keeper, "");
        let marked = stage.marked();
        settling.iter().any(|pid| marked.contains(pid))
    });
    assert!(settles, "the keeper does nothing");
    for pid in [&[keeper][..], &settling].concat() {
        kill_process(pid, Signal::KILL).expect("it lives");
    }
    assert!(until(LIMIT, || settling.iter().all(is_gone)));
    let before = flushes(&disk.device());
    victim.send(Signal::CONT);
    let is_settled = until(LIMIT, || flushes(&disk.device()) > before);
    assert!(is_settled, "{:#}", stage.session());
    // What the disk has answered to whoever was killed nobody knows.
    let end = victim.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    assert!(end.stderr.contains("was killed, and with it"), "{end}");
}
