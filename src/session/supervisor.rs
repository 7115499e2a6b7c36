//! The supervisor's loop: heartbeat, requests for the ledger, debts that fall due, signals, the end.
//!
//! Promise: nothing in the loop waits on a disk. Ledger entries are written and file systems are
//! settled by processes of their own, so that the heartbeat, signals and other file systems go on.
//! Order: an entry is on disk before its file systems may owe (`filesystems` in the page turn to
//! `FS_OWES` when the job that wrote it has ended well and the keeper holds their descriptors).

use super::compile::now_mask;
use super::control::{Answer, Client, Request, Server};
use super::counts::Census;
use super::escape::Escapes;
use super::filesystems::Filesystems;
use super::keeper::{Belongings, Keeper};
use super::ledger::Ledger;
use super::settle::{self, Settle, Settled};
use super::shared::Shared;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_model::ledger::Entry;
use synclater_model::policy::dial::Until;
use synclater_model::policy::rules::RuleSet;
use synclater_model::report::run::SettleError;
use synclater_shim::page;
use synclater_sys::job::Job;
use synclater_sys::perf::LostWrites;
use synclater_sys::process::{self, Change};
use synclater_sys::signal::Signals;
use synclater_sys::wait::{self, Doorbell, For};

/// Time between two heartbeats; the lease is seven of them.
const BEAT: Duration = Duration::from_millis(250);

/// How often the file systems that owe are asked for write-back errors where the kernel may not be
/// watched. Asking is settling: dirty data of this age is written by the kernel anyhow
/// (`vm.dirty_expire_centisecs`).
const ASK_EVERY: Duration = Duration::from_secs(30);

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

/// What settling has told so far.
#[derive(Clone, Debug, Default)]
pub struct Paid {
    /// Longest settle of each file system, by index.
    pub longest: BTreeMap<usize, Duration>,
    /// Greatest age that a request had when it was settled.
    pub oldest: Option<Duration>,
    /// The first write-back error.
    pub error: Option<SettleError>,
    /// Time from the end of the command to the end of the last settle.
    pub final_settle: Option<Duration>,
    /// Whether everything that owed has been settled at the end.
    pub complete: bool,
    /// Requests that had been answered late when the last settle began.
    pub requests: u64,
}

/// A file system that owed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Its index in the page.
    pub index: usize,
    /// Where it is, or was, mounted.
    pub mount: String,
    /// Its type.
    pub fstype: String,
    /// Its source.
    pub device: String,
}

/// The ledger entry's way to the disk.
#[derive(Default)]
struct Entering {
    wanted: Vec<usize>,
    writing: Option<(Job, Vec<usize>)>,
    written: Vec<usize>,
    ever: Vec<Owed>,
    sync_all: bool,
    failed: bool,
}

/// A running session.
pub struct Supervisor {
    /// What was asked for.
    pub plan: Plan,
    /// Page and slots.
    pub shared: &'static Shared,
    /// File systems in sight.
    pub filesystems: Filesystems,
    /// Who made requests.
    pub census: Census,
    /// Who escaped.
    pub escapes: Escapes,
    /// What was settled.
    pub paid: Paid,
    /// Everything that must be removed at the end.
    pub belongings: Belongings,
    ledger: Option<Ledger>,
    entering: Entering,
    keeper: Option<Keeper>,
    settles: BTreeMap<usize, Settle>,
    again: Vec<usize>,
    settle_clients: Vec<Client>,
    signals: Signals,
    doorbell: Doorbell,
    server: Server,
    slots_door: UnixListener,
    mountinfo: File,
    next_beat: Instant,
    child: u32,
    outcome: Option<Outcome>,
    interrupts: u32,
    relaxing: bool,
    lost_writes: Option<LostWrites>,
    last_ask: Instant,
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
}

