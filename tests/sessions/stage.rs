//! A place for a session and what a test does with it: starts it, speaks with its victim, asks it
//! from outside, and ends whatever is left.

use crate::harness::backend::Scene;
use crate::harness::command::{clean, run, Outcome, LIMIT};
use crate::harness::limits::{is_root, skip};
use crate::servers::leftovers::Leftovers;
use crate::wait::until;
use rustix::process::{kill_process, kill_process_group, Pid, Signal};
use serde_json::Value;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub const SYNCLATER: &str = env!("CARGO_BIN_EXE_synclater");

/// Fresh folders for sessions, the ledger and the victim.
pub struct Stage {
    // In this order: what a failed test left running ends before its directory goes.
    _leftovers: Leftovers,
    _memory: Memory,
    scene: Scene,
}

/// The sessions' shared memory, which lies elsewhere; gone with its guard when a session was killed
/// and no command came after it.
struct Memory {
    run: PathBuf,
}

/// The same of a run folder.
pub fn marked_in(run_folder: &Path) -> Vec<Pid> {
    let pid = |text: String| Pid::from_raw(text.split(' ').nth(1)?.parse().ok()?);
    let marks = marks_of(run_folder).into_iter();
    let texts = marks.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.filter_map(pid).collect()
}

/// Marks of syncs under way for the sessions of a run folder, or of those that were killed.
fn marks_of(run: &Path) -> Vec<PathBuf> {
    let Ok(seen) = std::fs::metadata(run) else {
        return Vec::new();
    };
    let prefix = format!(".syncing.{}.{}.", seen.dev(), seen.ino());
    let names = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_named = |file: &std::fs::DirEntry, prefix: &str| {
        let name = file.file_name();
        name.to_string_lossy().starts_with(prefix)
    };
    let memory = names(Path::new("/dev/shm")).filter(|dir| is_named(dir, "synclater-"));
    std::iter::once(run.to_path_buf())
        .chain(memory.map(|dir| dir.path()))
        .flat_map(|dir| names(&dir).filter(|file| is_named(file, &prefix)))
        .map(|file| file.path())
        .collect()
}

impl Drop for Memory {
    fn drop(&mut self) {
        for mark in marks_of(&self.run) {
            let _ = std::fs::remove_file(mark);
        }
        let sessions = std::fs::read_dir(&self.run).into_iter().flatten().flatten();
        for file in sessions.map(|s| s.path().join("lock")) {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let path = PathBuf::from(text.lines().next().unwrap_or_default());
            if path.starts_with("/dev/shm") && path.join("page").exists() {
                // The session itself may have been faster.
                let _ = std::fs::remove_dir_all(path);
            }
        }
    }
}

impl Stage {
    pub fn new(name: &str) -> Stage {
        let scene = Scene::new(name);
        let leftovers = Leftovers::of(scene.work().parent().expect("a directory above"));
        Stage {
            _leftovers: leftovers,
            _memory: Memory {
                run: scene.file("run"),
            },
            scene,
        }
    }

    /// One whose folders belong to a user without rights.
    pub fn for_nobody(name: &str) -> Stage {
        let stage = Stage::new(name);
        stage.open_to_others(0o755);
        for dir in ["work", "run", "state"] {
            give_to_nobody(&stage.file(dir));
        }
        stage
    }

    /// Other users may enter the test's directory.
    pub fn open_to_others(&self, mode: u32) {
        let work = self.work();
        crate::programs::let_others_in(work.parent().expect("above"));
        for dir in [work.parent().expect("above"), &work] {
            std::fs::set_permissions(dir, Permissions::from_mode(mode)).expect("chmod");
        }
    }

    pub fn work(&self) -> PathBuf {
        self.scene.work()
    }

    pub fn state(&self) -> PathBuf {
        self.scene.state()
    }

    pub fn run_dir(&self) -> PathBuf {
        self.scene.file("run")
    }

