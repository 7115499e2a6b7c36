//! The supervisor's loop: heartbeat, requests for the ledger, debts that fall due, signals, the
//! end.
//!
//! Promise: nothing in the loop waits on a disk. Ledger entries are written and file systems are
//! settled by processes of their own, so that the heartbeat, signals and other file systems go on.
//! Order: an entry is on disk before its file systems may owe (`filesystems` in the page turn to
//! `FS_OWES` when the job that wrote it has ended well and the keeper holds their descriptors).
//!
//! Map: a session is what it was asked for ([`Session`]), what was seen of requests ([`Seen`]), and
//! what its parts own: `paying` what is settled, when by its `schedule`, with `losses` of writes;
//! `entering` the ledger and the keeper; `umounts`, with `looking`, what is let go of; `reaching`,
//! `finding`, `sweeping`, `following` and `netting` the ways into programs; `serving` other
//! commands; `recording`; [`report`] is what is told at the end.

mod attending;
mod entering;
mod finding;
mod followers;
pub mod following;
pub mod last_report;
mod looking;
mod losses;
pub mod missed;
pub mod netting;
mod parents;
mod paying;
pub mod reached;
pub mod reaching;
pub mod recording;
pub mod report;
mod schedule;
mod serving;
mod standing;
mod sweeping;
mod syncing;
mod task;
mod umounts;

use crate::reach::net::Net;
use crate::session::alive::Proof;
use crate::session::belongings::Belongings;
use crate::session::control::{Client, Server};
use crate::session::counts::Census;
use crate::session::escape::Escapes;
use crate::session::filesystems::Filesystems;
use crate::session::keeper::Keeper;
use crate::session::ledger::Ledger;
use crate::session::sequence::Sequence;
use crate::session::shared::Shared;
use attending::Attendants;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_policy::dial::Until;
use synclater_policy::ledger::LedgerFs;
use synclater_policy::rules::RuleSet;
use synclater_shim::page;
use synclater_sys::attendant::Doorbell;
use synclater_sys::children::{self, Change};
use synclater_sys::clock::Setback;
use synclater_sys::job::{self, Job};
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, For};

/// Time between two heartbeats; the lease is seven of them.
const BEAT: Duration = Duration::from_millis(250);

/// How long a ledger that could not be written is left alone.
const ENTER_AGAIN: Duration = Duration::from_secs(10);

/// What the session was asked to be.
pub struct Plan {
    /// Session id.
    pub id: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The rules, if any.
    pub rules: Option<RuleSet>,
    /// The dial of each class; class 0 is the session's own.
    pub classes: Vec<Until>,
    /// Whether its dials would need a ledger, and there is none: they are at `now`.
    pub lacks_ledger: bool,
    /// When the relaxation ends by itself.
    pub ends: Option<Instant>,
    /// When the session began, RFC 3339.
    pub started: String,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
}

/// A file system that owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Its index in the page, as long as it has one.
    pub index: Option<usize>,
    /// Requests that were counted for it before.
    pub requests: u64,
    /// How many syncs were made for real there before, by the places of [`page::Slots::took`].
    pub took: Vec<u64>,
    /// What it is, and where it is, or was, mounted.
    pub fs: LedgerFs,
}

/// The ledger entry's way to the disk.
#[derive(Default)]
struct Entering {
    ledger: Option<Ledger>,
    keeper: Option<Keeper>,
    wanted: Vec<usize>,
    writing: Option<(Job, Vec<usize>)>,
    written: Vec<usize>,
    /// The entry on disk names the laxest dial of a time before `set`.
    other_dial: bool,
    ever: Vec<Owed>,
    sync_all: bool,
    /// sync() was put off at some time, or may have been.
    sync_was_allowed: bool,
    /// The entry on disk names file systems that were let go of.
    names_too_many: bool,
    /// The entry on disk says, or is about to, that nothing is to be settled: whoever finds it does
    /// not settle.
    says_never: bool,
    /// The entry says that sync() is owed: not before may that be put off.
    says_sync: bool,
    /// What the entry will say of it that is being written.
    writes_sync: bool,
    /// What the one says that was written last.
    writes_never: bool,
    /// Nothing is relaxed until the entry says otherwise.
    holds_back: bool,
    /// The session ends: what it owes is in the entry already.
    is_over: bool,
    /// What is to be settled, and how often, before the keeper may close the entry.
    before_closing: BTreeMap<usize, u32>,
    /// Why it cannot be written, and when it is tried again.
    trouble: Option<(String, Instant)>,
    /// What tells others that an entry's session lives.
    proof: Option<Proof>,
}

