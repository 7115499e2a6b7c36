//! What is told of a session that has ended before anybody was attached.

use super::reaching::Reach;
use super::task::Who;
use super::Supervisor;
use crate::reach::attach::target;
use std::time::Instant;

impl Supervisor {
    /// Why nobody was attached, where nobody was refused either.
    #[must_use]
    pub fn missed(&self) -> String {
        let early = match self.plan.ends {
            Some(end) if Instant::now() >= end => Some("--for was over before".to_owned()),
            _ if self.interrupts > 0 => Some("SIGINT or SIGTERM ended the session".to_owned()),
            _ if self.hung_up => Some("its terminal hung up (SIGHUP)".to_owned()),
            _ => None,
        };
        let of_each = self.reach.iter().flat_map(Reach::missed);
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
        let is_told = |pid| {
            let has = |who: &Who| who.0 == pid;
            self.attached.keys().any(has) || self.refused.keys().any(has)
        };
        let missed = self.whom.pids.iter().filter(move |(pid, _)| !is_told(*pid));
        missed.map(|(pid, then)| {
            let now = match target::incarnation(*pid) {
                None => "has ended meanwhile",
                Some(now) if !target::may_be_same(now, *then) => "executes something else by now",
                Some(_) => "is there, and was not attached",
            };
            let told = { self.dropped.get(pid) }.filter(|told| !told.is_empty());
            let told = told.map_or(String::new(), |told| format!(" ({told})"));
            format!("{pid} {now}{told}")
        })
    }
}
