//! Waits with a time limit that a stop disturbs: they end when they would have ended.
//!
//! The kernel keeps what is left of most limits (poll, nanosleep, futex), but a call that says
//! EINTR counts its own from its begin, and is made anew with all of it: the argument is the
//! program's. So a process of ours stays behind, for as long as such a wait has time left, and has
//! the call return what it returns when that is over.
//!
//! Promise: no wait ends too early. What is not known (when it began, that it is the same, what
//! counts its limit) makes it longer.
//!
//! Relies on: /proc/PID/sched (`CONFIG_SCHED_DEBUG`), whose `se.exec_start` tells when a thread
//! last had a processor, and so when it began to wait, by a clock that each processor has for
//! itself: a look at our own on the same one tells what the monotonic clock says then. It says 0
//! where a thread was moved in its sleep (Linux 6.18). On /proc/PID/stack for what it sleeps in.
//! And on [`InCall`], which takes the rights of root. A thread that was woken in vain, by the
//! kernel or by another tracer, has waited for longer than is known.

use super::super::class::Class;
use super::state::state;
use super::undisturb;
use rustix::net::sockopt::{socket_domain, socket_timeout, socket_type, Timeout};
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use rustix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_sys::in_call::{InCall, Signals};
use synclater_sys::limits::{limited, limited_socket_call, Limit, Limited, EAGAIN};
use synclater_sys::ptrace::{Stop, Thread};
use synclater_sys::remote::{self, Memory};
use synclater_sys::{clock, job, process};

/// So long at most a process stays behind, for so many waits.
const LONGEST: Duration = Duration::from_secs(600);
const MOST: usize = 256;
/// How often it looks whether they have ended by themselves.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_FOR_EACH: Duration = Duration::from_millis(1);
/// How long it tries to end one that somebody else traces.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at a thread that is about to stop, and before one is tried again.
const NAP: Duration = Duration::from_micros(20);
const SOON: Duration = Duration::from_millis(1);
/// A message of so many bytes is never sent in pieces: half of the smallest SO_SNDBUF is more.
const ONE_PIECE: u64 = 2048;
/// What the monotonic clock and a processor's may differ by while the former is set right (slewed):
/// a part of a thousand.
const SLEW: i64 = 1000;
/// How much later than it was to a wait may end, for all the kernel says (select(2)).
const SLACK: Nanoseconds = 200_000_000;
/// What stays behind, as /proc/PID/comm has it.
pub const ENDS_WAITS: &std::ffi::CStr = c"synclater-wait";

/// Times are of the monotonic clock, in nanoseconds.
type Nanoseconds = i64;

/// Waits of threads of one process that are disturbed.
pub(super) struct Waits {
    pid: u32,
    class: Class,
    all: BTreeMap<u32, Wait>,
    /// The clocks of processors, as they were when they were looked at last.
    clocks: BTreeMap<usize, ProcessorClock>,
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
    stopping: Option<Stopping>,
}

/// A thread on its way to a stop.
struct Stopping {
    thread: Thread,
    /// How long it had run before.
    ran_for: u64,
    since: Instant,
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
        let mut numbers = words.map_while(hexadecimal);
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = numbers.next()?;
        }
        let (sp, behind) = (numbers.next()?, numbers.next()?);
        Some(Call {
            number,
            arguments,
            sp,
            behind,
        })
    }

    /// Whether a thread sleeps in it at this moment.
    fn is_of(&self, task: &str) -> bool {
        Call::of(task).as_ref() == Some(self)
    }
}

/// What a word says that is a number with 0x in front of it.
fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// The stack pointer of a thread that does not run, as far as the kernel tells.
pub(super) fn stack_pointer(pid: u32, tid: u32) -> Option<u64> {
    Call::of(&format!("{pid}/task/{tid}")).map(|call| call.sp)
}

