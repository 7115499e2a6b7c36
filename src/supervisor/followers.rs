//! The tracer of a session that attaches: whom it follows, and what it tells.
//!
//! Promise: whoever is asked for is asked for until it is followed, or refused.

use super::BEAT;
use crate::reach::follow::{Follow, Follower, How, News};
use crate::reach::program;
use crate::reach::status::tracer_of;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;
use synclater_account::escape::Escape;

/// A program that was not reached.
pub struct NotReached {
    /// What it is, or was.
    pub exe: String,
    /// Why.
    pub why: String,
}

/// What traces those that are attached, for what they start.
pub struct Followers {
    follower: Follower,
    /// Asked for, and not answered yet: the number and when it began.
    asked: BTreeMap<(u32, u64), Follow>,
    asked_at: Instant,
    /// Whether anybody is followed.
    has_some: bool,
    is_lost: bool,
    /// Those that cannot be followed, and why.
    refused: Vec<(u32, String)>,
}

impl Followers {
    /// Nobody is followed yet.
    #[must_use]
    pub fn new(follower: Follower) -> Followers {
        Followers {
            follower,
            asked: BTreeMap::new(),
            asked_at: Instant::now(),
            has_some: false,
            is_lost: false,
            refused: Vec::new(),
        }
    }

    /// The tracer's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.follower.pid()
    }

    /// Whether it was killed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether anybody is followed.
    #[must_use]
    pub fn has_some(&self) -> bool {
        self.has_some
    }

    /// Whether somebody is to be followed who is not yet.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether it follows a process.
    #[must_use]
    pub fn has(&self, pid: u32) -> bool {
        !self.is_lost && tracer_of(pid) == self.pid()
    }

    /// Lets everybody go on alone.
    pub fn end(self) {
        self.follower.end();
    }

    /// Has the process be followed that has this number and began then (`process::began`); more of
    /// it where it is asked for twice.
    pub fn ask(&mut self, pid: u32, began: u64, follow: Follow) {
        let all = self.asked.entry((pid, began)).or_insert(follow);
        if follow == Follow::All {
            *all = follow;
        }
        self.asked_at = Instant::now();
        self.follower.take(pid, began, *all);
    }

    /// What it has to tell of programs: whether their sites lead to the gate.
    pub fn listen(&mut self) -> Vec<(u32, Result<(), NotReached>)> {
        let mut all = Vec::new();
        while let Some(news) = self.follower.news() {
            match news {
                News::Reached { pid, how } => {
                    all.extend((how == How::Sites).then_some((pid, Ok(()))));
                }
                News::Missed { pid, exe, why } => all.push((pid, Err(NotReached { exe, why }))),
                News::Taken { pid, began, why } => {
                    self.asked.remove(&(pid, began));
                    self.has_some |= why.is_none();
                    let why = why.filter(|w| program::incarnation(pid).is_some() && !w.is_empty());
                    self.refused.extend(why.map(|why| (pid, why)));
                }
                News::Nobody => self.has_some = false,
                News::Refused { .. } => {}
            }
        }
        self.is_lost = self.is_lost || self.follower.has_ended();
        if self.is_lost {
            self.asked.clear();
            self.has_some = false;
        }
        // A ring that came while it began to wait was not heard.
        if !self.asked.is_empty() && self.asked_at.elapsed() >= BEAT {
            self.asked_at = Instant::now();
            for ((pid, began), follow) in &self.asked {
                self.follower.take(*pid, *began, *follow);
            }
        }
        all
    }

    /// What it does not follow.
    pub fn escaped(&self) -> impl Iterator<Item = Escape> + '_ {
        let refused = self.refused.iter().map(|(pid, why)| Escape {
            pid: *pid,
            exe: program::exe_of(*pid),
            why: format!("what it starts is not followed: {why}"),
            requests: None,
        });
        let lost = self.is_lost.then(|| Follower::lost(self.follower.pid()));
        refused.chain(lost)
    }
}

impl AsFd for Followers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.follower.as_fd()
    }
}