    /// Takes every name but one in the folder of sessions.
    pub fn leave_one_name(&self) {
        let words = [
            "alder", "amber", "anchor", "apple", "aspen", "basil", "birch", "bluff", "brook",
            "cedar", "clover", "coral", "cove", "crane", "delta", "dune", "ember", "fern", "finch",
            "fjord", "flint", "forest", "gale", "garnet", "glade", "grove", "harbor", "hazel",
            "heron", "iris", "ivy", "jade", "juniper", "kelp", "lagoon", "larch", "lark", "lily",
            "linden", "maple", "marsh", "meadow", "moss", "oak", "opal", "orchid", "otter",
            "pearl", "pine", "plum", "quartz", "reef", "ridge", "river", "robin", "sage", "shore",
            "spruce", "stone", "thorn", "tulip", "willow", "wren",
        ];
        for word in words {
            std::fs::create_dir(self.run_dir().join(word)).expect("a folder");
        }
    }

    /// What is in the folder of sessions but the folder that is kept for the next one.
    pub fn left_in_run_dir(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.run_dir()).expect("the folder of sessions");
        let all = entries.map(|e| e.expect("an entry").path());
        all.filter(|p| !p.ends_with(".spare")).collect()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.scene.file(name)
    }

    /// A copy of a program where users without rights can execute it.
    pub fn copy_of(&self, program: &Path) -> PathBuf {
        let to = self.file(&program.file_name().expect("a name").to_string_lossy());
        crate::harness::command::copy_program(program, &to);
        to
    }

    /// `program`, with this stage's folders in its environment.
    pub fn with_folders(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = clean(program);
        command.env("SYNCLATER_RUN_DIR", self.run_dir());
        command.env("SYNCLATER_STATE_DIR", self.state());
        command
    }

    pub fn synclater(&self, words: &[&str]) -> Command {
        let mut command = self.with_folders(SYNCLATER);
        command.args(words);
        command
    }

    /// Runs synclater to its end.
    pub fn ask(&self, words: &[&str]) -> Outcome {
        run(&mut self.synclater(words))
    }

    /// Starts a session with `options` whose victim does what it is told.
    pub fn demand(&self, options: &[&str]) -> Running {
        self.demand_on(&self.work(), options)
    }

    /// The same of a victim that writes to `folder`.
    pub fn demand_on(&self, folder: &Path, options: &[&str]) -> Running {
        let mut command = self.synclater(&["run", "--quiet"]);
        command.args(options).arg("--");
        command.arg(program("demand")).arg(folder);
        Running::start(self, command)
    }

    /// Appends a strace of `calls` to the command.
    pub fn traced(&self, command: &mut Command, calls: &str, name: &str) -> SyncLog {
        let log = SyncLog(self.file(name));
        command.args(["strace", "-f", "-qq", "-e", "signal=none", "-e"]);
        command.arg(format!("trace={calls}")).arg("-o").arg(&log.0);
        log
    }

    /// The sessions as `ps --json` shows them.
    pub fn sessions(&self) -> Vec<Value> {
        self.told().0
    }

    /// The sessions, and what `ps` said of those that it could not show.
    fn told(&self) -> (Vec<Value>, String) {
        let outcome = self.ask(&["ps", "--json"]).must_succeed();
        let all: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        (all.as_array().expect("an array").clone(), outcome.stderr)
    }

    /// The only session.
    pub fn session(&self) -> Value {
        let (all, rest) = self.told();
        assert_eq!(all.len(), 1, "{all:?}\n{rest}");
        all[0].clone()
    }

    pub fn id(&self) -> String {
        self.session()["id"].as_str().expect("an id").to_owned()
    }

    /// Processes of synclater that have to do with it.
    pub fn of_synclater(&self) -> Vec<Pid> {
        let run = format!("SYNCLATER_RUN_DIR={}", self.run_dir().display());
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let copy = self.file("synclater");
        let is_it = |pid: &i32| {
            let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            exe.is_ok_and(|x| x == Path::new(SYNCLATER) || x == copy)
                && environ.split(|b| *b == 0).any(|v| v == run.as_bytes())
        };
        pids.filter(is_it).filter_map(Pid::from_raw).collect()
    }

    /// Open entries of the ledger.
    pub fn entries(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.state()).expect("the ledger");
        let paths = files.map(|e| e.expect("entry").path());
        paths
            .filter(|p| p.extension().is_some_and(|x| x == "json"))
            .collect()
    }

    /// The marks of syncs under way in its run folder.
    pub fn marks(&self) -> Vec<PathBuf> {
        marks_of(&self.run_dir())
    }

    /// Who has a mark of a sync under way, or had when he was killed.
    pub fn marked(&self) -> Vec<Pid> {
        marked_in(&self.run_dir())
    }

    /// How many requests were made and how many of them answered at once, by all processes.
    pub fn counted(&self) -> (u64, u64) {
        let session = self.session();
        let rows = session["processes"].as_array().expect("processes").clone();
        let sum = |key: &str| rows.iter().filter_map(|r| r[key].as_u64()).sum();
        (sum("requests"), sum("skipped"))
    }

    /// Has the victim sync until a request is put off.
    pub fn warm(&self, victim: &mut Running) {
        victim.be_ready();
        let warm = until(LIMIT, || self.is_later(victim));
        assert!(warm, "no request is put off: {:#}", self.session());
    }

    /// Whether one more request of the victim is put off.
    pub fn is_later(&self, victim: &mut Running) -> bool {
        let (_, before) = self.counted();
        assert_eq!(victim.sync("file"), 0);
        self.counted().1 > before
    }

    pub fn report(&self) -> Value {
        let text = std::fs::read_to_string(self.file("report.json")).expect("the report");
        serde_json::from_str(&text).expect("JSON")
    }

    /// `--json` and its file, to be put among options.
    pub fn json(&self) -> [String; 2] {
        let file = self.file("report.json").display().to_string();
        ["--json".into(), file]
    }
}

