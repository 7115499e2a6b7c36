//! Standing still with the command, as a shell expects of its job, and going on with it.

use super::Supervisor;
use rustix::process::Signal;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_sys::job::{self, Job};
use synclater_sys::process::{self, has_pending, is_stopped};

/// How often the waker looks, and how long it gives us to stop.
const NAP: Duration = Duration::from_millis(20);
const STOPPING: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Stops us, since the command was stopped: whoever waits for us sees what it would see of it.
    pub(super) fn stand_still(&mut self) {
        self.command.waker.take().into_iter().for_each(Job::end);
        // Without a waker we could stand still for good.
        self.command.waker = waker(self.command.child).ok();
        if let Some(waker) = &self.command.waker {
            self.command.last_waker = waker.pid();
            let _ = process::kill(std::process::id(), Signal::STOP.as_raw());
        }
    }
}

/// Whoever continues the command by its number (cpulimit(1), kill(1)) knows nothing of us: this
/// continues us then. It ends once we go on.
fn waker(command: u32) -> io::Result<Job> {
    let us = std::process::id();
    job::beside_us(c"synclater-wake", &[], |_| {
        wake(us, command);
        0
    })
}

/// Continues process `us` when the command goes on, or has ended, or the terminal has gone: the
/// kernel's SIGCONT behind that is taken back where we stop only then.
fn wake(us: u32, command: u32) {
    let begun = Instant::now();
    while !is_stopped(us) {
        if begun.elapsed() > STOPPING {
            return;
        }
        sleep(NAP);
    }
    while is_stopped(us) {
        if !is_stopped(command) || has_pending(us, Signal::HUP.as_raw()) {
            let _ = process::kill(us, Signal::CONT.as_raw());
            return;
        }
        sleep(NAP);
    }
}
