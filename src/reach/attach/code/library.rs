//! Our library in a process, and its places.

use super::shared;
use synclater_shim::gate::{Detour, Head};

/// The library in a process.
#[derive(Clone, Debug)]
pub struct Library {
    /// Where it lies.
    pub image: u64,
    /// Its head.
    pub head: Head,
    /// Its places, in order; none where there is none yet.
    pub places: Vec<Option<Detour>>,
}

impl Library {
    fn places_at(&self) -> u64 {
        self.image + u64::from(self.head.places_at)
    }

    /// The address of place `k`.
    #[must_use]
    pub fn place(&self, k: usize) -> u64 {
        self.places_at() + (k * Detour::SIZE) as u64
    }

    /// Where the slots and the page are mapped, in this order.
    #[must_use]
    pub fn shared(&self) -> (u64, u64) {
        shared(self.image, &self.head)
    }

    /// The place that is at `at`.
    pub(super) fn place_at(&self, at: u64) -> Option<Detour> {
        let by = at.checked_sub(self.places_at())?;
        let k = usize::try_from(by).ok()? / Detour::SIZE;
        let is_begin = by % Detour::SIZE as u64 == 0;
        self.places.get(k).filter(|_| is_begin)?.clone()
    }
}
