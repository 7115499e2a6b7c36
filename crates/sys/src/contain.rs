//! Work in namespaces of its own: what it mounts and starts ends with it, however it ends.
//!
//! Promise: when the calling process is gone, by whatever signal, the kernel kills every process
//! that the work has started and takes every mount away that it has made.
//! Relies on: the calling process having one thread; the right to make namespaces.

use crate::job::Job;
use crate::process::send_at_parents_death;
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use rustix::process::{wait, Pid, WaitOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

fn unshare(what: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers; what it parts is the calling thread's alone from then on.
    match unsafe { libc::unshare(what) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts `work` as the second process of a pid namespace of its own, with mounts of its own; it
/// gets an error where these could not be made. What it returns is the exit status of the job; that
/// is 128 and a signal's number where one has ended it.
///
/// # Errors
/// `EPERM` without the right to make namespaces, `ENOSPC` where there are too many.
pub fn start(work: impl FnOnce(io::Result<()>) -> i32) -> io::Result<Job> {
    let (lives, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // Our children live there, we do not.
    unshare(libc::CLONE_NEWPID)?;
    let job = Job::start(|| {
        send_at_parents_death(libc::SIGKILL);
        // The parent may have died before that.
        if rustix::io::read(&lives, &mut [0]) != Ok(1) {
            return libc::ESRCH;
        }
        if let Err(e) = furnish() {
            return work(Err(e));
        }
        match Job::start(|| work(Ok(()))) {
            Ok(job) => outlive(&job),
            Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
        }
    })?;
    rustix::io::write(&ours, &[1])?;
    Ok(job)
}

/// Mounts that nobody else sees, and a /proc of our own processes. What others unmount meanwhile
/// goes here too, where it was shared: else its device would be kept busy.
fn furnish() -> io::Result<()> {
    let outside = std::fs::File::open("/proc/self/ns/mnt")?;
    let _ = OUTSIDE.set(outside.into());
    unshare(libc::CLONE_NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", safe, None)?;
    Ok(())
}

/// Gives the calling thread mounts of its own, a copy of those that it had. Nobody else sees what
/// it, and whatever it starts, mounts from now on.
///
/// # Errors
/// `EPERM` without the right to make namespaces, `ENOSPC` where there are too many.
pub fn part_mounts() -> io::Result<()> {
    unshare(libc::CLONE_NEWNS)
}

/// Takes orphans' ends until the job ends; its status. When the first process of a pid namespace
/// ends, the kernel kills all others.
fn outlive(job: &Job) -> i32 {
    let job_pid = Pid::from_raw(job.pid() as i32);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == job_pid => {
                return status
                    .exit_status()
                    .unwrap_or(128 + status.terminating_signal().unwrap_or(0));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return libc::ECHILD,
        }
    }
}

/// linux/prctl.h, Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// The mount namespace outside.
static OUTSIDE: OnceLock<OwnedFd> = OnceLock::new();

/// Makes the calling thread, and the threads that it starts from then on, one that can serve what
/// is mounted here without ever waiting for itself: with descriptors of its own, of which it has
/// none but the standard ones and what `mounting` opens, and, behind `mounting`, with the mounts
/// outside. A thread that is killed closes its files and, as the last one, takes the mounts away;
/// both ask whoever serves them.
///
/// # Errors
/// `ENOMEM`, `EMFILE`; `EPERM` without the right to change namespaces; those of `mounting`.
pub fn serve_apart<T>(mounting: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    unshare(libc::CLONE_FILES | libc::CLONE_FS)?;
    // Whoever frees memory must not wait for this thread's own disk. Needs CAP_SYS_RESOURCE.
    // SAFETY: no pointers.
    let _ = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    let outside = OUTSIDE.get().map(AsRawFd::as_raw_fd);
    let keep = outside.map_or(2, i32::unsigned_abs);
    for (first, last) in [(3, keep.saturating_sub(1)), (keep + 1, libc::c_uint::MAX)] {
        // SAFETY: of this thread's own table, in which nobody owns any of them.
        if first <= last && unsafe { libc::close_range(first, last, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let done = mounting()?;
    if let Some(outside) = outside {
        // SAFETY: no pointers; it concerns the calling thread, whose folders are its own by now.
        if unsafe { libc::setns(outside, libc::CLONE_NEWNS) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(done)
}
