//! The way into the ledger: what is asked for is held, handed to the keeper, written durably, and
//! only then may it owe.

use super::*;
use crate::session::keeper::News;

impl Supervisor {
    /// Wants superblock `index` in the ledger.
    pub(super) fn enter(&mut self, index: usize) {
        if self.ledger.is_none() && !self.must_settle() {
            // Nothing will be settled, so there is nothing to remember either.
            if self.filesystems.is_tested(index) {
                self.filesystems
                    .set_state(index, page::FS_OWES, self.shared);
                self.note_owed(index);
            }
            return;
        }
        let e = &self.entering;
        let known = e.written.contains(&index) || e.wanted.contains(&index);
        let writing = e
            .writing
            .as_ref()
            .is_some_and(|(_, list)| list.contains(&index));
        if known || writing || self.ledger.is_none() {
            return;
        }
        if self.filesystems.hold(index, self.shared).is_some() {
            self.entering.wanted.push(index);
        }
    }

    pub(super) fn enter_everything(&mut self) {
        self.entering.sync_all = true;
        for index in self.filesystems.all_disks(self.shared) {
            self.enter(index);
        }
    }

    pub(super) fn write_ledger(&mut self) {
        let e = &self.entering;
        let due = !e.wanted.is_empty() || (e.other_dial && !e.written.is_empty());
        let waits = { e.trouble.as_ref() }.is_some_and(|(_, again)| Instant::now() < *again);
        if e.writing.is_some() || !due || waits {
            self.allow_sync();
            return;
        }
        let Some(ledger) = self.ledger.clone() else {
            return;
        };
        if self.keeper.is_none() && !self.start_keeper(&ledger) {
            return self.not_entered("no process can be had for the keeper", Vec::new());
        }
        self.entering.other_dial = false;
        let mut fresh = std::mem::take(&mut self.entering.wanted);
        fresh.retain(|&i| self.filesystems.get(i).is_some_and(|f| f.fd.is_some()));
        let held = fresh.iter().all(|&i| self.hand_to_keeper(i));
        let mut list = self.entering.written.clone();
        list.extend(&fresh);
        if !held {
            return self.not_entered("its keeper takes no file systems", fresh);
        }
        match ledger.write(&self.entry(&list)) {
            Ok(job) => {
                self.escapes.is_ours(job.pid());
                self.entering.writing = Some((job, fresh));
            }
            Err(e) => self.not_entered(&e.to_string(), fresh),
        }
    }

    /// The ledger could not be written: that is told, and tried again in a while.
    fn not_entered(&mut self, why: &str, fresh: Vec<usize>) {
        let path = { self.ledger.as_ref() }.map(|l| l.path(&self.plan.id));
        let what = format!(
            "cannot write the ledger entry {}",
            path.unwrap_or_default().display()
        );
        let e = &mut self.entering;
        e.other_dial = true;
        e.wanted.extend(fresh);
        let again = Instant::now() + ENTER_AGAIN;
        let before = e.trouble.replace((format!("{what}: {why}"), again));
        if before.is_none() {
            let trouble = synclater_model::report::message::Trouble::new(
                what,
                why,
                "free space, or name another folder in SYNCLATER_STATE_DIR",
                "the command goes on; what is not in it is made for real; it is tried again",
            );
            crate::cli::say(&format!("{trouble}\n"));
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

    pub(super) fn hand_to_keeper(&self, index: usize) -> bool {
        let fd = self.filesystems.get(index).and_then(|f| f.fd.as_ref());
        let (Some(fd), Some(keeper)) = (fd, &self.keeper) else {
            return false;
        };
        keeper.hold(index, fd.as_fd()).is_ok()
    }

    pub(super) fn start_keeper(&mut self, ledger: &Ledger) -> bool {
        match Keeper::start(self.shared, ledger.clone(), self.belongings.clone()) {
            Ok(keeper) => {
                self.escapes.is_ours(keeper.pid());
                keeper.settle_at_death(self.must_settle());
                self.keeper = Some(keeper);
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn entry(&self, list: &[usize]) -> Entry {
        let laxest = self
            .plan
            .classes
            .iter()
            .max()
            .copied()
            .unwrap_or(Until::Now);
        Entry {
            version: Entry::VERSION,
            id: self.plan.id.clone(),
            boot_id: crate::session::dirs::boot_id(),
            pid: std::process::id(),
            command: self.plan.command.clone(),
            started: self.plan.started.clone(),
            until: laxest.to_string(),
            consistent: None,
            filesystems: self.filesystems.for_ledger(list),
        }
    }

    pub(super) fn ledger_written(&mut self, status: i32, fresh: Vec<usize>) {
        if status != 0 {
            let why = std::io::Error::from_raw_os_error(status).to_string();
            return self.not_entered(&why, fresh);
        }
        self.entering.trouble = None;
        if self.lost_writes.is_none() && !fresh.is_empty() {
            self.watch_for_lost_writes();
        }
        for index in fresh {
            if self
                .filesystems
                .get(index)
                .is_some_and(|f| f.fd.is_some() && !f.leaving)
            {
                self.filesystems
                    .set_state(index, page::FS_OWES, self.shared);
                self.entering.written.push(index);
                self.note_owed(index);
            }
        }
        self.allow_sync();
    }

    /// sync() may be put off once every disk in sight is in the ledger, and all are tested.
    pub(super) fn allow_sync(&mut self) {
        let page = self.shared.page();
        if !self.entering.sync_all || page.sync_ok.load(SeqCst) != 0 {
            return;
        }
        let disks = self.filesystems.all_disks(self.shared);
        let entered = disks.iter().all(|i| self.entering.written.contains(i));
        if entered && !disks.is_empty() && self.filesystems.all_tested() {
            if let Some(keeper) = &self.keeper {
                keeper.owe_everything();
            }
            page.sync_ok.store(1, SeqCst);
        }
    }

    pub(super) fn keeper_news(&mut self) {
        while let Some(news) = self.keeper.as_ref().and_then(Keeper::news) {
            match news {
                News::Dropped(index) => self.umount_ready(index),
                News::Lost(index, errno) => self.lost_write(index, errno),
            }
        }
        if self.keeper.as_ref().is_some_and(Keeper::has_ended) {
            // Somebody killed it: without a keeper nothing may owe, so there has to be another.
            self.keeper = None;
            let Some(ledger) = self.ledger.clone() else {
                return;
            };
            let all = self.filesystems.owing().collect::<Vec<_>>();
            if !self.start_keeper(&ledger) || !all.iter().all(|&i| self.hand_to_keeper(i)) {
                self.relax(false);
                self.settle_all();
            }
        }
    }

    pub(super) fn entry_may_exist(&self) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|l| l.path(&self.plan.id).exists())
    }

    pub(super) fn note_owed(&mut self, index: usize) {
        let Some(f) = self.filesystems.get(index) else {
            return;
        };
        let mount = f.point.to_string_lossy().into_owned();
        let owed = Owed {
            index,
            mount,
            fstype: f.fstype.clone(),
            device: f.source.clone(),
        };
        if !self.entering.ever.contains(&owed) {
            self.entering.ever.push(owed);
        }
    }

    /// File systems that owed at any time.
    #[must_use]
    pub fn owed(&self) -> &[Owed] {
        &self.entering.ever
    }
}
