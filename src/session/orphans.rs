//! Entries that dead sessions have left without a folder: settled in their place by a command.
//!
//! Promise: nobody else settles them at the same time, and one that somebody else settles is waited
//! for: the kernel tells of a lost write once.

use super::closing::relax_no_more;
use super::control;
use super::debtor::Debtor;
use super::dirs;
use super::ledger::{Filed, Ledger, Unread};
use super::life::{life_by_number, life_of, was_cut, Life};
use super::stale::{settle_alone, Cleared};
use super::told;
use std::os::fd::BorrowedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};
use synclater_policy::ledger::Boot;

/// Settles what entries of this boot name whose sessions are gone without a trace: nobody of them
/// lives, and their folder does not either. The entries that cannot be read come with it, and those
/// whose sessions cannot be asked from here. Without those that were `tried` just now.
#[must_use]
pub fn settle_all(ledger: &Ledger, tried: &[Cleared], waits: Waits) -> (Vec<Cleared>, Vec<Unread>) {
    let mut known = debtors();
    let (mut entries, mut unread) = ledger.entries();
    entries.retain(|filed| tried.iter().all(|one| one.entry != filed.path));
    // One may have begun meanwhile, another ended.
    known.extend(debtors());
    // What a session of ours has written there it answers for itself.
    unread.retain(|u| {
        let mut known = known.iter();
        !known.any(|d| u.path == ledger.path(d.id()) && d.has_ledger(ledger))
    });
    let mut dead = Vec::new();
    let until = Instant::now() + PATIENCE;
    for filed in entries.into_iter().filter(|f| is_orphan(f, ledger, &known)) {
        match life_once_settled(&filed, ledger, until, waits) {
            Life::Lives if is_closed(&filed, ledger) => {}
            Life::Lives => unread.push(Unread::living(&filed.path)),
            _ if filed.entry.boot(&dirs::boot_id()) != Boot::This => {
                unread.push(Unread::of_no_boot(&filed.path));
            }
            Life::Ended => dead.push(filed),
            Life::NotKnown => unread.push(Unread::elsewhere(&filed.path)),
        }
    }
    (settle_each(&dead, ledger, &mut unread), unread)
}

/// The sessions of our run folder.
fn debtors() -> Vec<Debtor> {
    control::sessions().iter().map(Debtor::of).collect()
}

/// Settles what entries of dead sessions name.
fn settle_each(dead: &[Filed], ledger: &Ledger, unread: &mut Vec<Unread>) -> Vec<Cleared> {
    relax_no_more(dead);
    let mut cleared = Vec::new();
    for filed in dead {
        match settle_alone(filed, ledger, None) {
            Ok(done) => cleared.extend(done),
            Err(is_settled_by_another) => unread.push(is_settled_by_another),
        }
    }
    cleared
}

/// The same of those of dead sessions that owe on the file system of `fd`: whoever opens that anew
/// is told what they would have been.
#[must_use]
pub fn settle_on(ledger: &Ledger, fd: BorrowedFd<'_>, waits: Waits) -> (Vec<Cleared>, Vec<Unread>) {
    let known = debtors();
    let until = Instant::now() + PATIENCE;
    let mut dead = told::owing_on(ledger, fd);
    dead.retain(|filed| {
        is_orphan(filed, ledger, &known)
            && life_once_settled(filed, ledger, until, waits) == Life::Ended
    });
    let mut unread = Vec::new();
    (settle_each(&dead, ledger, &mut unread), unread)
}

/// Whether an entry is that of a session without a folder.
fn is_orphan(filed: &Filed, ledger: &Ledger, known: &[Debtor]) -> bool {
    let entry = &filed.entry;
    !was_cut(entry, ledger) && !known.iter().any(|d| d.has_written(entry))
}

/// How long it is waited for whoever settles in a dead session's place.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Is told the name of a session for which it is waited for longer than two seconds.
pub type Waits = fn(&str);

/// The first two seconds of a wait, in which nothing is said of it.
pub struct Silence(Option<Instant>);

impl Silence {
    /// One that begins now.
    #[must_use]
    pub fn begin() -> Silence {
        Silence(Some(Instant::now() + Duration::from_secs(2)))
    }

    /// Whether it is time to say something: true once.
    pub fn ends(&mut self) -> bool {
        self.0.take_if(|at| *at < Instant::now()).is_some()
    }
}

/// Whether the session that wrote an entry lives; where its supervisor does not, once nobody else
/// settles what it owed: what it had begun to settle may go on without it.
fn life_once_settled(filed: &Filed, ledger: &Ledger, until: Instant, waits: Waits) -> Life {
    let mut silence = Silence::begin();
    loop {
        let life = life_of(&filed.entry, ledger);
        let is_settled = life == Life::Lives && life_by_number(&filed.entry) == Life::Ended;
        if !is_settled || is_closed(filed, ledger) || Instant::now() > until {
            return life;
        }
        if silence.ends() {
            waits(&filed.entry.id);
        }
        sleep(Duration::from_millis(10));
    }
}

/// Whether an entry is there no more.
fn is_closed(filed: &Filed, ledger: &Ledger) -> bool {
    let now = ledger.entry(&filed.entry.id);
    now.is_ok_and(|now| now.is_none_or(|now| now.entry.token != filed.entry.token))
}
