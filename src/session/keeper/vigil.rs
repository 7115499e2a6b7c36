//! The keeper's own side: it waits for its supervisor's end, or for its lease to run out.

use super::{ALL, DROP, END, HOLD, HOLD_SIZE, LOST, MUST_SETTLE, NEVER, NO_SYNC, PROOF, SYNC_ALL};
use crate::session::belongings::Belongings;
use crate::session::device::{self, Number};
use crate::session::durable::{Holding, Past};
use crate::session::hierarchy::enter_own_cgroup;
use crate::session::ledger::{Filed, Ledger, Unread};
use crate::session::losses::{for_requests, KILLED};
use crate::session::mounts::{dev_of, mounts_beside};
use crate::session::shared::Shared;
use crate::session::{told, underway};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_shim::page::ALL_FS;
use synclater_sys::everything;
use synclater_sys::flushes::FailedFlushes;
use synclater_sys::job::Job;
use synclater_sys::{process, socket, wait};

/// How long a settle by the keeper may take before it gives up waiting and leaves the entry open.
const PATIENCE: Duration = Duration::from_secs(3600);

/// What a look at the socket told.
enum Heard {
    Message,
    Nothing,
    End,
}

/// The keeper's own side.
pub(super) struct Vigil {
    shared: &'static Shared,
    ledger: Ledger,
    what: Belongings,
    socket: OwnedFd,
    /// The session's.
    lock: OwnedFd,
    /// When the supervisor was found to be dead.
    alone_since: Option<Instant>,
    /// Each file system with its index.
    held: Vec<(usize, Holding)>,
    /// File systems that it could not be handed.
    missing: Vec<usize>,
    /// Those that are being settled; with what sync() owes.
    settles: BTreeMap<usize, Job>,
    /// Those of them that are to be settled once more.
    again: BTreeSet<usize>,
    /// Those of them that it is to let go of.
    leaving: BTreeSet<usize>,
    all: bool,
    never: bool,
    /// It has been told of everything that owes.
    is_whole: bool,
    /// Held until we end.
    proof: Vec<OwnedFd>,
    /// The errno of a lost write that it has met.
    lost: i32,
    /// Whether sync(2) is to be made once what is being settled is.
    sync_is_next: bool,
    /// How often the supervisor has asked to be told when none is made.
    asked: u32,
    /// What disks refuse: a supervisor that dies may not have judged that.
    flushes: Option<FailedFlushes>,
    refusals: Vec<(Instant, Option<Number>)>,
}

impl Vigil {
    /// Of a session, with its end of the supervisor's socket and the session's lock.
    pub(super) fn new(
        shared: &'static Shared,
        ledger: Ledger,
        what: Belongings,
        [socket, lock]: [OwnedFd; 2],
    ) -> Vigil {
        Vigil {
            shared,
            ledger,
            what,
            socket,
            lock,
            alone_since: None,
            held: Vec::new(),
            missing: Vec::new(),
            settles: BTreeMap::new(),
            again: BTreeSet::new(),
            leaving: BTreeSet::new(),
            all: false,
            never: false,
            is_whole: false,
            proof: Vec::new(),
            lost: 0,
            sync_is_next: false,
            asked: 0,
            flushes: FailedFlushes::watch().ok(),
            refusals: Vec::new(),
        }
    }

    /// Keeps watch until it is told to end, or has settled for a dead supervisor; its exit status.
    pub(super) fn keep(mut self, parent: &OwnedFd) -> i32 {
        process::leave_session();
        process::set_name(c"synclater-keep");
        enter_own_cgroup();
        let mut settled_for = None;
        loop {
            let is_alone = self.wait(parent);
            // All that it was told before its end: a supervisor may die before we have begun.
            if self.has_heard_the_end() {
                self.end_settles();
                return 0;
            }
            self.take_ends();
            self.hear_failed_flushes();
            while self.may_tell() && socket::send(&self.socket, &[NO_SYNC], &[]).is_ok() {
                self.asked -= 1;
            }
            if let Some(since) = self.alone_since {
                if self.settles.is_empty() || Instant::now() > since + PATIENCE {
                    return self.close();
                }
                continue;
            }
            if is_alone {
                self.alone_since = Some(Instant::now());
                self.shared.relax(false);
                self.settle_all();
                continue;
            }
            // Which lease it is tells one stop of the supervisor from the next, which may come
            // while this settles.
            let lease = self.shared.page().lease_until.load(SeqCst);
            if self.shared.lease_is_over() && settled_for != Some(lease) {
                settled_for = Some(lease);
                self.shared.relax(false);
                self.settle_all();
            }
        }
    }

