//! Sync requests as others see them: strace's log, and bpftrace at the system calls.
//!
//! Promise: who looks sees every request of the session that reaches the kernel, and who made it.
//! Calls by which the library checks arguments (sync_file_range with flags 0, msync with MS_ASYNC)
//! are no requests and are left out.

use super::Table;
use crate::harness::command::{clean, LIMIT};
use crate::harness::dir::Dir;
use crate::harness::trace::{calls_in, Call};
use crate::wait::until;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use synclater_recording::record::table::UNKNOWN;

/// One sync request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub kind: String,
    pub pid: u32,
    pub tid: u32,
    /// Not known to bpftrace.
    pub path: String,
    pub failed: bool,
    /// Not known to strace.
    pub took_ns: u64,
}

impl Seen {
    /// Without what not everybody knows.
    pub fn who(&self) -> (String, u32, u32, bool) {
        (self.kind.clone(), self.pid, self.tid, self.failed)
    }
}

/// How often each value is there.
pub fn counted<T: Ord>(values: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut found = BTreeMap::new();
    values.for_each(|v| *found.entry(v).or_default() += 1);
    found
}

/// What two counts do not have in common, the first's with `+`.
pub fn difference<T: Ord + Clone>(a: &BTreeMap<T, usize>, b: &BTreeMap<T, usize>) -> Vec<(T, i64)> {
    let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(k)));
    let count = |of: &BTreeMap<T, usize>, key| of.get(key).copied().unwrap_or(0) as i64;
    keys.map(|k| (k.clone(), count(a, k) - count(b, k)))
        .filter(|(_, n)| *n != 0)
        .collect()
}

/// The requests of a recording.
pub fn in_recording(table: &Table) -> Vec<Seen> {
    let rows = &table.rows;
    let of_row = |i: usize| Seen {
        kind: table.kinds[usize::from(rows.kind[i])].clone(),
        pid: table.processes[rows.process[i] as usize].pid.unwrap_or(0),
        tid: rows.tid[i],
        path: table.files[rows.file[i] as usize].path.clone(),
        failed: rows.errno[i] != 0,
        took_ns: rows.took_ns[i],
    };
    (0..rows.len()).map(of_row).collect()
}

const STRACED: &str =
    "trace=clone,clone3,fork,vfork,open,openat,?openat2,rename,renameat,renameat2,\
    fsync,fdatasync,sync,syncfs,msync,sync_file_range";

/// Has `command` run what follows under strace, which is no parent of it.
pub fn strace<'a>(command: &'a mut Command, log: &Path) -> &'a mut Command {
    command.args(["strace", "-D", "-f", "-y", "-qq", "-e", STRACED]);
    command.args(["-e", "signal=none", "-o"]).arg(log)
}

/// What strace saw.
pub struct Straced {
    pub requests: Vec<Seen>,
    /// The first name of a file that has had several.
    first_names: HashMap<String, String>,
}

/// Reads strace's log.
///
/// # Panics
/// If a file was opened with O_SYNC: its writes are requests that are not in the log.
pub fn in_strace(log: &Path) -> Straced {
    let calls = calls_in(log);
    let mut process: HashMap<u32, u32> = HashMap::new();
    let mut first_names: HashMap<String, String> = HashMap::new();
    for call in &calls {
        let child = u32::try_from(call.result).unwrap_or(0);
        if call.arguments.contains("CLONE_THREAD") && child != 0 {
            let parent = process.get(&call.pid).copied().unwrap_or(call.pid);
            process.insert(child, parent);
        }
        let is_open = call.name.starts_with("open");
        assert!(!is_open || !call.arguments.contains("SYNC"), "{call:?}");
        let mut names = call.arguments.split('"').skip(1).step_by(2);
        if let (true, Some(from), Some(to)) = (
            call.name.starts_with("rename") && call.result == 0,
            names.next(),
            names.next(),
        ) {
            let first = first_names.get(from).cloned();
            first_names.insert(to.to_owned(), first.unwrap_or_else(|| from.to_owned()));
        }
    }
    let seen = |call: &Call| Seen {
        kind: call.name.clone(),
        pid: process.get(&call.pid).copied().unwrap_or(call.pid),
        tid: call.pid,
        path: path_in(&call.arguments),
        failed: call.result < 0,
        took_ns: UNKNOWN,
    };
    Straced {
        requests: calls.iter().filter(|c| is_request(c)).map(seen).collect(),
        first_names,
    }
}

