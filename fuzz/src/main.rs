//! Runs the targets that are named, or all: see `synclater_fuzz`.

use std::process::ExitCode;

fn main() -> ExitCode {
    synclater_fuzz::main()
}
