//! The command and all that it starts, traced: who was reached how, and the end of the last.

use super::{Outcome, Supervisor};
use crate::reach::follow::{Follower, How, News};
use crate::reach::net::{self, Net};
use crate::reach::{program, selector};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use synclater_account::escape::Escape;
use synclater_shim::page;
use synclater_sys::command::{self, First};
use synclater_sys::{children, job, process};

/// Programs that were missed are named up to this number, and counted from there on.
const NAMED: usize = 1000;

/// ETIMEDOUT and ECONNRESET, which no execution of a command says.
const DOOR_SILENT: i32 = 110;
const DOOR_CLOSED: i32 = 104;

/// Why a command was not started, other than by itself.
pub enum NotStarted {
    /// It cannot be traced.
    Follow(String),
    /// It cannot have the filter.
    Net(String),
}

/// What is known of those that are followed.
pub struct Following {
    follower: Follower,
    how: BTreeMap<u32, (program::Incarnation, How)>,
    missed: Vec<Escape>,
    unnamed: u64,
    refused: Option<String>,
    is_lost: bool,
    /// How the command ended, while others go on, and how often it had been interrupted by then.
    ended: Option<(Outcome, u32)>,
}

impl Following {
    /// What tells of the tracer, as long as there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_lost).then(|| self.follower.as_fd())
    }
}

impl Following {
    /// Nobody yet.
    #[must_use]
    pub fn new(follower: Follower) -> Following {
        Following {
            follower,
            how: BTreeMap::new(),
            missed: Vec::new(),
            unnamed: 0,
            refused: None,
            is_lost: false,
            ended: None,
        }
    }

    /// How a process was reached, where it was not as everybody else.
    #[must_use]
    pub fn how(&self, pid: u32) -> &'static str {
        match self.how.get(&pid) {
            Some((program, how)) if program::incarnation(pid) == Some(*program) => how.word(),
            _ => How::Launch.word(),
        }
    }

    /// Programs that were not reached.
    pub fn missed(&self) -> impl Iterator<Item = Escape> + '_ {
        let more = (self.unnamed > 0).then(|| Escape {
            pid: 0,
            exe: "(others)".into(),
            why: format!("{} more programs were not reached", self.unnamed),
            requests: None,
        });
        self.missed.iter().cloned().chain(more)
    }

    /// What happened to the tracer.
    #[must_use]
    pub fn lost(&self) -> Option<Escape> {
        self.is_lost.then(|| Follower::lost(self.follower.pid()))
    }

    fn hear(&mut self) {
        while let Some(news) = self.follower.news() {
            match news {
                News::Reached { pid, how } => {
                    let program = program::incarnation(pid);
                    self.how
                        .extend(program.map(|program| (pid, (program, how))));
                }
                News::Missed { pid, exe, why } if self.missed.len() < NAMED => {
                    self.how.remove(&pid);
                    let requests = None;
                    self.missed.push(Escape {
                        pid,
                        exe,
                        why,
                        requests,
                    });
                }
                News::Missed { .. } => self.unnamed += 1,
                News::Refused { why } => self.refused = Some(why),
                News::Taken { .. } | News::Nobody => {}
            }
        }
        self.is_lost = self.is_lost || self.follower.has_ended();
        if self.how.len() > page::SLOT_MAX {
            self.how.retain(|pid, _| process::is_alive(*pid));
        }
    }
}

impl Supervisor {
    /// Follows whatever the command starts.
    pub fn follow(&mut self, follower: Follower) {
        self.seen.escapes.are_followed(true);
        self.ways.following = Some(Following::new(follower));
    }

    /// Starts the command, traced where it is to be followed.
    ///
    /// # Errors
    /// Why the command was not started: by itself, or because it cannot be reached as was asked.
    pub fn start(
        &mut self,
        command: std::process::Command,
    ) -> Result<u32, (std::io::Error, Option<NotStarted>)> {
        let inherited = self.doors.signals.inherited;
        let filter = self.ways.net.as_ref().and_then(Net::filter);
        if self.ways.following.is_none() && filter.is_none() {
            return command::spawn(command, &inherited).map_err(|e| (e, None));
        }
        let following = self.ways.following.as_ref();
        let traced = following.and_then(|f| Some((f.follower.door()?, f.follower.pid())));
        let started = command::spawn_after(command, &inherited, First { traced, filter });
        self.why_not(started)
    }

    /// With why a command was not started, where that was not the command itself.
    fn why_not(
        &mut self,
        started: std::io::Result<u32>,
    ) -> Result<u32, (std::io::Error, Option<NotStarted>)> {
        if let Some(following) = &mut self.ways.following {
            following.follower.close_door();
            following.hear();
        }
        let Err(e) = started else {
            self.ways.net.iter_mut().for_each(Net::command_started);
            return started.map_err(|e| (e, None));
        };
        if let Some(why) = self.ways.net.as_mut().and_then(Net::command_failed) {
            return Err((e, Some(NotStarted::Net(net::explain(&why)))));
        }
        // It was stopped, or killed, meanwhile.
        let silent = matches!(e.raw_os_error(), Some(DOOR_SILENT | DOOR_CLOSED));
        let silent = silent.then(|| format!("the tracer does not answer ({e})"));
        let following = self.ways.following.as_mut();
        let refused = following.and_then(|f| f.refused.take().or(silent));
        Err((e, refused.map(NotStarted::Follow)))
    }

    /// What is known of those that are followed, where any are.
    #[must_use]
    pub fn following(&self) -> Option<&Following> {
        self.ways.following.as_ref()
    }

    /// Notes how the command has ended, which may leave others behind.
    pub(super) fn command_ended(&mut self, outcome: Outcome) {
        // Its number may be another's from now on.
        self.command.child = 0;
        match &mut self.ways.following {
            Some(following) => following.ended = Some((outcome, self.command.interrupts)),
            None => self.command.outcome = Some(outcome),
        }
    }

    /// Whether the command has ended and others go on.
    pub(super) fn outlives_command(&self) -> bool {
        self.ways
            .following
            .as_ref()
            .is_some_and(|f| f.ended.is_some())
    }

    pub(super) fn look_at_following(&mut self) {
        let Some(following) = &mut self.ways.following else {
            return;
        };
        following.hear();
        self.seen.escapes.are_followed(!following.is_lost);
        let ended = following.ended.filter(|_| self.command.outcome.is_none());
        let Some((ended, interrupts)) = ended else {
            return;
        };
        // Who interrupts twice from then on does not want to wait for them.
        if self.command.interrupts > interrupts + 1 || self.left_behind().is_empty() {
            self.command.outcome = Some(ended);
        }
    }

    /// Our children that are no jobs of ours: orphans that the command has left.
    fn left_behind(&self) -> Vec<u32> {
        let jobs = job::children();
        let mut all = children::children();
        // A job's own that waits for a disk may be an orphan, too.
        all.retain(|pid| !jobs.contains(pid) && !selector::is_job(*pid));
        all
    }

    /// Passes a signal on to those that the command has left behind.
    pub(super) fn pass_on_to_left_behind(&self, signal: i32) {
        for pid in self.left_behind() {
            let _ = process::kill(pid, signal);
        }
    }
}
