//! Kills: of the tracer, the supervisor and the keeper, at any moment.

use super::*;
use crate::harness::limits::seed;
use crate::sessions::death::named_child;
use crate::sessions::stage::{pass, progress};
use rustix::process::{kill_process, Pid, Signal};
use std::time::Duration;

fn rounds() -> usize {
    count(5, 200)
}

/// Programs that lose the library, one after the other, for as long as `go` is there. Each must
/// succeed.
fn churn(stage: &Stage) -> String {
    let (dir, go) = (stage.work(), stage.file("go"));
    std::fs::write(&go, "").expect("a file");
    let [plain, fixed] = ["hammer", "hammer_static"].map(|name| {
        let program = program(name).display().to_string();
        format!("env -i {program} {} 2 5 || exit 9", dir.display())
    });
    format!("while [ -e {} ]; do {plain}; {fixed}; done", go.display())
}

/// A pause that differs from round to round.
fn pause(seed: u64, round: usize) {
    let mixed = (seed.wrapping_add(round as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    pass(Duration::from_micros(mixed >> 32 & 0x3ffff));
}

#[test]
fn soak_a_killed_tracer_harms_nobody() {
    let seed = seed();
    for round in 0..rounds() {
        let stage = Stage::new("tracer");
        let mut command = session(&stage, true);
        command.args(["sh", "-c", &churn(&stage)]);
        let mut victim = Running::start(&stage, command);
        let begun = until(LIMIT, || progress(&stage.work()).0 > 0);
        assert!(begun, "{}", victim.stderr());
        pause(seed, round);
        let tracer = named_child(victim.pid(), "synclater-trace");
        kill_process(tracer, Signal::KILL).expect("it runs");
        let tells = || {
            let all = stage.sessions();
            let escaped = all[0]["escaped"].as_array().expect("escaped").clone();
            escaped.iter().any(|e| e["exe"] == "(tracer)")
        };
        assert!(until(LIMIT, tells), "seed {seed}: {:#}", stage.session());
        std::fs::remove_file(stage.file("go")).expect("go");
        let outcome = victim.end();
        assert_eq!(outcome.status.code(), Some(0), "seed {seed}: {outcome}");
    }
}

#[test]
fn soak_a_killed_supervisor_leaves_programs_that_sync_for_real() {
    let seed = seed();
    for round in 0..rounds() {
        let stage = Stage::new("supervisor");
        let mut command = session(&stage, true);
        command.args([
            "sh",
            "-c",
            &format!(
                "{}; echo ended >{}",
                churn(&stage),
                stage.file("end").display()
            ),
        ]);
        let victim = Running::start(&stage, command);
        let begun = until(LIMIT, || progress(&stage.work()).0 > 0);
        assert!(begun, "{}", victim.stderr());
        pause(seed, round);
        victim.send(Signal::KILL);
        // Two seconds after the last heartbeat at most: then a process that goes on is real.
        let goes_on = until(LIMIT, || progress(&stage.work()).0 > 0);
        assert!(goes_on, "seed {seed}");
        std::fs::remove_file(stage.file("go")).expect("go");
        let ended = until(LIMIT, || stage.file("end").exists());
        assert!(ended, "seed {seed}: {}", victim.stderr());
        let settled = until(LIMIT, || stage.entries().is_empty());
        assert!(settled, "seed {seed}: {:?}", stage.entries());
    }
}

/// Says that it is there, and when it is told to end.
const TELLS: &str = "\
import signal
signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))
print('ready', flush=True)";

#[test]
fn an_interrupt_reaches_what_the_command_left_behind() {
    let stage = Stage::new("left");
    let mut command = session(&stage, true);
    command.args(["sh", "-c", "setsid \"$@\" & exit 3", "sh", "python3", "-c"]);
    command.arg(format!("{TELLS}\nsignal.pause()"));
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    victim.send(Signal::TERM);
    let outcome = victim.end();
    assert_eq!(outcome.status.code(), Some(3), "{outcome}");
    assert_eq!(outcome.stdout, "ready\ntold\n", "{outcome}");
}

#[test]
fn two_interrupts_do_not_wait_for_what_was_left_behind() {
    let stage = Stage::new("left-two");
    let mut command = session(&stage, true);
    command.args(["sh", "-c", "\"$@\" & exit 3", "sh", "python3", "-c"]);
    command.arg(format!("{TELLS}\nwhile True: signal.pause()"));
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    victim.send(Signal::TERM);
    assert!(until(LIMIT, || victim.stdout().contains("told")));
    victim.send(Signal::TERM);
    let outcome = victim.end();
    assert_eq!(outcome.status.code(), Some(3), "{outcome}");
}

#[test]
fn a_stopped_child_goes_on_when_it_is_told_to() {
    let stage = Stage::new("stopped");
    let mut victim = stage.demand(&["--follow"]);
    stage.warm(&mut victim);
    let rows = stage.session()["processes"].clone();
    let pid = rows[0]["pid"]
        .as_i64()
        .and_then(|p| Pid::from_raw(p as i32))
        .expect("a process");
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.expect("it is there")
            .rsplit_once(") ")
            .map(|(_, rest)| rest[..1].to_owned())
    };
    for _ in 0..20 {
        kill_process(pid, Signal::STOP).expect("it runs");
        let stands = until(LIMIT, || matches!(state().as_deref(), Some("T" | "t")));
        assert!(stands, "{:?}", state());
        // The supervisor stops with its command, as a shell's job does.
        let stopped = |pid: Pid| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.is_ok_and(|s| s.rsplit_once(") ").is_some_and(|(_, r)| r.starts_with('T')))
        };
        assert!(until(LIMIT, || stopped(victim.pid())));
        // Which passes it on.
        kill_process(victim.pid(), Signal::CONT).expect("it is there");
        assert_eq!(victim.sync("file"), 0);
    }
    victim.end().must_succeed();
}

#[test]
fn soak_a_stop_that_comes_while_a_program_is_seen_to_is_not_lost() {
    let rounds = count(100, 1000).to_string();
    for victim in ["hammer", "hammer_static"] {
        let stage = Stage::new("stops");
        let mut command = session(&stage, true);
        command.arg(program("stops")).args([&rounds, "15"]);
        command.args(CLEANED.map(|word| if word == "env" { "/usr/bin/env" } else { word }));
        let outcome = run(command.arg(program(victim)).arg(stage.work()));
        assert_eq!(outcome.stdout, "wrong 0\n", "{victim}: {outcome}");
    }
}
