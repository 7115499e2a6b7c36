//! What a program waits in while it is attached and let go of goes on.

use super::*;
use crate::harness::limits::{count, needs_root};
use crate::sessions::stage::pass;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use synclater_sys::ptrace::{Stop, Thread};

/// What the kernel goes on with by itself, whoever disturbs it.
const GO_ON: [&str; 4] = ["poll", "nanosleep", "select", "sem_timedwait"];

/// What waits as long for each piece or message that it sends: it begins anew (docs/LIMITS.md).
const IN_PIECES: [&str; 6] = [
    "writev", "pwritev2", "sendmsg", "sendmmsg", "sendfile", "splice",
];

/// For each call what it returned, and after how many milliseconds (tests/sessions/waits.c).
type Waited = BTreeMap<String, (String, u64)>;

fn waited(outcome: Outcome) -> Waited {
    let outcome = outcome.must_succeed();
    let rows = outcome.stdout.lines().filter(|l| *l != "ready");
    let all: Waited = rows
        .map(|row| {
            let (answer, took) = row.rsplit_once(' ').expect("a time");
            let (name, answer) = answer.split_once(' ').expect("an answer");
            (
                name.into(),
                (answer.into(), took.parse().expect("milliseconds")),
            )
        })
        .collect();
    assert_eq!(all.len(), 27, "{outcome}");
    all
}

fn answers(all: &Waited) -> BTreeMap<&str, &str> {
    all.iter()
        .map(|(name, (answer, _))| (&name[..], &answer[..]))
        .collect()
}

fn waits(stage: &Stage, name: &str, seconds: &str) -> Running {
    let mut command = clean(program(name));
    command.arg(seconds);
    let victim = started(stage, command);
    pass(Duration::from_millis(300));
    victim
}

/// Has each thread stop once as a tracer does who knows nothing of calls.
fn disturb(victim: &Running) {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", number(victim.pid())));
    for task in tasks.expect("tasks").flatten() {
        let tid = task
            .file_name()
            .to_string_lossy()
            .parse()
            .expect("a number");
        let mut thread = Thread::seize(tid).expect("it is not traced");
        thread.interrupt();
        let stops = until(LIMIT, || thread.look() == Some(Stop::Interrupted));
        assert!(stops, "{:?}", thread.stop());
        thread.release();
    }
}

/// The table of such calls is the kernel's: each says EINTR when it is disturbed, and no other.
#[test]
fn calls_that_say_eintr_in_vain_are_those_that_are_made_again() {
    for name in ["waits", "waits_32"] {
        let stage = Stage::new("disturbed");
        let mut victim = waits(&stage, name, "2");
        disturb(&victim);
        let all = waited(victim.end());
        let is_such = |(name, (answer, _)): (&String, &(String, u64))| {
            (answer == "-1 4").then(|| name.clone())
        };
        let such: BTreeSet<String> = all.iter().filter_map(is_such).collect();
        let others = GO_ON.map(String::from);
        let expected: BTreeSet<String> = all
            .keys()
            .filter(|n| !others.contains(n))
            .cloned()
            .collect();
        assert_eq!(such, expected, "{name}");
    }
}

#[test]
fn a_wait_goes_on_through_attach_and_detach_and_ends_when_it_was_to() {
    let may_watch = needs_root("a_wait_goes_on_through_attach_and_detach_and_ends_when_it_was_to");
    for name in ["waits", "waits_32", "waits_static"] {
        let stage = Stage::new("waits");
        let bare = waited(waits(&stage, name, "1").end());
        let mut victim = waits(&stage, name, "4");
        pass(Duration::from_secs(1));
        for _ in 0..4 {
            let session = stage.attach_to(&victim, "1s");
            stage.detach(&session);
        }
        let all = waited(victim.end());
        assert_eq!(answers(&all), answers(&bare), "{name}");
        for (call, (_, took)) in &all {
            assert!(*took >= 3990, "{name}: {call} {took} ms");
            // What is begun anew as a whole takes more than a second longer; so it does where
            // nobody may watch a thread (docs/LIMITS.md).
            let is_watched = may_watch && !IN_PIECES.contains(&&call[..]);
            let ends = is_watched || GO_ON.contains(&&call[..]);
            assert!(!ends || *took < 4500, "{name}: {call} {took} ms");
        }
    }
}

/// A signal that is ignored disturbs nobody, and a tracer hears of it.
#[test]
fn an_ignored_signal_ends_no_wait_of_a_program_that_is_followed() {
    for name in ["waits", "waits_32_static"] {
        let stage = Stage::new("ignored");
        let bare = waited(waits(&stage, name, "1").end());
        let mut command = stage.synclater(&["run", "--follow", "--quiet", "-u", "1s", "--"]);
        command.arg(program(name)).args(["2", "signals"]);
        let all = waited(crate::harness::command::run(&mut command));
        assert_eq!(answers(&all), answers(&bare), "{name}");
    }
}

/// Attaches to a program that waits, lets go of it, and has it go on: for how many milliseconds it
/// says that it then waited.
fn waited_again(name: &str, how: &str) -> u64 {
    let stage = Stage::new("again");
    let mut command = clean(program(name));
    command.arg(how);
    let mut victim = started(&stage, command);
    pass(Duration::from_millis(300));
    let session = stage.attach_to(&victim, "1s");
    stage.detach(&session);
    pass(Duration::from_millis(500));
    let outcome = victim.end().must_succeed();
    let last = outcome.stdout.lines().last().unwrap_or_default();
    let took = last.strip_prefix("took ").and_then(|ms| ms.parse().ok());
    took.unwrap_or_else(|| panic!("{how}: {outcome}"))
}

/// Who has left a wait, in whatever way, and waits at the same place again has all of its time.
#[test]
fn the_next_wait_at_the_same_place_ends_no_sooner() {
    // Of static programs each image has its code at the same addresses.
    for (name, how) in [
        ("waits_again", "event"),
        ("waits_again", "jump"),
        ("waits_again_static", "exec"),
    ] {
        let took = waited_again(name, how);
        assert!((2999..3500).contains(&took), "{how}: {took} ms");
    }
}

/// A limit that begins later in a call than its first sleep is counted from there.
#[test]
fn a_limit_that_begins_later_in_a_call_ends_no_sooner() {
    for how in ["splice", "dgram"] {
        let took = waited_again("waits_later", how);
        assert!((2990..3500).contains(&took), "{how}: {took} ms");
    }
}

/// Waits `how` (tests/sessions/waits_signals.c) in some threads; what it says at its end.
fn disturbed_often(how: &str, threads: &str, cycles: usize) -> String {
    let stage = Stage::new(how);
    let mut command = clean(program("waits_signals"));
    command.args([how, threads]);
    let mut victim = started(&stage, command);
    for _ in 0..cycles {
        let session = stage.attach_to(&victim, "1s");
        pass(Duration::from_millis(250));
        stage.detach(&session);
        // Nobody watches by then, so that to begin takes some time again.
        pass(Duration::from_millis(250));
    }
    victim.end().must_succeed().stdout
}

/// The kernel says either that a signal's handler has run, or that the time is over.
#[test]
fn soak_no_wait_says_that_its_time_is_over_where_a_handler_has_run() {
    let said = disturbed_often("open", "40", count(6, 200));
    assert!(said.ends_with(" wrong 0\n"), "{said}");
}

/// The limit is that of the call that is disturbed, whatever was there when it was looked at first.
#[test]
fn soak_no_wait_has_the_limit_of_the_one_before() {
    let said = disturbed_often("turns", "1", count(4, 300));
    assert!(said.ends_with(" wrong 0\n"), "{said}");
}
