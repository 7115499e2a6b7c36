//! Runs one target; see `synclater_fuzz::targets::recording`.

use std::process::ExitCode;

use synclater_fuzz::{main_of, targets::recording};

fn main() -> ExitCode {
    main_of(&[&recording::TARGET])
}
