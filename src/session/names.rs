//! The table of device numbers in the page: what each stands for, as the shim reads it.
//!
//! Promise: an index stands for a number only as long as something is held that keeps the number
//! from becoming another's. A place is never seen half written (`turn` is odd meanwhile).

use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{Name, Page, NAME_GONE};

/// Has `dev` stand for `fs`, an index or `NAME_*`; false where there is no room.
pub fn put(page: &Page, dev: u64, fs: u32) -> bool {
    let is = |place: &&Name| place.dev.load(SeqCst) == dev;
    let is_free = |place: &&Name| matches!(place.dev.load(SeqCst), 0 | NAME_GONE);
    let place = page
        .places(dev)
        .find(is)
        .or_else(|| page.places(dev).find(is_free));
    place.is_some_and(|place| {
        change(place, dev, fs);
        true
    })
}

/// Has `dev` stand for nothing.
pub fn remove(page: &Page, dev: u64) {
    let place = page.places(dev).find(|place| place.dev.load(SeqCst) == dev);
    if let Some(place) = place {
        change(place, NAME_GONE, 0);
    }
}

/// Removes every number that does not stand for an index.
pub fn forget_refused(page: &Page) {
    let is_index = |fs: u32| (fs as usize) < page.fs.len();
    for place in &page.names {
        let dev = place.dev.load(SeqCst);
        if dev != 0 && dev != NAME_GONE && !is_index(place.fs.load(SeqCst)) {
            change(place, NAME_GONE, 0);
        }
    }
}

fn change(place: &Name, dev: u64, fs: u32) {
    place.turn.fetch_add(1, SeqCst);
    place.dev.store(dev, SeqCst);
    place.fs.store(fs, SeqCst);
    place.turn.fetch_add(1, SeqCst);
}
