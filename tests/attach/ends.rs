//! Whoever is killed, and whatever the process does meanwhile: it lives on, nothing stands still
//! for ever, and the next session works.

use super::*;
use crate::follow::in_go;
use crate::harness::command::run;
use crate::harness::limits::{below, count, seed, skip};
use crate::sessions::death::children;
use crate::sessions::stage::{as_root, SYNCLATER};
use rustix::process::{kill_process, Signal};

#[test]
fn soak_whatever_is_killed_the_process_lives_on() {
    let stage = Stage::new("kills");
    let mut victim = busy(&stage, "busy", 4);
    let seed = seed();
    let mut state = seed;
    for round in 0..count(12, 200) {
        let what = format!("seed {seed} round {round}");
        let words = ["attach", "--pid", &number(victim.pid())];
        let mut front = Running::start(&stage, stage.synclater(&words));
        kill_one_of(&stage, &mut state, 60);
        front.end();
        must_run(victim.pid());
        if let Some(session) = front.stdout().split(':').next().filter(|s| !s.is_empty()) {
            let words = ["detach", session];
            let mut detach = Running::start(&stage, stage.synclater(&words));
            if round % 2 == 0 {
                kill_one_of(&stage, &mut state, 30);
            }
            detach.end();
        }
        must_run(victim.pid());
        assert!(
            rustix::process::test_kill_process(victim.pid()).is_ok(),
            "{what}"
        );
    }
    // Where the command in front was killed, its session may live on; or begin still, attach, see
    // that nobody listens, and let go.
    let all_ended = until(LIMIT, || {
        for session in stage.sessions() {
            // Or end in between.
            let _ = stage.ask(&["detach", session["id"].as_str().expect("an id")]);
        }
        stage.of_synclater().is_empty()
    });
    assert!(all_ended, "seed {seed}: {:?}", stage.of_synclater());
    // A session that was killed lets go of nothing; the next one takes over and does.
    let mut session = None;
    let mut said = String::new();
    let again = until(LIMIT, || {
        let outcome = stage.ask(&["attach", "--json", "--pid", &number(victim.pid())]);
        let told: Result<Value, _> = serde_json::from_str(&outcome.stdout);
        session = told.ok().and_then(|t| Some(t["id"].as_str()?.to_owned()));
        said = outcome.to_string();
        outcome.status.success()
    });
    assert!(again, "seed {seed}: {said}");
    println!("seed {seed}");
    let left = stage.detach(&session.expect("a session"));
    super::cycles::must_be_let_go_of(&stage, &victim, left);
    must_be_right_but_for_a_killed_tracer(&mut victim);
}

/// Ends a busy victim. A wait that says EINTR where the kernel looks for signals in vain does so
/// when its tracer is killed in between: only a tracer could undo that (docs/LIMITS.md).
fn must_be_right_but_for_a_killed_tracer(victim: &mut Running) {
    let outcome: Outcome = victim.end();
    let is_such = |l: &&str| l.contains("epoll_wait(") && l.ends_with("errno 4");
    let such = outcome.stderr.lines().filter(is_such).count();
    let last = outcome.stdout.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("rounds ") && last.ends_with(&format!(" wrong {such}")),
        "{outcome}"
    );
}

/// Kills one process of synclater after up to `ms` milliseconds.
fn kill_one_of(stage: &Stage, state: &mut u64, ms: u64) {
    crate::sessions::stage::pass(std::time::Duration::from_micros(below(state, ms * 1000)));
    let all = stage.of_synclater();
    if let Some(pid) = all.get(below(state, all.len().max(1) as u64) as usize) {
        // It may have ended in between.
        let _ = kill_process(*pid, Signal::KILL);
    }
}

#[test]
fn a_session_whose_supervisor_was_killed_is_real_at_once_and_can_be_let_go_of() {
    let stage = Stage::new("killed");
    let mut victim = demand(&stage);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let supervisor = stage.session()["pid"].as_i64().expect("a number");
    let supervisor = Pid::from_raw(i32::try_from(supervisor).expect("a pid")).expect("a pid");
    kill_process(supervisor, Signal::KILL).expect("it runs");
    let gone = || rustix::process::test_kill_process(supervisor).is_err();
    assert!(until(LIMIT, gone));
    // The keeper settles and closes the entry.
    assert!(until(LIMIT, || stage.entries().is_empty()));
    assert_ne!(changed_code(victim.pid()), Vec::<String>::new());
    let outcome = stage.ask(&["detach", &session]).must_succeed();
    assert!(outcome.stdout.contains("1 process let go of"), "{outcome}");
    assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    stage.detach(&session);
}

