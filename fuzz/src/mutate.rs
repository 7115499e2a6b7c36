//! Makes new inputs of old ones: bytes flipped, put in, cut out, copied, words put in.
//!
//! Promise: an input never grows over [`INPUT_BYTES_MAX`].
//!
//! What it does not do: it knows nothing of what the target reads but its seeds and words.

use synclater_random::Random;

/// The longest input.
pub const INPUT_BYTES_MAX: usize = 8192;

/// At most this many changes on one input: more leave nothing that a reader would take.
const CHANGES_MAX: usize = 12;

/// Bytes that readers of text look at, and the ends of the ranges.
const EDGES: &[u8] = b"\0\x01\x7f\x80\xff\n\r\t \"'\\[]{}=#-*?!^/:,.09az";

/// Takes one of the seeds, or two in a row, and changes it some times.
pub fn mutated(seeds: &[&[u8]], words: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut input = pick(random, seeds).map_or(Vec::new(), |seed| seed.to_vec());
    if below(random, 4) == 0 {
        input.extend_from_slice(pick(random, seeds).copied().unwrap_or_default());
    }
    for _ in 0..=below(random, CHANGES_MAX) {
        change(&mut input, words, random);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn change(input: &mut Vec<u8>, words: &[&[u8]], random: &mut Random) {
    let at = below(random, input.len() + 1);
    match below(random, 7) {
        0 => flip(input, at, random),
        1 => replace(input, at, random),
        2 => input.insert(at, edge_or_any(random)),
        3 => cut_out(input, random),
        4 => copy(input, at, random),
        5 => input.truncate(at),
        _ => {
            let word = pick(random, words).copied().unwrap_or_default();
            input.splice(at..at, word.iter().copied());
        }
    }
}

fn flip(input: &mut [u8], at: usize, random: &mut Random) {
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << below(random, 8);
    }
}

fn replace(input: &mut [u8], at: usize, random: &mut Random) {
    if let Some(byte) = input.get_mut(at) {
        *byte = edge_or_any(random);
    }
}

fn edge_or_any(random: &mut Random) -> u8 {
    match below(random, 3) {
        0 => random.draw() as u8,
        _ => pick(random, EDGES).copied().unwrap_or_default(),
    }
}

fn stretch(input: &[u8], random: &mut Random) -> std::ops::Range<usize> {
    let start = below(random, input.len() + 1);
    let bytes = below(random, (input.len() - start).min(64) + 1);
    start..start + bytes
}

fn cut_out(input: &mut Vec<u8>, random: &mut Random) {
    let stretch = stretch(input, random);
    input.drain(stretch);
}

/// Puts a stretch of the input in once more, some times over: long runs find what is quadratic.
fn copy(input: &mut Vec<u8>, at: usize, random: &mut Random) {
    let stretch = input[stretch(input, random)].to_vec();
    let times = 1 << below(random, 7);
    let room = INPUT_BYTES_MAX.saturating_sub(input.len());
    let copies = stretch
        .iter()
        .copied()
        .cycle()
        .take((stretch.len() * times).min(room));
    let copies: Vec<u8> = copies.collect();
    input.splice(at..at, copies);
}

/// A number below `bound`; 0 when the bound is 0.
pub fn below(random: &mut Random, bound: usize) -> usize {
    random.below(bound as u64) as usize
}

/// One of these; `None` when there is none.
fn pick<'a, T>(random: &mut Random, choices: &'a [T]) -> Option<&'a T> {
    choices.get(below(random, choices.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_stay_short_and_differ() {
        let mut random = Random::new(23);
        let seeds: &[&[u8]] = &[b"[[rule]]\nexe = 'x'\n", b""];
        let inputs: Vec<Vec<u8>> = (0..997)
            .map(|_| mutated(seeds, &[b"until"], &mut random))
            .collect();
        assert!(inputs.iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        let mut distinct = inputs.clone();
        distinct.sort();
        distinct.dedup();
        assert!(distinct.len() > 700, "{} of 997", distinct.len());
    }
}
