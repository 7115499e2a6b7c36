//! The sync that would have closed a failure, found by making it; and what is not there without it.

use super::found::{Bad, Found};
use super::progress::Progress;
use super::stop::Stop;
use crate::crash::bench::{Before, Bench, Run};
use crate::crash::closing::Closing;
use crate::crash::judge::Check;
use crate::crash::search::Laboratory;
use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use synclater_powercut::cuts::{Cut, Cuts, Moment, Reached};
use synclater_powercut::log::{Image, Log};
use synclater_powercut::report::CrashReport;
use synclater_powercut::tree::{self, Tree};
use synclater_text::number::counted;

/// Failures for which it is looked for.
const CLOSED_MAX: usize = 3;
/// States by which a sync is judged, and how long that may take.
const CLOSING_STATES: usize = 40;
const CLOSING_TIME: Duration = Duration::from_secs(6);
/// How long all of it may take.
const ALL_TIME: Duration = Duration::from_secs(30);

/// A run with a sync that was made before each acknowledgement, and what came of it.
struct Closed {
    log: Log,
    states: u64,
    bad: u64,
}

impl Closed {
    fn is_clean(&self) -> bool {
        self.states > 0 && self.bad == 0
    }
}

/// How long it may be looked for.
struct Time<'a> {
    stop: &'a Stop<'a>,
    end: Instant,
}

impl Time<'_> {
    /// Whether there is none left, or somebody wants an end.
    fn is_over(&self) -> bool {
        Instant::now() > self.end || self.stop.is_wanted()
    }
}

/// Looks for the missing syncs.
pub struct Search<'a> {
    bench: &'a Bench<'a>,
    laboratory: &'a Laboratory<'a>,
    base: &'a Image,
    first: &'a Run,
    progress: &'a Progress,
    /// Further runs.
    runs: Cell<usize>,
}

impl<'a> Search<'a> {
    /// Behind the run `first` on the disk `base`.
    pub fn new(
        bench: &'a Bench<'a>,
        laboratory: &'a Laboratory<'a>,
        base: &'a Image,
        first: &'a Run,
        progress: &'a Progress,
    ) -> Search<'a> {
        Search {
            bench,
            laboratory,
            base,
            first,
            progress,
            runs: Cell::new(0),
        }
    }

    /// Looks for the sync that would have closed each failure.
    pub fn explain(&self, bad: &[Bad], report: &mut CrashReport, stop: &Stop<'_>) {
        let time = Time {
            stop,
            end: Instant::now() + ALL_TIME,
        };
        let mut closed: HashMap<Closing, Option<Closed>> = HashMap::new();
        let failures = report.failures.iter_mut().zip(bad).take(CLOSED_MAX);
        for (failure, bad) in failures {
            if !breaks_a_promise(&bad.cut) {
                failure.advice = Some(NO_PROMISE.to_owned());
                continue;
            }
            // Where everything does not help, no sync does.
            let mut candidates = vec![Closing::Everything];
            while let Some(closing) = candidates.pop().filter(|_| !time.is_over()) {
                let words = format!("{}: would {} help?", failure.id, closing.words());
                self.progress.say(&words);
                let closed = closed.entry(closing.clone());
                let tried = closed.or_insert_with(|| self.closed(&closing, &time));
                let Some(tried) = tried.as_ref().filter(|c| c.is_clean()) else {
                    continue;
                };
                failure.missing = Some(missing(&closing, tried.states));
                if closing != Closing::Everything {
                    break;
                }
                if let Some((is, wanted)) = self.states(&failure.id, &bad.cut, tried) {
                    failure.differences = tree::differences(&is, &wanted);
                    candidates = likely(&self.first.left, &tree::differing(&is, &wanted));
                }
            }
            failure.advice = match failure.missing {
                Some(_) => None,
                None if time.is_over() => {
                    Some("there was no time to look for the missing sync".into())
                }
                None => Some(NO_SYNC_HELPS.to_owned()),
            };
        }
    }

    /// What comes of a sync: of two runs, where the first is clean, since what a program does is
    /// often a matter of chance. One run tells whether anything helps at all.
    fn closed(&self, closing: &Closing, time: &Time<'_>) -> Option<Closed> {
        let first = self.tried(closing, time)?;
        if !first.is_clean() || *closing == Closing::Everything {
            return Some(first);
        }
        let mut second = self.tried(closing, time)?;
        second.states += first.states;
        Some(second)
    }

    /// Runs the program with a sync; nothing where the time was over before that was done.
    fn tried(&self, closing: &Closing, time: &Time<'_>) -> Option<Closed> {
        let number = self.runs.get() + 1;
        self.runs.set(number);
        let look = matches!(self.laboratory.check, Check::Neighbours(_));
        let before = Before {
            make: Some(closing.clone()),
            look,
        };
        let mut run = self
            .bench
            .run(number, self.base, &before, || time.is_over())
            .ok()?;
        let own = Check::Neighbours(std::mem::take(&mut run.trees));
        let dir = self.laboratory.dir.join(format!("closing-{number}"));
        std::fs::create_dir(&dir).ok()?;
        let laboratory = Laboratory {
            dir: &dir,
            check: if look { &own } else { self.laboratory.check },
            store: self.laboratory.store.clone(),
            conditions: self.laboratory.conditions.clone(),
            ..*self.laboratory
        };
        let cuts = Cuts::new(&run.log, self.bench.voice(), 1).only(breaks_a_promise);
        let cuts = cuts.take(CLOSING_STATES);
        let begun = Instant::now();
        let mut found = Found::default();
        let searched = laboratory.search(&run.log, cuts, |judged| {
            judged.into_iter().for_each(|j| found.hear(j));
            let has_time = begun.elapsed() < CLOSING_TIME && !time.is_over();
            found.bad() == 0 && found.failed.is_none() && has_time
        });
        let fine = searched.is_ok() && found.failed.is_none() && !time.is_over();
        fine.then(|| Closed {
            states: found.states,
            bad: found.bad(),
            log: run.log,
        })
    }

    /// What lies in the state, and in the one behind the same acknowledgement with a sync made.
    fn states(&self, id: &str, bad: &Cut, closed: &Closed) -> Option<(Tree, Tree)> {
        let voice = self.bench.voice();
        let lines = self.first.log.lines(voice, bad.at).count();
        let end = closed.log.ops.len();
        let (line, _) = closed.log.lines(voice, end).nth(lines.checked_sub(1)?)?;
        let good = Cut {
            at: line + 1,
            moment: Moment::Said,
            reached: Reached::Nothing,
        };
        let is = self.look(&format!("{id}-bad"), &self.first.log, bad)?;
        let wanted = self.look(&format!("{id}-good"), &closed.log, &good)?;
        Some((is, wanted))
    }

    /// What lies in a state, which is looked at in a folder of this name.
    fn look(&self, name: &str, log: &Log, cut: &Cut) -> Option<Tree> {
        self.laboratory.look(&format!("look-{name}"), log, cut).ok()
    }
}

