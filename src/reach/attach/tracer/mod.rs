//! Stopping a process for an instant, and sending one of its threads on an errand.
//!
//! Promise: a thread inside a system call that cannot be interrupted (state D) is not waited for:
//! it stops before its next instruction of its own. Nothing waits without a deadline. Whoever uses
//! this ends soon after: the kernel then lets go of what still runs.

mod errand;
mod failure;
mod state;
mod still;
mod waits;

use super::class::Class;
use super::sandbox;
use crate::reach::status::tracer_of;
pub use errand::Boot;
use errand::Errands;
use failure::{gone, refused};
pub use failure::{shares_memory, traced_by, traces_for_a_moment, why_refused, Failure};
pub use state::threads_of;
use state::{deep, seize, state, Deep};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};
pub use still::Still;
use synclater_proc::maps;
use synclater_sys::frames;
use synclater_sys::memory::device_of_memory;
use synclater_sys::ptrace::{Stop, Thread};
use synclater_sys::registers::Registers;
use synclater_sys::remote::Memory;
use waits::Waits;

/// How long all threads may take to stop: they are stopped meanwhile, one after the other. While
/// the machine itself stands still does not count: so often at least is looked.
const STOPPING: Duration = Duration::from_millis(200);
const LOOKS: u32 = 20;
/// How long one thread may take to stop for an errand: the others run.
const CATCHING: Duration = Duration::from_millis(500);
/// How long it is waited for one of them before the next one is asked.
const PATIENCE: Duration = Duration::from_millis(2);
/// Between two looks.
const NAP: Duration = Duration::from_micros(20);

/// Threads of one process under our control.
pub struct Tracer {
    pid: u32,
    class: Class,
    /// The thread that is on an errand, and whether its process is stopped (SIGSTOP) meanwhile.
    errands: Errands,
    waits: Waits,
    is_stopped: bool,
    still: Still,
    /// Whether it goes on tracing those that it lets go of.
    keeps: bool,
    /// How many seccomp filters each thread had that were read, and found good.
    filters: BTreeMap<u32, u64>,
    threads: BTreeMap<u32, Thread>,
    gone: Vec<u32>,
}

impl Tracer {
    /// Of a process; nothing is traced yet.
    #[must_use]
    pub fn new(pid: u32, class: Class, still: &Still) -> Tracer {
        Tracer {
            pid,
            class,
            errands: Errands::None,
            waits: Waits::new(pid, class),
            is_stopped: false,
            still: still.clone(),
            keeps: false,
            filters: BTreeMap::new(),
            threads: BTreeMap::new(),
            gone: Vec::new(),
        }
    }

    /// Of a process with one thread, which stands still and is traced by this process; it stays
    /// traced.
    #[must_use]
    pub fn with(thread: Thread, class: Class) -> Tracer {
        let mut tracer = Tracer::new(thread.tid(), class, &Still::default());
        tracer.keeps = true;
        tracer.threads.insert(thread.tid(), thread);
        tracer
    }

    /// Whether its process has not made a step of its own yet.
    #[must_use]
    pub fn is_at_start(&self) -> bool {
        let mut all = self.threads.values();
        all.any(|t| matches!(t.stop(), Some(Stop::Executed(_))))
    }

    /// One of the threads; the others go on by themselves.
    #[must_use]
    pub fn thread_of(mut self, tid: u32) -> Option<Thread> {
        self.threads.remove(&tid)
    }

    /// Traces all threads, which run on: nobody else can trace the process meanwhile. All, since a
    /// signal that is ignored (SIGCHLD) ends a wait of any of them with EINTR where the one is
    /// traced that it is about, and only who traces the other can undo that.
    ///
    /// # Errors
    /// `Busy` where somebody does, if only for a moment.
    pub fn hold(&mut self) -> Result<(), Failure> {
        // Before, since that may take a while, and whoever ends a wait has to trace its thread.
        self.note_all();
        match seize(self.pid) {
            Ok(thread) => {
                self.threads.insert(self.pid, thread);
                self.trace_all()
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                match (state(self.pid, self.pid), tracer_of(self.pid)) {
                    // The first thread has ended; others may go on.
                    ('Z', _) => self.trace_all(),
                    (_, 0) => Err(refused(self.pid, self.pid, &e)),
                    (_, tracer) => Err(Failure::Busy(format!("it is traced by {tracer}"))),
                }
            }
            Err(_) => Err(gone()),
        }
    }

    /// Traces a thread, and has it stop soon. Nothing where it is gone.
    fn take(&mut self, tid: u32) -> Result<(), Failure> {
        self.trace(tid)?;
        self.note(tid);
        self.threads.get(&tid).map(Thread::interrupt);
        Ok(())
    }

