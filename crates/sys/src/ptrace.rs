//! Threads of other processes, stopped and let go again by ptrace(2).
//!
//! Promise: nothing is changed in a thread but its registers, and those only by
//! [`Thread::send`]; a thread that is let go has what it had. Whoever traces ends without letting
//! go of its threads: the kernel does it then.
//!
//! By hand, since each thread here is waited for by its own number, and let go of when its value
//! ends, whatever happened: the wrappers of the calls know neither.
//!
//! Relies on: PTRACE_SEIZE (Linux 3.4), which neither stops a thread nor leaves a signal behind. A
//! traced thread stops at each signal that it gets and has to be attended to.

use crate::ptrace_call::request;
use crate::registers::Registers;
use std::cell::Cell;
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Why a traced thread stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// We interrupted it.
    Interrupted,
    /// Its process is stopped by this signal (SIGSTOP, SIGTSTP...), as it was without us.
    Group(i32),
    /// It is about to take this signal.
    Signal(i32),
    /// It has made another process or thread, which is traced too ([`Thread::seize_all`]).
    Made(u32),
    /// It has executed another program, whose first instruction comes next; it was this thread
    /// before, and has its process's number now.
    Executed(u32),
    /// It is gone.
    Gone,
}

/// What waiting for those that we trace came to.
#[derive(Debug)]
pub enum Next {
    /// This one stands still, or is gone.
    Thread(Thread),
    /// A signal came.
    Interrupted,
    /// Nobody is traced.
    Nobody,
}

/// Linux 4.4.
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;

/// One instruction of a seccomp filter: code, jumps if true and if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// A thread that we trace.
#[derive(Debug)]
pub struct Thread {
    tid: u32,
    stop: Option<Stop>,
    /// Whether it was asked to stop, and has not done so as far as is known.
    asked: Cell<bool>,
}

impl Thread {
    /// Begins to trace a thread; it runs on.
    ///
    /// # Errors
    /// `EPERM` where it is traced already or may not be traced, `ESRCH` where it is gone.
    pub fn seize(tid: u32) -> io::Result<Thread> {
        Thread::seize_with(tid, 0)
    }

    /// As [`Thread::seize`], together with all that it will make; each stands still when it begins,
    /// and whenever it executes a program.
    ///
    /// # Errors
    /// As [`Thread::seize`].
    pub fn seize_all(tid: u32) -> io::Result<Thread> {
        let made = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
        Thread::seize_with(tid, made | libc::PTRACE_O_TRACEEXEC)
    }

    fn seize_with(tid: u32, options: i32) -> io::Result<Thread> {
        let options = usize::try_from(options).unwrap_or(0);
        let data = std::ptr::without_provenance_mut(options);
        request(libc::PTRACE_SEIZE, tid, 0, data)?;
        Ok(Thread::running(tid))
    }

    /// The next thread of all that we trace that stands still, or is gone. Waits for it: the kernel
    /// hands the processor over to whoever waits here, which poll(2) does not get.
    #[must_use]
    pub fn next() -> Next {
        match next_of(libc::P_ALL, 0, 0) {
            Ok(Some((tid, stop))) => {
                let mut thread = Thread::running(tid);
                thread.stop = Some(stop);
                Next::Thread(thread)
            }
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Next::Nobody,
            _ => Next::Interrupted,
        }
    }

    /// Why it stands still, as of the last look.
    #[must_use]
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// The same thread, traced and running.
    #[must_use]
    pub fn running(tid: u32) -> Thread {
        let (stop, asked) = (None, Cell::new(false));
        Thread { tid, stop, asked }
    }

    /// Its number.
    #[must_use]
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Has it stop before its next instruction of its own.
    pub fn interrupt(&self) {
        self.asked.set(true);
        let _ = request(libc::PTRACE_INTERRUPT, self.tid, 0, null_mut());
    }

    /// Whether it is on its way to a stop that was asked for. Until it is there its system call may
    /// have failed for that alone (EINTR), which only who sees the stop can undo.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Why it stands still, where it does; without waiting.
    pub fn look(&mut self) -> Option<Stop> {
        if self.stop.is_none() {
            self.stop = self.next_stop();
            if let Some(Stop::Interrupted | Stop::Group(_) | Stop::Gone) = self.stop {
                self.asked.set(false);
            }
        }
        self.stop
    }

