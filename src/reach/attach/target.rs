//! What a process is, before anything is done to it: whether it can be attached, and if not, why.
//!
//! Promise: nothing here changes or stops the process.

use super::code::{self, Class};
use super::tracer;
use crate::reach::whom;
use crate::session::filesystems::mounts_of;
use rustix::fs::{statx, AtFlags, FileType, StatxFlags, CWD};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::path::Path;
use synclater_policy::filesystem::{self, FsKind};
use synclater_proc::mountinfo::Mount;
use synclater_shim::page::MARKS;
use synclater_shim::NAMES;
use synclater_sys::{job, mount, process, remote, threads};
use synclater_text::message::Trouble;

/// Why a process is not attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why, with the value that was observed.
    pub why: String,
    /// What to do.
    #[serde(rename = "try")]
    pub try_: String,
}

impl Refusal {
    /// Of two parts.
    pub fn new(why: impl Into<String>, try_: impl Into<String>) -> Refusal {
        let (why, try_) = (why.into(), try_.into());
        Refusal { why, try_ }
    }

    /// As it is told.
    #[must_use]
    pub fn trouble(&self, pid: u32, exe: &str) -> Trouble {
        let name = Path::new(exe)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let what = match name.is_empty() {
            true => format!("cannot attach to {pid}"),
            false => format!("cannot attach to {pid} ({name})"),
        };
        let state = match incarnation(pid) {
            Some(_) => format!("nothing was changed; {pid} runs as before"),
            None => "nothing was changed".to_owned(),
        };
        Trouble::new(what, &self.why, &self.try_, state)
    }
}

/// A process that may be attached.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its own number for itself.
    pub own_pid: u32,
    /// The number of its pid namespace.
    pub pid_ns: u64,
    /// What it executes.
    pub exe: String,
    /// What code that is.
    pub class: Class,
    /// Whether a thread of its has a seccomp filter, as of the look.
    pub is_filtered: bool,
}

/// What it executes; where that may not be told, the name that it bears.
#[must_use]
pub fn exe_of(pid: u32) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/exe"));
    let name = || process::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    link.map_or_else(
        |_| name().trim_end().to_owned(),
        |l| without_mark(&l.to_string_lossy()),
    )
}

/// A file's name, without what the kernel puts behind that of a deleted one.
#[must_use]
pub fn without_mark(name: &str) -> String {
    name.strip_suffix(" (deleted)").unwrap_or(name).to_owned()
}

/// One program in one process: when the process began, and where the program's code and its stack
/// do, as one number, which differs from one execution to the next: the stack's place is a random
/// one, the code's is that of the file where it is not position-independent.
pub type Incarnation = (u64, u64);

/// Which program a process executes at present; `None` where it is gone.
#[must_use]
pub fn incarnation(pid: u32) -> Option<Incarnation> {
    let stat = process::stat(&pid.to_string())?;
    let mut fields = stat.split(' ');
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    // starttime, startcode and startstack, fields 22, 26 and 28 of proc(5).
    let began = fields.nth(18)?.parse().ok()?;
    let mut number = |n| fields.nth(n)?.parse::<u64>().ok();
    let place = number(3)?.wrapping_add(number(1)?);
    // The first thread may have ended before others.
    (!is_dead || process::is_running(pid)).then_some((began, place))
}

/// What a program's code begins at for those who may not know; its stack does at 0.
const HIDDEN: u64 = 1;

/// Whether a process still executes `program`. One that has begun to hide it (PR_SET_DUMPABLE)
/// does as long as it is our user's: whoever gains rights executes something else.
#[must_use]
pub fn executes(pid: u32, program: Incarnation) -> bool {
    let ours = || process::effective_user_of(pid) == Some(process::effective_user());
    incarnation(pid).is_some_and(|now| now == program || (may_be_same(now, program) && ours()))
}

