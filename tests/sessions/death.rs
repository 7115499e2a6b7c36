//! Supervisors and keepers that are killed or stopped, and who waits for them.

use super::hammered::sample;
use super::stage::{as_root, program, progress, Running, Stage, SYNCLATER};
use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::harness::disk::SlowDisk;
use crate::harness::limits::count;
use crate::kernel::stage::can_watch;
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::path::Path;

/// A child of this name.
pub(super) fn child(parent: Pid, name: &str) -> Option<Pid> {
    children(parent, name).into_iter().next()
}

/// The child that takes this name, which it does by itself: a session that puts off need not have
/// waited for that. The kernel's list of children may also miss one while another one ends.
pub fn named_child(parent: Pid, name: &str) -> Pid {
    let mut found = None;
    let is_there = until(LIMIT, || {
        found = child(parent, name);
        found.is_some()
    });
    assert!(is_there, "{name} is no child of {parent:?}");
    found.expect("it is there")
}

/// All children of this name.
pub fn children(parent: Pid, name: &str) -> Vec<Pid> {
    let tasks = format!("/proc/{0}/task/{0}/children", parent.as_raw_nonzero());
    let children = std::fs::read_to_string(tasks).expect("children");
    let of = |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let is_it = |pid: &&str| of(pid).is_ok_and(|n| n.starts_with(name));
    let its = children.split_whitespace().filter(is_it);
    its.filter_map(|pid| Pid::from_raw(pid.parse().expect("a number")))
        .collect()
}

/// Whether it has ended, also where nobody has waited for it yet.
pub fn is_gone(pid: &Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |s| s.contains(") Z "))
}

#[test]
fn settle_waits_for_a_session_that_begins() {
    let stage = Stage::new("settling-begins");
    let mut command = stage.with_folders("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=bind"]);
    command.args(["-e", "inject=bind:delay_enter=500ms"]);
    command.args([SYNCLATER, "run", "--quiet", "-u", "exit", "--", "true"]);
    let mut victim = Running::start(&stage, command);
    let begins = || {
        stage
            .left_in_run_dir()
            .iter()
            .any(|d| d.join("lock").exists())
    };
    assert!(until(LIMIT, begins));
    stage.ask(&["settle"]).must_succeed();
    victim.end().must_succeed();
}

#[test]
fn settle_waits_for_the_keeper_of_a_session_that_was_killed() {
    if !as_root("settle_waits_for_the_keeper_of_a_session_that_was_killed") {
        return;
    }
    for again in [false, true] {
        let (disk, stage) = (
            SlowDisk::new("ext4", 64, 1000),
            Stage::new("settling-keeper"),
        );
        let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
        stage.warm(&mut victim);
        victim.send(Signal::KILL);
        // Whoever comes second waits for whoever came first, too.
        let beside = again.then(|| Running::start(&stage, stage.synclater(&["settle"])));
        // The ledger's mount has another number there.
        let mut elsewhere = stage.with_folders("unshare");
        elsewhere.args(["-m", SYNCLATER, "settle"]);
        let settle = run(&mut elsewhere).must_succeed();
        let open = stage.entries();
        assert!(open.is_empty(), "{open:?} is open behind: {settle}");
        if let Some(mut beside) = beside {
            beside.end().must_succeed();
        }
        victim.end();
    }
}

#[test]
fn a_session_that_is_killed_before_it_has_answered_is_said_to_have_ended() {
    let stage = Stage::new("unanswered");
    let mut victim = stage.demand(&["-u", "1h"]);
    stage.warm(&mut victim);
    let id = stage.id();
    victim.send(Signal::STOP);
    let mut asks = Running::start(&stage, stage.synclater(&["settle", &id]));
    let fds = format!("/proc/{}/fd", asks.pid().as_raw_nonzero());
    let has_a_socket = || {
        let all = std::fs::read_dir(&fds).into_iter().flatten().flatten();
        let mut all = all.filter_map(|e| std::fs::read_link(e.path()).ok());
        all.any(|to| to.to_string_lossy().starts_with("socket:"))
    };
    assert!(until(LIMIT, has_a_socket), "{}", asks.stderr());
    victim.send(Signal::KILL);
    let told = asks.end();
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(
        told.stderr.contains("ended before it had answered"),
        "{told}"
    );
    assert!(!told.stderr.contains("is as it was"), "{told}");
    victim.end();
}

