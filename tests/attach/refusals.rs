//! What cannot be attached says why, and is left alone.

use super::*;
use crate::harness::command::run;
use crate::sessions::stage::{as_root, has_four_parts, AS_NOBODY, SYNCLATER};
use rustix::process::Signal;
use std::path::PathBuf;

/// Attaching process `pid` fails, with this in the message.
pub(super) fn refused(stage: &Stage, pid: &str, why: &str) {
    let outcome = stage.ask(&["attach", "--pid", pid]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains(why), "{why}: {outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert_eq!(stage.sessions(), Vec::<Value>::new());
}

#[test]
fn what_is_no_program_of_a_user_is_refused() {
    let stage = Stage::new("none");
    refused(&stage, "1", "what the machine depends on");
    refused(&stage, "4194303", "there is no process 4194303");
    let kernel = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if kernel == "kthreadd\n" {
        refused(&stage, "2", "a thread of the kernel");
    }
}

#[test]
fn a_thread_is_no_process() {
    let stage = Stage::new("thread");
    let victim = busy(&stage, "busy", 1);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", number(victim.pid())));
    let other = tasks
        .expect("tasks")
        .flatten()
        .map(|t| t.file_name().to_string_lossy().into_owned())
        .find(|tid| *tid != number(victim.pid()));
    refused(
        &stage,
        &other.expect("a thread"),
        "it is a thread of process",
    );
}

#[test]
fn what_is_not_there_is_not_said_to_run() {
    let stage = Stage::new("nobody");
    let mut ended = demand(&stage);
    ended.send(Signal::KILL);
    let zombie = number(ended.pid());
    assert!(until(LIMIT, || crate::sessions::death::is_gone(
        &ended.pid()
    )));
    for pid in ["4194305", &zombie] {
        let told = stage.ask(&["attach", "--pid", pid]);
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert!(!told.stderr.contains("as before"), "{told}");
    }
    ended.end();
}

#[test]
fn a_process_that_can_have_no_helper_is_refused_and_goes_on() {
    const NAME: &str = "a_process_that_can_have_no_helper_is_refused_and_goes_on";
    if !as_root(NAME) {
        return;
    }
    let (stage, others) = (Stage::new("roots"), Stage::for_nobody("no-helper"));
    let mut command = clean(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).args(["prlimit", "--nproc=1"]);
    command.arg(program("demand")).arg(others.work());
    let mut victim = started(&others, command);
    refused(&stage, &number(victim.pid()), "it can have no helper");
    assert_eq!(victim.sync("file"), 0);
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    victim.end();
}

#[test]
fn a_process_that_is_traced_is_refused_until_the_tracer_has_gone() {
    let stage = Stage::new("traced");
    let mut victim = demand(&stage);
    let pid = number(victim.pid());
    let mut command = clean("strace");
    let log = stage.file("strace");
    command.args(["-f", "-p", &pid, "-o"]).arg(&log);
    let mut tracer = Running::start(&stage, command);
    let is_traced = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.contains("TracerPid:\t0")
    };
    assert!(until(LIMIT, is_traced), "{}", tracer.stderr());
    refused(&stage, &pid, "(strace)");
    tracer.send(rustix::process::Signal::INT);
    tracer.end();
    let session = stage.attach_to(&victim, "1s");
    // And the other way round: once it is attached nobody traces it, so others can.
    assert!(!is_traced());
    stage.warm(&mut victim);
    stage.detach(&session);
}

#[test]
fn a_process_in_a_debugger_is_refused_and_one_that_is_followed_cannot_be_debugged() {
    const NAME: &str =
        "a_process_in_a_debugger_is_refused_and_one_that_is_followed_cannot_be_debugged";
    let gdb = |stage: &Stage, pid: &str, what: &[&str]| {
        let mut command = stage.with_folders("gdb");
        command.args(["-nx", "-batch", "-p", pid]);
        for word in what {
            command.args(["-ex", word]);
        }
        command
    };
    if clean("gdb").arg("-version").output().is_err() {
        return crate::harness::limits::skip(NAME, "no gdb is installed");
    }
    let stage = Stage::new("gdb");
    let mut victim = demand(&stage);
    let pid = number(victim.pid());
    let mut debugger = Running::start(&stage, gdb(&stage, &pid, &["shell echo ready; read line"]));
    assert!(until(LIMIT, || debugger.stdout().contains("ready")));
    refused(&stage, &pid, "(gdb)");
    debugger.end().must_succeed();
    let session = stage.attach(&["--pid", &pid, "--follow", "--until", "1s"]);
    let outcome = crate::harness::command::run(&mut gdb(&stage, &pid, &["bt"]));
    assert!(
        outcome.stderr.contains("Operation not permitted"),
        "{outcome}"
    );
    stage.warm(&mut victim);
    stage.detach(&session);
    let outcome = crate::harness::command::run(&mut gdb(&stage, &pid, &["bt"])).must_succeed();
    assert!(outcome.stdout.contains("main"), "{outcome}");
}

