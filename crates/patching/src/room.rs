//! Room for a mapping of ours among those of a program, near its code.

use std::ops::Range;

/// How far a jump of five bytes reaches, less some to spare.
const REACH: u64 = (1 << 31) - (1 << 20);

/// No program has anything below (`vm.mmap_min_addr` is less).
const LOWEST: u64 = 1 << 20;

/// Between ours and its neighbours.
const APART: u64 = 1 << 16;

/// Where the heap may grow to, from its begin on.
pub const HEAP: u64 = 1 << 30;

/// How far a stack may grow down.
pub const STACK: u64 = 1 << 28;

const fn up(at: u64) -> u64 {
    (at + 4095) & !4095
}

/// An address for `size` bytes from which every one of `code` can be jumped to, and back, and that
/// is as near as can be. `taken` are the program's mappings and what they may grow into.
#[must_use]
pub fn near(code: &Range<u64>, size: u64, taken: &[Range<u64>]) -> Option<u64> {
    let mut taken = taken.to_vec();
    taken.sort_unstable_by_key(|r| r.start);
    let low = up(code.end.saturating_sub(REACH).max(LOWEST));
    let high = code.start.checked_add(REACH)?;
    let mut best: Option<u64> = None;
    let mut free_from = low;
    let end = Range {
        start: high,
        end: u64::MAX,
    };
    for next in taken.iter().chain([&end]) {
        let free_to = next.start.saturating_sub(APART).min(high);
        if let Some(last) = free_to.checked_sub(size).map(|at| at & !4095) {
            let first = up(free_from);
            // The end of the gap that is nearer to the code.
            let at = if last < code.start { last } else { first };
            if first <= last && best.is_none_or(|b| away(at, code) < away(b, code)) {
                best = Some(at);
            }
        }
        free_from = free_from.max(next.end.saturating_add(APART));
    }
    best
}

fn away(at: u64, code: &Range<u64>) -> u64 {
    at.abs_diff(code.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 0x60000;

    #[test]
    fn it_is_the_nearest_gap() {
        let code = 0x7f00_0000_0000..0x7f00_0020_0000;
        let taken = [code.clone(), 0x7eff_fff0_0000..0x7f00_0000_0000];
        let at = near(&code, SIZE, &taken).expect("room");
        assert_eq!(at, 0x7eff_fff0_0000 - APART - SIZE);
        assert_eq!(near(&code, 1 << 33, &taken), None);
    }

    #[test]
    fn a_program_at_a_low_address_has_room_above_its_heap() {
        let code = 0x40_1000..0x48_0000;
        let taken = [0x40_0000..0x4c_0000, 0x4c_0000..0x4c_0000 + HEAP];
        let at = near(&code, SIZE, &taken).expect("room");
        assert!((LOWEST..0x40_0000 - SIZE).contains(&at), "{at:x}");
    }

    proptest! {
        #[test]
        fn what_is_found_is_free_and_in_reach(
            start in (0x100u64..0x8000_0000).prop_map(|p| p << 12),
            pages in 1u64..0x800,
            others in proptest::collection::vec((0u64..0x8000_0000, 1u64..0x10000), 0..30),
            size in (1u64..0x200).prop_map(|p| p << 12),
        ) {
            let code = start..start + (pages << 12);
            let mut taken: Vec<_> = others.iter().map(|(p, n)| p << 12..(p + n) << 12).collect();
            taken.push(code.clone());
            if let Some(at) = near(&code, size, &taken) {
                prop_assert_eq!(at % 4096, 0);
                prop_assert!(taken.iter().all(|t| at + size <= t.start || at >= t.end));
                let span = code.end.max(at + size) - code.start.min(at);
                prop_assert!(span < 1 << 31, "{:x}", span);
            }
        }
    }
}