/// The syncs to be tried, the most likely one last: of the folders and the files that differ, and
/// then of all others.
fn likely(all: &[Closing], differing: &[String]) -> Vec<Closing> {
    let folders = differing.iter().filter_map(|path| Path::new(path).parent());
    let folders: Vec<&Path> = folders.collect();
    let mut likely: Vec<Closing> = all.to_vec();
    likely.sort_by_key(|closing| rank(closing, &folders, differing));
    likely.reverse();
    likely
}

/// How early a sync is tried; the least is the most likely one.
fn rank(closing: &Closing, folders: &[&Path], differing: &[String]) -> (u8, Option<usize>) {
    match closing {
        Closing::Folder(path) if folders.contains(&path.as_path()) => {
            (0, folders.iter().position(|f| f == path))
        }
        Closing::File(path) if differing.iter().any(|d| Path::new(d) == path) => (1, None),
        Closing::Folders => (2, None),
        Closing::Files => (3, None),
        Closing::Folder(_) => (4, None),
        Closing::File(_) => (5, None),
        // It is not among them: it was the first that was tried.
        Closing::Everything => (6, None),
    }
}

/// Whether a cut is one behind an acknowledgement that a sync before it could have made harmless.
fn breaks_a_promise(cut: &Cut) -> bool {
    let plain = matches!(cut.reached, Reached::Nothing | Reached::Everything);
    cut.moment == Moment::Said && plain
}

const NO_PROMISE: &str =
    "it is not bad right behind an acknowledgement: what was under way then is \
    not atomic, or in an order that does not hold; no sync before an acknowledgement can help";
const NO_SYNC_HELPS: &str = "no sync before the acknowledgement helps, not even syncfs: the disk \
    does not keep what it flushes, or the check wants something else";

fn missing(closing: &Closing, states: u64) -> String {
    format!(
        "{} before the acknowledgement. The command was run again with this call: no state behind \
         an acknowledgement is bad ({} looked at)",
        closing.words(),
        counted(states, "state")
    )
}
