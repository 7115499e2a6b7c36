//! What a process is, before anything is done to it: whether it can be attached, and if not, why.
//!
//! Promise: nothing here changes or stops the process.

use super::class::{head_of, image, Class};
use super::refusal::{has_ended, Refusal};
use super::tracer::{traced_by, traces_for_a_moment};
use crate::reach::program::without_mark;
use crate::reach::{selector, status};
use crate::session::mounts::mounts_of;
use rustix::fs::{statx, AtFlags, FileType, StatxFlags, CWD};
use serde::{Deserialize, Serialize};
use std::fs::DirEntry;
use std::os::fd::AsFd;
use std::path::Path;
use synclater_policy::filesystem::{self, FsKind};
use synclater_proc::mountinfo::Mount;
use synclater_proc::status::Status;
use synclater_shim::page::MARKS;
use synclater_shim::NAMES;
use synclater_sys::{mount, process, remote, threads};

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

/// Whether process `pid` can be attached, as far as that can be seen from outside.
///
/// # Errors
/// Why not.
pub fn look(pid: u32) -> Result<Target, Refusal> {
    let status = process::status(pid).map_err(|_| {
        let why = format!("there is no process {pid}");
        Refusal::new(why, "look for it: pgrep NAME")
    })?;
    who_it_is(pid, &status)?;
    let exe = executable(pid, &status)?;
    who_has_it(&status)?;
    let class = what_it_runs(pid)?;
    let mut is_filtered = what_it_forbids(pid, &status)?;
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
        let status = tid.and_then(|tid| status::of_thread(pid, tid));
        is_filtered |= what_it_forbids(pid, &status.unwrap_or_default())?;
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

/// A process that we trace, and that has just executed a program of this class: one thread, no
/// library. It descends from us: with no more than `filters` seccomp filters, it has those of its
/// session.
///
/// # Errors
/// Why not.
pub fn at_start(pid: u32, class: Class, filters: u32) -> Result<Target, Refusal> {
    let status = process::status(pid).map_err(|_| has_ended())?;
    let exe = executable(pid, &status)?;
    let more = number(&status, "Seccomp_filters") > filters.into();
    let is_filtered = more && what_it_forbids(pid, &status)?;
    Ok(Target {
        is_filtered,
        ..described(pid, &status, exe, class)
    })
}

/// A number that `/proc` says of it; 0 where it does not.
fn number(status: &Status, name: &str) -> u64 {
    status.number(name).unwrap_or(0)
}

fn described(pid: u32, status: &Status, exe: String, class: Class) -> Target {
    let own_pid = status.own_pid().unwrap_or(pid);
    Target {
        own_pid,
        pid_ns: mount::namespace_number(Path::new(&format!("/proc/{pid}/ns/pid"))),
        exe,
        class,
        is_filtered: false,
    }
}

fn who_it_is(pid: u32, status: &Status) -> Result<(), Refusal> {
    let elsewhere = "name another process: pgrep NAME";
    if pid == 1 {
        return Err(if mount::is_in_outermost_pid_namespace() {
            Refusal::new("process 1 is what the machine depends on", elsewhere)
        } else {
            Refusal::new(
                "process 1 is what all others of this pid namespace depend on",
                "attach it from outside of that, by the number that it has there",
            )
        });
    }
    if number(status, "Kthread") == 1 {
        return Err(Refusal::new("it is a thread of the kernel", elsewhere));
    }
    if status.field("State").is_some_and(|s| s.starts_with('Z')) {
        return Err(Refusal::new("it has ended (a zombie)", elsewhere));
    }
    let thread = number(status, "Tgid") != u64::from(pid);
    if thread {
        let why = format!("it is a thread of process {}", number(status, "Tgid"));
        return Err(Refusal::new(why, "name the process"));
    }
    if selector::is_synclater(pid) {
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
            let (user, me) = (number(status, "Uid"), process::effective_user());
            if process::is_in_user_namespace() {
                let why =
                    format!("we are user {me} of a user namespace, and may not enter it ({e})");
                return Refusal::new(why, "attach it from outside of that namespace");
            }
            let why = format!("it belongs to user {user}, we are user {me} ({e})");
            Refusal::new(why, "sudo synclater attach ...")
        })
}

