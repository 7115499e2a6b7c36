//! Runs one target; see `synclater_fuzz::targets::slots`.

use std::process::ExitCode;

use synclater_fuzz::{main_of, targets::slots};

fn main() -> ExitCode {
    main_of(&[&slots::TARGET])
}
