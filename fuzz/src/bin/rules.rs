//! Runs one target; see `synclater_fuzz::targets::rules`.

use std::process::ExitCode;

use synclater_fuzz::{main_of, targets::rules};

fn main() -> ExitCode {
    main_of(&[&rules::TARGET])
}
