//! Settling: what falls due, what was told by it, and the end.

use super::schedule::{Asked, Schedule};
use super::{Outcome, Supervisor, ASK_EVERY, BEAT};
use crate::session::alive::Proof;
use crate::session::compile::now_mask;
use crate::session::control::{Answer, Client};
use crate::session::durable::Holding;
use crate::session::filesystems::Filesystem;
use crate::session::losses::{self, errno_name, for_requests, KILLED};
use crate::session::settle::{self, Settle, Settled};
use crate::session::shared::Shared;
use crate::session::{device, told, underway};
use crate::voice;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::run::SettleError;
use synclater_policy::dial::Until;
use synclater_shim::page;
use synclater_sys::attendant::{attend, Held};
use synclater_sys::clock::Setback;
use synclater_sys::flushes::FailedFlushes;
use synclater_sys::perf::LostWrites;
use synclater_text::message::Trouble;

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// What is said of a file system that could not be settled, and that the session is not known to
/// have written to.
fn doubt(fs: &Filesystem, errno: i32, shared: &Shared) -> String {
    let what = match shared.was_owed(page::ALL_FS) {
        true => {
            "a sync() was put off; what the command itself wrote there, if anything, may be lost"
        }
        false => "no request of this session is known to have been put off there",
    };
    let (point, why) = (fs.point.display(), errno_name(errno));
    format!("{point} ({}): {why}; {what}", fs.source)
}

/// What `settle` says of a session where nothing failed.
const SETTLED: &str = "settled; every request made before this is durable";

/// A file system that owed when a disk below it refused a flush.
#[derive(PartialEq)]
pub(super) struct Refused {
    row: usize,
    /// Its number of a device; another may have its row since.
    dev: u64,
    mount: String,
    device: String,
}

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
    lost_writes: Option<LostWrites>,
    pub(super) failed_flushes: Option<FailedFlushes>,
    /// Whether those watch, as far as that is permitted.
    pub(super) watches: bool,
    /// Where one was refused: at `never` nobody is told.
    refused: Vec<Refused>,
    last_ask: Instant,
    /// Whether a lost write was told of since: nobody is asked while nothing is put off.
    is_to_ask: bool,
    setback: Setback,
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
            lost_writes: None,
            failed_flushes: None,
            watches: false,
            refused: Vec::new(),
            last_ask: Instant::now(),
            is_to_ask: false,
            setback,
        }
    }
}

impl Supervisor {
    /// Watches for what is told to others alone, as far as that is permitted.
    ///
    /// # Errors
    /// `EMFILE` and the like: it is permitted, and there is no room for it.
    pub(super) fn watch_for_lost_writes(&mut self) -> std::io::Result<()> {
        use rustix::io::Errno;
        if self.paying.watches {
            return Ok(());
        }
        let has_no_room = |e: &std::io::Error| {
            let errno = Errno::from_io_error(e);
            matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
        };
        let (writes, flushes) = (LostWrites::watch(), FailedFlushes::watch());
        let (writes, flushes) = match (writes, flushes) {
            (Err(e), _) | (_, Err(e)) if has_no_room(&e) => return Err(e),
            (writes, flushes) => (writes.ok(), flushes.ok()),
        };
        (self.paying.lost_writes, self.paying.failed_flushes) = (writes, flushes);
        self.paying.watches = true;
        self.paying.last_ask = Instant::now();
        let flushes = self
            .paying
            .failed_flushes
            .iter()
            .flat_map(FailedFlushes::fds);
        let writes = self.paying.lost_writes.iter().flat_map(LostWrites::fds);
        let longer: Vec<BorrowedFd<'_>> = writes.chain(flushes).collect();
        if !longer.is_empty() {
            let held = Held {
                longer,
                ..Held::default()
            };
            let job = attend(None, &held);
            self.is_attended_by(job, None);
        }
        Ok(())
    }

    /// A flush that a disk refuses is told to whoever asked for it, and to nobody else: what others
    /// had written there before may be lost, whatever the next flush says.
    pub(super) fn hear_failed_flushes(&mut self) {
        self.hear_failed_flushes_of(None);
    }

