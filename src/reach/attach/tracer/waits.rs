//! Waits with a time limit that a stop disturbs: they end when they would have ended.
//!
//! The kernel keeps what is left of most limits (poll, nanosleep, futex), but a call that says
//! EINTR counts its own from its begin, and is made anew with all of it: the argument is the
//! program's. So a process of ours stays behind, for as long as such a wait has time left, and has
//! the call return what it returns when that is over.
//!
//! Promise: no wait ends too early. What is not known (when it began, that it is the same) makes it
//! longer.
//!
//! Relies on: /proc/PID/sched (`CONFIG_SCHED_DEBUG`), whose `se.exec_start` tells when a thread
//! last had a processor, and so when it began to wait, by a clock that each processor has for
//! itself: a look at our own on the same one tells what the monotonic clock says then. And on
//! [`InCall`], which takes the rights of root. A thread that was woken in vain, by the kernel or by
//! another tracer, has waited for longer than is known.

use super::super::code::Class;
use super::undisturb;
use rustix::net::sockopt::{socket_domain, socket_timeout, Timeout};
use rustix::net::AddressFamily;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_sys::in_call::{InCall, Signals};
use synclater_sys::limits::{limited, limited_socket_call, Limit, Limited};
use synclater_sys::ptrace::{Stop, Thread};
use synclater_sys::remote::{self, Memory};
use synclater_sys::{job, process};

/// So long at most a process stays behind, for so many waits.
const LONGEST: Duration = Duration::from_secs(600);
const MOST: usize = 256;
/// How often it looks whether they have ended by themselves.
const LOOK: Duration = Duration::from_millis(20);
/// How long it tries to end one that somebody else traces.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at it.
const NAP: Duration = Duration::from_micros(20);
/// What the monotonic clock and a processor's may differ by while the former is set right (slewed):
/// a part of a thousand.
const SLEW: i64 = 1000;
/// What stays behind.
const NAME: &std::ffi::CStr = c"synclater-wait";

/// Times are of the monotonic clock, in nanoseconds.
type Nanoseconds = i64;

/// Waits of threads of one process that are disturbed.
pub(super) struct Waits {
    pid: u32,
    class: Class,
    all: BTreeMap<u32, Wait>,
    /// By how much the monotonic clock is ahead of a processor's.
    ahead: BTreeMap<usize, Option<Nanoseconds>>,
    signals: Option<Option<Signals>>,
}

/// A thread in a call that is to end.
struct Wait {
    call: u64,
    /// Where the thread goes on behind the call.
    behind: u64,
    until: Nanoseconds,
    result: i64,
    watch: InCall,
    ran_for: u64,
}

/// A call as /proc/PID/syscall shows it, of a thread that sleeps in it.
#[derive(PartialEq, Eq)]
struct Call {
    number: u64,
    arguments: [u64; 6],
    sp: u64,
    behind: u64,
}

impl Call {
    fn of(task: &str) -> Option<Call> {
        let text = process::text(format!("/proc/{task}/syscall")).ok()?;
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut next = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = next()?;
        }
        let (sp, behind) = (next()?, next()?);
        Some(Call {
            number,
            arguments,
            sp,
            behind,
        })
    }
}

impl Waits {
    /// Of a process; nobody waits as far as is known.
    pub(super) fn new(pid: u32, class: Class) -> Waits {
        Waits {
            pid,
            class,
            all: BTreeMap::new(),
            ahead: BTreeMap::new(),
            signals: None,
        }
    }

    /// Notes until when a thread waits that is about to be disturbed, where its call has a limit.
    pub(super) fn note(&mut self, tid: u32) {
        if self.all.get(&tid).is_some_and(|w| !w.watch.has_left()) {
            return;
        }
        self.all.remove(&tid);
        if self.all.len() < MOST {
            let wait = self.look(tid);
            self.all.extend(wait.map(|wait| (tid, wait)));
        }
    }

