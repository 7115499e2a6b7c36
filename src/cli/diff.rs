//! `synclater diff`: what changed between two recordings, and whether it is more than noise.

use super::recording;
use crate::voice;
use std::path::{Path, PathBuf};
use synclater_recording::analysis::diff::name::By;
use synclater_recording::analysis::diff::side::Side;
use synclater_recording::analysis::diff::{diff, Per};
use synclater_recording::report::diff::{Recording, Report};
use synclater_text::message::Trouble;

/// Compares two recordings: before and after, two hosts, two disks.
///
/// For each group of requests the change of what syncs cost and of their median, each with a 95 %
/// interval (a moving block bootstrap), the costliest change first. Requests that were put off, and
/// sync_file_range, are not compared. Noise is what varies within a recording: to see by how much
/// two days differ by themselves, compare two recordings from before. Exit status: 0, also when
/// something has changed.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The first recording.
    a: PathBuf,

    /// The second recording.
    b: PathBuf,

    /// Group by kind, process, file, filesystem or device; repeatable. By default all of them.
    #[arg(long, value_name = "WHAT", value_parser = str::parse::<By>)]
    by: Vec<By>,

    /// Measure changes per run, second or request: in seconds of the whole recordings, per second
    /// of recording, per request. By default per run where both hold about as many requests or took
    /// about as long, else per second.
    #[arg(long, value_name = "WHAT", value_parser = str::parse::<Per>)]
    per: Option<Per>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater diff before.rec after.rec
  synclater diff --by device --by file mail1.rec mail2.rec
  synclater diff --per request --json short.rec long.rec";

/// Compares and prints.
///
/// # Errors
/// A [`Trouble`] for a file that is no recording.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let mut by = Vec::new();
    for word in if args.by.is_empty() {
        &By::ALL[..]
    } else {
        &args.by
    } {
        if !by.contains(word) {
            by.push(*word);
        }
    }
    let (a, side_a) = reduced(&args.a, &by)?;
    let (b, side_b) = reduced(&args.b, &by)?;
    let diff = diff(&side_a, &side_b, &by, args.per);
    let report = Report { a, b, diff };
    voice::print(&if args.json {
        report.to_json()
    } else {
        report.render()
    })?;
    Ok(0)
}

/// Reads a recording and keeps of it what is compared: two whole ones take twice the memory.
fn reduced(path: &Path, by: &[By]) -> Result<(Recording, Side), Trouble> {
    let table = recording::read(path, "compare")?;
    let side = Side::of(&table, by);
    let missing = recording::what_is_missing(&table);
    let file = path.to_string_lossy();
    let about = Recording::new(&file, &table.header, &side, missing);
    Ok((about, side))
}
