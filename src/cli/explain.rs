//! `synclater explain`: what the slow requests of a recording have in common.

use super::recording;
use crate::voice;
use std::path::PathBuf;
use std::time::Duration;
use synclater_policy::duration::parse_duration;
use synclater_recording::analysis::explain::explain;

/// Says what the slow sync requests of a recording have in common.
///
/// Slow is the upper mode where durations have two, else a few that took several times as long
/// as all others, else what lies above the 99th percentile. Names where requests went (device,
/// mount, directory, file), who made them, what they were, what was going on, and when (a time
/// that comes back every 10 seconds to 10 minutes), and pairs of these, if they make slow
/// requests clearly more common than chance does; else says that they have nothing in common.
/// Only requests that were made for real count.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A recording, as `synclater record` writes it.
    file: PathBuf,

    /// Requests that took longer are slow.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    slower: Option<Duration>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater explain mail.rec
  synclater explain --slower 20ms --json mail.rec

Exit status: 0, also when something is found; 125 where FILE is no recording.";

/// Reads, searches and prints.
///
/// # Errors
/// A [`synclater_text::message::Trouble`] where the file is no recording.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let table = recording::read(&args.file, "explain")?;
    let slower = args
        .slower
        .map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX));
    let mut explanation = explain(&table, slower);
    let missing = recording::what_is_missing(&table);
    explanation.incomplete = (!missing.is_empty()).then_some(missing);
    voice::print(&if args.json {
        explanation.to_json()
    } else {
        explanation.render()
    })?;
    Ok(0)
}
