//! Work that may hang in the kernel, each piece in a process of its own.
//!
//! A thread would not do: a thread inside a hung `syncfs` keeps its whole process from ending.
//! Relies on: the forking process having one thread, so that the child finds no lock taken and may
//! run ordinary code.

use crate::lock::lock;
use crate::wait::{self, For};
use crate::{process, socket};
use rustix::net::{send, SendFlags};
use rustix::process::{
    pidfd_open, pidfd_send_signal, waitid, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions,
};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A child process that does one thing and tells by its exit status: 0, or an errno.
#[derive(Debug)]
pub struct Job {
    pid: Pid,
    fd: OwnedFd,
    /// By which [`ALL`] knows it.
    key: u64,
}

/// What the names of processes begin with that do something for us.
pub const NAME: &str = "synclater-";

/// What does a piece of work is called this, as /proc/PID/comm has it.
pub const WORKS: &CStr = c"synclater-job";

/// The children whose end belongs to a job, by the order in which they were started.
static ALL: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

/// Our children whose end belongs to a job. Whoever else is our child is a command, or was left to
/// us.
#[must_use]
pub fn children() -> Vec<u32> {
    lock(&ALL).values().copied().collect()
}

impl Job {
    /// Starts `work` in a child, in the root folder, with a name that begins with [`NAME`]; what it
    /// returns is the exit status (0 or an errno).
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had, `EMFILE` and the like where no descriptors: then
    /// nothing of `work` has been done.
    pub fn start(work: impl FnOnce() -> i32) -> io::Result<Job> {
        let (young, theirs) = socket::pair()?;
        // SAFETY: see the module header: there is no other thread, so the child's copy of the
        // allocator and of std is consistent.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(young);
                lock(&ALL).clear();
                // A job's own keeps its name.
                if !rustix::thread::name().is_ok_and(|n| n.to_bytes().starts_with(NAME.as_bytes()))
                {
                    process::set_name(WORKS);
                }
                let status = if is_known(&theirs) {
                    OURS.store(theirs.into_raw_fd(), SeqCst);
                    // Work that hangs must not keep the folder we were started in from being
                    // unmounted.
                    let _ = rustix::process::chdir("/");
                    work()
                } else {
                    libc::EAGAIN
                };
                let _ = keep_only(&[]);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            pid => {
                drop(theirs);
                let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?;
                match pidfd_open(pid, PidfdFlags::empty()) {
                    Ok(fd) => {
                        let _ = send(&young, b"k", SendFlags::NOSIGNAL);
                        let mut all = lock(&YOUNG);
                        forget_the_grown(&mut all);
                        all.push(young);
                        Ok(Job::known(pid, fd))
                    }
                    Err(e) => {
                        drop(young);
                        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
                        Err(e.into())
                    }
                }
            }
        }
    }

    fn known(pid: Pid, fd: OwnedFd) -> Job {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = NEXT.fetch_add(1, SeqCst);
        let job = Job { pid, fd, key };
        lock(&ALL).insert(key, job.pid());
        job
    }

    /// The child's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Kills the child, which has not to be gone yet then.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.fd, Signal::KILL);
    }

    /// Ends the child and waits until it is gone with all that it held.
    pub fn end(self) {
        let _ = pidfd_send_signal(&self.fd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.fd.as_fd()), WaitIdOptions::EXITED);
    }

    /// The exit status where the child has ended: 0, an errno, or `EIO` where it was killed.
    #[must_use]
    pub fn finished(&self) -> Option<i32> {
        self.finished_or(libc::EIO)
    }

    /// The same; `killed` where it was.
    #[must_use]
    pub fn finished_or(&self, killed: i32) -> Option<i32> {
        self.ended().map(|status| status.unwrap_or(killed))
    }

    /// The result, once there is one.
    #[must_use]
    pub fn result(&self) -> i32 {
        self.ending().unwrap_or(libc::EIO)
    }

    /// The result, once there is one: `None` where the child was killed.
    #[must_use]
    pub fn ending(&self) -> Option<i32> {
        loop {
            if let Some(ended) = self.ended() {
                return ended.ok();
            }
            let _ = wait::any(&[(self.as_fd(), For::Input)], Duration::from_secs(60));
        }
    }

    /// The exit status where the child has ended, or 128 and the number of the signal that did it.
    #[must_use]
    pub fn status(&self) -> Option<i32> {
        self.ended()
            .map(|status| status.unwrap_or_else(|signal| 128 + signal))
    }

    /// How the child has ended: its status, or a signal's number.
    fn ended(&self) -> Option<Result<i32, i32>> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let told = match waitid(WaitId::PidFd(self.fd.as_fd()), how) {
            Ok(None) => return None,
            Ok(Some(s)) => s.exit_status().ok_or(s.terminating_signal().unwrap_or(0)),
            Err(_) => Err(0),
        };
        // Its number may be another's from now on.
        lock(&ALL).remove(&self.key);
        Some(told)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        lock(&ALL).remove(&self.key);
    }
}