impl Straced {
    /// Compares requests by everything but their times. A recording has a file's name at the first
    /// use of its descriptor, strace the one at the moment: renamed and deleted files are compared
    /// by the name that they had first. What msync is about is known to the recording only.
    pub fn by_file(&self, seen: &[Seen]) -> BTreeMap<(String, u32, u32, String, bool), usize> {
        counted(seen.iter().map(|s| {
            let (kind, pid, tid, failed) = s.who();
            let name = s.path.trim_end_matches(" (deleted)");
            let name = self.first_names.get(name).map_or(name, String::as_str);
            let known = if kind == "msync" { "" } else { name };
            (kind, pid, tid, known.to_owned(), failed)
        }))
    }
}

fn is_request(call: &Call) -> bool {
    match call.name.as_str() {
        "fsync" | "fdatasync" | "sync" | "syncfs" => true,
        // Both flags together are refused, whatever the range is.
        "msync" => call.arguments.contains("MS_SYNC") && !call.arguments.contains("MS_ASYNC"),
        "sync_file_range" => !call.arguments.ends_with(", 0") && call.result >= 0,
        _ => false,
    }
}

/// `3</a/file>, …`, or `3</a/file>(deleted), …`, as /proc/PID/fd tells it.
fn path_in(arguments: &str) -> String {
    let Some((_, path)) = arguments.split_once('<') else {
        return String::new();
    };
    let (path, rest) = path.split_once('>').unwrap_or((path, ""));
    let gone = rest.starts_with("(deleted");
    format!("{path}{}", if gone { " (deleted)" } else { "" })
}

/// The calls, and when one is a request and not a check of arguments.
const WATCHED: [(&str, &str); 6] = [
    ("fsync", "1"),
    ("fdatasync", "1"),
    ("sync", "1"),
    ("syncfs", "1"),
    ("msync", "(args->flags & 5) == 4"),
    ("sync_file_range", "args->flags != 0"),
];

/// What bpftrace does. It keeps what it sees to the end: to tell it at once would wake it behind
/// each call, which takes as long as a fast sync.
fn script() -> String {
    let mut text = "BEGIN { @in[$1] = 1; }\n\
        tracepoint:sched:sched_process_fork /@in[args->parent_pid]/ \
        { @in[args->child_pid] = 1; }\n\
        tracepoint:sched:sched_process_exit /@in[tid]/ { delete(@in[tid]); }\n\
        END { clear(@in); clear(@at); }\n"
        .to_owned();
    for (name, asks) in WATCHED {
        text += &format!(
            "tracepoint:syscalls:sys_enter_{name} /@in[tid] && ({asks})/ {{ @at[tid] = nsecs; }}\n\
             tracepoint:syscalls:sys_exit_{name} /@at[tid]/ {{\n  $took = nsecs - @at[tid];\n  \
             if (strncmp(comm, \"synclater\", 9) != 0) {{\n    \
             @seen[\"{name}\", pid, tid, args->ret, nsecs] = $took;\n  }}\n  \
             delete(@at[tid]);\n}}\n"
        );
    }
    text
}

/// bpftrace at work, and a command that it waits for.
pub struct Watch {
    dir: Dir,
    child: Option<Child>,
}

impl Watch {
    pub fn new() -> Watch {
        let dir = Dir::new("watch");
        for name in ["go", "over"] {
            crate::harness::command::run(clean("mkfifo").arg(dir.join(name))).must_succeed();
        }
        Watch { dir, child: None }
    }

