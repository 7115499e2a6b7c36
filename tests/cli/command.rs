//! The command under synclater is as it would be without: status, signals, terminal, streams.

use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::sessions::stage::{Running, Stage, SYNCLATER};
use crate::wait::until;
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

#[test]
fn the_exit_status_is_the_commands_own() {
    let stage = Stage::new("status");
    for status in [0, 1, 23, 124, 125, 126, 127, 128, 255] {
        let script = format!("exit {status}");
        let outcome = stage.ask(&["run", "--", "sh", "-c", &script]);
        assert_eq!(outcome.status.code(), Some(status), "{outcome}");
        assert_eq!(outcome.stderr, "", "{outcome}");
    }
}

#[test]
fn a_death_by_signal_is_passed_on() {
    let stage = Stage::new("death");
    for signal in [1, 2, 3, 6, 9, 11, 13, 14, 15, 31, 34, 64] {
        let script = format!("ulimit -c 0; kill -{signal} $$");
        let outcome = stage.ask(&["run", "--", "sh", "-c", &script]);
        assert_eq!(outcome.status.signal(), Some(signal), "{outcome}");
    }
    let in_shell = "\"$1\" run --quiet -- sh -c 'kill -9 $$'; echo $?";
    let outcome = run(stage
        .with_folders("sh")
        .args(["-c", in_shell, "sh", SYNCLATER]));
    assert_eq!(outcome.stdout, "137\n", "{outcome}");
}

#[test]
fn a_limit_that_is_too_small_for_a_session_is_named() {
    let stage = Stage::new("limits");
    let under = |limit: &str| {
        let script = format!("ulimit {limit}; exec \"$0\" run -- true");
        run(stage.with_folders("sh").args(["-c", &script, SYNCLATER]))
    };
    let named = |limit: &str, by: &str| {
        let outcome = under(limit);
        let is_named = outcome.stderr.contains(by);
        assert_eq!(
            outcome.status.code(),
            Some(if is_named { 125 } else { 0 }),
            "{outcome}"
        );
        let left = stage.left_in_run_dir();
        assert!(left.is_empty(), "{limit}: still there: {left:?}");
        is_named
    };
    assert!(named("-f 60", "(ulimit -f)"));
    // With some of these there are enough.
    let all = (8..16).filter(|n| named(&format!("-n {n}"), "(ulimit -n)"));
    assert_ne!(all.count(), 0);
}

