//! Attached and let go of, again and again, while every answer is checked.

use super::*;
use crate::harness::command::run;
use crate::harness::limits::count;
use crate::harness::victims::SMALL;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn cycles(program: &str, threads: usize) {
    let stage = Stage::new(program);
    let victim = busy(&stage, program, threads);
    cycles_of(&stage, program, victim);
}

/// What a victim has open with O_SYNC at the moment in which it is let go of keeps some sites, and
/// `left` tells of that. The next detach then lets go of it as a whole.
pub fn must_be_let_go_of(stage: &Stage, victim: &Running, mut left: Value) {
    let is_restored = until(LIMIT, || {
        let is_whole = !left["escaped"].to_string().contains("lost O_SYNC");
        if !is_whole {
            let session = stage.attach_to(victim, "1s");
            left = stage.detach(&session);
        }
        is_whole
    });
    assert!(is_restored, "{left:#}");
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
}

/// Attaches and lets go of a busy victim, which must have seen no wrong answer.
pub fn cycles_of(stage: &Stage, program: &str, mut victim: Running) {
    let (mut skipped, mut left) = (0, Value::Null);
    for cycle in 0..count(11, 1000) {
        let session = stage.attach_to(&victim, "1s");
        if cycle % 3 == 0 {
            let before = stage.counted().1;
            let more = until(LIMIT, || stage.counted().1 > before);
            assert!(more, "cycle {cycle}: nothing is put off");
        }
        left = stage.detach(&session);
        skipped += left["skipped"].as_u64().expect("skipped");
        must_run(victim.pid());
    }
    must_be_let_go_of(stage, &victim, left);
    must_be_right(&mut victim);
    assert!(skipped > 0);
    println!("{program}: {skipped} requests answered at once");
}

#[test]
fn soak_a_busy_program_is_attached_and_let_go_of_without_a_wrong_answer() {
    cycles("busy", 8);
}

#[test]
fn soak_a_busy_static_program_is_attached_and_let_go_of_without_a_wrong_answer() {
    cycles("busy_static", 4);
}

#[test]
fn soak_a_busy_musl_program_is_attached_and_let_go_of_without_a_wrong_answer() {
    cycles("busy_musl", 4);
}

#[test]
fn soak_a_busy_32_bit_program_is_attached_and_let_go_of_without_a_wrong_answer() {
    cycles("busy_32", 4);
}

#[test]
fn soak_a_busy_static_32_bit_program_is_attached_and_let_go_of_without_a_wrong_answer() {
    cycles("busy_32_static", 4);
}

#[test]
fn soak_a_busy_program_with_rings_is_attached_and_let_go_of_without_a_wrong_answer() {
    cycles("busy_uring", 4);
}

/// A static 32-bit program with hardly any room behind its code, whatever else was linked.
fn without_room(stage: &Stage) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions/demand.c");
    let (filler, built) = (stage.file("filler.s"), stage.file("without-room"));
    let mut bytes = 0;
    loop {
        std::fs::write(&filler, format!(".text\n.skip {bytes}, 0x90\n")).expect("a filler");
        let mut gcc = clean("gcc");
        gcc.args(SMALL).args(["-O2", "-static", "-pthread", "-o"]);
        gcc.arg(&built).arg(&source).arg(&filler);
        run(&mut gcc).must_succeed();
        let room = room_behind_code(&built);
        if room < 64 {
            return built;
        }
        bytes += room - 32;
        assert!(bytes < 8192, "{room} bytes are left");
    }
}

/// Bytes between the end of an i386 program's code and that of its last page.
fn room_behind_code(program: &Path) -> usize {
    let file = std::fs::read(program).expect("a program");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4")) as usize;
    let (headers, count) = (word(28), word(44) & 0xffff);
    const PT_LOAD: usize = 1;
    const PF_X: usize = 1;
    let mut all = (0..count).map(|k| headers + 32 * k);
    let code = all.find(|at| word(*at) == PT_LOAD && word(at + 24) & PF_X != 0);
    let code = code.expect("code");
    (word(code + 4) + word(code + 16)).wrapping_neg() & 4095
}

#[test]
fn a_static_32_bit_program_without_room_behind_its_code_is_attached() {
    let stage = Stage::new("room");
    let mut command = clean(without_room(&stage));
    command.arg(stage.work());
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    let session = stage.attach_to(&victim, "1s");
    stage.warm(&mut victim);
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    assert_eq!(victim.sync("file"), 0);
    victim.end().must_succeed();
}