impl Supervisor {
    /// Makes the session ready for its command: the page says what it will say, the lease runs.
    ///
    /// # Errors
    /// Those of eventfd(2) and of opening /proc/self/mountinfo.
    pub fn new(parts: Parts) -> std::io::Result<Supervisor> {
        let shared = parts.shared;
        let doorbell = Doorbell::watch(move || &shared.slots().doorbell)?;
        let mut filesystems = Filesystems::new();
        filesystems.refresh(shared);
        let mut s = Supervisor {
            plan: parts.plan,
            shared,
            filesystems,
            census: Census::new(),
            escapes: parts.escapes,
            paid: Paid::default(),
            belongings: parts.belongings,
            ledger: parts.ledger,
            entering: Entering::default(),
            keeper: None,
            settles: BTreeMap::new(),
            again: Vec::new(),
            settle_clients: Vec::new(),
            signals: parts.signals,
            doorbell,
            server: parts.server,
            slots_door: parts.slots_door,
            mountinfo: File::open("/proc/self/mountinfo")?,
            next_beat: Instant::now(),
            child: 0,
            outcome: None,
            interrupts: 0,
            relaxing: false,
            lost_writes: None,
            last_ask: Instant::now(),
        };
        s.relax(s.plan.classes.iter().any(|u| *u != Until::Now));
        s.beat();
        Ok(s)
    }

    /// The signal state for the command.
    #[must_use]
    pub fn inherited(&self) -> &synclater_sys::signal::Inherited {
        &self.signals.inherited
    }

    /// Runs the loop until the command, process `child`, has ended.
    pub fn run(&mut self, child: u32) -> Outcome {
        self.child = child;
        loop {
            if let Some(outcome) = self.outcome {
                return outcome;
            }
            self.turn();
        }
    }

    fn relax(&mut self, on: bool) {
        self.relaxing = on;
        self.shared.relax(on);
    }

    fn beat(&mut self) {
        self.shared.heartbeat();
        // The keeper may have ended the relaxation while we stood still.
        self.shared.relax(self.relaxing);
        self.next_beat = Instant::now() + BEAT;
    }

    /// Waits for whatever comes first, then looks at everything.
    fn turn(&mut self) {
        self.wait();
        if Instant::now() >= self.next_beat {
            self.beat();
            self.census.sweep(self.shared);
            self.escapes.drain(self.plan.rules.as_ref());
            self.look_for_lost_writes();
        }
        self.take_signals();
        self.finish_jobs();
        self.reap();
        self.look_at_slots();
        self.hand_out_slots();
        self.serve();
        self.end_of_lease();
        self.start_due();
    }