    /// Whether the supervisor has asked for what it may be told now: that no sync(2) is being made.
    fn may_tell(&self) -> bool {
        self.asked > 0 && !self.settles.contains_key(&ALL_FS)
    }

    /// Whoever unmounts a file system behind us must not find it busy. One that does not end by
    /// itself is killed, and leaves its mark.
    fn end_settles(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(800);
        self.wait_for_settles(PATIENCE);
        self.settles.values().for_each(Job::kill);
        self.wait_for_settles(PATIENCE);
    }

    fn wait_for_settles(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while !self.settles.is_empty() && Instant::now() < until {
            let all = self.settles.values();
            let fds: Vec<_> = all.map(|job| (job.as_fd(), wait::For::Input)).collect();
            let _ = wait::any(&fds, Duration::from_millis(100));
            self.settles.retain(|_, job| job.finished().is_none());
        }
    }

    /// Waits until something has happened, or might have; whether the supervisor is dead.
    fn wait(&self, parent: &OwnedFd) -> bool {
        let is_known = self.alone_since.is_some();
        let mut fds: Vec<(BorrowedFd<'_>, wait::For)> = Vec::new();
        // No more than these: poll(2) takes as many as there may be files, and few may be left.
        let jobs = self.settles.values().map(AsFd::as_fd);
        fds.extend(jobs.map(|fd| (fd, wait::For::Input)));
        let supervisors = [self.socket.as_fd(), parent.as_fd()];
        if !is_known {
            fds.extend(supervisors.map(|fd| (fd, wait::For::Input)));
        }
        let is_over = is_known && self.settles.is_empty();
        let patience = Duration::from_millis(if is_over { 0 } else { 200 });
        let ready = wait::any(&fds, patience);
        is_known || ready.last().is_some_and(|dead| *dead)
    }

    /// Takes all messages, without waiting; whether it is to end.
    fn has_heard_the_end(&mut self) -> bool {
        loop {
            match self.listen() {
                Heard::Message => {}
                Heard::Nothing => return false,
                Heard::End => return true,
            }
        }
    }

    /// Takes one message, without waiting.
    fn listen(&mut self) -> Heard {
        let mut buf = [0u8; HOLD_SIZE];
        let Ok((n, fds)) = socket::receive(&self.socket, &mut buf) else {
            return Heard::Nothing;
        };
        let index = usize::from(buf[1]);
        match (n, buf[0]) {
            (HOLD_SIZE, HOLD) => {
                if self.leaving.remove(&index) {
                    self.let_go(index);
                }
                self.forget(index);
                // With too many files open the kernel leaves some out (MSG_CTRUNC).
                if fds.len() == usize::from(buf[2]) {
                    let past = buf[3..].try_into().map(Past::from_bytes);
                    self.hold(index, fds, past.unwrap_or_default());
                } else {
                    self.missing.push(index);
                }
            }
            (2, DROP) => {
                // What settles it has a descriptor there, too.
                self.again.remove(&index);
                if self.settles.contains_key(&index) {
                    self.leaving.insert(index);
                } else {
                    self.let_go(index);
                }
            }
            (1, SYNC_ALL) => self.all = true,
            (1, NEVER) => self.never = true,
            (1, MUST_SETTLE) => self.never = false,
            // With too many files open the kernel leaves it out: the one before is as good.
            (1, PROOF) if fds.is_empty() => {}
            (1, PROOF) => self.proof = fds,
            (1, ALL) => self.is_whole = true,
            (1, NO_SYNC) => (self.sync_is_next, self.asked) = (false, self.asked + 1),
            (1, END) => return Heard::End,
            (0, _) => return Heard::Nothing,
            _ => {}
        }
        Heard::Message
    }

    fn hold(&mut self, index: usize, fds: Vec<OwnedFd>, past: Past) {
        let mut fds = fds.into_iter();
        let first = fds.next();
        let held = first.map(|fd| Holding::received(fd, fds.next(), past));
        self.held.extend(held.map(|held| (index, held)));
    }

    fn forget(&mut self, index: usize) {
        self.held.retain(|(i, _)| *i != index);
        self.missing.retain(|i| *i != index);
    }

    fn let_go(&mut self, index: usize) {
        self.forget(index);
        let index = u8::try_from(index).unwrap_or(u8::MAX);
        let _ = socket::send(&self.socket, &[DROP, index], &[]);
    }

    /// Begins to settle everything held. The debt stays where it is: a supervisor that goes on
    /// settles it by its age, and we may be killed before that is done.
    fn settle_all(&mut self) {
        if self.never {
            return;
        }
        let held: Vec<usize> = self.held.iter().map(|(i, _)| *i).collect();
        held.into_iter().for_each(|i| self.settle(i));
        self.sync_is_next = self.all;
        self.sync_where_it_is_next();
    }

    /// After the settles of what is held: a disk reports a refused flush once, and sync(2), which
    /// returns no error, would lose that report.
    fn sync_where_it_is_next(&mut self) {
        if self.settles.is_empty() && std::mem::take(&mut self.sync_is_next) {
            self.settle(ALL_FS);
        }
    }

    /// Begins to settle file system `index`; if it is being settled, once more after.
    fn settle(&mut self, index: usize) {
        if self.settles.contains_key(&index) {
            self.again.insert(index);
            return;
        }
        let held = self.held.iter().find(|(i, _)| *i == index);
        let job = match held {
            Some((_, held)) => held.begin(&self.locks(), |errno, fd| self.note(errno, fd)),
            None => Job::start(|| everything::sync_in_job(&self.locks())),
        };
        match job {
            Ok(job) => drop(self.settles.insert(index, job)),
            // No process to be had: the others wait for this one.
            Err(_) => {
                let errno = held.map_or_else(
                    || {
                        everything::sync();
                        0
                    },
                    |(_, held)| held.settle_here(|errno, fd| self.note(errno, fd)),
                );
                self.ended(index, errno);
            }
        }
    }

    /// Takes note of each settle that has ended, whichever that is: the kernel does not tell
    /// anybody else what it has told there.
    fn take_ends(&mut self) {
        let all = self.settles.iter();
        let ended: Vec<(usize, i32)> = all
            .filter_map(|(i, job)| Some((*i, job.finished_or(KILLED)?)))
            .collect();
        for (index, errno) in ended {
            self.settles.remove(&index);
            self.ended(index, errno);
        }
    }

    /// Those of the last moment are the supervisor's to judge; once it is dead, they are ours.
    fn hear_failed_flushes(&mut self) {
        const JUDGED: Duration = Duration::from_secs(2);
        let now = Instant::now();
        let told = self.flushes.as_mut().map(FailedFlushes::told);
        let told = told.unwrap_or_default().into_iter();
        self.refusals.extend(told.map(|disk| (now, disk)));
        if self.alone_since.is_none() {
            // One that stands still judges nothing.
            let judges = !self.shared.lease_is_over();
            self.refusals
                .retain(|(heard, _)| !judges || *heard + JUDGED >= now);
            return;
        }
        if self.never {
            return;
        }
        let disks = std::mem::take(&mut self.refusals);
        let all = self.held.iter();
        let lost = all.filter(|(_, held)| disks.iter().any(|(_, disk)| may_lie_on(held, *disk)));
        let lost: Vec<usize> = lost.map(|(index, _)| *index).collect();
        for index in lost {
            self.lost(index, rustix::io::Errno::IO.raw_os_error());
        }
    }

    fn ended(&mut self, index: usize, errno: i32) {
        if errno != 0 {
            self.lost(index, errno);
        }
        if self.leaving.remove(&index) {
            self.let_go(index);
        } else if self.again.remove(&index) {
            self.settle(index);
        }
        self.sync_where_it_is_next();
    }

    /// The kernel tells of a lost write once: whoever hears it must pass it on, to the victims
    /// through the page and to the supervisor, should it go on.
    fn lost(&mut self, index: usize, errno: i32) {
        self.lost = errno;
        // One that was killed has noted nothing, for others that owe there neither.
        let held = self.held.iter().find(|(i, _)| *i == index);
        let fd = held.map(|(_, held)| held.fd());
        match fd.filter(|_| errno == KILLED) {
            Some(fd) => {
                self.note(errno, fd);
                let _ = underway::note_killed();
            }
            None => self.note_in_session(errno),
        }
        let index = u8::try_from(index).unwrap_or(u8::MAX);
        let errno = u8::try_from(errno).unwrap_or(5);
        let _ = socket::send(&self.socket, &[LOST, index, errno], &[]);
    }

    /// The session's lock, and that beside its entry: as long as one has them, nobody else closes
    /// that.
    fn locks(&self) -> Vec<BorrowedFd<'_>> {
        let all = self.proof.iter().chain([&self.lock]);
        all.map(AsFd::as_fd).collect()
    }

