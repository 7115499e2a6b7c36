//! Umounts of programs that the library does not reach.
//!
//! Promise: as in the library (crates/shim/c/routes/mounts.c), the supervisor has settled the file
//! system and let go of it when the call is made. The threads of a process have one slot, with room
//! for one such question: they take turns.

use super::super::visitor::Visitor;
use super::{text_at, Desk, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use synclater_shim::page;
use synclater_sys::mount::{id_of_fd, what_is, MNT_ID};
use synclater_sys::seccomp::Call;
use synclater_sys::wait;

/// How often is looked whether the supervisor lives, and whether a call was made.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// At how many looks a program runs before it is on its way back.
const RUNS: u32 = 50;

/// How long a turn is waited for while nothing is settled. One whose call has no end, since the
/// program itself serves that file system, is not waited for.
const TURN: Duration = Duration::from_secs(10);

/// A umount that somebody is about to make.
pub struct Unmounting {
    slot: usize,
    tid: u32,
    number: u32,
    /// What is mounted there, and the mount.
    what: (u64, u64),
}

/// The turns of all slots.
#[derive(Default)]
pub(super) struct Turns {
    lines: Mutex<Lines>,
    given_back: Condvar,
}

#[derive(Default)]
struct Lines {
    of: BTreeMap<usize, Line>,
    /// The number of the turn that was asked for last.
    last: u64,
}

/// Who has the turn of a slot, and the number of that turn; those who wait for theirs.
#[derive(Default)]
struct Line {
    has: Option<(u32, u64)>,
    waiting: VecDeque<u64>,
}

/// What one umount has alone, of those of its slot.
struct Turn<'a> {
    turns: &'a Turns,
    slot: usize,
    number: u64,
}

