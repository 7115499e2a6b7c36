//! Which process is behind a slot: by its member's word, and by what the kernel says of that.
//!
//! Promise: a slot of another user than the session's own speaks for a process only that was one of
//! that user's when it was met; a number that another process has by then is not it. The session's
//! own user is believed. However many slots name processes that are not there, /proc is gone
//! through once a look, and for other users' sake a tenth of the time at most.
//! Relies on: the four users of a process in /proc (a set-uid program is one of its starter's);
//! none of what is asked here waiting for a process.

use super::pids::Numbers;
use super::shared::Shared;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_shim::page::Slot;
use synclater_sys::{mount, process};

/// How long one that was not found is not looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Of so many is remembered that they were not found; more have to wait.
const VAIN_MAX: usize = 1 << 14;

/// How much longer than a walk through /proc the pause behind it is.
const SHARE: u32 = 10;

/// A process of another user: whose, and our number for it.
pub type Met = (u32, u32);

/// What a slot says of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Claim {
    /// Whose slot it is; `None` for the session's own user.
    user: Option<u32>,
    /// The pid namespace; 0 is ours.
    namespace: u64,
    pid: u32,
}

/// The processes behind the slots.
#[derive(Default)]
pub struct Members {
    own_ns: u64,
    /// Our numbers for processes of other pid namespaces, by namespace and their number there.
    elsewhere: HashMap<(u64, u32), u32>,
    /// Processes of other users, by what is theirs alone ([`process::identity`]).
    met: HashMap<Met, u64>,
    vain: HashSet<Claim>,
    vain_since: Option<Instant>,
    /// When /proc may be gone through again for another user.
    not_before: Option<Instant>,
}

impl Members {
    /// Nobody yet.
    #[must_use]
    pub fn new() -> Members {
        Members {
            own_ns: mount::namespace_number(Path::new("/proc/self/ns/pid")),
            ..Members::default()
        }
    }

    fn claim(&self, user: Option<u32>, slot: &Slot) -> Option<Claim> {
        let (pid, ns) = (slot.pid.load(SeqCst), slot.pid_ns.load(SeqCst));
        let namespace = if ns == self.own_ns { 0 } else { ns };
        let is_one = pid != 0 && i32::try_from(pid).is_ok();
        is_one.then_some(Claim {
            user,
            namespace,
            pid,
        })
    }

    fn number(&self, claim: &Claim) -> Option<u32> {
        match claim.namespace {
            0 => Some(claim.pid),
            ns => self.elsewhere.get(&(ns, claim.pid)).copied(),
        }
    }

    fn known(&self, claim: &Claim) -> Option<u32> {
        let pid = self.number(claim)?;
        let is_its = claim.user.is_none_or(|u| self.met.contains_key(&(u, pid)));
        is_its.then_some(pid)
    }

    /// The process behind a slot of `user` as we number it; `None` where it cannot be told, or is
    /// none of that user's.
    #[must_use]
    pub fn pid_of(&self, user: Option<u32>, slot: &Slot) -> Option<u32> {
        self.known(&self.claim(user, slot)?)
    }

    /// The number that a slot names in our own pid namespace.
    #[must_use]
    pub fn named(&self, slot: &Slot) -> Option<u32> {
        let claim = self.claim(None, slot)?;
        (claim.namespace == 0).then_some(claim.pid)
    }

    /// Notes who is behind each slot, while they are there to be asked.
    pub fn meet(&mut self, shared: &Shared) {
        if self.vain_since.is_none_or(|at| at.elapsed() > LOOK_AGAIN) {
            self.vain.clear();
            self.vain_since = Some(Instant::now());
        }
        let mut numbers = Numbers::in_namespace(self.own_ns);
        for (user, slots) in shared.rooms() {
            for slot in &slots.slot {
                let claim = self.claim(user, slot);
                let unknown = claim.filter(|c| self.known(c).is_none());
                if let Some(claim) = unknown.filter(|c| !self.vain.contains(c)) {
                    self.look_for(claim, &mut numbers);
                }
            }
        }
    }

    fn look_for(&mut self, claim: Claim, numbers: &mut Numbers) {
        if self.vain.len() >= VAIN_MAX || !self.may_look(&claim, numbers) {
            return;
        }
        let begun = Instant::now();
        if claim.namespace > 1 && self.number(&claim).is_none() {
            let found = numbers.of(claim.pid, claim.namespace);
            let there = (claim.namespace, claim.pid);
            self.elsewhere.extend(found.map(|pid| (there, pid)));
            let pause = Instant::now() + begun.elapsed() * SHARE;
            self.not_before = self.not_before.max(Some(pause));
        }
        if let (Some(user), Some(pid)) = (claim.user, self.number(&claim)) {
            self.introduce(user, pid);
        }
        if self.known(&claim).is_none() {
            self.vain.insert(claim);
        }
    }

    /// Whether to look for one that may lie in another pid namespace.
    fn may_look(&self, claim: &Claim, numbers: &Numbers) -> bool {
        let is_free = claim.namespace <= 1 || claim.user.is_none() || numbers.have_looked();
        is_free || self.not_before.is_none_or(|at| Instant::now() >= at)
    }

    /// Notes that process `pid` is one of `user`'s, if it is.
    pub fn introduce(&mut self, user: u32, pid: u32) {
        // In this order: one that has its number by then is another one.
        let identity = process::identity(pid);
        if let (Some(identity), true) = (identity, process::users_of(pid).contains(&user)) {
            self.met.insert((user, pid), identity);
        }
    }

    /// Those met that have ended.
    #[must_use]
    pub fn ended(&self) -> HashSet<Met> {
        let all = self.met.iter();
        let ended = all.filter(|((_, pid), it)| process::identity(*pid) != Some(**it));
        ended.map(|(met, _)| *met).collect()
    }

    /// Forgets `ended`, and of other pid namespaces whom no slot names any more.
    pub fn forget(&mut self, ended: &HashSet<Met>, shared: &Shared) {
        self.met.retain(|met, _| !ended.contains(met));
        let slots = shared.all_slots().flat_map(|s| &s.slot);
        let named: HashSet<(u64, u32)> = slots
            .filter_map(|s| self.claim(None, s))
            .map(|c| (c.namespace, c.pid))
            .collect();
        let gone: HashSet<u32> = ended.iter().map(|(_, pid)| *pid).collect();
        self.elsewhere
            .retain(|of, pid| named.contains(of) && !gone.contains(pid));
    }
}