/// What the session is.
pub struct Session {
    /// What was asked for.
    pub plan: Plan,
    /// Page and slots.
    pub shared: &'static Shared,
    /// Everything that must be removed at the end.
    pub belongings: Belongings,
}

/// What was seen of requests.
pub struct Seen {
    /// Who made them.
    pub census: Census,
    /// How they came one behind the other.
    pub sequence: Sequence,
    /// Who escaped.
    pub escapes: Escapes,
}

/// Ways into programs, besides the library.
#[derive(Default)]
struct Ways {
    reach: Option<reaching::Reach>,
    following: Option<following::Following>,
    net: Option<Net>,
    /// Listen to the doorbell, and hold the trace points until after our end.
    attendants: Attendants,
}

/// What the loop hears of.
struct Doors {
    signals: Signals,
    doorbell: Doorbell,
    server: Server,
    slots_door: UnixListener,
    /// Until when nobody is heard who asks for slots.
    strangers_wait: Option<Instant>,
    strangers: serving::Strangers,
    detach_clients: Vec<(Client, bool)>,
    next_beat: Instant,
}

impl Ways {
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let following = self.following.iter().filter_map(following::Following::fd);
        let reach = self.reach.iter().flat_map(reaching::Reach::fds);
        reach.chain(following)
    }

    /// When something is to be done although nothing happens.
    fn next(&self) -> Option<Instant> {
        self.reach.as_ref().and_then(reaching::Reach::next)
    }
}

impl Doors {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![
            self.signals.as_fd(),
            self.doorbell.as_fd(),
            self.server.as_fd(),
        ];
        if self.are_strangers_heard() {
            fds.push(self.slots_door.as_fd());
        }
        fds
    }

    fn are_strangers_heard(&self) -> bool {
        self.strangers_wait
            .is_none_or(|until| Instant::now() >= until)
    }

    /// When the page is to hear that we live, or strangers are heard again.
    fn next(&self) -> Instant {
        let heard = self.strangers_wait.filter(|_| !self.are_strangers_heard());
        heard.map_or(self.next_beat, |at| at.min(self.next_beat))
    }
}

/// The command, as far as it has come.
#[derive(Default)]
struct Progress {
    /// Its process; 0 where there is none.
    child: u32,
    outcome: Option<Outcome>,
    interrupts: u32,
    /// The terminal has gone.
    hung_up: bool,
    /// Continues us with the command.
    waker: Option<Job>,
    /// The process that did so last, or does; 0 where there was none.
    last_waker: u32,
}

/// A running session.
pub struct Supervisor {
    /// What it is.
    pub session: Session,
    /// File systems in sight.
    pub filesystems: Filesystems,
    /// What was seen of requests.
    pub seen: Seen,
    /// What was settled, and what is to be.
    pub paying: paying::Paying,
    entering: Entering,
    umounts: umounts::Umounts,
    ways: Ways,
    doors: Doors,
    command: Progress,
    /// Recordings.
    pub recordings: recording::Recordings,
}

/// What a supervisor is made of.
pub struct Parts {
    /// What was asked for.
    pub plan: Plan,
    /// Page and slots.
    pub shared: &'static Shared,
    /// Signals taken over.
    pub signals: Signals,
    /// The control socket.
    pub server: Server,
    /// Where victims of another user get the slots.
    pub slots_door: UnixListener,
    /// The ledger, or none: then nothing is relaxed but at `never`.
    pub ledger: Option<Ledger>,
    /// What watches the kernel.
    pub escapes: Escapes,
    /// What must be removed at the end.
    pub belongings: Belongings,
    /// The doorbell of the session's own slots.
    pub doorbell: Doorbell,
    /// The mounts in sight.
    pub mountinfo: File,
}

impl Supervisor {
    /// Makes the session ready for its command: the page says what it will say, the lease runs.
    #[must_use]
    pub fn new(parts: Parts) -> Supervisor {
        let shared = parts.shared;
        let mut s = Supervisor {
            session: Session {
                plan: parts.plan,
                shared,
                belongings: parts.belongings,
            },
            filesystems: Filesystems::default(),
            seen: Seen {
                census: Census::new(),
                sequence: Sequence::default(),
                escapes: parts.escapes,
            },
            paying: paying::Paying::new(Setback::new(shared.clock)),
            entering: Entering {
                ledger: parts.ledger,
                ..Entering::default()
            },
            umounts: umounts::Umounts::new(parts.mountinfo),
            ways: Ways::default(),
            doors: Doors {
                signals: parts.signals,
                doorbell: parts.doorbell,
                server: parts.server,
                slots_door: parts.slots_door,
                strangers_wait: None,
                strangers: serving::Strangers::default(),
                detach_clients: Vec::new(),
                next_beat: Instant::now(),
            },
            command: Progress::default(),
            recordings: recording::Recordings::default(),
        };
        s.paying.has_promised = s.must_settle();
        s.relax_by_dial();
        s.beat();
        s
    }

