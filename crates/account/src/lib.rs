//! What a session tells of itself: while it runs, when it is over, and behind a power cut.
//!
//! Promise: JSON keys are part of the contract with other programs (`"version": 1`); what is not
//! known is absent, never 0. Text fits the terminal where its words can be broken, and shows no
//! control character that a program put into a name.
//!
//! What it does not do: it prints nothing, asks nobody, and never reads a text back.
//!
//! Map: [`run`] is the report of a run, [`summary`] its text; [`ps`] is a living session;
//! [`status`] is what the ledger says; [`escape`] names who was not reached; [`saving`] estimates
//! what was saved, by what [`probe`] has measured; [`distribution`] draws a line of blocks.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod distribution;
pub mod escape;
pub mod probe;
pub mod ps;
pub mod run;
pub mod saving;
pub mod status;
pub mod summary;
