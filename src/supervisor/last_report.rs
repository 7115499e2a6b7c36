//! The report of a session that ended while nobody asked for it: kept for whoever names it next.
//!
//! Promise: told once. Not promised: what a shelf does not; the ledger is another thing, and is
//! closed by then.

use crate::reach::program::Incarnation;
use crate::session::shelf::REPORTS;
use serde::{Deserialize, Serialize};
use std::io;
use synclater_account::run::RunReport;
use synclater_account::summary::summary;
use synclater_text::number::counted;

/// What is told at the end of a session that was attached.
#[derive(Debug, Serialize, Deserialize)]
pub struct LastReport {
    /// Processes that were let go of.
    pub let_go: u64,
    /// Whether nothing but that was wrong, if anything: all is settled, and recorded.
    pub is_whole: bool,
    /// Processes that could not be let go of, and which program each executed then.
    pub stuck: Vec<(u32, Incarnation)>,
    /// The report.
    pub report: RunReport,
}

impl LastReport {
    /// As text, or as JSON.
    #[must_use]
    pub fn said(&self, json: bool) -> String {
        if json {
            return self.report.to_json();
        }
        let (id, n) = (&self.report.id, counted(self.let_go, "process"));
        format!("synclater: {id}: {n} let go of\n{}", summary(&self.report))
    }

    /// The status that it ends with where every process has been let go of since.
    #[must_use]
    pub fn status_but_for_stuck(&self) -> i32 {
        if self.is_whole {
            0
        } else {
            self.report.exit_status
        }
    }

    /// Keeps it.
    ///
    /// # Errors
    /// Those of [`keep`](crate::session::shelf::Shelf::keep).
    pub fn keep(&self) -> io::Result<()> {
        REPORTS.keep(&self.report.id, &serde_json::to_vec(self)?)
    }

    /// That of session `id`, which is forgotten then.
    #[must_use]
    pub fn take(id: &str) -> Option<LastReport> {
        serde_json::from_slice(&REPORTS.take(id)?).ok()
    }
}