/// Go waits for the lock of a channel on the goroutine's own stack, of 2 KiB.
#[test]
fn soak_goroutines_that_wait_for_locks_keep_what_is_on_their_stacks() {
    let stage = Stage::new("contend");
    let Some(program) = in_go(&stage, "tests/attach/contend.go") else {
        const NAME: &str = "soak_goroutines_that_wait_for_locks_keep_what_is_on_their_stacks";
        return skip(NAME, "no Go compiler (go) is installed");
    };
    let mut command = clean(program);
    command.env("GOMAXPROCS", "8");
    let mut victim = Running::start(&stage, command);
    victim.be_ready();
    for _ in 0..count(40, 1000) {
        let session = stage.attach(&["--pid", &number(victim.pid()), "-u", "1h"]);
        stage.detach(&session);
    }
    let end = victim.end();
    assert_eq!(end.stdout, "ready\nwrong 0\n", "{end}");
}

/// Attaches to victims that end, or execute another program, at a random moment.
fn in_the_middle(name: &str, script: &str) {
    in_the_middle_of(name, script, "", |end| {
        assert!(end.stdout.ends_with("done\n"), "{end}");
        assert_eq!(end.stderr, "", "{end}");
    });
}

/// As before; the script has a third argument, and `is_right` looks at how it ended.
fn in_the_middle_of(name: &str, script: &str, more: &str, is_right: impl Fn(&Outcome)) {
    let stage = Stage::new(name);
    let seed = seed();
    let mut state = seed;
    let mut attached = 0;
    for round in 0..count(12, 200) {
        let mut command = clean("/usr/bin/python3");
        command.args(["-c", script]).arg(stage.work());
        command.arg(below(&mut state, 40).to_string()).arg(more);
        let mut victim = Running::start(&stage, command);
        victim.be_ready();
        let words = ["attach", "--json", "--pid", &number(victim.pid())];
        let outcome = stage.ask(&words);
        let what = format!("seed {seed} round {round}: {outcome}");
        assert!(matches!(outcome.status.code(), Some(0 | 125)), "{what}");
        must_run(victim.pid());
        if outcome.status.success() {
            attached += 1;
        }
        is_right(&victim.end());
        let over = until(LIMIT, || stage.sessions().is_empty());
        assert!(over, "{what}: {:?}", stage.sessions());
    }
    println!("{name}: {attached} were attached");
}

const FORKS: &str = "\
import os, sys, time
fd = os.open(sys.argv[1] + '/file', os.O_CREAT | os.O_RDWR)
print('ready', flush=True)
end = time.monotonic() + int(sys.argv[2]) / 1000
while time.monotonic() < end:
    os.fsync(fd)
";

#[test]
fn soak_a_process_may_end_while_it_is_attached() {
    in_the_middle(
        "ends",
        &format!("{FORKS}print('done', flush=True)\nos._exit(0)\n"),
    );
}

#[test]
fn soak_a_process_may_execute_another_program_while_it_is_attached() {
    let exec = "os.execv('/bin/sh', ['sh', '-c', 'echo done'])\n";
    in_the_middle("executes", &format!("{FORKS}{exec}"));
}

#[test]
fn soak_a_process_may_fork_while_it_is_attached() {
    let fork = "\
for k in range(50):
    child = os.fork()
    if not child:
        os.fsync(fd)
        os._exit(23)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 23
print('done', flush=True)
";
    in_the_middle("forks", &format!("{FORKS}{fork}"));
}

/// A control group with little memory; gone with its guard.
struct LittleMemory(std::path::PathBuf);

impl LittleMemory {
    fn new(name: &str) -> Option<LittleMemory> {
        let (v1, v2) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup");
        let kinds = [(v1, "memory.limit_in_bytes"), (v2, "memory.max")];
        for (hierarchy, limit) in kinds {
            let group = std::path::Path::new(hierarchy).join(name);
            if std::fs::create_dir(&group).is_ok() {
                let group = LittleMemory(group);
                if std::fs::write(group.0.join(limit), "40000000").is_ok() {
                    let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
                    return Some(group);
                }
            }
        }
        None
    }
}

impl Drop for LittleMemory {
    fn drop(&mut self) {
        // A process that was killed leaves it a moment later.
        until(LIMIT, || {
            std::fs::remove_dir(&self.0).is_ok() || !self.0.exists()
        });
    }
}