    /// The same where row `settled` was settled a moment ago, and does not owe any more.
    fn hear_failed_flushes_of(&mut self, settled: Option<usize>) {
        let disks = { self.paying.failed_flushes.as_mut() }.map(FailedFlushes::told);
        for one in self.owing_on(&disks.unwrap_or_default(), settled) {
            if !self.paying.refused.contains(&one) {
                self.paying.refused.push(one);
            }
        }
        // What was put off at `never` may still come to be settled.
        if self.must_settle() || !self.paying.schedule.is_idle() || settled.is_some() {
            for one in std::mem::take(&mut self.paying.refused) {
                let is_it = |fs: &Filesystem| fs.dev == one.dev;
                match self.filesystems.get(one.row).is_some_and(is_it) {
                    true => self.lost_write(one.row, EIO),
                    false => self.has_lost(EIO, one.mount, one.device),
                }
            }
        }
    }

    /// File systems that owe and lie on one of these disks, or may.
    fn owing_on(&self, disks: &[Option<device::Number>], settled: Option<usize>) -> Vec<Refused> {
        if disks.is_empty() {
            return Vec::new();
        }
        let is_unseen = self.session.shared.any_stripped();
        let owes = |row: &usize| {
            let is_settling = self.paying.schedule.is_settling(*row) || settled == Some(*row);
            let owes_unseen = is_unseen && self.session.shared.was_owed(*row);
            is_settling || owes_unseen || !settle::debts(self.session.shared, *row).is_empty()
        };
        let all = owes(&page::ALL_FS);
        let concerned = |row: usize| {
            let fs = self.filesystems.get(row)?;
            let held = fs.held().map(Holding::fd);
            let is_it =
                { disks.iter() }.any(|disk| disk.is_none_or(|d| device::may_lie(held, fs.dev, d)));
            is_it.then(|| Refused {
                row,
                dev: fs.dev,
                mount: fs.point.to_string_lossy().into_owned(),
                device: fs.source.clone(),
            })
        };
        { self.filesystems.owing().into_iter() }
            .filter(|row| all || owes(row))
            .filter_map(concerned)
            .collect()
    }

    /// A write-back error between two settles is not waited for: where the kernel tells of one, the
    /// next requests must fail with it, so the file systems that owe are asked for theirs.
    pub(super) fn look_for_lost_writes(&mut self) {
        let told = match &mut self.paying.lost_writes {
            Some(watch) => watch.told(),
            None => self.paying.last_ask.elapsed() > ASK_EVERY,
        };
        // Of debts from before a step of the clock the age is not known.
        self.paying.is_to_ask |= told | self.paying.setback.happened();
        if self.paying.is_to_ask && self.paying.relaxing && self.must_settle() {
            self.paying.is_to_ask = false;
            self.paying.last_ask = Instant::now();
            self.settle_all();
        }
    }