#[test]
fn soak_a_signal_that_comes_during_an_errand_interrupts_the_wait_of_before() {
    let stage = Stage::new("interrupted");
    let mut command = clean(program("interrupted"));
    command.arg(stage.work());
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    for _ in 0..count(20, 1000) {
        let session = stage.attach_to(&victim, "1s");
        stage.detach(&session);
    }
    must_be_right(&mut victim);
}

#[test]
fn code_differs_while_it_is_attached_and_not_behind() {
    let stage = Stage::new("bytes");
    let mut victim = demand(&stage);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    let session = stage.attach_to(&victim, "1s");
    assert_ne!(changed_code(victim.pid()), Vec::<String>::new());
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    assert_eq!(victim.sync("file"), 0);
}

#[test]
fn a_session_is_settled_and_reported_when_it_is_let_go_of() {
    let stage = Stage::new("report");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    assert_eq!(stage.entries().len(), 1);
    let row = stage.session()["processes"][0].clone();
    assert_eq!(row["how"], "attach");
    let report = stage.detach(&session);
    assert_eq!(report["until"], "1h");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(report["settle_s"].as_f64().is_some(), "{report:#}");
    assert_eq!(stage.entries(), Vec::<std::path::PathBuf>::new());
    assert_eq!(stage.sessions(), Vec::<Value>::new());
}

#[test]
fn the_dial_of_an_attached_session_moves() {
    let stage = Stage::new("moves");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    stage.ask(&["set", &session, "-u", "now"]).must_succeed();
    assert!(!stage.is_later(&mut victim));
    stage.ask(&["set", &session, "-u", "1s"]).must_succeed();
    assert!(stage.is_later(&mut victim));
    for (options, why) in [
        (&["-u", "exit"][..], "exit"),
        (&["-u", "never"], "needs an end"),
    ] {
        let outcome = stage.ask(&[&["set", &session], options].concat());
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains(why), "{outcome}");
    }
    stage.detach(&session);
}

#[test]
fn the_relaxation_ends_by_itself_and_the_process_is_let_go_of() {
    let stage = Stage::new("expiry");
    let mut victim = demand(&stage);
    stage.attach(&["--pid", &number(victim.pid()), "-u", "never", "--for", "1s"]);
    let over = until(LIMIT, || stage.sessions().is_empty());
    assert!(over, "{:?}", stage.sessions());
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    assert_eq!(victim.sync("file"), 0);
}

#[test]
fn a_stopped_process_stays_stopped() {
    let stage = Stage::new("stopped");
    let mut victim = demand(&stage);
    victim.send(rustix::process::Signal::STOP);
    let is_stopped = || {
        stuck(victim.pid())
            .first()
            .is_some_and(|s| s.contains("(stopped)"))
    };
    assert!(until(LIMIT, is_stopped));
    let session = stage.attach_to(&victim, "1s");
    assert!(until(LIMIT, is_stopped), "{:?}", stuck(victim.pid()));
    victim.send(rustix::process::Signal::CONT);
    stage.warm(&mut victim);
    stage.detach(&session);
    assert_eq!(victim.sync("file"), 0);
}

#[test]
fn requests_of_an_attached_process_are_recorded() {
    let stage = Stage::new("recorded");
    let mut victim = demand(&stage);
    let file = stage.file("rec").display().to_string();
    let pid = number(victim.pid());
    let session = stage.attach(&["--pid", &pid, "-u", "now", "--record", &file]);
    for _ in 0..23 {
        assert_eq!(victim.sync("file"), 0);
    }
    let report = stage.detach(&session);
    assert_eq!(report["requests"], 23, "{report:#}");
    let outcome = stage.ask(&["report", &file, "--json"]).must_succeed();
    let told: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(told["requests"], 23, "{told:#}");
    assert_eq!(told["by_process"][0]["pid"].to_string(), pid, "{told:#}");
}

/// By whoever lists sessions of another run folder meanwhile.
#[test]
fn soak_a_session_that_lets_go_is_not_said_to_have_left_its_processes() {
    let (stage, beside) = (Stage::new("lets-go"), Stage::new("lists"));
    let mut victim = demand(&stage);
    let of_victim = format!("{} (demand)", number(victim.pid()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = Over(&is_over);
            for _ in 0..count(20, 1000) {
                let session = stage.attach_to(&victim, "1s");
                stage.detach(&session);
            }
        });
        while !is_over.load(SeqCst) {
            let told = beside.ask(&["ps"]).must_succeed();
            assert!(!told.stderr.contains(&of_victim), "{told}");
        }
    });
    victim.end();
}

/// Says that it is over, also where it has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