impl Waits {
    /// Of a process; nobody waits as far as is known.
    pub(super) fn new(pid: u32, class: Class) -> Waits {
        Waits {
            pid,
            class,
            all: BTreeMap::new(),
            clocks: BTreeMap::new(),
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
        if memory.bytes(call.behind.checked_sub(2)?, 2).ok()? != entry {
            // A call of another table, or a thread of the kernel's (io_uring) that looks like whom
            // it works for, and goes on nowhere.
            return None;
        }
        if self.limit(tid, limited, &memory).is_none() || !clock::runs_evenly() {
            return None;
        }
        let signals = *self.signals.get_or_insert_with(|| Signals::find().ok());
        let watch = InCall::watch(tid, call.behind, signals?).ok()?;
        // From here on it is one call, whose limit that is. Asleep in it, when it was that, and in
        // the same call still: that was no sleep in front of the call.
        let connects = matches!(limited.limit, Limit::Connecting(_));
        let slept = call.is_of(&task).then(|| asleep_since(&task, connects))??;
        let (limit, result) = self.limit(tid, limited, &memory)?;
        if !call.is_of(&task) || watch.has_left() {
            return None;
        }
        let began = self.by_our_clock(&slept)?;
        let now = now();
        let ago = now - began;
        let until = began.checked_add(limit)?.checked_add(ago / SLEW)?;
        // One whose time is over is about to end, some time later where its limit is long (timer
        // slack).
        let is_near = ago >= 0 && ago - limit <= SLACK && until - now <= nanoseconds(LONGEST)?;
        is_near.then(|| Wait {
            call: call.number,
            behind: call.behind,
            until,
            result,
            ran_for: watch.ran_for(),
            watch,
            stopping: None,
        })
    }

    /// When it began to sleep, or later. A processor's clock falls behind (where a hypervisor takes
    /// its time away), so that one looked at before is none.
    fn by_our_clock(&mut self, slept: &Slept) -> Option<Nanoseconds> {
        let known = self.clocks.get(&slept.on);
        let known = known.and_then(|clock| clock.when(slept.since));
        known.or_else(|| {
            let clock = ProcessorClock::look(slept.on)?;
            let when = clock.when(slept.since);
            self.clocks.insert(slept.on, clock);
            when
        })
    }

    /// How long a call may wait, and what it returns then.
    fn limit(&self, tid: u32, call: Limited, memory: &Memory) -> Option<(Nanoseconds, i64)> {
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
            Limit::Receiving(number) => of_socket(&self.socket(tid, number)?, Timeout::Recv)?,
            Limit::Sending(number, bytes) => {
                let socket = self.socket(tid, number)?;
                // What goes in several pieces may wait as long for each.
                let waits_once = !is_local(&socket)
                    || bytes <= ONE_PIECE && socket_type(&socket) == Ok(SocketType::STREAM);
                waits_once.then(|| of_socket(&socket, Timeout::Send))??
            }
            Limit::Connecting(number) => {
                let socket = self.socket(tid, number)?;
                let time = of_socket(&socket, Timeout::Send)?;
                let result = if is_local(&socket) {
                    EAGAIN
                } else {
                    call.result
                };
                return Some((nanoseconds(time)?, result));
            }
            Limit::OfSocketCall(number, at) => {
                let words: [u8; 12] = memory.bytes(at, 12).ok()?.try_into().ok()?;
                let words = words.as_chunks().0;
                let words = std::array::from_fn(|k| u32::from_le_bytes(words[k]));
                return self.limit(tid, limited_socket_call(number, words)?, memory);
            }
        };
        Some((nanoseconds(time)?, call.result))
    }

    /// The socket that a thread has open under a number.
    fn socket(&self, tid: u32, number: i32) -> Option<OwnedFd> {
        // Anything else may have to be flushed when a copy is closed (FUSE).
        let link = format!("/proc/{}/task/{tid}/fd/{number}", self.pid);
        let name = std::fs::read_link(link).ok()?;
        let is_socket = name.to_string_lossy().starts_with("socket:");
        is_socket.then(|| remote::descriptor(self.pid, tid, number).ok())?
    }

    /// Leaves those that are still going on to a process that ends them when their time is over.
    pub(super) fn leave(&mut self) {
        let mut all = std::mem::take(&mut self.all);
        // Who was not disturbed after all ends by itself.
        all.retain(|_, w| !w.watch.has_left() && w.watch.ran_for() > w.ran_for);
        if all.is_empty() {
            return;
        }
        // Without it they take longer.
        let _ = job::left_behind(ENDS_WAITS, all, fds_of, end_in_time);
    }
}

