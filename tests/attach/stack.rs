//! How much of a program's stack is taken by what answers its calls (tests/sessions/stack.c).

use super::*;
use std::collections::BTreeMap;

/// Bytes below the caller that each call takes.
type Taken = BTreeMap<String, u64>;

fn taken(victim: &mut Running) -> Taken {
    let mut all = Taken::new();
    victim.tell("calls");
    loop {
        let line = victim.hear();
        if line == "end" {
            return all;
        }
        let (name, bytes) = line.split_once(' ').expect("a name and bytes");
        all.insert(name.into(), bytes.parse().expect("bytes"));
    }
}

/// The same when requests are put off in the session, as they are soon after its begin.
fn taken_in_session(stage: &Stage, victim: &mut Running) -> Taken {
    let mut all = Taken::new();
    let is_later = until(LIMIT, || {
        let (_, before) = stage.counted();
        all = taken(victim);
        stage.counted().1 > before
    });
    assert!(is_later, "no request is put off: {:#}", stage.session());
    all
}

/// No call of these takes more than `most`, and the usual ones, `fsync` and its kin, not more than
/// `usual`.
fn assert_small(all: &Taken, usual: u64, most: u64, what: &str) {
    assert_eq!(all.len(), 13, "{what}: {all:?}");
    assert!(all.values().all(|bytes| *bytes <= most), "{what}: {all:#?}");
    let kin = ["fsync", "fdatasync", "syncfs", "syscall"];
    assert!(
        kin.iter().all(|name| all[*name] <= usual),
        "{what}: {all:#?}"
    );
}

fn stack(stage: &Stage, name: &str) -> Running {
    let mut command = clean(program(name));
    command.arg(stage.work());
    started(stage, command)
}

/// Kinds of sessions, and what calls may take in them: the usual ones, and all.
fn kinds(stage: &Stage) -> [(Vec<String>, u64, u64); 2] {
    let path = format!("path={}/**", stage.work().display());
    let folder = stage.file("recording").display().to_string();
    let words = |all: &[&str]| all.iter().map(|w| (*w).to_owned()).collect();
    [
        (words(&["--until", "1s"]), 640, 1024),
        (
            words(&["--until", "1s", "--only", &path, "--record", &folder]),
            1152,
            1536,
        ),
    ]
}

#[test]
fn calls_in_a_session_need_little_of_the_stack() {
    for name in ["stack", "stack_32"] {
        let stage = Stage::new("little-stack");
        for (options, usual, most) in kinds(&stage) {
            let what = format!("{name} {options:?}");
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let mut command =
                stage.synclater(&[&["run", "--quiet"], &options[..], &["--"]].concat());
            command.arg(program(name)).arg(stage.work());
            let mut victim = Running::start(&stage, command);
            victim.be_ready();
            assert_small(&taken_in_session(&stage, &mut victim), usual, most, &what);
            victim.end().must_succeed();
        }
    }
}

#[test]
fn calls_in_an_attached_process_need_little_of_the_stack() {
    for name in ["stack", "stack_static", "stack_32"] {
        let stage = Stage::new("little-stack");
        let mut victim = stack(&stage, name);
        for (options, usual, most) in kinds(&stage) {
            let what = format!("{name} {options:?}");
            let pid = number(victim.pid());
            let mut words = vec!["--pid", &pid];
            words.extend(options.iter().map(String::as_str));
            let session = stage.attach(&words);
            assert_small(&taken_in_session(&stage, &mut victim), usual, most, &what);
            stage.detach(&session);
            let _ = std::fs::remove_file(stage.file("recording"));
        }
        victim.end();
    }
}

#[test]
fn an_errand_needs_little_of_the_stack() {
    for name in ["stack", "stack_static", "stack_32"] {
        let stage = Stage::new("little-errand");
        let mut victim = stack(&stage, name);
        victim.tell("wait");
        let exe = format!("exe={name}");
        let pid = number(victim.pid());
        let session = stage.attach(&["--pid", &pid, "-u", "1s", "--only", &exe]);
        victim.tell("");
        let said = victim.hear();
        let bytes: u64 = said["wait ".len()..].parse().expect("bytes");
        assert!((256..=1024).contains(&bytes), "{name}: {said}");
        stage.detach(&session);
        victim.end();
    }
}