    /// The wait of a thread, where it has a limit whose end is known.
    fn look(&mut self, tid: u32) -> Option<Wait> {
        let task = format!("{}/task/{tid}", self.pid);
        let call = Call::of(&task)?;
        let is_64 = self.class == Class::Long;
        let limited = limited(call.number, &call.arguments, is_64)?;
        let memory = Memory::open(tid).ok()?;
        let entry: [u8; 2] = if is_64 { [0x0f, 0x05] } else { [0xcd, 0x80] };
        if memory.bytes(call.behind - 2, 2).ok()? != entry {
            // A call of another table.
            return None;
        }
        let (limit, result) = self.limit(tid, limited, &memory)?;
        let signals = *self.signals.get_or_insert_with(|| Signals::find().ok());
        let watch = InCall::watch(tid, call.behind, signals?).ok()?;
        // Asleep in its call, when it was that, and in the same call still: that was no sleep in
        // front of the call.
        let is_asleep = || Call::of(&task).as_ref() == Some(&call);
        let slept = is_asleep().then(|| asleep_since(&task))??;
        if !is_asleep() || watch.has_left() || faults(&task) {
            return None;
        }
        let ahead = self.ahead.entry(slept.on);
        let began = slept.since + (*ahead.or_insert_with(|| ahead_of(slept.on)))?;
        let now = now();
        let ago = now - began;
        let until = began.checked_add(limit)?.checked_add(ago / SLEW)?;
        let left = u64::try_from(until - now).ok()?;
        let is_near = ago >= 0 && left <= LONGEST.as_nanos() as u64;
        is_near.then(|| Wait {
            call: call.number,
            behind: call.behind,
            until,
            result,
            ran_for: watch.ran_for(),
            watch,
        })
    }

    /// How long a call may wait, and what it returns then.
    fn limit(&self, tid: u32, call: Limited, memory: &Memory) -> Option<(Nanoseconds, i64)> {
        let socket = |number: i32| remote::descriptor(self.pid, tid, number).ok();
        let time = match call.limit {
            Limit::Milliseconds(all) => Duration::from_millis(all.into()),
            Limit::At(at, word) => time_at(memory, at, word)?,
            Limit::OfRing(at) => {
                let argument: [u8; 24] = memory.bytes(at, 24).ok()?.try_into().ok()?;
                let time = u64::from_le_bytes(argument[16..].try_into().ok()?);
                // min_wait_usec (Linux 6.12) is another limit.
                let has_one = time != 0 && argument[12..16] == [0; 4];
                time_at(memory, Some(time).filter(|_| has_one)?, 8)?
            }
            Limit::Receiving(number) => of_socket(&socket(number)?, Timeout::Recv)?,
            Limit::Sending(number) => of_socket(&socket(number)?, Timeout::Send)?,
            Limit::Connecting(number) => {
                let socket = socket(number)?;
                let time = of_socket(&socket, Timeout::Send)?;
                let is_local = socket_domain(&socket).ok()? == AddressFamily::UNIX;
                let result = if is_local { EAGAIN } else { call.result };
                return Some((Nanoseconds::try_from(time.as_nanos()).ok()?, result));
            }
            Limit::Splicing(from, to) => of_socket(&socket(from)?, Timeout::Recv)
                .or_else(|| of_socket(&socket(to)?, Timeout::Send))?,
            Limit::OfSocketCall(number, at) => {
                let number_of = memory.bytes(at, 4).ok()?;
                let fd = i32::from_le_bytes(number_of.try_into().ok()?);
                return self.limit(tid, limited_socket_call(number, fd)?, memory);
            }
        };
        Some((Nanoseconds::try_from(time.as_nanos()).ok()?, call.result))
    }

    /// Leaves those that are still going on to a process that ends them when their time is over.
    pub(super) fn leave(&mut self) {
        let mut all = std::mem::take(&mut self.all);
        // Who was not disturbed after all ends by itself.
        all.retain(|_, w| !w.watch.has_left() && w.watch.ran_for() > w.ran_for);
        if all.is_empty() {
            return;
        }
        let fds: Vec<BorrowedFd<'_>> = all.values().flat_map(|w| w.watch.fds()).collect();
        // Without it they take longer.
        let _ = job::left_behind(NAME, &fds, || end_in_time(all.iter().collect()));
    }
}

/// EAGAIN, as a call returns it.
const EAGAIN: i64 = -11;

