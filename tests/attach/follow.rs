//! What an attached process starts is reached before its first instruction, and let go of with it.

use super::*;
use crate::harness::limits::count;
use rustix::process::{kill_process, Signal};
use std::path::Path;

/// A shell that does line by line what it is told, and says when it is done.
fn shell(stage: &Stage) -> Running {
    let mut command = clean("/bin/sh");
    let read = "echo ready; while read -r line; do eval \"$line\"; echo \"done $?\"; done";
    command.args(["-c", read]);
    let mut shell = Running::start(stage, command);
    shell.be_ready();
    shell
}

fn does(shell: &mut Running, line: &str) {
    shell.tell(line);
    assert_eq!(shell.hear(), "done 0", "{line}: {}", shell.stderr());
}

/// A hammer's words, behind something that takes the environment away.
fn hammer(name: &str, dir: &Path, requests: usize) -> String {
    let program = program(name);
    format!(
        "env -i {} {} 1 {requests} </dev/null",
        program.display(),
        dir.display()
    )
}

#[test]
fn soak_children_of_an_attached_shell_are_reached() {
    let (stage, requests) = (Stage::new("shell"), count(100, 10_000));
    let mut shell = shell(&stage);
    let pid = number(shell.pid());
    let session = stage.attach(&["--pid", &pid, "--follow", "--until", "1s"]);
    let all = [
        "hammer",
        "hammer_static",
        "hammer_musl",
        "hammer_32",
        "hammer_32_static",
    ];
    for name in all {
        does(&mut shell, &hammer(name, &stage.work(), requests));
    }
    let line = format!(
        "setsid sh -c '{}'",
        hammer("hammer", &stage.work(), requests)
    );
    does(&mut shell, &line);
    let report = stage.detach(&session);
    let children = all.len() + 1;
    assert_eq!(report["requests"], children * requests, "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    // From now on it is as if nothing had been.
    assert_eq!(changed_code(shell.pid()), Vec::<String>::new());
    assert_eq!(stage.traced_by(shell.pid()), 0);
    does(&mut shell, &hammer("hammer", &stage.work(), 10));
    assert_eq!(stage.sessions(), Vec::<Value>::new());
    shell.end().must_succeed();
}

/// What a session at `1h` around a shell reports that starts another one, at `until`, of which a
/// program asks 200 times.
fn around(until: &str, victim: &str) -> Value {
    let (stage, inner) = (Stage::new("inside"), Stage::new("innermost"));
    let mut shell = shell(&stage);
    let session = stage.attach(&["--pid", &number(shell.pid()), "--follow", "--until", "1h"]);
    let line = format!(
        "SYNCLATER_RUN_DIR={} SYNCLATER_STATE_DIR={} {} run -q -u {} -- {} {} 1 200 </dev/null",
        inner.run_dir().display(),
        inner.state().display(),
        crate::sessions::stage::SYNCLATER,
        until,
        program(victim).display(),
        stage.work().display()
    );
    does(&mut shell, &line);
    let report = stage.detach(&session);
    shell.end().must_succeed();
    report
}

/// The library answers for what it starts, and asks no gate.
#[test]
fn a_session_inside_of_an_attached_one_is_no_laxer_than_that() {
    let report = around("never", "hammer");
    assert_eq!(report["requests"], 200, "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
}

#[test]
fn what_a_session_inside_of_an_attached_one_does_not_reach_is_not_answered_late() {
    let report = around("now", "hammer_static");
    assert_eq!(report["skipped"], 0, "{report:#}");
}

impl Stage {
    fn traced_by(&self, pid: Pid) -> u32 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", number(pid)));
        let status = status.expect("it is there");
        let line = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
        line.and_then(|n| n.trim().parse().ok()).expect("a number")
    }
}

/// The process that `ps` shows with this executable.
fn row(stage: &Stage, exe: &str) -> Option<(Pid, String)> {
    let session = stage.session();
    let rows = session["processes"].as_array()?;
    let row = rows
        .iter()
        .find(|r| r["exe"].as_str().is_some_and(|x| x.ends_with(exe)))?;
    let pid = Pid::from_raw(i32::try_from(row["pid"].as_i64()?).ok()?)?;
    Some((pid, row["how"].as_str()?.to_owned()))
}

#[test]
fn a_child_that_was_followed_is_let_go_of_byte_for_byte() {
    for name in ["demand", "demand_32", "demand_32_static"] {
        is_let_go_of(name);
    }
}

fn is_let_go_of(name: &str) {
    let stage = Stage::new("child");
    let mut shell = shell(&stage);
    let session = stage.attach(&["--pid", &number(shell.pid()), "--follow"]);
    // Its input is the shell's from then on.
    let victim = program(name);
    shell.tell(&format!(
        "exec 3<&0; {} {} <&3",
        victim.display(),
        stage.work().display()
    ));
    assert_eq!(shell.hear(), "ready");
    shell.tell("sync file");
    assert_eq!(shell.hear(), "sync 0");
    let shown = until(LIMIT, || row(&stage, name).is_some());
    assert!(shown, "{:#}", stage.session());
    let (child, how) = row(&stage, name).expect("shown");
    assert_eq!(how, "sites");
    assert!(!changed_code(child).is_empty());
    let report = stage.detach(&session);
    assert_eq!(report["requests"], 1, "{report:#}");
    assert_eq!(changed_code(child), Vec::<String>::new());
    assert_eq!(stage.traced_by(child), 0);
    shell.tell("sync file");
    assert_eq!(shell.hear(), "sync 0");
    shell.end();
}

#[test]
fn soak_a_killed_tracer_of_an_attached_shell_harms_nobody() {
    for _ in 0..count(5, 200) {
        let stage = Stage::new("tracer-of-shell");
        let mut shell = shell(&stage);
        let pid = number(shell.pid());
        let session = stage.attach(&["--pid", &pid, "--follow", "--until", "1s"]);
        let tracer = stage.traced_by(shell.pid());
        let line = hammer("hammer", &stage.work(), 3);
        shell.tell(&format!(
            "for k in 1 2 3 4 5 6 7 8; do {line} || exit 9; done"
        ));
        let tracer = Pid::from_raw(tracer.cast_signed()).expect("a tracer");
        kill_process(tracer, Signal::KILL).expect("it runs");
        assert_eq!(shell.hear(), "done 0", "{}", shell.stderr());
        let tells = || {
            let all = stage.session()["escaped"]
                .as_array()
                .expect("escaped")
                .clone();
            all.iter().any(|e| e["exe"] == "(tracer)")
        };
        assert!(until(LIMIT, tells), "{:#}", stage.session());
        stage.detach(&session);
        assert_eq!(changed_code(shell.pid()), Vec::<String>::new());
        shell.end().must_succeed();
    }
}

/// Makes children of children that are left alone at once: what they execute is not meant.
const LEAVES_ALONE: &str = "\
import os, subprocess, sys
meant = subprocess.Popen([sys.argv[1], sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
meant.stdout.readline()
print('ready', flush=True)
sys.stdin.readline()
for k in range(int(sys.argv[4])):
    if not os.fork():
        if not os.fork():
            os.execv(sys.argv[3], [sys.argv[3], sys.argv[2], '1', '3'])
        os._exit(0)
    os.wait()
print('done', flush=True)
sys.stdin.readline()
meant.communicate()
";

#[test]
fn soak_what_is_not_meant_is_left_alone() {
    let (stage, rounds) = (Stage::new("meant"), count(100, 3000).to_string());
    let meant = stage.file("a-meant-one");
    crate::harness::command::copy_program(program("demand"), &meant);
    let mut command = clean("/usr/bin/python3");
    command
        .args(["-c", LEAVES_ALONE])
        .arg(&meant)
        .arg(stage.work());
    command.arg(program("hammer")).arg(rounds);
    let mut parent = Running::start(&stage, command);
    parent.be_ready();
    let session = stage.attach(&["--exe", "a-meant-one", "--follow", "--until", "1s"]);
    assert_ne!(stage.traced_by(parent.pid()), 0, "it is watched");
    parent.tell("go");
    assert_eq!(parent.hear(), "done");
    let report = stage.detach(&session);
    assert_eq!(report["requests"], 0, "{report:#}");
    parent.tell("end");
    parent.end().must_succeed();
}

#[test]
fn a_program_that_cannot_be_reached_is_named() {
    let stage = Stage::new("linker");
    let mut shell = shell(&stage);
    let session = stage.attach(&["--pid", &number(shell.pid()), "--follow"]);
    let linker = "/lib64/ld-linux-x86-64.so.2";
    let line = format!(
        "{linker} {} {} 1 3",
        program("hammer").display(),
        stage.work().display()
    );
    does(&mut shell, &line);
    let named = |report: &Value| {
        let all = report["escaped"].as_array().expect("escaped").clone();
        all.iter()
            .any(|e| e["exe"].as_str().is_some_and(|x| x.contains("ld-linux")))
    };
    let report = stage.detach(&session);
    assert!(named(&report), "{report:#}");
    shell.end().must_succeed();
}

/// What a thread is about to take when the tracer ends, it takes.
#[test]
fn soak_no_signal_is_lost_when_nobody_is_followed_any_more() {
    let stage = Stage::new("queued");
    let mut victim = started(&stage, clean(program("queued")));
    let pid = number(victim.pid());
    for _ in 0..count(20, 500) {
        let session = stage.attach(&["--pid", &pid, "-u", "1s", "--follow"]);
        stage.detach(&session);
    }
    let said = victim.end().must_succeed().stdout;
    assert!(said.ends_with(" lost 0\n"), "{said}");
}