#[test]
fn a_killed_victims_debt_is_settled() {
    let stage = Stage::new("killed-victim");
    let json = stage.json();
    let mut victim = stage.demand(&[&json[0], &json[1]]);
    stage.warm(&mut victim);
    victim.tell("signal KILL");
    let end = victim.end();
    assert_eq!(end.status.signal(), Some(9), "{end}");
    let report = stage.report();
    assert_eq!(report["exit_status"], 137, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(stage.entries().is_empty());
}

/// Syncs, then says `got N` for each signal; ends with 23 after as many as $2 says.
const COUNTS_SIGNALS: &str = "\
import os, signal, sys, time
f = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
got = 0
def heard(number, frame):
    global got
    got += 1
    os.write(1, b'got %d\\n' % number)
    if got == int(sys.argv[2]):
        os._exit(23)
for number in (1, 2, 3, 6, 10, 12, 15, 30, 37):
    signal.signal(number, heard)
for i in range(3000):
    os.write(f, b'a')
    os.fsync(f)
os.write(1, b'ready\\n')
while True:
    # A signal just before pause() would wait for the next one.
    time.sleep(0.05)
";

const INT: i32 = Signal::INT.as_raw();

/// Sends signals to synclater one after the other; what the command makes of them.
fn signalled(signals: &[i32]) -> (Stage, Outcome) {
    signalled_behind("true", signals)
}

/// The same of a synclater that a shell becomes behind `script`.
fn signalled_behind(script: &str, signals: &[i32]) -> (Stage, Outcome) {
    let stage = Stage::new("signalled");
    let json = stage.json();
    let script = format!("{script}; exec \"$0\" \"$@\"");
    let mut command = stage.with_folders("sh");
    command.args(["-c", &script, SYNCLATER]);
    command.args(["run", "--quiet", &json[0], &json[1], "--"]);
    command.args(["python3", "-c", COUNTS_SIGNALS]);
    command
        .arg(stage.work().join("file"))
        .arg(signals.len().to_string());
    let mut running = Running::start(&stage, command);
    running.be_ready();
    for signal in signals {
        let pid = running.pid().to_string();
        run(clean("kill").arg(format!("-{signal}")).arg(pid)).must_succeed();
        assert_eq!(running.hear(), format!("got {signal}"));
    }
    let end = running.end();
    (stage, end)
}

fn is_settled(stage: &Stage, end: &Outcome) {
    assert_eq!(end.status.code(), Some(23), "{end}");
    let report = stage.report();
    assert!(report["skipped"].as_u64() > Some(0), "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(stage.entries().is_empty());
}

#[test]
fn signals_to_synclater_reach_the_command_and_then_it_settles() {
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::ABORT,
        Signal::POWER,
    ] {
        let (stage, end) = signalled(&[signal.as_raw()]);
        is_settled(&stage, &end);
    }
    // In real time, as container managers send them.
    let (stage, end) = signalled(&[37]);
    is_settled(&stage, &end);
}

#[test]
fn signals_that_the_command_handles_do_not_cut_the_settle_short() {
    let (stage, end) = signalled(&[INT, INT, INT]);
    is_settled(&stage, &end);
    let (stage, end) = signalled(&[Signal::HUP.as_raw(), Signal::TERM.as_raw()]);
    is_settled(&stage, &end);
}

#[test]
fn signals_that_were_ignored_stay_ignored() {
    let stage = Stage::new("ignored");
    let script = "trap '' HUP INT TERM PIPE; exec \"$1\" run --quiet -- \
        grep -E '^Sig(Ign|Blk)' /proc/self/status";
    let with = run(stage
        .with_folders("sh")
        .args(["-c", script, "sh", SYNCLATER]));
    let script = "trap '' HUP INT TERM PIPE; exec grep -E '^Sig(Ign|Blk)' /proc/self/status";
    let without = run(clean("sh").args(["-c", script]));
    assert_eq!(with.stdout, without.stdout, "{with}");
}

/// As of what a script starts in the background, and of what nohup does.
#[test]
fn signals_that_were_ignored_reach_a_command_that_handles_them() {
    let hup = Signal::HUP.as_raw();
    let (stage, end) = signalled_behind("trap '' INT HUP", &[INT, hup, INT]);
    is_settled(&stage, &end);
}

/// Sets its timers, and becomes what the rest says.
const SETS_TIMERS: &str = "\
import os, signal, sys
timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
for timer in timers:
    signal.setitimer(timer, float(sys.argv[1]), 7)
os.execvp(sys.argv[2], sys.argv[2:])
";

/// Says what is left of them.
const TELLS_TIMERS: &str = "\
import signal
for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
    left, every = signal.getitimer(timer)
    print(0 < left <= 600, every)
";

#[test]
fn timers_that_were_set_before_are_the_commands_own() {
    let stage = Stage::new("timers");
    for options in [&["--quiet"][..], &["--quiet", "--follow"]] {
        let mut command = stage.with_folders("python3");
        command.args(["-c", SETS_TIMERS, "600", SYNCLATER, "run"]);
        command.args(options);
        let told = run(command.args(["--", "python3", "-c", TELLS_TIMERS]));
        assert_eq!(told.stdout, "True 7.0\n".repeat(3), "{options:?} {told}");
    }
    let mut command = stage.with_folders("python3");
    command.args(["-c", SETS_TIMERS, "0.2", SYNCLATER, "run", "--quiet", "--"]);
    let end = run(command.args(["sleep", "100"]));
    assert_eq!(end.status.signal(), Some(Signal::ALARM.as_raw()), "{end}");
}

/// The letter of a process's state.
fn state(pid: rustix::process::Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let after = stat.rsplit(") ").next().unwrap_or("");
    after.chars().next().unwrap_or('?')
}

#[test]
fn a_command_that_stops_itself_stops_synclater_until_both_go_on() {
    let stage = Stage::new("stops");
    let mut victim = stage.demand(&[]);
    stage.warm(&mut victim);
    for signal in ["STOP", "TSTP"] {
        victim.tell(&format!("signal {signal}"));
        let stopped = until(LIMIT, || state(victim.pid()) == 'T');
        assert!(stopped, "{signal}: {}", state(victim.pid()));
        victim.send(Signal::CONT);
        assert_eq!(victim.sync("file"), 0);
    }
    stage.warm(&mut victim);
    victim.end().must_succeed();
}

/// Runs a command in a terminal of its own: what it prints, and what is typed after which line.
const TERMINAL: &str = "\
import os, pty, select, sys
typed = [(b'ready', b'\\x03'), (b'got 2', None), (b'', b'go\\n')]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b''
while True:
    patience = 1.0 if typed and typed[0][0] == b'' else 60.0
    if not select.select([fd], [], [], patience)[0]:
        if patience > 1.0:
            os.kill(pid, 9)
            break
        os.write(fd, typed.pop(0)[1])
        continue
    try:
        piece = os.read(fd, 4096)
    except OSError:
        break
    if not piece:
        break
    seen += piece
    while typed and typed[0][0] and typed[0][0] in seen:
        key = typed.pop(0)[1]
        if key:
            os.write(fd, key)
sys.stdout.buffer.write(seen.replace(b'\\r', b''))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
";

// A signal that comes right before a read(2) is heard once that has returned: it is waited for in a
// select(2), which the descriptor of set_wakeup_fd ends however early the signal was.
const READS_A_LINE: &str = "\
import os, select, signal, sys
got = 0
heard_of, tells = os.pipe()
os.set_blocking(tells, False)
signal.set_wakeup_fd(tells)
def heard(number, frame):
    global got
    got += 1
    os.write(1, b'got %d\\n' % number)
signal.signal(signal.SIGINT, heard)
print('terminal', os.isatty(0), os.isatty(1), os.isatty(2), flush=True)
os.write(1, b'ready\\n')
select.select([heard_of], [], [])
line = sys.stdin.readline()
print('count', got, line.strip(), flush=True)
sys.exit(23)
";

#[test]
fn a_key_at_the_terminal_reaches_the_command_once() {
    let stage = Stage::new("terminal");
    let mut command = stage.with_folders("python3");
    command.args(["-c", TERMINAL, SYNCLATER, "run", "--quiet", "--"]);
    let outcome = run(command.args(["python3", "-c", READS_A_LINE]));
    assert_eq!(outcome.status.code(), Some(23), "{outcome}");
    assert!(
        outcome.stdout.contains("terminal True True True"),
        "{outcome}"
    );
    assert!(outcome.stdout.contains("count 1 go"), "{outcome}");
}

#[test]
fn a_summary_is_printed_to_a_terminal_and_nowhere_else() {
    let stage = Stage::new("summary");
    let mut command = stage.with_folders("python3");
    command.args(["-c", TERMINAL, SYNCLATER, "run", "--", "true"]);
    let shown = run(&mut command).must_succeed();
    assert!(shown.stdout.contains("synclater: "), "{shown}");
    let silent = stage.ask(&["run", "--", "true"]).must_succeed();
    assert_eq!(silent.stderr, "", "{silent}");
    let asked = stage
        .ask(&["run", "--summary", "--", "true"])
        .must_succeed();
    assert!(asked.stderr.starts_with("synclater: "), "{asked}");
    assert_eq!(asked.stdout, "", "{asked}");
}

#[test]
fn streams_pass_through_untouched() {
    let stage = Stage::new("streams");
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let (from, to) = (stage.file("from"), stage.file("to"));
    std::fs::write(&from, &bytes).expect("a file");
    let mut command = stage.synclater(&["run", "--", "cat"]);
    command.stdin(std::fs::File::open(&from).expect("a file"));
    command.stdout(std::fs::File::create(&to).expect("a file"));
    assert!(command
        .stderr(Stdio::null())
        .status()
        .expect("it runs")
        .success());
    assert!(std::fs::read(&to).expect("a file") == bytes);
    // Descriptors beyond the first three, and none that are not the command's.
    let script = "exec 7</dev/null; \"$1\" run --quiet -- ls /proc/self/fd; ls /proc/self/fd";
    let outcome = run(stage
        .with_folders("sh")
        .args(["-c", script, "sh", SYNCLATER]));
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(
        lines[..lines.len() / 2],
        lines[lines.len() / 2..],
        "{outcome}"
    );
}

#[test]
fn json_on_stdout_follows_the_commands_own_output() {
    let stage = Stage::new("stdout");
    let outcome = stage.ask(&["run", "--quiet", "--json", "-", "--", "echo", "first"]);
    let rest = outcome
        .stdout
        .strip_prefix("first\n")
        .expect("its output first");
    let report: serde_json::Value = serde_json::from_str(rest).expect("JSON");
    assert_eq!(report["version"], 1, "{report:#}");
    assert_eq!(
        report["command"],
        serde_json::json!(["echo", "first"]),
        "{report:#}"
    );
    for key in ["requests", "skipped", "real", "settled", "exit_status"] {
        assert_eq!(report[key], 0, "{key}: {report:#}");
    }
}

/// A run whose command has ended, on a disk that takes its time.
fn settling(stage: &Stage, disk: &crate::harness::disk::SlowDisk) -> Running {
    let mut victim = stage.demand_on(&disk.path(), &[]);
    stage.warm(&mut victim);
    victim.tell("pid");
    let said = victim.hear();
    let victim_pid = said.strip_prefix("pid ").expect("a number").to_owned();
    victim.no_more();
    let settling = until(LIMIT, || {
        std::fs::metadata(format!("/proc/{victim_pid}")).is_err()
    });
    assert!(settling);
    victim
}

#[test]
fn a_terminal_that_goes_while_it_settles_ends_nothing() {
    if !crate::sessions::stage::as_root("a_terminal_that_goes_while_it_settles_ends_nothing") {
        return;
    }
    let disk = crate::harness::disk::SlowDisk::new("ext4", 64, 1500);
    let stage = Stage::new("gone");
    let mut victim = settling(&stage, &disk);
    // A shell tells its jobs, and the kernel what was in front.
    for _ in 0..3 {
        victim.send(Signal::HUP);
        until(std::time::Duration::from_millis(100), || false);
    }
    // systemd sends both.
    victim.send(Signal::TERM);
    victim.send(Signal::HUP);
    victim.end().must_succeed();
    assert_eq!(stage.entries().len(), 0);
}

#[test]
fn a_second_interrupt_while_settling_ends_at_once_and_is_remembered() {
    let name = "a_second_interrupt_while_settling_ends_at_once_and_is_remembered";
    if !crate::sessions::stage::as_root(name) {
        return;
    }
    let disk = crate::harness::disk::SlowDisk::new("ext4", 64, 1500);
    let stage = Stage::new("interrupted");
    let mut victim = settling(&stage, &disk);
    victim.send(Signal::INT);
    until(std::time::Duration::from_millis(100), || false);
    victim.send(Signal::INT);
    let end = victim.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    assert!(crate::sessions::stage::has_four_parts(&end.stderr), "{end}");
    assert_eq!(stage.entries().len(), 1);
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stdout.contains("ended without settling"), "{status}");
    let told = stage.ask(&["status", "--json"]).stdout;
    let all: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(all[0]["outcome"], "unsettled", "{all:#}");
}
