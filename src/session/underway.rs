//! Syncs of ours under way: each has a mark in memory, which one that was killed leaves.
//!
//! Promise: where a process of ours is killed that settles, or syncs a file of its own, what its
//! disk has answered is gone with it, and told to nobody again (a flush that failed). Whoever waits
//! for what settles notes that as [`KILLED`](super::losses::KILLED). Where nobody does, or he was
//! killed as well, whoever is about to say "durable" in this run folder finds the mark, and notes
//! it for all whom an error would have been noted for. It stays until that has succeeded.
//!
//! What it does not do: marks of another run folder are not in sight; where none can be made (no
//! room, no folder), it is synced without one.
//!
//! Relies on flock(2): a mark is locked from before it has its name until its process has ended.

use super::marks::{self, SyncedFs};
use super::told;

/// Notes, for all that owe there, each sync of ours that was killed: the file systems. What cannot
/// be noted is found again by the next one who looks.
pub fn note_killed() -> Vec<SyncedFs> {
    let mut all = Vec::new();
    for mark in marks::left() {
        if told::note_killed_on(&mark.fs) {
            mark.is_noted();
        }
        all.push(mark.fs);
    }
    all
}
