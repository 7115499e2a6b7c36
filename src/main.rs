//! `synclater`: runs any program with its sync calls under control.
//!
//! This file is the table of contents: what was called, and the exit status. Each verb is a file
//! in `cli/`; `supervisor/` owns a session, whose parts are in `session/`; the ways into programs
//! are in `reach/`.
#![forbid(unsafe_code)]

mod cli;
mod crash;
mod export;
mod probe;
mod reach;
mod record;
mod session;
mod supervisor;
mod voice;

fn main() {
    std::process::exit(cli::main());
}