/// What keeps the watches up.
fn fds_of(all: &BTreeMap<u32, Wait>) -> Vec<BorrowedFd<'_>> {
    all.values().flat_map(|w| w.watch.fds()).collect()
}

/// Ends each wait when its time is over.
fn end_in_time(mut all: BTreeMap<u32, Wait>) {
    process::be_punctual();
    let (begun, mut done) = (Instant::now(), Vec::new());
    // What is still traced then, the kernel lets go of.
    while !all.is_empty() && begun.elapsed() < LONGEST + PATIENCE {
        for (tid, mut wait) in std::mem::take(&mut all) {
            if wait.attend(tid) {
                // Another one may need its breakpoint.
                done.push(wait.watch.end());
            } else {
                all.insert(tid, wait);
            }
        }
        let now = now();
        let next = all.values().map(|w| w.until - now).min().unwrap_or(0);
        let mut stopping = all.values().filter_map(|w| w.stopping.as_ref());
        let is_stopping = stopping.any(|s| s.since.elapsed() < SOON * 5);
        let soonest = if is_stopping { NAP } else { SOON };
        let next = Duration::from_nanos(next.max(0).unsigned_abs()).max(soonest);
        sleep(next.min(LOOK.max(LOOK_FOR_EACH * u32::try_from(all.len()).unwrap_or(0))));
    }
}

impl Wait {
    /// Does what is due; whether there is nothing more to do: it has ended by itself, or is ended.
    fn attend(&mut self, tid: u32) -> bool {
        if let Some(stopping) = self.stopping.take() {
            return self.end(stopping);
        }
        let over = now() - self.until;
        if self.watch.has_left() || nanoseconds(PATIENCE).is_some_and(|most| over > most) {
            return true;
        }
        // In another state it cannot be stopped now, or somebody else traces it.
        if over < 0 || state(tid, tid) != 'S' {
            return false;
        }
        let ran_for = self.watch.ran_for();
        match Thread::seize(tid) {
            Ok(thread) => {
                thread.interrupt();
                let since = Instant::now();
                self.stopping = Some(Stopping {
                    thread,
                    ran_for,
                    since,
                });
                false
            }
            Err(e) => e.kind() != std::io::ErrorKind::PermissionDenied,
        }
    }

    /// Ends it where its thread stands still, and is where it was; whether there is nothing more to
    /// do. One that is frozen stops when it is thawed.
    fn end(&mut self, mut stopping: Stopping) -> bool {
        let Some(stop) = stopping.thread.look() else {
            self.stopping = Some(stopping);
            return false;
        };
        let Stopping {
            thread, ran_for, ..
        } = stopping;
        let mut is_done = true;
        // One whose process was stopped (SIGSTOP) says EINTR, as without us.
        if let (Stop::Interrupted | Stop::Signal(_), Ok(r)) = (stop, thread.registers()) {
            let is_it = !self.watch.has_left() && self.watch.ran_for() > ran_for;
            // A signal that is on its way ends it, unless it is ignored. About to begin it anew it
            // is tried again.
            let ends = is_it && stop == Stop::Interrupted;
            is_done = !is_it || ends && r.ip() == self.behind;
            match r.ended(self.call, self.behind, self.result) {
                Some(ended) if ends && closes(&thread) => drop(thread.send(&ended)),
                _ => drop(undisturb(&thread, false)),
            }
        }
        thread.release();
        is_done
    }
}

/// Has no signal that is blocked behind a call come in it any more (epoll_pwait); whether it could.
fn closes(thread: &Thread) -> bool {
    let mask = thread.mask();
    mask.and_then(|mask| thread.set_mask(mask)).is_ok()
}

