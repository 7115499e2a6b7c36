//! Called by the name `eatmydata`: becomes the command with the library alone.

use crate::reach::launch;
use crate::reach::library::{self, Variant};
use crate::voice;
use std::ffi::OsString;
use std::path::Path;
use synclater_text::message::Trouble;

const HELP: &str = "\
usage: eatmydata [--] COMMAND [ARG...]

Executes COMMAND with synclater's library alone at `never`: sync calls are
answered at once and never carried out. There is no session, no lease, no
ledger and no settle: a power cut may lose or tear whatever was written.
For anything that should be durable in the end: synclater run -- COMMAND

EXAMPLES
  eatmydata apt-get install -y postgresql
  eatmydata -- ./run-tests
";

/// Whether we were called by that name.
#[must_use]
pub fn is_meant(argv: &[OsString]) -> bool {
    let name = argv.first().and_then(|a| Path::new(a).file_name());
    name.is_some_and(|n| n == "eatmydata" || n == "eatmydata-synclater")
}

/// Becomes the command.
///
/// # Errors
/// A [`Trouble`] where the library has no place.
pub fn run(argv: &[OsString]) -> anyhow::Result<i32> {
    let mut rest = &argv[1..];
    match rest.first().and_then(|a| a.to_str()) {
        Some("--help" | "-h") => {
            voice::print(HELP)?;
            return Ok(0);
        }
        Some("--version") => {
            voice::print(&format!(
                "eatmydata (synclater) {}\n",
                env!("CARGO_PKG_VERSION")
            ))?;
            return Ok(0);
        }
        Some("--") => rest = &rest[1..],
        _ => {}
    }
    if rest.is_empty() {
        voice::say(HELP);
        return Ok(super::OURS);
    }
    let library = library::locate(launch::needed_here(Variant::Ordinary)).map_err(|why| {
        let what = "there is no folder for the preload library";
        Trouble::new(what, why, "synclater doctor", "the command was not started")
    })?;
    let until = [("SYNCLATER_UNTIL", OsString::from("never"))];
    let command = launch::command(rest, &library, &until);
    let e = synclater_sys::command::become_command(command, &synclater_sys::signal::inherited());
    voice::say(&(format!("eatmydata: cannot run {}: {e}", rest[0].to_string_lossy()) + "\n"));
    Ok(launch::failure_status(&e))
}
