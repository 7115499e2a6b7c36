//! Waiting for any of several descriptors, and for a futex through a descriptor.

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::thread::futex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

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

/// A futex word that victims move on and wake, as a descriptor to wait for.
///
/// One thread sleeps in the kernel on the word; it takes no lock and allocates nothing.
pub struct Doorbell {
    fd: Arc<OwnedFd>,
}

impl Doorbell {
    /// Watches the word that `word` gives; the thread ends with the process.
    ///
    /// # Errors
    /// Those of eventfd(2) and thread creation.
    pub fn watch(word: impl Fn() -> &'static AtomicU32 + Send + 'static) -> io::Result<Doorbell> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let bell = Arc::clone(&fd);
        std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || {
                let word = word();
                let mut seen = word.load(Ordering::SeqCst);
                loop {
                    let _ = futex::wait(word, futex::Flags::empty(), seen, None);
                    let now = word.load(Ordering::SeqCst);
                    if now != seen {
                        seen = now;
                        let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                    }
                }
            })?;
        Ok(Doorbell { fd })
    }

    /// Forgets the rings so far.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.fd, &mut [0u8; 8]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Wakes whoever sleeps on `word` in any process.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}