fn nanoseconds(time: Duration) -> Option<Nanoseconds> {
    time.as_nanos().try_into().ok()
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

/// `None` where it does not sleep, or not in the wait that its limit is for.
fn asleep_since(task: &str, connects: bool) -> Option<Slept> {
    let since = last_ran(task)?;
    let stat = process::stat(task)?;
    let on = stat.processor()?;
    let is_it =
        stat.state() == 'S' && waits_for_its_limit(task, connects) && last_ran(task)? == since;
    is_it.then_some(Slept { since, on })
}

/// When a task last had a processor, by that one's clock; `None` where that is not known.
fn last_ran(task: &str) -> Option<Nanoseconds> {
    let text = process::text(format!("/proc/{task}/sched")).ok()?;
    let line = text.lines().find(|l| l.starts_with("se.exec_start "))?;
    // Milliseconds, with six digits behind the point.
    let (whole, rest) = line.split_once(':')?.1.trim().split_once('.')?;
    let part: Nanoseconds = rest.get(..6)?.parse().ok()?;
    let at = whole.parse::<Nanoseconds>().ok()? * 1_000_000 + part;
    (at != 0).then_some(at)
}

/// The clock of a processor, at one moment.
struct ProcessorClock {
    at: Nanoseconds,
    /// By how much the monotonic clock is ahead of it.
    behind: Nanoseconds,
}

impl ProcessorClock {
    /// Looks at it, on that processor.
    fn look(processor: usize) -> Option<ProcessorClock> {
        let whole = sched_getaffinity(None).ok()?;
        let mut one = CpuSet::new();
        if processor >= CpuSet::MAX_CPU {
            return None;
        }
        one.set(processor);
        sched_setaffinity(None, &one).ok()?;
        // So that it begins to run there now.
        sleep(Duration::from_micros(1));
        let at = last_ran("self");
        let now = now();
        let on = process::stat("self").and_then(|stat| stat.processor());
        let _ = sched_setaffinity(None, &whole);
        let at = at.filter(|_| on == Some(processor))?;
        Some(ProcessorClock {
            at,
            behind: now - at,
        })
    }

    /// When it was `at`, by the monotonic clock, or later; `None` where that was behind our look.
    fn when(&self, at: Nanoseconds) -> Option<Nanoseconds> {
        (at <= self.at).then(|| at + self.behind)
    }
}

/// Functions of the kernel that wait for what a call asks for, and whose limit is counted from no
/// later than the begin of that: of epoll, semtimedop, sigtimedwait, io_getevents, io_uring_enter;
/// of sockets that receive, accept, send, connect (Linux 5.10 to 6.18).
const WAITING: [&str; 17] = [
    "ep_poll",
    "do_epoll_wait",
    "do_semtimedop",
    "__do_semtimedop",
    "do_sigtimedwait",
    "read_events",
    "io_cqring_wait",
    "unix_stream_read_generic",
    "unix_stream_data_wait",
    "__skb_wait_for_more_packets",
    "sk_wait_data",
    "inet_csk_accept",
    "inet_csk_wait_for_connect",
    "sk_stream_wait_memory",
    "sock_alloc_send_pskb",
    "sock_wait_for_wmem",
    "unix_wait_for_peer",
];
/// The same of TCP's connect(2), and of a send that connects, which returns something else.
const CONNECTING: [&str; 2] = ["inet_wait_for_connect", "__inet_stream_connect"];

/// Whether a task sleeps in one of those, and not for memory that its call needs (userfaultfd, a
/// file on FUSE), for a supervisor that has to allow it (seccomp), or for what comes before.
fn waits_for_its_limit(task: &str, connects: bool) -> bool {
    let stack = process::text(format!("/proc/{task}/stack")).unwrap_or_default();
    // [<0>] wait_woken+0x4a/0x70; the compiler's parts of a function have a point in their names.
    let names = stack
        .lines()
        .filter_map(|line| line.split_once("] ")?.1.split(['+', '.']).next());
    let mut names = names.skip_while(|name| *name == "wait_woken");
    names
        .next()
        .is_some_and(|name| WAITING.contains(&name) || connects && CONNECTING.contains(&name))
}

fn is_local(socket: &OwnedFd) -> bool {
    socket_domain(socket) == Ok(AddressFamily::UNIX)
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
    let nanoseconds = u32::try_from(number(bytes.get(word..2 * word)?)?).ok()?;
    (nanoseconds < 1_000_000_000).then_some(())?;
    Some(Duration::new(number(bytes.get(..word)?)?, nanoseconds))
}

/// The number that a word is; `None` where it is less than 0.
fn number(word: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all[..word.len()].copy_from_slice(word);
    let shift = 64 - 8 * u32::try_from(word.len()).ok()?;
    let number = (i64::from_le_bytes(all) << shift) >> shift;
    u64::try_from(number).ok()
}
