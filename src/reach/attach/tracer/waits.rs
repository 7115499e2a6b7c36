//! Waits with a time limit that a stop disturbs: they end when they would have ended.
//!
//! The kernel keeps what is left of most limits (poll, nanosleep, futex), but a call that says
//! EINTR counts its own from its begin. Such a call is made anew with what is left, by an
//! instruction of the library's, since its argument is the program's: behind the call the register
//! is as it was (`struct sl_wait` in gate.h), and no memory but ours is written.
//!
//! Promise: no wait ends too early. What is not known (that it is the same wait, when it began, a
//! room for it) makes it longer: the whole limit is begun anew. So it is in a program that cancels
//! threads (pthread_cancel(3)): what one has to do then is found by where its call was made.
//!
//! Relies on: /proc/PID/sched (`CONFIG_SCHED_DEBUG`), whose `se.exec_start` tells when a thread
//! last had a processor, and so when it began to wait, by a clock that each processor has for
//! itself: a look at our own on the same one tells what the monotonic clock says then. And on
//! `nr_voluntary_switches` there, one for each sleep: who wakes by itself between our look and its
//! stop, and waits again, has one too many. A thread that was woken in vain has waited for longer
//! than is known.

use super::super::code::{self, Class, Library};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use synclater_shim::gate;
use synclater_sys::process;
use synclater_sys::registers::{may_have_limit, Limit, Registers};
use synclater_sys::remote::Memory;

/// A thread that wakes only to stop for us takes less.
const WAY_TO_STOP: Duration = Duration::from_micros(300);

/// Times are of the monotonic clock, in nanoseconds.
type Nanoseconds = i64;

/// When threads of one process began to wait, and the rooms in its library for such waits.
pub(super) struct Waits {
    pid: u32,
    class: Class,
    began: RefCell<BTreeMap<u32, Began>>,
    /// By how much the monotonic clock is ahead of a processor's.
    ahead: BTreeMap<usize, Option<Nanoseconds>>,
    rooms: Option<Rooms>,
    /// Whether its threads may be cancelled where they wait.
    may_cancel: Option<bool>,
}

/// A thread that waits.
struct Began {
    at: Nanoseconds,
    turn: Turn,
}

/// The last turn of a thread on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// When it ended, by the processor's clock.
    ended: Nanoseconds,
    /// How long all of them were.
    ran: Nanoseconds,
    /// How often the thread has gone to sleep.
    sleeps: u64,
}

/// What is known of a disturbed wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    until: Nanoseconds,
    /// Where it has gone on since it was disturbed before.
    room: Option<usize>,
}

/// Where disturbed waits go on.
struct Rooms {
    memory: Memory,
    code: u64,
    states: u64,
    count: usize,
    /// Those where nobody can be.
    free: RefCell<Vec<usize>>,
}

impl Waits {
    /// Of a process; nobody waits as far as is known.
    pub(super) fn new(pid: u32, class: Class) -> Waits {
        Waits {
            pid,
            class,
            began: RefCell::default(),
            ahead: BTreeMap::new(),
            rooms: None,
            may_cancel: None,
        }
    }

    /// The process has this library.
    pub(super) fn know(&mut self, library: &Library) {
        let head = &library.head;
        self.rooms = Memory::open(self.pid).ok().map(|memory| Rooms {
            memory,
            code: library.image + u64::from(head.waits_at),
            states: library.image + u64::from(head.wait_states),
            count: head.waits(),
            free: RefCell::default(),
        });
        self.find_rooms(None::<std::iter::Empty<u64>>);
    }

    /// Finds the rooms where nobody can be: those where nobody ever was, and where all threads
    /// stand still, at `ips`, those that have been left.
    pub(super) fn find_rooms(&mut self, ips: Option<impl Iterator<Item = u64>>) {
        let Some(rooms) = &self.rooms else { return };
        let states = rooms.memory.bytes(rooms.states, rooms.count);
        let in_use: Option<Vec<usize>> = ips.map(|ips| ips.filter_map(|ip| rooms.at(ip)).collect());
        let is_free = |k: usize, state: u8| match &in_use {
            _ if state == gate::Wait::FRESH => true,
            Some(in_use) => state == gate::Wait::OVER && !in_use.contains(&k),
            None => false,
        };
        let states = states.unwrap_or_default();
        let free = (states.iter().enumerate()).filter(|(k, state)| is_free(*k, **state));
        rooms.free.replace(free.map(|(k, _)| k).collect());
    }

    /// Notes since when a thread waits that is about to be disturbed, where its call has a limit.
    pub(super) fn note(&mut self, tid: u32) {
        self.began.get_mut().remove(&tid);
        let Some(call) = self.limited_call(tid) else {
            return;
        };
        let pid = self.pid;
        if *self.may_cancel.get_or_insert_with(|| code::may_cancel(pid)) {
            return;
        }
        let task = format!("{pid}/task/{tid}");
        let Some((turn, processor)) = last_turn(&task) else {
            return;
        };
        let ahead = *self
            .ahead
            .entry(processor)
            .or_insert_with(|| ahead_of(processor));
        // The same turn as before, whatever of it was read first.
        if last_turn(&task) == Some((turn, processor)) && self.limited_call(tid) == Some(call) {
            let at = ahead.map(|ahead| turn.ended + ahead);
            let began = at.map(|at| (tid, Began { at, turn }));
            self.began.get_mut().extend(began);
        }
    }

