//! The stack that a thread stands on, and what is known of a goroutine's.

use std::ops::Range;
use synclater_sys::registers::Registers;
use synclater_sys::remote::Memory;

/// The stack that a thread stands on.
pub struct Stack {
    /// Its pointer.
    pub pointer: u64,
    /// Whether the thread waits where Go's runtime does so.
    pub waits_in_runtime: bool,
    /// All of it, where it is that of the goroutine that the thread names, if it is Go's.
    pub of_goroutine: Option<Range<u64>>,
}

impl Stack {
    /// That of a thread with these registers.
    #[must_use]
    pub fn of(registers: &Registers, memory: &Memory) -> Stack {
        let pointer = registers.sp();
        // The first two words that Go has of a goroutine (`g.stack`).
        let bounds = memory.bytes(registers.goroutine(), 16).ok();
        let whole = bounds.and_then(|bounds| range_of(&bounds));
        Stack {
            pointer,
            waits_in_runtime: registers.waits_in_runtime(),
            of_goroutine: whole.filter(|whole| whole.contains(&pointer)),
        }
    }
}

/// The range from one word to the next one.
fn range_of(words: &[u8]) -> Option<Range<u64>> {
    let (words, _) = words.as_chunks();
    let [start, end] = words else {
        return None;
    };
    Some(u64::from_le_bytes(*start)..u64::from_le_bytes(*end))
}