/// A session whose disk takes its time, and a `settle` with a ledger in `state` that waits for it.
fn being_settled(stage: &Stage, disk: &SlowDisk, state: &Path) -> (Running, Running) {
    let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
    stage.warm(&mut victim);
    let mut command = stage.with_folders("timeout");
    command
        .args(["20s", SYNCLATER, "settle"])
        .env("SYNCLATER_STATE_DIR", state);
    let settle = Running::start(stage, command);
    assert!(until(LIMIT, || waits_for_disk(victim.pid())));
    (victim, settle)
}

/// Whether a child of `of` waits for a disk.
pub fn waits_for_disk(of: Pid) -> bool {
    !waiting_for_disk(of).is_empty()
}

/// The children of a process that do.
pub fn waiting_for_disk(of: Pid) -> Vec<Pid> {
    let stat = |pid: &Pid| std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let waits = |pid: &Pid| stat(pid).is_ok_and(|s| s.contains(") D "));
    children(of, "").into_iter().filter(waits).collect()
}

/// The child of a process that waits for a disk at several looks in a row: it waits for the flush,
/// and is there still.
pub fn helper_of(of: Pid) -> Pid {
    let (mut helper, mut looks) = (None, 0);
    let waits = until(LIMIT, || {
        let now = waiting_for_disk(of).first().copied();
        looks = if now.is_some() && now == helper {
            looks + 1
        } else {
            0
        };
        helper = now;
        looks == 3
    });
    assert!(waits, "nobody settles for {of:?}");
    helper.expect("it waits")
}

/// Ends a run by two interrupts: its entry stays open.
fn interrupt_twice(victim: &mut Running) {
    // The first one ends the command, the second its settling.
    victim.send(Signal::TERM);
    assert!(until(LIMIT, || child(victim.pid(), "demand").is_none()));
    victim.send(Signal::TERM);
    let run = victim.end();
    assert_eq!(run.status.code(), Some(125), "{run}");
}

#[test]
fn settle_says_no_good_of_a_session_that_ends_without_having_settled() {
    if !as_root("settle_says_no_good_of_a_session_that_ends_without_having_settled") {
        return;
    }
    for ledger in ["state", "another"] {
        let (disk, stage) = (SlowDisk::new("ext4", 64, 1500), Stage::new("settling-ends"));
        let (mut victim, mut settle) = being_settled(&stage, &disk, &stage.file(ledger));
        interrupt_twice(&mut victim);
        let settle = settle.end().must_succeed();
        assert!(settle.stdout.contains("ended meanwhile"), "{settle}");
        let open = stage.entries();
        assert!(open.is_empty(), "{open:?} is open behind: {settle}");
    }
}

