//! The process that traces: everything that stops is attended to and goes on.
//!
//! Promise: it waits for nothing but its tracees, for two seconds at most for one of them, and ends
//! when the supervisor does.

use super::start::{Begun, Start};
use super::{Baggage, How, News, LONGEST};
use crate::reach::attach::tracer::{self, undisturb};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use synclater_sys::ptrace::{Next, Stop, Thread};
use synclater_sys::registers::Registers;
use synclater_sys::wait::{self, For};
use synclater_sys::{process, signal, socket};

/// Has the tracer look at its door: SIGUSR1.
pub const RING: i32 = 10;

/// Everything that is traced.
pub struct Herd {
    start: Start,
    news: OwnedFd,
    door: OwnedFd,
    /// What was told last of a process.
    told: HashMap<u32, How>,
    /// Threads that have begun, or run when their process was taken.
    known: HashSet<u32>,
    /// Threads of processes that are only watched.
    watched: HashSet<u32>,
    /// Whether anybody was traced since that was last told.
    has_some: bool,
    /// Processes that will stop where they say when their libraries are there.
    ahead: HashMap<u32, Range<u64>>,
    is_done: bool,
}

impl Herd {
    /// Nothing is traced yet.
    #[must_use]
    pub fn new(baggage: Baggage, news: OwnedFd, door: OwnedFd) -> Herd {
        Herd {
            start: Start::new(baggage),
            news,
            door,
            told: HashMap::new(),
            ahead: HashMap::new(),
            known: HashSet::new(),
            watched: HashSet::new(),
            has_some: false,
            is_done: false,
        }
    }

    /// Until the supervisor, process `parent`, ends; the status for a job.
    pub fn tend(mut self, parent: u32) -> i32 {
        process::leave_session();
        process::set_name(c"synclater-trace");
        signal::let_interrupt(RING);
        self.is_done = !process::end_with_parent(parent);
        while !self.is_done {
            let patience = match Thread::next() {
                Next::Thread(thread) => {
                    self.attend(thread);
                    continue;
                }
                Next::Interrupted => Duration::ZERO,
                Next::Nobody => {
                    if std::mem::take(&mut self.has_some) {
                        self.tell(&News::Nobody);
                    }
                    Duration::from_secs(3600)
                }
            };
            let fds = [
                (self.door.as_fd(), For::Input),
                (self.news.as_fd(), For::Input),
            ];
            // Of a socket whose other end is closed, poll(2) says so for good.
            let [asked, over] = wait::any(&fds, patience)[..] else {
                continue;
            };
            if asked {
                self.answer_door();
            }
            self.is_done = over;
        }
        0
    }