    /// Notes that somebody was told of a lost write on the file system of `fd`.
    fn note(&self, errno: i32, fd: BorrowedFd<'_>) {
        self.shared.page().error.store(for_requests(errno), SeqCst);
        told::note(&self.ledger, (&self.what.id, &self.what.token), errno, fd);
    }

    /// Notes it where the next command looks: one that settles in another run folder sees no page.
    fn note_in_session(&self, errno: i32) {
        let page = self.shared.page();
        page.error.store(for_requests(errno), SeqCst);
        let (id, token) = (&self.what.id, &self.what.token);
        self.ledger.note_own(id, token, errno);
    }

    /// The supervisor is dead, and what can be settled is: clears up behind it.
    fn close(self) -> i32 {
        // The supervisor may have been killed together with what settled for it.
        let _ = underway::note_killed();
        // What the supervisor has met is not told again.
        let met = self.shared.page().lost().cast_signed();
        let is_settled = self.settles.is_empty() && self.missing.is_empty() && self.lost == 0;
        let own = self.ledger.own_entry(&self.what.id, &self.what.token);
        // Where nothing was ever promised nothing is lost.
        let is_free = matches!(&own, Ok(Some(own)) if own.entry.is_free());
        let is_paid = is_free || (self.never || is_settled) && met == 0;
        let is_durable = self.is_whole && is_paid;
        if is_durable && self.is_closed(&own) {
            self.what.give_back(true);
            return 0;
        }
        let errno = [self.lost, met].into_iter().find(|e| *e != 0);
        if let (Some(errno), Ok(Some(own))) = (errno, own) {
            let _ = self.ledger.note_error(&own.path, errno);
        }
        1
    }

    /// Closes the session's entry; whether it has none any more.
    fn is_closed(&self, own: &Result<Option<Filed>, Unread>) -> bool {
        match own {
            Ok(None) => true,
            // Somebody else was told.
            Ok(Some(own)) if own.entry.error.is_some() && !own.entry.is_free() => false,
            Ok(Some(own)) => {
                self.shared.page().entered.store(0, SeqCst);
                let _ = self.what.say_entered(false);
                self.ledger.close_here(own).is_ok()
            }
            Err(_) => false,
        }
    }
}

/// Whether what is held lies on this disk, or may; `None` is any disk.
fn may_lie_on(held: &Holding, disk: Option<Number>) -> bool {
    let fd = held.fd();
    let at = mounts_beside(fd);
    // 0 is no disk's: what is not known may lie on any.
    let first = at.first().map_or(0, dev_of);
    disk.is_none_or(|disk| device::may_lie(Some(fd), first, disk))
}
