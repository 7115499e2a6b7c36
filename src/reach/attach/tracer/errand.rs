//! Sending one thread of a process on an errand, and having it come back as if it had not been
//! away.

use super::super::class::Class;
use super::super::code::Stack;
use super::super::refusal::Refusal;
use super::super::sandbox;
use super::{as_it_may_go_on, gone, ip_of, is_stopped, state, Failure, Tracer, NAP};
use crate::reach::status;
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_shim::gate::{Errand, Head, Saved};
use synclater_sys::ptrace::{Stop, Thread};
use synclater_sys::registers::Registers;
use synclater_sys::remote::{self, Memory};
use synclater_sys::{process, socket, wait};

/// How long an errand may take: the others run.
const ERRAND: Duration = Duration::from_secs(2);
/// How long a thread may take to come back from one, where it is waited for.
const LEAVING: Duration = Duration::from_millis(500);

/// A thread on an errand, or on its way back: there it takes no signal.
pub(super) struct Sent {
    tid: u32,
    /// The code that it goes through.
    code: Range<u64>,
    /// What it was, and is again in the end.
    registers: Registers,
    /// What it began the errand with.
    first: Registers,
    /// Where the errand lies.
    at: u64,
    /// Where it goes on behind it.
    back: u64,
    /// The signals that it had blocked.
    mask: u64,
    /// Whether it was called back in front of its errand.
    is_called_back: Cell<bool>,
}

impl Sent {
    /// Whether it has not told anything yet.
    fn is_new(&self) -> bool {
        Memory::open(self.tid).is_ok_and(|memory| self.state(&memory) == Some(0))
    }

    /// Whether the thread could have no helper, or that one no socket.
    fn has_no_helper(&self, memory: &Memory) -> bool {
        self.state(memory).is_some_and(|state| state < 0)
    }

    fn state(&self, memory: &Memory) -> Option<i32> {
        let state = memory.bytes(self.at + Errand::STATE, 4).ok()?;
        Some(i32::from_le_bytes(state.try_into().ok()?))
    }

    /// Whether it has not blocked all signals yet, SIGSTOP aside, which nobody can.
    fn takes_signals(&self, thread: &Thread) -> bool {
        const ALL: u64 = !(1 << 8 | 1 << 18);
        self.mask & ALL != ALL && thread.mask().is_ok_and(|mask| mask == self.mask)
    }
}

/// Who does for a thread what needs descriptors.
struct Peer {
    socket: std::os::fd::OwnedFd,
    helper: u32,
}

/// Where a thread is on its errand.
#[derive(Default)]
pub(super) enum Errands {
    /// None is on one.
    #[default]
    None,
    /// It has not brought its answer yet.
    On(Sent),
    /// It has brought it.
    Leaving(Sent),
    /// Its helper is gone, without a trace: all that is left is to come back.
    Over(Sent),
    /// Its call has ended (EINTR): all that is left is to come back with that.
    Ended(Sent),
    /// Nothing is known but that one is to come back by itself.
    Lost,
}

impl Errands {
    /// The thread that has not brought its answer.
    pub(super) fn is_on(&self, tid: u32) -> bool {
        matches!(self, Errands::On(sent) if sent.tid == tid)
    }

    /// Whether the thread was sent, and is none on an errand after all.
    fn has_called_back(&self) -> bool {
        matches!(self, Errands::On(sent) if sent.is_called_back.get())
    }

    /// Whether the thread is on one, or comes back from it.
    pub(super) fn is_of(&self, tid: u32) -> bool {
        match self {
            Errands::None | Errands::Lost => false,
            Errands::On(sent)
            | Errands::Leaving(sent)
            | Errands::Over(sent)
            | Errands::Ended(sent) => sent.tid == tid,
        }
    }

