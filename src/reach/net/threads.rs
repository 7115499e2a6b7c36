//! Who sits behind the desk: one thread receives. It also makes a call for somebody, where nothing
//! else goes on and nobody else has asked lately; otherwise, or where that takes longer than a
//! moment, another one receives.
//!
//! To wake another thread for each call that is made costs more than the rest (10 us here, on two
//! processors): so one that wakes by itself looks after it, as long as calls are being made.
//!
//! Promise: whoever receives waits for no file system that a program chose, unless there is one to
//! receive in his place. To close a file may wait as well: that of a FUSE asks its server (FLUSH).

use super::desk::{Desk, Making, Verdict, ALL_COUNTED, COUNTED};
use super::visitor::Visitors;
use rustix::process::{getrlimit, setrlimit, Resource};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;
use synclater_sys::lock::lock;
use synclater_sys::seccomp::{Answer, Block, Call, Listener, Seat, Seats};

/// Threads of one process; where all of them make calls, programs make theirs by themselves.
pub const THREADS: usize = 32;

/// Threads that ask and are remembered by each of them, at most.
const REMEMBERED: usize = 4096;

/// For how many calls another one receives at once where more than one thread asks.
const SEVERAL: u32 = 100;

/// For how long nobody receives while a call is being made, twice at most.
const MOMENT: Duration = Duration::from_micros(300);
/// At how many looks in a row no call was made before nobody looks any more.
const QUIET: u32 = 100;

struct Threads {
    desk: Desk,
    seats: &'static Seats,
    listener: &'static Listener,
    block: Block,
    /// How many visitors each thread remembers.
    remembers: usize,
    /// Whose turn it is to receive.
    receiver: AtomicUsize,
    /// Who asked last, and for how many more calls that are made it counts that another one had.
    last: AtomicU32,
    several: AtomicU32,
    /// Calls that are being made.
    making: AtomicUsize,
    /// Calls that the receiver began to make; odd while it does.
    made: AtomicU64,
    pool: Mutex<Pool>,
    deputy: OnceLock<Thread>,
    deputy_sleeps: AtomicBool,
    /// Closes what nobody else has the time for, where no thread can be had for each of these.
    closer: OnceLock<Thread>,
    /// What waits for that.
    left: Mutex<Vec<OwnedFd>>,
    /// How many wait, or are being closed.
    closing: AtomicUsize,
}

/// So many files are closed at a time at most: then programs make their calls by themselves, and
/// nothing of theirs is kept open.
const CLOSING: usize = 256;

#[derive(Default)]
struct Pool {
    all: Vec<Option<Thread>>,
    idle: Vec<usize>,
}

/// Starts the threads; they end when nobody is left who could ask. False where none can be had.
pub fn open(desk: Desk, seats: &'static Seats, listener: &'static Listener, block: Block) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Each that is remembered takes a descriptor.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let each = usize::try_from(files).unwrap_or(usize::MAX) / THREADS;
    let threads: &'static Threads = Box::leak(Box::new(Threads {
        desk,
        seats,
        listener,
        block,
        remembers: each.saturating_sub(4).clamp(1, REMEMBERED),
        receiver: AtomicUsize::new(usize::MAX),
        last: AtomicU32::new(0),
        several: AtomicU32::new(0),
        making: AtomicUsize::new(0),
        made: AtomicU64::new(0),
        pool: Mutex::default(),
        deputy: OnceLock::new(),
        deputy_sleeps: AtomicBool::new(false),
        closer: OnceLock::new(),
        left: Mutex::default(),
        closing: AtomicUsize::new(0),
    }));
    if let Ok(deputy) = small().spawn(|| threads.look_after()) {
        let _ = threads.deputy.set(deputy.thread().clone());
    }
    let Ok(closer) = small().spawn(|| threads.close_for_ever()) else {
        return false;
    };
    let _ = threads.closer.set(closer.thread().clone());
    threads.another_receives()
}

/// Where a thread fails, its process ends: the one that watches takes over.
fn or_end(work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        std::process::exit(1);
    }
}

fn small() -> thread::Builder {
    thread::Builder::new().stack_size(256 << 10)
}

impl Threads {
    /// Has another thread receive; whether there is one.
    fn another_receives(&'static self) -> bool {
        let mut pool = lock(&self.pool);
        if let Some(idle) = pool.idle.pop() {
            self.receiver.store(idle, SeqCst);
            pool.all[idle].iter().for_each(Thread::unpark);
            return true;
        }
        let number = pool.all.len();
        if number == THREADS {
            return false;
        }
        let before = self.receiver.swap(number, SeqCst);
        match small().spawn(move || or_end(|| self.work(number))) {
            Ok(fresh) => {
                pool.all.push(Some(fresh.thread().clone()));
                true
            }
            Err(_) => {
                self.receiver.store(before, SeqCst);
                false
            }
        }
    }

