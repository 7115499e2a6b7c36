//! What a seccomp filter says to a call of which not everything is known.
//!
//! Promise: whatever is not known of a call's arguments may be anything: every way through the
//! filter that they may lead is gone. A filter that takes too many is one that forbids. What a
//! filter has returned for one value of an argument says nothing about another.
//! By hand, since the libraries for filters make them; none tells what one says to a call whose
//! arguments are not all known.
//! Source: seccomp(2), <linux/filter.h>, kernel/seccomp.c (seccomp_check_filter: the instructions
//! that a filter may have; Linux 6.18).

use super::filter::Instruction;
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// `AUDIT_ARCH_X86_64`.
pub const ARCH_64: u32 = 0xc000_003e;
/// `AUDIT_ARCH_I386`.
pub const ARCH_32: u32 = 0x4000_0003;

/// Thirty-two bits, of which some are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    known: u32,
    /// Of the known bits those that are set.
    bits: u32,
    /// Bits that may differ between the call that the program asked for and the one that is made.
    /// Those that are known never do.
    changed: u32,
}

impl Word {
    /// Anything.
    pub const ANY: Word = Word::within(u32::MAX);

    /// Anything, and not what the program asked for.
    pub const CHANGED: Word = Word {
        changed: u32::MAX,
        ..Word::ANY
    };

    /// This number.
    #[must_use]
    pub const fn is(number: u32) -> Word {
        Word {
            known: u32::MAX,
            bits: number,
            changed: 0,
        }
    }

    /// Some of these bits.
    #[must_use]
    pub const fn within(mask: u32) -> Word {
        Word {
            known: !mask,
            bits: 0,
            changed: 0,
        }
    }

    /// Anything; these bits may be others than those that the program asked for.
    #[must_use]
    pub const fn changed(bits: u32) -> Word {
        Word {
            changed: bits,
            ..Word::ANY
        }
    }

    fn new(known: u32, bits: u32, changed: u32) -> Word {
        Word {
            known,
            bits: bits & known,
            changed: changed & !known,
        }
    }

    fn number(self) -> Option<u32> {
        (self.known == u32::MAX).then_some(self.bits)
    }

    /// What it may be, at least and at most.
    fn range(self) -> RangeInclusive<u32> {
        self.bits..=self.bits | !self.known
    }

    fn and(self, other: Word) -> Word {
        let zero = (self.known & !self.bits) | (other.known & !other.bits);
        let known = zero | (self.known & other.known);
        Word::new(known, self.bits & other.bits, self.changed | other.changed)
    }

    fn or(self, other: Word) -> Word {
        let one = self.bits | other.bits;
        let known = one | (self.known & other.known);
        Word::new(known, one, self.changed | other.changed)
    }

    fn xor(self, other: Word) -> Word {
        let known = self.known & other.known;
        Word::new(known, self.bits ^ other.bits, self.changed | other.changed)
    }

    /// Moved by a number of bits, to the left or to the right.
    fn shifted(self, by: Word, shift: impl Fn(u32, u32) -> Option<u32>) -> Word {
        let Some(by) = by.number().filter(|by| *by < 32) else {
            return self.mixed_with(by);
        };
        let moved = |bits| shift(bits, by).unwrap_or(0);
        let filled = !moved(u32::MAX);
        let known = moved(self.known) | filled;
        Word::new(known, moved(self.bits), moved(self.changed))
    }

    /// By arithmetic whose outcome is known where both numbers are.
    fn counted(self, other: Word, count: impl Fn(u32, u32) -> u32) -> Word {
        match (self.number(), other.number()) {
            (Some(a), Some(b)) => Word::is(count(a, b)),
            _ => self.mixed_with(other),
        }
    }

    fn mixed_with(self, other: Word) -> Word {
        let any = self.changed | other.changed != 0;
        Word::changed(if any { u32::MAX } else { 0 })
    }
}

/// `struct seccomp_data`: number, architecture, address of the instruction, six arguments.
pub type Data = [Word; 16];