#[test]
fn a_process_of_another_session_is_refused() {
    let stage = Stage::new("taken");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1s");
    let outcome = stage.ask(&["attach", "--pid", &number(victim.pid())]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    let why = format!("it is attached to session {session}");
    assert!(outcome.stderr.contains(&why), "{outcome}");
    stage.warm(&mut victim);
    stage.detach(&session);
}

#[test]
fn a_process_that_was_started_with_the_library_is_refused() {
    let stage = Stage::new("launched");
    let mut victim = stage.demand(&["--until", "1s"]);
    victim.be_ready();
    let pid = stage.session()["processes"][0]["pid"].to_string();
    let outcome = stage.ask(&["attach", "--pid", &pid]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("synclater run"), "{outcome}");
    let outcome = stage.ask(&["attach", "--pid", &number(victim.pid())]);
    assert!(
        outcome.stderr.contains("it is synclater itself"),
        "{outcome}"
    );
    let outcome = stage.ask(&["detach", &stage.id()]);
    assert!(
        outcome.stderr.contains("ends with its command"),
        "{outcome}"
    );
}

/// Creates and syncs the file that it is told, says "ready", and ends with its input.
const BARE: &str = "\
.globl _start
_start: mov $8, %eax; mov 8(%esp), %ebx; mov $0600, %ecx; int $0x80
mov %eax, %ebx; mov $118, %eax; int $0x80
mov $4, %eax; mov $1, %ebx; mov $text, %ecx; mov $6, %edx; int $0x80
1: mov $3, %eax; xor %ebx, %ebx; mov $room, %ecx; mov $1, %edx; int $0x80
test %eax, %eax; jg 1b
mov $1, %eax; xor %ebx, %ebx; int $0x80
.data
text: .ascii \"ready\\n\"
room: .byte 0
.section .note.GNU-stack,\"\",@progbits
";

/// A static 32-bit program without a libc, which enters the kernel by `int $0x80`.
pub fn bare_32(stage: &Stage) -> PathBuf {
    let (source, built) = (stage.file("bare.s"), stage.file("bare"));
    std::fs::write(&source, BARE).expect("a source");
    let mut gcc = clean("gcc");
    gcc.args(["-m32", "-nostdlib", "-static", "-o"]);
    run(gcc.arg(&built).arg(&source)).must_succeed();
    built
}

#[test]
fn a_program_that_no_gate_can_be_put_into_is_refused() {
    let stage = Stage::new("foreign");
    let mut victim = Running::start(&stage, {
        let mut command = clean(bare_32(&stage));
        command.arg(stage.work().join("file"));
        command
    });
    victim.be_ready();
    refused(&stage, &number(victim.pid()), "no system-call site");
    victim.end().must_succeed();
}

#[test]
fn another_users_process_is_refused() {
    if !as_root("another_users_process_is_refused") {
        return;
    }
    let (stage, others) = (Stage::new("roots"), Stage::for_nobody("nobodys"));
    let victim = demand(&stage);
    let mut command = others.with_folders(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).arg(SYNCLATER);
    command.args(["attach", "--pid", &number(victim.pid())]);
    let outcome = run(&mut command);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("it belongs to user 0"), "{outcome}");
}

#[test]
fn dials_that_have_no_end_are_refused() {
    let stage = Stage::new("dials");
    for (options, why) in [
        (&["-u", "exit"][..], "there is none that would end"),
        (&["-u", "never"], "add one: --for"),
        (&["--exe", ""], "the glob is empty"),
        (&["--unit", "no such unit"], "no running unit has that name"),
    ] {
        let words = [&["attach", "--pid", "1"][..], options].concat();
        let outcome = stage.ask(&words);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(outcome.stderr.contains(why), "{outcome}");
    }
    let outcome = stage.ask(&["attach"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    let outcome = stage.ask(&["detach", "nobody"]);
    assert!(
        outcome.stderr.contains("there is no session nobody"),
        "{outcome}"
    );
}

/// A program of 64 bits that waits, whose code is a file of so many bytes with hardly anything in
/// it.
fn sparse_program(path: &std::path::Path, bytes: u64) {
    const AT: u64 = 0x40_0000;
    let word = u64::to_le_bytes;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // An executable for x86-64: its entry, and one header of a segment.
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    [AT + 120, 64, 0].iter().for_each(|w| file.extend(word(*w)));
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    // Loaded, to be executed and read.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let segment = [0, AT, AT, bytes, bytes, 4096];
    segment.iter().for_each(|w| file.extend(word(*w)));
    // pause(2), again and again.
    file.extend([0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]);
    std::fs::write(path, file).expect("a program");
    let program = std::fs::File::options().write(true).open(path);
    program.and_then(|f| f.set_len(bytes)).expect("its length");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("chmod");
}

#[test]
fn a_program_of_more_code_than_is_searched_is_refused() {
    let stage = Stage::new("sparse");
    let path = stage.file("sparse");
    sparse_program(&path, 1 << 40);
    let victim = Running::start(&stage, clean(&path));
    // Not in the middle of its exec: what it executes is another thing a moment later.
    let call = format!("/proc/{}/syscall", number(victim.pid()));
    let waits = || std::fs::read_to_string(&call).is_ok_and(|c| c.starts_with("34 "));
    assert!(until(LIMIT, waits), "it does not pause");
    let why = "its code is of 1.0 TiB, and no more than 512 MiB are searched";
    refused(&stage, &number(victim.pid()), why);
    // Nor does it end who follows others.
    let mut command = stage.with_folders(SYNCLATER);
    let script = "\"$0\" & waits=$!; \"$1\" \"$2\" 1 100; kill $waits";
    command
        .args(["run", "--quiet", "--follow", "--"])
        .args(["env", "-i", "sh", "-c", script]);
    command
        .arg(&path)
        .arg(program("hammer_static"))
        .arg(stage.work());
    let outcome = run(&mut command).must_succeed();
    assert!(!outcome.stderr.contains("was killed"), "{outcome}");
}