    /// The same command, which does not begin before it is watched.
    pub fn gated(&self, command: &Command) -> Command {
        let mut gated = clean("sh");
        for (name, value) in command.get_envs() {
            gated.env(name, value.unwrap_or_default());
        }
        gated.args(["-c", "read line <\"$0\"; exec \"$@\""]);
        gated.arg(self.dir.join("go")).arg(command.get_program());
        gated.args(command.get_args());
        gated
    }

    /// Watches process `root` and what it starts, and lets it begin; or tells why it cannot.
    pub fn begin(&mut self, root: u32) -> Result<(), String> {
        mount_tracefs()?;
        let (gate, script_file) = (self.dir.join("gate"), self.dir.join("script.bt"));
        // bpftrace starts a command once it watches, and ends with it.
        let text = format!(
            "cd {}\n: >watching\nread line <over\n",
            self.dir.path().display()
        );
        std::fs::write(&gate, text).expect("the gate");
        std::fs::write(&script_file, script()).expect("the script");
        let mut command = clean("bpftrace");
        command.env("BPFTRACE_MAP_KEYS_MAX", "65536");
        command.env("BPFTRACE_PERF_RB_PAGES", "512");
        // It starts no scripts.
        let start = format!("/bin/sh {}", gate.display());
        command.arg("-c").arg(start).arg("-o").arg(self.out());
        command.arg(&script_file).arg(root.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(std::fs::File::create(self.dir.join("err")).expect("stderr"));
        let mut child = command.spawn().map_err(|e| format!("bpftrace: {e}"))?;
        let mut ended = false;
        let watching = until(LIMIT, || {
            ended = child.try_wait().expect("wait").is_some();
            ended || self.dir.join("watching").exists()
        });
        self.child = Some(child);
        if ended || !watching {
            let said = std::fs::read_to_string(self.dir.join("err")).unwrap_or_default();
            return Err(format!("bpftrace does not watch: {said}"));
        }
        std::fs::write(self.dir.join("go"), "\n").expect("the command waits");
        Ok(())
    }

    fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// What was seen. synclater's own processes are left out.
    ///
    /// # Panics
    /// If something may have been missed.
    pub fn end(mut self) -> Vec<Seen> {
        std::fs::write(self.dir.join("over"), "\n").expect("bpftrace waits");
        let mut child = self.child.take().expect("it watches");
        let ended = until(LIMIT, || child.try_wait().expect("wait").is_some());
        assert!(ended, "bpftrace does not end");
        let err = std::fs::read_to_string(self.dir.join("err")).expect("stderr");
        let out = std::fs::read_to_string(self.out()).expect("its output");
        assert!(
            !err.contains("Lost") && !out.contains("Lost"),
            "{err}\n{out}"
        );
        let lines = out.lines().filter_map(|l| l.strip_prefix("@seen["));
        lines.map(seen_in).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `fsync, PID, TID, RESULT, WHEN]: DURATION`
fn seen_in(line: &str) -> Seen {
    let words: Vec<&str> = line
        .split([',', ']', ':', ' '])
        .filter(|w| !w.is_empty())
        .collect();
    let [kind, pid, tid, result, _, took] = words[..] else {
        panic!("{line}");
    };
    let number = |word: &str| {
        word.parse::<i64>()
            .unwrap_or_else(|e| panic!("{e}: {line}"))
    };
    Seen {
        kind: kind.to_owned(),
        pid: u32::try_from(number(pid)).expect("a process"),
        tid: u32::try_from(number(tid)).expect("a thread"),
        path: String::new(),
        failed: number(result) < 0,
        took_ns: u64::try_from(number(took)).expect("a duration"),
    }
}

/// Mounts the kernel's list of trace points where it is not, in this thread's own mount namespace.
fn mount_tracefs() -> Result<(), String> {
    let at = "/sys/kernel/tracing";
    if Path::new(at).join("events/syscalls").exists() {
        return Ok(());
    }
    let outcome = crate::harness::command::run(clean("mount").args(["-t", "tracefs", "t", at]));
    let events = Path::new(at).join("events/syscalls").exists();
    events
        .then_some(())
        .ok_or_else(|| format!("no trace points at system calls: {}", outcome.stderr))
}
