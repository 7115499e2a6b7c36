//! Mounts that come and go under the session: whoever unmounts must not find us holding on.

use super::*;
use crate::session::filesystems::Filesystem;

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
        let Some(index) = self.filesystems.by_mount(mount) else {
            return ready(slot);
        };
        let Some(fs) = self.filesystems.get_mut(index) else {
            return ready(slot);
        };
        // From here to the end of the call it may not be taken up again by another request.
        let began = std::mem::replace(&mut fs.leaving, true);
        let held = fs.fd.is_some();
        self.filesystems
            .set_state(index, page::FS_REAL, self.shared);
        if !held {
            ready(slot);
        } else if !began {
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
                ready(slot);
            }
        }
        self.filesystems.has_left(index);
        self.end_of_umounts();
    }

    /// Once nobody is about to unmount, or whoever was is dead: file systems that we let go of and
    /// that are still there may owe again.
    pub(super) fn end_of_umounts(&mut self) {
        let busy = |s: &page::Slot| {
            matches!(
                s.umount.load(SeqCst),
                page::UMOUNT_ASKED | page::UMOUNT_READY
            )
        };
        if self.shared.slots().slot.iter().any(busy) {
            return;
        }
        for index in 0..page::FS_MAX {
            let let_go = |f: &Filesystem| f.leaving && f.fd.is_none();
            if self.filesystems.get(index).is_some_and(let_go) {
                self.may_owe_again(index);
            }
        }
    }

    pub(super) fn end_umount(&mut self, slot: &page::Slot) {
        // It may have asked again already.
        let over = (page::UMOUNT_OVER, page::UMOUNT_NONE);
        let _ = slot.umount.compare_exchange(over.0, over.1, SeqCst, SeqCst);
        self.end_of_umounts();
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

/// How long a child of ours that has just been started may take to close what it need not have.
const YOUNG: Duration = Duration::from_millis(500);

/// Tells the victim behind `slot` that nothing of ours stands in the way of its umount.
fn ready(slot: &page::Slot) {
    let _ = job::wait_for_the_young(YOUNG);
    slot.umount.store(page::UMOUNT_READY, SeqCst);
    wait::wake(&slot.umount);
}