/// Whether `now` is `program`, or hides what it is.
#[must_use]
pub fn may_be_same(now: Incarnation, program: Incarnation) -> bool {
    now == program || (now.0 == program.0 && now.1 == HIDDEN)
}

/// Whether a process has begun within the last second: it may still be looking for its libraries.
#[must_use]
pub fn is_young(pid: u32) -> bool {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let now: Option<f64> = uptime.split(' ').next().and_then(|s| s.parse().ok());
    // Ticks of a hundredth, whatever the kernel's own are (USER_HZ).
    let age = now
        .zip(incarnation(pid))
        .map(|(now, (began, _))| now - began as f64 / 100.0);
    age.is_some_and(|age| age < 1.0)
}

struct Status(String);

impl Status {
    fn of(pid: u32) -> Option<Status> {
        let text = process::text(format!("/proc/{pid}/status")).ok()?;
        Some(Status(text))
    }

    fn get(&self, key: &str) -> Option<&str> {
        let mut lines = self.0.lines().filter_map(|l| l.split_once(':'));
        lines
            .find(|(k, _)| *k == key)
            .map(|(_, value)| value.trim())
    }

    /// The process's number for itself.
    fn own_number(&self) -> Option<u32> {
        self.get("NSpid")?.split_whitespace().last()?.parse().ok()
    }

    fn number(&self, key: &str) -> u64 {
        let word = self.get(key).and_then(|v| v.split_whitespace().next());
        word.and_then(|w| w.parse().ok()).unwrap_or(0)
    }
}

/// Whether process `pid` can be attached, as far as that can be seen from outside.
///
/// # Errors
/// Why not.
pub fn look(pid: u32) -> Result<Target, Refusal> {
    let gone = || {
        Refusal::new(
            format!("there is no process {pid}"),
            "look for it: pgrep NAME",
        )
    };
    let status = Status::of(pid).ok_or_else(gone)?;
    who_it_is(pid, &status)?;
    let exe = executable(pid, &status)?;
    who_has_it(&status)?;
    let class = what_it_runs(pid)?;
    let mut is_filtered = what_it_forbids(pid, &status)?;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let status = process::text(task.path().join("status"));
        is_filtered |= what_it_forbids(pid, &Status(status.unwrap_or_default()))?;
    }
    let maps = process::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    if let Some(name) = NAMES.iter().find(|name| maps.contains(&format!("/{name}"))) {
        let why = format!("it was started with {name} in front of its libc (synclater run)");
        let try_ = "synclater ps, and `synclater set` for its session; or start it anew without";
        return Err(Refusal::new(why, try_));
    }
    Ok(Target {
        is_filtered,
        ..described(pid, &status, exe, class)
    })
}

/// Whose a process is among the members of a session of `own`: the session's own user's where it
/// can become that one again by itself, otherwise its effective user's. `None` where it is gone.
#[must_use]
pub fn user_of(pid: u32, own: u32) -> Option<u32> {
    let status = Status::of(pid)?;
    let ids = status.get("Uid")?.split_whitespace();
    // Real, effective and saved; the fourth is for files.
    let ids: Vec<u32> = ids.take(3).filter_map(|id| id.parse().ok()).collect();
    match ids[..] {
        [real, effective, saved] if ![real, saved].contains(&own) => Some(effective),
        [_, _, _] => Some(own),
        _ => None,
    }
}

/// What is said of a process that has ended while it was looked at.
#[must_use]
pub fn has_ended() -> Refusal {
    Refusal::new("it has ended meanwhile", "look for it: pgrep NAME")
}

/// A process that we trace, and that has just executed a program of this class: one thread, no
/// library. It descends from us: with no more than `filters` seccomp filters, it has those of its
/// session.
///
/// # Errors
/// Why not.
pub fn at_start(pid: u32, class: Class, filters: u32) -> Result<Target, Refusal> {
    let status = Status::of(pid).ok_or_else(has_ended)?;
    let exe = executable(pid, &status)?;
    let more = status.number("Seccomp_filters") > filters.into();
    let is_filtered = more && what_it_forbids(pid, &status)?;
    Ok(Target {
        is_filtered,
        ..described(pid, &status, exe, class)
    })
}

