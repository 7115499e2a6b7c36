//! What the kernel's text in /proc says, as types.
//!
//! Promise: no text makes a parser panic, or do work that is not bounded by its length.
//!
//! What it does not do: it reads no file. Callers do, and hand in what was there.
//!
//! Map: [`mountinfo`] lists mounts, [`maps`] what a process has mapped, [`status`] what it is,
//! [`stat`] what it is about.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod maps;
pub mod mountinfo;
pub mod stat;
pub mod status;
