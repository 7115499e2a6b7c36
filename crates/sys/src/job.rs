//! Work that may hang in the kernel, each piece in a process of its own.
//!
//! A thread would not do: a thread inside a hung `syncfs` keeps its whole process from ending.
//! Relies on: the forking process having one thread, so that the child finds no lock taken and may
//! run ordinary code.

use crate::lock::lock;
use crate::wait::{self, For};
use rustix::process::{
    pidfd_open, pidfd_send_signal, waitid, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A child process that does one thing and tells by its exit status: 0, or an errno.
#[derive(Debug)]
pub struct Job {
    pid: Pid,
    fd: OwnedFd,
}

impl Job {
    /// Starts `work` in a child, in the root folder; what it returns is the exit
    /// status (0 or an errno).
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn start(work: impl FnOnce() -> i32) -> io::Result<Job> {
        let (young, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // SAFETY: see the module header: there is no other thread, so the child's copy of the
        // allocator and of std is consistent.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // Open until `keep_only` closes it with all the rest.
                std::mem::forget(theirs);
                // Work that hangs must not keep the folder we were started in from being unmounted.
                let _ = rustix::process::chdir("/");
                let status = work();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            pid => {
                let mut all = lock(&YOUNG);
                forget_the_grown(&mut all);
                all.push(young);
                let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?;
                Ok(Job {
                    pid,
                    fd: pidfd_open(pid, PidfdFlags::empty())?,
                })
            }
        }
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
        self.ended().map(|status| status.unwrap_or(libc::EIO))
    }

    /// The result, once there is one.
    #[must_use]
    pub fn result(&self) -> i32 {
        loop {
            if let Some(result) = self.finished() {
                return result;
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
        match waitid(WaitId::PidFd(self.fd.as_fd()), how) {
            Ok(None) => None,
            Ok(Some(s)) => Some(s.exit_status().ok_or(s.terminating_signal().unwrap_or(0))),
            Err(_) => Some(Err(0)),
        }
    }
}

impl AsFd for Job {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// For each child that may still have every descriptor of ours: it is readable once that has only
/// what it keeps.
static YOUNG: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Waits until no child of [`Job::start`] has what we have closed by now; false where that took
/// longer. It takes no time where none was started a moment ago.
#[must_use]
pub fn wait_for_the_young(patience: Duration) -> bool {
    let young = &mut *lock(&YOUNG);
    let begun = Instant::now();
    loop {
        forget_the_grown(young);
        let left = patience.saturating_sub(begun.elapsed());
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

/// Makes a file system durable; the status for [`Job`].
#[must_use]
pub fn syncfs(fd: BorrowedFd<'_>) -> i32 {
    rustix::fs::syncfs(fd).map_or_else(rustix::io::Errno::raw_os_error, |()| 0)
}

/// Makes everything durable, as sync(2) does; it reports no error. For a child of [`Job::start`].
#[must_use]
pub fn sync_everything() -> i32 {
    let _ = keep_only(&[]);
    rustix::fs::sync();
    0
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
    let mut kept: Vec<libc::c_uint> = fds
        .iter()
        .map(|fd| fd.as_raw_fd().cast_unsigned())
        .collect();
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
    // SAFETY: they are open, and the objects that own them in the parent are not dropped here.
    let own = |fd: &BorrowedFd<'_>| unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) };
    fds.iter().map(own).collect()
}
