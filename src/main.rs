//! `synclater`: runs any program with its sync calls under control.
//!
//! This file is the table of contents: what was called, and the exit status. Each verb is a file in
//! `cli/`; the supervisor is in `session/`; the ways into programs are in `reach/`.
#![forbid(unsafe_code)]

mod cli;
mod crash;
mod export;
mod folder;
mod probe;
mod reach;
mod record;
mod session;
mod voice;

fn main() {
    std::process::exit(cli::main());
}
