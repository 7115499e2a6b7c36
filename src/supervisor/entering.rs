//! The way into the ledger: what is asked for is held, handed to the keeper, written durably, and
//! only then may it owe.

use super::{Entering, Owed, Supervisor, ENTER_AGAIN};
use crate::session::alive::Proof;
use crate::session::keeper::{Keeper, News};
use crate::session::ledger::Ledger;
use crate::session::settle;
use crate::session::shared::Shared;
use crate::voice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use synclater_policy::dial::Until;
use synclater_policy::ledger::{Entry, LedgerFs};
use synclater_shim::page;
use synclater_sys::job::Job;
use synclater_sys::process;

impl Supervisor {
    /// Wants superblock `index` in the ledger.
    pub(super) fn enter(&mut self, index: usize) {
        if self.entering.ledger.is_none() && !self.must_settle() {
            // Nothing will be settled, so there is nothing to remember either; but another dial may
            // come. Where there is no room for that it is asked for again.
            let _ = self.watch_for_lost_writes();
            return self.may_owe(index);
        }
        let e = &self.entering;
        let known = e.written.contains(&index) || e.wanted.contains(&index);
        let writing = e
            .writing
            .as_ref()
            .is_some_and(|(_, list)| list.contains(&index));
        if known || writing || self.entering.ledger.is_none() {
            return;
        }
        if self.filesystems.stays(index) {
            self.entering.wanted.push(index);
        }
    }

    /// From now on requests for superblock `index` may be put off.
    fn may_owe(&mut self, index: usize) {
        if self.filesystems.stays(index) && self.paying.watch.watches {
            self.note_owed(index);
            self.filesystems.publish(index, self.session.shared);
        }
    }

    pub(super) fn enter_everything(&mut self) {
        self.entering.sync_all = true;
        if self.mounts_are_steady() {
            for index in self.filesystems.hold_all_disks(self.session.shared) {
                self.enter(index);
            }
        }
    }

    pub(super) fn write_ledger(&mut self) {
        let e = &self.entering;
        let is_there = !e.written.is_empty() || e.says_never;
        let is_old = (e.other_dial && (is_there || e.holds_back))
            || (e.sync_all && !e.says_sync && !e.written.is_empty())
            || e.names_too_many;
        let due = !e.is_over && (!e.wanted.is_empty() || is_old);
        let trouble = e.trouble.as_ref();
        let waits = trouble.is_some_and(|(_, again)| Instant::now() < *again);
        if e.writing.is_some() || !due || waits {
            self.allow_sync();
            return;
        }
        let Some(ledger) = self.entering.ledger.clone() else {
            return;
        };
        if !self.has_whole_keeper(&ledger) {
            return self.not_entered("its keeper cannot be had, or not told all", Vec::new());
        }
        self.entering.other_dial = false;
        self.entering.names_too_many = false;
        let mut fresh = std::mem::take(&mut self.entering.wanted);
        fresh.retain(|&i| self.filesystems.stays(i));
        let (fresh, held) = self.hand_all_to_keeper(fresh);
        let mut list = self.entering.written.clone();
        list.extend(&fresh);
        if !held {
            return self.not_entered("its keeper takes no file systems", fresh);
        }
        if fresh.is_empty() && !is_old {
            return self.allow_sync();
        }
        let entry = self.entry(&list);
        // From now on it may be there at any time, also if the job fails behind that.
        self.entering.says_never |= entry.is_never;
        self.entering.writes_never = entry.is_never;
        self.entering.says_sync &= entry.sync;
        self.entering.writes_sync = entry.sync;
        match self.start_writing(&ledger, &entry) {
            Ok(job) => self.entering.writing = Some((job, fresh)),
            Err(e) => self.not_entered(&e.to_string(), fresh),
        }
    }

    fn start_writing(&mut self, ledger: &Ledger, entry: &Entry) -> std::io::Result<Job> {
        let proof = match &mut self.entering.proof {
            Some(proof) => proof,
            none => none.insert(Proof::to_come()?),
        };
        ledger.write(entry, proof)
    }

    /// Gives the keeper the lock that proves that the session lives, once there is one.
    fn prove_to_keeper(&mut self) {
        let lock = self.entering.proof.as_mut().and_then(Proof::lock);
        if let (Some(lock), Some(keeper)) = (lock, &self.entering.keeper) {
            keeper.prove(lock);
        }
    }

