//! The timers that a process keeps when it executes another program: a command has those that we
//! were started with, as if it had been executed in our place.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null_mut;

/// Those of setitimer(2), and what each sends in the end.
const TIMERS: [(libc::c_int, i32); 3] = [
    (libc::ITIMER_REAL, libc::SIGALRM),
    (libc::ITIMER_VIRTUAL, libc::SIGVTALRM),
    (libc::ITIMER_PROF, libc::SIGPROF),
];

/// What is left of the timers of a process.
#[derive(Clone, Copy)]
struct Timers([libc::itimerval; TIMERS.len()]);

impl Timers {
    /// Our own: somebody set them before we were executed. `None` where none runs.
    fn ours() -> Option<Timers> {
        let left = TIMERS.map(|(which, _)| {
            let mut left = MaybeUninit::<libc::itimerval>::zeroed();
            // SAFETY: `left` has room for the answer.
            unsafe { libc::getitimer(which, left.as_mut_ptr()) };
            // SAFETY: zeroed is a valid value of this structure of integers.
            unsafe { left.assume_init() }
        });
        left.iter().any(is_running).then_some(Timers(left))
    }

    /// Has the calling process have them; async-signal-safe.
    fn set(&self) {
        for ((which, _), left) in TIMERS.iter().zip(&self.0) {
            // SAFETY: `left` is initialised, and nobody wants to know what there was.
            unsafe { libc::setitimer(*which, left, null_mut()) };
        }
    }

    /// Has the calling process have none.
    fn stop() {
        // SAFETY: zeroed is a valid value of this structure of integers: a timer that stands.
        let none: libc::itimerval = unsafe { std::mem::zeroed() };
        Timers([none; TIMERS.len()]).set();
    }
}

fn is_running(timer: &libc::itimerval) -> bool {
    timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0
}

/// Whether a signal is what a timer sends in the end.
pub(crate) fn end_with(signal: i32) -> bool {
    TIMERS.iter().any(|(_, its)| *its == signal)
}

/// Whether we have been given any that run.
pub(crate) fn run() -> bool {
    Timers::ours().is_some()
}

/// Starts `command`; what is left of our timers goes to it.
pub(crate) fn start(mut command: Command) -> io::Result<u32> {
    let timers = Timers::ours();
    if let Some(timers) = timers {
        // SAFETY: `set` makes system calls only, all async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                timers.set();
                Ok(())
            })
        };
    }
    let pid = command.spawn()?.id();
    if timers.is_some() {
        Timers::stop();
    }
    Ok(pid)
}
