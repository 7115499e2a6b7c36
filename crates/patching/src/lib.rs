//! Where a running program asks the kernel, and where there is room beside it.
//!
//! Promise: no program's bytes make this crate panic, wait, or do work that is not bounded by their
//! number.
//!
//! What it does not do: it reads no memory and changes none. Callers do.
//!
//! Map: [`sites`] finds system calls in a program's code, [`uring`] where liburing submits;
//! [`room`] finds addresses for our code; [`start`] reads and writes the stack that a program
//! begins with; [`notes`] tell who made a program file; [`sandbox`] reads a program's seccomp
//! filters; [`filter`] writes the one by which the kernel asks the session (`--net`).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod filter;
pub mod notes;
pub mod room;
pub mod sandbox;
pub mod sites;
pub mod start;
pub mod uring;