/// What the disk has answered to it may be an error that it tells nobody else.
#[test]
fn what_a_killed_helper_was_settling_is_not_said_to_be_durable() {
    if !as_root("what_a_killed_helper_was_settling_is_not_said_to_be_durable") {
        return;
    }
    let (disk, stage) = (
        SlowDisk::new("ext4", 64, 500),
        Stage::new("settling-killed"),
    );
    let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
    stage.warm(&mut victim);
    interrupt_twice(&mut victim);
    let open = stage.entries();
    assert_eq!(open.len(), 1);
    let settled_by_a_killed_one = |what: &[&Path]| {
        let mut command = stage.synclater(&["settle"]);
        command.args(what);
        let mut settle = Running::start(&stage, command);
        let helper = || waiting_for_disk(settle.pid()).first().copied();
        assert!(until(LIMIT, || helper().is_some()), "{}", settle.stderr());
        kill_process(helper().expect("it waits"), Signal::KILL).expect("it is there");
        settle.end()
    };
    let says_so = |told: &Outcome| {
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert!(told.stderr.contains("was killed, and with it"), "{told}");
    };
    says_so(&settled_by_a_killed_one(&[]));
    // It is known from then on.
    says_so(&stage.ask(&["settle"]));
    assert_eq!(stage.entries(), open);
    let id = open[0].file_stem().expect("a name").to_string_lossy();
    let id = id.split('.').next().expect("an id");
    stage.ask(&["status", "--forget", id]).must_succeed();
    says_so(&settled_by_a_killed_one(&[&disk.path()]));
}

/// A session of a run folder of its own, with the ledger of `ledger`.
fn beside(ledger: &Stage, stage: &Stage, disk: &SlowDisk) -> Running {
    let mut command = stage.synclater(&["run", "--quiet", "-u", "exit"]);
    command.args(stage.json()).arg("--").arg(program("demand"));
    command.arg(disk.path());
    command.env("SYNCLATER_STATE_DIR", ledger.state());
    let mut victim = Running::start(stage, command);
    victim.be_ready();
    victim
}

/// Has whoever settles for a session be killed while its disk answers, and then others end: what
/// the session says, and one that owes there, with its report, and one that has put off nothing.
fn beside_a_killed_settle(by_keeper: bool) -> [Outcome; 3] {
    let [stage, owing, idle] = ["settling-beside", "owing", "idle"].map(Stage::new);
    let disk = SlowDisk::new("ext4", 64, 500);
    let mut others = [&owing, &idle].map(|other| beside(&stage, other, &disk));
    owing.warm(&mut others[0]);
    // It has an entry, and is real.
    assert_eq!(others[1].sync("file"), 0);
    assert!(until(LIMIT, || stage.entries().len() == 2));
    let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
    stage.warm(&mut victim);
    let run = victim.pid();
    let who = if by_keeper {
        child(run, "synclater-keep").expect("a keeper")
    } else {
        run
    };
    victim.send(if by_keeper {
        Signal::KILL
    } else {
        Signal::TERM
    });
    kill_process(helper_of(who), Signal::KILL).expect("it is there");
    let victim = victim.end();
    // Until the keeper has heard of it, it is known to nobody.
    assert!(until(LIMIT, || !by_keeper || is_gone(&who)));
    assert_eq!(idle.counted().1, 0, "it owes something");
    let [owes, owes_nothing] = others.map(|mut other| other.end());
    assert_eq!(owing.report()["error"]["name"], "ECANCELED");
    assert_eq!(owing.report()["error"]["errno"], 125);
    [victim, owes, owes_nothing]
}

#[test]
fn a_killed_settle_of_a_living_session_is_told_to_others_that_owe_there() {
    if !as_root("a_killed_settle_of_a_living_session_is_told_to_others_that_owe_there") {
        return;
    }
    let says_so = |told: &Outcome| {
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert!(told.stderr.contains("was killed, and with it"), "{told}");
    };
    let [its_own, owes, owes_nothing] = beside_a_killed_settle(false);
    says_so(&owes);
    says_so(&its_own);
    owes_nothing.must_succeed();
    let [_, owes, owes_nothing] = beside_a_killed_settle(true);
    says_so(&owes);
    owes_nothing.must_succeed();
}

