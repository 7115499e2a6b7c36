//! The session's recording, where one is made.

use super::*;
use crate::record::recorder::{Outcome as Recorded, Recorder};
use crate::record::rings::SharedRings;
use std::path::PathBuf;

/// A recording under way.
pub struct Recording {
    /// The process that writes it.
    pub recorder: Recorder,
    /// What victims write.
    pub rings: &'static SharedRings,
    /// The file, as the user named it.
    pub file: PathBuf,
}

impl Supervisor {
    /// Everything is recorded from now on.
    pub fn record(&mut self, recording: Recording) {
        self.escapes.is_ours(recording.recorder.pid());
        self.recording = Some(recording);
    }

    pub(super) fn settle_begins(&self, index: usize) {
        if let Some(r) = &self.recording {
            r.recorder.settle_begins(index, self.shared.clock.now());
        }
    }

    pub(super) fn settle_ended(&self, index: usize, errno: i32) {
        if let Some(r) = &self.recording {
            let now = self.shared.clock.now();
            r.recorder.settle_ended(index, now, errno);
        }
    }

    /// A recording that fails is told at once, and the command goes on without.
    pub(super) fn look_at_recorder(&mut self) {
        let Some(r) = &mut self.recording else {
            return;
        };
        let Some(outcome) = r.recorder.failure().filter(|o| o.errno != 0) else {
            return;
        };
        self.shared.page().record.store(0, SeqCst);
        crate::cli::say(&format!("{}\n", trouble(r, &outcome)));
        self.recorded = Some((r.file.clone(), outcome));
        self.recording = None;
    }

    /// Ends the recording; says so where that fails.
    pub fn end_recording(&mut self) {
        let Some(mut r) = self.recording.take() else {
            return;
        };
        let outcome = r.recorder.end(self.shared, r.rings);
        if outcome.errno != 0 {
            crate::cli::say(&format!("{}\n", trouble(&r, &outcome)));
        }
        self.recorded = Some((r.file, outcome));
    }

    /// What the recording came to, once it has ended.
    #[must_use]
    pub fn recorded(&self) -> Option<&(PathBuf, Recorded)> {
        self.recorded.as_ref()
    }
}

fn trouble(r: &Recording, outcome: &Recorded) -> synclater_model::report::message::Trouble {
    let dead = rustix::io::Errno::OWNERDEAD.raw_os_error();
    let why = match outcome.errno {
        e if e == dead => "the process that writes it was killed".to_owned(),
        e => std::io::Error::from_raw_os_error(e).to_string(),
    };
    synclater_model::report::message::Trouble::new(
        format!("the recording {} is not whole", r.file.display()),
        why,
        "free space there, or name a file on another disk, and record again",
        "the command is not touched; the file reads up to its last whole batch",
    )
}