/// Where the words of an argument are in [`Data`]: the lower half, then the upper one.
#[must_use]
pub const fn argument(k: usize) -> usize {
    4 + 2 * k
}

/// A call of which nothing is known but its number.
#[must_use]
pub fn call(arch: u32, number: u32) -> Data {
    let mut data = [Word::ANY; 16];
    data[0] = Word::is(number);
    data[1] = Word::is(arch);
    if arch == ARCH_32 {
        for k in 0..6 {
            data[argument(k) + 1] = Word::is(0);
        }
    }
    data
}

/// What a filter makes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It lets it pass, whatever is not known of it.
    Passes,
    /// It may do this (`SECCOMP_RET_*`) instead.
    May(u32),
    /// It may look at what is not as the program asked for.
    Looks,
    /// It has too many ways, or an instruction that is not known.
    Unclear,
}

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_ERRNO: u32 = 0x0005_0000;

/// Instructions that are gone through at most.
const STEPS: usize = 20_000;

/// The state of a filter's machine, between two instructions.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    at: usize,
    a: Word,
    x: Word,
    memory: [Word; 16],
}

enum Step {
    /// From where the state is now.
    On,
    /// From either of these instructions.
    Either([usize; 2]),
    Returns(Word),
    Looks,
    Unclear,
}

/// Whether a filter lets a call pass, by itself: of several each has to.
#[must_use]
pub fn passes(filter: &[Instruction], data: &Data) -> Verdict {
    follow(filter, data, |word| allows(word, &[RET_ALLOW, RET_LOG]))
}

/// Whether a filter lets a call pass, or has it return an error.
#[must_use]
pub fn passes_or_fails(filter: &[Instruction], data: &Data) -> Verdict {
    follow(filter, data, |word| {
        allows(word, &[RET_ALLOW, RET_LOG, RET_ERRNO])
    })
}

fn allows(word: Word, good: &[u32]) -> Verdict {
    // What stands in the lower half says more to whoever is told.
    match word.number().map(|action| action & 0xffff_0000) {
        Some(action) if good.contains(&action) => Verdict::Passes,
        Some(action) => Verdict::May(action),
        None => Verdict::Unclear,
    }
}

/// Whether a filter says to a call the same that it says to what the program asked for.
#[must_use]
pub fn is_alike(filter: &[Instruction], data: &Data) -> Verdict {
    follow(filter, data, alike)
}

/// The verdict on what a filter returns: whether that depends on what was changed.
fn alike(word: Word) -> Verdict {
    if word.changed == 0 {
        Verdict::Passes
    } else {
        Verdict::Looks
    }
}

fn follow(filter: &[Instruction], data: &Data, judge: impl Fn(Word) -> Verdict) -> Verdict {
    let zero = Word::is(0);
    let mut ways = vec![State {
        at: 0,
        a: zero,
        x: zero,
        memory: [zero; 16],
    }];
    let mut seen = HashSet::new();
    for _ in 0..STEPS {
        let Some(mut state) = ways.pop() else {
            return Verdict::Passes;
        };
        let Some(instruction) = filter.get(state.at) else {
            return Verdict::Unclear;
        };
        match state.step(*instruction, data) {
            Step::On => ways.push(state),
            Step::Either(both) => {
                for at in both {
                    let way = State {
                        at,
                        ..state.clone()
                    };
                    if seen.insert(way.clone()) {
                        ways.push(way);
                    }
                }
            }
            Step::Returns(word) => match judge(word) {
                Verdict::Passes => {}
                verdict => return verdict,
            },
            Step::Looks => return Verdict::Looks,
            Step::Unclear => return Verdict::Unclear,
        }
    }
    Verdict::Unclear
}

/// Classes of instructions: the lowest three bits.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;

/// Whether an operand is X rather than the instruction's own.
const BY_X: u16 = 0x08;

