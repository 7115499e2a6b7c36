//! What sync() owes: when sync(2) is made for it, and that nothing is put off meanwhile.
//!
//! Promise: from the settles in front of it until it has ended nothing is put off, also where the
//! keeper makes it. A disk reports a refused flush once; sync(2) would take that report, and
//! returns no error.

use super::Supervisor;
use synclater_shim::page;

impl Supervisor {
    /// sync(2) is asked for: what is held is settled first, and nothing is put off from then on
    /// until it is made. A disk that refuses a flush tells it once, and sync(2) tells nobody. Who
    /// asks meanwhile has all of that once more, behind it.
    pub(super) fn settle_held_for_sync(&mut self) {
        self.hold_back();
        self.settle_all_held();
        if self.paying.schedule.held_were_asked() {
            self.begin_settle(page::ALL_FS);
        }
    }

    fn hold_back(&mut self) {
        if self.paying.relaxing {
            self.relax(false);
            self.entering.holds_back = true;
        }
    }

    /// Whether sync(2) is being made, or comes behind what is being settled.
    pub(super) fn makes_sync(&self) -> bool {
        let is_ours = self.paying.schedule.is_seen_to(page::ALL_FS);
        is_ours || self.paying.keeper_syncs > 0
    }

    /// The lease was over: the keeper may be making it.
    pub(super) fn wait_for_keepers_sync(&mut self) {
        let keeper = self.entering.keeper.as_ref();
        let Some(keeper) = keeper.filter(|_| self.entering.sync_was_allowed) else {
            return;
        };
        keeper.wants_no_sync();
        self.paying.keeper_syncs += 1;
        self.hold_back();
    }

    pub(super) fn keeper_makes_no_sync(&mut self) {
        self.paying.keeper_syncs = self.paying.keeper_syncs.saturating_sub(1);
        if self.paying.keeper_syncs == 0 && self.entering.holds_back {
            self.relax_by_dial();
        }
    }
}
