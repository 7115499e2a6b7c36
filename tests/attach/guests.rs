//! Programs that are not like others: attached without a trace, or refused with the reason.

use super::refusals::refused;
use super::*;
use crate::follow::in_go;
use crate::harness::limits::{count, is_root, skip};
use crate::sessions::stage::as_root;
use rustix::process::Signal;

/// A program that is `what` (tests/sessions/guest.c), of the class that `name` tells of.
fn guest(stage: &Stage, name: &str, what: &str) -> Running {
    let mut command = clean(program(name));
    command.arg(what).arg(stage.work());
    started(stage, command)
}

/// How often something was not as it is without us.
fn wrong(victim: &mut Running) -> String {
    victim.tell("check");
    victim.hear()
}

#[test]
fn one_that_may_not_read_the_counter_is_refused_and_lives() {
    for name in ["guest", "guest_static", "guest_32"] {
        let stage = Stage::new("clock");
        let mut victim = guest(&stage, name, "clock");
        refused(&stage, &number(victim.pid()), "time stamp counter");
        assert_eq!(victim.sync("file"), 0, "{name}");
        assert_eq!(changed_code(victim.pid()), Vec::<String>::new(), "{name}");
        victim.end();
    }
}

#[test]
fn one_that_forbids_itself_the_counter_later_is_answered_by_the_kernel() {
    for name in ["guest", "guest_32"] {
        let stage = Stage::new("later-clock");
        let mut victim = guest(&stage, name, "later-clock");
        let session = stage.attach_to(&victim, "1s");
        stage.warm(&mut victim);
        victim.tell("now");
        assert_eq!(victim.hear(), "now 0");
        assert!(!stage.is_later(&mut victim), "{name}");
        let escaped = stage.session()["escaped"].to_string();
        let is_named = escaped.contains("has restricted its own calls");
        assert_eq!(is_named, is_root(), "{name}: {escaped}");
        stage.detach(&session);
        assert_eq!(victim.sync("file"), 0, "{name}");
        victim.end();
    }
}

/// What it forbade itself before it executed a program is forbidden to that, too.
#[test]
fn one_that_is_executed_without_the_counter_is_told_of_and_lives() {
    for name in ["guest_static", "guest_32_static"] {
        let stage = Stage::new("executed");
        let mut command = stage.synclater(&["run", "--follow", "--quiet", "-u", "1s", "--"]);
        command.arg(program(name)).arg("executed").arg(stage.work());
        let mut victim = Running::start(&stage, command);
        victim.be_ready();
        assert_eq!(victim.sync("file"), 0, "{name}");
        let session = stage.session();
        let told = session["escaped"].to_string();
        assert!(told.contains("time stamp counter"), "{name}: {session:#}");
        victim.no_more();
        victim.end().must_succeed();
    }
}

#[test]
fn one_that_dispatches_its_own_calls_is_refused_and_meets_none_of_ours() {
    let stage = Stage::new("dispatch");
    let mut victim = guest(&stage, "guest", "dispatch");
    refused(&stage, &number(victim.pid()), "SYSCALL_USER_DISPATCH");
    assert_eq!(victim.sync("file"), 0);
    assert_eq!(wrong(&mut victim), "check 0");
    victim.end();
    // It may begin to later.
    let mut victim = guest(&stage, "guest", "later-dispatch");
    let session = stage.attach_to(&victim, "1s");
    stage.warm(&mut victim);
    victim.tell("now");
    assert_eq!(victim.hear(), "now 0");
    assert!(!stage.is_later(&mut victim));
    assert_eq!(wrong(&mut victim), "check 0");
    stage.detach(&session);
    victim.end();
}

#[test]
fn one_that_never_comes_to_the_gate_is_said_to_make_its_own_calls() {
    if !as_root("one_that_never_comes_to_the_gate_is_said_to_make_its_own_calls") {
        return;
    }
    let stage = Stage::new("own-calls");
    let mut command = clean(program("made_static"));
    command.arg(stage.work());
    let mut victim = started(&stage, command);
    let session = stage.attach_to(&victim, "1s");
    assert_eq!(victim.sync("file"), 0);
    let escaped = &stage.session()["escaped"][0];
    assert_eq!(escaped["requests"], 1, "{escaped}");
    let why = escaped["why"].as_str().expect("why");
    assert!(why.contains("system calls of its own"), "{escaped}");
    stage.detach(&session);
    victim.end();
}

#[test]
fn code_that_is_mapped_shared_stays_as_it_is_in_its_file() {
    for name in ["guest", "guest_32"] {
        let stage = Stage::new("shared");
        let mut victim = guest(&stage, name, "shared");
        let session = stage.attach_to(&victim, "1s");
        stage.warm(&mut victim);
        assert_eq!(wrong(&mut victim), "check 0", "{name}");
        stage.detach(&session);
        assert_eq!(wrong(&mut victim), "check 0", "{name}");
        victim.end();
    }
}