    /// Whether another thread could receive.
    fn another_could(&self) -> bool {
        let pool = lock(&self.pool);
        !pool.idle.is_empty() || pool.all.len() < THREADS
    }

    /// Has a file closed for which nobody has the time: each by a thread of its own, since one may
    /// wait for ever, and whoever had it open is not to wait for that.
    fn leave(&'static self, file: OwnedFd) {
        self.closing.fetch_add(1, SeqCst);
        lock(&self.left).push(file);
        if small().spawn(|| self.close_what_is_left()).is_err() {
            self.closer.get().into_iter().for_each(Thread::unpark);
        }
    }

    fn close_what_is_left(&self) {
        loop {
            // What is closed is not locked meanwhile.
            let next = lock(&self.left).pop();
            if next.is_none() {
                return;
            }
            drop(next);
            self.closing.fetch_sub(1, SeqCst);
        }
    }

    /// The closer that there always is.
    fn close_for_ever(&self) -> ! {
        loop {
            self.close_what_is_left();
            thread::park();
        }
    }

    /// The deputy: has another one receive where the receiver makes a call for more than a moment.
    fn look_after(&'static self) -> ! {
        let (mut last, mut replaced, mut quiet) = (0, 0, 0);
        loop {
            if quiet < QUIET {
                thread::park_timeout(MOMENT);
            } else {
                self.deputy_sleeps.store(true, SeqCst);
                if self.made.load(SeqCst) == last {
                    thread::park();
                }
                self.deputy_sleeps.store(false, SeqCst);
            }
            let made = self.made.load(SeqCst);
            if made % 2 == 1 && made == last && made != replaced && self.another_receives() {
                replaced = made;
            }
            quiet = if made == last { quiet + 1 } else { 0 };
            last = made;
        }
    }

    /// The receiver changes with the pool locked only: who is idle is in it once.
    fn wait_for_turn(&self, number: usize) {
        if self.has_turn(number) {
            return;
        }
        let mut pool = lock(&self.pool);
        if self.has_turn(number) {
            return;
        }
        pool.idle.push(number);
        drop(pool);
        while !self.has_turn(number) {
            thread::park();
        }
    }

    /// Whether it is a thread's turn to receive.
    fn has_turn(&self, number: usize) -> bool {
        self.receiver.load(SeqCst) == number
    }

    fn work(&'static self, number: usize) {
        let seat = self.seats.seat(self.block, number);
        let mut visitors = Visitors::new(self.remembers);
        loop {
            self.wait_for_turn(number);
            let Ok(call) = self.listener.receive(seat) else {
                if self.listener.is_over() {
                    return;
                }
                continue;
            };
            self.seats.has_received();
            if self.last.swap(call.tid, SeqCst) != call.tid {
                self.several.store(SEVERAL, SeqCst);
            }
            if self.desk.may_wait(&call) && !self.another_receives() {
                self.end(seat, &call, Answer::Itself);
                continue;
            }
            if self.closing.load(SeqCst) > CLOSING {
                let answer = self.desk.rescue(&call, 0, &mut visitors);
                self.end(seat, &call, answer);
                continue;
            }
            let verdict = self
                .desk
                .decide(&call, &mut visitors, || seat.set_stage(COUNTED));
            seat.set_stage(ALL_COUNTED);
            match verdict {
                Verdict::Answered(answer) => self.end(seat, &call, answer),
                Verdict::Made(making) => self.end(seat, &call, self.make(making)),
                Verdict::Unmounts(unmounting) => self.desk.unmount(&unmounting, || {
                    self.end(seat, &call, Answer::Itself);
                }),
            }
        }
    }

    fn make(&'static self, making: Making) -> Answer {
        // As long as nobody receives, a signal interrupts who asks.
        let several = self.several.load(SeqCst);
        self.several.store(several.saturating_sub(1), SeqCst);
        let alone = several == 0 && self.deputy.get().is_some() && self.another_could();
        let goes_on = self.making.fetch_add(1, SeqCst) > 0 || !alone || self.listener.has_call();
        let answer = if !goes_on {
            self.made.fetch_add(1, SeqCst);
            if self.deputy_sleeps.swap(false, SeqCst) {
                self.deputy.get().into_iter().for_each(Thread::unpark);
            }
            let answer = self.desk.make(making);
            self.made.fetch_add(1, SeqCst);
            answer
        } else if self.another_receives() {
            self.desk.make(making)
        } else {
            making.file.into_iter().for_each(|file| self.leave(file));
            making.answer.unwrap_or(Answer::Itself)
        };
        self.making.fetch_sub(1, SeqCst);
        answer
    }

    fn end(&self, seat: Seat<'_>, call: &Call, answer: Answer) {
        // Who asked may have been killed, or been answered by one that took us for dead.
        let _ = self.listener.answer(call.id, answer);
        seat.clear();
    }
}
