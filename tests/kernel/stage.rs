//! A program that is watched from before its first instruction to after its last.

use crate::harness::command::{clean, run, LIMIT};
use crate::harness::dir::Dir;
use crate::harness::limits::{is_root, skip};
use crate::wait::until;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use synclater_bpf::{Engine, Error, Event, Filter, Kind};

/// True when the engine can be used here; otherwise the skip is noted.
pub fn can_watch(test: &str) -> bool {
    if !is_root() {
        skip(test, "trace points need root");
        return false;
    }
    match Engine::open(&Filter::default(), 4096) {
        Ok(_) => true,
        Err(e @ (Error::NotBuilt(_) | Error::NotPermitted(_) | Error::NoTypes)) => {
            skip(test, &e.to_string());
            false
        }
        Err(e) => panic!("{e}"),
    }
}

/// How a program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bits {
    Native,
    Small,
    Static,
}

/// The compiled program that makes each kind of request.
pub fn each_sync(bits: Bits) -> PathBuf {
    static COMPILED: Mutex<Vec<Bits>> = Mutex::new(Vec::new());
    let mut done = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
    let (name, flags): (&str, &[&str]) = match bits {
        Bits::Native => ("each_sync", &[]),
        Bits::Static => ("each_sync.static", &["-static"]),
        Bits::Small => (
            "each_sync.small",
            &["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"],
        ),
    };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !done.contains(&bits) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/each_sync.c");
        let fresh = program.with_extension("new");
        let mut command = clean("gcc");
        command.args(["-std=gnu11", "-O2", "-D_GNU_SOURCE"]);
        command.args(["-Wall", "-Wextra", "-Werror"]).args(flags);
        run(command.arg("-o").arg(&fresh).arg(source)).must_succeed();
        std::fs::rename(&fresh, &program).expect("rename");
        done.push(bits);
    }
    program
}

/// What was seen of a program.
pub struct Seen {
    pub pid: u32,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub events: Vec<Event>,
    pub lost: BTreeMap<u32, u64>,
}

impl Seen {
    /// # Panics
    /// Unless the program did well and nothing of what it says is strange.
    pub fn must_succeed(self) -> Seen {
        let told = format!("{}\n{}\n{}", self.status, self.stdout, self.stderr);
        assert!(self.status.success(), "{told}");
        self
    }
}

/// A program that is being watched.
pub struct Watched {
    child: Child,
    engine: Engine,
    output: Dir,
}

impl Watched {
    /// Starts the program behind a shell that waits, so that its number is known to the filter
    /// before it begins.
    pub fn start(command: &Command, ring: usize, filter: impl Fn(u32) -> Filter) -> Watched {
        let output = Dir::new("output");
        let mut shell = clean("sh");
        shell.args(["-c", r#"read -r line && exec "$@" </dev/null"#, "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        shell.stdin(Stdio::piped());
        shell.stdout(File::create(output.join("stdout")).expect("stdout"));
        shell.stderr(File::create(output.join("stderr")).expect("stderr"));
        let mut child = shell.spawn().expect("the shell");
        let engine = Engine::open(&filter(child.id()), ring).expect("the engine");
        let mut go = child.stdin.take().expect("its input");
        go.write_all(b"go\n").expect("the shell waits");
        Watched {
            child,
            engine,
            output,
        }
    }

    /// Waits for the end of the program, looking into the ring meanwhile.
    pub fn end(mut self) -> Seen {
        let mut events = Vec::new();
        let mut status = None;
        let ended = until(LIMIT, || {
            status = self.child.try_wait().expect("wait");
            let pause = Duration::from_millis(1);
            self.engine.poll(pause).expect("poll");
            let drained = self.engine.drain(|e| events.push(e));
            drained.expect("drain");
            status.is_some()
        });
        self.seen(ended.then_some(status).flatten(), events)
    }

    /// Waits for the end of the program without looking into the ring.
    pub fn end_without_a_look(mut self) -> Seen {
        let mut status = None;
        until(LIMIT, || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        self.seen(status, Vec::new())
    }

    fn seen(mut self, status: Option<ExitStatus>, mut events: Vec<Event>) -> Seen {
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // What a program asked for has been handed over when it has ended.
        self.engine.drain(|e| events.push(e)).expect("drain");
        let read = |name| std::fs::read_to_string(self.output.join(name)).expect("output");
        Seen {
            pid: self.child.id(),
            status: status.expect("it ends in time"),
            stdout: read("stdout"),
            stderr: read("stderr"),
            events,
            lost: self.engine.lost().expect("what was lost"),
        }
    }
}

/// Watches a program from its beginning to its end; nothing may be lost.
pub fn watch(command: &Command, ring: usize, filter: impl Fn(u32) -> Filter) -> Seen {
    let seen = Watched::start(command, ring, filter).end();
    assert_eq!(seen.lost, BTreeMap::new());
    seen
}

pub fn by_kind(events: &[Event]) -> BTreeMap<Kind, u64> {
    let mut counts = BTreeMap::new();
    for e in events {
        *counts.entry(e.kind).or_default() += 1;
    }
    counts
}

pub fn part_of(counts: &BTreeMap<Kind, u64>, kind: Kind) -> bool {
    counts.contains_key(&kind)
}

/// A control group of version 2, gone with its guard.
pub struct Group {
    path: PathBuf,
}

impl Group {
    pub fn new() -> Option<Group> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let mut unified = mounts.lines().filter(|l| l.contains(" - cgroup2 "));
        let at = unified.next()?.split(' ').nth(4)?;
        let path = Path::new(at).join(format!("sl-kernel-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Group { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for path in [&self.path.join("below"), &self.path] {
            let gone = until(LIMIT, || {
                !path.exists() || std::fs::remove_dir(path).is_ok()
            });
            if !gone {
                eprintln!("not removed: {}", path.display());
            }
        }
    }
}