    /// Whether the thread may still go through the errand's code. `ip` tells of a thread that
    /// stands still where it does.
    pub(super) fn is_out(&self, ip: impl Fn(u32) -> Option<u64>) -> bool {
        match self {
            Errands::None => false,
            // It may be in what the code calls.
            Errands::On(_) | Errands::Lost => true,
            Errands::Leaving(sent) | Errands::Over(sent) | Errands::Ended(sent) => {
                ip(sent.tid).is_none_or(|ip| sent.code.contains(&ip))
            }
        }
    }

    /// Readies a thread that stands still for a signal that it is about to take: that is to
    /// interrupt the call that the thread was taken out of, and not the errand, behind which the
    /// call would be made anew. Where a handler comes first the thread is called back: nobody knows
    /// when that returns, and by then the errand's code may be gone.
    pub(super) fn ready(&self, thread: &Thread) {
        let (Errands::On(sent) | Errands::Leaving(sent) | Errands::Over(sent)) = self else {
            return;
        };
        if thread.tid() != sent.tid || !sent.code.contains(&ip_of(thread)) {
            return;
        }
        let signal = match thread.stop() {
            Some(Stop::Signal(signal)) => Some(signal.unsigned_abs()),
            _ => None,
        };
        match (self, signal) {
            // In front of the call that blocks them: nothing has been done yet.
            (Errands::On(_), Some(signal)) if sent.takes_signals(thread) && sent.is_new() => {
                let is_called_back = status::handles(sent.tid, signal);
                let goes_to = if is_called_back {
                    &sent.registers
                } else {
                    &sent.first
                };
                sent.is_called_back
                    .set(thread.send(goes_to).is_ok() && is_called_back);
            }
            // Behind the call that lets them come again.
            (Errands::Leaving(_), _) if sent.takes_signals(thread) => {
                let _ = thread.send(&sent.registers);
            }
            (Errands::Over(_), _) if thread.set_mask(sent.mask).is_ok() => {
                let _ = thread.send(&sent.registers);
            }
            _ => {}
        }
    }
}

/// The code that begins an errand.
pub struct Boot<'a> {
    /// Where it lies.
    pub at: u64,
    /// What is to be written there first, once there is a thread to be sent.
    pub to_be_written: Option<&'a [u8]>,
    /// Where that of an earlier errand may lie: who is still on that is not sent.
    pub also: Option<u64>,
}

impl Boot<'_> {
    /// Whether `ip` is in the code, or where it was before.
    fn covers(&self, ip: u64, head: &Head) -> bool {
        let mut begins = [Some(self.at), self.also].into_iter().flatten();
        begins.any(|from| (from..from + u64::from(head.boot_len)).contains(&ip))
    }
}

