//! Ways in: how the shim gets into the programs it is meant for. Launch is the one that is built.

pub mod launch;
pub mod library;