    /// Traces a thread, which runs on. Nothing where it is gone.
    fn trace(&mut self, tid: u32) -> Result<(), Failure> {
        match seize(tid) {
            Ok(thread) => {
                self.threads.insert(tid, thread);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                if matches!(state(self.pid, tid), 'Z' | 'X' | '?') {
                    return Ok(());
                }
                if self.keeps && tracer_of(self.pid) == std::process::id() {
                    self.threads.insert(tid, Thread::running(tid));
                    return Ok(());
                }
                Err(refused(self.pid, tid, &e))
            }
            Err(_) => Ok(()),
        }
    }

    /// Has every thread stand still once, for as long as `visit` looks at it; returns when all
    /// have, but for those that they have made meanwhile.
    ///
    /// # Errors
    /// `Busy` where one is in the kernel for too long; what `visit` returns.
    pub fn each_once(
        &mut self,
        mut visit: impl FnMut(&Thread) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut seen = BTreeSet::new();
        loop {
            let all = threads_of(self.pid);
            let left: Vec<u32> = all
                .iter()
                .copied()
                .filter(|tid| !seen.contains(tid))
                .collect();
            if left.is_empty() {
                return if all.is_empty() { Err(gone()) } else { Ok(()) };
            }
            for tid in left {
                if self.is_due(tid) {
                    self.ask(tid)?;
                }
            }
            self.forget_gone();
            for (tid, thread) in &mut self.threads {
                if !seen.contains(tid) && thread.look().is_some_and(|stop| stop != Stop::Gone) {
                    visit(thread)?;
                    seen.insert(*tid);
                }
            }
            self.attend();
            if begun.elapsed() > CATCHING {
                let left = threads_of(self.pid)
                    .iter()
                    .filter(|t| !seen.contains(t))
                    .count();
                return Err(Failure::Busy(format!("{left} of its threads do not stop")));
            }
            sleep(NAP);
        }
    }

    /// Notes how many filters each thread had, which were found good.
    pub fn expect_filters(&mut self, filters: BTreeMap<u32, u64>) {
        self.filters = filters;
    }

    /// Those of its threads that stand still.
    pub fn standing(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values().filter(|t| t.stop().is_some())
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn forget_gone(&mut self) {
        let gone = &mut self.gone;
        self.threads.retain(|tid, thread| {
            let is_gone = thread.look() == Some(Stop::Gone);
            gone.extend(is_gone.then_some(*tid));
            !is_gone
        });
    }

    /// Threads that have ended meanwhile, which nobody else is told of.
    #[must_use]
    pub fn gone(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.gone)
    }

    /// Traces those that are not traced yet; they run on.
    fn trace_all(&mut self) -> Result<(), Failure> {
        for tid in threads_of(self.pid) {
            if !self.threads.contains_key(&tid) {
                self.trace(tid)?;
            }
        }
        Ok(())
    }

    /// Stops every thread but those in state D.
    ///
    /// # Errors
    /// `Busy` where that took too long, or where a child runs in the same memory (vfork).
    pub fn stop_all(&mut self) -> Result<(), Failure> {
        // What can be done while everything runs.
        self.note_all();
        self.trace_all()?;
        let begun = Instant::now();
        self.still.begins();
        let running = self.threads.values().filter(|t| t.stop().is_none());
        running.for_each(Thread::interrupt);
        let mut naps = 0;
        loop {
            let mut fresh = threads_of(self.pid);
            fresh.retain(|tid| !self.threads.contains_key(tid));
            for &tid in &fresh {
                self.take(tid)?;
            }
            self.forget_gone();
            let running: Vec<u32> = self
                .threads
                .iter_mut()
                .filter_map(|(tid, t)| t.look().is_none().then_some(*tid))
                .collect();
            let fresh_ones_run = fresh.iter().any(|tid| self.threads.contains_key(tid));
            if running.is_empty() && !fresh_ones_run {
                if self.threads.is_empty() {
                    return Err(gone());
                }
                break;
            }
            if naps > 2 && !fresh_ones_run && self.may_stay(&running)? {
                break;
            }
            if begun.elapsed() > STOPPING && naps > LOOKS {
                return Err(Failure::Busy(format!(
                    "{} of its threads do not stop",
                    running.len()
                )));
            }
            naps += 1;
            sleep(NAP);
        }
        self.standing()
            .for_each(|thread| self.errands.ready(thread));
        Ok(())
    }

    /// Whether these threads, which were asked to stop, are all deep in the kernel and may stay
    /// there.
    ///
    /// # Errors
    /// `Busy` where they are, and one waits for its child of vfork(2).
    fn may_stay(&self, running: &[u32]) -> Result<bool, Failure> {
        let all = running
            .iter()
            .map(|tid| Some((*tid, deep(self.pid, *tid, self.class)?)));
        let Some(all) = all.collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        let mut clones = all.iter().filter(|(_, deep)| *deep == Deep::Clone);
        // Who is on an errand still waits for its helper's end.
        if !clones.clone().all(|(tid, _)| self.errands.is_of(*tid)) {
            let why = "a child of vfork runs in its memory";
            return Err(Failure::Busy(why.into()));
        }
        Ok(clones.next().is_none())
    }

