//! What the search has found, and how that is told.

use super::Args;
use crate::crash::bench::Run;
use crate::crash::judge::Verdict;
use crate::crash::search::Judged;
use crate::crash::victim::Ending;
use std::collections::BTreeMap;
use synclater_powercut::cuts::{Cut, Moment};
use synclater_powercut::log::{Log, Mark, Op, Voice};
use synclater_powercut::report::{
    complexity, gist, kind_of, likeness, reached_words, CrashReport, Failure, KindRow,
};

/// Failures that are told apart.
const FAILURES_MAX: usize = 20;

/// One way in which it fails.
#[derive(Clone)]
pub struct Bad {
    /// The simplest cut that shows it.
    pub cut: Cut,
    /// What the check said then.
    pub said: String,
    states: u64,
}

/// What the search has found.
#[derive(Default)]
pub struct Found {
    /// States that were judged.
    pub states: u64,
    kinds: BTreeMap<&'static str, (u64, u64)>,
    bad: BTreeMap<String, Bad>,
    /// By the place of the cut: states, and bad ones.
    pub places: BTreeMap<usize, (u64, u64)>,
    /// The check itself failed, on this.
    pub failed: Option<(Cut, String)>,
    /// States that were bad, and good when they were judged again; what was said of the first.
    flaky: (u64, String),
}

impl Found {
    /// Takes a state in.
    pub fn hear(&mut self, judged: Judged) {
        self.states += 1;
        let is_bad = u64::from(matches!(
            judged.verdict,
            Verdict::Bad(_) | Verdict::Hangs(_)
        ));
        let place = self.places.entry(judged.cut.at).or_default();
        *place = (place.0 + 1, place.1 + is_bad);
        let kind = self.kinds.entry(kind_of(&judged.cut)).or_default();
        *kind = (kind.0 + 1, kind.1 + is_bad);
        match judged.verdict {
            Verdict::Good => {}
            Verdict::Failed(why) => self.failed = Some((judged.cut, why)),
            Verdict::Bad(said) | Verdict::Hangs(said) => self.note(judged.cut, said),
            Verdict::Flaky(said) => {
                self.flaky.0 += 1;
                if self.flaky.0 == 1 {
                    self.flaky.1 = said;
                }
            }
        }
    }

    fn note(&mut self, cut: Cut, said: String) {
        let mut like = likeness(gist(&said));
        if self.bad.len() >= FAILURES_MAX && !self.bad.contains_key(&like) {
            like = "others".into();
        }
        let fresh = Bad {
            cut,
            said: said.clone(),
            states: 0,
        };
        let bad = self.bad.entry(like).or_insert(fresh);
        bad.states += 1;
        if complexity(&cut) < complexity(&bad.cut) {
            (bad.cut, bad.said) = (cut, said);
        }
    }

    /// Bad states.
    pub fn bad(&self) -> u64 {
        self.kinds.values().map(|(_, bad)| bad).sum()
    }

    /// States of which it is not known whether they are bad.
    pub fn flaky(&self) -> u64 {
        self.flaky.0
    }

    /// Each failure, the simplest to explain first.
    pub fn failures(&self) -> Vec<Bad> {
        let mut bad: Vec<Bad> = self.bad.values().cloned().collect();
        bad.sort_by_key(|b| complexity(&b.cut));
        bad
    }

    /// The report without what further runs show.
    pub fn report(&self, args: &Args, run: &Run, voice: Voice) -> CrashReport {
        let log = &run.log;
        let writes = number_of(&log.ops, |op| matches!(op, Op::Write { .. }));
        let flushes = number_of(&log.ops, |op| matches!(op, Op::Flush | Op::FlushOfNothing));
        let lines = log.said(voice, log.ops.len());
        let kinds = self.kinds.iter().map(|(kind, (states, bad))| KindRow {
            kind: (*kind).to_owned(),
            states: *states,
            bad: *bad,
        });
        let failures = self.failures();
        let failures = failures
            .iter()
            .zip(1..)
            .map(|(bad, n)| failure(log, bad, n, voice));
        CrashReport {
            version: CrashReport::VERSION,
            fs: args.fs.name().into(),
            until: args.until.clone(),
            command: args
                .words()
                .iter()
                .map(|w| w.to_string_lossy().into_owned())
                .collect(),
            status: match run.ending {
                Ending::Status(status) => Some(status),
                Ending::TooLong | Ending::Stopped => None,
            },
            acknowledged: lines.iter().filter(|b| **b == b'\n').count() as u64,
            zeroed: log.zeroed,
            writes,
            flushes,
            cuts: 0,
            states: self.states,
            bad: self.bad(),
            flaky: self.flaky.0,
            flaky_said: Some(self.flaky.1.clone()).filter(|_| self.flaky.0 > 0),
            kinds: kinds.collect(),
            failures: failures.collect(),
            complete: true,
            seconds: 0.0,
            check_failed_on: None,
            notes: notes(args, run, &lines, (writes, flushes)),
        }
    }
}