fn who_has_it(status: &Status) -> Result<(), Refusal> {
    match number(status, "TracerPid") {
        0 => Ok(()),
        // Whoever attaches finds that it has gone, or tries again.
        tracer if traces_for_a_moment(tracer) => Ok(()),
        tracer => Err(traced_by(tracer)),
    }
}

/// Code of this machine for which there is a gate.
fn what_it_runs(pid: u32) -> Result<Class, Refusal> {
    let head = head_of(pid).map_err(|e| {
        let why = format!("its program cannot be read: {e}");
        Refusal::new(why, "try as root")
    })?;
    match (head[4], u16::from_le_bytes([head[18], head[19]])) {
        (2, 62) => Ok(Class::Long),
        (1, 3) if image(Class::Small).is_some() => Ok(Class::Small),
        (1, _) => Err(foreign("a 32-bit program")),
        (_, machine) => {
            let what = format!("a program for another machine (ELF {machine})");
            Err(foreign(&what))
        }
    }
}

/// What is said of a program that there is no gate for.
fn foreign(what: &str) -> Refusal {
    let why = format!("it is {what}");
    Refusal::new(why, "start it under synclater: synclater run -- COMMAND")
}

/// Whether a thread has a seccomp filter, which root can read.
fn what_it_forbids(pid: u32, status: &Status) -> Result<bool, Refusal> {
    let mode = number(status, "Seccomp");
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
        .field("x86_Thread_features")
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
            let Some(kind) = kind_of(&path) else {
                self.rings += u64::from(is_ring(&path));
                continue;
            };
            if !is_usual(kind) && is_ring(&path) {
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

/// Whether a descriptor's link in `/proc` leads to a ring.
fn is_ring(path: &Path) -> bool {
    let target = std::fs::read_link(path).unwrap_or_default();
    target == Path::new("anon_inode:[io_uring]")
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
    let flags = field(&info, "flags:").and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
    let mount = field(&info, "mnt_id:").and_then(|id| id.trim().parse().ok());
    Some((flags?, mount))
}

/// What stands behind a name at the begin of a line.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|l| l.strip_prefix(name))
}

/// How many descriptors of a process have lost their `O_SYNC` to a session: those that bear the
/// library's mark. One that cannot be looked at counts.
#[must_use]
pub fn marked(pid: u32) -> u64 {
    let mounts = mounts_of(&pid.to_string());
    match threads::with_files(pid) {
        Ok(tasks) => tasks.iter().map(|tid| marked_of(pid, *tid, &mounts)).sum(),
        Err(_) => 1,
    }
}

/// The same of the table of descriptors that a thread has.
fn marked_of(pid: u32, tid: u32, mounts: &[Mount]) -> u64 {
    let task = format!("/proc/{pid}/task/{tid}");
    let Ok(entries) = std::fs::read_dir(format!("{task}/fd")) else {
        return u64::from(!process::is_ended(tid));
    };
    let marked = entries.filter(|entry| match entry {
        Ok(entry) => is_marked(pid, tid, &task, entry, mounts),
        Err(_) => true,
    });
    marked.count() as u64
}

/// Whether a descriptor of thread `tid`, whose folder is `task`, bears the mark, or may.
fn is_marked(pid: u32, tid: u32, task: &str, entry: &DirEntry, mounts: &[Mount]) -> bool {
    let name = entry.file_name().to_string_lossy().into_owned();
    let Some((flags, mount)) = opened(task, &name) else {
        return true;
    };
    if flags & WRITES == 0 || flags & O_DSYNC != 0 {
        return false;
    }
    let Some((FileType::RegularFile, is_on_disk)) = kind_and_place_of(&entry.path()) else {
        return false;
    };
    // A copy of a descriptor is closed, too: that asks whoever serves the file, and he may take his
    // time. On such a file system there is no mark.
    match mounts.iter().find(|m| Some(m.id) == mount) {
        Some(m) if filesystem::kind(&m.fstype) != FsKind::Tested => false,
        Some(_) => bears_mark(pid, tid, &name),
        // Unmounted, but for what is open there: a disk's file system is the kernel's own.
        None => !is_on_disk || bears_mark(pid, tid, &name),
    }
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
