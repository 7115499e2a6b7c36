//! The sync that would have closed a failure, found by making it; and what is not there without it.

use super::found::{Bad, Found};
use super::progress::Progress;
use super::stop::Stop;
use crate::crash::bench::{Before, Bench, Run};
use crate::crash::closing::Closing;
use crate::crash::fs::{Kind, Plan};
use crate::crash::judge::Check;
use crate::crash::search::Laboratory;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use synclater_powercut::cuts::{Cut, Cuts, Moment, Reached};
use synclater_powercut::log::{Image, Log};
use synclater_powercut::report::{gist, CrashReport, Failure};
use synclater_powercut::tree::{self, Tree};
use synclater_text::number::{count, counted};

/// Failures for which it is looked for.
const CLOSED_MAX: usize = 3;
/// States by which a sync is judged, and how long that may take.
const CLOSING_STATES: usize = 40;
const CLOSING_TIME: Duration = Duration::from_secs(6);
/// States that are judged with the sync that is named, of every kind of cut.
const REMAINING_STATES: usize = 100;
/// How long all of it may take.
const ALL_TIME: Duration = Duration::from_secs(60);

/// A run with a sync that was made before each acknowledgement, and what came of it.
struct Closed {
    log: Log,
    check: Check,
    states: u64,
    bad: u64,
    /// Of these it is not known whether they are bad.
    flaky: u64,
}

impl Closed {
    fn is_clean(&self) -> bool {
        self.states > 0 && self.bad == 0 && self.flaky == 0
    }
}

/// What came of each sync that was tried, where the failures were found.
type Tries = HashMap<Closing, Option<Closed>>;

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

/// What became of a sync on the other file systems.
enum Elsewhere {
    /// It leaves no state bad on these, of so many that were looked at; the others could not be
    /// tried.
    Holds {
        on: Vec<&'static str>,
        untried: Vec<&'static str>,
        states: u64,
    },
    /// On this one states stay bad.
    Fails(&'static str),
}

/// A sync that helps where the failure was found, and where it does not.
struct HereAlone {
    closing: Closing,
    fails_on: &'static str,
}

/// Looks for the missing syncs.
pub struct Search<'a> {
    setting: Setting<'a>,
    progress: &'a Progress,
    /// Disks before the run, by their file system; `None` where one cannot be made.
    bases: RefCell<HashMap<&'static str, Option<Image>>>,
    /// Further runs.
    runs: Cell<usize>,
}

/// What all runs of a search have in common.
pub struct Setting<'a> {
    /// The runs.
    pub bench: &'a Bench<'a>,
    /// How states are judged.
    pub laboratory: &'a Laboratory<'a>,
    /// The disk before the first run.
    pub base: &'a Image,
    /// The first run.
    pub first: &'a Run,
    /// The other file systems.
    pub others: &'a [Plan],
    /// What `--setup` names.
    pub set_up: Option<&'a OsStr>,
}

