//! The targets: one file for what is read, with its seeds and its claims.
//!
//! Promise: [`ALL`] has every target, so that `make fuzz` leaves none out.

pub mod mountinfo;
pub mod recording;
pub mod rings;
pub mod rules;
pub mod slots;

use crate::Target;

/// Every target.
pub const ALL: &[&Target] = &[
    &rules::TARGET,
    &mountinfo::TARGET,
    &slots::TARGET,
    &rings::TARGET,
    &recording::TARGET,
];
