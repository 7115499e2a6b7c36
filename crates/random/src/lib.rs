//! Numbers that look random, and are the same everywhere: SplitMix64 (Steele, Lea, Flood 2014).
//!
//! Promise: the same seed gives the same numbers on every machine and with every release: seeds
//! stand in reports, and what they gave has to be found again.
//!
//! By hand, since no crate of random numbers promises that.
//!
//! What it does not do: it keeps no secret. Names that nobody may guess come from the kernel.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

/// What each step of a sequence adds.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: each bit of `n` changes about half of the result's.
#[must_use]
pub fn finish(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A sequence of them.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that follow from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A seed that follows from a text (FNV-1a), so that a group's interval does not depend on
    /// which groups stand before it.
    #[must_use]
    pub fn of(text: &str) -> Random {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Random(hash)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        finish(self.0)
    }

    /// A number below `end`, or 0 where `end` is 0. For `end` up to 2¹⁴ all are equally likely, but
    /// for 1 in 2⁵⁰.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 to 1, without 1.
    pub fn part(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_those_of_the_paper() {
        // The first three of SplitMix64 with seed 1234567, as published with its reference code.
        let mut random = Random::new(1_234_567);
        let numbers = [(); 3].map(|()| random.draw());
        let reference = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(numbers, reference);
    }

    #[test]
    fn a_number_below_nothing_is_0_and_parts_stay_below_1() {
        let mut random = Random::new(7);
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.part())));
    }
}
