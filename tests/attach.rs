//! Processes that run already: attached, relaxed, and let go of byte for byte, whatever they are
//! doing meanwhile and whoever is killed.

mod aarch64;
mod cycles;
mod ends;
mod follow;
mod forks;
mod guests;
mod left;
mod opened;
mod random;
pub mod refusals;
mod restricts;
mod sandboxed;
mod servers;
mod sharing;
mod stack;
mod told;
mod units;
mod waits;
mod whom;

use crate::harness::command::{clean, Outcome, LIMIT};
use crate::sessions::stage::{program, Running, Stage};
use crate::wait::until;
use rustix::process::Pid;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// A victim that does what it is told, outside of any session.
fn demand(stage: &Stage) -> Running {
    demand_in(stage, &stage.work())
}

/// The same, with its files in `dir`.
fn demand_in(stage: &Stage, dir: &Path) -> Running {
    let mut command = clean(program("demand"));
    command.arg(dir);
    started(stage, command)
}

/// A victim that has begun.
fn started(stage: &Stage, command: Command) -> Running {
    let mut victim = Running::start(stage, command);
    victim.be_ready();
    victim
}

/// One that syncs from many threads and checks every answer.
fn busy(stage: &Stage, name: &str, threads: usize) -> Running {
    let mut command = clean(program(name));
    command.arg(stage.work()).arg(threads.to_string());
    started(stage, command)
}

fn number(pid: Pid) -> String {
    pid.as_raw_nonzero().get().to_string()
}

/// The name of the session that an attach has begun.
fn session_of(attached: &Outcome) -> String {
    let told: Value = serde_json::from_str(&attached.stdout).expect("JSON");
    told["id"].as_str().expect("an id").to_owned()
}

impl Stage {
    /// Attaches with `options`; the session's name.
    fn attach(&self, options: &[&str]) -> String {
        let words = [&["attach", "--json"], options].concat();
        session_of(&self.ask(&words).must_succeed())
    }

    /// Attaches a victim at `until`.
    fn attach_to(&self, victim: &Running, until: &str) -> String {
        self.attach(&["--pid", &number(victim.pid()), "--until", until])
    }

    fn detach(&self, session: &str) -> Value {
        let outcome = self.ask(&["detach", session, "--json"]).must_succeed();
        serde_json::from_str(&outcome.stdout).expect("JSON")
    }
}

/// Ends a busy victim, which must have seen no wrong answer.
fn must_be_right(victim: &mut Running) {
    let outcome: Outcome = victim.end();
    let last = outcome.stdout.lines().last().unwrap_or_default().to_owned();
    assert!(
        last.starts_with("rounds ") && last.ends_with(" wrong 0"),
        "{outcome}"
    );
    assert!(!last.starts_with("rounds 0 "), "{outcome}");
}

/// Code of a file that a process has mapped, as it is in memory and as it is in the file.
struct Code {
    name: String,
    start: u64,
    offset: usize,
    memory: Vec<u8>,
    file: Vec<u8>,
}

fn code_of(pid: Pid) -> Vec<Code> {
    let pid = number(pid);
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("mem");
    let mut all = Vec::new();
    for line in maps().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, rights, offset, _, _, name] = words[..] else {
            continue;
        };
        if !rights.contains('x') || !name.starts_with('/') || name.starts_with("/memfd:") {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
        let (start, end) = range.split_once('-').expect("a range");
        let (start, len) = (hex(start), (hex(end) - hex(start)) as usize);
        let mut there = vec![0; len];
        if let Err(e) = memory.read_exact_at(&mut there, start) {
            // A program that goes on may unmap a library (dlclose) meanwhile.
            assert!(!maps().lines().any(|l| l == line), "{line}: {e}");
            continue;
        }
        let offset = hex(offset) as usize;
        let mut file = std::fs::read(name).expect(name)[offset..].to_vec();
        file.resize(len, 0);
        all.push(Code {
            name: name.to_owned(),
            start,
            offset,
            memory: there,
            file,
        });
    }
    all
}

/// Where a process's code differs from its files, and the name of the file.
fn changed_code(pid: Pid) -> Vec<String> {
    let changed = |code: &Code| {
        let at = code
            .memory
            .iter()
            .zip(&code.file)
            .position(|(a, b)| a != b)?;
        Some(format!("{} at {:x}", code.name, code.offset + at))
    };
    code_of(pid).iter().filter_map(changed).collect()
}

/// Threads of a process in a state that a tracer leaves them in.
fn stuck(pid: Pid) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", number(pid)));
    let tasks = tasks.into_iter().flatten().flatten();
    let status = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with("State:"))?.to_owned();
        (line.contains("(tracing stop)") || line.contains("(stopped)")).then_some(line)
    };
    tasks.filter_map(status).collect()
}

/// Waits until no thread is stuck.
fn must_run(pid: Pid) {
    let runs = until(LIMIT, || stuck(pid).is_empty());
    assert!(runs, "{:?}", stuck(pid));
}
