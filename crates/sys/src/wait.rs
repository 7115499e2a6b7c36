//! Waiting for any of several descriptors, and waking who waits for a futex word.

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::thread::futex;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// What to wait for on one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Something to read.
    Input,
    /// A change that the kernel reports as "exceptional" (mountinfo).
    Change,
}

/// Waits until one of `fds` is ready or `patience` is over; returns which are.
#[must_use]
pub fn any(fds: &[(BorrowedFd<'_>, For)], patience: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|(fd, what)| {
            let flags = if *what == For::Input {
                PollFlags::IN
            } else {
                PollFlags::PRI
            };
            PollFd::from_borrowed_fd(*fd, flags)
        })
        .collect();
    let patience = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    match poll(&mut polled, Some(&patience)) {
        Ok(_) => polled.iter().map(|p| !p.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

/// Waits until there is something to read, for `patience` at most, whatever signals come; whether
/// there is.
#[must_use]
pub fn for_input(fd: impl AsFd, patience: Duration) -> bool {
    let begun = Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        if any(&[(fd.as_fd(), For::Input)], left) == [true] {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// Wakes whoever sleeps on `word` in any process.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

/// Sleeps until `word` is no longer `value` and somebody wakes who waits for it, or `patience` is
/// over; also wakes without a reason.
pub fn sleep_on(word: &AtomicU32, value: u32, patience: Duration) {
    let patience = Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    };
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&patience));
}