#[test]
fn settle_knows_the_ledger_of_a_session_that_ends_while_another_is_waited_for() {
    if !as_root("settle_knows_the_ledger_of_a_session_that_ends_while_another_is_waited_for") {
        return;
    }
    let (disk, stage) = (
        SlowDisk::new("ext4", 64, 1500),
        Stage::new("settling-waits"),
    );
    let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
    stage.warm(&mut victim);
    // One that never begins to listen: it comes first, and is waited for.
    let begins = stage.run_dir().join("aaa");
    std::fs::create_dir(&begins).expect("a session's folder");
    std::fs::write(begins.join("lock"), "").expect("its lock file");
    let mut command = stage.synclater(&["settle"]);
    command.env("SYNCLATER_STATE_DIR", stage.file("another"));
    let mut settle = Running::start(&stage, command);
    let wchan = format!("/proc/{}/wchan", settle.pid().as_raw_nonzero());
    let sleeps = || std::fs::read_to_string(&wchan).is_ok_and(|at| at.contains("nanosleep"));
    assert!(until(LIMIT, sleeps));
    interrupt_twice(&mut victim);
    let settle = settle.end().must_succeed();
    let open = stage.entries();
    assert!(open.is_empty(), "{open:?} is open behind: {settle}");
}

#[test]
fn settle_says_no_good_of_a_session_that_ends_while_others_are_settled() {
    if !as_root("settle_says_no_good_of_a_session_that_ends_while_others_are_settled") {
        return;
    }
    let disks = [(); 2].map(|()| SlowDisk::new("ext4", 64, 1500));
    let stage = Stage::new("settling-others");
    let mut number = 0;
    let mut both = disks.each_ref().map(|disk| {
        let mut victim = stage.demand_on(&disk.path(), &["-u", "exit"]);
        number += 1;
        let owes = |s: &&serde_json::Value| s["debt"].as_u64() > Some(0);
        let all_owe = || stage.sessions().iter().filter(owes).count() == number;
        assert!(until(LIMIT, || victim.sync("file") == 0 && all_owe()));
        victim
    });
    // Entries are settled by name: that of the one which goes on is passed by before.
    let supervisor = |r: &Running| u64::from(r.pid().as_raw_nonzero().get().unsigned_abs());
    let sessions = stage.sessions();
    let id = |r: &Running| {
        let its = sessions
            .iter()
            .find(|s| s["pid"].as_u64() == Some(supervisor(r)));
        its.expect("its session")["id"].to_string()
    };
    both.sort_by_key(id);
    let [mut victim, mut before] = both;
    // Nobody is left to settle it.
    let keeper = named_child(before.pid(), "synclater-keep");
    for signal in [Signal::STOP, Signal::KILL] {
        before.send(signal);
        kill_process(keeper, signal).expect("it lives");
    }
    before.end();
    let mut settle = Running::start(&stage, stage.synclater(&["settle"]));
    assert!(until(LIMIT, || waits_for_disk(settle.pid())));
    interrupt_twice(&mut victim);
    let settle = settle.end().must_succeed();
    let open = stage.entries();
    assert!(open.is_empty(), "{open:?} is open behind: {settle}");
}

#[test]
fn a_supervisor_that_stops_while_it_settles_does_not_keep_settle_waiting() {
    if !as_root("a_supervisor_that_stops_while_it_settles_does_not_keep_settle_waiting") {
        return;
    }
    let (disk, stage) = (
        SlowDisk::new("ext4", 64, 1500),
        Stage::new("settling-stopped"),
    );
    let (mut victim, mut settle) = being_settled(&stage, &disk, &stage.state());
    victim.send(Signal::STOP);
    let settle = settle.end();
    victim.send(Signal::CONT);
    assert_eq!(settle.status.code(), Some(125), "{settle}");
    assert!(settle.stderr.contains("is stopped"), "{settle}");
    victim.end().must_succeed();
}

#[test]
fn who_continues_a_stopped_command_alone_continues_its_run() {
    let stage = Stage::new("continued");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    let command = named_child(victim.pid(), "demand");
    for signal in [Signal::STOP, Signal::TSTP] {
        kill_process(command, signal).expect("it runs");
        let is_stopped = || {
            let stat =
                std::fs::read_to_string(format!("/proc/{}/stat", victim.pid().as_raw_nonzero()));
            stat.is_ok_and(|stat| stat.contains(") T "))
        };
        assert!(until(LIMIT, is_stopped), "{signal:?}");
        kill_process(command, Signal::CONT).expect("it is there");
        assert!(until(LIMIT, || !is_stopped()), "{signal:?}");
        stage.warm(&mut victim);
    }
    victim.end().must_succeed();
}

