//! Starting the command, and what it needs to see of its parent: nothing.
//!
//! Promise: the command starts with the signal mask, the ignored signals and the descriptors that
//! we were started with (as after env(1) or nohup(1)), although Rust's runtime and the supervisor
//! change some of them for themselves.

use crate::seccomp::Filter;
use crate::spawn;
use crate::{job, timers};
use rustix::process::{Pid, Signal};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when we were started; Rust's runtime ignores it before main.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// Whether SIGXFSZ was: we ignore it, so that a file size limit is an error that can be told.
static SIZE_IGNORED: AtomicBool = AtomicBool::new(false);
/// Whether SIGCHLD was: then nobody would hear how a child of ours has ended (wait(2)).
static CHILD_IGNORED: AtomicBool = AtomicBool::new(false);

/// Signals that are ignored here, or not, whatever they were before.
const CHANGED: [(i32, &AtomicBool); 3] = [
    (libc::SIGPIPE, &PIPE_IGNORED),
    (libc::SIGXFSZ, &SIZE_IGNORED),
    (libc::SIGCHLD, &CHILD_IGNORED),
];

/// Runs before Rust's runtime, which would hide how SIGPIPE stood.
extern "C" fn before_main() {
    for (signal, ignored) in CHANGED {
        ignored.store(crate::signal::is_ignored(signal), Ordering::Relaxed);
    }
    crate::signal::set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
    crate::signal::set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    // SAFETY: asks about a number.
    let is_open = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } >= 0;
    OUTPUT_CLOSED.store(!is_open, Ordering::Relaxed);
}

/// Whether standard output was closed when we were started; Rust's runtime opens /dev/null there.
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether we were started without a standard output (`>&-`): what is written there is lost.
#[must_use]
pub fn output_was_closed() -> bool {
    OUTPUT_CLOSED.load(Ordering::Relaxed)
}

// SAFETY: an entry of .init_array is called once, with C's convention, before main; ours touches an
// atomic and makes one system call.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Restores what the command is to inherit; runs between fork and exec.
fn restore(mask: &libc::sigset_t) -> io::Result<()> {
    let as_before = |ignored: bool| {
        if ignored {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        }
    };
    for (signal, ignored) in CHANGED {
        crate::signal::set_disposition(signal, as_before(ignored.load(Ordering::Relaxed)));
    }
    crate::signal::set_mask(mask);
    Ok(())
}

/// Starts `command` with the signal state of `inherited`; returns its process id.
///
/// # Errors
/// Those of fork and exec, the latter as the command's own: `ENOENT`, `EACCES`, `ENOEXEC`…
pub fn spawn(mut command: Command, inherited: &crate::signal::Inherited) -> io::Result<u32> {
    // posix_spawn(3) can make a signal default, and not ignored, and sets no timers.
    if !CHILD_IGNORED.load(Ordering::Relaxed) && !timers::run() {
        let default = CHANGED.iter().filter(|(_, i)| !i.load(Ordering::Relaxed));
        match spawn::beside(&command, &inherited.mask, default.map(|(s, _)| *s)) {
            // A script without `#!` is for /bin/sh: execvp(3) does that, posix_spawnp(3) does not.
            Err(e) if e.raw_os_error() == Some(libc::ENOEXEC) => {}
            done => return done,
        }
    }
    with_inherited(&mut command, inherited);
    timers::start(command)
}

/// What a command does before it is executed.
#[derive(Default)]
pub struct First<'a> {
    /// It has process `.1` trace it, by sending its number to `.0` (of a sequenced-packet socket)
    /// and waiting for four bytes: 0, or an errno.
    pub traced: Option<(BorrowedFd<'a>, u32)>,
    /// It puts a filter on itself.
    pub filter: Option<Filter>,
}