impl Tracer {
    /// Sends a thread on an errand with descriptors of ours, and waits until it has done it.
    /// `has_room` tells of a stack whether the errand may lie there.
    ///
    /// # Errors
    /// `Busy` where no thread could be had; what the errand itself met.
    pub fn run(
        &mut self,
        memory: &Memory,
        boot: &Boot<'_>,
        head: &Head,
        errand: &Errand,
        fds: [std::os::fd::BorrowedFd<'_>; 3],
        has_room: impl Fn(&Stack) -> bool,
    ) -> Result<(), Failure> {
        let class = self.class;
        let (pid, keeps, filters) = (self.pid, self.keeps, self.filters.clone());
        let tid = self.catch_one(|thread| {
            let Ok(registers) = thread.registers() else {
                return false;
            };
            if !is_between(thread, &registers, class, memory)
                || boot.covers(registers.ip(), head)
                || !has_room(&Stack::of(&registers, memory))
            {
                return false;
            }
            // What puts a filter on itself at this moment is not sent: nobody has read that.
            let known = filters.get(&thread.tid()).copied().unwrap_or(0);
            keeps || status::filters_of(pid, thread.tid()) == Some(known)
        })?;
        self.is_stopped = matches!(self.stop_of(tid), Some(Stop::Group(_)));
        sandbox::check_dispatch(&self.threads[&tid])?;
        // Not before: what is there while no thread stands still may not be taken away.
        if let Some(code) = boot.to_be_written {
            let written = memory.write(boot.at, code);
            written.map_err(|e| not_sent(tid, &e))?;
        }
        let (sent, at) = send(&self.threads[&tid], memory, boot.at, head, errand)
            .map_err(|e| not_sent(tid, &e))?
            .ok_or_else(|| Failure::Busy("a thread has no stack".into()))?;
        self.errands = Errands::On(sent);
        self.threads.get_mut(&tid).map(Thread::go);
        let mut done = self.accompany(memory, at, tid, &fds, errand.name());
        if let Errands::On(sent) = std::mem::take(&mut self.errands) {
            let is_frozen = state(self.pid, tid) != 'R' && !sent.is_called_back.get();
            self.errands = match done {
                Ok(_) => Errands::Leaving(sent),
                Err(_) if sent.is_called_back.get() => Errands::None,
                // It has answered by itself, and comes back.
                Err(_) if sent.has_no_helper(memory) => Errands::Leaving(sent),
                Err(_) if self.stays(&sent) => Errands::None,
                // Without an answer it comes back when it likes.
                Err(_) => Errands::Lost,
            };
            if done.is_err() && is_frozen && matches!(self.errands, Errands::None) {
                done = Err(frozen(tid).into());
            }
        }
        let (result, peer) = done?;
        self.let_come_back(tid, &peer, memory, at);
        match i32::try_from(-result) {
            Ok(0) => Ok(()),
            _ if result == Errand::NO_CLOCK => Err(no_clock().into()),
            Ok(errno) => Err(not_mapped(&io::Error::from_raw_os_error(errno))),
            Err(_) => Err(Failure::Busy(format!("the errand answered {result}"))),
        }
    }

    /// Has a thread that was sent, and has not made a step yet, stay where it was; whether it does.
    fn stays(&mut self, sent: &Sent) -> bool {
        let Some(thread) = self.threads.get_mut(&sent.tid) else {
            return false;
        };
        thread.interrupt();
        let begun = Instant::now();
        while thread.look().is_none() && begun.elapsed() < LEAVING {
            sleep(NAP);
        }
        let is_new = thread.registers().is_ok_and(|r| r.ip() == sent.first.ip());
        is_new && thread.send(&sent.registers).is_ok()
    }

    /// Brings the thread on the errand at `at` what it asks for; returns what it answers.
    fn accompany(
        &mut self,
        memory: &Memory,
        at: u64,
        tid: u32,
        fds: &[std::os::fd::BorrowedFd<'_>],
        exe: &[u8],
    ) -> Result<(i64, Peer), Failure> {
        let peer = self.socket(memory, at, tid)?;
        socket::send_now(&peer.socket, b"s", fds).map_err(|e| lost(tid, &e))?;
        if !exe.is_empty() {
            socket::send_now(&peer.socket, exe, &[]).map_err(|e| lost(tid, &e))?;
        }
        let result = self.answer(&peer.socket, tid)?;
        Ok((result, peer))
    }

    /// Lets the thread on the errand at `at` go back to what it did before.
    fn let_come_back(&mut self, tid: u32, peer: &Peer, memory: &Memory, at: u64) {
        if let Errands::Leaving(sent) = std::mem::take(&mut self.errands) {
            // Where a handler ran before it began, it comes back with EINTR: that is all there is.
            let back = memory.bytes(at + Errand::BACK, 8);
            self.errands = if back.is_ok_and(|back| back == sent.back.to_le_bytes()) {
                Errands::Leaving(sent)
            } else {
                Errands::Ended(sent)
            };
        }
        let stands_still = self.is_stopped || self.keeps;
        if stands_still {
            // It is to stand still again before it comes back.
            self.threads[&tid].interrupt();
        }
        let _ = socket::send_now(&peer.socket, b"a", &[]);
        if !stands_still && self.has_left(peer) {
            self.errands = match std::mem::take(&mut self.errands) {
                Errands::Leaving(sent) => Errands::Over(sent),
                other => other,
            };
        }
    }

    /// Whether the helper has ended and was waited for: then the thread does nothing but come back.
    fn has_left(&mut self, peer: &Peer) -> bool {
        let begun = Instant::now();
        while process::is_alive(peer.helper) && begun.elapsed() < LEAVING {
            self.attend();
            sleep(NAP);
        }
        !process::is_alive(peer.helper)
    }

    fn stop_of(&mut self, tid: u32) -> Option<Stop> {
        self.threads.get_mut(&tid).and_then(Thread::look)
    }

    /// The other end of the socket that the helper of the thread on the errand at `at` makes.
    fn socket(&mut self, memory: &Memory, at: u64, tid: u32) -> Result<Peer, Failure> {
        let begun = Instant::now();
        loop {
            // The lower half says it all, and is written at once.
            let state = memory.bytes(at + Errand::STATE, 4);
            let state = state.map_err(|e| lost(tid, &e))?;
            match i32::from_le_bytes(state.try_into().unwrap_or_default()) {
                0 => {}
                1 => break,
                // The thread has ended its errand, and has something else there by now.
                e if !(-4095..0).contains(&e) => {
                    return Err(Failure::Busy(format!(
                        "thread {tid} went on without a helper"
                    )));
                }
                e => return Err(no_helper(&io::Error::from_raw_os_error(-e)).into()),
            }
            self.attend();
            if self.stop_of(tid) == Some(Stop::Gone) {
                return Err(gone());
            }
            if self.errands.has_called_back() {
                let why = format!("thread {tid} has a signal to take first");
                return Err(Failure::Busy(why));
            }
            if begun.elapsed() > ERRAND {
                return Err(Failure::Busy(format!("thread {tid} does not run")));
            }
            sleep(NAP);
        }
        let told = memory.bytes(at + Errand::HELPER, 8);
        let told = told.map_err(|e| lost(tid, &e))?;
        let helper = helper_of(self.pid, tid, number_in(&told, 0))
            .ok_or_else(|| Failure::Busy(format!("the helper of thread {tid} is not seen")))?;
        let socket = remote::descriptor(helper, helper, number_in(&told, 4))
            .map_err(|e| Failure::Busy(format!("its socket could not be taken: {e}")))?;
        Ok(Peer { socket, helper })
    }

    fn answer(&mut self, peer: &std::os::fd::OwnedFd, tid: u32) -> Result<i64, Failure> {
        use std::os::fd::AsFd;
        let begun = Instant::now();
        loop {
            if wait::any(
                &[(peer.as_fd(), wait::For::Input)],
                Duration::from_millis(1),
            ) == [true]
            {
                let mut answer = [0; 8];
                return match socket::receive(peer, &mut answer) {
                    Ok((8, _)) => Ok(i64::from_le_bytes(answer)),
                    _ => Err(Failure::Busy(format!("thread {tid} gave up"))),
                };
            }
            self.attend();
            if self.stop_of(tid) == Some(Stop::Gone) {
                return Err(gone());
            }
            if begun.elapsed() > ERRAND {
                return Err(Failure::Busy(format!("thread {tid} does not answer")));
            }
        }
    }
}

/// The number that stands at `at`.
fn number_in(bytes: &[u8], at: usize) -> i32 {
    bytes[at..at + 4].try_into().map_or(-1, i32::from_le_bytes)
}

fn not_sent(tid: u32, e: &io::Error) -> Failure {
    Failure::Busy(format!("thread {tid} could not be sent: {e}"))
}

fn lost(tid: u32, e: &io::Error) -> Failure {
    Failure::Busy(format!("thread {tid} was lost: {e}"))
}

/// The child of a thread that is `own` for itself. The kernel's list of children may miss one while
/// another one ends, and need not be there (CONFIG_PROC_CHILDREN).
fn helper_of(pid: u32, tid: u32, own: i32) -> Option<u32> {
    let list = process::text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let mut listed = list
        .split_whitespace()
        .filter_map(|child| child.parse().ok());
    listed
        .find(|child| is_helper(*child, pid, own))
        .or_else(|| process::all().find(|child| is_helper(*child, pid, own)))
}

/// Whether a process is the child of `pid` that is `own` for itself.
fn is_helper(child: u32, pid: u32, own: i32) -> bool {
    process::parent_of(child) == Some(pid)
        && status::own_number_of(child).map(u32::cast_signed) == Some(own)
}

/// What is said of a process that can have no helper.
fn no_helper(e: &io::Error) -> Refusal {
    let why = format!("it can have no helper for a moment: {e}");
    let try_ = match Errno::from_io_error(e) {
        Some(Errno::AGAIN) => {
            "raise its RLIMIT_NPROC, or pids.max of its control group; a SCHED_DEADLINE thread \
             takes chrt --reset-on-fork"
        }
        Some(Errno::MFILE) => "raise its RLIMIT_NOFILE (prlimit), then try again",
        _ => "start it under synclater: synclater run -- COMMAND",
    };
    Refusal::new(why, try_)
}

/// What is said of a process that the library could not be brought into.
fn not_mapped(e: &io::Error) -> Failure {
    let limits = match Errno::from_io_error(e) {
        Some(Errno::NOMEM | Errno::AGAIN) => {
            " (vm.max_map_count, RLIMIT_AS, RLIMIT_DATA or RLIMIT_MEMLOCK is reached)"
        }
        _ => "",
    };
    Failure::Busy(format!("the library could not be mapped: {e}{limits}"))
}

/// What is said of a thread that is killed where it reads the processor's counter, by which a lease
/// is known to be over.
fn no_clock() -> Refusal {
    let why =
        "it may not read the time stamp counter (PR_SET_TSC of prctl(2)), as the library does";
    Refusal::new(why, "it stays as it is: every request of its own is real")
}

/// A thread that could run and does not.
fn frozen(tid: u32) -> Refusal {
    let why = format!("thread {tid} does not run: its control group may be frozen");
    Refusal::new(
        why,
        "thaw it (cgroup.freeze, docker unpause), then try again",
    )
}

/// Puts the errand onto the stack of a thread that stands still, and has it begin that when it goes
/// on. Returns where the errand lies, too; `None` where there is no stack.
fn send(
    thread: &Thread,
    memory: &Memory,
    boot: u64,
    head: &Head,
    errand: &Errand,
) -> io::Result<Option<(Sent, u64)>> {
    let registers = thread.registers()?;
    let registers = as_it_may_go_on(thread, &registers, false).unwrap_or(registers);
    let registers = if is_stopped(thread) {
        registers.answered()
    } else {
        registers
    };
    const RED_ZONE: u64 = 128;
    let Some(at) = (registers.sp()).checked_sub(RED_ZONE + Errand::SIZE as u64) else {
        return Ok(None);
    };
    let (general, flags, back) = registers.to_come_back();
    let saved = Saved {
        general,
        flags,
        back,
    };
    memory.write(at, &errand.bytes(head, &saved))?;
    let first = registers.sent_to(boot, at, (at - 64) & !15);
    let mask = thread.mask()?;
    thread.send(&first)?;
    let sent = Sent {
        tid: thread.tid(),
        code: boot..boot + u64::from(head.boot_len),
        registers: registers.undisturbed().unwrap_or(registers),
        first,
        at,
        back,
        mask,
        is_called_back: Cell::new(false),
    };
    Ok(Some((sent, at)))
}

/// Whether a thread stands in code of this class, and in no restartable sequence.
fn is_between(thread: &Thread, registers: &Registers, class: Class, memory: &Memory) -> bool {
    let in_section = registers.is_in_program() && is_in_sequence(thread, memory);
    let is_its = registers.is_64() == (class == Class::Long);
    is_its && !in_section
}

/// Whether a thread is inside of a restartable sequence: sent away it would not be started again.
fn is_in_sequence(thread: &Thread, memory: &Memory) -> bool {
    const RSEQ_CS: u64 = 8;
    let area = thread.rseq_area();
    if area == 0 {
        return false;
    }
    let current = memory.bytes(area + RSEQ_CS, 8);
    current.is_ok_and(|bytes| bytes != [0; 8])
}