impl Turns {
    /// Waits for the turn of `slot` until `is_enough`; `None` then. A thread that comes again has
    /// its call behind it, or a signal has interrupted that: it gives its turn back.
    fn take(&self, slot: usize, tid: u32, mut is_enough: impl FnMut() -> bool) -> Option<Turn<'_>> {
        let mut lines = self.lock();
        lines.last += 1;
        let number = lines.last;
        let line = lines.of.entry(slot).or_default();
        line.waiting.push_back(number);
        if line.has.is_some_and(|(who, _)| who == tid) {
            line.has = None;
            self.given_back.notify_all();
        }
        loop {
            let line = lines.of.entry(slot).or_default();
            if line.has.is_none() && line.waiting.front() == Some(&number) {
                line.waiting.pop_front();
                line.has = Some((tid, number));
                return Some(Turn {
                    turns: self,
                    slot,
                    number,
                });
            }
            if is_enough() {
                line.waiting.retain(|n| *n != number);
                self.given_back.notify_all();
                return None;
            }
            let waited = self.given_back.wait_timeout(lines, LOOK_EVERY);
            (lines, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    fn is_in(&self, lines: &Lines) -> bool {
        let has = lines.of.get(&self.slot).and_then(|line| line.has);
        has.is_some_and(|(_, number)| number == self.number)
    }

    fn is_ours(&self) -> bool {
        self.is_in(&self.turns.lock())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = self.turns.lock();
        if self.is_in(&lines) {
            lines.of.entry(self.slot).or_default().has = None;
            self.turns.given_back.notify_all();
        }
    }
}

impl Desk {
    /// A umount, if what is mounted there can be told.
    pub(super) fn of_mount(&self, visitor: &Visitor, call: &Call) -> Option<Verdict> {
        const UMOUNT_NOFOLLOW: u64 = 8;
        if self.terms.shared.lease_is_over() {
            return None;
        }
        let path = text_at(call.tid, call.arguments[0])?;
        let stays_on_link = call.arguments[1] & UMOUNT_NOFOLLOW != 0;
        let point = visitor.open(&path, stays_on_link).ok()?;
        let (number, _) = what_is(&point).ok()?;
        let mount = id_of_fd(&point, MNT_ID).unwrap_or(0);
        Some(Verdict::Unmounts(Unmounting {
            slot: visitor.place(self.slots()),
            tid: call.tid,
            number: call.number,
            what: (number, mount),
        }))
    }

    /// Has a umount made by whoever has asked, as `made` allows, once nothing of ours stands in the
    /// way.
    pub fn unmount(&self, of: &Unmounting, made: impl FnOnce()) {
        let turn = self.take_turn(of);
        let turn = turn.as_ref();
        self.get_out_of_the_way(of, turn);
        made();
        self.see_it_made(of, turn);
        if turn.is_none_or(Turn::is_ours) {
            let word = &self.slots().slot[of.slot].umount;
            word.store(page::UMOUNT_OVER, SeqCst);
            self.ring();
        }
    }

    fn take_turn(&self, of: &Unmounting) -> Option<Turn<'_>> {
        let at = &self.slots().slot[of.slot];
        let mut moved = (0, Instant::now());
        self.turns.take(of.slot, of.tid, || {
            let mount = at.umount_mount.load(SeqCst);
            if mount != moved.0 || at.umount.load(SeqCst) == page::UMOUNT_ASKED {
                moved = (mount, Instant::now());
            }
            self.terms.shared.lease_is_over() || moved.1.elapsed() > TURN
        })
    }

    /// Where others have the same slot, another one's answer says nothing of this.
    fn get_out_of_the_way(&self, of: &Unmounting, turn: Option<&Turn<'_>>) {
        const TIMES: u32 = 64; // that it is asked, at most
        let at = &self.slots().slot[of.slot];
        for _ in 0..TIMES {
            if !self.goes_on(turn) {
                return;
            }
            at.umount_dev.store(of.what.0, SeqCst);
            at.umount_mount.store(of.what.1, SeqCst);
            at.umount.store(page::UMOUNT_ASKED, SeqCst);
            self.ring();
            while at.umount.load(SeqCst) == page::UMOUNT_ASKED && self.goes_on(turn) {
                wait::sleep_on(&at.umount, page::UMOUNT_ASKED, LOOK_EVERY);
            }
            let is_told = at.umount.load(SeqCst) == page::UMOUNT_READY;
            if is_told && at.umount_mount.load(SeqCst) == of.what.1 {
                return;
            }
        }
    }

    /// Whether it is still the turn of this umount, and the supervisor lives.
    fn goes_on(&self, turn: Option<&Turn<'_>>) -> bool {
        turn.is_none_or(Turn::is_ours) && !self.terms.shared.lease_is_over()
    }

    /// Waits until the call was made.
    fn see_it_made(&self, of: &Unmounting, turn: Option<&Turn<'_>>) {
        let number = of.number.to_string();
        let (mut runs, mut looks) = (0, 0);
        while runs < RUNS && self.goes_on(turn) {
            let text = std::fs::read_to_string(format!("/proc/{}/syscall", of.tid));
            match text.unwrap_or_default().split_whitespace().next() {
                // On its way there, or back.
                Some("running") => runs += 1,
                Some(its) if its == number => runs = 0,
                _ => break,
            }
            looks += 1;
            std::thread::sleep(if looks < RUNS { LOOK_AGAIN } else { LOOK_EVERY });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;
    use std::sync::mpsc::channel;

    const NEVER: fn() -> bool = || false;
    const AT_ONCE: fn() -> bool = || true;

    #[test]
    fn one_umount_of_a_slot_is_made_at_a_time() {
        let turns = Turns::default();
        let first = turns.take(7, 100, NEVER).expect("nobody has it");
        assert!(turns.take(7, 101, AT_ONCE).is_none(), "two have it");
        assert!(turns.take(8, 102, AT_ONCE).is_some(), "another slot waits");
        let (waits, is_waiting) = channel();
        std::thread::scope(|all| {
            let second = all.spawn(|| {
                let sees_it = || {
                    waits.send(()).expect("somebody listens");
                    false
                };
                turns.take(7, 101, sees_it).is_some_and(|t| t.is_ours())
            });
            is_waiting.recv().expect("it waits");
            drop(first);
            assert!(second.join().expect("it ends"));
        });
        assert!(
            turns.take(7, 103, AT_ONCE).is_some(),
            "it was not given back"
        );
    }

    /// Its call is over by then, or a signal's handler makes this one in the middle of it.
    #[test]
    fn a_thread_that_comes_again_does_not_wait_for_itself() {
        let turns = Turns::default();
        let first = turns.take(7, 100, NEVER).expect("nobody has it");
        let again = turns.take(7, 100, NEVER).expect("it has it");
        assert!(!first.is_ours() && again.is_ours());
        drop(first);
        assert!(again.is_ours(), "given back by one that had it before");
    }

    #[test]
    fn a_thread_that_comes_again_and_again_lets_others_have_their_turn() {
        let turns = Turns::default();
        let mut row = turns.take(7, 100, NEVER).expect("nobody has it");
        let (waits, is_waiting) = channel();
        std::thread::scope(|all| {
            let other = all.spawn(|| {
                let sees_it = || {
                    waits.send(()).expect("somebody listens");
                    false
                };
                turns.take(7, 101, sees_it).expect("in the end").number
            });
            is_waiting.recv().expect("it waits");
            row = turns.take(7, 100, NEVER).expect("behind the other");
            assert!(row.number > other.join().expect("it ends"));
        });
        assert!(row.is_ours());
    }
}