/// As [`spawn`]; the child does something first.
///
/// # Errors
/// As [`spawn`]; the tracer's errno, `ECONNRESET` where it has ended, `ETIMEDOUT` where it does not
/// answer within the time that the socket is set to; those of seccomp(2).
pub fn spawn_after(
    mut command: Command,
    inherited: &crate::signal::Inherited,
    first: First<'_>,
) -> io::Result<u32> {
    with_inherited(&mut command, inherited);
    if let Some((door, tracer)) = first.traced {
        let door = door.as_raw_fd();
        // SAFETY: `be_traced` makes system calls only, all async-signal-safe; the door is open
        // until the command is executed.
        unsafe { command.pre_exec(move || be_traced(door, tracer)) };
    }
    if let Some(filter) = first.filter {
        // SAFETY: as above.
        unsafe { command.pre_exec(move || filter.install()) };
    }
    timers::start(command)
}

fn be_traced(door: i32, tracer: u32) -> io::Result<()> {
    // Where Yama wants it said (prctl(2), Linux 3.4); others do not know it.
    // SAFETY: prctl takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(tracer)) };
    // SAFETY: getpid has no precondition.
    let pid = unsafe { libc::getpid() }.to_ne_bytes();
    // SAFETY: four bytes of ours are read.
    let sent = unsafe { libc::send(door, pid.as_ptr().cast(), 4, libc::MSG_NOSIGNAL) };
    let mut answer = [0u8; 4];
    let mut n = -1;
    while sent == 4 && n < 0 {
        // SAFETY: `answer` has room for four bytes.
        n = unsafe { libc::recv(door, answer.as_mut_ptr().cast(), 4, 0) };
        if n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    match (n, i32::from_ne_bytes(answer)) {
        (4, 0) => Ok(()),
        (4, errno) => Err(io::Error::from_raw_os_error(errno)),
        (-1, _) => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        _ => Err(io::Error::from_raw_os_error(libc::ECONNRESET)),
    }
}

/// Becomes `command`; returns only where that failed.
#[must_use]
pub fn become_command(mut command: Command, inherited: &crate::signal::Inherited) -> io::Error {
    with_inherited(&mut command, inherited);
    command.exec()
}

/// Has `command` begin with the signal state of `inherited`.
pub fn with_inherited(command: &mut Command, inherited: &crate::signal::Inherited) {
    let mask = inherited.mask;
    // SAFETY: `restore` calls sigaction and sigprocmask only, both async-signal-safe.
    unsafe { command.pre_exec(move || restore(&mask)) };
}

/// Makes orphans among our descendants our children, so that the session's processes can be told.
pub fn adopt_orphans() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Starts a session of its own for the calling process (setsid(2)).
pub fn leave_session() {
    let _ = rustix::process::setsid();
}

/// Has the kernel send `signal` to the calling process when its parent's forking thread ends.
pub(crate) fn send_at_parents_death(signal: i32) {
    let signal = Signal::from_named_raw(signal);
    let _ = rustix::process::set_parent_process_death_signal(signal);
}

/// Has the kernel kill the calling process when its parent's forking thread ends; false where that
/// has happened already: the parent is not process `parent` any more.
#[must_use]
pub fn end_with_parent(parent: u32) -> bool {
    send_at_parents_death(libc::SIGKILL);
    self::parent() == parent
}

/// The parent's process id; 0 where it lies outside of our pid namespace.
#[must_use]
pub fn parent() -> u32 {
    let pid = rustix::process::getppid();
    pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
}

/// Whether seccomp looks at this process's system calls (prctl(2), PR_GET_SECCOMP).
#[must_use]
pub fn is_filtered() -> bool {
    use rustix::thread::{secure_computing_mode, SecureComputingMode};
    !matches!(secure_computing_mode(), Ok(SecureComputingMode::Disabled))
}

/// Moves the calling process to the mounts and the root of process 1, where that is permitted: out
/// of a chroot, say, that is taken down next. For a process with one thread.
pub(crate) fn move_to_init() {
    use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
    if let Ok(mounts) = std::fs::File::open("/proc/1/ns/mnt") {
        let _ = move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount));
    }
}

/// A note of ours in a program file (elf(5), "Notes"): by it another synclater knows this one,
/// whatever its file is called.
#[repr(C, align(4))]
struct Note {
    name_len: u32,
    held_len: u32,
    kind: u32,
    name: [u8; 12],
}

