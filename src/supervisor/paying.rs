//! Settling: what falls due, what was told by it, and the end.

use super::losses::Watch;
use super::schedule::{time_left, Asked, Schedule};
use super::{Outcome, Supervisor, BEAT};
use crate::session::alive::Proof;
use crate::session::compile::now_mask;
use crate::session::control::{Answer, Client};
use crate::session::durable::Holding;
use crate::session::filesystems::Filesystem;
use crate::session::losses::{self, errno_name, KILLED};
use crate::session::settle::{self, Settle, Settled};
use crate::session::underway;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use synclater_account::run::SettleError;
use synclater_policy::dial::Until;
use synclater_shim::page;
use synclater_sys::clock::Setback;
use synclater_sys::flushes::FailedFlushes;

/// What `settle` says of a session where nothing failed.
const SETTLED: &str = "settled; every request made before this is durable";

/// What settling has told so far.
#[derive(Clone, Debug, Default)]
pub struct Paid {
    /// Longest settle of each file system, by index.
    pub longest: BTreeMap<usize, Duration>,
    /// Greatest age that a request had when it was settled.
    pub oldest: Option<Duration>,
    /// The first write-back error.
    pub error: Option<SettleError>,
    /// File systems that could not be settled, on which nothing is known to have been put off.
    pub doubts: BTreeSet<String>,
    /// Time from the end of the command to the end of the last settle.
    pub final_settle: Option<Duration>,
    /// Whether everything that owed has been settled at the end.
    pub complete: bool,
    /// How often a file system was settled.
    pub settles: u64,
    /// Requests that the settles so far have covered.
    pub requests: u64,
}

/// What is being settled, what was, and what others are told meanwhile.
pub struct Paying {
    /// What was settled.
    pub paid: Paid,
    pub(super) schedule: Schedule<Settle>,
    /// Requests that had been answered late when the settle of a file system began.
    covering: BTreeMap<usize, u64>,
    /// How often everything is settled once more before whoever asked for that is answered.
    pub(super) rounds: usize,
    /// The dial came to `never` while something of an earlier one was still being settled.
    pub(super) dial_changes: bool,
    /// Whoever waits for the end of a settle, and what it is told instead of what is usual.
    pub(super) settle_clients: Vec<(Client, Option<String>)>,
    /// How often the keeper was asked to say that it makes no sync(2), and has not said so.
    pub(super) keeper_syncs: u32,
    /// Whether something was to be settled at any time.
    pub(super) has_promised: bool,
    pub(super) relaxing: bool,
    pub(super) watch: Watch,
}

impl Paying {
    /// Nothing was put off yet.
    pub(super) fn new(setback: Setback) -> Paying {
        Paying {
            paid: Paid::default(),
            schedule: Schedule::default(),
            covering: BTreeMap::new(),
            rounds: 0,
            dial_changes: false,
            settle_clients: Vec::new(),
            keeper_syncs: 0,
            has_promised: false,
            relaxing: false,
            watch: Watch::new(setback),
        }
    }
}

impl Paying {
    /// What tells of flushes that were refused (a ring of them that is full takes nothing, and says
    /// nothing of whose disk it was), and of settles that end.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let refused = self.watch.failed_flushes.iter();
        let settles = self.schedule.under_way().map(|(_, settle)| settle.as_fd());
        refused.flat_map(FailedFlushes::fds).chain(settles)
    }
}

impl Supervisor {
    pub(super) fn finish_jobs(&mut self) {
        let shared = self.session.shared;
        let settles = self.paying.schedule.under_way();
        let ended: Vec<(usize, Settled)> = settles
            .filter_map(|(i, s)| Some((i, s.finished(shared)?)))
            .collect();
        // In this order: what was refused before one ended concerns that, too.
        self.hear_failed_flushes();
        // First: what it tells, an error may have to be judged by.
        self.hear_look(false);
        if let Some(status) = self
            .entering
            .writing
            .as_ref()
            .and_then(|(job, _)| job.finished())
        {
            let (_, fresh) = self.entering.writing.take().expect("looked at just now");
            self.ledger_written(status, fresh);
        }
        for (index, end) in ended {
            let is_asked_again = self.paying.schedule.has_ended(index);
            self.settled(index, end, is_asked_again);
        }
        self.keeper_news();
        self.decide_who_leaves();
    }