/// Whoever watches an instruction of a program has the kernel put a byte there and the file's byte
/// back (uprobes): over the first one of a jump of ours.
#[test]
fn what_becomes_of_a_jump_that_somebody_watches_is_put_back() {
    // mov $SYS_sync, %eax; syscall
    const SITE: [u8; 7] = [0xb8, 162, 0, 0, 0, 0x0f, 0x05];
    const BREAKPOINT: u8 = 0xcc;
    let stage = Stage::new("watched");
    let mut victim = demand(&stage);
    let all = code_of(victim.pid());
    let found = all.iter().find_map(|code| {
        let at = code.file.windows(SITE.len()).position(|w| w == SITE)?;
        Some((
            code.start + at as u64,
            code.memory[at..at + SITE.len()] == SITE,
        ))
    });
    let (at, is_plain) = found.expect("a site");
    assert!(is_plain);
    let path = format!("/proc/{}/mem", number(victim.pid()));
    let memory = std::fs::File::options().write(true).open(path);
    let memory = memory.expect("its memory");
    for first in [SITE[0], BREAKPOINT] {
        let session = stage.attach_to(&victim, "1s");
        memory.write_all_at(&[first], at).expect("a byte");
        stage.detach(&session);
        if first == BREAKPOINT {
            // It is taken away later.
            memory.write_all_at(&SITE[..1], at).expect("a byte");
        }
        assert_eq!(
            changed_code(victim.pid()),
            Vec::<String>::new(),
            "{first:x}"
        );
    }
    let session = stage.attach_to(&victim, "1s");
    stage.warm(&mut victim);
    stage.detach(&session);
    assert_eq!(victim.sync("file"), 0);
    victim.end();
}

/// Requests of such a program are put off while it is attached, and it is let go of byte for byte.
fn is_reached(stage: &Stage, command: Command) {
    let mut victim = started(stage, command);
    let session = stage.attach_to(&victim, "1s");
    stage.warm(&mut victim);
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    victim.end();
}

#[test]
fn one_that_is_static_and_has_loaded_a_second_libc_is_reached() {
    let stage = Stage::new("plugged");
    let mut command = clean(program("plugged_static"));
    command.arg(stage.work());
    is_reached(&stage, command);
}

#[test]
fn one_that_the_dynamic_linker_was_told_to_execute_is_reached() {
    let linker = "/lib64/ld-linux-x86-64.so.2";
    let stage = Stage::new("by-linker");
    let mut command = clean(linker);
    command.arg(program("demand")).arg(stage.work());
    is_reached(&stage, command);
}

/// Its calls have another form where it can cancel a thread.
#[test]
fn a_static_program_of_musl_that_cancels_no_thread_is_reached() {
    let stage = Stage::new("musl");
    let path = program("guest_musl_static");
    let symbols = std::fs::read(&path).expect("the program");
    let has = |name: &[u8]| symbols.windows(name.len()).any(|w| w == name);
    assert!(has(b"__syscall_cp_c\0") && !has(b"\0pthread_cancel\0"));
    let mut victim = guest(&stage, "guest_musl_static", "as it is");
    let session = stage.attach_to(&victim, "1s");
    stage.warm(&mut victim);
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    victim.end();
    let mut command = stage.synclater(&["run", "--follow", "--quiet", "-u", "1s", "--"]);
    command.arg(&path).arg("as it is").arg(stage.work());
    let mut victim = Running::start(&stage, command);
    stage.warm(&mut victim);
    assert_eq!(stage.session()["escaped"], serde_json::json!([]));
    victim.no_more();
    victim.end().must_succeed();
}

/// Programs that have instructions of their own to enter the kernel: a system call keeps the flags.
#[test]
fn a_request_that_is_answered_keeps_the_flags() {
    for name in ["guest_static", "guest_32_static"] {
        let stage = Stage::new("flags");
        let mut victim = guest(&stage, name, "flags");
        assert_eq!(wrong(&mut victim), "check 0", "{name}");
        for until_when in ["1s", "1h"] {
            let session = stage.attach_to(&victim, until_when);
            stage.warm(&mut victim);
            let before = stage.counted();
            assert_eq!(wrong(&mut victim), "check 0", "{name}");
            // It was they that were answered.
            assert!(stage.counted().0 >= before.0 + 1000, "{name}: {before:?}");
            stage.detach(&session);
        }
        victim.end();
    }
}

