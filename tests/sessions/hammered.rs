//! Supervisors and keepers that are killed or stopped while eight threads sync as fast as they can.

use super::death::{child, is_gone, named_child};
use super::stage::{as_root, pass, program, progress, Running, Stage, SyncLog, SYNCLATER};
use crate::harness::command::{run, LIMIT};
use crate::harness::disk::SmallDisk;
use crate::harness::limits::count;
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const THREADS: u64 = 8;

/// After this long no request may be answered late; a little more, for a busy machine.
const LEASE: Duration = Duration::from_millis(2200);

struct Hammered {
    running: Running,
    log: SyncLog,
    stage: Stage,
    dir: PathBuf,
}

impl Hammered {
    /// A session in which 8 threads hammer, most of whose requests are put off.
    fn new(name: &str) -> Hammered {
        let stage = Stage::new(name);
        let dir = stage.work();
        Hammered::on(stage, dir)
    }

    /// The same with their files in `dir`.
    fn on(stage: Stage, dir: PathBuf) -> Hammered {
        let mut command = stage.synclater(&["run", "--quiet", "--"]);
        let log = stage.traced(&mut command, "fsync", "victim.log");
        command.arg(program("hammer")).arg(&dir);
        command.arg(THREADS.to_string());
        let running = Running::start(&stage, command);
        let h = Hammered {
            running,
            log,
            stage,
            dir,
        };
        let relaxed = until(LIMIT, || {
            h.stage.entries().len() == 1 && h.answered() > h.log.count("fsync") + 1000
        });
        assert!(relaxed, "{} answered: {}", h.answered(), h.running.stderr());
        h
    }

    fn answered(&self) -> u64 {
        progress(&self.dir).0
    }

    /// Of some hundred requests from now on: how many were made, and how many were real.
    fn sample(&self) -> (u64, u64) {
        sample(&self.dir, &self.log)
    }

    fn keeper(&self) -> Pid {
        named_child(self.running.pid(), "synclater-keep")
    }

    fn keeper_if_any(&self) -> Option<Pid> {
        child(self.running.pid(), "synclater-keep")
    }

    fn kill_with_keeper(&self) {
        let keeper = self.keeper();
        // Stopped first, so that it cannot do anything in between.
        kill_process(keeper, Signal::STOP).expect("the keeper lives");
        self.running.send(Signal::KILL);
        kill_process(keeper, Signal::KILL).expect("the keeper lives");
        let both = [keeper, self.running.pid()];
        let are_gone = until(LIMIT, || both.iter().all(is_gone));
        assert!(are_gone, "they hold their lock still");
    }

    fn end_victim(&self) {
        let victim = Pid::from_raw(progress(&self.dir).1).expect("it began");
        kill_process(victim, Signal::KILL).expect("it goes on");
    }

    /// By SIGKILL, as strace does when its program was killed.
    fn ends_as_its_victim_did(&mut self) {
        let end = self.running.end();
        assert_eq!(end.status.signal(), Some(9), "{end}");
    }

    /// Whatever was left, the next commands cope with it, and nothing of it remains.
    fn others_cope(&self) {
        let ps = self.stage.ask(&["ps"]).must_succeed();
        assert_eq!(ps.stdout, "no sessions\n", "{ps}");
        let status = self.stage.ask(&["status"]).must_succeed();
        assert_eq!(
            status.stdout, "no session was cut or left unsettled\n",
            "{status}"
        );
        self.stage
            .ask(&["run", "--quiet", "--", "true"])
            .must_succeed();
        assert!(
            self.stage.entries().is_empty(),
            "{:?}",
            self.stage.entries()
        );
        let left = self.stage.left_in_run_dir();
        assert!(left.is_empty(), "still there: {left:?}");
    }
}

pub(super) fn sample(dir: &Path, log: &SyncLog) -> (u64, u64) {
    let real = log.count("fsync");
    let (made, _) = progress(dir);
    let goes_on = until(LIMIT, || progress(dir).0 > made + 300);
    assert!(goes_on, "the victim stands still at {made}");
    let (made_then, _) = progress(dir);
    (made_then - made, log.count("fsync") - real)
}

/// Those in flight may be on either side of the sample.
fn is_real_in_time(h: &Hammered, since: Instant) {
    pass(LEASE.saturating_sub(since.elapsed()));
    let (made, real) = h.sample();
    assert!(real + THREADS >= made, "{made} requests, only {real} real");
}

#[test]
fn soak_a_supervisor_killed_under_load_leaves_nothing_unpaid() {
    for round in 0..count(3, 50) {
        println!("round {round}");
        let h = Hammered::new("killed");
        h.running.send(Signal::KILL);
        let killed = Instant::now();
        let closed = until(LIMIT, || h.stage.entries().is_empty());
        assert!(closed, "round {round}: the entry stays open");
        is_real_in_time(&h, killed);
        h.others_cope();
        h.end_victim();
    }
}

