//! What a recording says beside the requests: where files lie, who asks, what the machine does.
//!
//! Promise: whatever /proc and /sys say, nothing here panics or works without bound; of a process
//! that is gone the last that was known stays. No path that a victim chose is opened.
//!
//! What it does not do: it sees no request and writes no recording.

pub mod parents;
pub mod people;
pub mod places;
pub mod resolve;
pub mod samples;
#[cfg(test)]
mod stage;
