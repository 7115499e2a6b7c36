//! Ways in: how the shim gets into the programs it is meant for, at their start ([`launch`]), where
//! it got lost on the way ([`follow`]), or while they run ([`attach`]); or not at all, and the
//! kernel asks ([`net`]). Which processes are meant says [`selector`]; [`program`] and [`status`]
//! are what /proc says of one.

pub mod attach;
pub mod follow;
pub mod forkers;
pub mod launch;
pub mod library;
pub mod net;
pub mod program;
mod seen_here;
pub mod selector;
pub mod status;
