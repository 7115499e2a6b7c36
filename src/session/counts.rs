//! What the victims counted, read as hostile input: sums saturate, nothing is an index.

use super::members::{Members, Met};
use super::shared::Shared;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering::SeqCst;
pub use synclater_shim::counts::Counts;
use synclater_shim::page::Slot;
use synclater_sys::patient::Patient;
use synclater_sys::process;

/// One process as `ps` shows it.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its counters.
    pub counts: Counts,
    /// What it executes, where that could be read.
    pub exe: String,
    /// Its effective user when it made its first request.
    pub uid: u32,
    /// Whether it is still there.
    pub alive: bool,
    /// Of `counts.real`, what other users than the session's own say of nobody in particular.
    pub unvouched: u64,
}

impl Process {
    /// Adds what a slot of `user` says of process `pid`. Of nobody in particular it says numbers
    /// only: flags excuse a process.
    fn add(&mut self, user: Option<u32>, slot: &Slot, pid: u32) {
        let mut counts = Counts::read(slot);
        if pid == 0 {
            counts.flags = 0;
            let of_others = if user.is_some() { counts.real } else { 0 };
            self.unvouched = self.unvouched.saturating_add(of_others);
        }
        self.counts.add(&counts);
        self.uid = user.unwrap_or_else(|| slot.uid.load(SeqCst));
    }
}

/// All processes of a session that ever made a request.
#[derive(Default)]
pub struct Census {
    past: BTreeMap<u32, Process>,
    /// What those counted who have ended and of whom nothing else is to be told.
    forgotten: Counts,
    exes: BTreeMap<u32, String>,
    patient: Patient,
    /// Who is behind the slots.
    pub members: Members,
}

fn empty(slot: &Slot) {
    for s in &slot.shard {
        [
            &s.requests,
            &s.real,
            &s.failed,
            &s.hints,
            &s.ticks,
            &s.hints_real,
            &s.timed,
            &s.elsewhere,
        ]
        .iter()
        .for_each(|n| n.store(0, SeqCst));
    }
    slot.kept.iter().for_each(|n| n.store(0, SeqCst));
    slot.flags.store(0, SeqCst);
    slot.ask_dev.store(0, SeqCst);
    slot.umount.store(0, SeqCst);
    slot.pid_ns.store(0, SeqCst);
    slot.pid.store(0, SeqCst);
}

impl Census {
    /// Nobody yet.
    #[must_use]
    pub fn new() -> Census {
        Census {
            members: Members::new(),
            ..Census::default()
        }
    }

    /// Notes what new processes execute, and frees the slots of those that are gone.
    pub fn sweep(&mut self, shared: &Shared) {
        self.members.meet(shared);
        let ended = self.members.ended();
        for (user, slots) in shared.rooms() {
            for slot in &slots.slot[1..] {
                self.sweep_one(user, slot, &ended);
            }
        }
        self.members.forget(&ended, shared);
    }

    fn sweep_one(&mut self, user: Option<u32>, slot: &Slot, ended: &HashSet<Met>) {
        let named = self.members.named(slot);
        match (self.members.pid_of(user, slot), user) {
            (Some(pid), Some(user)) if ended.contains(&(user, pid)) => {
                self.fold(Some(user), slot, pid);
            }
            (Some(pid), _) if process::is_alive(pid) => {
                if let Some(exe) = self.patient.exe(pid) {
                    self.exes.insert(pid, exe.to_string_lossy().into_owned());
                }
            }
            (Some(pid), user) if named.is_some() => self.fold(user, slot, pid),
            // It ended before anybody met it, or never was.
            (None, Some(user)) if named.is_some_and(|pid| !process::is_alive(pid)) => {
                self.fold(Some(user), slot, 0);
            }
            _ => {}
        }
    }

    fn fold(&mut self, user: Option<u32>, slot: &Slot, pid: u32) {
        let past = self.past.entry(pid).or_default();
        past.add(user, slot, pid);
        if let Some(exe) = self.exes.remove(&pid) {
            past.exe = exe;
        }
        empty(slot);
    }

    /// Every process, by its number; 0 stands for those that found no slot of their own.
    #[must_use]
    pub fn processes(&self, shared: &Shared) -> BTreeMap<u32, Process> {
        let mut all = self.past.clone();
        for (user, slots) in shared.rooms() {
            for (i, slot) in slots.slot.iter().enumerate() {
                if i > 0 && slot.pid.load(SeqCst) == 0 {
                    continue;
                }
                let pid = self.members.pid_of(user, slot).unwrap_or(0);
                if pid == 0 && Counts::read(slot) == Counts::default() {
                    continue;
                }
                let p = all.entry(pid).or_default();
                p.add(user, slot, pid);
                p.alive = pid != 0 && process::is_alive(pid);
                if let Some(exe) = self.exes.get(&pid) {
                    p.exe.clone_from(exe);
                }
            }
        }
        all
    }

    /// All counters of the session added up.
    #[must_use]
    pub fn total(&self, shared: &Shared) -> Counts {
        let mut sum = self.forgotten.clone();
        for p in self.processes(shared).values() {
            sum.add(&p.counts);
        }
        sum
    }

    /// Forgets who has ended where `is_told` of what it counted, but for the sum.
    pub fn forget_ended(&mut self, mut is_told: impl FnMut(u32, &Process) -> bool) {
        // Who is nobody in particular never ends.
        self.past.retain(|pid, p| {
            let forgets = *pid != 0 && is_told(*pid, p);
            if forgets {
                self.exes.remove(pid);
                self.forgotten.add(&p.counts);
            }
            !forgets
        });
    }
}
