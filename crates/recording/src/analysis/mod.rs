//! What a recording tells: distributions, groups, causes, differences.
//!
//! Promise: figures come from every request, not from a sample of them; percentiles are values that
//! were measured. The same recording always gives the same answer.
//!
//! What it does not do: it writes no sentence for a terminal's width; [`crate::report`] does.

pub mod bootstrap;
pub mod dials;
pub mod diff;
pub mod explain;
pub mod groups;
pub mod heat;
pub mod histogram;
pub mod live;
pub mod modes;
pub mod order;
pub mod patterns;
pub mod requests;
pub mod roles;
pub mod samples;
pub mod settings;
pub mod stats;
pub mod thresholds;
pub mod together;
pub mod waiting;