    /// Lets go of every thread, as if nothing had been.
    pub fn release(&mut self) {
        if self.keeps {
            for thread in self.threads.values_mut().filter(|t| t.stop().is_some()) {
                prepare(thread, &self.errands);
                thread.resume();
            }
            self.still.ends();
            return;
        }
        let (mut asked, mut others, mut disturbed) = (Vec::new(), Vec::new(), Vec::new());
        for (_, mut thread) in std::mem::take(&mut self.threads) {
            if thread.look().is_none() && thread.is_asked() {
                asked.push(thread);
            } else if self.prepare(&thread) {
                disturbed.push(thread);
            } else {
                others.push(thread);
            }
        }
        // In one go, and those last whose wait would say EINTR: a signal that is ignored ends the
        // wait of one that was let go of, where another one that it is about is traced still.
        others
            .into_iter()
            .chain(disturbed)
            .for_each(Thread::release);
        self.still.ends();
        self.catch_up_with(asked);
        self.waits.leave();
    }

    fn prepare(&self, thread: &Thread) -> bool {
        prepare(thread, &self.errands)
    }

    /// Lets go of threads that are on their way to a stop, when they are there: without us whatever
    /// they wait in would have failed. Those in state D are not waited for, and do not fail.
    fn catch_up_with(&self, mut asked: Vec<Thread>) {
        let begun = Instant::now();
        while !asked.is_empty() && begun.elapsed() < CATCHING {
            let mut all_in_kernel = true;
            let left = asked.into_iter().filter_map(|mut thread| {
                if thread.look().is_some() {
                    self.prepare(&thread);
                    thread.release();
                    return None;
                }
                all_in_kernel &= matches!(state(self.pid, thread.tid()), 'D' | '?');
                Some(thread)
            });
            asked = left.collect();
            if all_in_kernel {
                return;
            }
            sleep(NAP);
        }
    }

    /// Lets threads go on that stopped for a reason of their own. Those of a stopped process stay
    /// stopped, but for the one that is on an errand.
    fn attend(&mut self) {
        for (tid, thread) in &mut self.threads {
            let on_errand = self.errands.is_on(*tid);
            match thread.look() {
                Some(Stop::Group(_)) if on_errand => {
                    self.is_stopped = true;
                    thread.go();
                }
                Some(Stop::Interrupted | Stop::Signal(_)) => {
                    // A signal that is ignored would not have disturbed it.
                    prepare(thread, &self.errands);
                    thread.go();
                }
                Some(Stop::Group(_)) => thread.resume(),
                _ => {}
            }
        }
    }

    /// A thread that stands still and can be sent away, as `fits` has it; where it takes a signal
    /// first, it does.
    fn catch_one(&mut self, fits: impl Fn(&Thread) -> bool) -> Result<u32, Failure> {
        let begun = Instant::now();
        // One that waits is the best: nobody waits for it.
        let mut candidates = threads_of(self.pid);
        // Its state may be another one a moment later: a sort that looks twice is none.
        candidates.sort_by_cached_key(|tid| state(self.pid, *tid) != 'S');
        let mut candidates = candidates.into_iter();
        let mut asked: Option<Instant> = None;
        // All of them are asked again less and less often: that disturbs what they wait in.
        let mut pause = PATIENCE;
        loop {
            self.forget_gone();
            for (tid, thread) in &mut self.threads {
                if stands_for_us(thread) && fits(thread) {
                    return Ok(*tid);
                }
            }
            // The one before is in the kernel for longer, or was none.
            let is_last = candidates.len() == 0;
            if asked.is_none_or(|at| at.elapsed() > if is_last { pause } else { PATIENCE }) {
                match candidates.next() {
                    Some(tid) => self.ask(tid)?,
                    None if self.threads.is_empty() => return Err(gone()),
                    None => {
                        candidates = threads_of(self.pid).into_iter();
                        pause *= 2;
                    }
                }
                asked = Some(Instant::now());
            }
            self.attend();
            if begun.elapsed() > CATCHING {
                let why = "none of its threads stops where it can be sent away from";
                return Err(Failure::Busy(why.into()));
            }
            sleep(NAP);
        }
    }

    /// Has a thread stop soon, and traces it if it is not traced yet.
    fn ask(&mut self, tid: u32) -> Result<(), Failure> {
        match self.threads.get(&tid) {
            Some(_) => {
                self.note(tid);
                self.threads[&tid].interrupt();
            }
            None => self.take(tid)?,
        }
        Ok(())
    }

