//! What was written to a disk, in order, and what was said meanwhile.
//!
//! Promise: operations stand in the order in which the disk completed them; a mark stands behind
//! everything that was complete when it was made.

use super::store::{Content, Store};
use std::ops::Range;
use synclater_random::{finish, Random};

/// Where something was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Voice {
    /// On stdout.
    Out,
    /// On stderr.
    Err,
    /// On the descriptor for acknowledgements.
    Ack,
}

/// What happened beside the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line was said, here without its end.
    Line(Voice, Vec<u8>),
    /// The program ended, with this status.
    Exit(i32),
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Contents came to sectors; discards and writes of zeros are this too.
    Write {
        /// The first sector.
        at: u32,
        /// The contents, in [`Log::contents`].
        contents: Range<usize>,
    },
    /// What was written before is there for good.
    Flush,
    /// A flush that the disk has lied about: it has no meaning.
    FlushOfNothing,
    /// Something was said.
    Mark(Mark),
}

/// A disk as it is at one moment: a content for each sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image(pub Vec<Content>);

impl Image {
    /// One of zeros.
    #[must_use]
    pub fn zeros(sectors: usize) -> Image {
        Image(vec![0; sectors])
    }

    /// A number that another image does not have, but for a chance of 1 in 2^128.
    #[must_use]
    pub fn number(&self) -> u128 {
        let all = self.0.iter().enumerate();
        all.filter(|(_, content)| **content != 0)
            .fold(0, |sum: u128, (at, content)| {
                sum.wrapping_add(mixed((at as u64) << 32 | u64::from(*content)))
            })
    }
}

/// Two finalizers with different increments, side by side.
fn mixed(n: u64) -> u128 {
    let low = Random::new(n).draw();
    let high = finish(finish(n ^ 0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f));
    u128::from(high) << 64 | u128::from(low)
}

/// The place of a line among the operations, and what it says.
pub type Line<'a> = (usize, &'a [u8]);

/// Everything that happened to a disk.
pub struct Log {
    /// As it was before.
    pub base: Image,
    /// What happened.
    pub ops: Vec<Op>,
    /// The contents of all writes, one after the other.
    pub contents: Vec<Content>,
    /// When each operation happened, in nanoseconds since 1970.
    pub times_ns: Vec<i64>,
    /// Writes that are discards, or ranges to be made zeros.
    pub zeroed: u64,
}

impl Log {
    /// Nothing has happened yet to `base`.
    #[must_use]
    pub fn new(base: Image) -> Log {
        Log {
            base,
            ops: Vec::new(),
            contents: Vec::new(),
            times_ns: Vec::new(),
            zeroed: 0,
        }
    }

    fn push(&mut self, op: Op, time_ns: i64) {
        self.ops.push(op);
        self.times_ns.push(time_ns);
    }

    /// Notes a write of whole sectors.
    ///
    /// # Panics
    /// If they are not whole, or lie outside of the disk.
    pub fn write(&mut self, store: &mut Store, at: u32, bytes: &[u8], time_ns: i64) {
        let begin = self.contents.len();
        let sectors = bytes.chunks_exact(store.unit());
        assert!(sectors.remainder().is_empty(), "whole sectors");
        self.contents.extend(sectors.map(|s| store.put(s)));
        self.note_write(at, begin, time_ns);
    }

    /// Notes that sectors became zeros.
    ///
    /// # Panics
    /// If they lie outside of the disk.
    pub fn zero(&mut self, at: u32, sectors: u32, time_ns: i64) {
        self.zeroed += 1;
        let begin = self.contents.len();
        self.contents.resize(begin + sectors as usize, 0);
        self.note_write(at, begin, time_ns);
    }

    fn note_write(&mut self, at: u32, begin: usize, time_ns: i64) {
        let contents = begin..self.contents.len();
        assert!(at as usize + contents.len() <= self.base.0.len(), "outside");
        self.push(Op::Write { at, contents }, time_ns);
    }

    /// Notes a flush; one that `lies` is answered and not made.
    pub fn flush(&mut self, lies: bool, time_ns: i64) {
        let op = if lies { Op::FlushOfNothing } else { Op::Flush };
        self.push(op, time_ns);
    }

    /// Notes what was said.
    pub fn mark(&mut self, mark: Mark, time_ns: i64) {
        self.push(Op::Mark(mark), time_ns);
    }

    /// The lines that were said on `voice` before operation `end`, without their ends, each with
    /// its place.
    pub fn lines(&self, voice: Voice, end: usize) -> impl DoubleEndedIterator<Item = Line<'_>> {
        let ops = self.ops[..end].iter().enumerate();
        ops.filter_map(move |(at, op)| match op {
            Op::Mark(Mark::Line(v, line)) if *v == voice => Some((at, line.as_slice())),
            _ => None,
        })
    }

    /// What was said on `voice` before operation `end`: whole lines.
    #[must_use]
    pub fn said(&self, voice: Voice, end: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for (_, line) in self.lines(voice, end) {
            all.extend_from_slice(line);
            all.push(b'\n');
        }
        all
    }

    /// The end of what is there for good where the power is cut before operation `cut`: behind the
    /// last flush.
    #[must_use]
    pub fn durable(&self, cut: usize) -> usize {
        let flush = self.ops[..cut].iter().rposition(|op| *op == Op::Flush);
        flush.map_or(0, |at| at + 1)
    }

    /// The writes that may be lost then, by the place of their operations.
    #[must_use]
    pub fn pending(&self, cut: usize) -> Vec<usize> {
        (self.durable(cut)..cut)
            .filter(|op| matches!(self.ops[*op], Op::Write { .. }))
            .collect()
    }

    /// Makes the write of operation `op` in an image, of the sectors for which `keeps` says so.
    pub fn apply(&self, image: &mut Image, op: usize, mut keeps: impl FnMut(u32) -> bool) {
        if let Op::Write { at, contents } = &self.ops[op] {
            for (sector, content) in (*at..).zip(&self.contents[contents.clone()]) {
                if keeps(sector) {
                    image.0[sector as usize] = *content;
                }
            }
        }
    }

    /// The disk with every write before operation `end`.
    #[must_use]
    pub fn image(&self, end: usize) -> Image {
        let mut image = self.base.clone();
        (0..end).for_each(|op| self.apply(&mut image, op, |_| true));
        image
    }
}