    fn next_stop(&self) -> Option<Stop> {
        match next_of(libc::P_PID, self.tid, libc::WNOHANG) {
            Ok(next) => next.map(|(_, stop)| stop),
            Err(_) => Some(Stop::Gone),
        }
    }

    /// Has it go on, traced, unless its process is stopped: then it stays so, until that goes on.
    pub fn resume(&mut self) {
        match self.stop {
            Some(Stop::Group(_)) => self.leave_stopped(),
            Some(_) => self.go(),
            None => {}
        }
    }

    /// Has it go on, traced. A signal that it was about to take is taken.
    pub fn go(&mut self) {
        let _ = request(libc::PTRACE_CONT, self.tid, 0, self.due());
        self.stop = None;
    }

    /// Leaves a thread of a stopped process stopped, until that goes on or we interrupt it.
    pub fn leave_stopped(&mut self) {
        let _ = request(libc::PTRACE_LISTEN, self.tid, 0, null_mut());
        self.stop = None;
    }

    /// Keeps from it the signal that it was about to take.
    pub fn keep_signal(&mut self) {
        if let Some(Stop::Signal(_)) = self.stop {
            self.stop = Some(Stop::Interrupted);
        }
    }

    /// Lets go of a thread that stands still; another runs on, traced until we end.
    pub fn release(self) {
        if self.stop.is_some() {
            let _ = request(libc::PTRACE_DETACH, self.tid, 0, self.due());
        }
    }

    fn due(&self) -> *mut libc::c_void {
        let signal = match self.stop {
            Some(Stop::Signal(signal)) => signal,
            _ => 0,
        };
        std::ptr::without_provenance_mut(usize::try_from(signal).unwrap_or(0))
    }

    /// Where a thread that stands still has its area for restartable sequences (rseq(2)); 0: it has
    /// none, or the kernel does not tell (before Linux 5.13).
    #[must_use]
    pub fn rseq_area(&self) -> u64 {
        const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
        // Address; size and signature; flags.
        let mut answer = [0u64; 3];
        let size = size_of_val(&answer);
        let data = answer.as_mut_ptr().cast();
        let told = request(PTRACE_GET_RSEQ_CONFIGURATION, self.tid, size, data);
        told.map_or(0, |_| answer[0])
    }

    /// Whether a thread that stands still has the kernel hand its system calls back to it
    /// (PR_SET_SYSCALL_USER_DISPATCH, Linux 5.11).
    ///
    /// # Errors
    /// `EIO` where the kernel does not tell (before Linux 6.4); `ESRCH` where the thread is gone or
    /// runs.
    pub fn dispatches(&self) -> io::Result<bool> {
        const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
        // Mode; selector; offset; length.
        let mut answer = [0u64; 4];
        let size = size_of_val(&answer);
        let data = answer.as_mut_ptr().cast();
        request(
            PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
            self.tid,
            size,
            data,
        )?;
        Ok(answer[0] != 0)
    }

    /// The signals that a thread which stands still has blocked, a bit each.
    ///
    /// # Errors
    /// `ESRCH` where it is gone, or runs.
    pub fn mask(&self) -> io::Result<u64> {
        const PTRACE_GETSIGMASK: libc::c_uint = 0x420a; // Linux 3.11
        let mut mask = 0u64;
        let data = (&raw mut mask).cast();
        request(PTRACE_GETSIGMASK, self.tid, size_of::<u64>(), data)?;
        Ok(mask)
    }

    /// Has a thread that stands still block these signals, and no others.
    ///
    /// # Errors
    /// `ESRCH` where it is gone, or runs.
    pub fn set_mask(&self, mut mask: u64) -> io::Result<()> {
        const PTRACE_SETSIGMASK: libc::c_uint = 0x420b; // Linux 3.11
        let data = (&raw mut mask).cast();
        request(PTRACE_SETSIGMASK, self.tid, size_of::<u64>(), data)?;
        Ok(())
    }