impl AsFd for Job {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until whoever started us can wait for us; false where it cannot.
fn is_known(to: &OwnedFd) -> bool {
    loop {
        match rustix::io::read(to, &mut [0u8; 1]) {
            Err(rustix::io::Errno::INTR) => {}
            told => return told == Ok(1),
        }
    }
}

/// For each child that may still have every descriptor of ours: it is readable once that has only
/// what it keeps.
static YOUNG: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// The other end of that in a child: closed behind all that it does not keep, also where the close
/// of one of those waits (the last one of a trace point's waits for each processor).
static OURS: AtomicI32 = AtomicI32::new(NONE);

/// No descriptor.
const NONE: i32 = -1;

/// Waits until no child of [`Job::start`] has what we have closed by now; false where that took
/// longer than half a second. It takes no time where none was started a moment ago.
#[must_use]
pub fn wait_for_the_young() -> bool {
    const PATIENCE: Duration = Duration::from_millis(500);
    let young = &mut *lock(&YOUNG);
    let begun = Instant::now();
    loop {
        forget_the_grown(young);
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let (Some(one), false) = (young.first(), left.is_zero()) else {
            return young.is_empty();
        };
        let _ = wait::any(&[(one.as_fd(), For::Input)], left);
    }
}

fn forget_the_grown(young: &mut Vec<OwnedFd>) {
    let all: Vec<_> = young.iter().map(|fd| (fd.as_fd(), For::Input)).collect();
    let mut is_grown = wait::any(&all, Duration::ZERO).into_iter();
    young.retain(|_| !is_grown.next().unwrap_or(false));
}

/// Starts `work` in a child of this name that ends with us, and keeps nothing open but `fds`, which
/// are the work's.
///
/// # Errors
/// As [`Job::start`].
pub fn beside_us(
    name: &CStr,
    fds: &[BorrowedFd<'_>],
    work: impl FnOnce(&[OwnedFd]) -> i32,
) -> io::Result<Job> {
    let us = std::process::id();
    Job::start(|| {
        process::set_name(name);
        let kept = keep_only(fds);
        let status = if process::end_with_parent(us) {
            work(&kept)
        } else {
            libc::ESRCH
        };
        // The child's, whose owners are its parent's.
        std::mem::forget(kept);
        status
    })
}

/// Leaves `work` on `it` to a process of this name that goes on without us: it is nobody's child
/// but init's (or a subreaper's), in a session and with mounts that keep nobody's busy, and keeps
/// nothing open but the descriptors `of` it.
///
/// # Errors
/// As [`Job::start`].
pub fn left_behind<T>(
    name: &CStr,
    it: T,
    of: impl FnOnce(&T) -> Vec<BorrowedFd<'_>>,
    work: impl FnOnce(T),
) -> io::Result<()> {
    let between = Job::start(|| {
        process::leave_session();
        let last = Job::start(|| {
            process::set_name(name);
            std::mem::forget(keep_only(&of(&it)));
            process::move_to_init();
            work(it);
            0
        });
        last.map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |_| 0)
    })?;
    match between.result() {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes a file system durable; the status for [`Job`].
#[must_use]
pub fn syncfs(fd: BorrowedFd<'_>) -> i32 {
    rustix::fs::syncfs(fd).map_or_else(rustix::io::Errno::raw_os_error, |()| 0)
}

/// Closes every descriptor of the calling process but `fds`, which become its own. For a child of
/// [`Job::start`]: a piece of work that hangs must not hold pipes or other file systems.
///
/// The child must use and drop what it got here only: whatever else it inherited from its parent as
/// an open file is closed, or the same number.
#[must_use]
pub fn keep_only(fds: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
    // Our parent's, whose numbers are closed below.
    std::mem::forget(std::mem::take(&mut *lock(&YOUNG)));
    let last = OURS.swap(NONE, SeqCst);
    let kept = fds.iter().map(|fd| fd.as_raw_fd()).chain([last]);
    let mut kept: Vec<libc::c_uint> = kept.filter_map(|fd| fd.try_into().ok()).collect();
    kept.sort_unstable();
    let mut next = 0;
    for fd in kept {
        if fd > next {
            // SAFETY: this child uses none of these descriptors again, since it ends by _exit.
            unsafe { libc::close_range(next, fd - 1, 0) };
        }
        next = fd + 1;
    }
    // SAFETY: as above.
    unsafe { libc::close_range(next, libc::c_uint::MAX, 0) };
    if last != NONE {
        // SAFETY: as above.
        unsafe { libc::close(last) };
    }
    fds.iter()
        // SAFETY: they are open, and the objects that own them in the parent are not dropped here.
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_linger;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// From now on pidfd_open(2) fails for the calling process, as where the machine has no file
    /// left.
    fn refuse_pidfds() {
        let (load, equal, answer) = (0x20, 0x15, 0x06);
        let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let refusal = libc::SECCOMP_RET_ERRNO | libc::ENFILE.unsigned_abs();
        let number = u32::try_from(libc::SYS_pidfd_open).expect("a number");
        let mut all = [
            instruction(load, 0, 0, 0),
            instruction(equal, 0, 1, number),
            instruction(answer, 0, 0, refusal),
            instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: all.as_mut_ptr(),
        };
        rustix::thread::set_no_new_privs(true).expect("without new rights");
        // SAFETY: the kernel reads the program, which lives until then.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
        assert_eq!(set, 0, "a filter");
    }

    #[test]
    fn one_that_cannot_be_waited_for_does_nothing() {
        let (mut told, mut tell) = std::io::pipe().expect("a pipe");
        let first = Job::start(|| {
            let mut start = || Job::start(|| i32::from(tell.write_all(b"w").is_err()));
            let done = start().map_or(-1, |job| job.result());
            refuse_pidfds();
            let refused = start().err().and_then(|e| e.raw_os_error());
            i32::from(done != 0) + 2 * i32::from(refused != Some(libc::ENFILE))
        });
        assert_eq!(first.expect("a child").result(), 0);
        drop(tell);
        let mut work = Vec::new();
        told.read_to_end(&mut work).expect("what was done");
        assert_eq!(work, b"w");
    }

    /// A connection whose close waits for a second, and its peer.
    fn slow_to_close() -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut slow = TcpStream::connect(listener.local_addr()?)?;
        let (peer, _) = listener.accept()?;
        set_socket_linger(&slow, Some(Duration::from_secs(1)))?;
        slow.set_nonblocking(true)?;
        while slow.write(&[0; 1 << 16]).is_ok() {}
        Ok((slow, peer))
    }

    /// Whether a child that is not young any more has closed what is slow, and what has lower and
    /// higher numbers.
    fn closes_all(first: usize, work: fn()) -> io::Result<bool> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let mut numbers: Vec<_> = (0..4).map(|_| std::io::pipe()).collect();
        let (low, low_end) = std::io::pipe()?;
        let (slow, _peer) = slow_to_close()?;
        let (high, high_end) = std::io::pipe()?;
        numbers.truncate(first);
        let job = Job::start(|| {
            work();
            0
        })?;
        drop((slow, low_end, high_end));
        let begun = Instant::now();
        while !wait_for_the_young() && begun.elapsed() < PATIENCE {}
        let all = [low.as_fd(), high.as_fd()].map(|fd| (fd, For::Input));
        let are_closed = wait::any(&all, Duration::ZERO);
        job.end();
        Ok(are_closed == [true, true])
    }

    #[test]
    fn one_is_young_until_it_has_closed_all_that_it_does_not_keep() {
        let keeps_nothing = || {
            let _ = keep_only(&[]);
            std::thread::sleep(Duration::from_secs(60));
        };
        for (which, work) in [(0, keeps_nothing as fn()), (1, || {})] {
            // Its own end has a lower number than all of these, or a higher one.
            for first in [0, 4] {
                let alone = Job::start(|| i32::from(closes_all(first, work).ok() != Some(true)));
                let seen = alone.expect("a child").result();
                assert_eq!(seen, 0, "work {which}, {first} numbers are taken");
            }
        }
    }
}