/// Ends each wait when its time is over.
fn end_in_time(mut all: BTreeMap<&u32, &Wait>) {
    process::be_punctual();
    while !all.is_empty() {
        let mut is_stuck = false;
        all.retain(|tid, wait| {
            let over = now() - wait.until;
            let is_hopeless = over > PATIENCE.as_nanos() as Nanoseconds;
            if is_stuck || wait.watch.has_left() || is_hopeless {
                return false;
            }
            let end = if over < 0 {
                End::Later
            } else {
                wait.end(**tid)
            };
            is_stuck = end == End::Never;
            end == End::Later
        });
        if is_stuck {
            // The kernel lets go of what is traced.
            return;
        }
        let now = now();
        let next = all.values().map(|w| w.until - now).min().unwrap_or(0);
        let next = Duration::from_nanos(next.max(1_000_000).unsigned_abs());
        sleep(next.min(LOOK));
    }
}

/// What became of an attempt to end a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// There is nothing more to do.
    Done,
    /// It is tried again.
    Later,
    /// Its thread does not stop.
    Never,
}

impl Wait {
    /// Ends it where it still goes on.
    fn end(&self, tid: u32) -> End {
        let ran_for = self.watch.ran_for();
        let mut thread = match Thread::seize(tid) {
            Ok(thread) => thread,
            // Somebody else traces it.
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return End::Later,
            Err(_) => return End::Done,
        };
        thread.interrupt();
        let begun = Instant::now();
        while thread.look().is_none() {
            // One that is frozen stops when it is thawed.
            if begun.elapsed() > LONGEST {
                return End::Never;
            }
            sleep(NAP.max(begun.elapsed() / 8));
        }
        let mut end = End::Done;
        // One whose process was stopped (SIGSTOP) says EINTR, as without us.
        if let (Some(Stop::Interrupted | Stop::Signal(_)), Ok(r)) =
            (thread.stop(), thread.registers())
        {
            let is_it = !self.watch.has_left() && self.watch.ran_for() > ran_for;
            if is_it && r.ip() != self.behind {
                // About to begin it anew.
                end = End::Later;
            }
            match r.ended(self.call, self.behind, self.result) {
                Some(ended) if is_it => drop(thread.send(&ended)),
                _ => drop(undisturb(&thread, false)),
            }
        }
        thread.release();
        end
    }
}

fn now() -> Nanoseconds {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Since when a task sleeps, by the clock of the processor that it had.
struct Slept {
    since: Nanoseconds,
    on: usize,
}

fn asleep_since(task: &str) -> Option<Slept> {
    // Milliseconds, with six digits behind the point.
    let start = |text: &str| {
        let line = text.lines().find(|l| l.starts_with("se.exec_start "))?;
        let (whole, rest) = line.split_once(':')?.1.trim().split_once('.')?;
        let part: Nanoseconds = rest.get(..6)?.parse().ok()?;
        Some(whole.parse::<Nanoseconds>().ok()? * 1_000_000 + part)
    };
    let since = start(&process::text(format!("/proc/{task}/sched")).ok()?)?;
    // Field 39 of proc(5), 36 behind the state.
    let on = process::stat(task)?.split(' ').nth(36)?.parse().ok()?;
    Some(Slept { since, on })
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
    sleep(Duration::from_micros(1));
    let slept = asleep_since("self");
    let now = now();
    let _ = sched_setaffinity(None, &whole);
    slept.filter(|s| s.on == processor).map(|s| now - s.since)
}

/// Whether a thread waits for memory that its call needs (userfaultfd, a file on FUSE), and not for
/// what it asks for; true where that is not known.
fn faults(task: &str) -> bool {
    let stack = process::text(format!("/proc/{task}/stack"));
    stack.map_or(true, |s| s.is_empty() || s.contains("exc_page_fault"))
}

/// A socket's limit; `None` where it has none, or is none.
fn of_socket(socket: &OwnedFd, of: Timeout) -> Option<Duration> {
    let domain = socket_domain(socket).ok()?;
    let is_known = [
        AddressFamily::UNIX,
        AddressFamily::INET,
        AddressFamily::INET6,
    ];
    let time = socket_timeout(socket, of).ok()?;
    time.filter(|_| is_known.contains(&domain))
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
