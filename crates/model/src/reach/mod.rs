//! Where a running program asks the kernel, and where there is room beside it.
//!
//! Map: [`maps`] is what a program has mapped; [`sites`] finds system calls in its code; [`room`]
//! finds addresses for ours.

pub mod maps;
pub mod room;
pub mod sites;
