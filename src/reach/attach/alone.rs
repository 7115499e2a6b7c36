//! Whether a process has its memory, and its table of descriptors, for itself.

use super::refusal::Refusal;
use super::tracer::{self, Failure};
use synclater_sys::sharing::{self, Has, MemorySurvey, Search};

/// That no other process has its memory: what is changed there is changed for both, and the threads
/// of one alone are stopped for that.
pub(super) struct Alone<'a>(Option<Search<'a>>);

impl<'a> Alone<'a> {
    /// Of one that begins: it is so.
    pub(super) fn begins() -> Alone<'a> {
        Alone(None)
    }

    /// Looks; where others are `known` it need not be at all of them.
    pub(super) fn found(pid: u32, known: &'a MemorySurvey) -> Result<Alone<'a>, Failure> {
        if !sharing::can_compare() {
            let why =
                "kcmp(2) is missing or forbidden here: whether others have its memory is not \
                       known";
            let try_ = "allow kcmp, or do it outside of this container";
            return Err(Refusal::new(why, try_).into());
        }
        let mut alone = Alone(Search::of(pid, known));
        alone.still()?;
        Ok(alone)
    }

    /// That no process that was met has its descriptors: it would find those that lost their
    /// `O_SYNC`, and not know.
    pub(super) fn has_its_own_table(&self) -> Result<(), Failure> {
        let other = self.0.as_ref().and_then(Search::table_of);
        other.map_or(Ok(()), |other| {
            let why = format!("process {other} has the same descriptors (clone with CLONE_FILES)");
            Err(Failure::Busy(why))
        })
    }

    /// Looks again, at whoever has begun since.
    pub(super) fn still(&mut self) -> Result<(), Failure> {
        match self.0.as_mut().map_or(Has::ItsOwn, Search::look) {
            Has::ItsOwn => Ok(()),
            Has::ThatOf(other) => Err(tracer::shares_memory(other)),
            Has::NotCompared(other) => {
                let why = format!("process {other} may have its memory, and may not be compared");
                Err(Refusal::new(why, "become root (sudo)").into())
            }
            Has::Unknown => {
                let why = "processes come and go too fast: whether one has its memory is not known";
                Err(Failure::Busy(why.into()))
            }
        }
    }
}