    /// The call that a thread waits in, with its arguments, where it may have a limit.
    fn limited_call(&self, tid: u32) -> Option<String> {
        let text = process::text(format!("/proc/{}/task/{tid}/syscall", self.pid)).ok()?;
        let number = text.split(' ').next()?.parse().ok()?;
        may_have_limit(number, self.class == Class::Long).then_some(text)
    }

    /// The wait of a thread that stands still with these registers, where its end is known.
    pub(super) fn of(&self, tid: u32, registers: &Registers) -> Option<Wait> {
        let began = self.began.borrow_mut().remove(&tid);
        registers.undisturbed()?;
        let limit = registers.limit()?;
        let rooms = self.rooms.as_ref();
        if let Some((rooms, k)) = rooms.and_then(|rooms| Some((rooms, rooms.at(registers.ip())?))) {
            let until = rooms.memory.bytes(rooms.place(k) + gate::Wait::UNTIL, 8);
            let until = Nanoseconds::from_le_bytes(until.ok()?.try_into().ok()?);
            return Some(Wait {
                until,
                room: Some(k),
            });
        }
        let began = began?;
        let (now, _) = last_turn(&format!("{}/task/{tid}", self.pid))?;
        let way = Duration::from_nanos(u64::try_from(now.ran - began.turn.ran).ok()?);
        if now.sleeps != began.turn.sleeps + 1 || way > WAY_TO_STOP {
            return None;
        }
        let limit = match limit {
            Limit::Milliseconds(all) => Duration::from_millis(all.into()),
            Limit::At(at, word) => time_at(&Memory::open(tid).ok()?, at, word)?,
            Limit::OfRing(at) => {
                let memory = Memory::open(tid).ok()?;
                let argument = of_ring(&memory, at)?;
                let at = u64::from_le_bytes(argument[16..].try_into().ok()?);
                time_at(&memory, at, 8).filter(|_| at != 0)?
            }
        };
        let limit = Nanoseconds::try_from(limit.as_nanos()).ok()?;
        let until = began.at.checked_add(limit)?;
        Some(Wait { until, room: None })
    }

    /// The thread that is to make its call again, with what is left of its limit.
    pub(super) fn with_what_is_left(&self, again: &Registers, wait: Wait) -> Option<Registers> {
        let rooms = self.rooms.as_ref()?;
        let left = u64::try_from(wait.until.saturating_sub(now())).unwrap_or(0);
        let left = Duration::from_nanos(left);
        let k = match wait.room {
            Some(k) => k,
            None => rooms.take(again)?,
        };
        let place = rooms.place(k);
        let until = wait.until.to_le_bytes();
        rooms.memory.write(place + gate::Wait::UNTIL, &until).ok()?;
        let limit = match again.limit()? {
            Limit::Milliseconds(_) => {
                let whole = left.as_nanos().div_ceil(1_000_000);
                Limit::Milliseconds(u32::try_from(whole).ok()?)
            }
            Limit::At(_, word) => {
                let at = place + gate::Wait::LEFT;
                rooms.memory.write(at, &bytes(left, word)).ok()?;
                Limit::At(at, word)
            }
            Limit::OfRing(was) => {
                let (at, left_at) = (place + gate::Wait::OF_RING, place + gate::Wait::LEFT);
                rooms.memory.write(left_at, &bytes(left, 8)).ok()?;
                let mut argument = of_ring(&rooms.memory, was)?;
                argument[16..].copy_from_slice(&left_at.to_le_bytes());
                rooms.memory.write(at, &argument).ok()?;
                Limit::OfRing(at)
            }
        };
        Some(again.with_limit(limit).in_call_at(place))
    }
}

impl Rooms {
    fn place(&self, k: usize) -> u64 {
        self.code + (k * gate::Wait::SIZE) as u64
    }

    /// The room in which an address lies.
    fn at(&self, ip: u64) -> Option<usize> {
        let k = usize::try_from(ip.checked_sub(self.code)?).ok()? / gate::Wait::SIZE;
        (k < self.count).then_some(k)
    }

    /// A room for the call that a thread makes again.
    fn take(&self, again: &Registers) -> Option<usize> {
        let (register, held) = again.limit_register()?;
        let k = self.free.borrow_mut().pop()?;
        let (place, state) = (self.place(k), self.states + k as u64);
        let wait = gate::Wait {
            register,
            held,
            back: again.ip(),
        };
        let code = wait.code(again.is_64(), place, state)?;
        self.memory.write(place, &code).ok()?;
        self.memory.write(state, &[gate::Wait::TAKEN]).ok()?;
        Some(k)
    }
}

