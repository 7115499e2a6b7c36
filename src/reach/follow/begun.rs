//! What became of a program that one of ours has executed.

use super::How;
use crate::reach::attach::AttachOutcome;
use crate::reach::program::exe_of;
use std::ops::Range;

/// What became of a program.
pub enum FollowOutcome {
    /// Its requests will be seen.
    Reached(How),
    /// They will, once its libraries are there: when it stops for SIGURG in this range.
    Ahead(Range<u64>),
    /// They will not.
    Missed {
        /// The program.
        exe: String,
        /// Why not.
        why: String,
    },
    /// They will not, and it is to be let go of.
    Left {
        /// The program.
        exe: String,
        /// Why.
        why: String,
    },
}

impl FollowOutcome {
    /// Missed: what a process executes at this moment.
    pub fn missed(pid: u32, why: impl Into<String>) -> FollowOutcome {
        let (exe, why) = (exe_of(pid), why.into());
        FollowOutcome::Missed { exe, why }
    }

    /// What became of a process that was to be attached.
    pub(super) fn of(pid: u32, told: AttachOutcome) -> FollowOutcome {
        match told {
            AttachOutcome::Attached { .. } => FollowOutcome::Reached(How::Sites),
            AttachOutcome::Refused { refusal } => FollowOutcome::missed(pid, refusal.why),
            AttachOutcome::Busy { why } => FollowOutcome::missed(pid, why),
            AttachOutcome::Detached { .. }
            | AttachOutcome::Others { .. }
            | AttachOutcome::Left { .. } => FollowOutcome::missed(pid, "it was let go of"),
        }
    }
}
