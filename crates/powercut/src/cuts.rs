//! Which power cuts are tried, and in which order.
//!
//! Acknowledgements come first: a cut right behind one is where a missing sync shows, while random
//! times miss most of it. At each cut first what is for good alone, then everything, then what
//! lies between.
//!
//! Promise: the same log, seed and number give the same states in the same order; none comes twice.
//! A state is what is on the disk together with what had been acknowledged: the same disk is
//! another state where more had been promised.

use super::log::{Image, Log, Mark, Op, Voice};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use synclater_random::Random;

/// What of the pending writes reached the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// The first so many.
    First(u32),
    /// All but this one: it was dropped, or came late.
    Without(u32),
    /// This one alone: it came before the others.
    Only(u32),
    /// The first so many, and of the next one the first so many sectors.
    Torn(u32, u32),
    /// Each with a chance of a half, each tenth torn; by a seed.
    Some(u64),
}

/// Where the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// Right behind something that was said.
    Said,
    /// Right before a flush: nothing more can be pending.
    BeforeFlush,
    /// At the end of all.
    End,
}

/// A state of the disk after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cut {
    /// It comes before this operation of the log.
    pub at: usize,
    /// Why there.
    pub moment: Moment,
    /// What reached the disk of what was pending.
    pub reached: Reached,
}

impl Log {
    /// The disk after a power cut.
    ///
    /// # Panics
    /// If the cut is behind the end of the log.
    #[must_use]
    pub fn state(&self, cut: &Cut) -> Image {
        let mut image = self.image(self.durable(cut.at));
        let pending = self.pending(cut.at);
        match cut.reached {
            Reached::Nothing => {}
            Reached::Everything => self.apply_all(&mut image, pending.iter()),
            Reached::First(n) => self.apply_all(&mut image, pending.iter().take(n as usize)),
            Reached::Only(n) => {
                self.apply_all(&mut image, pending.iter().skip(n as usize).take(1));
            }
            Reached::Without(n) => {
                let others = pending.iter().enumerate();
                let others = others.filter(|(k, _)| *k != n as usize);
                self.apply_all(&mut image, others.map(|(_, op)| op));
            }
            Reached::Torn(n, sectors) => {
                self.apply_all(&mut image, pending.iter().take(n as usize));
                if let Some(op) = pending.get(n as usize) {
                    let mut left = sectors;
                    self.apply(&mut image, *op, |_| {
                        let keeps = left > 0;
                        left = left.saturating_sub(1);
                        keeps
                    });
                }
            }
            Reached::Some(seed) => self.apply_some(&mut image, &pending, seed),
        }
        image
    }

    /// Makes whole writes in an image, by the place of their operations.
    fn apply_all<'a>(&self, image: &mut Image, ops: impl Iterator<Item = &'a usize>) {
        ops.for_each(|op| self.apply(image, *op, |_| true));
    }

    fn apply_some(&self, image: &mut Image, pending: &[usize], seed: u64) {
        let mut random = Random::new(seed);
        for op in pending {
            let fate = random.below(20);
            if fate < 2 {
                let mut sectors = Random::new(random.draw());
                self.apply(image, *op, |_| sectors.below(2) == 0);
            } else if fate < 11 {
                self.apply(image, *op, |_| true);
            }
        }
    }

    fn sectors(&self, op: usize) -> u32 {
        match &self.ops[op] {
            Op::Write { contents, .. } => u32::try_from(contents.len()).unwrap_or(u32::MAX),
            _ => 0,
        }
    }
}

/// The same ones, so that the first few lie far apart: by their places, bits reversed.
fn spread<T>(all: Vec<T>) -> Vec<T> {
    let bits = usize::BITS - all.len().leading_zeros();
    let mut placed: Vec<(usize, T)> = all.into_iter().enumerate().collect();
    placed.sort_by_key(|(n, _)| n.reverse_bits() >> (usize::BITS - bits.max(1)));
    placed.into_iter().map(|(_, one)| one).collect()
}

/// A place in the log, and why there.
type CutPoint = (usize, Moment);

fn cut((at, moment): CutPoint, reached: Reached) -> Cut {
    Cut {
        at,
        moment,
        reached,
    }
}

/// A place, and whether any write is pending there.
type Considered = (CutPoint, bool);

/// The cuts to be tried: first nothing of what was pending, at each moment; then by turns all of
/// it, single writes, and chance.
pub struct Cuts<'a> {
    log: &'a Log,
    /// Where something was acknowledged, in order.
    said: Vec<usize>,
    /// Moments for which nothing reached the disk, backwards.
    nothing: Vec<CutPoint>,
    /// Moments at which something was pending, the most promising first.
    pending: Vec<CutPoint>,
    /// How many of these had everything tried, and how many single writes.
    everything: usize,
    singled: usize,
    /// Single writes of one moment, backwards.
    singles: Vec<Cut>,
    /// The next moment for chance.
    chance: usize,
    random: Random,
    /// Whose turn it is.
    turn: u8,
    /// States that were given out: the image, and how much had been acknowledged.
    seen: HashSet<(u128, usize)>,
    /// Throws in a row that gave nothing new.
    barren: usize,
    /// Cuts that gave a state which was there already.
    pub same: u64,
    /// Whether a cut is one of those that are asked for.
    wanted: fn(&Cut) -> bool,
}

/// Throws at each moment without anything new, after which there is nothing more to be expected.
const BARREN_MAX: usize = 8;
/// And never more than so many in a row: each takes its time.
const THROWS_MAX: usize = 2000;
/// Single drops, single reorders and prefixes of one cut, at most: evenly chosen where there are
/// more pending writes.
const SINGLES_MAX: usize = 64;

