//! `synclater report`: what a recording tells.

use super::recording;
use super::whole_file::WholeFile;
use crate::voice;
use std::path::{Path, PathBuf};
use synclater_recording::record::table::Table;
use synclater_recording::report::html;
use synclater_recording::report::recording::{By, RecordingReport, View};
use synclater_text::layout::shown;
use synclater_text::message::Trouble;

/// Shows what syncs cost in a recording, and what putting them off would save.
///
/// How long they took and when, by process, kind, file and device; which of them were needless or
/// always come together; what each dial (--until) would save and what it would put at stake: *when*
/// data is durable, and the *order* in which it gets there. Reads the file once; writes nothing but
/// what --html asks for.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A recording.
    file: PathBuf,

    /// Print JSON: all groups and figures.
    #[arg(long)]
    json: bool,

    /// Write a page for a browser: one file that holds all it shows and opens offline. `-` is
    /// stdout.
    #[arg(long, value_name = "OUT", conflicts_with_all = ["json", "by", "top"])]
    html: Option<PathBuf>,

    /// What to group requests by; may be given several times. Default: program where it has
    /// several processes, process, kind, file, device.
    #[arg(long, value_name = "WHAT", value_parser = by(), conflicts_with = "json")]
    by: Vec<By>,

    /// The most lines of each table, up to 100.
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "json")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    top: u16,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater report mail.rec
  synclater report --by program --by caller --top 20 mail.rec
  synclater report --html mail.html mail.rec
  synclater report --json mail.rec | jq '.dials[] | {until, saved_s}'";

/// The names of dimensions.
fn by() -> impl clap::builder::TypedValueParser<Value = By> {
    use clap::builder::TypedValueParser;
    let names = By::ALL.map(|(name, _)| name);
    clap::builder::PossibleValuesParser::new(names).map(|name| {
        let found = By::ALL.iter().find(|(known, _)| *known == name);
        found.expect("clap lets only known names through").1
    })
}

/// Reads and prints.
///
/// # Errors
/// A [`Trouble`] for what is no recording, and for a page that cannot be written.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let place = args.html.as_deref().map(|out| place(out, &args.file));
    let place = place.transpose()?;
    let table = recording::read(&args.file, "report")?;
    let report = RecordingReport::of(&table, &args.file.display().to_string());
    if let (Some(place), Some(out)) = (place, &args.html) {
        let page = html::page(&report.to_json());
        place.write(&page).map_err(|e| cannot_write(out, &e))?;
        warn_of_missing(&table);
    } else if args.json {
        voice::print(&report.to_json())?;
        warn_of_missing(&table);
    } else {
        voice::print(&report.render(&View {
            by: args.by.clone(),
            top: args.top.into(),
        }))?;
    }
    Ok(0)
}

/// The text says it at its head; a program may not look for the key, nor anyone at the page.
fn warn_of_missing(table: &Table) {
    let missing = recording::what_is_missing(table);
    if !missing.is_empty() {
        voice::say(&format!("synclater: not whole: {}\n", shown(&missing)));
    }
}

/// Where the page is to appear: looked at before a large recording is read.
fn place(out: &Path, recording: &Path) -> Result<WholeFile, Trouble> {
    WholeFile::at(out, recording).map_err(|e| cannot_write(out, &e))
}

fn cannot_write(out: &Path, e: &std::io::Error) -> Trouble {
    Trouble::new(
        format!(
            "cannot write the page {}",
            shown(&out.display().to_string())
        ),
        e.to_string(),
        "name another file, in a folder that you can write and with room",
        "no page was written; what was there is as it was",
    )
}