    fn wait(&self) {
        let mut fds: Vec<(BorrowedFd<'_>, For)> = vec![
            (self.signals.as_fd(), For::Input),
            (self.doorbell.as_fd(), For::Input),
            (self.server.as_fd(), For::Input),
            (self.slots_door.as_fd(), For::Input),
            (self.mountinfo.as_fd(), For::Change),
        ];
        fds.extend(self.keeper.iter().map(|k| (k.as_fd(), For::Input)));
        fds.extend(self.settles.values().map(|s| (s.as_fd(), For::Input)));
        fds.extend(
            self.entering
                .writing
                .iter()
                .map(|(j, _)| (j.as_fd(), For::Input)),
        );
        fds.extend(self.escapes.fds().into_iter().map(|fd| (fd, For::Input)));
        let patience = self
            .next_beat
            .min(self.next_due())
            .saturating_duration_since(Instant::now());
        let _ = wait::any(&fds, patience);
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal.number == libc_signal::CHLD {
                continue;
            }
            if matches!(
                signal.number,
                libc_signal::INT | libc_signal::TERM | libc_signal::HUP
            ) {
                self.interrupts += 1;
            }
            // A key at the terminal reached the command too; so did what the command sends us.
            if signal.sender != 0 && signal.sender != self.child && self.child != 0 {
                let _ = process::kill(self.child, signal.number);
            }
        }
    }

    fn job_pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.settles.values().map(Settle::pid).collect();
        pids.extend(self.keeper.iter().map(Keeper::pid));
        pids.extend(self.entering.writing.iter().map(|(j, _)| j.pid()));
        pids
    }

    fn reap(&mut self) {
        let jobs = self.job_pids();
        while let Some((pid, change)) = process::next_change(&jobs) {
            if pid != self.child {
                continue;
            }
            match change {
                Change::Exited(status) => self.outcome = Some(Outcome::Exited(status)),
                Change::Signaled(signal) => self.outcome = Some(Outcome::Signaled(signal)),
                Change::Stopped => {
                    let _ = process::kill(std::process::id(), libc_signal::STOP);
                }
                Change::Continued => {}
            }
        }
    }

    fn look_at_slots(&mut self) {
        self.doorbell.clear();
        let slots = self.shared.slots();
        self.filesystems_changed();
        let want = slots.want.swap(0, SeqCst);
        for index in (0..page::FS_MAX).filter(|i| want >> i & 1 == 1) {
            self.enter(index);
        }
        if slots.want_sync.load(SeqCst) != 0 && !self.entering.sync_all {
            self.enter_everything();
        }
        self.answer_questions();
        self.write_ledger();
    }

    fn filesystems_changed(&mut self) {
        for index in self
            .filesystems
            .refresh_if_changed(self.shared, &self.mountinfo)
        {
            // Gone from our sight, perhaps by somebody else's umount: pay and let go.
            self.filesystems
                .set_state(index, page::FS_KNOWN, self.shared);
            if let Some(fs) = self.filesystems.get_mut(index) {
                fs.leaving = true;
            }
            self.settle(index);
        }
    }

    fn answer_questions(&mut self) {
        for slot in &self.shared.slots().slot {
            let ask = slot.ask_mount.load(SeqCst);
            if ask != 0 {
                if let Some(pid) = self.census.pid_of(slot) {
                    self.filesystems.resolve(ask, pid, self.shared);
                }
                slot.ask_mount.store(0, SeqCst);
            }
            match slot.umount.load(SeqCst) {
                page::UMOUNT_ASKED => self.begin_umount(slot),
                page::UMOUNT_OVER => self.end_umount(slot),
                _ => {}
            }
        }
    }

    /// Wants superblock `index` in the ledger.
    fn enter(&mut self, index: usize) {
        let e = &self.entering;
        let known = e.written.contains(&index) || e.wanted.contains(&index);
        let writing = e
            .writing
            .as_ref()
            .is_some_and(|(_, list)| list.contains(&index));
        if known || writing || self.ledger.is_none() || e.failed {
            return;
        }
        if self.filesystems.hold(index, self.shared).is_some() {
            self.entering.wanted.push(index);
        }
    }

    fn enter_everything(&mut self) {
        self.entering.sync_all = true;
        for index in self.filesystems.all_disks(self.shared) {
            self.enter(index);
        }
    }

    fn write_ledger(&mut self) {
        if self.entering.writing.is_some() || self.entering.wanted.is_empty() {
            self.allow_sync();
            return;
        }
        let Some(ledger) = self.ledger.clone() else {
            return;
        };
        if self.keeper.is_none() && !self.start_keeper(&ledger) {
            return;
        }
        let fresh = std::mem::take(&mut self.entering.wanted);
        let held = fresh.iter().all(|&i| self.hand_to_keeper(i));
        let mut list = self.entering.written.clone();
        list.extend(&fresh);
        match ledger.write(&self.entry(&list)).ok().filter(|_| held) {
            Some(job) => {
                self.escapes.is_ours(job.pid());
                self.entering.writing = Some((job, fresh));
            }
            None => self.entering.failed = true,
        }
    }

    fn hand_to_keeper(&self, index: usize) -> bool {
        let fd = self.filesystems.get(index).and_then(|f| f.fd.as_ref());
        let (Some(fd), Some(keeper)) = (fd, &self.keeper) else {
            return false;
        };
        keeper.hold(index, fd.as_fd()).is_ok()
    }

    fn start_keeper(&mut self, ledger: &Ledger) -> bool {
        match Keeper::start(self.shared, ledger.clone(), self.belongings.clone()) {
            Ok(keeper) => {
                self.escapes.is_ours(keeper.pid());
                keeper.settle_at_death(self.must_settle());
                self.keeper = Some(keeper);
                true
            }
            Err(_) => false,
        }
    }

    fn entry(&self, list: &[usize]) -> Entry {
        let laxest = self
            .plan
            .classes
            .iter()
            .max()
            .copied()
            .unwrap_or(Until::Now);
        Entry {
            version: Entry::VERSION,
            id: self.plan.id.clone(),
            boot_id: super::dirs::boot_id(),
            pid: std::process::id(),
            command: self.plan.command.clone(),
            started: self.plan.started.clone(),
            until: laxest.to_string(),
            consistent: None,
            filesystems: self.filesystems.for_ledger(list),
        }
    }

    /// A write-back error between two settles is not waited for: where the kernel tells of one, the
    /// next requests must fail with it, so the file systems that owe are asked for theirs.
    fn look_for_lost_writes(&mut self) {
        let told = match &mut self.lost_writes {
            Some(watch) => watch.told(),
            None => self.last_ask.elapsed() > ASK_EVERY,
        };
        if told && self.relaxing && self.must_settle() {
            self.last_ask = Instant::now();
            self.settle_all();
        }
    }

    fn ledger_written(&mut self, status: i32, fresh: Vec<usize>) {
        if status != 0 {
            self.entering.failed = true;
            eprintln!(
                "{}",
                synclater_model::report::message::Trouble::new(
                    "cannot write the ledger",
                    std::io::Error::from_raw_os_error(status).to_string(),
                    "free space, or name another folder in SYNCLATER_STATE_DIR",
                    "the command goes on; every sync request is made for real",
                )
            );
            return;
        }
        if self.lost_writes.is_none() && !fresh.is_empty() {
            self.lost_writes = LostWrites::watch().ok();
            self.last_ask = Instant::now();
        }
        for index in fresh {
            if self
                .filesystems
                .get(index)
                .is_some_and(|f| f.fd.is_some() && !f.leaving)
            {
                self.filesystems
                    .set_state(index, page::FS_OWES, self.shared);
                self.entering.written.push(index);
                self.note_owed(index);
            }
        }
        self.allow_sync();
    }

    /// sync() may be put off once every disk in sight is in the ledger, and all are tested.
    fn allow_sync(&mut self) {
        let page = self.shared.page();
        if !self.entering.sync_all || page.sync_ok.load(SeqCst) != 0 {
            return;
        }
        let disks = self.filesystems.all_disks(self.shared);
        let entered = disks.iter().all(|i| self.entering.written.contains(i));
        if entered && !disks.is_empty() && self.filesystems.all_tested() {
            if let Some(keeper) = &self.keeper {
                keeper.owe_everything();
            }
            page.sync_ok.store(1, SeqCst);
        }
    }

    fn finish_jobs(&mut self) {
        if let Some(status) = self
            .entering
            .writing
            .as_ref()
            .and_then(|(job, _)| job.finished())
        {
            let (_, fresh) = self.entering.writing.take().expect("looked at just now");
            self.ledger_written(status, fresh);
        }
        let shared = self.shared;
        let ended: Vec<(usize, Settled)> = self
            .settles
            .iter()
            .filter_map(|(i, s)| Some((*i, s.finished(shared)?)))
            .collect();
        for (index, end) in ended {
            self.settles.remove(&index);
            self.settled(index, end);
        }
        self.keeper_news();
    }

    fn keeper_news(&mut self) {
        while let Some(index) = self.keeper.as_ref().and_then(Keeper::dropped) {
            self.umount_ready(index);
        }
        if self.keeper.as_ref().is_some_and(Keeper::has_ended) {
            // Somebody killed it: without a keeper nothing may owe, so there has to be another.
            self.keeper = None;
            let Some(ledger) = self.ledger.clone() else {
                return;
            };
            let all = self.filesystems.owing().collect::<Vec<_>>();
            if !self.start_keeper(&ledger) || !all.iter().all(|&i| self.hand_to_keeper(i)) {
                self.relax(false);
                self.settle_all();
            }
        }
    }

    fn settled(&mut self, index: usize, end: Settled) {
        let longest = self.paid.longest.entry(index).or_default();
        *longest = end.took.max(*longest);
        self.paid.oldest = self.paid.oldest.max(end.age);
        if end.errno != 0 {
            self.lost_write(index, end.errno);
        }
        if self.filesystems.get(index).is_some_and(|f| f.leaving) {
            self.let_go(index);
        }
        if self.again.contains(&index) {
            self.again.retain(|i| *i != index);
            self.settle(index);
        }
        if self.settles.is_empty() {
            for client in std::mem::take(&mut self.settle_clients) {
                client.answer(&self.settle_answer());
            }
        }
    }

    fn settle_answer(&self) -> Answer {
        match &self.paid.error {
            None => Answer::Done {
                said: "settled; every request made before this is durable".into(),
            },
            Some(e) => Answer::Refused {
                why: format!("{} on {} ({}): writes were lost", e.name, e.mount, e.device),
            },
        }
    }

    fn lost_write(&mut self, index: usize, errno: i32) {
        self.shared.page().error.store(errno.unsigned_abs(), SeqCst);
        if self.paid.error.is_some() {
            return;
        }
        let fs = self.filesystems.get(index);
        self.paid.error = Some(SettleError {
            mount: fs.map_or_else(
                || "sync()".into(),
                |f| f.point.to_string_lossy().into_owned(),
            ),
            device: fs.map_or_else(String::new, |f| f.source.clone()),
            errno,
            name: errno_name(errno),
        });
    }

    /// Starts settling superblock `index` (or `ALL_FS`); if it is being settled, once more after.
    fn settle(&mut self, index: usize) {
        if self.settles.contains_key(&index) {
            if !self.again.contains(&index) {
                self.again.push(index);
            }
            return;
        }
        let job = if index == page::ALL_FS {
            Settle::everything(self.shared)
        } else {
            let Some(fd) = self.filesystems.get(index).and_then(|f| f.fd.as_ref()) else {
                return;
            };
            Settle::filesystem(self.shared, index, fd.as_fd())
        };
        match job {
            Ok(job) => {
                self.escapes.is_ours(job.pid());
                self.paid.requests = self.census.total(self.shared).skipped();
                self.settles.insert(index, job);
            }
            Err(e) => self.lost_write(index, e.raw_os_error().unwrap_or(0)),
        }
    }

    fn settle_all(&mut self) {
        for index in self.filesystems.owing().collect::<Vec<_>>() {
            self.settle(index);
        }
        if self.shared.page().sync_ok.load(SeqCst) != 0 {
            self.settle(page::ALL_FS);
        }
    }

    /// Whether the debts are to be settled at all.
    fn must_settle(&self) -> bool {
        self.plan.classes.iter().any(|u| *u != Until::Never)
    }

    /// When the debt of each row falls due, with the time that settling it takes taken off.
    fn due(&self) -> Vec<(usize, Duration)> {
        let rows = self.filesystems.owing().chain([page::ALL_FS]);
        let mut due = Vec::new();
        for row in rows.filter(|r| !self.settles.contains_key(r)) {
            for (class, tick) in settle::debts(self.shared, row) {
                let Some(Until::Within(within)) = self.plan.classes.get(class) else {
                    continue;
                };
                let took = self.paid.longest.get(&row).copied().unwrap_or_default();
                let early = (took + took / 4).min(*within / 2);
                let age = self.shared.clock.since(tick);
                due.push((row, (*within - early).saturating_sub(age)));
            }
        }
        due
    }

    fn next_due(&self) -> Instant {
        let soonest = self.due().into_iter().map(|(_, left)| left).min();
        let now = Instant::now();
        let due = now + soonest.unwrap_or(BEAT);
        self.plan.ends.map_or(due, |end| end.min(due))
    }

    fn start_due(&mut self) {
        for (row, left) in self.due() {
            if left.is_zero() {
                self.settle(row);
            }
        }
    }

    fn end_of_lease(&mut self) {
        if self.relaxing && self.plan.ends.is_some_and(|end| Instant::now() >= end) {
            self.relax(false);
            if self.must_settle() {
                self.settle_all();
            }
        }
    }

    fn hand_out_slots(&self) {
        while let Ok((stream, _)) = self.slots_door.accept() {
            let Ok(peer) = synclater_sys::socket::peer(&stream) else {
                continue;
            };
            if is_descendant(peer.pid) {
                let fd = self.shared.slots_file().as_fd();
                let _ = synclater_sys::socket::send(&stream, b"s", &[fd]);
            }
        }
    }

    fn serve(&mut self) {
        while let Some((client, request)) = self.server.next() {
            match request {
                Err(why) => client.answer(&Answer::Refused { why }),
                Ok(Request::Ps) => {
                    let session = Box::new(self.describe());
                    client.answer(&Answer::Session { session });
                }
                Ok(Request::Settle) => {
                    self.settle_all();
                    self.settle_clients.push(client);
                    if self.settles.is_empty() {
                        for client in std::mem::take(&mut self.settle_clients) {
                            client.answer(&self.settle_answer());
                        }
                    }
                }
                Ok(Request::Set { until, for_s }) => client.answer(&self.set(until, for_s)),
            }
        }
    }

    /// Moves the dial of a live session. Every request from now on sees it.
    fn set(&mut self, until: Option<String>, for_s: Option<f64>) -> Answer {
        let dial = match until.as_deref().map(str::parse::<Until>).transpose() {
            Ok(dial) => dial,
            Err(e) => return Answer::Refused { why: e.to_string() },
        };
        if let Some(s) = for_s {
            self.plan.ends = Some(Instant::now() + Duration::from_secs_f64(s.clamp(0.0, 1e9)));
        }
        let Some(dial) = dial else {
            self.relax(self.plan.classes.iter().any(|u| *u != Until::Now));
            return Answer::Done {
                said: format!("{}: lease changed", self.plan.id),
            };
        };
        if self.ledger.is_none() && dial != Until::Now {
            return Answer::Refused {
                why: "there is no ledger: only `now` is possible".into(),
            };
        }
        self.plan.classes[0] = dial;
        self.shared
            .page()
            .now_mask
            .store(now_mask(&self.plan.classes), SeqCst);
        self.relax(self.plan.classes.iter().any(|u| *u != Until::Now));
        if let Some(keeper) = &self.keeper {
            keeper.settle_at_death(self.must_settle());
        }
        self.rewrite_entry();
        if dial == Until::Now {
            self.settle_all();
        }
        Answer::Done {
            said: format!("{}: until {dial}", self.plan.id),
        }
    }

    /// The entry on disk names the laxest dial in force; a laxer one has to reach it.
    fn rewrite_entry(&mut self) {
        let Some(ledger) = self.ledger.clone() else {
            return;
        };
        if self.entering.written.is_empty() || self.entering.writing.is_some() {
            return;
        }
        let entry = self.entry(&self.entering.written.clone());
        if let Ok(job) = ledger.write(&entry) {
            self.escapes.is_ours(job.pid());
            self.entering.writing = Some((job, Vec::new()));
        }
    }

    fn begin_umount(&mut self, slot: &page::Slot) {
        let mount = slot.umount_mount.load(SeqCst);
        if self.filesystems.is_leaving(mount) {
            return;
        }
        if let Some(pid) = self.census.pid_of(slot) {
            self.filesystems.resolve(mount, pid, self.shared);
        }
        let index = self.filesystems.by_mount(mount);
        let owes = index.filter(|&i| self.filesystems.get(i).is_some_and(|f| f.fd.is_some()));
        let Some(index) = owes else {
            slot.umount.store(page::UMOUNT_READY, SeqCst);
            wait::wake(&slot.umount);
            return;
        };
        let fs = self.filesystems.get_mut(index).expect("found just now");
        if !std::mem::replace(&mut fs.leaving, true) {
            self.filesystems
                .set_state(index, page::FS_REAL, self.shared);
            self.settle(index);
        }
    }

    /// Lets go of a file system that has been settled, and has the keeper do so.
    fn let_go(&mut self, index: usize) {
        self.filesystems.release(index, self.shared);
        self.entering.written.retain(|i| *i != index);
        self.entering.wanted.retain(|i| *i != index);
        match &self.keeper {
            Some(keeper) => keeper.let_go(index),
            None => self.umount_ready(index),
        }
    }

    fn umount_ready(&mut self, index: usize) {
        for slot in &self.shared.slots().slot {
            let asked = slot.umount.load(SeqCst) == page::UMOUNT_ASKED;
            if asked && self.filesystems.is_leaving(slot.umount_mount.load(SeqCst)) {
                slot.umount.store(page::UMOUNT_READY, SeqCst);
                wait::wake(&slot.umount);
            }
        }
        self.filesystems.has_left(index);
        let waiting = |s: &page::Slot| s.umount.load(SeqCst) == page::UMOUNT_READY;
        if !self.shared.slots().slot.iter().any(waiting) {
            self.may_owe_again(index);
        }
    }

    fn end_umount(&mut self, slot: &page::Slot) {
        slot.umount.store(page::UMOUNT_NONE, SeqCst);
        for index in 0..page::FS_MAX {
            if self
                .filesystems
                .get(index)
                .is_some_and(|f| f.leaving && f.fd.is_none())
            {
                self.may_owe_again(index);
            }
        }
        self.filesystems.refresh(self.shared);
    }

    fn may_owe_again(&mut self, index: usize) {
        if let Some(fs) = self.filesystems.get_mut(index) {
            fs.leaving = false;
            self.filesystems
                .set_state(index, page::FS_KNOWN, self.shared);
        }
    }

    /// Ends the relaxation and settles what is owed; progress is shown through `show`. Returns
    /// early, with the ledger entry left open, at a second interrupt.
    pub fn settle_at_end(&mut self, mut show: impl FnMut(&str)) {
        let began = Instant::now();
        self.child = 0;
        self.relax(false);
        while self.entering.writing.is_some() {
            self.turn();
        }
        if !self.must_settle() {
            self.paid.complete = true;
            return;
        }
        self.settle_all();
        let total = settle::dirty_bytes();
        let mut told = Instant::now();
        while !self.settles.is_empty() {
            if self.interrupts >= 2 {
                return;
            }
            self.turn();
            if began.elapsed() > Duration::from_secs(2) && told.elapsed() > BEAT {
                told = Instant::now();
                show(&self.progress(total));
            }
        }
        self.paid.final_settle = Some(began.elapsed());
        self.paid.complete = self.paid.error.is_none();
    }

    fn progress(&self, total: u64) -> String {
        let left = settle::dirty_bytes();
        let names: Vec<String> = self
            .settles
            .iter()
            .map(|(i, s)| {
                let name = self.filesystems.get(*i).map_or("everything".into(), |f| {
                    f.point.to_string_lossy().into_owned()
                });
                format!("{name} for {:.0} s", s.running_for().as_secs_f64())
            })
            .collect();
        format!(
            "synclater: settling {}: {} of {} dirty left",
            names.join(", "),
            synclater_model::report::number::bytes(left),
            synclater_model::report::number::bytes(total.max(left)),
        )
    }

    /// Closes the ledger entry, ends the keeper, removes the session's files. Where something was
    /// not settled, the entry stays.
    pub fn close(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end();
        }
        // Whoever unmounts a file system right after us must not find it busy.
        self.filesystems.release_all();
        let close = self.paid.complete && !self.entering.written.is_empty();
        if let Some(ledger) = self
            .ledger
            .clone()
            .filter(|_| close || self.entry_may_exist())
        {
            if self.paid.complete {
                let _ = ledger.close_here(&self.plan.id);
            }
        }
        for dir in &self.belongings.dirs {
            let _ = std::fs::remove_dir_all(dir);
        }
        self.escapes.end();
    }

    fn entry_may_exist(&self) -> bool {
        self.ledger
            .as_ref()
            .is_some_and(|l| l.path(&self.plan.id).exists())
    }

    fn note_owed(&mut self, index: usize) {
        let Some(f) = self.filesystems.get(index) else {
            return;
        };
        let mount = f.point.to_string_lossy().into_owned();
        let owed = Owed {
            index,
            mount,
            fstype: f.fstype.clone(),
            device: f.source.clone(),
        };
        if !self.entering.ever.contains(&owed) {
            self.entering.ever.push(owed);
        }
    }

    /// File systems that owed at any time.
    #[must_use]
    pub fn owed(&self) -> &[Owed] {
        &self.entering.ever
    }

    /// Requests that the settles so far are about.
    #[must_use]
    pub fn paid_requests(&self) -> u64 {
        self.paid.requests
    }

    /// Whether the command was interrupted, and how often.
    #[must_use]
    pub fn interrupts(&self) -> u32 {
        self.interrupts
    }

    fn describe(&mut self) -> synclater_model::report::ps::PsSession {
        super::report::ps(self)
    }
}

/// Whether `pid` descends from us. Orphans among our descendants are our children (subreaper).
fn is_descendant(pid: u32) -> bool {
    let me = std::process::id();
    let mut at = pid;
    for _ in 0..1000 {
        if at == me {
            return true;
        }
        match parent_of(at) {
            Some(parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn errno_name(errno: i32) -> String {
    match errno {
        5 => "EIO".into(),
        28 => "ENOSPC".into(),
        122 => "EDQUOT".into(),
        30 => "EROFS".into(),
        other => std::io::Error::from_raw_os_error(other).to_string(),
    }
}

/// The signals that the loop knows by name.
mod libc_signal {
    use rustix::process::Signal;
    pub const CHLD: i32 = Signal::CHILD.as_raw();
    pub const INT: i32 = Signal::INT.as_raw();
    pub const TERM: i32 = Signal::TERM.as_raw();
    pub const HUP: i32 = Signal::HUP.as_raw();
    pub const STOP: i32 = Signal::STOP.as_raw();
}