    /// Runs the loop until the command, process `child`, has ended.
    pub fn run(&mut self, child: u32) -> Outcome {
        self.command.child = child;
        self.attend();
        loop {
            if let Some(outcome) = self.command.outcome {
                return outcome;
            }
            self.turn();
        }
    }

    /// The longest dial of the rules, where it is longer than the session's own.
    #[must_use]
    pub fn rules_until(&self) -> Option<Until> {
        let longest = self.session.plan.classes.iter().max().copied();
        longest.filter(|until| *until > self.session.plan.classes[0])
    }

    /// Whether the command has ended, or everything was let go of.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.command.outcome.is_some()
    }

    fn relax(&mut self, on: bool) {
        self.entering.holds_back = false;
        self.paying.relaxing = on;
        self.session.shared.relax(on);
    }

    /// Relaxes where any dial is later than `now`; where that has to be settled, and the entry says
    /// that nothing has, or the keeper does not know what may owe, not before it is written anew;
    /// nor while sync(2) is made.
    fn relax_by_dial(&mut self) {
        let later = self.session.plan.classes.iter().any(|u| *u != Until::Now);
        let knows = self.entering.keeper.as_ref().is_some_and(Keeper::is_whole);
        let e = &self.entering;
        let is_unknown = (!e.written.is_empty() || e.writing.is_some()) && !knows;
        let says_never = self.must_settle() && self.entering.says_never;
        let holds_back = is_unknown || says_never || self.makes_sync();
        self.relax(later && !holds_back);
        self.entering.holds_back = holds_back;
    }

    fn beat(&mut self) {
        // Before it is renewed nothing is put off.
        if self.session.shared.lease_is_over() {
            self.wait_for_keepers_sync();
        }
        if self.session.shared.heartbeat() {
            self.wait_for_keepers_sync();
        }
        // The keeper may have ended the relaxation while we stood still.
        self.session.shared.relax(self.paying.relaxing);
        self.doors.next_beat = Instant::now() + BEAT;
    }

    /// Waits for whatever comes first, then looks at everything.
    fn turn(&mut self) {
        self.wait();
        let beats = Instant::now() >= self.doors.next_beat;
        if beats {
            self.beat();
            self.seen.sequence.look(self.session.shared);
            self.seen.census.sweep(self.session.shared);
            self.seen
                .escapes
                .look_around(self.session.plan.rules.as_ref());
            self.look_for_lost_writes();
            self.end_of_umounts();
            self.look_at_net();
        }
        self.seen.escapes.drain();
        if beats {
            self.seen.escapes.forget_ended(&mut self.seen.census);
        }
        self.take_signals();
        self.finish_jobs();
        self.look_at_recorder();
        self.reap();
        self.attend_again();
        self.look_at_slots();
        self.hand_out_slots();
        self.serve();
        self.end_of_lease();
        self.look_at_reach();
        self.look_at_following();
        self.start_due();
    }

    fn wait(&mut self) {
        const MOUNTINFO: usize = 0;
        let mut fds = vec![(self.umounts.mountinfo.as_fd(), For::Change)];
        let doors = self.doors.fds().into_iter();
        let all = doors
            .chain(self.entering.fds())
            .chain(self.paying.fds())
            .chain(self.umounts.looks.job().map(AsFd::as_fd))
            .chain(self.seen.escapes.fds())
            .chain(self.ways.fds())
            .chain(self.recordings.fds());
        fds.extend(all.map(|fd| (fd, For::Input)));
        let deadlines = [self.next_due(), self.doors.next()];
        let soonest = deadlines.into_iter().chain(self.ways.next()).min();
        let patience = soonest.map(|at| at.saturating_duration_since(Instant::now()));
        let patience = patience.unwrap_or(BEAT);
        let ready = wait::any(&fds, patience);
        // The kernel tells of a change once.
        let changed = ready.get(MOUNTINFO).is_some_and(|r| *r);
        self.umounts.mounts_changed |= changed;
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.doors.signals.next() {
            if signal.number == libc_signal::CHLD {
                continue;
            }
            match signal.number {
                _ if signal.was_ignored => {}
                libc_signal::INT | libc_signal::TERM => self.command.interrupts += 1,
                // The terminal has gone: nobody is there any more who does not want to wait. Shell
                // and kernel tell it each, and systemd behind a SIGTERM.
                libc_signal::HUP => self.command.hung_up = true,
                _ => {}
            }
            if self.outlives_command() {
                self.pass_on_to_left_behind(signal.number);
                continue;
            }
            // Behind a hang-up the command is to go on, too.
            let waker = if self.command.hung_up {
                0
            } else {
                self.command.last_waker
            };
            signal.pass_on(self.command.child, waker);
            // It sends one, and its number may be another one's then.
            if signal.sender == self.command.last_waker {
                self.command.last_waker = 0;
            }
        }
    }

    fn reap(&mut self) {
        self.command.waker.take_if(|job| job.finished().is_some());
        self.forget_attendants_that_ended();
        while let Some((pid, change)) = children::next_change(self.command.child) {
            if pid != self.command.child {
                continue;
            }
            match change {
                Change::Exited(status) => self.command_ended(Outcome::Exited(status)),
                Change::Signaled(signal) => self.command_ended(Outcome::Signaled(signal)),
                Change::Stopped => self.stand_still(),
                Change::Continued => {}
            }
        }
    }

    fn look_at_slots(&mut self) {
        self.doors.doorbell.clear();
        self.seen.census.members.meet(self.session.shared);
        self.attend_others();
        self.filesystems_changed();
        let mut slots = self.session.shared.all_slots();
        let is_wanted = slots.any(|s| s.want_sync.load(SeqCst) & page::SYNC_WANTS != 0);
        if is_wanted && !self.entering.sync_all {
            self.enter_everything();
        }
        self.answer_questions();
        self.write_ledger();
        self.look_who_writes();
        self.look_at_what_was_left();
    }

    /// Closes the ledger entry, ends the keeper, removes the session's files. Where something was
    /// not settled, the entry stays. Whoever unmounts a file system right after us does not find it
    /// busy.
    pub fn close(&mut self) {
        self.close_all();
        let _ = job::wait_for_the_young();
    }

    fn close_all(&mut self) {
        self.session.shared.relax(false);
        self.session.shared.end_lease();
        self.end_recording();
        if let Some(keeper) = self.entering.keeper.take() {
            keeper.end();
        }
        self.command.waker.take().into_iter().for_each(Job::end);
        self.umounts.looks.end();
        self.leave_attendants();
        self.filesystems.release_all();
        if self.close_entry().is_err() && self.paying.paid.error.is_some() {
            // The page says what the entry does not: whoever clears up behind us needs it.
            return;
        }
        if !self.paying.schedule.is_idle() {
            // Those that go on behind our end note what they are told in the entry, and where that
            // has no room in the page.
            return self.note_what_was_told_last();
        }
        let has_left_some = self.ways.reach.as_ref().is_some_and(|r| r.has_left_some());
        self.session.belongings.give_back(has_left_some);
    }

    /// Of settles that were not waited for.
    fn note_what_was_told_last(&self) {
        let settles = self.paying.schedule.under_way();
        let ended = settles.filter_map(|(_, s)| s.finished(self.session.shared));
        let lost = ended.map(|end| end.errno).find(|errno| *errno != 0);
        lost.into_iter().for_each(|errno| self.note(errno, None));
    }

    /// Closes the session's own entry, if it has written one: another session's may have its name.
    ///
    /// # Errors
    /// Those of writing it.
    fn close_entry(&self) -> std::io::Result<()> {
        let Some(ledger) = &self.entering.ledger else {
            return Ok(());
        };
        let token = &self.session.belongings.token;
        let own = match ledger.own_entry(&self.session.plan.id, token) {
            Ok(Some(own)) => own,
            Ok(None) => {
                if self.entering.proof.is_some() {
                    ledger.remove_lock(&self.session.plan.id, token);
                }
                return Ok(());
            }
            Err(unread) => return Err(std::io::Error::other(unread.why)),
        };
        match &self.paying.paid.error {
            _ if self.paying.paid.complete => {
                self.session.shared.page().entered.store(0, SeqCst);
                let _ = self.session.belongings.say_entered(false);
                ledger.close_here(&own)
            }
            Some(error) => ledger.note_error(&own.path, error.errno),
            None => Ok(()),
        }
    }

    /// Whether the command was interrupted, and how often.
    #[must_use]
    pub fn interrupts(&self) -> u32 {
        self.command.interrupts
    }
}

/// The signals that the loop knows by name.
mod libc_signal {
    use rustix::process::Signal;
    pub const CHLD: i32 = Signal::CHILD.as_raw();
    pub const INT: i32 = Signal::INT.as_raw();
    pub const TERM: i32 = Signal::TERM.as_raw();
    pub const HUP: i32 = Signal::HUP.as_raw();
}
