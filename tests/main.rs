//! The integration tests, one binary.
//!
//! - `fidelity`: every victim answers as without synclater, under every back end.
//! - `counting`: what reaches the kernel, by strace.
//! - `kernel`: every request of the machine, by trace points.
//! - `mixed_tree`: 64-bit, 32-bit and musl programs that start each other.
//! - `globs`: the library's matcher and the model's, on the same cases.
//! - `programs`: unmodified programs, counted and compared; `servers`: daemons under load.
//! - `recording`: what recordings hold, and how they end.
//! - `cli`: statuses, messages, signals, terminals, texts; `sessions`: supervisors that die, dials
//!   that move, disks that fail, other users; `explain_spool`: a spool on two paths, of which one
//!   is bad; `odd_victims`: containers, filters, block devices.
//! - `attach`: processes that run already; `follow`: programs that lose the library; `net`: what
//!   nothing else sees.
//! - `crash`: the power-cut laboratory.
//! - `redteam`: what others can do to a promise: mounts, numbers that are used again, descriptors
//!   from elsewhere, errors that somebody else has heard.
//! - `fleet`: the queries of docs/fleet.md, by DuckDB.
//! - `tidy`: the repository's own rules.
//! - `harness`, `wait`: what the others stand on.
//!
//! Variables: SYNCLATER_SKIP_LOG (a file that gets a line for each test that cannot run here),
//! SYNCLATER_SOAK (large counts in full), SYNCLATER_SEED (repeats a random test's cases),
//! SYNCLATER_BACKEND (one back end: alone, single, several, now, exit, never, 1s, attach, follow,
//! net).

#![forbid(unsafe_code)]

mod attach;
mod cli;
mod counting;
mod crash;
mod explain_spool;
mod fidelity;
mod fleet;
mod follow;
mod globs;
mod harness;
mod kernel;
mod mixed_tree;
mod net;
mod odd_victims;
mod programs;
mod recording;
mod redteam;
mod servers;
mod sessions;
mod tidy;
mod wait;
