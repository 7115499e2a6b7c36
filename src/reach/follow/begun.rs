//! What became of a program that one of ours has executed.

use super::How;
use crate::reach::attach::Told;
use crate::reach::program::exe_of;
use std::ops::Range;

/// What became of a program.
pub enum Begun {
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

impl Begun {
    /// Missed: what a process executes at this moment.
    pub fn missed(pid: u32, why: impl Into<String>) -> Begun {
        let (exe, why) = (exe_of(pid), why.into());
        Begun::Missed { exe, why }
    }

    /// What became of a process that was to be attached.
    pub(super) fn of(pid: u32, told: Told) -> Begun {
        match told {
            Told::Attached { .. } => Begun::Reached(How::Sites),
            Told::Refused { refusal } => Begun::missed(pid, refusal.why),
            Told::Busy { why } => Begun::missed(pid, why),
            Told::Detached { .. } | Told::Others { .. } | Told::Left { .. } => {
                Begun::missed(pid, "it was let go of")
            }
        }
    }
}
