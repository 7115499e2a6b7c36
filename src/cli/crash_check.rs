//! `synclater crash-check`: one of the laboratory's own checks, for one folder.

use crate::crash::builtin::Builtin;
use std::path::PathBuf;

/// Judges a folder with one of the checks of `synclater crash`.
///
/// Exit status: 0 all is well, 1 something is lost or corrupt, 125 it could not be judged.
#[derive(clap::Args)]
pub struct Args {
    /// Which check.
    #[arg(value_enum)]
    check: Builtin,
    /// The folder.
    folder: PathBuf,
    /// A file with the lines that were acknowledged.
    acknowledged: PathBuf,
}

/// Judges it.
///
/// # Errors
/// Where that cannot be done.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    match args.check.judge(&args.folder, &args.acknowledged)? {
        None => Ok(0),
        Some(words) => {
            super::print(&(words + "\n"))?;
            Ok(1)
        }
    }
}
