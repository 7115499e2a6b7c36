//! This process, and others as /proc shows them: who they are, whose, and what they are about.
//!
//! Promise: nothing here waits for another process, or its file systems.

use rustix::process::{Pid, Signal};
use std::io;
use std::os::fd::AsFd;
use synclater_proc::stat::Stat;
use synclater_proc::status::Status;

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

/// Every process that /proc shows, by its number; none where /proc cannot be read.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// What `/proc/PID/status` says of a process, or of a thread.
///
/// # Errors
/// As [`text`]: that it is gone, or /proc is not there.
pub fn status(pid: u32) -> io::Result<Status> {
    text(format!("/proc/{pid}/status")).map(Status::parse)
}

/// Who made a thread: for the first of a process its parent, for others their process.
#[must_use]
pub fn maker(tid: u32) -> Option<u32> {
    let status = status(tid).ok()?;
    status
        .process()
        .filter(|process| *process != tid)
        .or_else(|| u32::try_from(status.number("PPid")?).ok())
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
    const PF_FORKNOEXEC: u64 = 0x40; // linux/sched.h
    let flags = stat_of(pid).and_then(|stat| stat.flags());
    flags.is_some_and(|flags| flags & PF_FORKNOEXEC != 0)
}

/// Whether a process has ended, or is a zombie: it has had a SIGKILL, say, although a thread of its
/// still hangs in the kernel. One that /proc hides from us (`hidepid`) has not.
#[must_use]
pub fn is_ended(pid: u32) -> bool {
    match stat_of(pid) {
        Some(stat) => stat.has_ended(),
        None => !is_alive(pid),
    }
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

/// What `/proc/OF/stat` says; `of` is a process, or `PID/task/TID`. `None` where it is gone.
#[must_use]
pub fn stat(of: &str) -> Option<Stat> {
    Stat::parse(&text(format!("/proc/{of}/stat")).ok()?)
}

fn stat_of(pid: u32) -> Option<Stat> {
    stat(&pid.to_string())
}

/// The parent of a process that is there, or of the process of a thread.
#[must_use]
pub fn parent_of(pid: u32) -> Option<u32> {
    stat_of(pid)?.parent()
}

/// How often a process has begun or ceased to run on a processor (`*_ctxt_switches`,
/// proc_pid_status(5)). `None` where /proc does not say.
#[must_use]
pub fn switches(pid: u32) -> Option<u64> {
    status(pid).ok()?.switches()
}

/// Whether a process runs, or waits for nothing but a processor; false also where /proc does not
/// say.
#[must_use]
pub fn is_runnable(pid: u32) -> bool {
    stat_of(pid).is_some_and(|stat| stat.state() == 'R')
}

/// Whether a process stands still for a signal or its tracer; false also where /proc does not say.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    stat_of(pid).is_some_and(|stat| matches!(stat.state(), 'T' | 't'))
}

/// Whether a signal waits for a process as a whole (`ShdPnd`, proc(5)); false where /proc does not
/// say.
#[must_use]
pub fn has_pending(pid: u32, signal: i32) -> bool {
    let pending = status(pid).ok().and_then(|status| status.set("ShdPnd"));
    pending.is_some_and(|set| set >> (signal - 1) & 1 != 0)
}

/// Whether a process is there and no zombie; as /proc says it.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    match stat_of(pid).map(|stat| stat.state()) {
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

/// Whether this process is in another user namespace than the first, whose numbers are all there is
/// (user_namespaces(7)); true also where /proc does not say.
#[must_use]
pub fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().last() != Some("4294967295")
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
    status(pid).map(|status| status.users()).unwrap_or_default()
}

/// When a process began, in ticks since the machine did; with its number it is one process for
/// ever. `None` where it is gone.
#[must_use]
pub fn began(pid: u32) -> Option<u64> {
    stat_of(pid)?.started()
}

/// A number that no other process ever has, and that nobody waits for: that of its descriptor
/// (Linux 6.9), or when it began, which waits on Linux 6.18 for one that executes something.
/// `None` where it is gone.
#[must_use]
pub fn identity(pid: u32) -> Option<u64> {
    const PID_FS_MAGIC: i64 = 0x5049_4446;
    let fd = watch(pid)?;
    if rustix::fs::fstatfs(&fd).is_ok_and(|fs| fs.f_type == PID_FS_MAGIC) {
        rustix::fs::fstat(&fd).ok().map(|stat| stat.st_ino)
    } else {
        began(pid)
    }
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
    group_of(pid.cast_signed()) == group_of(0)
}

/// The process group of a process; 0 is this one.
fn group_of(pid: libc::pid_t) -> libc::pid_t {
    // Not rustix: a group outside of our pid namespace has number 0, which it does not expect.
    // SAFETY: getpgid has no precondition.
    unsafe { libc::getpgid(pid) }
}