fn number_of(ops: &[Op], is_meant: impl Fn(&Op) -> bool) -> u64 {
    ops.iter().filter(|op| is_meant(op)).count() as u64
}

/// What is odd about the run.
fn notes(args: &Args, run: &Run, lines: &[u8], (writes, flushes): (u64, u64)) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((first, _)) = args.fail_flush.filter(|(first, _)| *first > flushes) {
        notes.push(format!(
            "no flush failed: it made {flushes}, and flush {first} was to fail"
        ));
    }
    if let Some((first, _)) = args.fail_write.filter(|(first, _)| *first > writes) {
        notes.push(format!(
            "no write failed: it made {writes}, and write {first} was to fail"
        ));
    }
    match run.ending {
        Ending::Status(0) | Ending::Stopped => {}
        Ending::Status(status) => {
            let said = last_of_stderr(&run.log, 3).replace('\n', "; ");
            let words = if said.is_empty() {
                String::new()
            } else {
                format!(": {said}")
            };
            notes.push(format!("the command ended with status {status}{words}"));
        }
        Ending::TooLong => notes.push(format!(
            "the command was still running after {}, and was killed (--for)",
            synclater_text::number::seconds(args.for_.as_secs_f64())
        )),
    }
    if let (1.., Ending::Status(_)) = (run.more, run.ending) {
        let them = match run.more {
            1 => "1 process of it still ran when it had ended, and was killed there".to_owned(),
            n => format!("{n} processes of it still ran when it had ended, and were killed there"),
        };
        notes.push(them);
    }
    if is_buffered(&run.log) {
        notes.push("all acknowledgements came at once, at the end: is its stdout buffered?".into());
    }
    if lines.is_empty() {
        notes.push(
            "it acknowledged nothing: only damage can be found, not loss; let it print a line for \
             each thing that it takes for durable"
                .into(),
        );
    }
    let wrote = run.log.ops.iter().any(|op| matches!(op, Op::Write { .. }));
    if !wrote {
        notes.push(
            "nothing was written to the disk: the command did not work in its folder, or synced \
             nothing there"
                .into(),
        );
    }
    notes
}

/// Whether all lines came at once behind everything that was flushed.
fn is_buffered(log: &Log) -> bool {
    let lines = number_of(&log.ops, is_line);
    let first = log.ops.iter().position(is_line).unwrap_or(0);
    let last = log.ops.iter().rposition(is_line).unwrap_or(0);
    lines > 3
        && number_of(&log.ops[first..last], is_flush) == 0
        && number_of(&log.ops[..first], is_flush) > lines
}

fn is_line(op: &Op) -> bool {
    matches!(op, Op::Mark(Mark::Line(..)))
}

fn is_flush(op: &Op) -> bool {
    matches!(op, Op::Flush)
}

/// The last lines that it said on stderr.
pub fn last_of_stderr(log: &Log, lines: usize) -> String {
    let said = log.said(Voice::Err, log.ops.len());
    let said = String::from_utf8_lossy(&said).into_owned();
    let all: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn failure(log: &Log, bad: &Bad, number: u32, voice: Voice) -> Failure {
    Failure {
        id: format!("F{number}"),
        after: last_words(log, &bad.cut, voice),
        missing: None,
        remaining: None,
        advice: None,
        sentence: sentence(log, &bad.cut, voice),
        differences: Vec::new(),
        requests: Vec::new(),
        steps: Vec::new(),
        said: bad.said.clone(),
        states: bad.states,
        replay: None,
    }
}

/// What it had said last when the power was cut.
fn last_words(log: &Log, cut: &Cut, voice: Voice) -> Option<String> {
    let (_, line) = log.lines(voice, cut.at).next_back()?;
    Some(line_of(line))
}

fn sentence(log: &Log, cut: &Cut, voice: Voice) -> String {
    let pending = log.pending(cut.at).len();
    let ended = matches!(
        log.ops.get(cut.at.wrapping_sub(1)),
        Some(Op::Mark(Mark::Exit(_)))
    );
    let after = last_words(log, cut, voice);
    let when = match (&after, cut.moment) {
        _ if ended => "Right after the command had ended".to_owned(),
        (Some(line), Moment::Said) => format!("Right after it had said \u{201c}{line}\u{201d}"),
        (Some(line), _) => format!("Some time after it had said \u{201c}{line}\u{201d}"),
        (None, _) => "Before it had said anything".to_owned(),
    };
    let words = reached_words(cut, pending);
    synclater_text::layout::shown(&format!("{when}, {words}."))
}

/// A line that was said, cut where it is long.
pub fn line_of(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    match line.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{}\u{2026}", &line[..end]),
        None => line.into_owned(),
    }
}

/// Characters of a line that was said, at most.
const WORDS_MAX: usize = 60;
