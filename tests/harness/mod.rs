//! What the integration tests stand on: victims, scratch directories, disks, commands with a
//! deadline, traces.
//!
//! Promise: nothing that a test starts, mounts or writes outlives it, except the directory of a
//! failed test, which is kept and named.

pub mod apart;
pub mod backend;
pub mod browser;
pub mod command;
pub mod dir;
pub mod disk;
pub mod library;
pub mod limits;
pub mod recordings;
pub mod tmux;
pub mod trace;
pub mod victims;
