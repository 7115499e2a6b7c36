//! Signals as data: which were inherited, and those that arrive, through a descriptor.

use crate::{process, timers};
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};

/// The signal state that we were started with, for the command to inherit.
#[derive(Clone, Copy)]
pub struct Inherited {
    pub(crate) mask: libc::sigset_t,
}

/// Signals that are passed on to the command, beside those in real time: all that others send, but
/// for what ends or stops without asking, and what tells a program of its own mistakes.
const PASSED: [i32; 16] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGCONT,
    libc::SIGWINCH,
    libc::SIGPOLL,
    libc::SIGABRT,
    libc::SIGXCPU,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

fn passed() -> impl Iterator<Item = i32> {
    PASSED
        .into_iter()
        .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// One signal that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Its number.
    pub number: i32,
    /// Whether the kernel sent it.
    pub by_kernel: bool,
    /// Whether it was ignored when we were started: it is the command's alone.
    pub was_ignored: bool,
    /// The process that sent it; 0 where it cannot be named (another pid namespace).
    pub sender: u32,
}

impl Arrived {
    /// Whether it asks for our end.
    #[must_use]
    pub fn ends(&self) -> bool {
        const END: [i32; 11] = [
            libc::SIGALRM,
            libc::SIGVTALRM,
            libc::SIGPROF,
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGTERM,
            libc::SIGABRT,
            libc::SIGXCPU,
            libc::SIGPWR,
            libc::SIGSTKFLT,
        ];
        !self.was_ignored && (END.contains(&self.number) || self.number >= libc::SIGRTMIN())
    }
}

impl Arrived {
    /// Sends it to our child `command` (0: to nobody), but for what reached that by itself: a key
    /// at the terminal, unless it left our process group. The terminal's end reaches who leads its
    /// session alone, and a timer's end us. What `waker` sends (0: there is none) is for us: it
    /// does so because the command goes on, and by now that may have been stopped again.
    pub fn pass_on(&self, command: u32, waker: u32) {
        let hung_up = self.number == libc::SIGHUP && process::leads_session();
        let is_ours = hung_up || timers::end_with(self.number);
        let by_key = self.by_kernel && !is_ours && process::is_in_our_group(command);
        let of_child = self.number == libc::SIGCHLD;
        let is_waker = waker != 0 && self.sender == waker;
        if command == 0 || of_child || by_key || is_waker || self.sender == command {
            return;
        }
        let _ = process::kill(command, self.number);
        if hung_up && self.by_kernel {
            // As the kernel does: who stands still hears of it, too.
            let _ = process::kill(command, libc::SIGCONT);
        }
    }
}

/// Signals of this process, read from a descriptor.
pub struct Signals {
    fd: OwnedFd,
    ignored: Vec<i32>,
    /// What the command is to inherit.
    pub inherited: Inherited,
}

impl Signals {
    /// Takes over the signals that are passed on, and SIGCHLD; those that were ignored stay so. One
    /// that is blocked comes all the same (signal(7)).
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn take() -> io::Result<Signals> {
        let mut set = empty_set();
        add(&mut set, libc::SIGCHLD);
        passed().for_each(|s| add(&mut set, s));
        let mut mask = empty_set();
        // SAFETY: both sets are initialised and live through the call.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut mask) };
        Ok(Signals {
            fd: descriptor_for(&set)?,
            ignored: passed().filter(|s| is_ignored(*s)).collect(),
            inherited: Inherited { mask },
        })
    }

    /// The next signal, without waiting.
    #[must_use]
    pub fn next(&self) -> Option<Arrived> {
        let mut buf = [0u8; size_of::<libc::signalfd_siginfo>()];
        let n = rustix::io::read(&self.fd, &mut buf).ok()?;
        if n < buf.len() {
            return None;
        }
        // SAFETY: the buffer holds one whole structure of plain integers, read from a signalfd.
        let info: libc::signalfd_siginfo = unsafe { std::ptr::read_unaligned(buf.as_ptr().cast()) };
        let number = info.ssi_signo.cast_signed();
        Some(Arrived {
            number,
            was_ignored: self.ignored.contains(&number),
            by_kernel: info.ssi_code > 0,
            sender: info.ssi_pid,
        })
    }
}

