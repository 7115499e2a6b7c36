//! The table of device numbers in the page: what each stands for, as the shim reads it.
//!
//! Promise: an index stands for a number only as long as its superblock is held; for a number that
//! the kernel may give to another superblock meanwhile, on one mount only. A place is never seen
//! half written (`turn` is odd meanwhile).

use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{Name, Page, NAME_GONE};

/// What is looked up in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// The device number, as stat shows it.
    pub dev: u64,
    /// 0 where it counts on every mount: it is the superblock's own, or of something that lives as
    /// long. Else the mount that it counts on: btrfs gives a subvolume's number away when that is
    /// deleted, whoever has it open, but a mount shows one superblock for ever.
    pub mount: u64,
}

impl Number {
    /// One that counts on every mount.
    #[must_use]
    pub fn everywhere(dev: u64) -> Number {
        Number { dev, mount: 0 }
    }

    /// Whether a file with this number, on this mount, has it.
    #[must_use]
    pub fn covers(&self, other: Number) -> bool {
        self.dev == other.dev && (self.mount == 0 || self.mount == other.mount)
    }

    fn stands_at(&self, place: &Name) -> bool {
        (place.dev.load(SeqCst), place.mount.load(SeqCst)) == (self.dev, self.mount)
    }
}

/// Has a number stand for `fs`, an index or `NAME_*`; false where there is no room.
pub fn put(page: &Page, number: Number, fs: u32) -> bool {
    let place = place_of(page, number)
        .or_else(|| free_place(page, number.dev))
        // A subvolume's is asked about again when it is wanted.
        .or_else(|| {
            page.places(number.dev)
                .find(|place| place.mount.load(SeqCst) != 0)
        });
    place.is_some_and(|place| {
        change(place, number, fs);
        true
    })
}

/// The place where a number stands.
fn place_of(page: &Page, number: Number) -> Option<&Name> {
    let mut its = page.places(number.dev);
    its.find(|place| number.stands_at(place))
}

/// A place where no number stands, of those where this one may.
fn free_place(page: &Page, dev: u64) -> Option<&Name> {
    let mut all = page.places(dev);
    all.find(|place| matches!(place.dev.load(SeqCst), 0 | NAME_GONE))
}

/// Has a number stand for nothing.
pub fn remove(page: &Page, number: Number) {
    if let Some(place) = place_of(page, number) {
        change(place, Number::everywhere(NAME_GONE), 0);
    }
}

/// Removes every number that does not stand for an index.
pub fn forget_refused(page: &Page) {
    for place in &page.names {
        let dev = place.dev.load(SeqCst);
        if dev != 0 && dev != NAME_GONE && place.fs.load(SeqCst) as usize >= page.fs.len() {
            change(place, Number::everywhere(NAME_GONE), 0);
        }
    }
}

fn change(place: &Name, number: Number, fs: u32) {
    place.turn.fetch_add(1, SeqCst);
    place.dev.store(number.dev, SeqCst);
    place.mount.store(number.mount, SeqCst);
    place.fs.store(fs, SeqCst);
    place.turn.fetch_add(1, SeqCst);
}