#[used]
#[link_section = ".note.synclater"]
static NOTE: Note = Note {
    name_len: 10,
    held_len: 0,
    kind: 1,
    name: *b"synclater\0\0\0",
};

/// Makes the calling process known as a synclater, whatever its file is called.
pub fn be_synclater() {
    std::hint::black_box(&NOTE);
    set_name(c"synclater");
}

/// What our caller has left open, but for input, output and errors: called before anything of ours
/// is open.
#[must_use]
pub fn left_open() -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let mut numbers: Vec<i32> = all
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // Not what it was listed by.
    // SAFETY: no pointers.
    numbers.retain(|fd| *fd > 2 && unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1);
    numbers
}

/// Closes what [`left_open`] has told.
pub fn close_all(numbers: &[i32]) {
    for fd in numbers {
        // SAFETY: nobody owns them.
        unsafe { libc::close(*fd) };
    }
}

/// Names the calling process in `ps` (15 bytes at most).
pub fn set_name(name: &std::ffi::CStr) {
    let _ = rustix::thread::set_name(name);
}

/// What waiting for a child told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited with this status.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// A signal stopped it.
    Stopped,
    /// It goes on.
    Continued,
}

/// The next change of state among our children, without waiting: of `first`, then of others. Not
/// of a job, whose end belongs to its [`job::Job`].
#[must_use]
pub fn next_change(first: u32) -> Option<(u32, Change)> {
    let jobs = job::children();
    let stands_or_goes_on = libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG;
    let how = libc::WEXITED | stands_or_goes_on;
    // A job may have the number of one that has ended.
    let first = Some(first).filter(|pid| *pid != 0 && !jobs.contains(pid));
    if let Some(change) = first.and_then(|pid| wait_info(libc::P_PID, pid, how)) {
        return Some(change);
    }
    loop {
        let (pid, change) = wait_info(libc::P_ALL, 0, how | libc::WNOWAIT)?;
        if !jobs.contains(&pid) {
            return wait_info(libc::P_PID, pid, how);
        }
        if matches!(change, Change::Exited(_) | Change::Signaled(_)) {
            // It hides what has changed in others as long as nobody asks how it ended.
            let others = children().into_iter().filter(|pid| !jobs.contains(pid));
            return { others }.find_map(|pid| wait_info(libc::P_PID, pid, how));
        }
        // Nobody wants to know, and it hides what has changed in others.
        wait_info(libc::P_PID, pid, stands_or_goes_on)?;
    }
}

