//! Writes that were lost: what the kernel tells of them, whom it concerns, and what is said of it.
//!
//! Promise: a loss on a file system that owes, or that a member writes to, is never passed over: it
//! is noted for others at once, requests fail with it from then on, and the session does not end as
//! durable. One on a file system where nothing is known to have been put off is a warning.

use super::Supervisor;
use crate::session::durable::Holding;
use crate::session::filesystems::Filesystem;
use crate::session::losses::{errno_name, for_requests, KILLED};
use crate::session::settle::{self};
use crate::session::shared::Shared;
use crate::session::{device, told, underway};
use crate::voice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::run::SettleError;
use synclater_shim::page;
use synclater_sys::attendant::{attend, Held};
use synclater_sys::clock::Setback;
use synclater_sys::flushes::FailedFlushes;
use synclater_sys::perf::LostWrites;
use synclater_text::message::Trouble;

/// How often the file systems that owe are asked for write-back errors where the kernel may not be
/// watched. Asking is settling: dirty data of this age is written by the kernel anyhow
/// (`vm.dirty_expire_centisecs`).
const ASK_EVERY: Duration = Duration::from_secs(30);

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// What is said of a file system that could not be settled, and that the session is not known to
/// have written to.
fn doubt(fs: &Filesystem, errno: i32, shared: &Shared) -> String {
    let what = if shared.was_owed(page::ALL_FS) {
        "a sync() was put off; what the command itself wrote there, if anything, may be lost"
    } else {
        "no request of this session is known to have been put off there"
    };
    let (point, why) = (fs.point.display(), errno_name(errno));
    format!("{point} ({}): {why}; {what}", fs.source)
}

/// A file system that owed when a disk below it refused a flush.
#[derive(PartialEq)]
pub(super) struct Refused {
    row: usize,
    /// Its number of a device; another may have its row since.
    dev: u64,
    mount: String,
    device: String,
}

