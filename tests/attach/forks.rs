//! What is forked while its session ends.

use super::*;
use crate::harness::command::run;
use crate::harness::disk::keep_mounts_private;
use crate::sessions::death::{children, is_gone};
use crate::sessions::stage::{as_root, AS_NOBODY, SYNCLATER};
use rustix::process::{kill_process, Signal};

/// Forks each so many seconds until there is a file `enough`, then makes one `heard`; each other
/// child lives until there is one `done`.
const STORM: &str = "\
import os, sys, time
there = lambda name: os.path.exists(sys.argv[1] + '/' + name)
fd = os.open(sys.argv[1] + '/file', os.O_CREAT | os.O_RDWR)
print('ready', flush=True)
k = 0
while not there('done'):
    os.fsync(fd)
    if not there('enough'):
        k += 1
        if not os.fork():
            end = time.monotonic() + 0.2
            while not there('done') and (k % 2 or time.monotonic() < end):
                time.sleep(0.1)
            os._exit(0)
        time.sleep(float(sys.argv[2]))
    else:
        open(sys.argv[1] + '/heard', 'w').close()
        time.sleep(0.02)
while k:
    os.wait()
    k -= 1
";

/// A build for debugging takes 50 ms for each that it lets go of, and half of them live on.
const SELDOM: &str = "0.1";

/// The storm, with so many seconds between two forks, attached by `ask`, once it has forked some;
/// the session's name.
fn storm(stage: &Stage, gap: &str, ask: &dyn Fn(&[&str]) -> Outcome) -> (Running, String) {
    let mut command = clean("/usr/bin/python3");
    command.args(["-c", STORM]).arg(stage.work()).arg(gap);
    let mut storm = Running::start(stage, command);
    storm.be_ready();
    let pid = number(storm.pid());
    let outcome = ask(&["attach", "--json", "--pid", &pid, "-u", "1h"]).must_succeed();
    let told: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let session = told["id"].as_str().expect("an id").to_owned();
    assert!(until(LIMIT, || forked(&storm).len() > 20));
    (storm, session)
}

fn forked(storm: &Running) -> Vec<Pid> {
    children(storm.pid(), "python3")
}

/// Kills what the session consists of.
fn kill_all(stage: &Stage) {
    let pids = stage.of_synclater();
    for pid in &pids {
        // It may have ended by itself.
        let _ = kill_process(*pid, Signal::KILL);
    }
    // A process that ends has no program any more while it still closes its files.
    let are_gone = || pids.iter().all(is_gone) && stage.of_synclater().is_empty();
    assert!(until(LIMIT, are_gone));
}

/// None of the processes has code of ours; then it ends.
fn all_are_let_go_of(stage: &Stage, mut storm: Running) {
    let touch = |name: &str| std::fs::write(stage.work().join(name), "").expect("a file");
    touch("enough");
    let heard = stage.work().join("heard");
    assert!(until(LIMIT, || heard.exists()), "{:?}", forked(&storm));
    // Those that live for a moment are zombies by then: they have no code.
    let lives = |pid: &Pid| !is_gone(pid);
    let few = until(LIMIT, || {
        let all = forked(&storm);
        all.iter().filter(|pid| lives(pid)).count() * 2 <= all.len() + 1
    });
    assert!(few, "{:?}", forked(&storm));
    let all: Vec<Pid> = forked(&storm).into_iter().filter(lives).collect();
    assert!(all.len() > 5, "{all:?}");
    // What was forked in the middle of the attach may keep what it was brought by, behind the
    // program's own code, which nothing leads to (docs/LIMITS.md).
    let changed = |pid: Pid| changed_code(pid).iter().any(|at| at.contains("libc.so"));
    let left = all.iter().copied().filter(|pid| changed(*pid)).count();
    assert_eq!(left, 0, "of {}", all.len());
    assert!(!changed(storm.pid()));
    touch("done");
    storm.end().must_succeed();
}