/// The moments of a log at which the power is cut, the most promising first; and where something
/// was acknowledged.
fn moments(log: &Log, voice: Voice) -> (Vec<Considered>, Vec<usize>) {
    let mut said = Vec::new();
    let mut is_pending = false;
    let mut telling = Vec::new();
    let mut repeated = Vec::new();
    let mut flushes = Vec::new();
    let mut is_quiet = false;
    for (at, op) in log.ops.iter().enumerate() {
        match op {
            Op::Mark(Mark::Line(v, _)) if *v != voice => {}
            Op::Mark(mark) => {
                if matches!(mark, Mark::Line(..)) {
                    said.push(at);
                }
                // Of several on the same disk the last one promises most.
                if is_quiet {
                    repeated.extend(telling.pop());
                }
                telling.push(((at + 1, Moment::Said), is_pending));
                is_quiet = true;
            }
            Op::Flush => {
                flushes.push(((at, Moment::BeforeFlush), is_pending));
                is_pending = false;
            }
            Op::Write { .. } => is_pending = true,
            Op::FlushOfNothing => continue,
        }
        is_quiet &= matches!(op, Op::Mark(_));
    }
    let end = vec![((log.ops.len(), Moment::End), is_pending)];
    let all = [telling, flushes, end, repeated].map(spread);
    (all.concat(), said)
}

impl<'a> Cuts<'a> {
    /// All that a log allows, by a seed; acknowledgements are the lines of `voice`.
    #[must_use]
    pub fn new(log: &'a Log, voice: Voice, seed: u64) -> Cuts<'a> {
        let (moments, said) = moments(log, voice);
        let pending = moments.iter().filter(|(_, is_pending)| *is_pending);
        Cuts {
            log,
            said,
            pending: pending.map(|(place, _)| *place).collect(),
            nothing: moments.iter().rev().map(|(place, _)| *place).collect(),
            everything: 0,
            singled: 0,
            singles: Vec::new(),
            chance: 0,
            random: Random::new(seed),
            turn: 0,
            seen: HashSet::new(),
            barren: 0,
            same: 0,
            wanted: |_| true,
        }
    }

    /// Only those cuts of which `wanted` says so; no state is built for the others.
    #[must_use]
    pub fn only(self, wanted: fn(&Cut) -> bool) -> Cuts<'a> {
        Cuts { wanted, ..self }
    }

    /// The state of a cut, where it is a new one.
    fn new_state(&mut self, cut: &Cut) -> Option<Image> {
        let image = self.log.state(cut);
        let promised = self.said.partition_point(|said| *said < cut.at);
        let is_new = self.seen.insert((image.number(), promised));
        self.same += u64::from(!is_new);
        is_new.then_some(image)
    }

    /// The next cut, whatever it gives; `None` where nothing new is to be expected.
    fn propose(&mut self) -> Option<Cut> {
        if let Some(place) = self.nothing.pop() {
            return Some(cut(place, Reached::Nothing));
        }
        for _ in 0..3 {
            self.turn = (self.turn + 1) % 3;
            let next = match self.turn {
                0 => self.by_chance(),
                1 => self.with_everything(),
                _ => self.with_a_single(),
            };
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn with_everything(&mut self) -> Option<Cut> {
        let place = *self.pending.get(self.everything)?;
        self.everything += 1;
        Some(cut(place, Reached::Everything))
    }

    fn with_a_single(&mut self) -> Option<Cut> {
        while self.singles.is_empty() {
            let place = *self.pending.get(self.singled)?;
            self.singled += 1;
            let singles = self.singles_at(place.0).into_iter();
            let singles = singles.map(|reached| cut(place, reached));
            self.singles = spread(singles.collect());
            self.singles.reverse();
        }
        self.singles.pop()
    }

    fn by_chance(&mut self) -> Option<Cut> {
        let throws = (BARREN_MAX * self.pending.len()).min(THROWS_MAX);
        let others = self.everything < self.pending.len() || self.singled < self.pending.len();
        if self.barren >= throws && !others {
            return None;
        }
        let place = *self.pending.get(self.chance % self.pending.len().max(1))?;
        self.chance += 1;
        Some(cut(place, Reached::Some(self.random.draw())))
    }

    /// What lies between nothing and everything, one write at a time.
    fn singles_at(&self, at: usize) -> Vec<Reached> {
        let pending = self.log.pending(at);
        let step = pending.len().div_ceil(SINGLES_MAX).max(1);
        let mut singles = Vec::new();
        for n in (0..pending.len()).step_by(step) {
            let sectors = self.log.sectors(pending[n]);
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            singles.extend([Reached::Without(n), Reached::Only(n), Reached::First(n)]);
            if sectors > 1 {
                singles.push(Reached::Torn(n, sectors / 2));
            }
        }
        singles
    }
}

impl Iterator for Cuts<'_> {
    type Item = (Cut, Image);

    fn next(&mut self) -> Option<(Cut, Image)> {
        loop {
            let cut = self.propose()?;
            let new = (self.wanted)(&cut).then(|| self.new_state(&cut)).flatten();
            if matches!(cut.reached, Reached::Some(_)) {
                self.barren = if new.is_some() { 0 } else { self.barren + 1 };
            }
            if let Some(image) = new {
                return Some((cut, image));
            }
        }
    }
}

#[cfg(test)]
mod tests;
