//! Ways in: how the shim gets into the programs it is meant for, at their start ([`launch`]), where
//! it got lost on the way ([`follow`]), or while they run ([`attach`]); or not at all, and the
//! kernel asks ([`net`]).

pub mod attach;
pub mod follow;
pub mod forkers;
pub mod launch;
pub mod library;
pub mod net;
mod seen_here;
pub mod whom;