/// What tells of lost writes, and what it has told.
pub(super) struct Watch {
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

impl Watch {
    /// Nothing is watched yet.
    pub(super) fn new(setback: Setback) -> Watch {
        Watch {
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
        if self.paying.watch.watches {
            return Ok(());
        }
        let (writes, flushes) = (LostWrites::watch(), FailedFlushes::watch());
        let (writes, flushes) = match (writes, flushes) {
            (Err(e), _) | (_, Err(e)) if has_no_room(&e) => return Err(e),
            (writes, flushes) => (writes.ok(), flushes.ok()),
        };
        (
            self.paying.watch.lost_writes,
            self.paying.watch.failed_flushes,
        ) = (writes, flushes);
        self.paying.watch.watches = true;
        self.paying.watch.last_ask = Instant::now();
        let flushes = self
            .paying
            .watch
            .failed_flushes
            .iter()
            .flat_map(FailedFlushes::fds);
        let writes = self
            .paying
            .watch
            .lost_writes
            .iter()
            .flat_map(LostWrites::fds);
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
    pub(super) fn hear_failed_flushes_of(&mut self, settled: Option<usize>) {
        let flushes = self.paying.watch.failed_flushes.as_mut();
        let disks = flushes.map(FailedFlushes::told).unwrap_or_default();
        for one in self.owing_on(&disks, settled) {
            if !self.paying.watch.refused.contains(&one) {
                self.paying.watch.refused.push(one);
            }
        }
        // What was put off at `never` may still come to be settled.
        if self.must_settle() || !self.paying.schedule.is_idle() || settled.is_some() {
            for one in std::mem::take(&mut self.paying.watch.refused) {
                let fs = self.filesystems.get(one.row);
                if fs.is_some_and(|fs| fs.dev == one.dev) {
                    self.lost_write(one.row, EIO);
                } else {
                    self.has_lost(EIO, one.mount, one.device);
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
        let all = self.owes(page::ALL_FS, settled, is_unseen);
        let rows = self.filesystems.owing().into_iter();
        rows.filter(|row| all || self.owes(*row, settled, is_unseen))
            .filter_map(|row| self.refused_on(disks, row))
            .collect()
    }

    /// Whether a row owes, or did until it was `settled` a moment ago; where writes may be unseen,
    /// also whether it ever did.
    fn owes(&self, row: usize, settled: Option<usize>, is_unseen: bool) -> bool {
        let is_settling = self.paying.schedule.is_settling(row) || settled == Some(row);
        let owes_unseen = is_unseen && self.session.shared.was_owed(row);
        is_settling || owes_unseen || !settle::debts(self.session.shared, row).is_empty()
    }

    /// The file system of a row, where it lies on one of these disks, or may.
    fn refused_on(&self, disks: &[Option<device::Number>], row: usize) -> Option<Refused> {
        let fs = self.filesystems.get(row)?;
        let held = fs.held().map(Holding::fd);
        let mut disks = disks.iter();
        let is_it = disks.any(|disk| disk.is_none_or(|d| device::may_lie(held, fs.dev, d)));
        is_it.then(|| Refused {
            row,
            dev: fs.dev,
            mount: fs.point.to_string_lossy().into_owned(),
            device: fs.source.clone(),
        })
    }

    /// A write-back error between two settles is not waited for: where the kernel tells of one, the
    /// next requests must fail with it, so the file systems that owe are asked for theirs.
    pub(super) fn look_for_lost_writes(&mut self) {
        let told = match &mut self.paying.watch.lost_writes {
            Some(watch) => watch.told(),
            None => self.paying.watch.last_ask.elapsed() > ASK_EVERY,
        };
        // Of debts from before a step of the clock the age is not known.
        self.paying.watch.is_to_ask |= told | self.paying.watch.setback.happened();
        if self.paying.watch.is_to_ask && self.paying.relaxing && self.must_settle() {
            self.paying.watch.is_to_ask = false;
            self.paying.watch.last_ask = Instant::now();
            self.settle_all();
        }
    }

    /// The errno that somebody else was told who settled where we owe, or the keeper, that may not
    /// have lived to say so; or 0.
    pub(super) fn heard(&self) -> i32 {
        if self.never_owed() {
            return 0;
        }
        let _ = underway::note_killed();
        let page = self.session.shared.page();
        let all = [&page.error, &page.heard].map(|errno| errno.load(SeqCst).cast_signed());
        all.into_iter().find(|errno| *errno != 0).unwrap_or(0)
    }

    /// Whether nothing was ever put off, so that nothing that others are told concerns it.
    pub(super) fn never_owed(&self) -> bool {
        let shared = self.session.shared;
        // What it has put off may lie where nothing is held any more; and a file without its O_SYNC
        // is written uncounted.
        let has_put_off = self.seen.census.total(shared).skipped() > 0;
        !has_put_off
            && !shared.any_stripped()
            && !self.rows().iter().any(|row| shared.was_owed(*row))
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

    pub(super) fn has_lost(&mut self, errno: i32, mount: String, device: String) {
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

    /// Somebody else who settled where we owe may have been told of a lost write, and have noted it
    /// for us: we need not have been. Returns whether that is known.
    pub(super) fn hear_what_others_were_told(&mut self) -> bool {
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
        // Nobody has noted on which of them.
        let mount = match all.len() {
            0 => "a file system that is not known".to_owned(),
            1 => points(&all),
            _ => format!("one of {}", points(&all)),
        };
        self.paying.paid.error = Some(SettleError {
            mount,
            device: if all.is_empty() {
                "the session has no ledger".into()
            } else {
                sources(&all)
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
}

/// Whether an error tells that there is no room for one more descriptor.
fn has_no_room(e: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(e);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Where these are mounted, in words.
fn points(all: &[&Filesystem]) -> String {
    let points = all.iter().map(|fs| fs.point.display().to_string());
    points.collect::<Vec<_>>().join(", ")
}

/// What these are mounted from, in words.
fn sources(all: &[&Filesystem]) -> String {
    let sources = all.iter().map(|fs| fs.source.as_str());
    sources.collect::<Vec<_>>().join(", ")
}