    pub(super) fn finish_jobs(&mut self) {
        let shared = self.session.shared;
        let ended: Vec<(usize, Settled)> = { self.paying.schedule.under_way() }
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
        match is_asked_again {
            true => self.settle(index),
            false => self.is_paid(index),
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
        let owes = |row: &usize| !settle::debts(self.session.shared, *row).is_empty();
        let more = self.paying.rounds > 0 && self.paying.relaxing && self.rows().iter().any(owes);
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

    /// The errno that somebody else was told who settled where we owe, or the keeper, that may not
    /// have lived to say so; or 0.
    fn heard(&self) -> i32 {
        if self.never_owed() {
            return 0;
        }
        let _ = underway::note_killed();
        let page = self.session.shared.page();
        let all = [&page.error, &page.heard].map(|errno| errno.load(SeqCst).cast_signed());
        all.into_iter().find(|errno| *errno != 0).unwrap_or(0)
    }

    /// Whether nothing was ever put off, so that nothing that others are told concerns it.
    fn never_owed(&self) -> bool {
        let was_owed = |row: &usize| self.session.shared.was_owed(*row);
        // What it has put off may lie where nothing is held any more; and a file without its O_SYNC
        // is written uncounted.
        let has_put_off = self.seen.census.total(self.session.shared).skipped() > 0;
        !has_put_off && !self.session.shared.any_stripped() && !self.rows().iter().any(was_owed)
    }

    fn what_is_settled(&self) -> String {
        let doubts: Vec<&str> = self.paying.paid.doubts.iter().map(String::as_str).collect();
        match doubts.is_empty() {
            true => SETTLED.into(),
            false => format!("settled, but for: {}", doubts.join("; ")),
        }
    }

    /// A file system could not be settled. Where no request of the session is known to have been
    /// put off on it, and no member known to write there, that is told, and no more: others may
    /// have broken it.
    pub(super) fn lost_write(&mut self, index: usize, errno: i32) {
        let owed = self.session.shared.was_owed(index);
        // Who is being looked for may be known to write there by it.
        self.hear_look(true);
        let fs = self.filesystems.get(index);
        if let Some(fs) = fs.filter(|f| !owed && !f.is_used) {
            self.paying
                .paid
                .doubts
                .insert(doubt(fs, errno, self.session.shared));
            return;
        }
        let mount = fs.map_or_else(
            || "sync()".into(),
            |f| f.point.to_string_lossy().into_owned(),
        );
        self.has_lost(
            errno,
            mount,
            fs.map_or_else(String::new, |f| f.source.clone()),
        );
    }

    fn has_lost(&mut self, errno: i32, mount: String, device: String) {
        self.session
            .shared
            .page()
            .error
            .store(for_requests(errno), SeqCst);
        if self.paying.paid.error.is_some() {
            return;
        }
        self.paying.paid.error = Some(SettleError {
            mount,
            device,
            errno,
            name: errno_name(errno),
        });
        // Whoever settles in another run folder sees no page.
        self.entering.other_dial = true;
    }

    /// Notes that somebody was told of a lost write on the file system of `fd`. Whom it concerns is
    /// judged later: in the end the entry is closed whatever stands in it if that concerns nobody.
    pub(super) fn note(&self, errno: i32, fd: Option<BorrowedFd<'_>>) {
        self.session
            .shared
            .page()
            .told
            .store(errno.unsigned_abs(), SeqCst);
        let session = (
            self.session.plan.id.as_str(),
            self.session.belongings.token.as_str(),
        );
        match (&self.entering.ledger, fd) {
            (Some(ledger), Some(fd)) => told::note(ledger, session, errno, fd),
            (Some(ledger), None) => ledger.note_own(session.0, session.1, errno),
            (None, fd) => told::note_without_ledger(errno, fd),
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
            let note = |errno: i32, fd: BorrowedFd<'_>| self.note(errno, Some(fd));
            Settle::filesystem(self.session.shared, index, held, &locks, note)
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
        { self.paying.schedule.under_way() }
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
                let early = (took + took / 4).min(*within / 2);
                let age = self.session.shared.age(tick);
                due.push((row, (*within - early).saturating_sub(age)));
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

    /// Somebody else who settled where we owe may have been told of a lost write, and have noted it
    /// for us: we need not have been. Returns whether that is known.
    fn hear_what_others_were_told(&mut self) -> bool {
        let (id, token) = (&self.session.plan.id, &self.session.belongings.token);
        // Nothing was ever to be settled, or nothing is known to be lost but that.
        if !self.paying.has_promised || self.paying.paid.error.is_some() || self.never_owed() {
            return true;
        }
        let entered = self.session.shared.page().entered.load(SeqCst) != 0;
        let ledger = self.entering.ledger.as_ref().filter(|_| entered);
        let name = match (self.heard(), ledger.map(|ledger| ledger.heard(id, token))) {
            (0, None | Some(Ok(None))) => return true,
            (0, Some(Ok(Some(name)))) => name,
            (0, Some(Err(e))) => {
                let trouble = Trouble::new(
                    "it is not known whether all is durable",
                    format!("what others were told cannot be read in the ledger: {e}"),
                    "synclater settle, where the ledger can be read",
                    "everything was settled, and nothing is known to be lost",
                );
                voice::say(&format!("{trouble}\n"));
                return false;
            }
            (errno, _) => errno_name(errno),
        };
        let written = self.entering.written.iter();
        let all: Vec<&Filesystem> = written.filter_map(|i| self.filesystems.get(*i)).collect();
        let joined = |of: &dyn Fn(&Filesystem) -> String| {
            all.iter().map(|fs| of(fs)).collect::<Vec<_>>().join(", ")
        };
        // Nobody has noted on which of them.
        let mount = match all.len() {
            0 => "a file system that is not known".to_owned(),
            1 => joined(&|fs| fs.point.display().to_string()),
            _ => format!("one of {}", joined(&|fs| fs.point.display().to_string())),
        };
        self.paying.paid.error = Some(SettleError {
            mount,
            device: match all.is_empty() {
                true => "the session has no ledger".into(),
                false => joined(&|fs| fs.source.clone()),
            },
            errno: if name == SettleError::KILLED {
                KILLED
            } else {
                EIO
            },
            name,
        });
        true
    }

    pub(super) fn progress(&self, total: u64) -> String {
        let left = settle::dirty_bytes();
        let names: Vec<String> = { self.paying.schedule.under_way() }
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
