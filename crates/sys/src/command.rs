//! Starting the command, and what it needs to see of its parent: nothing.
//!
//! Promise: the command starts with the signal mask, the ignored signals and the descriptors that
//! we were started with (as after env(1) or nohup(1)), although Rust's runtime and the supervisor
//! change some of them for themselves.

use crate::seccomp::Filter;
use crate::signal::Inherited;
use crate::{spawn, timers};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
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

/// Whether standard input, output and error were closed when we were started; Rust's runtime opens
/// /dev/null there.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Runs before Rust's runtime, which would hide how SIGPIPE stood.
extern "C" fn before_main() {
    for (signal, ignored) in CHANGED {
        ignored.store(crate::signal::is_ignored(signal), Ordering::Relaxed);
    }
    crate::signal::set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
    crate::signal::set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    for (number, closed) in (0..).zip(&CLOSED) {
        // SAFETY: asks about a number.
        let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
        closed.store(!is_open, Ordering::Relaxed);
    }
}

/// Has the command begin without those of its standard streams that we were started without.
fn hand_on_what_was_closed() {
    for (number, closed) in (0..).zip(&CLOSED) {
        if closed.load(Ordering::Relaxed) {
            // SAFETY: sets a flag of a number; what is there is /dev/null, opened by our runtime.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Whether we were started without a standard output (`>&-`): what is written there is lost.
#[must_use]
pub fn output_was_closed() -> bool {
    CLOSED[1].load(Ordering::Relaxed)
}

// SAFETY: an entry of .init_array is called once, with C's convention, before main; ours touches an
// atomic and makes one system call.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Restores what the command is to inherit; runs between fork and exec.
fn restore(mask: &libc::sigset_t) -> io::Result<()> {
    for (signal, ignored) in CHANGED {
        crate::signal::set_disposition(signal, as_before(ignored.load(Ordering::Relaxed)));
    }
    crate::signal::set_mask(mask);
    Ok(())
}

/// What a signal does that was ignored when we were started, or was not.
fn as_before(ignored: bool) -> libc::sighandler_t {
    if ignored {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    }
}

/// Starts `command` with the signal state of `inherited`; returns its process id.
///
/// # Errors
/// Those of fork and exec, the latter as the command's own: `ENOENT`, `EACCES`, `ENOEXEC`…
pub fn spawn(mut command: Command, inherited: &Inherited) -> io::Result<u32> {
    hand_on_what_was_closed();
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
    inherited: &Inherited,
    first: First<'_>,
) -> io::Result<u32> {
    hand_on_what_was_closed();
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
pub fn become_command(mut command: Command, inherited: &Inherited) -> io::Error {
    hand_on_what_was_closed();
    with_inherited(&mut command, inherited);
    command.exec()
}

/// Has `command` begin with the signal state of `inherited`.
pub fn with_inherited(command: &mut Command, inherited: &Inherited) {
    let mask = inherited.mask;
    // SAFETY: `restore` calls sigaction and sigprocmask only, both async-signal-safe.
    unsafe { command.pre_exec(move || restore(&mask)) };
}
