//! Runs one target; see `synclater_fuzz::targets::mountinfo`.

use std::process::ExitCode;

use synclater_fuzz::{main_of, targets::mountinfo};

fn main() -> ExitCode {
    main_of(&[&mountinfo::TARGET])
}
