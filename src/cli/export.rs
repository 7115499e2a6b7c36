//! `synclater export`: a recording as Parquet, for DuckDB, pandas, Spark, ClickHouse, Trino.

use super::{recording, OURS};
use crate::export::part::Unfinished;
use crate::export::place::Destination;
use crate::export::{export, Failed, Written};
use crate::session::told;
use crate::voice;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use synclater_recording::record::read::{Stream, Unreadable};
use synclater_sys::signal;
use synclater_sys::signal::Signals;
use synclater_sys::wait;
use synclater_text::layout::shown;
use synclater_text::message::Trouble;
use synclater_text::number::{bytes, counted};

/// Writes a recording as Parquet, for DuckDB, pandas, Spark, ClickHouse, Trino.
///
/// Into a folder it writes Hive partitions: host=HOST/date=DATE/SESSION-START.parquet, so that the
/// recordings of many machines are one table; docs/fleet.md has queries. Exporting a recording
/// again replaces its files. A file appears under its name when it is whole and durable.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The recording.
    file: PathBuf,

    /// Where to: a file (FILE.parquet), or a folder (one that exists, or DIR/).
    #[arg(long, value_name = "OUT")]
    parquet: PathBuf,
}

const EXAMPLES: &str = "\
EXAMPLES
  synclater export mail.rec --parquet mail.parquet
  synclater export mail.rec --parquet /srv/fleet/";

const NOTHING_WRITTEN: &str = "nothing was written";

/// Writes, and prints what was written.
///
/// # Errors
/// A [`Trouble`] for what cannot be read or written.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    let file = recording::open(&args.file, "export")?;
    let size = file.metadata().map_or(0, |m| m.len());
    if args.parquet == Path::new("-") {
        let why = "Parquet is read from its end: it needs a file";
        return Err(cannot(args, why.into(), "--parquet FILE.parquet".into()).into());
    }
    let place = Destination::of(&args.parquet).map_err(|(why, try_)| cannot(args, why, try_))?;
    // Before the first thread: all of them leave signals to this one.
    let signals = Signals::take().map_err(|e| cannot_begin(args, &e))?;
    let (done, ended) = std::io::pipe().map_err(|e| cannot_begin(args, &e))?;
    let unfinished = Unfinished::default();
    let ours = unfinished.clone();
    let work = std::thread::spawn(move || {
        let worked = work(file, size, &place, &ours);
        drop(ended);
        worked
    });
    let waits = [
        (signals.as_fd(), wait::For::Input),
        (done.as_fd(), wait::For::Input),
    ];
    while !work.is_finished() {
        let _ = wait::any(&waits, Duration::from_secs(1));
        while let Some(signal) = signals.next() {
            if signal.ends() {
                // The worker makes no new file while this is held; it ends with the process.
                let _held = unfinished.remove();
                signal::die_of(signal.number);
                return Ok(OURS);
            }
        }
    }
    let worked = work.join().expect("it does not panic");
    if worked.is_err() {
        drop(unfinished.remove());
    }
    let (written, missing) = worked.map_err(|e| why_not(args, e))?;
    tell(args, &written, &missing)?;
    Ok(0)
}

/// What the worker could not do.
enum Cannot {
    Read(Unreadable),
    Write(Failed),
    /// It is cut off in front of its first row; what is missing.
    Cut(String),
}

/// Reads and writes; gives what was written, and what is missing of the recording.
fn work(
    file: File,
    size: u64,
    place: &Destination,
    unfinished: &Unfinished,
) -> Result<(Written, String), Cannot> {
    let bar = recording::progress(size);
    let input = BufReader::with_capacity(1 << 20, bar.wrap_read(file));
    let exported = Stream::open(input)
        .map_err(Cannot::Read)
        .and_then(|mut stream| {
            let exported = export(&mut stream, place, unfinished);
            let written = exported.map_err(|e| match (e, stream.cut()) {
                (Failed::NoRow, Some(_)) => Cannot::Cut(recording::missing(stream.cut(), false)),
                (e, _) => Cannot::Write(e),
            })?;
            let missing = recording::missing(stream.cut(), written.ended);
            Ok((written, missing))
        });
    bar.finish_and_clear();
    exported
}

fn cannot(args: &Args, why: String, try_: String) -> Trouble {
    let (from, to) = (args.file.display(), args.parquet.display());
    let what = format!("cannot export {from} to {to}");
    Trouble::new(shown(&what), shown(&why), shown(&try_), NOTHING_WRITTEN)
}

fn cannot_begin(args: &Args, e: &std::io::Error) -> Trouble {
    cannot(args, e.to_string(), "try again".into())
}

fn why_not(args: &Args, e: Cannot) -> Trouble {
    let (why, try_) = match e {
        Cannot::Read(e) => return recording::unreadable(&args.file, "export", &e),
        Cannot::Write(Failed::Io(path, e)) => {
            told::note_of_ours(&e, &path);
            let try_ = match e.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                    "make room, or name a folder on another disk"
                }
                ErrorKind::ResourceBusy => "wait until the other export has ended",
                _ => "name a file or folder that you can write",
            };
            let why = match e.kind() {
                ErrorKind::ResourceBusy => "another process is writing it".to_owned(),
                _ => e.to_string(),
            };
            (format!("{}: {why}", path.display()), try_)
        }
        Cannot::Write(Failed::Row(why)) => (
            format!("its rows cannot be written as Parquet: {why}"),
            "record again, or send the recording with a bug report",
        ),
        Cannot::Write(Failed::Dates) => (
            "its rows are of more than 400 dates".to_owned(),
            "write one file: --parquet FILE.parquet",
        ),
        Cannot::Cut(missing) => (missing, "record again"),
        Cannot::Write(Failed::NoRow) => (
            "it has no row".to_owned(),
            "record for longer; an export of nothing would be an empty table",
        ),
    };
    cannot(args, why, try_.to_owned())
}

/// Prints what was written; on stderr what is missing.
fn tell(args: &Args, written: &Written, missing: &str) -> Result<(), Trouble> {
    let (mut rows, mut size) = (0, 0);
    let mut text = String::new();
    for (path, r, s) in &written.files {
        (rows, size) = (rows + r, size + s);
        let path = shown(&path.to_string_lossy());
        let _ = writeln!(text, "{path}: {}, {}", counted(*r, "row"), bytes(*s));
    }
    let files = counted(written.files.len() as u64, "file");
    let requests = counted(written.requests, "request");
    let _ = write!(
        text,
        "{files}, {}, {}; {requests}",
        counted(rows, "row"),
        bytes(size)
    );
    if written.requests > 0 {
        let each = size as f64 / written.requests as f64;
        let _ = write!(text, ", {each:.1} bytes each");
    }
    voice::print(&(text + "\n"))?;
    let file = shown(&args.file.to_string_lossy());
    if !missing.is_empty() {
        warn(
            format!("{file} is not whole"),
            missing,
            "record again; or export it again when its recorder has ended: the files are replaced",
            format!("its {} that are whole were exported", counted(rows, "row")),
        );
    }
    if written.requests == 0 {
        warn(
            format!("{file} has no sync request"),
            "what was recorded made none, or the recording is of something else",
            "look at what it recorded: synclater report FILE",
            format!("its {} of other kinds were exported", counted(rows, "row")),
        );
    }
    Ok(())
}

fn warn(what: String, why: &str, try_: &str, state: String) {
    voice::say(&format!(
        "{}\n",
        Trouble::new(what, shown(why), try_, state)
    ));
}
