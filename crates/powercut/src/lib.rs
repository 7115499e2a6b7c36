//! Power cuts: what a disk may hold after one, and which of that to look at.
//!
//! Promise: every state that is built is legal: what was complete before the last flush is there,
//! and of each sector that was written since, either what was there before or what one of these
//! writes put there. Nothing here reads a clock, a file or a disk.
//!
//! Map: [`store`] keeps each content once, [`log`] what was written in which order, [`cuts`] which
//! states are tried, in which order; [`tree`] is what lies in a folder, [`prefix`] judges what the
//! bundled writer has left; [`report`] says it, in words, JSON and as a page.
//!
//! What it does not do: bare FUA writes, which a loop device turns into a write and a flush; so
//! what may be lost around one is not seen.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod cuts;
pub mod log;
pub mod prefix;
pub mod report;
pub mod store;
pub mod tree;