impl<'a> Search<'a> {
    /// Behind the first run.
    pub fn new(setting: Setting<'a>, progress: &'a Progress) -> Search<'a> {
        Search {
            setting,
            progress,
            bases: RefCell::default(),
            runs: Cell::new(0),
        }
    }

    /// Looks for the sync that would have closed each failure.
    pub fn explain(&self, bad: &[Bad], report: &mut CrashReport, stop: &Stop<'_>) {
        let time = Time {
            stop,
            end: Instant::now() + ALL_TIME,
        };
        let mut tried = Tries::new();
        let failures = report.failures.iter_mut().zip(bad).take(CLOSED_MAX);
        for (failure, bad) in failures {
            if !breaks_a_promise(&bad.cut) {
                failure.advice = Some(NO_PROMISE.to_owned());
                continue;
            }
            self.explain_one(failure, bad, &mut tried, &time);
        }
    }

    fn explain_one(&self, failure: &mut Failure, bad: &Bad, tried: &mut Tries, time: &Time<'_>) {
        // Where everything does not help, no sync does.
        let mut candidates = vec![Closing::Everything];
        let mut here_alone: Option<HereAlone> = None;
        while let Some(closing) = candidates.pop().filter(|_| !time.is_over()) {
            let words = format!("{}: would {} help?", failure.id, closing.words());
            self.progress.say(&words);
            let closed = tried.entry(closing.clone());
            let closed = closed.or_insert_with(|| self.closed(&closing, time));
            let Some(closed) = closed.as_ref().filter(|c| c.is_clean()) else {
                continue;
            };
            if closing == Closing::Everything {
                failure.missing = Some(missing(&closing, closed.states, &[self.here()]));
                if let Some((is, wanted)) = self.states(&failure.id, &bad.cut, closed) {
                    failure.differences = tree::differences(&is, &wanted);
                    candidates = likely(&self.setting.first.left, &tree::differing(&is, &wanted));
                }
                continue;
            }
            match self.elsewhere(&failure.id, &closing, time) {
                Elsewhere::Holds {
                    on,
                    untried,
                    states,
                } => {
                    let on = [&[self.here()][..], &on].concat();
                    let mut words = missing(&closing, closed.states + states, &on);
                    if !untried.is_empty() {
                        let _ = write!(words, "; it could not be tried on {}", listed(&untried));
                    }
                    failure.missing = Some(words);
                    failure.remaining = self.remaining(closed, time).map(remaining);
                    here_alone = None;
                    break;
                }
                Elsewhere::Fails(fails_on) => {
                    here_alone.get_or_insert(HereAlone { closing, fails_on });
                }
            }
        }
        failure.advice = match (&failure.missing, here_alone) {
            (_, Some(alone)) => Some(alone.words(self.here())),
            (Some(_), None) => None,
            (None, None) if time.is_over() => {
                Some("there was no time to look for the missing sync".into())
            }
            (None, None) => Some(NO_SYNC_HELPS.to_owned()),
        };
    }

    /// The file system on which the failures were found.
    fn here(&self) -> &'static str {
        self.setting.bench.plan.kind.name()
    }

    /// Whether a sync that helps here helps on the other file systems, too: here it may be another
    /// call that makes durable what is missing, because this file system has one log for all. It
    /// could not be tried where there is no time, the file system cannot be made, or the program
    /// does not do there what it has done here.
    fn elsewhere(&self, id: &str, closing: &Closing, time: &Time<'_>) -> Elsewhere {
        let (mut on, mut untried, mut states) = (Vec::new(), Vec::new(), 0);
        for plan in self.setting.others {
            let name = plan.kind.name();
            self.progress
                .say(&format!("{id}: would {} help on {name}?", closing.words()));
            match self.tried_on(plan, closing, time) {
                Some(closed) if closed.bad > 0 => return Elsewhere::Fails(name),
                Some(closed) if closed.is_clean() => {
                    on.push(name);
                    states += closed.states;
                }
                _ => untried.push(name),
            }
        }
        Elsewhere::Holds {
            on,
            untried,
            states,
        }
    }

    /// Runs the program with a sync on another file system.
    fn tried_on(&self, plan: &Plan, closing: &Closing, time: &Time<'_>) -> Option<Closed> {
        let bench = Bench {
            plan,
            store: self.setting.bench.store.clone(),
            ..*self.setting.bench
        };
        let mut bases = self.bases.borrow_mut();
        let base = bases.entry(plan.kind.name());
        let base =
            base.or_insert_with(|| bench.prepare(self.setting.set_up, || time.is_over()).ok());
        let base = base.clone()?;
        drop(bases);
        self.tried(&bench, &base, closing, time)
    }

    /// What comes of a sync: of two runs, where the first is clean, since what a program does is
    /// often a matter of chance. One run tells whether anything helps at all.
    fn closed(&self, closing: &Closing, time: &Time<'_>) -> Option<Closed> {
        let first = self.tried(self.setting.bench, self.setting.base, closing, time)?;
        if !first.is_clean() || *closing == Closing::Everything {
            return Some(first);
        }
        let mut second = self.tried(self.setting.bench, self.setting.base, closing, time)?;
        second.states += first.states;
        Some(second)
    }

    /// Runs the program with a sync; nothing where the time was over before that was done.
    fn tried(
        &self,
        bench: &Bench<'_>,
        base: &Image,
        closing: &Closing,
        time: &Time<'_>,
    ) -> Option<Closed> {
        let before = Before {
            make: Some(closing.clone()),
            look: matches!(self.setting.laboratory.check, Check::Neighbours(_)),
        };
        let number = self.next_number();
        let run = bench.run(number, base, &before, || time.is_over());
        let mut run = run.ok().filter(|run| self.is_like_the_first(run))?;
        let own = Check::Neighbours(std::mem::take(&mut run.trees));
        let check = if before.look {
            own
        } else {
            self.setting.laboratory.check.clone()
        };
        let cuts = Cuts::new(&run.log, self.setting.bench.voice(), 1).only(breaks_a_promise);
        let cuts = cuts.take(CLOSING_STATES);
        let goes_on = |found: &Found| found.bad() == 0;
        let found = self.judged(bench.plan, (&run.log, &check), cuts, goes_on, time)?;
        Some(Closed {
            states: found.states,
            bad: found.bad(),
            flaky: found.flaky(),
            log: run.log,
            check,
        })
    }

    /// Whether a run ended as the first one did, and has acknowledged something if that had: on a
    /// disk where the program cannot work no state is bad.
    fn is_like_the_first(&self, run: &Run) -> bool {
        let first = self.setting.first;
        run.ending == first.ending && (self.is_silent(first) || !self.is_silent(run))
    }

    fn is_silent(&self, run: &Run) -> bool {
        let log = &run.log;
        log.lines(self.setting.bench.voice(), log.ops.len())
            .next()
            .is_none()
    }

    /// What is still bad with a sync, among cuts of every kind: of so many states so many, and what
    /// the check says of one.
    fn remaining(&self, closed: &Closed, time: &Time<'_>) -> Option<(u64, u64, String)> {
        let cuts = Cuts::new(&closed.log, self.setting.bench.voice(), 1).take(REMAINING_STATES);
        let of = (&closed.log, &closed.check);
        let found = self.judged(self.setting.bench.plan, of, cuts, |_| true, time)?;
        let said = found.failures().first()?.said.clone();
        Some((found.bad(), found.states, said))
    }

    /// Judges states of a run, as long as `goes_on` says so and there is time; nothing where the
    /// check failed, or no time was left.
    fn judged(
        &self,
        plan: &Plan,
        (log, check): (&Log, &Check),
        cuts: impl Iterator<Item = (Cut, Image)> + Send,
        goes_on: impl Fn(&Found) -> bool,
        time: &Time<'_>,
    ) -> Option<Found> {
        let dir = self.setting.laboratory.dir;
        let dir = dir.join(format!("closing-{}", self.next_number()));
        std::fs::create_dir(&dir).ok()?;
        let laboratory = Laboratory {
            dir: &dir,
            plan,
            workers: workers(plan.kind),
            check,
            store: self.setting.laboratory.store.clone(),
            conditions: self.setting.laboratory.conditions.clone(),
            ..*self.setting.laboratory
        };
        let begun = Instant::now();
        let mut found = Found::default();
        let searched = laboratory.search(log, cuts, |judged| {
            judged.into_iter().for_each(|j| found.hear(j));
            let has_time = begun.elapsed() < CLOSING_TIME && !time.is_over();
            found.failed.is_none() && has_time && goes_on(&found)
        });
        let fine = searched.is_ok() && found.failed.is_none() && !time.is_over();
        fine.then_some(found)
    }

    fn next_number(&self) -> usize {
        self.runs.set(self.runs.get() + 1);
        self.runs.get()
    }

    /// What lies in the state, and in the one behind the same acknowledgement with a sync made.
    fn states(&self, id: &str, bad: &Cut, closed: &Closed) -> Option<(Tree, Tree)> {
        let voice = self.setting.bench.voice();
        let lines = self.setting.first.log.lines(voice, bad.at).count();
        let end = closed.log.ops.len();
        let (line, _) = closed.log.lines(voice, end).nth(lines.checked_sub(1)?)?;
        let good = Cut {
            at: line + 1,
            moment: Moment::Said,
            reached: Reached::Nothing,
        };
        let is = self.look(&format!("{id}-bad"), &self.setting.first.log, bad)?;
        let wanted = self.look(&format!("{id}-good"), &closed.log, &good)?;
        Some((is, wanted))
    }

    /// What lies in a state, which is looked at in a folder of this name.
    fn look(&self, name: &str, log: &Log, cut: &Cut) -> Option<Tree> {
        self.setting
            .laboratory
            .look(&format!("look-{name}"), log, cut)
            .ok()
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

fn missing(closing: &Closing, states: u64, on: &[&str]) -> String {
    format!(
        "{} before the acknowledgement. The command was run again with this call on {}: no state \
         behind an acknowledgement is bad ({} looked at)",
        closing.words(),
        listed(on),
        counted(states, "state")
    )
}

fn remaining((bad, states, said): (u64, u64, String)) -> String {
    format!(
        "{} of {} are bad with it, too: {}",
        count(bad),
        counted(states, "state"),
        gist(&said)
    )
}

impl HereAlone {
    fn words(&self, here: &str) -> String {
        format!(
            "on {here} {} would do, and on {} it does not",
            self.closing.words(),
            self.fails_on
        )
    }
}

/// Names, the last one behind an "and".
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// How many states are looked at at once. Of btrfs one: the kernel takes two copies of one disk for
/// each other now and then, and says EEXIST or EINVAL of one that can be mounted (Linux 6.18: 1 of
/// 12,000 states, and 3 of 400 in another run).
pub fn workers(fs: Kind) -> usize {
    match fs {
        Kind::Btrfs => 1,
        Kind::Ext4 | Kind::Xfs => std::thread::available_parallelism().map_or(1, |n| n.get()),
    }
}
