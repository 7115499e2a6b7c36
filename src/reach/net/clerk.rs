//! The two processes that answer. One has the desk; the other watches: it takes over when the first
//! ends, and helps where nobody receives.
//!
//! Promise: what the first had received and not answered is answered by the one that takes over;
//! it stands in memory that both have.
//! Relies on: a process that is killed while it receives still gets the call written into its
//! memory, or the kernel keeps it for the next one (kernel/seccomp.c, seccomp_notify_recv).

use super::desk::Desk;
use super::threads;
use super::visitor::Visitors;
use super::{Terms, NAME};
use crate::session::hierarchy::enter_own_cgroup;
use rustix::process::{getrlimit, setrlimit, Resource};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use synclater_sys::job::{self, Job};
use synclater_sys::seccomp::{Listener, Seats};
use synclater_sys::wait::{self, For};
use synclater_sys::{process, socket};

/// Processes that may have seats at the same time.
pub const DESKS: usize = 8;

/// How often is looked whether somebody receives.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// At how many looks in a row a call has to stand there.
const UNANSWERED: u32 = 4;

/// The first process: starts the second, says so to `ready`, gets the listener at `door` and
/// answers. Its exit status.
pub fn begin(terms: Terms, seats: &'static Seats, door: OwnedFd, ready: OwnedFd) -> i32 {
    settle_in();
    let parent = std::process::id();
    let (behind, for_second) = (door.as_fd(), terms.clone());
    let second = Job::start(move || {
        let Some(door) = job::keep_only(&[behind]).pop() else {
            return 1;
        };
        match listener_at(&door) {
            Some(listener) => watch(for_second, seats, listener, parent),
            None => 0,
        }
    });
    let Ok(second) = second else {
        return 1;
    };
    let said = socket::send(&ready, b"r", &[]);
    drop(ready);
    if said.is_err() {
        return 1;
    }
    match listener_at(&door) {
        Some(listener) => {
            drop(door);
            serve(terms, seats, listener, second)
        }
        None => 0,
    }
}

/// For the supervisor, where both have ended: another pair.
pub fn take_over(terms: Terms, seats: &'static Seats, listener: BorrowedFd<'_>) -> i32 {
    settle_in();
    match job::keep_only(&[listener]).pop().map(Listener::new) {
        Some(listener) => inherit(terms, seats, listener),
        None => 1,
    }
}

/// Away from what ends or stops the programs that ask: their terminal, and their control group.
/// The signals that ask to end are blocked here as in the supervisor.
fn settle_in() {
    process::leave_session();
    process::set_name(NAME);
    enter_own_cgroup();
    // Each thread that asks is known by a descriptor.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    let _ = setrlimit(Resource::Nofile, files);
    // A program waits while we do not run; and its signals interrupt it as long as that.
    let _ = rustix::process::nice(-20);
}

/// Waits for the listener; `None` where no command was started.
fn listener_at(door: &OwnedFd) -> Option<Listener> {
    let mut buf = [0; 4];
    let (_, mut fds) = socket::receive(door, &mut buf).ok()?;
    fds.pop().map(Listener::new)
}

/// The second process.
fn watch(terms: Terms, seats: &'static Seats, listener: Listener, first: u32) -> i32 {
    let Some(end) = process::watch(first) else {
        return inherit(terms, seats, listener);
    };
    let (mut unanswered, mut helps, mut received) = (0, false, 0);
    let listener: &'static Listener = Box::leak(Box::new(listener));
    loop {
        let fds = [(end.as_fd(), For::Input), (listener.as_fd(), For::Change)];
        let ready = wait::any(&fds, LOOK_EVERY);
        if listener.is_over() {
            return 0;
        }
        // It may have been killed while a thread of its hangs in the kernel.
        let orphans = has_orphans(seats);
        if ready[0] || orphans {
            rescue(&terms, seats, listener);
        }
        if ready[0] || orphans && process::is_ended(first) {
            let second = stand_by(&terms, seats, listener);
            return tend(terms, seats, listener, second, helps);
        }
        let stands = listener.has_call() && seats.received() == received;
        received = seats.received();
        unanswered = if stands { unanswered + 1 } else { 0 };
        if unanswered >= UNANSWERED && !helps {
            rescue(&terms, seats, listener);
            helps = open_desk(terms.clone(), seats, listener);
        }
    }
}

/// What the second does once the first has ended, and what a new first does.
fn inherit(terms: Terms, seats: &'static Seats, listener: Listener) -> i32 {
    let listener: &'static Listener = Box::leak(Box::new(listener));
    rescue(&terms, seats, listener);
    let second = stand_by(&terms, seats, listener);
    tend(terms, seats, listener, second, false)
}

fn serve(terms: Terms, seats: &'static Seats, listener: Listener, second: Job) -> i32 {
    let listener = Box::leak(Box::new(listener));
    tend(terms, seats, listener, Some(second), false)
}

/// Answers what those that have ended had received, and frees their seats.
fn rescue(terms: &Terms, seats: &Seats, listener: &Listener) {
    for (block, owner) in seats.taken() {
        // Who else looks may take it over first.
        let own = std::process::id();
        if owner == own || !process::is_ended(owner) || !seats.pass_on(block, owner, own) {
            continue;
        }
        let desk = Desk::new(terms.clone());
        let mut visitors = Visitors::new(1);
        for seat in seats.seats(block) {
            if let Some(call) = seat.call() {
                let answer = desk.rescue(&call, seat.stage(), &mut visitors);
                let _ = listener.answer(call.id, answer);
                seat.clear();
            }
        }
        seats.pass_on(block, own, 0);
    }
}

/// Whether something that was received waits for one that has ended.
#[must_use]
pub fn has_orphans(seats: &Seats) -> bool {
    let mut taken = seats.taken();
    taken.any(|(block, owner)| {
        seats.seats(block).any(|seat| seat.call().is_some()) && process::is_ended(owner)
    })
}

/// Another process that watches this one.
fn stand_by(terms: &Terms, seats: &'static Seats, listener: &'static Listener) -> Option<Job> {
    let (parent, terms) = (std::process::id(), terms.clone());
    let job = Job::start(move || {
        let fd = job::keep_only(&[listener.as_fd()]).pop();
        match fd.map(Listener::new) {
            Some(listener) => watch(terms, seats, listener, parent),
            None => 1,
        }
    });
    job.ok()
}

/// The first process's own thread: keeps a second one, until nobody is left who could ask.
fn tend(
    terms: Terms,
    seats: &'static Seats,
    listener: &'static Listener,
    mut second: Option<Job>,
    is_open: bool,
) -> i32 {
    // There is a second one, or nobody with less to do.
    if !is_open && !open_desk(terms.clone(), seats, listener) {
        return 1;
    }
    loop {
        let mut fds = vec![(listener.as_fd(), For::Change)];
        fds.extend(second.iter().map(|job| (job.as_fd(), For::Input)));
        let _ = wait::any(&fds, Duration::from_secs(1));
        if listener.is_over() {
            return 0;
        }
        if second.as_ref().is_none_or(|job| job.finished().is_some()) {
            second = stand_by(&terms, seats, listener);
        }
    }
}

/// A desk, and who sits behind it; false where there is no room for one.
fn open_desk(terms: Terms, seats: &'static Seats, listener: &'static Listener) -> bool {
    let block = seats.take(std::process::id());
    block.is_some_and(|block| threads::open(Desk::new(terms), seats, listener, block))
}
