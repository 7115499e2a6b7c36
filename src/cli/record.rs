//! `synclater record`: measures the sync requests of a command, and changes nothing.

use super::run::{self, ring_bytes, OtherCalls};
use std::ffi::OsString;
use std::path::PathBuf;

/// Records every sync request of a command, each made for real at its moment.
///
/// The same as `synclater run --until now --record FILE`. The file can be read while it grows, and
/// when the recorder was killed; docs/FORMAT.md has its form.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The recording.
    #[arg(id = "record", short = 'o', long = "output", value_name = "FILE")]
    output: PathBuf,

    /// Memory in which a process's requests wait to be recorded: a power of two, 16K to 256M.
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = ring_bytes)]
    ring: usize,

    #[command(flatten)]
    other_calls: OtherCalls,

    /// Print the summary to stderr even where that is no terminal.
    #[arg(long, conflicts_with = "quiet")]
    summary: bool,

    /// Print no summary; errors are printed all the same.
    #[arg(short, long)]
    quiet: bool,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater record -o import.rec -- ./import-mail
  synclater record -o import.rec --io --slower 5ms -- ./import-mail
  synclater report import.rec";

/// Runs the command; returns its exit status.
///
/// # Errors
/// As [`run::run`].
pub fn run(args: Args) -> anyhow::Result<i32> {
    let measured = run::Args::measuring(args.command, args.output, args.ring, args.other_calls);
    run::run(measured.telling(args.summary, args.quiet))
}