impl State {
    fn step(&mut self, (code, yes, no, k): Instruction, data: &Data) -> Step {
        const ABS: u16 = 0x20;
        const IMM: u16 = 0x00;
        const MEM: u16 = 0x60;
        const LEN: u16 = 0x80;
        let operand = if code & BY_X == 0 {
            Word::is(k)
        } else {
            self.x
        };
        let slot = k as usize;
        self.at += 1;
        match (code & 7, code & !7) {
            (LD, ABS) if k.is_multiple_of(4) && slot / 4 < data.len() => self.a = data[slot / 4],
            (LD, IMM) => self.a = Word::is(k),
            (LDX, IMM) => self.x = Word::is(k),
            (LD, LEN) => self.a = Word::is(64),
            (LDX, LEN) => self.x = Word::is(64),
            (LD, MEM) if slot < 16 => self.a = self.memory[slot],
            (LDX, MEM) if slot < 16 => self.x = self.memory[slot],
            (ST, 0) if slot < 16 => self.memory[slot] = self.a,
            (STX, 0) if slot < 16 => self.memory[slot] = self.x,
            (ALU, what) => match alu(what & !BY_X, self.a, operand) {
                Some(word) => self.a = word,
                None => return Step::Unclear,
            },
            (JMP, what) => return self.jump(what & !BY_X, operand, (yes, no, k)),
            (RET, 0) => return Step::Returns(Word::is(k)),
            (RET, 0x10) => return Step::Returns(self.a),
            (MISC, 0) => self.x = self.a,
            (MISC, 0x80) => self.a = self.x,
            _ => return Step::Unclear,
        }
        Step::On
    }

    fn jump(&mut self, what: u16, operand: Word, (yes, no, k): (u8, u8, u32)) -> Step {
        if what == 0 {
            self.at += k as usize;
            return Step::On;
        }
        let Some(outcome) = compare(what, self.a, operand) else {
            return Step::Unclear;
        };
        let [yes, no] = [yes, no].map(|by| self.at + usize::from(by));
        match outcome {
            Outcome::Surely(is_so) => self.at = if is_so { yes } else { no },
            Outcome::Either => return Step::Either([yes, no]),
            Outcome::ByChange => return Step::Looks,
        }
        Step::On
    }
}

fn alu(what: u16, a: Word, b: Word) -> Option<Word> {
    Some(match what {
        0x00 => a.counted(b, u32::wrapping_add),
        0x10 => a.counted(b, u32::wrapping_sub),
        0x20 => a.counted(b, u32::wrapping_mul),
        // The kernel returns 0 from the whole filter where this divides by 0: it ends a thread.
        0x30 if b.number().is_some_and(|b| b != 0) => a.counted(b, |a, b| a / b),
        0x40 => a.or(b),
        0x50 => a.and(b),
        0x60 => a.shifted(b, u32::checked_shl),
        0x70 => a.shifted(b, u32::checked_shr),
        0x80 => Word::is(0).counted(a, u32::wrapping_sub),
        0xa0 => a.xor(b),
        _ => return None,
    })
}

enum Outcome {
    Surely(bool),
    Either,
    /// One or the other, by what is not as the program asked for.
    ByChange,
}

/// `None` where that is no comparison.
fn compare(what: u16, a: Word, b: Word) -> Option<Outcome> {
    let both = a.known & b.known;
    let (low, high) = (a.range(), b.range());
    let surely = match what {
        // JEQ, JGT, JGE, JSET.
        0x10 if (a.bits ^ b.bits) & both != 0 => Some(false),
        0x10 => (both == u32::MAX).then_some(true),
        0x20 if low.start() > high.end() => Some(true),
        0x20 => (low.end() <= high.start()).then_some(false),
        0x30 if low.start() >= high.end() => Some(true),
        0x30 => (low.end() < high.start()).then_some(false),
        0x40 if a.bits & b.bits != 0 => Some(true),
        0x40 => (low.end() & high.end() == 0).then_some(false),
        _ => return None,
    };
    let changed = match what {
        0x40 => (a.changed & high.end()) | (b.changed & low.end()),
        _ => a.changed | b.changed,
    };
    Some(match surely {
        Some(outcome) => Outcome::Surely(outcome),
        None if changed != 0 => Outcome::ByChange,
        None => Outcome::Either,
    })
}

#[cfg(test)]
mod tests;
