//! `synclater record`: measures sync requests, and changes nothing: those of a command by the
//! library, those of running processes or of the whole machine by the kernel's trace points.

mod system;

use super::dials::{ring_bytes, Recorded};
use super::requesters::RequesterFilter;
use super::run::{self, OtherCalls};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use synclater_policy::duration::parse_duration;
use synclater_text::message::Trouble;

/// Records every sync request of a command, of running processes, or of the whole machine.
///
/// With a command alone: the same as `synclater run --until now --record FILE`. With --system,
/// --pid, --unit, --exe or --device the kernel is asked instead (root): nothing is restarted and
/// nothing preloaded; io_uring, static programs and Go are seen too. The file can be read while it
/// grows, and when the recorder was killed; docs/FORMAT.md has its form.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The recording; - is standard output, and what the command prints there goes to standard
    /// error.
    #[arg(id = "record", short = 'o', long = "output", value_name = "FILE")]
    output: PathBuf,

    /// Write over a recording that is in FILE already.
    #[arg(long)]
    force: bool,

    /// Ask the kernel: all processes, or the command and what it starts.
    #[arg(long)]
    system: bool,

    #[command(flatten)]
    whose: RequesterFilter,

    /// End after this time; without it and without a command, at Ctrl-C, or when every process of
    /// --pid is gone.
    #[arg(long = "for", value_name = "T", value_parser = parse_duration)]
    for_: Option<Duration>,

    /// Memory in which requests wait to be recorded, of each process, or of the machine with
    /// --system: a power of two, 16K to 256M.
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = ring_bytes)]
    ring: usize,

    #[command(flatten)]
    other_calls: OtherCalls,

    /// Print the summary to stderr even where that is no terminal.
    #[arg(long, conflicts_with = "quiet")]
    summary: bool,

    /// Print no summary; errors and warnings are printed all the same.
    #[arg(short, long)]
    quiet: bool,

    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater record -o import.rec -- ./import-mail
  synclater record -o import.rec --io --slower 5ms -- ./import-mail
  synclater record -o db.rec --unit postgresql --for 1min
  synclater record -o all.rec --system
  synclater record -o - -- ./import-mail | ssh archive 'cat > import.rec'
  synclater report import.rec";

impl Args {
    fn asks_the_kernel(&self) -> bool {
        self.system || !self.whose.is_everybody()
    }
}

fn unclear(what: &str, why: &str, try_: &str) -> Trouble {
    Trouble::new(format!("cannot {what}"), why, try_, "nothing was recorded")
}

/// Records; returns the command's exit status, or 0.
///
/// # Errors
/// As [`run::run`], and where the kernel cannot be asked.
pub fn run(args: Args) -> anyhow::Result<i32> {
    if args.asks_the_kernel() {
        if args.other_calls.io {
            return Err(unclear(
                "record other calls",
                "--io is the library's, and --system asks the kernel",
                "leave one of them out",
            )
            .into());
        }
        return system::run(&args);
    }
    if args.command.is_empty() || args.for_.is_some() {
        return Err(if args.command.is_empty() {
            let try_ = "add a command, or --system, --pid, --unit, --exe, --device";
            unclear(
                "record nothing",
                "the command line does not say what to record",
                try_,
            )
        } else {
            let try_ = "add --system, or leave --for out";
            unclear(
                "end a command's recording before it",
                "--for is for what the kernel tells",
                try_,
            )
        }
        .into());
    }
    let recorded = Recorded {
        record: Some(args.output),
        force: args.force,
        ring: args.ring,
    };
    let measured = run::Args::measuring(args.command, recorded, args.other_calls);
    run::run(measured.telling(args.summary, args.quiet))
}
