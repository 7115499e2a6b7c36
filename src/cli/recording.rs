//! Opening a recording for the verbs that read one: errors in words, progress where it takes long.

use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::Path;
use std::time::Duration;
use synclater_recording::record::read::Unreadable;
use synclater_recording::record::table::Table;
use synclater_text::layout::shown;
use synclater_text::message::Trouble;

const NOTHING_CHANGED: &str = "nothing was changed";

/// Opens the file; `verb` is what was to be done with it.
///
/// # Errors
/// A [`Trouble`] for a file that cannot be opened, and for a folder.
pub fn open(path: &Path, verb: &str) -> Result<File, Trouble> {
    let file = File::open(path).map_err(|e| cannot_open(path, verb, e.to_string()))?;
    match file.metadata() {
        Ok(m) if m.is_dir() => Err(cannot_open(path, verb, "it is a folder".into())),
        Err(e) => Err(cannot_open(path, verb, e.to_string())),
        Ok(_) => Ok(file),
    }
}

fn cannot_open(path: &Path, verb: &str, why: String) -> Trouble {
    let what = shown(&format!("cannot {verb} {}", path.display()));
    let try_ = "name a file that `synclater record` wrote";
    Trouble::new(what, why, try_, NOTHING_CHANGED)
}

/// Reads a recording; shows progress on a terminal once it takes over two seconds.
///
/// # Errors
/// A [`Trouble`] for what is no recording.
pub fn read(path: &Path, verb: &str) -> Result<Table, Trouble> {
    let file = open(path, verb)?;
    let size = file.metadata().map_or(0, |m| m.len());
    let bar = progress(size);
    let read = Table::read(BufReader::with_capacity(1 << 20, bar.wrap_read(file)));
    bar.finish_and_clear();
    read.map_err(|e| unreadable(path, verb, &e))
}

/// What to tell of a file that is no recording.
#[must_use]
pub fn unreadable(path: &Path, verb: &str, e: &Unreadable) -> Trouble {
    let what = shown(&format!("cannot {verb} {}", path.display()));
    let try_ = match e {
        Unreadable::Newer(_) => "use the version of synclater that wrote it, or a newer one",
        Unreadable::BigEndian => "record again with synclater on a little-endian machine",
        Unreadable::Empty | Unreadable::NoHead(_) => "record again: nothing of it can be read",
        Unreadable::Io(_) => "check the disk it lies on, then try again",
        _ => "name a file that `synclater record` wrote",
    };
    // The reason may quote the file.
    Trouble::new(what, shown(&e.to_string()), try_, NOTHING_CHANGED)
}

/// A bar that appears after two seconds, on a terminal only.
#[must_use]
pub fn progress(size: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("synclater: reading {bytes} of {total_bytes} {bar:30}");
    let bar = ProgressBar::hidden().with_style(style.expect("the template is constant"));
    bar.set_length(size);
    let late = bar.clone();
    // Ends with the process at the latest; a bar that is finished stays hidden.
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        if !late.is_finished() {
            late.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
    });
    bar
}

/// What to say about a recording that lacks its end, or columns; empty for a whole one.
#[must_use]
pub fn what_is_missing(table: &Table) -> String {
    synclater_recording::report::recording::missing(table).unwrap_or_default()
}

/// As [`what_is_missing`], of a recording that is read in batches.
#[must_use]
pub fn missing(cut: Option<&str>, ended: bool) -> String {
    synclater_recording::report::recording::missing_end(cut, ended).unwrap_or_default()
}
