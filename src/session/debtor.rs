//! A session as others know it: its name, and what its lock file said of its ledger.
//!
//! Promise: another session that has its name by now, in this run folder or another one, is not
//! taken for it.

use super::belongings::{ledger_of, Kept};
use super::control::{self, Living};
use super::ledger::Ledger;
use std::path::PathBuf;
use synclater_policy::ledger::Entry;

/// A session that was there, and what its lock file said of its ledger: its folder may be gone
/// by the time that somebody asks what it owed.
#[derive(Clone, Debug)]
pub struct Debtor {
    pub(super) id: String,
    pub(super) kept: Kept,
}

impl Debtor {
    /// As it is now.
    #[must_use]
    pub fn of(session: &Living) -> Debtor {
        let (id, kept) = (session.id.clone(), ledger_of(&session.dir));
        Debtor { id, kept }
    }

    /// By its name; one that is gone is looked for in the ledger of whoever asks.
    #[must_use]
    pub fn named(id: &str) -> Debtor {
        let kept = control::session(id).map_or(Kept::NotTold, |s| ledger_of(&s.dir));
        let id = id.to_owned();
        Debtor { id, kept }
    }

    /// Whether it has written an entry: not another one of its name.
    pub(super) fn has_written(&self, entry: &Entry) -> bool {
        self.id == entry.id && self.kept.token() == entry.token.as_ref()
    }

    /// Whether its entry is in this ledger.
    pub(super) fn has_ledger(&self, ledger: &Ledger) -> bool {
        matches!(&self.kept, Kept::In { ledger: its, .. } if its == ledger.dir())
    }

    /// Where its ledger is.
    pub(super) fn ledger(&self) -> Option<PathBuf> {
        match &self.kept {
            Kept::In { ledger, .. } => Some(ledger.clone()),
            _ => None,
        }
    }

    /// Whether it keeps no ledger.
    pub(super) fn has_no_ledger(&self) -> bool {
        matches!(self.kept, Kept::Nowhere)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether its lock file said where its ledger is, or that it has none.
    #[must_use]
    pub fn is_told(&self) -> bool {
        !matches!(self.kept, Kept::NotTold | Kept::NotRead(_))
    }

    /// Whether its lock file could be read.
    pub(super) fn can_be_read(&self) -> bool {
        !matches!(self.kept, Kept::NotRead(_))
    }

    /// Whether its folder is there: not that of another one of its name.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.session().is_some()
    }

    pub(super) fn session(&self) -> Option<Living> {
        control::session(&self.id).filter(|s| ledger_of(&s.dir) == self.kept)
    }
}
