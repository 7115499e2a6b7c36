//! The keeper: a second small process that settles when the supervisor cannot.
//!
//! Promise: when the supervisor dies, the keeper ends the relaxation at once and settles every file
//! system that may owe, then closes the ledger entry; when the supervisor stands still (its lease
//! ran out), it ends the relaxation and settles, and the supervisor takes over again when it goes
//! on. It lives in its own session and cgroup (where there is one to write), so that what ends or
//! freezes the victims spares it; it holds no descriptor of the terminal.

mod vigil;

use super::belongings::Belongings;
use super::durable::{Holding, Past};
use super::hierarchy::{self, KEEPERS};
use super::ledger::Ledger;
use super::shared::Shared;
use rustix::fs::{unlinkat, AtFlags};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use synclater_sys::job::{self, Job};
use synclater_sys::{process, socket, wait};
use vigil::Vigil;

/// Messages: one byte, then an index or nothing; with a file system comes what it had met before.
const HOLD: u8 = b'H';
/// HOLD, the index, how many descriptors, and the past.
const HOLD_SIZE: usize = 3 + Past::SIZE;
const DROP: u8 = b'D';
const SYNC_ALL: u8 = b'S';
const NEVER: u8 = b'N';
const MUST_SETTLE: u8 = b'M';
const END: u8 = b'E';
const LOST: u8 = b'L';
const PROOF: u8 = b'P';
const ALL: u8 = b'A';
const NO_SYNC: u8 = b'I';

/// What the keeper has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It has let go of a file system.
    Dropped(usize),
    /// It settled a file system while the supervisor stood still, and met this errno.
    Lost(usize, i32),
    /// It makes no sync(2).
    NoSync,
}

/// The supervisor's end.
pub struct Keeper {
    job: Job,
    socket: OwnedFd,
    is_whole: bool,
    has_missed: Cell<bool>,
    began: Instant,
}

impl Keeper {
    /// Starts the keeper.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn start(shared: &'static Shared, ledger: Ledger, what: Belongings) -> io::Result<Keeper> {
        let (ours, theirs) = socket::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        rustix::io::ioctl_fionbio(&theirs, true)?;
        // Not its number, which is another's once it has been waited for.
        let parent = process::watch(std::process::id()).ok_or(rustix::io::Errno::NOSYS)?;
        let job = Job::start(move || {
            // The session's lock too: as long as we live, no other command may clear it away.
            let lock = what.lock.clone();
            let fds = [theirs.as_fd(), parent.as_fd(), lock.as_fd()];
            let kept = <[OwnedFd; 3]>::try_from(job::keep_only(&fds));
            // `kept` owns them now.
            std::mem::forget((theirs, parent, lock));
            let Ok([socket, parent, lock]) = kept else {
                return 1;
            };
            Vigil::new(shared, ledger, what, [socket, lock]).keep(&parent)
        })?;
        Ok(Keeper {
            job,
            socket: ours,
            is_whole: false,
            has_missed: Cell::new(false),
            began: Instant::now(),
        })
    }

    /// Whether it has ended, which it does by itself only when told to.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.job.finished().is_some()
    }

    /// Tells it what it has to know. One that cannot be told (it has been standing still for so
    /// long that it takes no more, or there is no memory) is of no use: it is killed, and the next
    /// one is told all of that.
    fn tell(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let told = socket::send(&self.socket, message, fds);
        if told.is_err() {
            self.has_missed.set(true);
            self.job.kill();
        }
        told
    }

    /// Hands it what settles file system `index`, which may owe from now on.
    ///
    /// # Errors
    /// Those of open(2) and sendmsg(2): then the file system must not owe.
    pub fn hold(&self, index: usize, held: &Holding) -> io::Result<()> {
        let own = held.again()?;
        let (fds, past) = own.parts();
        let mut message = [0; HOLD_SIZE];
        let [index, count] = [index, fds.len()].map(|n| u8::try_from(n).unwrap_or(0));
        message[..3].copy_from_slice(&[HOLD, index, count]);
        message[3..].copy_from_slice(&past.to_bytes());
        self.tell(&message, &fds)
    }

    /// It has been told of everything that owes.
    pub fn knows_all(&mut self) {
        self.is_whole = true;
    }

    /// Tells it that it knows all that there is to know: before, it closes no entry.
    pub fn may_close(&self) {
        let _ = self.tell(&[ALL], &[]);
    }

    /// Whether it has been told of everything that owes, and of all since.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole && !self.has_missed.get()
    }

    /// Whether the next one would hardly be told what this one was not.
    #[must_use]
    pub fn has_failed_at_once(&self) -> bool {
        !self.is_whole() && self.began.elapsed() < Duration::from_secs(10)
    }

    /// Has it let go of file system `index`; [`Keeper::news`] tells when it did.
    pub fn let_go(&self, index: usize) {
        let _ = self.tell(&[DROP, u8::try_from(index).unwrap_or(0)], &[]);
    }

    /// The next news, without waiting.
    #[must_use]
    pub fn news(&self) -> Option<News> {
        let mut buf = [0u8; 3];
        match socket::receive(&self.socket, &mut buf) {
            Ok((2, _)) if buf[0] == DROP => Some(News::Dropped(buf[1].into())),
            Ok((1, _)) if buf[0] == NO_SYNC => Some(News::NoSync),
            Ok((3, _)) if buf[0] == LOST => Some(News::Lost(buf[1].into(), buf[2].into())),
            _ => None,
        }
    }

    /// Hands it the lock that proves that the session lives: as long as the keeper does, it does.
    pub fn prove(&self, lock: BorrowedFd<'_>) {
        let _ = self.tell(&[PROOF], &[lock]);
    }

    /// Tells it that `sync()` is owed too.
    pub fn owe_everything(&self) {
        let _ = self.tell(&[SYNC_ALL], &[]);
    }

    /// Asks it to begin no sync(2) in our place, and to tell when none is made any more.
    pub fn wants_no_sync(&self) {
        let _ = self.tell(&[NO_SYNC], &[]);
    }

    /// Tells it whether debts are to be settled at all (not at the dial `never`).
    pub fn settle_at_death(&self, yes: bool) {
        let _ = self.tell(&[if yes { MUST_SETTLE } else { NEVER }], &[]);
    }

    /// Ends it: everything is settled, or left to the ledger. Waits for its end, which takes no
    /// time unless it was stopped; then it is killed: it must not wake up behind the next session
    /// of this name.
    pub fn end(&self) {
        let _ = self.tell(&[END], &[]);
        let end = [(self.job.as_fd(), wait::For::Input)];
        if !wait::any(&end, Duration::from_secs(2))[0] {
            self.job.kill();
        }
        // Not while another session's keeper is in it.
        for root in hierarchy::to_write() {
            let _ = unlinkat(root, KEEPERS, AtFlags::REMOVEDIR);
        }
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