    fn settled(&mut self, index: usize, end: Settled, is_asked_again: bool) {
        self.settle_ended(index, end.errno);
        let longest = self.paying.paid.longest.entry(index).or_default();
        *longest = end.took.max(*longest);
        self.paying.paid.settles += 1;
        let covered = self.paying.covering.remove(&index).unwrap_or(0);
        self.paying.paid.requests = self.paying.paid.requests.max(covered);
        self.paying.paid.oldest = self.paying.paid.oldest.max(end.age);
        if end.errno == KILLED {
            // It has noted nothing, and others may owe there.
            let held = self.filesystems.get(index).and_then(Filesystem::held);
            self.note(KILLED, held.map(Holding::fd));
            let _ = underway::note_killed();
        }
        if end.errno != 0 {
            self.lost_write(index, end.errno);
        }
        self.keeper_may_close(index);
        if is_asked_again {
            self.settle(index)
        } else {
            self.is_paid(index)
        }
        // It may have been let go of meanwhile.
        if self.paying.schedule.lets_sync_begin(index) {
            self.begin_settle(page::ALL_FS);
        }
        let is_over = !self.paying.schedule.is_settling(index);
        if is_over && index == page::ALL_FS && self.entering.holds_back {
            self.relax_by_dial();
        }
        if self.paying.schedule.is_idle() && !self.settles_once_more() {
            if std::mem::take(&mut self.paying.dial_changes) {
                self.dial_is_new();
            }
            for (client, said) in std::mem::take(&mut self.paying.settle_clients) {
                client.answer(&self.settle_answer(said));
            }
        }
    }

    /// A member may serve the disk of what was settled (FUSE, nbd): what it has put off meanwhile
    /// belongs to what is promised. Once for each file system that may lie on another.
    fn settles_once_more(&mut self) -> bool {
        let shared = self.session.shared;
        let more = self.paying.rounds > 0
            && self.paying.relaxing
            && self
                .rows()
                .iter()
                .any(|row| !settle::debts(shared, *row).is_empty());
        self.paying.rounds = if more { self.paying.rounds - 1 } else { 0 };
        if more {
            self.settle_all();
        }
        more && !self.paying.schedule.is_idle()
    }

    /// Superblock `index` is settled, and nobody has asked for more meanwhile.
    fn is_paid(&mut self, index: usize) {
        if !self.paying.relaxing && !self.entering.holds_back {
            // Of requests that were made after all: those put off were noted before the relaxation
            // ended, and so before this settle began. Where it is held back none begins by that.
            let _ = settle::take_debt(self.session.shared, index);
        } else {
            // The same of a class that came to `now` before this settle began.
            settle::take_classes(
                self.session.shared,
                index,
                now_mask(&self.session.plan.classes),
            );
        }
        self.goes_or_stays(index);
    }

    pub(super) fn settle_answer(&self, said: Option<String>) -> Answer {
        let lost = match &self.paying.paid.error {
            None if self.heard() == 0 => None,
            None => Some(losses::to_others(&errno_name(self.heard()))),
            Some(e) if e.was_killed() => Some(format!("{}: {}", e.what(), SettleError::WAS_KILLED)),
            Some(e) => Some(format!("{}: {}", e.name, e.what())),
        };
        match lost {
            None => Answer::Done {
                said: match said {
                    Some(said) if self.paying.paid.doubts.is_empty() => said,
                    Some(said) => format!("{said}; {}", self.what_is_settled()),
                    None => self.what_is_settled(),
                },
            },
            Some(why) => Answer::Lost {
                why: said.map_or(why.clone(), |said| format!("{said}; but {why}")),
            },
        }
    }