#[test]
fn soak_a_process_may_be_killed_for_its_memory_while_it_is_attached() {
    use std::os::unix::process::ExitStatusExt;
    const NAME: &str = "soak_a_process_may_be_killed_for_its_memory_while_it_is_attached";
    let Some(group) = LittleMemory::new(&format!("synclater-test-{}", std::process::id())) else {
        return crate::harness::limits::skip(NAME, "no control group with a memory limit");
    };
    let join = "import sys; open(sys.argv[3] + '/cgroup.procs', 'w').write('0')\n";
    let eat = "all = []\nwhile True: all.append(bytearray(os.urandom(4096)) * 256)\n";
    let script = format!("{join}{FORKS}{eat}");
    in_the_middle_of("memory", &script, &group.0.display().to_string(), |end| {
        assert_eq!(end.status.signal(), Some(9), "{end}");
    });
}

#[test]
fn detach_says_no_good_of_whom_it_cannot_look_at() {
    if !as_root("detach_says_no_good_of_whom_it_cannot_look_at") {
        return;
    }
    // What had begun before the session did, nobody attached has forked.
    for is_before in [true, false] {
        let stage = Stage::new("unseen");
        let before = is_before.then(|| closing(&stage, "lock"));
        let mut victim = closing(&stage, "hold");
        let session = stage.attach_to(&victim, "1h");
        stage.warm(&mut victim);
        let since = (!is_before).then(|| closing(&stage, "lock"));
        let outcome = stage.ask(&["detach", &session]);
        let expected = if is_before { 0 } else { 125 };
        assert_eq!(outcome.status.code(), Some(expected), "{outcome}");
        let is_told = outcome.stderr.contains("cannot be looked at");
        assert_eq!(is_told, since.is_some(), "{outcome}");
        assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
        for mut locked in before.into_iter().chain(since) {
            locked.end();
        }
    }
}

/// Whether a process holds the lock of its memory: then whoever reads its maps waits.
fn is_locked(pid: &str) -> bool {
    let mut look = clean("timeout");
    let maps = format!("/proc/{pid}/maps");
    run(look.args(["0.5", "cat", &maps])).status.code() == Some(124)
}

/// A program that serves a file system of its own, in a folder named after what it is to do.
fn closing(stage: &Stage, how: &str) -> Running {
    let folder = stage.work().join(how);
    std::fs::create_dir(&folder).expect("a folder");
    let mut command = clean("unshare");
    command.args(["-m", "--propagation", "private"]);
    command.arg(program("closing")).arg(folder).arg(how);
    let mut begun = Running::start(stage, command);
    begun.be_ready();
    begun
}

#[test]
fn attach_gives_up_on_whom_it_cannot_look_at() {
    if !as_root("attach_gives_up_on_whom_it_cannot_look_at") {
        return;
    }
    let stage = Stage::new("locked");
    let mut locked = closing(&stage, "lock");
    let its = children(locked.pid(), "closing");
    let holder = its
        .iter()
        .map(|pid| number(*pid))
        .find(|pid| is_locked(pid));
    let outcome = stage.ask(&["attach", "--pid", &holder.expect("who holds the lock")]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(
        outcome.stderr.contains("could not be looked at"),
        "{outcome}"
    );
    locked.end();
}

#[test]
fn detach_gives_up_on_whom_it_cannot_look_at_any_more() {
    if !as_root("detach_gives_up_on_whom_it_cannot_look_at_any_more") {
        return;
    }
    let stage = Stage::new("locked-since");
    let mut victim = closing(&stage, "self");
    let pid = number(victim.pid());
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    victim.tell("lock");
    assert!(until(LIMIT, || is_locked(&pid)));
    let outcome = stage.ask(&["detach", &session]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    let told = format!("cannot let go of {pid}");
    assert!(outcome.stderr.contains(&told), "{outcome}");
    // It waits for its server.
    for pid in children(victim.pid(), "closing") {
        kill_process(pid, Signal::KILL).expect("it lives");
    }
    kill_process(victim.pid(), Signal::KILL).expect("it lives");
    victim.end();
}

#[test]
fn a_lock_of_who_attached_is_not_held_by_what_stays() {
    let stage = Stage::new("callers-lock");
    let mut victim = Running::start(&stage, {
        let mut command = clean(program("demand"));
        command.arg(stage.work());
        command
    });
    victim.be_ready();
    let script = "exec 9>\"$0\" 8>\"$3\" && flock 9 && \
                  \"$1\" attach --pid \"$2\" -u 1h --record /dev/fd/8";
    let (lock, recording) = (stage.file("lock"), stage.file("recording"));
    let mut attach = stage.with_folders("sh");
    attach.args(["-c", script]).arg(&lock);
    attach
        .arg(SYNCLATER)
        .arg(number(victim.pid()))
        .arg(&recording);
    run(&mut attach).must_succeed();
    run(clean("flock").arg("-n").arg(&lock).arg("true")).must_succeed();
    stage.detach(&stage.id());
    let recorded = std::fs::metadata(recording).expect("a recording");
    assert!(recorded.len() > 0);
    victim.end().must_succeed();
}
