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

fn unshare(what: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers; with one thread, as the module header says, it concerns no other.
    match unsafe { libc::unshare(what) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts `work` as the second process of a pid namespace of its own, with mounts of its own. What
/// it returns is the exit status of the job.
///
/// # Errors
/// `EPERM` without the right to make namespaces, `ENOSPC` where there are too many.
pub fn start(work: impl FnOnce() -> i32) -> io::Result<Job> {
    let (lives, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // Our children live there, we do not.
    unshare(libc::CLONE_NEWPID)?;
    let job = Job::start(|| {
        send_at_parents_death(libc::SIGKILL);
        // The parent may have died before that.
        if rustix::io::read(&lives, &mut [0]) != Ok(1) {
            return libc::ESRCH;
        }
        match furnish().and_then(|()| Job::start(work)) {
            Ok(job) => outlive(&job),
            Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
        }
    })?;
    rustix::io::write(&ours, &[1])?;
    Ok(job)
}

/// Mounts that nobody else sees, and a /proc of our own processes.
fn furnish() -> io::Result<()> {
    unshare(libc::CLONE_NEWNS)?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", safe, None)?;
    Ok(())
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

/// Gives the calling thread, and the threads that it starts from now on, descriptors of their own:
/// the standard ones, and none of the others that the process has open.
///
/// # Errors
/// `ENOMEM`, `EMFILE`.
pub fn own_descriptors() -> io::Result<()> {
    // SAFETY: no pointers; from now on no descriptor that another thread owns is closed here.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: of this thread's own table, in which nobody owns any of them.
    match unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