    fn what_is_settled(&self) -> String {
        let doubts: Vec<&str> = self.paying.paid.doubts.iter().map(String::as_str).collect();
        if doubts.is_empty() {
            SETTLED.into()
        } else {
            format!("settled, but for: {}", doubts.join("; "))
        }
    }

    /// Starts settling superblock `index` (or `ALL_FS`); if it is being settled, once more after.
    pub(super) fn settle(&mut self, index: usize) {
        match self.paying.schedule.ask(index) {
            Asked::Begins => self.begin_settle(index),
            Asked::Waits => {}
            Asked::HeldFirst => self.settle_held_for_sync(),
        }
    }

    /// Begins to settle what is not being settled.
    pub(super) fn begin_settle(&mut self, index: usize) {
        self.settle_begins(index);
        let proof = self.entering.proof.as_ref().and_then(Proof::as_held);
        let lock = self.session.belongings.lock.as_fd();
        let locks: Vec<_> = proof.into_iter().chain([lock]).collect();
        let job = if index == page::ALL_FS {
            Settle::everything(self.session.shared, &locks)
        } else {
            let Some(held) = self.filesystems.get(index).and_then(|f| f.held()) else {
                return;
            };
            Settle::filesystem(self.session.shared, index, held, &locks, |errno, fd| {
                self.note(errno, Some(fd));
            })
        };
        match job {
            Ok(job) => {
                self.paying
                    .covering
                    .insert(index, self.seen.census.total(self.session.shared).skipped());
                self.paying.schedule.has_begun(index, job);
            }
            // No process to be had: the loop waits for this one, and the lease may run out.
            Err(_) => self.settle_here(index),
        }
    }

    /// Ages of the requests that are being settled just now.
    #[must_use]
    pub fn being_settled(&self) -> Vec<Duration> {
        let settles = self.paying.schedule.under_way();
        settles
            .filter_map(|(_, s)| s.age(self.session.shared))
            .collect()
    }

    fn settle_here(&mut self, index: usize) {
        let began = Instant::now();
        let _ = settle::take_debt(self.session.shared, index);
        let held = self.filesystems.get(index).and_then(|f| f.held());
        let errno = held.map_or_else(
            || {
                synclater_sys::everything::sync();
                0
            },
            |held| held.settle_here(|errno, fd| self.note(errno, Some(fd))),
        );
        let end = Settled {
            errno,
            took: began.elapsed(),
            age: None,
        };
        self.hear_failed_flushes_of(Some(index));
        let is_asked_again = self.paying.schedule.has_ended(index);
        self.settled(index, end, is_asked_again);
    }

    /// Rows of debt that requests may have been noted in.
    #[must_use]
    pub fn rows(&self) -> Vec<usize> {
        let mut rows = self.filesystems.owing();
        rows.push(page::ALL_FS);
        rows
    }

    /// Everything that is held, and each disk that has come into sight since sync() was put off.
    pub(super) fn settle_all_held(&mut self) {
        // They are settled only: requests that name them are real until they have an entry.
        for index in self.filesystems.hold_all_disks(self.session.shared) {
            self.enter(index);
        }
        self.filesystems
            .hold_what_cannot_be_asked(self.session.shared);
        self.filesystems
            .owing()
            .into_iter()
            .for_each(|i| self.settle(i));
    }

    pub(super) fn settle_all(&mut self) {
        if !self.somebody_unmounts() {
            self.hold_left_again();
        }
        if self.entering.sync_is_owed(self.session.shared) {
            return self.settle(page::ALL_FS);
        }
        for index in self.filesystems.owing() {
            self.settle(index);
        }
    }

    /// Whether the debts are to be settled at all.
    #[must_use]
    pub fn must_settle(&self) -> bool {
        self.session.plan.classes.iter().any(|u| *u != Until::Never)
    }

