//! Recordings: their form, what they tell, and how that is said.
//!
//! Promise: no input makes this crate panic, wait, or do work that is not bounded by the input's
//! size. The same input always gives the same output.
//!
//! What it does not do: no I/O, no clock, no environment. Callers read files, users and time and
//! hand them in.
//!
//! Map: [`record`] is the form of recordings; [`analysis`] is what they tell; [`report`] is what
//! people and programs read of that.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod analysis;
pub mod record;
pub mod report;