    /// The ledger could not be written: that is told, and tried again in a while.
    fn not_entered(&mut self, why: &str, fresh: Vec<usize>) {
        let remedy = "free space, or name another folder in SYNCLATER_STATE_DIR";
        self.not_entered_until(remedy, why, fresh);
    }

    fn not_entered_until(&mut self, remedy: &str, why: &str, fresh: Vec<usize>) {
        let ledger = self.entering.ledger.as_ref();
        let path = ledger.map(|l| l.path(&self.session.plan.id));
        let entry = path.unwrap_or_default();
        let what = format!("cannot write the ledger entry {}", entry.display());
        self.nothing_is_late(what, remedy, why, fresh);
    }

    fn nothing_is_late(&mut self, what: String, remedy: &str, why: &str, fresh: Vec<usize>) {
        let e = &mut self.entering;
        e.other_dial = true;
        e.wanted.extend(fresh);
        let again = Instant::now() + ENTER_AGAIN;
        let before = e.trouble.replace((format!("{what}: {why}"), again));
        if before.is_none() {
            let trouble = synclater_text::message::Trouble::new(
                what,
                why,
                remedy,
                "the command goes on; what is not in it is made for real; it is tried again",
            );
            voice::say(&format!("{trouble}\n"));
        }
    }

    /// What stands in the way of relaxing, for people.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let (why, _) = self.entering.trouble.as_ref()?;
        let every = ENTER_AGAIN.as_secs();
        Some(format!(
            "{why}; what is not in it is made for real; tried again every {every} s"
        ))
    }

    /// Those of `fresh` that go on, and whether the keeper has them. One that a program does not
    /// let us open any more stands in nobody's way: it stays real.
    fn hand_all_to_keeper(&mut self, fresh: Vec<usize>) -> (Vec<usize>, bool) {
        let mut held = true;
        let mut going_on = Vec::new();
        for i in fresh {
            match self.hand_to_keeper(i) {
                Err(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                    self.filesystems.do_without(i, self.session.shared);
                }
                done => {
                    held &= done.is_ok();
                    going_on.push(i);
                }
            }
        }
        (going_on, held)
    }

    fn hand_to_keeper(&mut self, index: usize) -> std::io::Result<()> {
        let held = self.filesystems.get(index).and_then(|f| f.held());
        let (Some(held), Some(keeper)) = (held, &self.entering.keeper) else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let done = keeper.hold(index, held);
        self.filesystems.is_kept(index, done.is_ok());
        done
    }

    /// Whether there is a keeper that has been told of everything that owes; starts it, and tells
    /// it, where it has not been.
    fn has_whole_keeper(&mut self, ledger: &Ledger) -> bool {
        if self.entering.keeper.is_none() && !self.start_keeper(ledger) {
            return false;
        }
        if self.entering.keeper.as_ref().is_some_and(Keeper::is_whole) {
            return true;
        }
        let mut entered = self.entered().into_iter();
        let has_all = entered.all(|i| self.hand_to_keeper(i).is_ok());
        let Some(keeper) = self.entering.keeper.as_mut().filter(|_| has_all) else {
            return false;
        };
        if self.entering.sync_was_allowed {
            keeper.owe_everything();
        }
        keeper.knows_all();
        self.settle_for_keeper();
        self.entering.keeper.as_ref().is_some_and(Keeper::is_whole)
    }

    /// A new keeper's descriptors tell nothing of what was lost before they were opened, and ours
    /// do: it closes no entry before everything was settled by those.
    fn settle_for_keeper(&mut self) {
        let before = self.paying.schedule.rows();
        let begins = self.must_settle() && !self.entered().is_empty();
        if begins {
            self.settle_all();
        }
        let rows = self.paying.schedule.rows().into_iter();
        // What was being settled already is settled once more.
        self.entering.before_closing = rows
            .map(|i| (i, 1 + u32::from(begins && before.contains(&i))))
            .collect();
        if self.entering.before_closing.is_empty() {
            self.entering.keeper.iter().for_each(Keeper::may_close);
        }
    }

    /// Superblock `index` has been settled.
    pub(super) fn keeper_may_close(&mut self, index: usize) {
        let waits = &mut self.entering.before_closing;
        let Some(times) = waits.get_mut(&index) else {
            return;
        };
        *times -= 1;
        if *times == 0 {
            waits.remove(&index);
        }
        if waits.is_empty() {
            self.entering.keeper.iter().for_each(Keeper::may_close);
        }
    }

    /// Those that may owe: they are in the entry, or in the one that is being written.
    fn entered(&self) -> Vec<usize> {
        let e = &self.entering;
        let coming = e.writing.as_ref().map_or(&[][..], |(_, all)| all);
        let mut all = self.filesystems.owing();
        all.retain(|i| e.written.contains(i) || coming.contains(i));
        all
    }

    fn start_keeper(&mut self, ledger: &Ledger) -> bool {
        match Keeper::start(
            self.session.shared,
            ledger.clone(),
            self.session.belongings.clone(),
        ) {
            Ok(keeper) => {
                keeper.settle_at_death(self.must_settle() || !self.paying.schedule.is_idle());
                self.entering.keeper = Some(keeper);
                self.prove_to_keeper();
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn entry(&self, list: &[usize]) -> Entry {
        let laxest = self
            .session
            .plan
            .classes
            .iter()
            .max()
            .copied()
            .unwrap_or(Until::Now);
        Entry {
            version: Entry::VERSION,
            id: self.session.plan.id.clone(),
            token: Some(self.session.belongings.token.clone()),
            boot_id: crate::session::dirs::boot_id(),
            pid: std::process::id(),
            pid_ns: pid_namespace(),
            pid_started: process::began(std::process::id()),
            folder: self.session.belongings.folder(),
            command: self.session.plan.command.clone(),
            started: self.session.plan.started.clone(),
            until: laxest.to_string(),
            is_never: !self.must_settle() && self.paying.schedule.is_idle(),
            promised: self.paying.has_promised,
            error: self.paying.paid.error.as_ref().map(|e| e.name.clone()),
            sync: self.entering.sync_all || self.entering.sync_was_allowed,
            filesystems: self.filesystems.for_ledger(list),
        }
    }

    pub(super) fn ledger_written(&mut self, status: i32, fresh: Vec<usize>) {
        if status == rustix::io::Errno::EXIST.raw_os_error() {
            let why = "another session's entry has this name";
            let remedy = "wait until that session is over, or start this one again, which gets \
                          another name";
            return self.not_entered_until(remedy, why, fresh);
        }
        if status != 0 {
            let why = std::io::Error::from_raw_os_error(status).to_string();
            return self.not_entered(&why, fresh);
        }
        if let Err(e) = self.session.belongings.say_entered(true) {
            return self.not_entered(&format!("its lock file cannot be written: {e}"), fresh);
        }
        self.session.shared.page().entered.store(1, SeqCst);
        self.prove_to_keeper();
        if self.entering.proof.as_ref().is_some_and(Proof::was_lost) {
            return self.not_entered("no descriptor was left for its lock", fresh);
        }
        self.entering.trouble = None;
        self.entering.says_never = self.entering.writes_never;
        self.entering.says_sync = self.entering.writes_sync;
        if let Err(e) = self.watch_for_lost_writes() {
            let what = "lost writes cannot be watched for".into();
            let remedy = "raise the limit of open files: ulimit -n 1024";
            return self.nothing_is_late(what, remedy, &e.to_string(), fresh);
        }
        for index in fresh {
            // One that was let go of and taken again meanwhile wants an entry of its own.
            if self.filesystems.stays(index) && !self.entering.wanted.contains(&index) {
                self.entering.written.push(index);
                self.may_owe(index);
            }
        }
        if self.entering.holds_back {
            self.relax_by_dial();
        }
        self.allow_sync();
    }

    /// sync() may be put off once every disk in sight is in the ledger, and all are tested.
    pub(super) fn allow_sync(&mut self) {
        let page = self.session.shared.page();
        if !self.entering.sync_all || page.sync_ok.load(SeqCst) != 0 {
            return;
        }
        let written = &self.entering.written;
        if self.entering.says_sync
            && self.mounts_are_steady()
            && self.filesystems.all_disks_are(|i| written.contains(&i))
        {
            if let Some(keeper) = &self.entering.keeper {
                keeper.owe_everything();
            }
            self.entering.sync_was_allowed = true;
            page.sync_ok.store(1, SeqCst);
        }
    }

    pub(super) fn keeper_news(&mut self) {
        while let Some(news) = self.entering.keeper.as_ref().and_then(Keeper::news) {
            match news {
                News::Dropped(index) => self.umount_ready(index),
                News::Lost(index, errno) => {
                    // It has told the page.
                    self.filesystems.is_used(index);
                    self.lost_write(index, errno);
                }
                News::NoSync => self.keeper_makes_no_sync(),
            }
        }
        if let Some(dead) = self.entering.keeper.take_if(|k| k.has_ended()) {
            // Somebody killed it: without a keeper nothing may owe, so there has to be another.
            let Some(ledger) = self.entering.ledger.clone() else {
                return;
            };
            let all = self.filesystems.owing();
            all.into_iter()
                .for_each(|i| self.filesystems.is_kept(i, false));
            // It lets go of what it was told to, and of all else.
            let left = self.filesystems.kept_only();
            left.into_iter().for_each(|i| self.umount_ready(i));
            self.paying.keeper_syncs = 0;
            if dead.has_failed_at_once() || !self.has_whole_keeper(&ledger) {
                let would_relax = self.paying.relaxing || self.entering.holds_back;
                self.relax(false);
                // Until there is one: it is tried again as the entry is.
                self.entering.holds_back = would_relax;
                self.entering.other_dial |= would_relax;
                self.settle_all();
            } else if self.entering.holds_back {
                self.relax_by_dial();
            }
        }
    }

    fn note_owed(&mut self, index: usize) {
        let Some(fs) = self.filesystems.for_ledger(&[index]).pop() else {
            return;
        };
        let ever = &mut self.entering.ever;
        match ever.iter_mut().find(|o| o.is_of(&fs, index)) {
            Some(owed) => (owed.index, owed.fs) = (Some(index), fs),
            None => ever.push(Owed {
                index: Some(index),
                requests: 0,
                took: Vec::new(),
                fs,
            }),
        }
        if ever.len() > 1 {
            self.session.shared.page().several.store(1, SeqCst);
        }
    }

    /// What was counted for superblock `index` belongs to it, whoever has the index next.
    pub(super) fn count_for(&mut self, index: usize) {
        let slots = self.session.shared.all_slots();
        let cells = slots.filter_map(|s| s.fs_requests.get(index));
        let counted = cells.fold(0, |all: u64, n| all.saturating_add(n.swap(0, SeqCst)));
        let took = self.session.shared.take_took(index);
        let mut ever = self.entering.ever.iter_mut();
        if let Some(owed) = ever.find(|o| o.index == Some(index)) {
            owed.requests = owed.requests.saturating_add(counted);
            owed.took = took
                .iter()
                .zip(&owed.took)
                .map(|(a, b)| a.saturating_add(*b))
                .collect();
            owed.index = None;
        }
    }

    fn mounts_are_steady(&self) -> bool {
        !self.umounts.mounts_changed
    }

    /// File systems that owed at any time.
    #[must_use]
    pub fn owed(&self) -> &[Owed] {
        &self.entering.ever
    }
}

impl Owed {
    /// Whether it is the file system `fs`, which superblock `index` is now.
    fn is_of(&self, fs: &LedgerFs, index: usize) -> bool {
        let its = &self.fs;
        (&its.mount, &its.fstype, &its.source) == (&fs.mount, &fs.fstype, &fs.source)
            && self.index.is_none_or(|i| i == index)
    }
}

impl Entering {
    /// What tells of the keeper, and of an entry that is being written.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let writing = self.writing.iter().map(|(job, _)| job.as_fd());
        self.keeper.iter().map(AsFd::as_fd).chain(writing)
    }

    /// Superblock `index` is in the entry no more.
    pub(super) fn forget(&mut self, index: usize) {
        self.names_too_many |= self.written.contains(&index);
        self.written.retain(|i| *i != index);
        self.wanted.retain(|i| *i != index);
        if let Some((_, fresh)) = &mut self.writing {
            self.names_too_many |= fresh.contains(&index);
            fresh.retain(|i| *i != index);
        }
    }

    /// Whether sync() may have been put off.
    pub(super) fn sync_is_owed(&self, shared: &Shared) -> bool {
        self.sync_was_allowed || !settle::debts(shared, page::ALL_FS).is_empty()
    }

    /// Another disk may be in sight, which does not owe yet: sync() is made for real, and wants it.
    pub(super) fn disallow_sync(&mut self, shared: &Shared) {
        shared.page().sync_ok.store(0, SeqCst);
        for slots in shared.all_slots() {
            slots.want_sync.fetch_and(!page::SYNC_WANTS, SeqCst);
        }
        self.sync_all = false;
    }
}

/// Our pid namespace, where /proc tells.
fn pid_namespace() -> Option<u64> {
    let number = synclater_sys::mount::namespace_number("/proc/self/ns/pid".as_ref());
    (number != 0).then_some(number)
}