#[test]
fn with_the_keeper_killed_too_the_next_command_settles() {
    let h = Hammered::new("both-killed");
    h.kill_with_keeper();
    let killed = Instant::now();
    is_real_in_time(&h, killed);
    assert_eq!(h.stage.entries().len(), 1, "who closed the entry?");
    let next = h.stage.ask(&["ps"]).must_succeed();
    assert!(next.stderr.contains("had been killed; synced"), "{next}");
    h.others_cope();
    h.end_victim();
}

#[test]
fn nothing_is_put_off_behind_who_settles_for_a_session_that_was_killed() {
    let name = "nothing_is_put_off_behind_who_settles_for_a_session_that_was_killed";
    if !as_root(name) {
        return;
    }
    // The second does not see the memory that the programs share with the session.
    for before in ["true", "mount -t tmpfs none /dev/shm"] {
        // Settled within the lease, whatever else the machine does.
        let disk = SmallDisk::new();
        let h = Hammered::on(Stage::new("before-its-lease"), disk.mount.clone());
        h.kill_with_keeper();
        let mut command = h.stage.with_folders("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c"]);
        command.args([&format!("{before} && exec \"$0\" ps"), SYNCLATER]);
        let settled = run(&mut command).must_succeed();
        assert!(
            settled.stderr.contains("had been killed; synced"),
            "{settled}"
        );
        let (made, real) = h.sample();
        assert!(
            real + THREADS >= made,
            "{before}: {made} requests, only {real} real, behind {settled}"
        );
        h.end_victim();
        h.others_cope();
    }
}

#[test]
fn a_killed_keeper_is_replaced_and_the_run_ends_well() {
    let h = Hammered::new("keeper-killed");
    let keeper = h.keeper();
    kill_process(keeper, Signal::KILL).expect("the keeper lives");
    let replaced = until(LIMIT, || {
        let gone = rustix::process::test_kill_process(keeper).is_err();
        gone && h.keeper_if_any().is_some_and(|k| k != keeper)
    });
    assert!(replaced);
    h.end_victim();
    let mut h = h;
    h.ends_as_its_victim_did();
    h.others_cope();
}

#[test]
fn a_stopped_supervisor_makes_requests_real_until_it_goes_on() {
    let mut h = Hammered::new("stopped");
    h.running.send(Signal::STOP);
    let stopped = Instant::now();
    is_real_in_time(&h, stopped);
    h.running.send(Signal::CONT);
    let relaxed = until(LIMIT, || h.sample().1 <= THREADS);
    assert!(relaxed, "not relaxed again: {:?}", h.sample());
    h.end_victim();
    h.ends_as_its_victim_did();
    h.others_cope();
}

#[test]
fn a_stopped_supervisor_does_not_keep_ps_waiting() {
    let h = Hammered::new("ps-stopped");
    h.running.send(Signal::STOP);
    let mut command = h.stage.with_folders("timeout");
    let ps = run(command.args(["10s", SYNCLATER, "ps"]));
    assert_ne!(ps.status.code(), Some(124), "ps hangs: {ps}");
    h.running.send(Signal::CONT);
    h.end_victim();
}

/// As on a machine that has hardly any time for it: it runs every half second, and comes to
/// nothing.
#[test]
fn who_asks_waits_for_a_supervisor_that_hardly_runs() {
    let stage = Stage::new("hardly");
    let mut victim = stage.demand(&[]);
    victim.sync("file");
    let supervisor = victim.pid();
    let number = supervisor.as_raw_nonzero().get().unsigned_abs();
    let ran = || synclater_sys::process::switches(number).expect("it is there");
    let stops = |yes| kill_process(supervisor, if yes { Signal::STOP } else { Signal::CONT });
    stops(true).expect("it runs");
    let mut command = stage.synclater(&["settle"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let asks = command.spawn().expect("it starts");
    for _ in 0..8 {
        pass(Duration::from_millis(500));
        let before = ran();
        stops(false).expect("it is there");
        stops(true).expect("it is there");
        assert!(until(LIMIT, || ran() > before));
    }
    stops(false).expect("it is there");
    let told = asks.wait_with_output().expect("it ends");
    assert!(told.status.success(), "{told:?}");
    victim.end().must_succeed();
}

#[test]
fn a_stopped_supervisor_does_not_keep_settle_waiting() {
    let h = Hammered::new("settle-stopped");
    let id = h.stage.id();
    h.running.send(Signal::STOP);
    for words in [&["settle"][..], &["settle", &id]] {
        let mut command = h.stage.with_folders("timeout");
        let settle = run(command.args(["20s", SYNCLATER]).args(words));
        assert_eq!(settle.status.code(), Some(125), "{settle}");
        assert!(settle.stderr.contains("is stopped"), "{settle}");
    }
    h.running.send(Signal::CONT);
    h.end_victim();
}
