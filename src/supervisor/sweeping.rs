//! Which processes are to be attached: those that are there, and those that begin.
//!
//! Promise: however many there are, and whatever others execute, a look takes some milliseconds:
//! between two of them the loop does its other work. All looks together take a tenth of its time.

use super::reaching::{Reach, NAMED};
use super::task::{Doing, Who};
use super::BEAT;
use crate::reach::program;
use std::time::{Duration, Instant};
use synclater_sys::births::Births;
use synclater_sys::sharing;

/// At most so many processes are looked at before the loop goes on.
const AT_A_LOOK: usize = 64;

impl Reach {
    /// Whether some that were found are still to be looked at.
    pub(super) fn is_looking(&self) -> bool {
        !self.finding.left.is_empty()
    }

    /// Looks for processes that are to be attached and are not.
    pub(super) fn look(&mut self) {
        let began = Instant::now();
        if began < self.finding.next {
            return;
        }
        if self.finding.left.is_empty() {
            self.find(began);
        }
        self.look_at_some();
        let f = &mut self.finding;
        f.took += began.elapsed();
        f.next = Instant::now();
        if f.left.is_empty() {
            // Anybody may have programs executed as fast as he can, and be as many as he may.
            f.next += f.took * 9;
            f.next_sweep = f.next_sweep.max(f.next);
            f.took = Duration::ZERO;
        }
    }

    /// Finds what is to be looked at: what has begun, and, four times a second, all that is there.
    fn find(&mut self, now: Instant) {
        let born = self.finding.births.as_ref().map(Births::next);
        self.finding.left = born.unwrap_or_default();
        if now < self.finding.next_sweep {
            return;
        }
        self.finding.next_sweep = now + BEAT;
        self.attached.retain(|(pid, program), reached| {
            let executes = program::executes(*pid, *program);
            if !executes {
                self.gone.add(&reached.exe, &reached.name);
            }
            executes
        });
        let found = self.whom.find();
        self.finding
            .passed_over
            .retain(|(pid, _)| found.contains(pid));
        self.finding.left.extend(found);
    }

    /// Attaches those that are meant of some that are left to be looked at.
    fn look_at_some(&mut self) {
        let mut new: Vec<Who> = Vec::new();
        // Outsiders are asked nothing that they may keep us waiting for.
        let members = self.whom.members();
        for _ in 0..AT_A_LOOK {
            let Some(pid) = self.finding.left.pop_first() else {
                break;
            };
            // What is followed is seen to by whoever follows it.
            let is_followed = self
                .followers
                .as_ref()
                .is_some_and(|followers| followers.has(pid));
            let has_code = sharing::has_code(pid);
            let is_asked = has_code
                && !is_followed
                && (self.whom.includes(pid, &members) || self.whom.has(pid));
            let program = is_asked.then(|| program::incarnation(pid));
            let program = program.flatten();
            let who = program.map(|program| (pid, program));
            new.extend(who.filter(|w| !self.knows(*w) && !self.finding.passed_over.contains(w)));
        }
        if new.is_empty() {
            return;
        }
        // Behind which program each executes: a number may have been another's before.
        let members = self.whom.members();
        for (pid, program) in new {
            if !self.whom.means(pid, program, &members) {
                continue;
            }
            match self.whom.refusal(pid, &members) {
                None => self.put((pid, program), Doing::Attach),
                Some(refusal) if self.refused.len() < NAMED => {
                    let exe = program::exe_of(pid);
                    self.refused.insert((pid, program), (exe, refusal));
                }
                Some(_) => drop(self.finding.passed_over.insert((pid, program))),
            }
        }
    }
}
