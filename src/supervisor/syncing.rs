//! What sync() owes: when sync(2) is made for it, and that nothing is put off meanwhile.
//!
//! Promise: from the settles in front of it until it has ended nothing is put off, also where the
//! keeper makes it. What a disk tells once, sync(2) tells nobody.

use super::*;

impl Supervisor {
    /// Whether sync(2) is next: what is held is settled first, and nothing is put off from then on
    /// until it is made. A disk that refuses a flush tells it once, and sync(2) tells nobody. Who
    /// asks meanwhile has all of that once more, behind it.
    pub(super) fn is_sync_next(&mut self) -> bool {
        if self.before_sync.is_none() {
            self.hold_back();
            self.settle_all_held();
            self.before_sync = Some(self.settles.keys().copied().collect());
        } else if !self.is_all_settled_before_sync() && !self.again.contains(&page::ALL_FS) {
            self.again.push(page::ALL_FS);
        }
        let is_next = self.is_all_settled_before_sync();
        if is_next {
            self.before_sync = None;
        }
        is_next
    }

    fn is_all_settled_before_sync(&self) -> bool {
        self.before_sync.as_ref().is_some_and(BTreeSet::is_empty)
    }

    fn hold_back(&mut self) {
        if self.relaxing {
            self.relax(false);
            self.entering.holds_back = true;
        }
    }

    /// Whether sync(2) is being made, or comes behind what is being settled.
    pub(super) fn makes_sync(&self) -> bool {
        let is_ours = self.before_sync.is_some() || self.settles.contains_key(&page::ALL_FS);
        is_ours || self.keeper_syncs > 0
    }

    /// The lease was over: the keeper may be making it.
    pub(super) fn wait_for_keepers_sync(&mut self) {
        let keeper = self.keeper.as_ref();
        let Some(keeper) = keeper.filter(|_| self.entering.sync_was_allowed) else {
            return;
        };
        keeper.wants_no_sync();
        self.keeper_syncs += 1;
        self.hold_back();
    }

    pub(super) fn keeper_makes_no_sync(&mut self) {
        self.keeper_syncs = self.keeper_syncs.saturating_sub(1);
        if self.keeper_syncs == 0 && self.entering.holds_back {
            self.relax_by_dial();
        }
    }
}
