//! Fuzzes what victims write: the slots, and the page for a reader that meets a foreign one.
//!
//! Claims: nothing panics; memory that is too small or not aligned is refused; sums saturate, and
//! no more requests are said to be skipped than were made.

use std::sync::atomic::{AtomicU8, Ordering};

use synclater_shim::counts::Counts;
use synclater_shim::page::{Layout, Page, Slots};

use crate::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "slots",
    seeds: &[
        b"",
        b"slatslot\x01\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\x01",
    ],
    words: &[
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\0\0\0\0\0\0\0\x80",
        b"slatpage",
    ],
    run,
};

/// Memory aligned as a mapping is, filled with the input over and over.
fn memory(input: &[u8], len: usize) -> (Vec<u64>, usize) {
    let mut words = vec![0u64; len.div_ceil(8)];
    if !input.is_empty() {
        for (i, word) in words.iter_mut().enumerate() {
            let byte = |k: usize| input[(i * 8 + k) % input.len()];
            *word = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(byte));
        }
    }
    (words, len)
}

fn bytes(words: &[u64]) -> Vec<AtomicU8> {
    words
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .map(AtomicU8::new)
        .collect()
}

fn run(input: &[u8]) {
    let small = bytes(&memory(input, size_of::<Slots>() - 8).0);
    assert!(
        Slots::view(&small).is_none(),
        "too small, and yet it was read"
    );
    let whole = bytes(&memory(input, size_of::<Slots>() + 8).0);
    let start = whole.as_ptr().align_offset(8);
    if let Some(slots) = Slots::view(&whole[start..]) {
        count(slots);
    }
    if let Some(page) = Page::view(&whole[start..]) {
        let dev = page.names[0].dev.load(Ordering::SeqCst);
        let _ = page.named(dev, dev >> 32);
    }
}

fn count(slots: &Slots) {
    let mut sum = Counts::default();
    for slot in &slots.slot {
        let one = Counts::read(slot);
        assert!(one.skipped() <= one.requests);
        sum.add(&one);
    }
    assert!(sum.skipped() <= sum.requests);
    let kept: u64 = sum
        .kept_words()
        .values()
        .fold(0, |a, b| a.saturating_add(*b));
    assert!(kept > 0 || sum.kept.iter().take(11).all(|n| *n == 0));
}
