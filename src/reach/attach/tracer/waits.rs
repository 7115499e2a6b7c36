//! Since when threads wait that are about to be disturbed: of a time limit that a call counts from
//! its begin, what is left is begun anew, and not the whole.
//!
//! Relies on: /proc/PID/sched (`CONFIG_SCHED_DEBUG`), whose `se.exec_start` tells when a thread
//! last got a processor, and so when it began to wait, by a clock that each processor has for
//! itself: a look at our own on the same processor tells what the monotonic one says then. A thread
//! that was woken in vain meanwhile has waited for longer, and so may one on a machine that is
//! stolen time: what is left is never too little. Where nothing is known the whole limit is begun
//! anew.

use super::super::code::Class;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use synclater_sys::process;
use synclater_sys::registers::{may_have_limit, Limit, Registers};
use synclater_sys::remote::Memory;

/// When threads of one process began to wait, by the monotonic clock in nanoseconds.
pub(super) struct Waits {
    pid: u32,
    class: Class,
    began: RefCell<BTreeMap<u32, i64>>,
    /// By how much the monotonic clock is ahead of a processor's.
    ahead: BTreeMap<usize, Option<i64>>,
}

impl Waits {
    /// Of a process; nobody waits as far as is known.
    pub(super) fn new(pid: u32, class: Class) -> Waits {
        Waits {
            pid,
            class,
            began: RefCell::default(),
            ahead: BTreeMap::new(),
        }
    }

    /// Notes since when a thread waits that is about to be disturbed, where its call has a limit.
    pub(super) fn note(&mut self, tid: u32) {
        self.began.get_mut().remove(&tid);
        let Some(call) = self.limited_call(tid) else {
            return;
        };
        let task = format!("{}/task/{tid}", self.pid);
        let Some((began, processor)) = last_ran(&task) else {
            return;
        };
        let ahead = *self
            .ahead
            .entry(processor)
            .or_insert_with(|| ahead_of(processor));
        if self.limited_call(tid) == Some(call) {
            let began = ahead.map(|ahead| began + ahead);
            self.began.get_mut().extend(began.map(|began| (tid, began)));
        }
    }

    /// The call that a thread waits in, with its arguments, where it may have a limit.
    fn limited_call(&self, tid: u32) -> Option<String> {
        let text = process::text(format!("/proc/{}/task/{tid}/syscall", self.pid)).ok()?;
        let number = text.split(' ').next()?.parse().ok()?;
        may_have_limit(number, self.class == Class::Long).then_some(text)
    }

    /// Whether a thread waits in a call that may have a limit.
    pub(super) fn has_limit(&self, tid: u32) -> bool {
        self.limited_call(tid).is_some()
    }

    /// A thread that is to begin its call anew, with what is left of its limit; as it is where that
    /// is not known. A limit that lies in memory is put below its stack, where there is a `memory`
    /// for that: nothing of its own may run before the call.
    pub(super) fn with_what_is_left(
        &self,
        tid: u32,
        registers: Registers,
        memory: impl FnOnce() -> Option<Memory>,
    ) -> Registers {
        let began = self.began.borrow_mut().remove(&tid);
        let changed = began.and_then(|began| {
            let waited = u64::try_from(now().checked_sub(began)?).ok()?;
            match registers.limit()? {
                Limit::Milliseconds(all) => {
                    let left = (u64::from(all) * 1_000_000).saturating_sub(waited);
                    let left = u32::try_from(left.div_ceil(1_000_000)).ok()?;
                    Some(registers.with_limit(Limit::Milliseconds(left)))
                }
                Limit::At(at, word) => {
                    let memory = memory()?;
                    let all = time(&memory.bytes(at, 2 * word).ok()?, word)?;
                    let left = all.saturating_sub(Duration::from_nanos(waited));
                    let below = registers.sp().checked_sub(RED_ZONE + 32)? & !15;
                    memory.write(below, &bytes(left, word)).ok()?;
                    Some(registers.with_limit(Limit::At(below, word)))
                }
            }
        });
        changed.unwrap_or(registers)
    }
}

const RED_ZONE: u64 = 128;

fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// When a task last got a processor, in nanoseconds of that one's clock, and which it was.
fn last_ran(task: &str) -> Option<(i64, usize)> {
    let sched = process::text(format!("/proc/{task}/sched")).ok()?;
    let line = sched.lines().find(|l| l.starts_with("se.exec_start"))?;
    let (_, text) = line.split_once(':')?;
    // Milliseconds, with six digits behind the point.
    let (whole, rest) = text.trim().split_once('.')?;
    let digits = rest.get(..6)?;
    let began = whole.parse::<i64>().ok()? * 1_000_000 + digits.parse::<i64>().ok()?;
    // Field 39 of proc(5), 36 behind the state.
    let processor = process::stat(task)?.split(' ').nth(36)?.parse().ok()?;
    Some((began, processor))
}

/// By how much the monotonic clock is ahead of a processor's, which we go to for that.
fn ahead_of(processor: usize) -> Option<i64> {
    let whole = sched_getaffinity(None).ok()?;
    let mut one = CpuSet::new();
    if processor >= CpuSet::MAX_CPU {
        return None;
    }
    one.set(processor);
    sched_setaffinity(None, &one).ok()?;
    // So that it begins to run there now.
    std::thread::sleep(Duration::from_micros(1));
    let ran = last_ran("self");
    let now = now();
    let _ = sched_setaffinity(None, &whole);
    ran.filter(|(_, on)| *on == processor)
        .map(|(ran, _)| now - ran)
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
        let Some((ran, on)) = last_ran(&task) else {
            println!("no /proc/PID/sched: nothing to compare");
            return;
        };
        let began = ran + ahead_of(on).expect("it ran there");
        let off = (now() - began).abs();
        sleeper.join().expect("it ends");
        // Since then it was only waited that it sleeps.
        assert!(off < 100_000_000, "{off} ns");
    }
}