#[test]
fn what_is_forked_is_let_go_of_whatever_its_folder_is_called() {
    if !as_root("what_is_forked_is_let_go_of_whatever_its_folder_is_called") {
        return;
    }
    keep_mounts_private();
    let stage = Stage::new("linked");
    // Where it lies in memory, that lies in the folder; the kernel names it without the link.
    let mut mount = clean("mount");
    run(mount
        .args(["-t", "tmpfs", "-o", "mode=711", "none"])
        .arg(stage.run_dir()))
    .must_succeed();
    let link = stage.file("link");
    std::os::unix::fs::symlink(".", &link).expect("a link");
    let dir = link.join("run");
    let ask = |words: &[&str]| run(stage.synclater(words).env("SYNCLATER_RUN_DIR", &dir));
    let (storm, session) = storm(&stage, SELDOM, &ask);
    ask(&["detach", &session]).must_succeed();
    all_are_let_go_of(&stage, storm);
    run(clean("umount").arg("-l").arg(stage.run_dir())).must_succeed();
}

#[test]
fn what_is_forked_while_a_dead_session_is_let_go_of_is_let_go_of_too() {
    let stage = Stage::new("storm");
    let ask = |words: &[&str]| stage.ask(words);
    let (storm, session) = storm(&stage, SELDOM, &ask);
    kill_all(&stage);
    let outcome = ask(&["detach", &session]);
    // What it owes may be settled by nobody else, and then it is said.
    let is_settled = !outcome.stderr.contains("not everything is settled");
    let status = outcome.status.code();
    assert_eq!(status, Some(if is_settled { 0 } else { 125 }), "{outcome}");
    assert!(!outcome.stderr.contains("cannot let go of"), "{outcome}");
    all_are_let_go_of(&stage, storm);
}

/// Forks a child that hides its memory, as it is told.
const HIDES: &str = "\
import ctypes, os, sys
libc = ctypes.CDLL(None)
fd = os.open(sys.argv[1] + '/file', os.O_CREAT | os.O_RDWR)
print('ready', flush=True)
for line in sys.stdin:
    os.fsync(fd)
    if line == 'fork\\n' and not os.fork():
        libc.prctl(4, 0, 0, 0, 0)
        print('hidden', flush=True)
        sys.stdin.readline()
        os._exit(0)
    if line == 'exec\\n' and not os.fork():
        libc.prctl(4, 0, 0, 0, 0)
        if os.fork():
            program = 'import sys; print(\"hidden\", flush=True); sys.stdin.readline()'
            os.execv(sys.executable, ['python3', '-c', program])
        sys.stdin.readline()
        os._exit(0)
";

#[test]
fn a_fork_that_hides_its_memory_is_named() {
    if !as_root("a_fork_that_hides_its_memory_is_named") {
        return;
    }
    // Also where who has forked it has ended, and the session has noticed that and ends, too, or
    // executes something else, under the same name.
    let cases = [
        "lives",
        "executes",
        "has ended",
        "its session has ended",
        "supervisor killed",
    ];
    for case in cases {
        let stage = Stage::for_nobody("hides");
        let as_nobody = |words: &[&str]| {
            let mut command = stage.with_folders(AS_NOBODY[0]);
            command.args(&AS_NOBODY[1..]).arg(SYNCLATER).args(words);
            run(&mut command)
        };
        let mut command = clean(AS_NOBODY[0]);
        command
            .args(&AS_NOBODY[1..])
            .args(["/usr/bin/python3", "-c", HIDES])
            .arg(stage.work());
        let mut victim = Running::start(&stage, command);
        victim.be_ready();
        let pid = number(victim.pid());
        let told = as_nobody(&["attach", "--json", "--pid", &pid, "-u", "1h"]).must_succeed();
        let told: Value = serde_json::from_str(&told.stdout).expect("JSON");
        let session = told["id"].as_str().expect("an id");
        let is_exec = case == "executes";
        victim.tell(if is_exec { "exec" } else { "fork" });
        assert_eq!(victim.hear(), "hidden");
        if case.contains("ended") {
            victim.send(Signal::KILL);
            assert!(until(LIMIT, || crate::sessions::death::is_gone(
                &victim.pid()
            )));
        }
        match case {
            "its session has ended" => {
                let listed = || as_nobody(&["ps", "--json"]).stdout.contains(session);
                assert!(until(LIMIT, || !listed()));
            }
            "supervisor killed" => kill_all(&stage),
            _ => {}
        }
        let outcome = as_nobody(&["detach", session]);
        assert_eq!(outcome.status.code(), Some(125), "{case}: {outcome}");
        let is_named = outcome.stderr.contains("cannot be looked at");
        assert!(is_named, "{case}: {outcome}");
    }
}
