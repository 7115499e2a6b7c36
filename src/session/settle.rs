//! Carrying debt out: each file system in a process of its own, by what makes its type durable.
//!
//! Promise: a settle of a file system covers every request that was counted before its debt was
//! taken; `oldest` tells the age of the oldest of them when the settle ended.

use super::durable::Holding;
use super::losses::KILLED;
use super::shared::Shared;
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use synclater_shim::page;
use synclater_sys::everything;
use synclater_sys::job::Job;

/// One settle under way.
pub struct Settle {
    job: Job,
    began: Instant,
    /// Ticks of the oldest request that it covers; 0 where none was owed.
    oldest: u64,
}

/// A settle that ended.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// 0, or the errno of a lost write, or [`KILLED`].
    pub errno: i32,
    /// How long it took.
    pub took: Duration,
    /// Age of the oldest request at its end; `None` where none was owed.
    pub age: Option<Duration>,
}

/// Takes the debt of row `fs` (all classes): returns the ticks of its oldest request, or 0.
#[must_use]
pub fn take_debt(shared: &Shared, fs: usize) -> u64 {
    oldest(shared, take_row(shared, fs).into_iter()).unwrap_or(0)
}

/// Of ticks that members wrote, that of the oldest request; 0 is none.
fn oldest(shared: &Shared, ticks: impl Iterator<Item = u64>) -> Option<u64> {
    ticks
        .filter(|t| *t != 0)
        .max_by_key(|tick| shared.age(*tick))
}

/// Takes the debt of row `fs` that the classes in `mask` owe.
pub fn take_classes(shared: &Shared, fs: usize, mask: u32) {
    for row in rows(shared, fs) {
        for (class, cell) in row.iter().enumerate() {
            if mask >> class & 1 == 1 {
                cell.store(0, SeqCst);
            }
        }
    }
}

/// Row `fs` of each user.
fn rows(shared: &Shared, fs: usize) -> impl Iterator<Item = &[AtomicU64; page::CLASS_MAX]> {
    shared.all_slots().filter_map(move |s| s.debt.get(fs))
}

/// Takes the debt of row `fs`, class by class, of each user.
fn take_row(shared: &Shared, fs: usize) -> Vec<u64> {
    let cells = rows(shared, fs).flatten();
    cells.map(|cell| cell.swap(0, SeqCst)).collect()
}

/// Puts back what was taken of row `fs`.
fn put_back(shared: &Shared, fs: usize, taken: &[u64]) {
    let cells = rows(shared, fs).flatten();
    for (cell, tick) in cells.zip(taken).filter(|(_, tick)| **tick != 0) {
        // One that was noted since is younger.
        cell.store(*tick, SeqCst);
    }
}

/// The oldest request owed in row `fs` for each class that owes.
#[must_use]
pub fn debts(shared: &Shared, fs: usize) -> Vec<(usize, u64)> {
    (0..page::CLASS_MAX)
        .filter_map(|class| Some((class, debt_of_class(shared, fs, class)?)))
        .collect()
}

fn debt_of_class(shared: &Shared, fs: usize, class: usize) -> Option<u64> {
    let cells = shared
        .all_slots()
        .filter_map(|s| s.debt.get(fs)?.get(class));
    oldest(shared, cells.map(|t| t.load(SeqCst)))
}

impl Settle {
    /// Settles the file system whose debt row is `fs`, by what is held of it: see
    /// [`Holding::begin`].
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had; the debt then stands as before.
    pub fn filesystem(
        shared: &Shared,
        fs: usize,
        held: &Holding,
        locks: &[BorrowedFd<'_>],
        note: impl Fn(i32, BorrowedFd<'_>),
    ) -> io::Result<Settle> {
        Self::start(shared, fs, || held.begin(locks, note))
    }

    /// Settles what `sync()` owes beside the file systems that are held: all the others, and block
    /// devices, as sync(2) does, by a process that has `locks` as long as that takes.
    ///
    /// # Errors
    /// As [`Settle::filesystem`].
    pub fn everything(shared: &Shared, locks: &[BorrowedFd<'_>]) -> io::Result<Settle> {
        Self::start(shared, page::ALL_FS, || {
            Job::start(|| everything::sync_in_job(locks))
        })
    }

    fn start(
        shared: &Shared,
        fs: usize,
        job: impl FnOnce() -> io::Result<Job>,
    ) -> io::Result<Settle> {
        let taken = take_row(shared, fs);
        let oldest = oldest(shared, taken.iter().copied()).unwrap_or(0);
        let began = Instant::now();
        match job() {
            Ok(job) => Ok(Settle { job, began, oldest }),
            Err(e) => {
                put_back(shared, fs, &taken);
                Err(e)
            }
        }
    }

    /// The result, where there is one.
    #[must_use]
    pub fn finished(&self, shared: &Shared) -> Option<Settled> {
        let errno = self.job.finished_or(KILLED)?;
        let age = (self.oldest != 0).then(|| shared.age(self.oldest));
        Some(Settled {
            errno,
            took: self.began.elapsed(),
            age,
        })
    }

    /// Age of the oldest request that it covers.
    #[must_use]
    pub fn age(&self, shared: &Shared) -> Option<Duration> {
        (self.oldest != 0).then(|| shared.age(self.oldest))
    }

    /// How long it has been going on.
    #[must_use]
    pub fn running_for(&self) -> Duration {
        self.began.elapsed()
    }
}

impl AsFd for Settle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.job.as_fd()
    }
}

/// Dirty and written-back bytes of the machine: what progress is measured by.
#[must_use]
pub fn dirty_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    bytes_in(&info, "Dirty:") + bytes_in(&info, "Writeback:")
}

/// What /proc/meminfo says under a name, in bytes.
fn bytes_in(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
