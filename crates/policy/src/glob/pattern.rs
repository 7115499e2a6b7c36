//! The syntax of globs: a pattern becomes a row of tokens. The rules stand in the parent's header.
//!
//! Promise: every pattern has tokens, at most one for each of its bytes. What a token may match in
//! its mode is settled here, so that the matcher knows nothing of modes.
//!
//! What it does not do: it refuses nothing; limits are the parent's.

use super::Mode;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// Any bytes, `/` too.
    Stretch,
    /// Any bytes but `/`.
    Segment,
    /// One byte.
    Byte(u8),
    /// One byte of these.
    Set(ByteSet),
}

/// A set of bytes, one bit each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ByteSet([u64; 4]);

/// Turns a pattern into tokens; anything is a pattern.
pub(super) fn compile(pattern: &[u8], mode: Mode) -> Vec<Token> {
    let mut tokens = Vec::with_capacity(pattern.len());
    // Where the last `]` is: without it, a row of `[` would be searched to the end for each one.
    let last_bracket = pattern.iter().rposition(|&byte| byte == b']').unwrap_or(0);
    let mut rest = pattern;
    while let Some((&first, after)) = rest.split_first() {
        let here = pattern.len() - rest.len();
        let (token, left) = match first {
            b'*' => take_stars(rest, mode),
            b'?' => (Token::Set(ByteSet::EMPTY.negated().in_mode(mode)), after),
            b'[' if here < last_bracket => take_set(after, mode),
            b'\\' if !after.is_empty() => (Token::Byte(after[0]), &after[1..]),
            literal => (Token::Byte(literal), after),
        };
        tokens.push(token);
        rest = left;
    }
    tokens
}

fn take_stars(rest: &[u8], mode: Mode) -> (Token, &[u8]) {
    let count = rest.iter().take_while(|&&byte| byte == b'*').count();
    let token = match (mode, count) {
        (Mode::Path, 1) => Token::Segment,
        _ => Token::Stretch,
    };
    (token, &rest[count..])
}

/// Takes a set whose `[` has been taken; a literal `[` when its `]` is missing.
fn take_set(after: &[u8], mode: Mode) -> (Token, &[u8]) {
    let (negated, mut rest) = match after.first() {
        Some(b'!' | b'^') => (true, &after[1..]),
        _ => (false, after),
    };
    let mut set = ByteSet::EMPTY;
    let mut first = true;
    loop {
        if rest.first() == Some(&b']') && !first {
            let set = if negated { set.negated() } else { set };
            return (Token::Set(set.in_mode(mode)), &rest[1..]);
        }
        first = false;
        let Some((low, high, left)) = take_members(rest) else {
            return (Token::Byte(b'['), after);
        };
        set.add_range(low, high);
        rest = left;
    }
}

/// Takes one member or range of a set: its lowest and highest byte. `None` at the pattern's end.
fn take_members(rest: &[u8]) -> Option<(u8, u8, &[u8])> {
    let (low, after) = take_member(rest)?;
    match after {
        [b'-', next, ..] if *next != b']' => {
            let (high, left) = take_member(&after[1..])?;
            Some((low, high, left))
        }
        _ => Some((low, low, after)),
    }
}

fn take_member(rest: &[u8]) -> Option<(u8, &[u8])> {
    match rest {
        [b'\\', escaped, left @ ..] => Some((*escaped, left)),
        [byte, left @ ..] => Some((*byte, left)),
        [] => None,
    }
}

impl ByteSet {
    const EMPTY: ByteSet = ByteSet([0; 4]);

    fn add_range(&mut self, low: u8, high: u8) {
        for byte in low..=high {
            self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
    }

    fn negated(&self) -> ByteSet {
        ByteSet(self.0.map(|word| !word))
    }

    /// Without `/` in path mode.
    fn in_mode(mut self, mode: Mode) -> ByteSet {
        if mode == Mode::Path {
            self.0[usize::from(b'/' >> 6)] &= !(1 << (b'/' & 63));
        }
        self
    }

    pub(super) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }
}