/// What strace wrote so far.
pub struct SyncLog(pub PathBuf);

impl SyncLog {
    /// Calls of a name that were begun.
    pub fn count(&self, name: &str) -> u64 {
        let text = std::fs::read(&self.0).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.matches(&format!(" {name}(")).count() as u64
    }
}

/// A command in the background, in a process group of its own; killed with its guard.
pub struct Running {
    words: String,
    child: Child,
    input: Option<ChildStdin>,
    out: PathBuf,
    err: PathBuf,
    heard: usize,
}

impl Running {
    pub fn start(stage: &Stage, mut command: Command) -> Running {
        static STARTED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let out = stage.file(&format!("stdout-{number}"));
        let err = stage.file(&format!("stderr-{number}"));
        command.stdin(Stdio::piped()).process_group(0);
        command.stdout(File::create(&out).expect("stdout"));
        command.stderr(File::create(&err).expect("stderr"));
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Running {
            words: format!("{command:?}"),
            input: child.stdin.take(),
            child,
            out,
            err,
            heard: 0,
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// How it has ended, if it has.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("wait")
    }

    pub fn send(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// What each of its threads does, as the kernel has it.
    fn threads(&self) -> String {
        let tasks = format!("/proc/{}/task", self.pid().as_raw_nonzero());
        let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
        let one = |task: std::fs::DirEntry| {
            let of = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let status = of("status");
            let told = ["Name", "State", "TracerPid", "SigPnd", "ShdPnd", "SigBlk"];
            let is_told = |line: &&str| told.iter().any(|name| line.starts_with(name));
            let status: Vec<&str> = status.lines().filter(is_told).collect();
            let (call, stack) = (of("syscall"), of("stack"));
            format!("{}\n{call}{stack}", status.join(", "))
        };
        tasks.map(one).collect()
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).expect("stdout")).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).expect("stderr")).into_owned()
    }

    /// Tells the victim something, without waiting for what it says.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its stdin is open");
        writeln!(input, "{line}").expect("it reads");
    }

    /// The victim's next line.
    pub fn hear(&mut self) -> String {
        let nth = self.heard;
        let mut line = None;
        let said = until(LIMIT, || {
            let text = self.stdout();
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            line = whole.lines().nth(nth).map(str::to_owned);
            line.is_some()
        });
        let end = self.has_ended();
        assert!(
            said,
            "{} says no more ({end:?}):\n{}\n{}\n{}",
            self.words,
            self.stdout(),
            self.stderr(),
            self.threads()
        );
        self.heard += 1;
        line.expect("said")
    }

    /// Waits for the victim's first line.
    pub fn be_ready(&mut self) {
        if self.heard == 0 {
            assert_eq!(self.hear(), "ready");
        }
    }

    /// Has the victim sync a file; 0 or the errno.
    pub fn sync(&mut self, name: &str) -> i32 {
        self.be_ready();
        self.tell(&format!("sync {name}"));
        let line = self.hear();
        let number = line.strip_prefix("sync ").expect("an answer");
        number.parse().expect("an errno")
    }

    /// Ends the victim's input.
    pub fn no_more(&mut self) {
        self.input = None;
    }

    /// Waits for the end of the command, which is told to end.
    pub fn end(&mut self) -> Outcome {
        self.no_more();
        let mut status = None;
        let ended = until(LIMIT, || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        assert!(
            ended,
            "it does not end: {}\n{}",
            self.stdout(),
            self.stderr()
        );
        Outcome {
            status: status.expect("ended"),
            stdout: self.stdout(),
            stderr: self.stderr(),
            command: "(in the background)".into(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its number is another's by now; so nobody is left in its group.
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        if ended && rustix::process::test_kill_process(self.pid()).is_ok() {
            return;
        }
        // Also what lives on after the command itself has ended, as long as it is in the group.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A program in `tests/sessions`, compiled.
pub fn program(name: &str) -> PathBuf {
    static COMPILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut done = COMPILED.lock().unwrap_or_else(|e| e.into_inner());
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sessions");
    let path = into.join(name);
    if !done.iter().any(|n| n == name) {
        std::fs::create_dir_all(&into).expect("a directory for programs");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sessions");
        let fresh = path.with_extension("new");
        let mut command = clean(if name.contains("_musl") {
            "musl-gcc"
        } else {
            "gcc"
        });
        command.args([
            "-std=gnu11",
            "-O2",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Werror",
        ]);
        if name.ends_with("_static") {
            command.arg("-static");
        }
        if name.contains("_32") {
            command.args(crate::harness::victims::SMALL);
        }
        let stem = ["_static", "_musl", "_32"]
            .iter()
            .fold(name, |n, end| n.trim_end_matches(end));
        command.arg("-o").arg(&fresh);
        command.arg(source.join(format!("{stem}.c")));
        if stem.ends_with("_uring") {
            command.arg("-luring");
        }
        run(&mut command).must_succeed();
        std::fs::rename(&fresh, &path).expect("rename");
        done.push(name.to_owned());
    }
    path
}

/// What a hammer has done so far: answered requests, and its process id.
pub fn progress(dir: &Path) -> (u64, i32) {
    let bytes = std::fs::read(dir.join("progress")).unwrap_or_default();
    let number = |at: usize| {
        let word = bytes.get(at..at + 8).map(|b| b.try_into().expect("8"));
        word.map_or(0, u64::from_ne_bytes)
    };
    (number(0), i32::try_from(number(8)).unwrap_or(0))
}

/// Lets time pass in which something must not happen.
pub fn pass(time: Duration) {
    let end = Instant::now() + time;
    until(time + LIMIT, || Instant::now() >= end);
}

/// Whether a message has all its parts: what, why, what to try, how things stand.
pub fn has_four_parts(text: &str) -> bool {
    let parts = ["synclater: ", "  why:   ", "  try:   ", "  state: "];
    let filled = |p: &&str| {
        text.lines()
            .any(|l| l.starts_with(*p) && l.len() > p.len() + 2)
    };
    parts.iter().all(filled)
}

pub const NOBODY: &str = "65534";

pub fn give_to_nobody(path: &Path) {
    run(clean("chown").arg(NOBODY).arg(path)).must_succeed();
}

/// In front of a command: a user without rights.
pub const AS_NOBODY: [&str; 6] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--",
];

/// True when the test may go on as root; otherwise the skip is noted.
pub fn as_root(name: &str) -> bool {
    if !is_root() {
        skip(name, "needs root");
    }
    is_root()
}