/// Runs a script as leader of a terminal's session until it says something, and stands still if it
/// is to: then the terminal goes.
const HANGS_UP: &str = "\
import os, pty, sys, time
def stands_still(pid):
    children = open(f'/proc/{pid}/task/{pid}/children').read().split()
    stats = [open(f'/proc/{child}/stat').read() for child in children]
    return any(') T ' in stat and '(bash)' in stat for stat in stats)
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], *sys.argv[3:], '--', 'bash', '-c', sys.argv[2]])
os.read(terminal, 100)
while 'STOP' in sys.argv[2] and not stands_still(pid):
    time.sleep(0.01)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";

#[test]
fn a_command_is_told_that_its_terminal_has_gone() {
    is_told_that_the_terminal_has_gone(&["run", "--quiet"]);
}

#[test]
fn a_command_that_the_kernel_records_is_told_that_its_terminal_has_gone() {
    if can_watch("a_command_that_the_kernel_records_is_told_that_its_terminal_has_gone") {
        let record = ["record", "--system", "--quiet", "-o", "/dev/null"];
        is_told_that_the_terminal_has_gone(&record);
    }
}

fn is_told_that_the_terminal_has_gone(words: &[&str]) {
    for stands_still in ["", "kill -STOP $$;"] {
        let stage = Stage::new("hung-up");
        let said = stage.file("said");
        // Its input ends as well then.
        let script = format!(
            "trap 'echo HUP >{}; exit 5' HUP; echo begun; {stands_still} while :; do :; done",
            said.display()
        );
        let mut command = stage.with_folders("timeout");
        command.args(["60", "/usr/bin/python3", "-c", HANGS_UP, SYNCLATER, &script]);
        command.args(words);
        let outcome = run(&mut command).must_succeed();
        assert_eq!(outcome.stdout, "5\n", "{outcome}");
        assert_eq!(std::fs::read_to_string(said).expect("it said"), "HUP\n");
    }
}

/// What changes in a helper of ours that is older than the command hides nothing of that.
#[test]
fn a_helper_that_is_stopped_and_goes_on_keeps_no_end_waiting() {
    for (options, name) in [
        (&["--follow"][..], "synclater-trace"),
        (&[][..], "synclater-keep"),
    ] {
        let stage = Stage::new("helper-stopped");
        let mut victim = stage.demand(options);
        stage.warm(&mut victim);
        for signal in [Signal::STOP, Signal::CONT, Signal::STOP] {
            let helper = named_child(victim.pid(), name);
            kill_process(helper, signal).expect("it runs");
            let is_stopped = || {
                let stat = format!("/proc/{}/stat", helper.as_raw_nonzero());
                std::fs::read_to_string(stat)
                    .expect("its state")
                    .contains(") T ")
            };
            assert!(until(LIMIT, || is_stopped() == (signal == Signal::STOP)));
        }
        let helper = named_child(victim.pid(), name);
        victim.no_more();
        kill_process(helper, Signal::CONT).expect("it is there");
        victim.end().must_succeed();
    }
}

