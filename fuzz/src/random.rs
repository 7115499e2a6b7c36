//! A small random number generator: xorshift64*, by Marsaglia and Vigna.
//!
//! Promise: the same seed gives the same numbers on every machine.
//!
//! What it does not do: it is neither secure nor exactly uniform over a range.

/// The generator's state; never 0, where it would stay.
pub struct Random(u64);

impl Random {
    /// Begins with a seed; any number is one.
    pub fn new(seed: u64) -> Random {
        // Spreads small seeds over all bits (the constant of splitmix64).
        Random(
            seed.wrapping_add(1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .max(1),
        )
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.number()) * bound as u128) >> 64) as usize
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        (self.number() >> 56) as u8
    }

    /// One of these; `None` when there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut one, mut other) = (Random::new(23), Random::new(23));
        assert!((0..97).all(|_| one.number() == other.number()));
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(0);
        let mut seen = [false; 7];
        (0..997).for_each(|_| seen[random.below(7)] = true);
        assert_eq!(seen, [true; 7]);
        assert_eq!(random.below(0), 0);
    }
}
