//! The pure part of synclater: what was asked for, what may be relaxed, and how it is told.
//!
//! Promise: no input makes this crate panic, wait, or do work that is not bounded by the input's
//! size. The same input always gives the same output.
//!
//! What it does not do: no I/O, no clock, no environment. Callers read files, users and time and
//! hand them in.
//!
//! Map: [`policy`] decides when requests are kept and for whom; [`record`] is the form of
//! recordings; [`analysis`] is what they tell; [`crash`] is what a disk may hold after a power cut;
//! [`report`] is what people and programs read; [`ledger`] is what is left to be read after a power
//! cut.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod analysis;
pub mod crash;
pub mod record;
pub mod report;