/// A program whose own descriptors come and go at the lowest numbers meets none of ours there.
#[test]
fn soak_the_numbers_of_a_programs_descriptors_are_its_own() {
    for name in ["guest", "guest_static", "guest_32"] {
        let stage = Stage::new("numbers");
        let mut victim = guest(&stage, name, "numbers");
        for _ in 0..count(20, 500) {
            let session = stage.attach_to(&victim, "1s");
            stage.detach(&session);
        }
        assert_eq!(wrong(&mut victim), "check 0", "{name}");
        assert_eq!(crate::sessions::death::children(victim.pid(), ""), []);
        victim.send(Signal::KILL);
        victim.end();
    }
}

/// What is no file's code any more is put back, too.
#[test]
fn code_that_is_a_copy_by_then_is_put_back() {
    let stage = Stage::new("moved");
    let mut victim = guest(&stage, "guest", "later-moved");
    let session = stage.attach_to(&victim, "1s");
    stage.warm(&mut victim);
    victim.tell("now");
    assert_eq!(victim.hear(), "now 0");
    assert_ne!(wrong(&mut victim), "check 0");
    stage.detach(&session);
    let before = wrong(&mut victim);
    assert_eq!(wrong(&mut victim), before);
    victim.end();
}

#[test]
fn one_that_may_have_no_more_mappings_is_refused_and_keeps_those_it_may_have() {
    let stage = Stage::new("full");
    let mut victim = guest(&stage, "guest", "full");
    assert_eq!(wrong(&mut victim), "check 0");
    refused(&stage, &number(victim.pid()), "Cannot allocate memory");
    assert_eq!(wrong(&mut victim), "check 0");
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    victim.end();
}

/// It would return to code that may be gone by then.
#[test]
fn soak_no_signals_handler_interrupts_what_brings_the_library() {
    for name in ["guest", "guest_32"] {
        let stage = Stage::new("kicked");
        let mut victim = guest(&stage, name, "kicked");
        for _ in 0..count(4, 100) {
            let session = stage.attach_to(&victim, "1s");
            stage.detach(&session);
        }
        assert_eq!(wrong(&mut victim), "check 0", "{name}");
        assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
        victim.end();
    }
}

/// A handler returns between two instructions of a Go program that are to become one: they stay.
#[test]
fn where_a_handler_returns_to_is_there_still() {
    const NAME: &str = "where_a_handler_returns_to_is_there_still";
    let stage = Stage::new("between");
    let Some(path) = in_go(&stage, "tests/attach/between.go") else {
        return skip(NAME, "no Go compiler (go) is installed");
    };
    for its_stack in ["heap", "locked", "shared"] {
        let mut command = clean(&path);
        command.arg(its_stack);
        let mut victim = started(&stage, command);
        assert_eq!(victim.hear(), "there");
        refused(
            &stage,
            &number(victim.pid()),
            "the handler of a signal returns there",
        );
        victim.tell("go on");
        assert_eq!(victim.hear(), "back");
        let session = stage.attach_to(&victim, "1s");
        stage.detach(&session);
        assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
        victim.end().must_succeed();
    }
}

/// Go's runtime looks up where each of its own signals has come, and ends a program that stands
/// between two functions.
#[test]
fn soak_go_finds_itself_where_it_is_in_each_signal() {
    const NAME: &str = "soak_go_finds_itself_where_it_is_in_each_signal";
    let stage = Stage::new("preempted");
    let Some(path) = in_go(&stage, "tests/attach/preempted.go") else {
        return skip(NAME, "no Go compiler (go) is installed");
    };
    let mut victim = started(&stage, clean(path));
    let collects = count(2000, 200_000);
    let session = stage.attach_to(&victim, "1s");
    victim.tell(&collects.to_string());
    assert_eq!(victim.hear(), "over");
    stage.detach(&session);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    victim.end().must_succeed();
}

/// As where whoever writes is killed behind the address that a jump of Go's reads, and before the
/// jump; or behind the jump that is put back, and before the address.
#[test]
fn an_address_that_no_jump_reads_is_put_back() {
    const NAME: &str = "an_address_that_no_jump_reads_is_put_back";
    let stage = Stage::new("left-address");
    let Some(path) = in_go(&stage, "tests/attach/preempted.go") else {
        return skip(NAME, "no Go compiler (go) is installed");
    };
    let mut victim = started(&stage, clean(path));
    for _ in 0..2 {
        let session = stage.attach_to(&victim, "1s");
        victim.send(Signal::STOP);
        // The first of what has changed is told.
        let site = changed_code(victim.pid());
        put_go_site_back(victim.pid());
        let address = changed_code(victim.pid());
        assert!(!address.is_empty() && address != site, "{address:?}");
        victim.send(Signal::CONT);
        stage.detach(&session);
        assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    }
    victim.end().must_succeed();
}