/// Whether a thread's process has a handler for a signal; where that cannot be told, it may.
#[must_use]
pub fn handles(tid: u32, signal: u32) -> bool {
    let Some(status) = Status::of(tid) else {
        return true;
    };
    let caught = status
        .get("SigCgt")
        .map(|mask| u64::from_str_radix(mask, 16));
    caught.is_none_or(|mask| mask.is_ok_and(|mask| mask >> (signal - 1) & 1 == 1))
}

/// The number of a process for itself; `None` where it is gone.
#[must_use]
pub fn own_number_of(pid: u32) -> Option<u32> {
    Status::of(pid)?.own_number()
}

/// How many seccomp filters a thread of a process has; `None` where it is gone.
#[must_use]
pub fn filters_of(pid: u32, tid: u32) -> Option<u64> {
    let text = process::text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let status = Status(text);
    status.get("Seccomp_filters")?.parse().ok()
}

fn described(pid: u32, status: &Status, exe: String, class: Class) -> Target {
    let own_pid = status.own_number().unwrap_or(pid);
    let ns = |pid: &str, kind| mount::namespace_number(&Path::new("/proc").join(pid).join(kind));
    let of = pid.to_string();
    Target {
        own_pid,
        pid_ns: ns(&of, "ns/pid"),
        exe,
        class,
        is_filtered: false,
    }
}

fn who_it_is(pid: u32, status: &Status) -> Result<(), Refusal> {
    let elsewhere = "name another process: pgrep NAME";
    if pid == 1 {
        return Err(Refusal::new(
            "process 1 is what the machine depends on",
            elsewhere,
        ));
    }
    if status.number("Kthread") == 1 {
        return Err(Refusal::new("it is a thread of the kernel", elsewhere));
    }
    if status.get("State").is_some_and(|s| s.starts_with('Z')) {
        return Err(Refusal::new("it has ended (a zombie)", elsewhere));
    }
    let thread = status.number("Tgid") != u64::from(pid);
    if thread {
        let why = format!("it is a thread of process {}", status.number("Tgid"));
        return Err(Refusal::new(why, "name the process"));
    }
    if whom::is_synclater(pid) {
        return Err(Refusal::new("it is synclater itself", elsewhere));
    }
    Ok(())
}

fn executable(pid: u32, status: &Status) -> Result<String, Refusal> {
    let link = std::fs::read_link(format!("/proc/{pid}/exe"));
    link.map(|l| without_mark(&l.to_string_lossy()))
        .map_err(|e| {
            // Nothing but what we may not see is kept from us: it has ended since.
            if e.kind() != std::io::ErrorKind::PermissionDenied {
                return has_ended();
            }
            let (user, me) = (status.number("Uid"), process::effective_user());
            let why = format!("it belongs to user {user}, we are user {me} ({e})");
            Refusal::new(why, "sudo synclater attach ...")
        })
}

fn who_has_it(status: &Status) -> Result<(), Refusal> {
    match status.number("TracerPid") {
        0 => Ok(()),
        // Whoever attaches finds that it has gone, or tries again.
        tracer if traces_for_a_moment(tracer) => Ok(()),
        tracer => Err(traced_by(tracer)),
    }
}

/// Whether it is one of ours that attaches, lets go or ends a wait: not one that follows.
pub(super) fn traces_for_a_moment(tracer: u64) -> bool {
    let name = process::text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let name = name.trim().as_bytes();
    { [job::WORKS, tracer::ENDS_WAITS].iter() }.any(|ours| ours.to_bytes() == name)
}

/// What is said of a process that is traced by another one.
#[must_use]
pub fn traced_by(tracer: u64) -> Refusal {
    let name = process::text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let why = format!("it is traced by {tracer} ({})", name.trim());
    Refusal::new(
        why,
        "end that (strace, gdb, another synclater), then try again",
    )
}