    /// When the debt of each row falls due, with the time that settling it takes taken off.
    pub(super) fn due(&self) -> Vec<(usize, Duration)> {
        let rows = self.rows().into_iter();
        let mut due = Vec::new();
        for row in rows.filter(|row| !self.paying.schedule.is_seen_to(*row)) {
            for (class, tick) in settle::debts(self.session.shared, row) {
                let within = match self.session.plan.classes.get(class) {
                    Some(Until::Within(within)) => within,
                    // By a request that still saw another dial: a settle since then has covered it.
                    Some(Until::Now) => &Duration::ZERO,
                    _ => continue,
                };
                let took = self
                    .paying
                    .paid
                    .longest
                    .get(&row)
                    .copied()
                    .unwrap_or_default();
                let age = self.session.shared.age(tick);
                due.push((row, time_left(*within, took, age)));
            }
        }
        due
    }

    pub(super) fn next_due(&self) -> Instant {
        let soonest = self.due().into_iter().map(|(_, left)| left).min();
        let now = Instant::now();
        let due = now + soonest.unwrap_or(BEAT);
        self.session
            .plan
            .ends
            .filter(|_| self.paying.relaxing || self.entering.holds_back)
            .map_or(due, |end| end.min(due))
    }

    /// At the end all that was put off is being settled: a member that goes on noting what it owes
    /// would have that begin anew for ever.
    pub(super) fn start_due(&mut self) {
        if !self.entering.is_over {
            self.start_due_within(Duration::ZERO);
        }
    }

    /// The same of what falls due soon: nothing begins meanwhile.
    pub(super) fn start_due_within(&mut self, soon: Duration) {
        for (row, left) in self.due() {
            if left <= soon {
                self.settle(row);
            }
        }
    }

    pub(super) fn end_of_lease(&mut self) {
        let relaxes = self.paying.relaxing || self.entering.holds_back;
        if relaxes
            && self
                .session
                .plan
                .ends
                .is_some_and(|end| Instant::now() >= end)
        {
            self.relax(false);
            if self.must_settle() {
                self.settle_all();
            }
        }
    }

    /// Ends the relaxation and settles what is owed; progress is shown through `show`. Returns
    /// early, with the ledger entry left open, at a second interrupt.
    pub fn settle_at_end(&mut self, mut show: impl FnMut(&str)) {
        let began = Instant::now();
        self.command.child = 0;
        // What the command lived through was for the command; what ended it was the first of two.
        let ended_by_signal = matches!(self.command.outcome, Some(Outcome::Signaled(_)));
        self.command.interrupts = self.command.interrupts.min(u32::from(ended_by_signal));
        self.relax(false);
        self.entering.is_over = true;
        while self.entering.writing.is_some() && self.command.interrupts < 2 {
            self.turn();
        }
        if self.must_settle() {
            self.hold_left_again();
            self.miss_what_is_not_held();
            self.settle_all();
        }
        let owed = !self.paying.schedule.is_idle();
        let total = if owed { settle::dirty_bytes() } else { 0 };
        let mut told = Instant::now();
        while !self.paying.schedule.is_idle() {
            if self.command.interrupts >= 2 {
                return;
            }
            self.turn();
            if began.elapsed() > Duration::from_secs(2) && told.elapsed() > BEAT {
                told = Instant::now();
                show(&self.progress(total));
            }
        }
        if owed {
            self.paying.paid.final_settle = Some(began.elapsed());
        }
        let is_known = self.hear_what_others_were_told();
        self.paying.paid.complete = is_known && self.paying.paid.error.is_none();
    }

    pub(super) fn progress(&self, total: u64) -> String {
        let left = settle::dirty_bytes();
        let settles = self.paying.schedule.under_way();
        let names: Vec<String> = settles
            .map(|(i, s)| {
                let name = self.filesystems.get(i).map_or("everything".into(), |f| {
                    f.point.to_string_lossy().into_owned()
                });
                format!("{name} for {:.0} s", s.running_for().as_secs_f64())
            })
            .collect();
        format!(
            "synclater: settling {}: {} of {} dirty left",
            names.join(", "),
            synclater_text::number::bytes(left),
            synclater_text::number::bytes(total.max(left)),
        )
    }

    /// Requests that the settles so far are about.
    #[must_use]
    pub fn paid_requests(&self) -> u64 {
        self.paying.paid.requests
    }
}