    /// The seccomp filters of a thread that stands still, the oldest first. None where it has
    /// none, is in strict mode, or the kernel cannot tell (without `CONFIG_CHECKPOINT_RESTORE` it
    /// says the same): `Seccomp_filters` in /proc/PID/status has their number.
    ///
    /// # Errors
    /// `EACCES` without `CAP_SYS_ADMIN` in the first user namespace, or where the caller has a
    /// filter itself; `EMEDIUMTYPE` where one is no classic BPF.
    pub fn filters(&self) -> io::Result<Vec<Vec<Instruction>>> {
        let mut all = Vec::new();
        loop {
            let index = all.len();
            let length = match request(PTRACE_SECCOMP_GET_FILTER, self.tid, index, null_mut()) {
                Ok(length) => usize::try_from(length).unwrap_or(0),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(all),
                // No filter at all.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && index == 0 => return Ok(all),
                Err(e) => return Err(e),
            };
            let none = libc::sock_filter {
                code: 0,
                jt: 0,
                jf: 0,
                k: 0,
            };
            let mut filter = vec![none; length];
            let data = filter.as_mut_ptr().cast();
            let copied = request(PTRACE_SECCOMP_GET_FILTER, self.tid, index, data)?;
            // Filters are only ever added, and the index counts from the oldest.
            if usize::try_from(copied).ok() != Some(length) {
                return Err(io::Error::other("its filter has changed meanwhile"));
            }
            all.push(filter.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect());
        }
    }

    /// Whether a thread that stands still has a seccomp filter; `None` where that cannot be told:
    /// without `CAP_SYS_ADMIN` in the first user namespace, with a filter of our own, or where the
    /// kernel shows none (`CONFIG_CHECKPOINT_RESTORE`, which ns_last_pid is a part of).
    #[must_use]
    pub fn has_filter(&self) -> Option<bool> {
        static SHOWS: OnceLock<bool> = OnceLock::new();
        const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
        if !SHOWS.get_or_init(|| std::path::Path::new(LAST_PID).exists()) {
            return None;
        }
        match request(PTRACE_SECCOMP_GET_FILTER, self.tid, 0, null_mut()) {
            Ok(_) => Some(true),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Some(false),
            Err(_) => None,
        }
    }

    /// The registers of a thread that stands still.
    ///
    /// # Errors
    /// `ESRCH` where it is gone, or runs.
    pub fn registers(&self) -> io::Result<Registers> {
        Registers::of(self.tid)
    }

    /// Gives a thread that stands still other registers: it goes on where they say.
    ///
    /// # Errors
    /// `ESRCH` where it is gone, or runs.
    pub fn send(&self, registers: &Registers) -> io::Result<()> {
        registers.give(self.tid)
    }
}

/// The next thread of those that we trace, or of one, that stands still or is gone; and why.
///
/// A stop is looked at, and not taken from the kernel (`WNOWAIT`): where we are killed before the
/// thread goes on, it takes the signal that it was about to take. Taken, that would be lost
/// (ptrace(2) does not say so; Linux 6.18). Whoever is told of here has to go on, or to listen,
/// before the next one is asked for.
fn next_of(
    which: libc::idtype_t,
    id: libc::id_t,
    also: libc::c_int,
) -> io::Result<Option<(u32, Stop)>> {
    let how = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | also;
    let mut told = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `told` has room for the answer.
    if unsafe { libc::waitid(which, id, told.as_mut_ptr(), how) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are one, and the kernel has filled it in.
    let told = unsafe { told.assume_init() };
    // SAFETY: waitid(2) tells of a child, or of zeros.
    let pid = unsafe { told.si_pid() };
    // SAFETY: as above.
    let status = unsafe { told.si_status() };
    let Some(tid) = u32::try_from(pid).ok().filter(|tid| *tid != 0) else {
        return Ok(None);
    };
    if matches!(told.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
        return Ok(Some((tid, meaning(tid, status))));
    }
    // SAFETY: nothing is asked for but that it be gone.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    Ok(Some((tid, Stop::Gone)))
}

/// What the status of a thread that stands still means: a signal, and an event above it.
fn meaning(tid: u32, status: i32) -> Stop {
    let signal = status & 0xff;
    match (status >> 8, signal) {
        (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Stop::Interrupted,
        (libc::PTRACE_EVENT_STOP, signal) => Stop::Group(signal),
        (libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE, _) => {
            Stop::Made(message(tid))
        }
        (libc::PTRACE_EVENT_EXEC, _) => Stop::Executed(message(tid)),
        (0, signal) => Stop::Signal(signal),
        _ => Stop::Interrupted,
    }
}

/// What goes with an event of a thread: the number of another.
fn message(tid: u32) -> u32 {
    let mut told: libc::c_ulong = 0;
    let data = (&raw mut told).cast();
    let done = request(libc::PTRACE_GETEVENTMSG, tid, 0, data).is_ok();
    u32::try_from(told).ok().filter(|_| done).unwrap_or(0)
}