/// The head of what a process executes.
fn head_of(pid: u32) -> std::io::Result<[u8; 20]> {
    use std::io::Read;
    let mut head = [0u8; 20];
    std::fs::File::open(format!("/proc/{pid}/exe"))?.read_exact(&mut head)?;
    Ok(head)
}

/// What code a process consists of; `None` where that is no code of this machine, or may not be
/// read.
#[must_use]
pub fn class_of(pid: u32) -> Option<Class> {
    let head = head_of(pid).ok()?;
    match (head[4], u16::from_le_bytes([head[18], head[19]])) {
        (2, 62) => Some(Class::Long),
        (1, 3) => Some(Class::Small),
        _ => None,
    }
}

/// Code of this machine for which there is a gate.
fn what_it_runs(pid: u32) -> Result<Class, Refusal> {
    let read = head_of(pid);
    let foreign = |what: &str| -> Result<Class, Refusal> {
        let why = format!("it is {what}");
        Err(Refusal::new(
            why,
            "start it under synclater: synclater run -- COMMAND",
        ))
    };
    let head = read.map_err(|e| {
        let why = format!("its program cannot be read: {e}");
        Refusal::new(why, "try as root")
    })?;
    match (head[4], u16::from_le_bytes([head[18], head[19]])) {
        (2, 62) => Ok(Class::Long),
        (1, 3) if code::image(Class::Small).is_some() => Ok(Class::Small),
        (1, _) => foreign("a 32-bit program"),
        (_, machine) => foreign(&format!("a program for another machine (ELF {machine})")),
    }
}

/// Whether a thread has a seccomp filter, which root can read.
fn what_it_forbids(pid: u32, status: &Status) -> Result<bool, Refusal> {
    let mode = status.number("Seccomp");
    let kills = "which may kill it at a call that is not its own";
    if mode == 1 {
        let why = format!("it is in seccomp's strict mode, {kills}");
        return Err(Refusal::new(
            why,
            "start it under synclater: synclater run -- COMMAND",
        ));
    }
    if mode != 0 && process::effective_user() != 0 {
        let why =
            format!("it has a seccomp filter (mode {mode}), {kills}, and which only root may read");
        return Err(Refusal::new(
            why,
            format!("sudo synclater attach --pid {pid}"),
        ));
    }
    if status
        .get("x86_Thread_features")
        .is_some_and(|f| f.contains("shstk"))
    {
        let why = "it has a shadow stack, which forbids to come back from an errand";
        return Err(Refusal::new(
            why,
            "start it under synclater: synclater run -- COMMAND",
        ));
    }
    Ok(mode != 0)
}

/// What a process has open that stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Descriptors for writing with `O_SYNC` or `O_DSYNC`.
    pub o_sync: u64,
    /// Rings of io_uring.
    pub rings: u64,
}

/// Looks through the descriptors of a process, in each table of them that its threads have.
#[must_use]
pub fn open(pid: u32) -> Open {
    let mut open = Open::default();
    for tid in threads::with_files(pid).unwrap_or_default() {
        open.add_those_at(&format!("/proc/{pid}/task/{tid}"));
    }
    open
}

impl Open {
    fn add_those_at(&mut self, task: &str) {
        let entries = std::fs::read_dir(format!("{task}/fd"));
        for entry in entries.into_iter().flatten().flatten() {
            let path = entry.path();
            let is_ring = || {
                let target = std::fs::read_link(&path).unwrap_or_default();
                target == Path::new("anon_inode:[io_uring]")
            };
            let Some(kind) = kind_of(&path) else {
                self.rings += u64::from(is_ring());
                continue;
            };
            if !is_usual(kind) && is_ring() {
                self.rings += 1;
                continue;
            }
            if matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
                let name = entry.file_name();
                self.o_sync += u64::from(has_o_sync(task, &name.to_string_lossy()));
            }
        }
    }
}

