//! What people and programs read of recordings.
//!
//! Promise: JSON keys are part of the contract with other programs (`"version": 1`); what is not
//! known is absent, never 0. Text fits 80 columns where its words can be broken, and shows no
//! control character that a victim put into a name.
//!
//! What it does not do: it prints nothing, and never reads a text back.

pub mod diff;
pub mod explain;
pub mod html;
pub mod recording;
pub mod top;