#[test]
fn a_helper_that_is_killed_keeps_no_end_waiting() {
    let stage = Stage::new("helper-killed");
    let gate = stage.file("gate");
    run(clean("mkfifo").arg(&gate)).must_succeed();
    let leaves = format!("cat {} & exit 3", gate.display());
    let words = ["run", "--follow", "--quiet", "-u", "exit", "--"];
    let mut command = stage.synclater(&words);
    command.args(["sh", "-c", &leaves]);
    let mut victim = Running::start(&stage, command);
    let has = |name| child(victim.pid(), name).is_some();
    let is_left = || has("cat") && !has("sh") && has("synclater-atte");
    assert!(until(LIMIT, is_left), "{}", victim.stderr());
    let helper = named_child(victim.pid(), "synclater-atte");
    kill_process(helper, Signal::KILL).expect("it runs");
    let number = helper.as_raw_nonzero().get().unsigned_abs();
    assert!(until(LIMIT, || synclater_sys::process::is_ended(number)));
    std::fs::write(&gate, "").expect("somebody reads");
    let end = victim.end();
    assert_eq!(end.status.code(), Some(3), "{end}");
}

#[test]
fn a_doorbell_whose_listener_is_killed_is_listened_to_again() {
    let stage = Stage::new("bell");
    let mut victim = stage.demand(&["-u", "20ms"]);
    stage.warm(&mut victim);
    let listener = |than: Option<Pid>| {
        let waits_in =
            |pid: &Pid| std::fs::read_to_string(format!("/proc/{}/wchan", pid.as_raw_nonzero()));
        let listens = |pid: &Pid| waits_in(pid).is_ok_and(|at| at.contains("futex"));
        let mut all = children(victim.pid(), "synclater-atte").into_iter();
        all.find(|pid| Some(*pid) != than && listens(pid))
    };
    assert!(until(LIMIT, || listener(None).is_some()));
    for _ in 0..2 {
        let one = listener(None).expect("a listener");
        kill_process(one, Signal::KILL).expect("it runs");
        assert!(until(LIMIT, || listener(Some(one)).is_some()));
    }
    victim.end().must_succeed();
}

#[test]
fn a_session_is_not_cleared_while_its_keeper_settles() {
    if !as_root("a_session_is_not_cleared_while_its_keeper_settles") {
        return;
    }
    let disk = SlowDisk::new("ext4", 64, 1000);
    let stage = Stage::new("keeper-busy");
    let mut victim = stage.demand_on(&disk.path(), &[]);
    stage.warm(&mut victim);
    let lock = stage.run_dir().join(stage.id()).join("lock");
    victim.sync("file");
    victim.send(Signal::KILL);
    let entry = stage.entries();
    let taken = run(clean("flock").arg("-n").arg(lock).args(["echo", "taken"]));
    let settling = stage.entries() == entry;
    assert!(settling, "the keeper was too fast for this test");
    assert_eq!(taken.stdout, "", "another command would clear it away");
    assert!(until(LIMIT, || stage.entries().is_empty()));
    drop(victim);
}

#[test]
fn a_daemon_that_outlives_its_run_is_back_at_now() {
    let stage = Stage::new("daemon");
    let script = "work=$1; shift; setsid \"$@\" & while [ ! -e \"$work/go\" ]; do :; done";
    let mut command = stage.synclater(&["run", "--quiet", "--", "sh", "-c", script, "sh"]);
    command.arg(stage.work());
    let log = stage.traced(&mut command, "fsync", "victim.log");
    command.arg(program("hammer")).arg(stage.work()).arg("2");
    let mut running = Running::start(&stage, command);
    let work = stage.work();
    let relaxed = until(LIMIT, || progress(&work).0 > log.count("fsync") + 1000);
    assert!(relaxed, "{:?}", progress(&work));
    std::fs::write(work.join("go"), "").expect("go");
    running.end().must_succeed();
    let (made, real) = sample(&work, &log);
    assert!(real + 2 >= made, "{made} requests, only {real} real");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
}

#[test]
fn soak_sessions_that_start_at_once_do_not_disturb_each_other() {
    let stage = Stage::new("many");
    let many = count(200, 2000).to_string();
    let script = format!(
        "seq {many} | xargs -P 40 -n 1 sh -c '{SYNCLATER} run --quiet -- true || echo bad' sh"
    );
    let outcome = run(stage.with_folders("sh").args(["-c", &script]));
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        ("", ""),
        "of {many}"
    );
}