/// Whether a file is one of those that lie in folders and cannot be a ring.
fn is_usual(kind: FileType) -> bool {
    let other = [
        FileType::Directory,
        FileType::CharacterDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
        FileType::Symlink,
    ];
    other.contains(&kind)
}

/// What a file is, as far as that is known without asking whoever serves it: that may be somebody
/// who waits for us.
fn kind_of(path: &Path) -> Option<FileType> {
    kind_and_place_of(path).map(|(kind, _)| kind)
}

/// The same, and whether it lies on a file system that has a device.
fn kind_and_place_of(path: &Path) -> Option<(FileType, bool)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let seen = statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(seen.stx_mode.into());
    Some((kind, seen.stx_dev_major != 0))
}

const O_DSYNC: u32 = 0o10000;
const WRITES: u32 = 3;

fn has_o_sync(task: &str, fd: &str) -> bool {
    let (flags, _) = opened(task, fd).unwrap_or_default();
    flags & O_DSYNC != 0 && flags & WRITES != 0
}

/// The flags that a descriptor was opened with, and the number of the mount that it lies on; `None`
/// where nobody can tell.
fn opened(task: &str, fd: &str) -> Option<(u32, Option<u64>)> {
    let info = match process::text(format!("{task}/fdinfo/{fd}")) {
        // It was closed meanwhile.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Some((0, None)),
        info => info.ok()?,
    };
    let field = |name: &str| info.lines().find_map(|l| l.strip_prefix(name));
    let flags = field("flags:").and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
    let mount = field("mnt_id:").and_then(|id| id.trim().parse().ok());
    Some((flags?, mount))
}

/// How many descriptors of a process have lost their `O_SYNC` to a session: those that bear the
/// library's mark. One that cannot be looked at counts.
#[must_use]
pub fn marked(pid: u32) -> u64 {
    let mounts = mounts_of(&pid.to_string());
    match threads::with_files(pid) {
        Ok(tasks) => { tasks.iter() }
            .map(|tid| marked_of(pid, *tid, &mounts))
            .sum(),
        Err(_) => 1,
    }
}

/// The same of the table of descriptors that a thread has.
fn marked_of(pid: u32, tid: u32, mounts: &[Mount]) -> u64 {
    let task = format!("/proc/{pid}/task/{tid}");
    let Ok(entries) = std::fs::read_dir(format!("{task}/fd")) else {
        return u64::from(!process::is_ended(tid));
    };
    // A copy of a descriptor is closed, too: that asks whoever serves the file, and he may take his
    // time. On such a file system there is no mark.
    let is_marked = |entry: &std::io::Result<std::fs::DirEntry>| {
        let Ok(entry) = entry else {
            return true;
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((flags, mount)) = opened(&task, &name) else {
            return true;
        };
        if flags & WRITES == 0 || flags & O_DSYNC != 0 {
            return false;
        }
        let Some((FileType::RegularFile, is_on_disk)) = kind_and_place_of(&entry.path()) else {
            return false;
        };
        match mounts.iter().find(|m| Some(m.id) == mount) {
            Some(m) if filesystem::kind(&m.fstype) != FsKind::Tested => false,
            Some(_) => bears_mark(pid, tid, &name),
            // Unmounted, but for what is open there: a disk's file system is the kernel's own.
            None => !is_on_disk || bears_mark(pid, tid, &name),
        }
    };
    entries.filter(is_marked).count() as u64
}

fn bears_mark(pid: u32, tid: u32, fd: &str) -> bool {
    let file = fd.parse().map_err(std::io::Error::other);
    let file = file.and_then(|fd| remote::descriptor(pid, tid, fd));
    let signal = file.and_then(|file| remote::signal_of(file.as_fd()));
    const EBADF: i32 = 9;
    match signal {
        Ok(signal) => MARKS.contains(&signal),
        Err(e) => e.raw_os_error() != Some(EBADF),
    }
}
