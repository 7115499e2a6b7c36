//! What the victims counted, read as hostile input: sums saturate, nothing is an index.

use super::shared::Shared;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
pub use synclater_shim::counts::Counts;
use synclater_shim::page::Slot;
use synclater_sys::{mount, process};

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
}

/// All processes of a session that ever made a request.
#[derive(Default)]
pub struct Census {
    past: BTreeMap<u32, Process>,
    exes: BTreeMap<u32, String>,
    /// Our numbers for processes of other pid namespaces, by namespace and their number there.
    elsewhere: BTreeMap<(u64, u32), u32>,
    own_ns: u64,
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
        let own_ns = mount::namespace_number(Path::new("/proc/self/ns/pid"));
        Census {
            own_ns,
            ..Census::default()
        }
    }

    /// The process behind a slot as we number it; `None` where it cannot be told.
    #[must_use]
    pub fn pid_of(&self, slot: &Slot) -> Option<u32> {
        let (pid, ns) = (slot.pid.load(SeqCst), slot.pid_ns.load(SeqCst));
        if pid == 0 || pid > i32::MAX as u32 {
            return None;
        }
        if ns == self.own_ns || ns == 0 {
            return Some(pid);
        }
        self.elsewhere
            .get(&(ns, pid))
            .copied()
            .or_else(|| pid_in_namespace(pid, ns))
    }

    /// Notes our numbers for processes of other pid namespaces, while they are there to be asked.
    pub fn meet(&mut self, shared: &Shared) {
        for slot in shared.all_slots().flat_map(|s| &s.slot) {
            let (pid, ns) = (slot.pid.load(SeqCst), slot.pid_ns.load(SeqCst));
            if pid == 0 || ns == 0 || ns == self.own_ns || self.elsewhere.contains_key(&(ns, pid)) {
                continue;
            }
            if let Some(ours) = pid_in_namespace(pid, ns) {
                self.elsewhere.insert((ns, pid), ours);
            }
        }
    }

    /// Notes what new processes execute, and frees the slots of those that are gone.
    pub fn sweep(&mut self, shared: &Shared) {
        for slot in shared.all_slots().flat_map(|s| &s.slot[1..]) {
            if slot.pid.load(SeqCst) == 0 {
                continue;
            }
            let own = slot.pid_ns.load(SeqCst) == self.own_ns;
            match self.pid_of(slot) {
                Some(pid) if process::is_alive(pid) => {
                    if let Ok(exe) = std::fs::read_link(format!("/proc/{pid}/exe")) {
                        self.exes.insert(pid, exe.to_string_lossy().into_owned());
                    }
                }
                Some(_) if own => self.fold(slot),
                _ => {}
            }
        }
    }

    fn fold(&mut self, slot: &Slot) {
        let pid = slot.pid.load(SeqCst);
        let past = self.past.entry(pid).or_default();
        past.counts.add(&Counts::read(slot));
        past.uid = slot.uid.load(SeqCst);
        if let Some(exe) = self.exes.remove(&pid) {
            past.exe = exe;
        }
        empty(slot);
    }

    /// Every process, by its number; 0 stands for those that found no slot of their own.
    #[must_use]
    pub fn processes(&self, shared: &Shared) -> BTreeMap<u32, Process> {
        let mut all = self.past.clone();
        let slots = shared.all_slots().flat_map(|s| s.slot.iter().enumerate());
        for (i, slot) in slots {
            if i > 0 && slot.pid.load(SeqCst) == 0 {
                continue;
            }
            let pid = self.pid_of(slot).unwrap_or(0);
            let counts = Counts::read(slot);
            if pid == 0 && counts == Counts::default() {
                continue;
            }
            let p = all.entry(pid).or_default();
            p.counts.add(&counts);
            p.uid = slot.uid.load(SeqCst);
            p.alive = pid != 0 && process::is_alive(pid);
            if let Some(exe) = self.exes.get(&pid) {
                p.exe.clone_from(exe);
            }
        }
        all
    }

    /// All counters of the session added up.
    #[must_use]
    pub fn total(&self, shared: &Shared) -> Counts {
        self.processes(shared)
            .values()
            .fold(Counts::default(), |mut sum, p| {
                sum.add(&p.counts);
                sum
            })
    }
}

/// Our numbers for processes, as of one moment: /proc is gone through at most once.
#[derive(Debug)]
pub struct Numbers {
    own_ns: Option<u64>,
    elsewhere: Option<HashMap<(u64, u32), u32>>,
}

impl Numbers {
    /// As of now.
    #[must_use]
    pub fn now() -> Numbers {
        Numbers {
            own_ns: None,
            elsewhere: None,
        }
    }

    /// Our pid namespace, looked for once; 0 where /proc does not tell.
    fn own_ns(&mut self) -> u64 {
        let look = || mount::namespace_number(Path::new("/proc/self/ns/pid"));
        *self.own_ns.get_or_insert_with(look)
    }

    /// Whether /proc tells who is who.
    pub fn are_known(&mut self) -> bool {
        self.own_ns() != 0
    }

    /// Our number for the process that calls itself `pid` in the pid namespace `ns` (0 or 1: not
    /// known).
    pub fn of(&mut self, pid: u32, ns: u64) -> Option<u32> {
        if pid == 0 || pid > i32::MAX as u32 {
            return None;
        }
        if ns <= 1 || ns == self.own_ns() {
            return Some(pid);
        }
        let elsewhere = self.elsewhere.get_or_insert_with(|| nested().collect());
        elsewhere.get(&(ns, pid)).copied()
    }
}

/// Processes of pid namespaces inside ours: namespace, the number there, and ours.
fn nested() -> impl Iterator<Item = ((u64, u32), u32)> {
    process::all().filter_map(|p| {
        let status = process::text(format!("/proc/{p}/status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
        let pid = line.split_whitespace().skip(1).last()?.parse().ok()?;
        let ns = mount::namespace_number(Path::new(&format!("/proc/{p}/ns/pid")));
        Some(((ns, pid), p))
    })
}

/// Our number for the process that has number `pid` in the pid namespace `ns`.
fn pid_in_namespace(pid: u32, ns: u64) -> Option<u32> {
    let found = nested().find(|(there, _)| *there == (ns, pid));
    found.map(|(_, ours)| ours)
}