/// A descriptor that these signals are read from; they have to be blocked.
fn descriptor_for(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: -1 asks for a new descriptor; `set` is initialised.
    let fd = unsafe { libc::signalfd(-1, set, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The signal state of a process that takes over none: what it has now.
#[must_use]
pub fn inherited() -> Inherited {
    let mut mask = empty_set();
    // SAFETY: a null set changes nothing; `mask` is ours.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, null(), &raw mut mask) };
    Inherited { mask }
}

pub(crate) fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the call above.
    unsafe { set.assume_init() }
}

pub(crate) fn add(set: &mut libc::sigset_t, signal: i32) {
    // SAFETY: `set` is initialised; a bad number is refused by the call.
    unsafe { libc::sigaddset(set, signal) };
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action changes nothing; `old` has room for the answer.
    let r = unsafe { libc::sigaction(signal, null(), old.as_mut_ptr()) };
    // SAFETY: zeroed is a valid value of this structure of integers, and the call may fill it in.
    let old = unsafe { old.assume_init() };
    r == 0 && old.sa_sigaction == libc::SIG_IGN
}

pub(crate) fn set_disposition(signal: i32, to: libc::sighandler_t) {
    // SAFETY: `to` is SIG_DFL or SIG_IGN at every caller: no code of ours runs as a handler.
    unsafe { libc::signal(signal, to) };
}

/// Has `handler` called at `signal`, which is not blocked from then on.
pub(crate) fn handle(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: `handler` makes only system calls, as signal-safety(7) asks: see its callers.
    unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    unblock(signal);
}

/// Has the calling process end, by SIGALRM, unless this is called again within so many seconds; 0:
/// not any more.
pub fn end_after(seconds: u32) {
    // SAFETY: alarm takes a number.
    unsafe { libc::alarm(seconds) };
}

/// Has SIGALRM end the calling process.
pub fn let_alarm_end() {
    set_disposition(libc::SIGALRM, libc::SIG_DFL);
    unblock(libc::SIGALRM);
}

/// Has `signal` do nothing but interrupt a call that waits.
pub fn let_interrupt(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: zeroed is a valid value of this structure of integers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // Without SA_RESTART, which signal(3) sets.
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    // SAFETY: `action` is initialised, and the handler does nothing.
    unsafe { libc::sigaction(signal, &raw const action, null_mut()) };
    unblock(signal);
}

/// Has the calling process, a child that has a piece of work to do, be ended by SIGKILL alone.
pub fn hold_back_all() {
    std::mem::forget(HeldBack::all());
}

/// As long as one has it the calling thread is ended by SIGKILL alone; what comes meanwhile comes
/// behind it.
pub struct HeldBack(libc::sigset_t);

impl HeldBack {
    /// Holds back every signal that can be.
    #[must_use]
    pub fn all() -> HeldBack {
        let (mut all, mut before) = (empty_set(), empty_set());
        // SAFETY: `all` is an initialised set.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both are initialised sets.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        HeldBack(before)
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        set_mask(&self.0);
    }
}

pub(crate) fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: `mask` is an initialised set.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, null_mut()) };
}

pub(crate) fn unblock(signal: i32) {
    let mut set = empty_set();
    add(&mut set, signal);
    // SAFETY: `set` is an initialised set.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, null_mut()) };
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
    set_disposition(signal, libc::SIG_DFL);
    unblock(signal);
    let _ = process::kill(std::process::id(), signal);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn is_stopped_behind(sender: u32, waker: u32) -> bool {
        let sleeps = Command::new("sleep").arg("60").spawn();
        let mut sleeps = sleeps.expect("sleep");
        let pid = sleeps.id();
        process::kill(pid, libc::SIGSTOP).expect("it is there");
        let begun = std::time::Instant::now();
        while !process::is_stopped(pid) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(10));
            std::thread::yield_now();
        }
        let arrived = Arrived {
            number: libc::SIGCONT,
            by_kernel: false,
            was_ignored: false,
            sender,
        };
        arrived.pass_on(pid, waker);
        // It was continued when kill(2) came back, if at all.
        let is_stopped = process::is_stopped(pid);
        sleeps.kill().expect("it is there");
        sleeps.wait().expect("it ends");
        is_stopped
    }

    #[test]
    fn what_a_waker_sends_continues_nobody_who_was_stopped_again() {
        assert!(is_stopped_behind(7, 7));
        assert!(!is_stopped_behind(8, 7));
        assert!(!is_stopped_behind(0, 0));
    }
}
