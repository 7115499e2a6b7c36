//! What is told of a session that has ended before anybody was attached.

use super::reaching::Reach;
use super::Supervisor;
use crate::reach::program;
use std::time::Instant;

/// What is said first where `--for` was too short to attach anybody.
pub const FOR_WAS_OVER: &str = "--for was over before";

impl Supervisor {
    /// Why nobody was attached, where nobody was refused either.
    #[must_use]
    pub fn missed(&self) -> String {
        let early = match self.session.plan.ends {
            Some(end) if Instant::now() >= end => Some(FOR_WAS_OVER.to_owned()),
            _ if self.command.interrupts > 0 => {
                Some("SIGINT or SIGTERM ended the session".to_owned())
            }
            _ if self.command.hung_up => Some("its terminal hung up (SIGHUP)".to_owned()),
            _ => None,
        };
        let of_each = self.ways.reach.iter().flat_map(Reach::missed);
        let all: Vec<String> = early.into_iter().chain(of_each).collect();
        all.join("; ")
    }
}

impl Reach {
    /// Notes why one that was named is neither attached nor refused.
    pub(super) fn drop_one(&mut self, pid: u32, why: String) {
        // Of an executable there may be as many as there are numbers.
        if self.whom.has(pid) {
            self.dropped.insert(pid, why);
        }
    }

    /// Those that were named by their number and neither attached nor refused, and why, as far as
    /// that can be seen now.
    fn missed(&self) -> impl Iterator<Item = String> + '_ {
        let named = self.whom.pids.iter();
        let missed = named.filter(|(pid, _)| !self.is_told(*pid));
        missed.map(|(pid, then)| {
            let told = self.dropped.get(pid).filter(|told| !told.is_empty());
            match (program::incarnation(*pid), told) {
                (None, _) => format!("{pid} has ended meanwhile"),
                // What is noted is about the program of before.
                (Some(now), _) if !program::may_be_same(now, *then) => {
                    format!("{pid} executes something else by now")
                }
                (Some(_), None) => format!("{pid} is there, and was not attached"),
                (Some(_), Some(told)) => format!("{pid} is there, and was not attached ({told})"),
            }
        })
    }

    /// Whether one that was named is attached, or refused.
    fn is_told(&self, pid: u32) -> bool {
        let mut told = self.attached.keys().chain(self.refused.keys());
        told.any(|who| who.0 == pid)
    }
}
