//! Runs one target; see `synclater_fuzz::targets::rings`.

use std::process::ExitCode;

use synclater_fuzz::{main_of, targets::rings};

fn main() -> ExitCode {
    main_of(&[&rings::TARGET])
}
