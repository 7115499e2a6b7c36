//! The program's own requests, and what the disk was asked, around a cut.

use super::found::{line_of, Bad};
use crate::crash::bench::Run;
use std::collections::BTreeMap;
use std::path::Path;
use synclater_powercut::log::{Log, Mark, Op, Voice};
use synclater_powercut::report::{CrashReport, Line};
use synclater_recording::record::table::{Done, Table, UNKNOWN};
use synclater_text::number::{bytes, counted};

/// By the place of the cut: states, and bad ones.
pub type Places = BTreeMap<usize, (u64, u64)>;

/// Requests that are told of each failure.
const REQUESTS: usize = 4;
/// Steps of the disk that are told of each failure.
const STEPS: usize = 12;

/// A sync request of the program.
pub struct Sync {
    begin_ns: i64,
    end_ns: i64,
    words: String,
}

/// The requests of a run, in the order of their ends; none where they could not be recorded.
pub fn syncs(run: &Run) -> Vec<Sync> {
    let read = std::fs::File::open(&run.recording).ok();
    let Some(table) = read.and_then(|file| Table::read(std::io::BufReader::new(file)).ok()) else {
        return Vec::new();
    };
    let rows = &table.rows;
    let mut syncs: Vec<Sync> = (0..rows.len())
        .filter(|row| table.is_durability(rows.kind[*row]))
        .map(|row| {
            let took = Some(rows.took_ns[row])
                .filter(|t| *t != UNKNOWN)
                .unwrap_or(0);
            let begin_ns = rows.time_ns[row];
            Sync {
                begin_ns,
                end_ns: begin_ns.saturating_add(i64::try_from(took).unwrap_or(i64::MAX)),
                words: words_of(&table, row, &run.place),
            }
        })
        .collect();
    syncs.sort_by_key(|s| s.end_ns);
    syncs
}

fn words_of(table: &Table, row: usize, place: &Path) -> String {
    let rows = &table.rows;
    let kind = &table.kinds[rows.kind[row] as usize];
    let path = table
        .files
        .get(rows.file[row] as usize)
        .map_or("", |f| f.path.as_str());
    let inside = Path::new(path).strip_prefix(place);
    let of = match inside {
        Ok(path) if path.as_os_str().is_empty() => " of its folder".to_owned(),
        Ok(path) => format!(" of {}", path.display()),
        Err(_) if path.is_empty() => String::new(),
        Err(_) => format!(" of {path}"),
    };
    let put_off = match rows.done[row] {
        Done::Owed | Done::Skipped => " (put off)",
        Done::Nothing => " (refused)",
        Done::Real | Done::Unknown => "",
    };
    format!("{kind}{of}{put_off}")
}

/// Adds to each failure what the program had asked for last, and what the disk had been asked.
pub fn explain(run: &Run, syncs: &[Sync], bad: &[Bad], report: &mut CrashReport) {
    for (failure, bad) in report.failures.iter_mut().zip(bad) {
        let at = bad.cut.at;
        let cut_ns = run.log.times_ns[..at].last().copied().unwrap_or(i64::MIN);
        let before = syncs.iter().filter(|s| s.end_ns <= cut_ns);
        let last: Vec<&Sync> = before.rev().take(REQUESTS).collect();
        failure.requests = last.iter().rev().map(|s| s.words.clone()).collect();
        failure.steps = steps(&run.log, at);
    }
}

/// What happened right before a cut, the last one last.
fn steps(log: &Log, at: usize) -> Vec<String> {
    let begin = at.saturating_sub(STEPS);
    let mut steps: Vec<String> = Vec::new();
    if begin > 0 {
        steps.push("\u{2026}".into());
    }
    steps.extend(log.ops[begin..at].iter().map(step));
    steps
}

fn step(op: &Op) -> String {
    match op {
        Op::Write { at, contents } => {
            format!("write {} at {at}", counted(contents.len() as u64, "sector"))
        }
        Op::Flush => "flush".to_owned(),
        Op::FlushOfNothing => "flush (not made)".to_owned(),
        Op::Mark(Mark::Line(_, line)) => format!("\u{201c}{}\u{201d}", line_of(line)),
        Op::Mark(Mark::Exit(status)) => format!("exit {status}"),
    }
}

/// The run and the cuts as a line in time.
pub fn line(log: &Log, syncs: &[Sync], voice: Voice, sector: u32, places: &Places) -> Line {
    let first = log.times_ns.first().copied().unwrap_or(0);
    let first = syncs.iter().map(|s| s.begin_ns).fold(first, i64::min);
    let mut line = Line::default();
    for (op, ns) in log.ops.iter().zip(&log.times_ns) {
        let at = seconds_between(first, *ns);
        match op {
            Op::Write { contents, .. } => {
                line.writes
                    .push((at, bytes(contents.len() as u64 * u64::from(sector))));
            }
            Op::Flush | Op::FlushOfNothing => line.flushes.push(at),
            Op::Mark(Mark::Line(v, words)) if *v == voice => line.said.push((at, line_of(words))),
            Op::Mark(_) => {}
        }
        // A session takes its time to end.
        if !matches!(op, Op::Mark(Mark::Exit(_))) {
            line.seconds = at;
        }
    }
    line.syncs = syncs
        .iter()
        .map(|s| {
            let begin_s = seconds_between(first, s.begin_ns);
            (begin_s, seconds_between(first, s.end_ns), s.words.clone())
        })
        .collect();
    line.cuts = places
        .iter()
        .map(|(at, (states, bad))| {
            let ns = log.times_ns[..*at].last().copied().unwrap_or(first);
            (seconds_between(first, ns), *states, *bad)
        })
        .collect();
    line
}

fn seconds_between(begin_ns: i64, end_ns: i64) -> f64 {
    (end_ns - begin_ns) as f64 / 1e9
}
