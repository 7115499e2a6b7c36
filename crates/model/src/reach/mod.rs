//! Where a running program asks the kernel, and where there is room beside it.
//!
//! Map: [`maps`] is what a program has mapped; [`sites`] finds system calls in its code, [`uring`]
//! where liburing submits; [`room`] finds addresses for ours; [`start`] is what it finds on its
//! stack when it begins; [`notes`] tell who made it; [`filter`] is what the kernel asks the session
//! about, without any of these.

pub mod filter;
pub mod maps;
pub mod notes;
pub mod room;
pub mod sandbox;
pub mod sites;
pub mod start;
pub mod uring;
