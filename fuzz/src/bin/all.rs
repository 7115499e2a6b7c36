//! Runs every target in turn, each for the time that is given; see `synclater_fuzz::targets`.

use std::process::ExitCode;

use synclater_fuzz::{main_of, targets};

fn main() -> ExitCode {
    main_of(targets::ALL)
}
