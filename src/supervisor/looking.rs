//! Who writes where: what a sync() that is put off is about, and whether a superblock may be let go
//! of where files may have lost their `O_SYNC`.
//!
//! A child looks; the loop, and with it heartbeat and bound, does not wait for it.

use super::Supervisor;
use crate::reach::selector;
use crate::session::escape::descendants;
use crate::session::look::{Look, Written};
use crate::session::usage::{self, About};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_shim::page;
use synclater_sys::job::Job;

/// How often it is looked who writes where, while sync() is put off.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often it is looked whether somebody still writes to what was unmounted and is held on.
const LOOK_AT_LEFT_EVERY: Duration = Duration::from_secs(3);

/// A process, and the mount that it wants to unmount.
pub(super) type Who = (u32, u64);

/// What is looked for, and what the last look has told.
#[derive(Default)]
pub(super) struct Looks {
    running: Option<Look>,
    /// Looks that were begun.
    begun: u64,
    /// What the last one saw, with its number, until those below are decided on.
    seen: Option<(u64, Written)>,
    /// Superblocks that are to be let go of, if nobody writes there.
    asked: BTreeMap<usize, Asked>,
    /// Those that somebody does write to, until they are settled.
    pub(super) stay: BTreeSet<usize>,
    /// The slots of those who are known to wait to unmount something; of each, who and what, and
    /// what has been settled since it waits, and stays.
    pub(super) asking: BTreeMap<usize, (Who, BTreeSet<usize>)>,
    /// When it is looked next what a sync() is about: one that was made since the last look began,
    /// and whatever else.
    soon: Option<Instant>,
    again: Option<Instant>,
    /// When it was looked last who writes to what is held on although it was unmounted.
    left: Option<Instant>,
}

struct Asked {
    /// The look that it is decided by: whatever was begun before may have seen too little.
    number: u64,
    /// Whether it could owe before.
    owed: bool,
}

impl Looks {
    /// The child that looks now.
    pub(super) fn job(&self) -> Option<&Job> {
        self.running.as_ref()?.job()
    }

    /// Whether superblock `index` waits for a look.
    pub(super) fn is_asked(&self, index: usize) -> bool {
        self.asked.contains_key(&index)
    }

    /// Nobody asks any more.
    pub(super) fn end(&mut self) {
        self.running.take().into_iter().for_each(Look::end);
    }
}

impl Supervisor {
    /// Where sync() is put off: which file systems it is known to be about. Whoever wrote there may
    /// have ended before an error comes.
    pub(super) fn look_who_writes(&mut self) {
        let mut slots = self.session.shared.all_slots();
        let was_made = slots.any(|s| s.want_sync.load(SeqCst) & page::SYNC_LATER != 0);
        let next = if was_made {
            self.umounts.looks.soon
        } else {
            self.umounts.looks.again
        };
        if self.is_about_sync() && next.is_none_or(|at| Instant::now() >= at) {
            self.begin_look();
        }
    }

    /// What was unmounted while a member had a file open there that had lost its `O_SYNC` is held,
    /// until that was closed.
    pub(super) fn look_at_what_was_left(&mut self) {
        let (now, looks) = (Instant::now(), &mut self.umounts.looks);
        let is_early = looks.left.is_some_and(|at| now < at + LOOK_AT_LEFT_EVERY)
            || looks.again.is_some_and(|at| now < at)
            || looks.running.is_some();
        if is_early || !self.session.shared.any_stripped() || usage::may_be_hidden() {
            return;
        }
        looks.left = Some(now);
        for index in self.filesystems.gone() {
            self.leaves(index);
        }
    }

    /// Whether a sync() is put off, or was: also where it is not any more, behind a mount say.
    fn is_about_sync(&self) -> bool {
        self.entering.sync_all || self.entering.sync_was_allowed
    }

    /// Superblock `index`, whose names have been removed, is let go of if nobody writes there by
    /// the next look, and otherwise stays; it could owe before if `owed`.
    pub(super) fn ask_who_writes_to(&mut self, index: usize, owed: bool) {
        let number = self.umounts.looks.begun + 1;
        self.umounts
            .looks
            .asked
            .insert(index, Asked { number, owed });
        self.begin_look();
    }

    fn begin_look(&mut self) {
        if self.umounts.looks.running.is_some() {
            return;
        }
        let us = std::process::id();
        let about = if self.umounts.looks.asked.is_empty() {
            About::Sync
        } else {
            About::Umount
        };
        if about == About::Sync {
            // First: of a sync() that is made from now on it may see too little.
            for slots in self.session.shared.all_slots() {
                slots.want_sync.fetch_and(!page::SYNC_LATER, SeqCst);
            }
        }
        let held = self.filesystems.own_numbers();
        let look = Look::begin(about, &held, || self.members_of(us));
        self.umounts.looks.begun += 1;
        self.umounts.looks.running = Some(look);
    }

    /// Takes what has been seen, if the look is over; `waits` for it until then.
    pub(super) fn hear_look(&mut self, waits: bool) {
        let Some(look) = &self.umounts.looks.running else {
            return;
        };
        let seen = if waits {
            Some(look.result())
        } else {
            look.finished()
        };
        let Some(seen) = seen else {
            return;
        };
        // However many they are, a tenth of the time at most, and half of it where each is about
        // another sync().
        let (now, took) = (Instant::now(), look.age());
        self.umounts.looks.soon = Some(now + took);
        self.umounts.looks.again = Some(now + LOOK_EVERY.max(took * 10));
        self.umounts.looks.running = None;
        if self.is_about_sync() {
            self.filesystems.are_used(seen.as_ref());
        }
        self.umounts.looks.seen = Some((self.umounts.looks.begun, seen));
    }

    /// Decides on the superblocks that have waited for the look that has ended.
    pub(super) fn decide_who_leaves(&mut self) {
        let Some((number, seen)) = self.umounts.looks.seen.take() else {
            return;
        };
        let asked = std::mem::take(&mut self.umounts.looks.asked).into_iter();
        let (later, decided) =
            asked.partition::<BTreeMap<_, _>, _>(|(_, asked)| asked.number > number);
        self.umounts.looks.asked = later;
        for (index, asked) in &decided {
            let moves = seen.is_none() && self.filesystems.moves(*index);
            let Some(fs) = self.filesystems.get_mut(*index) else {
                continue;
            };
            if !moves && seen.as_ref().is_none_or(|to| to.contains(&fs.dev)) {
                fs.leaving = false;
                self.umounts.looks.stay.insert(*index);
                if asked.owed {
                    self.filesystems.publish(*index, self.session.shared);
                }
            }
            self.settle(*index);
            if self.paying.schedule.is_settling(*index) {
                continue;
            }
            if self.umounts.looks.stay.remove(index) {
                self.stays(*index)
            } else {
                self.go_on_with_umounts()
            }
        }
        if !self.umounts.looks.asked.is_empty() {
            self.begin_look();
        }
    }

    /// The processes of the session that live, as far as they are known, those below `us` among
    /// them.
    fn members_of(&self, us: u32) -> BTreeSet<u32> {
        // What settles has a file of ours open for writing there.
        let below = descendants(us).into_iter();
        let below = below.filter(|pid| !selector::is_fork_of_ours(*pid));
        let mut members: BTreeSet<u32> = below.collect();
        members.extend(self.seen.census.processes(self.session.shared).keys());
        members.remove(&0);
        members
    }

    /// The processes of the session that live, as far as they are known.
    pub(super) fn members(&self) -> BTreeSet<u32> {
        self.members_of(std::process::id())
    }
}
