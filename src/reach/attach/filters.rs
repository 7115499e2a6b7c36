//! The seccomp filters of a process's threads: read while they stand still, and again before it is
//! changed.
//!
//! Promise: a process is attached only if `sandbox` finds that each filter of each of its threads
//! lets all pass that is made for us in it, and no thread is putting one on.

use super::class::Class;
use super::refusal::Refusal;
use super::sandbox::judge;
use super::tracer::{threads_of, Failure, Tracer};
use crate::reach::status::filters_of;
use std::collections::{BTreeMap, HashSet};
use std::io;
use synclater_sys::ptrace::{Instruction, Thread};

/// The filters of a process's threads, as far as they were read.
pub(super) struct Filters {
    class: Class,
    /// Those that let all pass that is needed.
    good: HashSet<Vec<Instruction>>,
    /// How many each thread had.
    counts: BTreeMap<u32, u64>,
}

impl Filters {
    /// Of a program of this class; none were read.
    pub(super) fn new(class: Class) -> Filters {
        Filters {
            class,
            good: HashSet::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Has each thread stand still once and reads its filters.
    ///
    /// # Errors
    /// What is not let pass; `Busy` where a thread could not be looked at.
    pub(super) fn check(&mut self, tracer: &mut Tracer) -> Result<(), Failure> {
        let pid = tracer.pid();
        tracer.each_once(|thread| self.look_at(pid, thread))?;
        tracer.expect_filters(self.counts.clone());
        Ok(())
    }

    /// Reads the filters of those threads that stand still.
    ///
    /// # Errors
    /// What is not let pass.
    pub(super) fn look_at_all(&mut self, tracer: &Tracer) -> Result<(), Failure> {
        let mut all = tracer.standing();
        all.try_for_each(|thread| self.look_at(tracer.pid(), thread))
    }

    /// Whether what was read still holds, while the whole process stands still.
    ///
    /// # Errors
    /// What is not let pass; `Busy` where a thread has got a filter meanwhile.
    pub(super) fn recheck(&mut self, tracer: &Tracer) -> Result<(), Failure> {
        let pid = tracer.pid();
        if self.counts.is_empty() {
            return has_none(tracer);
        }
        let standing: BTreeMap<u32, &Thread> = tracer.standing().map(|t| (t.tid(), t)).collect();
        for tid in threads_of(pid) {
            let count = filters_of(pid, tid);
            if count.is_none() || count == self.counts.get(&tid).copied() {
                continue;
            }
            match standing.get(&tid) {
                Some(thread) => self.look_at(pid, thread)?,
                None => return Err(put_on()),
            }
        }
        Ok(())
    }

    fn look_at(&mut self, pid: u32, thread: &Thread) -> Result<(), Failure> {
        let filters = thread.filters().map_err(|e| unreadable(pid, &e))?;
        if filters_of(pid, thread.tid()) != Some(filters.len() as u64) {
            let e = io::Error::other("the kernel does not show them all");
            return Err(unreadable(pid, &e));
        }
        for filter in &filters {
            if !self.good.contains(filter) {
                judge(filter, self.class)?;
                self.good.insert(filter.clone());
            }
        }
        self.counts.insert(thread.tid(), filters.len() as u64);
        Ok(())
    }
}

/// Whether a thread that stands still is about to restrict its process: nobody would hear of what
/// the kernel answers.
///
/// # Errors
/// `Busy` where it is.
pub(super) fn restricts_nothing(thread: &Thread) -> Result<(), Failure> {
    match thread.registers() {
        Ok(registers) if registers.may_restrict() => Err(put_on()),
        _ => Ok(()),
    }
}

fn put_on() -> Failure {
    Failure::Busy("it is putting a seccomp filter on itself".into())
}

/// Whether no thread of a process that had no filter has one.
fn has_none(tracer: &Tracer) -> Result<(), Failure> {
    let pid = tracer.pid();
    if tracer.standing().any(|thread| has_one(pid, thread)) {
        return Err(put_on());
    }
    Ok(())
}

/// Whether a thread that stands still has a filter.
fn has_one(pid: u32, thread: &Thread) -> bool {
    let told = thread.has_filter();
    told.unwrap_or_else(|| filters_of(pid, thread.tid()).is_some_and(|n| n > 0))
}

fn unreadable(pid: u32, e: &io::Error) -> Failure {
    let why = format!(
        "it has a seccomp filter, which may kill it at a call that is not its own, and which \
         cannot be read ({e})"
    );
    let try_ = match e.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("sudo synclater attach --pid {pid}, outside of any container")
        }
        _ => "start it under synclater: synclater run -- COMMAND".to_owned(),
    };
    Failure::Refused(Refusal::new(why, try_))
}