/// Puts the two instructions back in front of Go's system call, in a process that stands still.
fn put_go_site_back(pid: rustix::process::Pid) {
    use std::os::unix::fs::FileExt;
    // mov %rsi, %r10; mov %rdi, %rdx; jmp *BY(%rip): mov %rcx, %rsi; mov %rbx, %rdi.
    const JUMP: [u8; 8] = [0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0xff, 0x25];
    const PAIR: [u8; 6] = [0x48, 0x89, 0xce, 0x48, 0x89, 0xdf];
    let (pid, exe) = (
        number(pid),
        std::fs::read_link(format!("/proc/{}/exe", number(pid))),
    );
    let exe = exe.expect("it is there").display().to_string();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let mut how = std::fs::File::options();
    let memory = how.read(true).write(true).open(format!("/proc/{pid}/mem"));
    let memory = memory.expect("its memory");
    let is_code = |line: &&str| line.contains(" r-xp ") && line.ends_with(&exe);
    for line in maps.lines().filter(is_code) {
        let (range, _) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("two");
        let [start, end] = [start, end].map(|n| u64::from_str_radix(n, 16).expect("a number"));
        let mut code = vec![0; usize::try_from(end - start).expect("it fits")];
        memory.read_exact_at(&mut code, start).expect("code");
        let at = code.windows(JUMP.len()).position(|w| w == JUMP);
        if let Some(at) = at {
            let site = start + at as u64 + 6;
            memory.write_all_at(&PAIR, site).expect("it is written");
        }
    }
}

/// That time is told of, too, in which it stood still in vain.
#[test]
fn the_pause_is_the_longest_of_all_tries() {
    const NAME: &str = "the_pause_is_the_longest_of_all_tries";
    if !as_root(NAME) {
        return;
    }
    let stage = Stage::new("faults");
    let mut victim = started(&stage, clean(program("faults")));
    let pid = number(victim.pid());
    let attach = stage.synclater(&["attach", "--json", "--pid", &pid, "-u", "1s"]);
    let mut attach = Running::start(&stage, attach);
    // One that is to stop looks for its page again and again, while the other one stands still.
    let mut looks = 0;
    let stands_still = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
        let states = tasks.flatten().map(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let first = task.file_name().to_string_lossy() == pid;
            stat.contains(if first { ") t " } else { ") R " })
        });
        looks = if states.into_iter().all(|it| it) {
            looks + 1
        } else {
            0
        };
        looks > 5
    };
    assert!(until(LIMIT, stands_still), "{}", attach.stderr());
    victim.tell("bring it");
    assert_eq!(victim.hear(), "brought");
    let told = attach.end().must_succeed();
    let session = session_of(&told);
    let told: Value = serde_json::from_str(&told.stdout).expect("JSON");
    let pause = told["attached"][0]["pause_s"].as_f64();
    // As long as threads may take to stop.
    assert!(pause >= Some(0.2), "{told:#}");
    stage.detach(&session);
    victim.end().must_succeed();
}

/// A program that uses a ring in this way (tests/sessions/rings_uring.c).
fn with_ring(stage: &Stage, way: &str) -> Running {
    let mut command = clean(program("rings_uring"));
    command.arg(stage.work().join("ring")).arg(way);
    started(stage, command)
}

/// A thread of the kernel's, which is one of the process's, is in no call.
#[test]
fn a_program_with_a_worker_of_a_ring_is_attached() {
    let stage = Stage::new("worker");
    let mut victim = with_ring(&stage, "worker");
    let session = stage.attach_to(&victim, "1s");
    stage.detach(&session);
    victim.tell("on");
    victim.end().must_succeed();
}

/// What a program prepared once, and what the kernel had not taken yet, is an FSYNC again.
#[test]
fn entries_of_a_ring_that_are_put_off_are_what_they_were_behind_a_detach() {
    let stage = Stage::new("put-back");
    let mut victim = with_ring(&stage, "attached");
    let session = stage.attach_to(&victim, "1h");
    let owes = || stage.session()["debt"].as_u64() > Some(0);
    assert!(until(LIMIT, owes), "{:#}", stage.session());
    victim.tell("on");
    assert_eq!(victim.hear(), "once");
    stage.detach(&session);
    victim.tell("on");
    victim.end().must_succeed();
}

/// Who is in the middle of putting one off when it is let go of finds that.
#[test]
fn soak_no_entry_of_a_ring_stays_put_off_behind_a_detach() {
    let stage = Stage::new("busy-rings");
    let mut command = clean(program("rings_busy_uring"));
    command.arg(stage.work()).arg("2");
    let mut victim = started(&stage, command);
    for cycle in 0..count(10, 1000) {
        let session = stage.attach_to(&victim, "1s");
        stage.detach(&session);
        victim.tell("look");
        assert_eq!(victim.hear(), "gone 0", "cycle {cycle}");
    }
    victim.end();
}
