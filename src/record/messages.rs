//! What a session says to its recorder, and how things stood before that began.

use super::rings::SharedRings;
use crate::session::shared::Shared;
use std::sync::atomic::Ordering::SeqCst;

/// A settle begins: the letter, the file system, ticks.
pub const SETTLE: u8 = b'S';

/// It has ended: the same, and its errno.
pub const SETTLED: u8 = b'T';

/// The recording ends.
pub const END: u8 = b'E';

/// The command was started: what was in the file before may go.
pub const GO: u8 = b'G';

/// Who escaped: the letter, and an escape as JSON; of process 0, why that is not all.
pub const ESCAPED: u8 = b'X';

/// The longest message.
pub const MESSAGE_MAX: usize = 8192;

/// Where things stood before it began, for what was there is not its own.
pub struct Before {
    /// Ticks of the lease clock.
    pub ticks: u64,
    /// What each ring had lost.
    pub rings: Vec<u64>,
    /// What each slot had lost.
    pub slots: Vec<u64>,
}

impl Before {
    /// As it is now.
    pub fn now(shared: &Shared, rings: &SharedRings) -> Before {
        let slots = shared.all_slots().flat_map(|s| &s.slot);
        let mut lost = vec![0; rings.end()];
        for (index, ring, _) in rings.all() {
            lost[index] = ring.lost.load(SeqCst);
        }
        Before {
            ticks: shared.clock.now(),
            rings: lost,
            slots: slots.map(|s| s.lost.load(SeqCst)).collect(),
        }
    }

    /// Whether a request was made before, and is left over from another recording.
    pub fn covers(&self, ticks: u64) -> bool {
        // The sign of the difference: what a victim writes is any number.
        ticks.wrapping_sub(self.ticks) > u64::MAX / 2
    }
}

/// A number in a message.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}