fn now() -> Nanoseconds {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// The last turn of a task, and the processor that it had.
fn last_turn(task: &str) -> Option<(Turn, usize)> {
    let sched = process::text(format!("/proc/{task}/sched")).ok()?;
    let value = |name: &str| {
        let line = sched.lines().find(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.trim_start().starts_with(':'))
        })?;
        Some(line.split_once(':')?.1.trim())
    };
    // Milliseconds, with six digits behind the point.
    let nanoseconds = |name| {
        let (whole, rest) = value(name)?.split_once('.')?;
        let part: Nanoseconds = rest.get(..6)?.parse().ok()?;
        Some(whole.parse::<Nanoseconds>().ok()? * 1_000_000 + part)
    };
    let turn = Turn {
        ended: nanoseconds("se.exec_start")?,
        ran: nanoseconds("se.sum_exec_runtime")?,
        sleeps: value("nr_voluntary_switches")?.parse().ok()?,
    };
    // Field 39 of proc(5), 36 behind the state.
    let processor = process::stat(task)?.split(' ').nth(36)?.parse().ok()?;
    Some((turn, processor))
}

/// By how much the monotonic clock is ahead of a processor's, which we go to for that.
fn ahead_of(processor: usize) -> Option<Nanoseconds> {
    let whole = sched_getaffinity(None).ok()?;
    let mut one = CpuSet::new();
    if processor >= CpuSet::MAX_CPU {
        return None;
    }
    one.set(processor);
    sched_setaffinity(None, &one).ok()?;
    // So that it begins to run there now.
    std::thread::sleep(Duration::from_micros(1));
    let turn = last_turn("self");
    let now = now();
    let _ = sched_setaffinity(None, &whole);
    turn.filter(|(_, on)| *on == processor)
        .map(|(turn, _)| now - turn.ended)
}

/// `struct io_uring_getevents_arg` at `at`; `None` where it has a limit of another kind, too.
fn of_ring(memory: &Memory, at: u64) -> Option<[u8; 24]> {
    let argument: [u8; 24] = memory.bytes(at, 24).ok()?.try_into().ok()?;
    // min_wait_usec, Linux 6.12
    (argument[12..16] == [0; 4]).then_some(argument)
}

fn time_at(memory: &Memory, at: u64, word: usize) -> Option<Duration> {
    time(&memory.bytes(at, 2 * word).ok()?, word)
}

/// Seconds and nanoseconds of `word` bytes each; `None` where they are no time.
fn time(bytes: &[u8], word: usize) -> Option<Duration> {
    let number = |at: usize| -> Option<u64> {
        let mut all = [0; 8];
        all[..word].copy_from_slice(bytes.get(at..at + word)?);
        let shift = 64 - 8 * u32::try_from(word).ok()?;
        let number = (i64::from_le_bytes(all) << shift) >> shift;
        u64::try_from(number).ok()
    };
    let nanoseconds = u32::try_from(number(word)?).ok()?;
    (nanoseconds < 1_000_000_000).then_some(())?;
    Some(Duration::new(number(0)?, nanoseconds))
}

fn bytes(time: Duration, word: usize) -> Vec<u8> {
    let seconds = time.as_secs().to_le_bytes();
    let nanoseconds = u64::from(time.subsec_nanos()).to_le_bytes();
    [&seconds[..word], &nanoseconds[..word]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_was_written() {
        for word in [4, 8] {
            for whole in [Duration::ZERO, Duration::new(3, 999_999_999)] {
                assert_eq!(time(&bytes(whole, word), word), Some(whole));
            }
            let negative = [0xff; 16];
            assert_eq!(time(&negative[..2 * word], word), None);
        }
        assert_eq!(time(&[0, 0, 0, 0, 0, 0xca, 0x9a, 0x3b], 4), None);
    }

    #[test]
    fn a_thread_that_sleeps_is_known_to_have_begun_when_it_did() {
        let (told, tell) = rustix::pipe::pipe().expect("a pipe");
        let sleeper = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            rustix::io::write(&tell, &tid.to_ne_bytes()).expect("told");
            std::thread::sleep(Duration::from_millis(200));
        });
        let mut tid = [0; 4];
        rustix::io::read(&told, &mut tid).expect("its number");
        let task = format!("self/task/{}", i32::from_ne_bytes(tid));
        let is_asleep = || process::stat(&task).is_some_and(|stat| stat.starts_with('S'));
        while !is_asleep() {
            std::thread::yield_now();
        }
        let Some((turn, on)) = last_turn(&task) else {
            println!("no /proc/PID/sched: nothing to compare");
            return;
        };
        let began = turn.ended + ahead_of(on).expect("it ran there");
        let off = (now() - began).abs();
        sleeper.join().expect("it ends");
        // Since then it was only waited that it sleeps.
        assert!(off < 100_000_000, "{off} ns");
    }
}