    /// Traces whoever asks for it, and whom the supervisor asks for.
    fn answer_door(&mut self) {
        let mut message = [0; 8];
        let (n, _) = match socket::receive(&self.door, &mut message) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => (0, Vec::new()),
        };
        let pid = u32::from_ne_bytes(message[..4].try_into().unwrap_or_default());
        match n {
            4 => {
                let errno = match Thread::seize_all(pid) {
                    Ok(_) => 0,
                    Err(e) => {
                        let why = tracer::why_refused(pid, &e);
                        self.tell(&News::Refused { why });
                        e.raw_os_error().unwrap_or(1)
                    }
                };
                self.has_some |= errno == 0;
                let _ = socket::send(&self.door, &errno.to_ne_bytes(), &[]);
            }
            5 => {
                let why = self.take(pid, message[4] == 0).err();
                self.tell(&News::Taken { pid, why });
            }
            _ => {
                // Closed: a socket that nobody asks at takes its place.
                if let Ok(other) = self.news.try_clone() {
                    self.door = other;
                }
            }
        }
    }

    /// Traces every thread of a process from now on; why not.
    fn take(&mut self, pid: u32, only_watched: bool) -> Result<(), String> {
        loop {
            let mut fresh = 0;
            for tid in tracer::threads_of(pid) {
                match Thread::seize_all(tid) {
                    Ok(_) => fresh += 1,
                    // Begun by one that is traced already, or taken before.
                    Err(_) if tracer::tracer_of(pid) == std::process::id() => {}
                    Err(e) if tid == pid => return Err(tracer::why_refused(pid, &e)),
                    Err(_) => {}
                }
                self.known.insert(tid);
                if only_watched {
                    self.watched.insert(tid);
                } else {
                    self.watched.remove(&tid);
                }
            }
            self.has_some |= fresh > 0;
            if fresh == 0 {
                return Ok(());
            }
        }
    }

    fn tell(&self, news: &News) {
        let text = serde_json::to_vec(news).unwrap_or_default();
        if text.len() <= LONGEST {
            // Where there is no room, the supervisor stands still.
            let _ = socket::send(&self.news, &text, &[]);
        }
    }

    fn attend(&mut self, mut thread: Thread) {
        let tid = thread.tid();
        match thread.stop() {
            None => {}
            Some(Stop::Gone) => {
                self.told.remove(&tid);
                self.ahead.remove(&tid);
                self.watched.remove(&tid);
                self.known.remove(&tid);
            }
            Some(Stop::Group(_)) => thread.leave_stopped(),
            Some(Stop::Made) => thread.go(),
            Some(Stop::Interrupted) => {
                if self.known.insert(tid) {
                    self.inherit(tid);
                }
                thread.go();
            }
            Some(Stop::Signal(_)) if self.has_arrived(&thread) => {
                thread.keep_signal();
                let (thread, begun) = self.start.arrive(thread);
                self.go_on(tid, thread, begun);
            }
            Some(Stop::Signal(_)) => {
                // One that is ignored disturbs nobody who is not traced.
                undisturb(&thread);
                thread.go();
            }
            Some(Stop::Executed) => {
                self.ahead.remove(&tid);
                if self.watched.remove(&tid) && !self.start.is_meant(tid) {
                    return thread.release();
                }
                let (thread, begun) = self.start.begin(thread);
                self.go_on(tid, thread, begun);
            }
        }
    }

    /// What was made is as its maker; that may stop for it later than the child begins.
    fn inherit(&mut self, tid: u32) {
        if self.ahead.is_empty() && self.watched.is_empty() {
            return;
        }
        let Some(maker) = process::maker(tid) else {
            return;
        };
        if let Some(range) = self.ahead.get(&maker).cloned() {
            self.ahead.insert(tid, range);
        }
        if self.watched.contains(&maker) {
            self.watched.insert(tid);
        }
    }

    /// Whether a thread stops because the libraries of its program are there.
    fn has_arrived(&mut self, thread: &Thread) -> bool {
        const SIGURG: i32 = 23;
        let Some(range) = self.ahead.get(&thread.tid()) else {
            return false;
        };
        let is_there = |r: &Registers| range.contains(&r.ip());
        let is_it = thread.stop() == Some(Stop::Signal(SIGURG))
            && thread.registers().is_ok_and(|r| is_there(&r));
        if is_it {
            self.ahead.remove(&thread.tid());
        }
        is_it
    }

    /// Lets a program go on, and notes what became of it.
    fn go_on(&mut self, pid: u32, thread: Option<Thread>, begun: Begun) {
        if let Some(mut thread) = thread.filter(|t| t.stop().is_some()) {
            thread.go();
        }
        match begun {
            Begun::Reached(how) => {
                let before = self.told.insert(pid, how).unwrap_or(How::Launch);
                if before != how {
                    self.tell(&News::Reached { pid, how });
                }
            }
            Begun::Ahead(range) => {
                self.ahead.insert(pid, range);
            }
            Begun::Missed { exe, why } => {
                self.told.remove(&pid);
                self.tell(&News::Missed { pid, exe, why });
            }
        }
    }
}