    /// Notes until when a thread waits that is about to be interrupted. Those of a program that is
    /// followed are not: they are told of by signals, and nobody looks before.
    fn note(&mut self, tid: u32) {
        if !self.keeps && self.is_due(tid) {
            self.waits.note(tid);
        }
    }

    /// Whether a thread runs, and was not asked to stop.
    fn is_due(&self, tid: u32) -> bool {
        let thread = self.threads.get(&tid);
        thread.is_none_or(|t| t.stop().is_none() && !t.is_asked())
    }

    fn note_all(&mut self) {
        let threads = threads_of(self.pid);
        threads.into_iter().for_each(|tid| self.note(tid));
    }

    /// Whether every thread stands still: none is deep in the kernel.
    #[must_use]
    pub fn all_stand(&self) -> bool {
        self.threads.values().all(|t| t.stop().is_some())
    }

    /// Where its threads stand.
    #[must_use]
    pub fn stand_at(&self) -> Vec<u64> {
        self.threads.values().map(ip_of).collect()
    }

    /// Where the handlers of signals return to that its threads are in. Nothing is read but memory
    /// that is no file's, as stacks are: for that of a file it may be waited.
    #[must_use]
    pub fn return_to(&self, memory: &Memory) -> Vec<u64> {
        /// All threads stand still meanwhile.
        const DEEPEST: usize = 256 << 10;
        const OF_ALL: usize = 64 << 20;
        let mappings = super::code::mappings(self.pid).unwrap_or_default();
        let stacks = maps::memory(&mappings, device_of_memory().unwrap_or(0));
        let most = DEEPEST.min(OF_ALL / self.threads.len().max(1));
        let is_64 = self.class == Class::Long;
        let mut all = Vec::new();
        for (tid, thread) in &self.threads {
            let sp = match thread.registers() {
                Ok(registers) => Some(registers.sp()),
                Err(_) => waits::stack_pointer(self.pid, *tid),
            };
            let Some(sp) = sp else {
                continue;
            };
            all.extend(frames::returns(memory, is_64, sp, most, |at| {
                end_of(&stacks, at)
            }));
        }
        all
    }

    /// Whether a thread may still need the code of its errand.
    #[must_use]
    pub fn is_errand_out(&self) -> bool {
        self.errands.is_out(|tid| {
            let thread = self.threads.get(&tid).filter(|t| t.stop().is_some());
            thread.and_then(|t| Some(t.registers().ok()?.ip()))
        })
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.release();
    }
}

/// Where the range ends that `at` lies in.
fn end_of(ranges: &[Range<u64>], at: u64) -> Option<u64> {
    let it = ranges.partition_point(|range| range.end <= at);
    let range = ranges.get(it).filter(|range| range.contains(&at));
    range.map(|range| range.end)
}

/// Where a thread stands; 0 where that cannot be read.
fn ip_of(thread: &Thread) -> u64 {
    thread.registers().map_or(0, |r| r.ip())
}

/// Whether a thread stands still where no signal comes first.
fn stands_for_us(thread: &mut Thread) -> bool {
    let stop = thread.look();
    matches!(
        stop,
        Some(Stop::Interrupted | Stop::Group(_) | Stop::Executed(_))
    )
}

/// Has a thread that stands still go on later as if it had not been disturbed.
/// Returns whether its wait had ended because of us.
fn prepare(thread: &Thread, errands: &Errands) -> bool {
    errands.ready(thread);
    undisturb(thread, false)
}

/// Has a call that says EINTR because we interrupted it be made again; and one that the kernel
/// would restart by a call of its own, where the thread may not make that. Where nobody knows
/// whether it may, `by_kernel` tells what is done: one that is begun anew takes longer, each time.
/// Returns whether there was one.
pub fn undisturb(thread: &Thread, by_kernel: bool) -> bool {
    let Ok(registers) = thread.registers() else {
        return false;
    };
    let changed = match as_it_may_go_on(thread, &registers, by_kernel) {
        Some(anew) => Some(anew),
        None if is_stopped(thread) => None,
        None => registers.undisturbed(),
    };
    changed.is_some_and(|registers| thread.send(&registers).is_ok())
}

/// Whether its process is stopped (SIGSTOP): that alone has a call say EINTR (signal(7)).
fn is_stopped(thread: &Thread) -> bool {
    matches!(thread.stop(), Some(Stop::Group(_)))
}

/// The thread about to begin its call anew, where it may not restart it.
fn as_it_may_go_on(thread: &Thread, registers: &Registers, by_kernel: bool) -> Option<Registers> {
    if !registers.restarts() || sandbox::may_restart(thread, registers).unwrap_or(by_kernel) {
        return None;
    }
    Some(registers.begun_anew())
}
