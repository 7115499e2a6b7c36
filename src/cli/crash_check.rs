//! `synclater crash-check`: one of the laboratory's own checks, for one folder.

use crate::crash::builtin::Builtin;
use crate::voice;
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;

/// Judges a folder with one of the checks of `synclater crash`.
///
/// Exit status: 0 all is well, 1 something is lost or corrupt, 125 it could not be judged.
#[derive(Parser)]
#[command(name = "crash-check", bin_name = "synclater crash-check")]
struct Args {
    /// Which check.
    #[arg(value_enum)]
    check: Builtin,
    /// The folder.
    folder: PathBuf,
    /// A file with the lines that were acknowledged.
    acknowledged: PathBuf,
}

/// What comes of it where this verb was called. It is none of those that people choose from:
/// `synclater crash` calls it, and names it where a state is looked at again.
#[must_use]
pub fn called(argv: &[OsString]) -> Option<anyhow::Result<i32>> {
    let words = argv
        .get(1..)
        .filter(|w| w.first().is_some_and(|w| w == "crash-check"))?;
    Some(match Args::try_parse_from(words) {
        Ok(args) => run(&args),
        Err(e) => {
            let _ = e.print();
            Ok(if e.use_stderr() { super::OURS } else { 0 })
        }
    })
}

fn run(args: &Args) -> anyhow::Result<i32> {
    match args.check.judge(&args.folder, &args.acknowledged)? {
        None => Ok(0),
        Some(words) => {
            voice::print(&(words + "\n"))?;
            Ok(1)
        }
    }
}
