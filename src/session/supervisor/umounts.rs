//! Mounts that come and go under the session: whoever unmounts must not find us holding on.

use super::*;

impl Supervisor {
    pub(super) fn filesystems_changed(&mut self) {
        for index in self
            .filesystems
            .refresh_if_changed(self.shared, &self.mountinfo)
        {
            // Gone from our sight, perhaps by somebody else's umount: pay and let go.
            self.filesystems
                .set_state(index, page::FS_KNOWN, self.shared);
            if let Some(fs) = self.filesystems.get_mut(index) {
                fs.leaving = true;
            }
            self.settle(index);
        }
    }

    pub(super) fn answer_questions(&mut self) {
        for slot in &self.shared.slots().slot {
            let ask = slot.ask_mount.load(SeqCst);
            if ask != 0 {
                if let Some(pid) = self.census.pid_of(slot) {
                    self.filesystems.resolve(ask, pid, self.shared);
                }
                slot.ask_mount.store(0, SeqCst);
            }
            match slot.umount.load(SeqCst) {
                page::UMOUNT_ASKED => self.begin_umount(slot),
                page::UMOUNT_OVER => self.end_umount(slot),
                _ => {}
            }
        }
    }

    pub(super) fn begin_umount(&mut self, slot: &page::Slot) {
        let mount = slot.umount_mount.load(SeqCst);
        if self.filesystems.is_leaving(mount) {
            return;
        }
        if let Some(pid) = self.census.pid_of(slot) {
            self.filesystems.resolve(mount, pid, self.shared);
        }
        let index = self.filesystems.by_mount(mount);
        let owes = index.filter(|&i| self.filesystems.get(i).is_some_and(|f| f.fd.is_some()));
        let Some(index) = owes else {
            slot.umount.store(page::UMOUNT_READY, SeqCst);
            wait::wake(&slot.umount);
            return;
        };
        let fs = self.filesystems.get_mut(index).expect("found just now");
        if !std::mem::replace(&mut fs.leaving, true) {
            self.filesystems
                .set_state(index, page::FS_REAL, self.shared);
            self.settle(index);
        }
    }

    /// Lets go of a file system that has been settled, and has the keeper do so.
    pub(super) fn let_go(&mut self, index: usize) {
        self.filesystems.release(index, self.shared);
        self.entering.written.retain(|i| *i != index);
        self.entering.wanted.retain(|i| *i != index);
        match &self.keeper {
            Some(keeper) => keeper.let_go(index),
            None => self.umount_ready(index),
        }
    }

    pub(super) fn umount_ready(&mut self, index: usize) {
        for slot in &self.shared.slots().slot {
            let asked = slot.umount.load(SeqCst) == page::UMOUNT_ASKED;
            if asked && self.filesystems.is_leaving(slot.umount_mount.load(SeqCst)) {
                slot.umount.store(page::UMOUNT_READY, SeqCst);
                wait::wake(&slot.umount);
            }
        }
        self.filesystems.has_left(index);
        let waiting = |s: &page::Slot| s.umount.load(SeqCst) == page::UMOUNT_READY;
        if !self.shared.slots().slot.iter().any(waiting) {
            self.may_owe_again(index);
        }
    }

    pub(super) fn end_umount(&mut self, slot: &page::Slot) {
        slot.umount.store(page::UMOUNT_NONE, SeqCst);
        for index in 0..page::FS_MAX {
            if self
                .filesystems
                .get(index)
                .is_some_and(|f| f.leaving && f.fd.is_none())
            {
                self.may_owe_again(index);
            }
        }
        self.filesystems.refresh(self.shared);
    }

    pub(super) fn may_owe_again(&mut self, index: usize) {
        if let Some(fs) = self.filesystems.get_mut(index) {
            fs.leaving = false;
            self.filesystems
                .set_state(index, page::FS_KNOWN, self.shared);
        }
    }
}
