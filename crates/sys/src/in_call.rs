//! Whether a thread is still in the system call that it was in.
//!
//! Promise: "still" is exact. Nothing of the thread is changed, and it does not stop.
//!
//! Relies on: perf_event_open(2) of one thread, for two events. A breakpoint counts how often it
//! executes the instruction behind its call: never, as long as it is in there, also where the call
//! is made anew. Who leaves it by a signal's handler, and for good by siglongjmp(3), had a signal
//! delivered: the trace point `signal:signal_deliver` counts those. Events end with their thread,
//! and are none of another one that has its number later: time stands still for them then.
//! Needs CAP_PERFMON, and one of the four breakpoints that a thread may have: two are left to
//! debuggers, so that two may watch at the same time.

use crate::perf::{attributes, open_event_of, TRACEPOINT};
use crate::processors::counted;
use crate::tracefs::Tracefs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The watch over one thread.
pub struct InCall {
    behind: OwnedFd,
    signals: OwnedFd,
}

/// What can be watched on this machine.
#[derive(Clone, Copy)]
pub struct Signals(u64);

impl Signals {
    /// Looks for the trace point.
    ///
    /// # Errors
    /// As [`Tracefs::open`] and [`Tracefs::id`].
    pub fn find() -> io::Result<Signals> {
        Ok(Signals(Tracefs::open()?.id("signal/signal_deliver")?))
    }
}

impl InCall {
    /// Begins to watch a thread that goes on at `behind` when it leaves its call.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where that is not permitted; `ENOSPC` without three free breakpoints;
    /// `ESRCH` where the thread is gone.
    pub fn watch(tid: u32, behind: u64, signals: Signals) -> io::Result<InCall> {
        const BREAKPOINT: u32 = 5;
        const EXCLUDE_KERNEL: u64 = 1 << 5;
        const WHEN_EXECUTED: u64 = 4;
        const LENGTH: u64 = size_of::<libc::c_long>() as u64;
        let mut breakpoint = attributes(BREAKPOINT, 0, EXCLUDE_KERNEL);
        (breakpoint[7], breakpoint[8]) = (behind, LENGTH);
        breakpoint[6] = WHEN_EXECUTED << 32;
        let behind = open(&mut breakpoint, tid)?;
        let left_to_others = [open(&mut breakpoint, tid)?, open(&mut breakpoint, tid)?];
        drop(left_to_others);
        Ok(InCall {
            behind,
            signals: open(&mut attributes(TRACEPOINT, signals.0, 0), tid)?,
        })
    }

    /// Whether it has left the call since, or may have: for a moment, in a handler, or for good.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let mut fds = self.fds().into_iter();
        fds.any(|fd| counted(fd).is_none_or(|c| c.times != 0))
    }

    /// How long the thread has had a processor since, in nanoseconds: more, each time that it has
    /// run a little, and the same for ever once it is gone.
    #[must_use]
    pub fn ran_for(&self) -> u64 {
        counted(self.behind.as_fd()).map_or(0, |c| c.on_for)
    }

    /// Watches it no more. What is left of the watch may take tens of milliseconds to close, where
    /// nobody else has that trace point open.
    #[must_use]
    pub fn end(self) -> OwnedFd {
        self.signals
    }

    /// What keeps it watched.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.behind.as_fd(), self.signals.as_fd()]
    }
}

/// Opens an event of a thread that is counted, and nothing else.
fn open(attributes: &mut [u64; 14], tid: u32) -> io::Result<OwnedFd> {
    (attributes[2], attributes[3], attributes[6]) = (0, 0, attributes[6] & !0xffff_ffff);
    open_event_of(attributes, tid.cast_signed(), -1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// Looks at something again and again until it is so.
    fn until(is_so: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            if Instant::now() > end {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn who_leaves_a_call_is_seen_and_who_ends_runs_no_more() {
        let signals = match Signals::find() {
            Ok(signals) => signals,
            Err(e) => return println!("skipped: trace points cannot be seen: {e}"),
        };
        let (told, tell) = rustix::pipe::pipe().expect("a pipe");
        let (say, hear) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            say.send(tid.unsigned_abs()).expect("heard");
            rustix::io::read(&told, &mut [0; 1]).expect("told");
        });
        let tid = hear.recv().expect("its number");
        let call = || {
            let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall"));
            let text = text.unwrap_or_default();
            let behind = text.trim().rsplit_once(" 0x").map(|(_, at)| at.to_owned());
            behind.filter(|_| text.starts_with("0 "))
        };
        assert!(until(|| call().is_some()), "it reads");
        let behind = u64::from_str_radix(&call().expect("it reads"), 16).expect("an address");
        let watch = match InCall::watch(tid, behind, signals) {
            Ok(watch) => watch,
            Err(e) => return println!("skipped: a thread cannot be watched: {e}"),
        };
        assert!(!watch.has_left());
        assert_eq!(watch.ran_for(), 0);
        rustix::io::write(&tell, b"x").expect("told");
        reader.join().expect("it ends");
        assert!(until(|| watch.has_left()));
        let ran_for = watch.ran_for();
        assert!(ran_for > 0);
        assert_eq!(watch.ran_for(), ran_for, "it is gone");
    }
}