fn wait_info(kind: libc::idtype_t, id: u32, how: i32) -> Option<(u32, Change)> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` has room for the answer.
    let r = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), how) };
    // SAFETY: zeroed is a valid siginfo_t, and waitid may have filled it in.
    let info = unsafe { info.assume_init() };
    // SAFETY: after waitid the fields of SIGCHLD are the ones in use; zeroed they read 0.
    let pid = unsafe { info.si_pid() };
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    if r != 0 || pid == 0 {
        return None;
    }
    let change = match info.si_code {
        libc::CLD_EXITED => Change::Exited(status),
        libc::CLD_KILLED | libc::CLD_DUMPED => Change::Signaled(status),
        libc::CLD_CONTINUED => Change::Continued,
        _ => Change::Stopped,
    };
    Some((pid.unsigned_abs(), change))
}

/// Sends a signal to one process.
///
/// # Errors
/// Those of kill(2).
pub fn kill(pid: u32, signal: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: any number is allowed here: it goes to kill(2), which checks it.
    let signal = unsafe { Signal::from_raw_unchecked(signal) };
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// Ends this process by `signal`, as the command was; returns where that signal does not end it.
pub fn die_of(signal: i32) {
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: None,
    };
    let now = rustix::process::getrlimit(rustix::process::Resource::Core);
    let limit = rustix::process::Rlimit {
        current: Some(0),
        maximum: now.maximum.or(none.maximum),
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, limit);
    crate::signal::set_disposition(signal, libc::SIG_DFL);
    crate::signal::unblock(signal);
    let _ = kill(std::process::id(), signal);
}

/// Every process that /proc shows, by its number; none where /proc cannot be read.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Who made a thread: for the first of a process its parent, for others their process.
#[must_use]
pub fn maker(tid: u32) -> Option<u32> {
    let status = text(format!("/proc/{tid}/status")).ok()?;
    let number = |key: &str| {
        let mut lines = status.lines();
        lines.find_map(|l| l.strip_prefix(key)?.trim().parse().ok())
    };
    number("Tgid:")
        .filter(|process| *process != tid)
        .or_else(|| number("PPid:"))
}

/// Our children, zombies too, by number; as /proc says it.
#[must_use]
pub fn children() -> Vec<u32> {
    let mut all = Vec::new();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        let list = std::fs::read_to_string(task.path().join("children"));
        let list = list.unwrap_or_default();
        all.extend(
            list.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    all
}

/// Whether a process is there (not a zombie's grave: a zombie counts as there).
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| {
        !matches!(
            rustix::process::test_kill_process(pid),
            Err(rustix::io::Errno::SRCH)
        )
    })
}

/// Whether a process was made by fork(2), and has not executed anything since.
#[must_use]
pub fn is_forked(pid: u32) -> bool {
    // proc_pid_stat(5), from the third field on; linux/sched.h.
    const FLAGS: usize = 6;
    const PF_FORKNOEXEC: u64 = 0x40;
    let flags = stat(&pid.to_string()).and_then(|s| s.split(' ').nth(FLAGS)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_FORKNOEXEC != 0)
}

/// Whether a process has ended, or is a zombie: it has had a SIGKILL, say, although a thread of its
/// still hangs in the kernel. One that /proc hides from us (`hidepid`) has not.
#[must_use]
pub fn is_ended(pid: u32) -> bool {
    match stat(&pid.to_string()) {
        Some(stat) => stat.starts_with(['Z', 'X']),
        None => !is_alive(pid),
    }
}

/// When a process was started, in clock ticks since boot (field 22 of /proc/PID/stat): with its
/// number, which process of a boot it is.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    // The first field here is the third.
    stat(&pid.to_string())?.split(' ').nth(19)?.parse().ok()
}

/// Whether /proc shows our pid namespace.
#[must_use]
pub fn proc_is_ours() -> bool {
    let own = std::fs::read_link("/proc/self");
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
}

/// What a file of /proc holds, read at once if it is no longer than most are. A process may bear
/// any name, and a file: what is no text in it is shown by marks (U+FFFD).
///
/// # Errors
/// Those of open(2) and read(2); `ESRCH` where its process has ended.
pub fn text(path: impl AsRef<std::path::Path>) -> io::Result<String> {
    use std::io::Read;
    /// More than /proc/PID/status has; the kernel hands out other files by the page.
    const MOST_ARE_SHORTER: usize = 8192;
    let mut file = std::fs::File::open(path)?;
    let mut bytes = vec![0; MOST_ARE_SHORTER];
    let mut len = 0;
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if len == bytes.len() {
            bytes.resize(2 * len, 0);
        }
    }
    bytes.truncate(len);
    let text = String::from_utf8(bytes);
    Ok(text.unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Has the kernel wake the calling thread from short sleeps when they are over, not up to 50 us
/// later (prctl(2), PR_SET_TIMERSLACK).
pub fn be_punctual() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// The fields of `/proc/OF/stat` (proc(5)) from the state on, with a blank between; `of` is a
/// process, or `PID/task/TID`. `None` where it is gone.
#[must_use]
pub fn stat(of: &str) -> Option<String> {
    let stat = text(format!("/proc/{of}/stat")).ok()?;
    // The name in parentheses may hold anything.
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

/// The parent of a process that is there, or of the process of a thread.
#[must_use]
pub fn parent_of(pid: u32) -> Option<u32> {
    stat(&pid.to_string())?.split(' ').nth(1)?.parse().ok()
}

/// How often a process has begun or ceased to run on a processor (`*_ctxt_switches`,
/// proc_pid_status(5)). `None` where /proc does not say.
#[must_use]
pub fn switches(pid: u32) -> Option<u64> {
    let status = text(format!("/proc/{pid}/status")).ok()?;
    let counts = { status.lines() }.filter_map(|l| l.split_once("_ctxt_switches:"));
    counts.map(|(_, n)| n.trim().parse::<u64>().ok()).sum()
}

/// Whether a process runs, or waits for nothing but a processor; false also where /proc does not
/// say.
#[must_use]
pub fn is_runnable(pid: u32) -> bool {
    stat(&pid.to_string()).is_some_and(|rest| rest.starts_with('R'))
}

/// Whether a process stands still for a signal or its tracer; false also where /proc does not say.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    stat(&pid.to_string()).is_some_and(|rest| rest.starts_with(['T', 't']))
}

/// Whether a signal waits for a process as a whole (`ShdPnd`, proc(5)); false where /proc does not
/// say.
#[must_use]
pub fn has_pending(pid: u32, signal: i32) -> bool {
    let status = text(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|l| l.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    pending.is_some_and(|set| set >> (signal - 1) & 1 != 0)
}

/// Whether a process is there and no zombie; as /proc says it.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    let state = stat(&pid.to_string()).and_then(|rest| rest.chars().next());
    match state {
        None | Some('X') => false,
        // The first thread has ended; others may go on.
        Some('Z') => std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|t| t.count() > 1),
        Some(_) => true,
    }
}

/// The user that this process acts as.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user that another process, or thread, acts as (proc_pid_status(5)).
#[must_use]
pub fn effective_user_of(pid: u32) -> Option<u32> {
    users_of(pid).get(1).copied()
}

/// The users that another process is: the real one, the one that it acts as, the saved one, and the
/// one that it opens files as. None where it is gone.
#[must_use]
pub fn users_of(pid: u32) -> Vec<u32> {
    let status = text(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.filter_map(|w| w.parse().ok()).collect()
}

/// When a process began, in ticks since the machine did; with its number it is one process for
/// ever. `None` where it is gone.
#[must_use]
pub fn began(pid: u32) -> Option<u64> {
    began_by(&stat(&pid.to_string())?)
}

/// A number that no other process ever has, and that nobody waits for: that of its descriptor
/// (Linux 6.9), or when it began, which waits on Linux 6.18 for one that executes something.
/// `None` where it is gone.
#[must_use]
pub fn identity(pid: u32) -> Option<u64> {
    const PID_FS_MAGIC: i64 = 0x5049_4446;
    let fd = watch(pid)?;
    match rustix::fs::fstatfs(&fd).is_ok_and(|fs| fs.f_type == PID_FS_MAGIC) {
        true => rustix::fs::fstat(&fd).ok().map(|stat| stat.st_ino),
        false => began(pid),
    }
}

/// Field 22 of proc(5), in those from the state on.
pub(crate) fn began_by(stat: &str) -> Option<u64> {
    stat.split(' ').nth(19)?.parse().ok()
}

/// A descriptor that becomes readable when process `pid` ends; `None` where it is gone already.
#[must_use]
pub fn watch(pid: u32) -> Option<std::os::fd::OwnedFd> {
    use rustix::process::{pidfd_open, PidfdFlags};
    pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()
}

/// Whether this process leads its session: it alone is told when the terminal hangs up
/// (`tty_signal_session_leader`, Linux 6.18).
#[must_use]
pub fn leads_session() -> bool {
    let session = rustix::process::getsid(None);
    session.is_ok_and(|session| session == rustix::process::getpid())
}

/// Whether process `pid` is in our process group, to which the terminal sends its signals.
#[must_use]
pub fn is_in_our_group(pid: u32) -> bool {
    // Not rustix: a group outside of our pid namespace has number 0, which it does not expect.
    // SAFETY: getpgid has no precondition.
    let group = |pid| unsafe { libc::getpgid(pid) };
    group(pid.cast_signed()) == group(0)
}
