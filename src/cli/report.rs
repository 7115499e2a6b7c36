//! `synclater report`: what a recording tells.

use super::recording;
use std::path::PathBuf;
use synclater_model::report::recording::{By, RecordingReport, View};
use synclater_model::report::text::shown;

/// Shows what syncs cost in a recording, and what putting them off would save.
///
/// How long they took and when, by process, kind, file and device; which of them were needless or
/// always come together; what each dial (--until) would save and what it would put at stake: *when*
/// data is durable, and the *order* in which it gets there. Reads the file once; writes nothing.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A recording.
    file: PathBuf,

    /// Print JSON: all groups and figures.
    #[arg(long)]
    json: bool,

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
/// A [`synclater_model::report::message::Trouble`] for what is no recording.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let table = recording::read(&args.file, "report")?;
    let report = RecordingReport::of(&table, &args.file.display().to_string());
    if args.json {
        super::print(&report.to_json());
        // The text says it at its head; a program may not look for the key.
        let missing = recording::what_is_missing(&table);
        if !missing.is_empty() {
            super::say(&format!("synclater: not whole: {}\n", shown(&missing)));
        }
    } else {
        super::print(&report.render(&View {
            by: args.by.clone(),
            top: args.top.into(),
        }));
    }
    Ok(0)
}
