//! Work that may hang in the kernel, each piece in a process of its own.
//!
//! A thread would not do: a thread inside a hung `syncfs` keeps its whole process from ending.
//! Relies on: the forking process having no thread that may hold a lock (our only other thread
//! waits on a futex and writes to an eventfd), so that the child may run ordinary code.

use rustix::process::{pidfd_open, waitid, Pid, PidfdFlags, WaitId, WaitIdOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

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
        // SAFETY: see the module header: no other thread holds a lock, so the child's copy of the
        // allocator and of std is consistent.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // Work that hangs must not keep the folder we were started in from being unmounted.
                let _ = rustix::process::chdir("/");
                let status = work();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            pid => {
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

    /// The exit status where the child has ended: 0, an errno, or `EIO` where it was killed.
    #[must_use]
    pub fn finished(&self) -> Option<i32> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(self.fd.as_fd()), how) {
            Ok(None) => None,
            Ok(Some(s)) => Some(s.exit_status().unwrap_or(libc::EIO)),
            Err(_) => Some(libc::EIO),
        }
    }
}

impl AsFd for Job {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes a file system durable; the status for [`Job`].
#[must_use]
pub fn syncfs(fd: BorrowedFd<'_>) -> i32 {
    rustix::fs::syncfs(fd).map_or_else(rustix::io::Errno::raw_os_error, |()| 0)
}

/// Makes everything durable, as sync(2) does; it reports no error.
#[must_use]
pub fn sync_everything() -> i32 {
    rustix::fs::sync();
    0
}

/// Closes every descriptor of the calling process but copies of `fds`, which it returns. For a
/// child of [`Job::start`]: a piece of work that hangs must not hold pipes or other file systems.
#[must_use]
pub fn keep_only(fds: &[BorrowedFd<'_>]) -> Option<Vec<OwnedFd>> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let above = limit
        .map_or(600, |l| i32::try_from(l).unwrap_or(600) - 16)
        .clamp(3, 600);
    let copy = |fd: &BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, above).ok();
    let kept: Vec<OwnedFd> = fds.iter().map(copy).collect::<Option<_>>()?;
    let last = kept.iter().map(AsRawFd::as_raw_fd).max()?;
    // The copies are next to each other: nothing else of ours has numbers that high.
    // SAFETY: this child uses no descriptor but the copies again, since it ends by _exit.
    unsafe { libc::close_range(0, above as libc::c_uint - 1, 0) };
    // SAFETY: as above.
    unsafe { libc::close_range(last as libc::c_uint + 1, libc::c_uint::MAX, 0) };
    Some(kept)
}

/// Closes every descriptor of the calling process. For a child of [`Job::start`] that needs none:
/// it must not hold pipes, or file systems that somebody wants to unmount.
pub fn keep_none() {
    // SAFETY: this child uses no descriptor that it inherited, and ends by _exit.
    unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
}

/// Leaves the closing of this process's descriptors to a child that nobody waits for. The kernel
/// takes tens of milliseconds to switch a trace point off, and does so at the last close.
pub fn close_in_background() {
    let parent = rustix::process::getpid();
    let child = Job::start(move || {
        // SAFETY: the child uses no descriptor; the terminal and pipes must not be held.
        unsafe { libc::close_range(0, 2, 0) };
        // A session of its own: what is sent to the terminal's processes is not for it.
        crate::process::leave_session();
        // The parent's exit is what makes the child's copies the last ones.
        crate::process::set_name(c"synclater-close");
        let ended = crate::process::wait_for_end(parent);
        // Runs that follow each other find the trace points still on, instead of waiting for them
        // to be switched off and on again (60 ms).
        let _ = crate::wait::any(&[], std::time::Duration::from_secs(1));
        ended
    });
    drop(child);
}
