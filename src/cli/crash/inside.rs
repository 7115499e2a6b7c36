//! The laboratory at work, in its namespaces.

use super::{Args, Budget, NOTHING};
use crate::crash::bench::{Bench, Run};
use crate::crash::disk::Faults;
use crate::crash::fs::Plan;
use crate::crash::judge::{Check, Verdict};
use crate::crash::search::{Judged, Laboratory};
use crate::crash::victim::{self, Ending};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use synclater_model::crash::cuts::{Cut, Cuts, Moment, Reached};
use synclater_model::crash::log::{Image, Log, Mark, Op, Voice};
use synclater_model::crash::store::Store;
use synclater_model::report::crash::{
    complexity, kind_of, likeness, reached_words, CrashReport, Failure, KindRow,
};
use synclater_model::report::message::Trouble;
use synclater_model::report::number::{count, seconds};
use synclater_sys::signal::{Inherited, Signals};

/// The file by which the outer process says that it is to end.
const STOP: &str = "stop";
/// Failures that are told apart.
const FAILURES_MAX: usize = 20;
/// Failures for which the missing sync is looked for.
const CLOSED_MAX: usize = 3;
/// States by which a sync is judged, and how long that may take.
const CLOSING_STATES: usize = 60;
const CLOSING_TIME: Duration = Duration::from_secs(4);

/// Says that it is to end.
pub fn stop(dir: &Path) {
    let _ = std::fs::write(dir.join(STOP), "");
}

/// Whether somebody wants an end.
struct Stop<'a> {
    signals: Signals,
    dir: &'a Path,
    wanted: bool,
}

impl Stop<'_> {
    fn is_wanted(&mut self) -> bool {
        while let Some(signal) = self.signals.next() {
            self.wanted |= signal.ends();
        }
        self.wanted |= self.dir.join(STOP).exists();
        self.wanted
    }
}

/// One way in which it fails.
struct Bad {
    cut: Cut,
    said: String,
    states: u64,
}

/// What the search has found.
#[derive(Default)]
struct Found {
    states: u64,
    kinds: BTreeMap<&'static str, (u64, u64)>,
    bad: BTreeMap<String, Bad>,
    /// The check itself failed.
    failed: Option<String>,
}

impl Found {
    fn hear(&mut self, judged: Judged) {
        self.states += 1;
        let kind = self.kinds.entry(kind_of(&judged.cut)).or_default();
        kind.0 += 1;
        match judged.verdict {
            Verdict::Good => {}
            Verdict::Failed(why) => self.failed = Some(why),
            Verdict::Bad(said) => {
                kind.1 += 1;
                self.note(judged.cut, said);
            }
        }
    }

    fn note(&mut self, cut: Cut, said: String) {
        let mut like = likeness(&said);
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

    fn bad(&self) -> u64 {
        self.kinds.values().map(|(_, bad)| bad).sum()
    }
}

fn plan(args: &Args) -> Plan {
    let words = args.mkfs.as_deref().unwrap_or("").split_whitespace();
    Plan {
        kind: args.fs,
        size: args.size.unwrap_or(args.fs.usual_size()),
        sector: args.sector.parse().unwrap_or(4096),
        mkfs: words.map(str::to_owned).collect(),
        options: args.options.clone(),
    }
}

/// Does all of it; the exit status.
///
/// # Errors
/// A [`Trouble`] where the laboratory does not work.
pub fn run(args: &Args, dir: &Path, inherited: Inherited) -> anyhow::Result<i32> {
    let signals = Signals::take()?;
    let mut stop = Stop {
        signals,
        dir,
        wanted: false,
    };
    let lab = dir.join("lab");
    std::fs::create_dir(&lab)?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("synclater", &lab, "tmpfs", flags, None)?;
    let plan = plan(args);
    let victim = victim::Plan {
        words: args.command.clone(),
        until: args.until.clone(),
        ack_fd: args.ack_fd,
        patience: args.for_,
        inherited,
    };
    let store = Arc::new(RwLock::new(Store::new(plan.sector as usize)));
    let bench = Bench {
        plan: &plan,
        dir: &lab,
        store: store.clone(),
        victim: &victim,
        faults: Faults {
            lies: args.lies,
            flush_takes: args.flush_takes.unwrap_or_default(),
            seed: args.seed,
            ..Faults::default()
        },
    };
    let progress = Progress::new(args);
    progress.say("making the disk");
    let base = bench.prepare(args.setup.as_deref())?;
    progress.say("running the command");
    let run = bench.run(0, &base, None, || stop.is_wanted())?;
    starts(&run)?;
    let laboratory = Laboratory {
        plan: &plan,
        check: &Check::Shell(args.check.clone()),
        patience: args.patience,
        voice: bench.voice(),
        dir: &lab,
        store,
        workers: std::thread::available_parallelism().map_or(1, |n| n.get()),
        inherited: &inherited,
    };
    let begun = Instant::now();
    let mut found = Found::default();
    let mut cuts = Cuts::new(&run.log, args.seed);
    let mut complete = true;
    laboratory.search(&run.log, &mut cuts, |judged| {
        judged.into_iter().for_each(|j| found.hear(j));
        progress.states(&found, begun.elapsed());
        let over = match args.budget {
            Budget::Time(time) => begun.elapsed() >= time,
            Budget::States(states) => found.states >= states,
        };
        complete &= !over;
        !over && found.failed.is_none() && !stop.is_wanted()
    })?;
    complete &= !stop.wanted;
    let took = begun.elapsed();
    if let Some(why) = &found.failed {
        return Err(check_failed(why).into());
    }
    let made = found.states + cuts.same;
    drop(cuts);
    let mut report = report(args, &run, &found, bench.voice());
    (report.cuts, report.complete, report.seconds) = (made, complete, took.as_secs_f64());
    if !args.no_rerun {
        close(
            &bench,
            &laboratory,
            &base,
            &run,
            &mut report,
            &progress,
            &mut stop,
        );
    }
    progress.end();
    super::super::print(&if args.json {
        report.to_json()
    } else {
        report.render()
    })?;
    Ok(i32::from(report.bad > 0))
}

/// The program has to have run.
fn starts(run: &Run) -> Result<(), Trouble> {
    let told = |status: i32, why: &str| {
        let said = run.log.said(Voice::Err, run.log.ops.len());
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        let why = match said.is_empty() {
            true => why.to_owned(),
            false => format!("{why}: {said}"),
        };
        let what = format!("the command ended with status {status}");
        let try_ = "run it by hand in an empty folder; `--setup` makes what it needs";
        Trouble::new(what, why, try_, "no power was cut; nothing is left")
    };
    match run.ending {
        Ending::Status(status @ (126 | 127)) => Err(told(status, "it could not be started")),
        Ending::Status(125) => Err(told(125, "synclater could not run it")),
        _ => Ok(()),
    }
}

fn check_failed(why: &str) -> Trouble {
    Trouble::new(
        "the check itself failed",
        why.to_owned(),
        "it ends with 0 for a good state and 1 for a bad one; run it by hand",
        NOTHING,
    )
}

/// What it was about to do when the power was cut.
fn last_words(log: &Log, cut: &Cut, voice: Voice) -> Option<String> {
    log.ops[..cut.at].iter().rev().find_map(|op| match op {
        Op::Mark(Mark::Line(v, line)) if *v == voice => {
            Some(String::from_utf8_lossy(line).into_owned())
        }
        _ => None,
    })
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
    synclater_model::report::text::shown(&format!("{when}, {words}."))
}

fn report(args: &Args, run: &Run, found: &Found, voice: Voice) -> CrashReport {
    let log = &run.log;
    let number = |is: fn(&Op) -> bool| log.ops.iter().filter(|op| is(op)).count() as u64;
    let lines = log.said(voice, log.ops.len());
    let mut bad: Vec<&Bad> = found.bad.values().collect();
    bad.sort_by_key(|b| complexity(&b.cut));
    let failure = |(k, bad): (usize, &&Bad)| Failure {
        id: format!("F{}", k + 1),
        after: last_words(log, &bad.cut, voice),
        missing: None,
        sentence: sentence(log, &bad.cut, voice),
        said: bad.said.clone(),
        states: bad.states,
        replay: None,
    };
    CrashReport {
        version: CrashReport::VERSION,
        fs: args.fs.name().into(),
        until: args.until.clone(),
        command: args
            .command
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect(),
        status: match run.ending {
            Ending::Status(status) => Some(status),
            Ending::TooLong | Ending::Stopped => None,
        },
        acknowledged: lines.iter().filter(|b| **b == b'\n').count() as u64,
        writes: number(|op| matches!(op, Op::Write { .. })),
        flushes: number(|op| matches!(op, Op::Flush | Op::FlushOfNothing)),
        cuts: 0,
        states: found.states,
        bad: found.bad(),
        kinds: { found.kinds.iter() }
            .map(|(kind, (states, bad))| KindRow {
                kind: (*kind).to_owned(),
                states: *states,
                bad: *bad,
            })
            .collect(),
        failures: bad.iter().enumerate().map(failure).collect(),
        complete: true,
        seconds: 0.0,
    }
}

/// Looks for the sync that would have closed each failure.
fn close(
    bench: &Bench<'_>,
    laboratory: &Laboratory<'_>,
    base: &Image,
    first: &Run,
    report: &mut CrashReport,
    progress: &Progress,
    stop: &mut Stop<'_>,
) {
    let mut number = 0;
    let mut closers: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for failure in report.failures.iter_mut().take(CLOSED_MAX) {
        let like = likeness(&failure.said);
        for (k, closing) in first.left.iter().enumerate() {
            if stop.is_wanted() {
                return;
            }
            progress.say(&format!("{}: would {} help?", failure.id, closing.words()));
            let judged = closers.entry(k).or_insert_with(|| {
                number += 1;
                tried(bench, laboratory, base, closing, number, &like).unwrap_or((0, 1))
            });
            if let (states @ 1.., 0) = *judged {
                failure.missing = Some(format!(
                    "{} before it was acknowledged: with that made, none of {} states of another \
                     run is bad",
                    closing.words(),
                    count(states)
                ));
                break;
            }
        }
    }
}

/// Runs the program with a sync; how many states were looked at, and how many are bad.
fn tried(
    bench: &Bench<'_>,
    laboratory: &Laboratory<'_>,
    base: &Image,
    closing: &crate::crash::closing::Closing,
    number: usize,
    _like: &str,
) -> Option<(u64, u64)> {
    let run = bench.run(number, base, Some(closing), || false).ok()?;
    let dir = laboratory.dir.join(format!("closing-{number}"));
    std::fs::create_dir(&dir).ok()?;
    let laboratory = Laboratory {
        dir: &dir,
        store: laboratory.store.clone(),
        ..*laboratory
    };
    let telling = |(cut, _): &(Cut, Image)| {
        cut.moment == Moment::Said && matches!(cut.reached, Reached::Nothing | Reached::Everything)
    };
    let cuts = Cuts::new(&run.log, 1)
        .take(20 * CLOSING_STATES)
        .filter(telling);
    let begun = Instant::now();
    let mut found = Found::default();
    let searched = laboratory.search(&run.log, cuts.take(CLOSING_STATES), |judged| {
        judged.into_iter().for_each(|j| found.hear(j));
        found.bad() == 0 && found.failed.is_none() && begun.elapsed() < CLOSING_TIME
    });
    let fine = searched.is_ok() && found.failed.is_none();
    fine.then(|| (found.states, found.bad()))
}

/// What is going on, on a terminal.
struct Progress {
    bar: Option<indicatif::ProgressBar>,
    budget: Budget,
}

impl Progress {
    fn new(args: &Args) -> Progress {
        let shown = !args.quiet && std::io::stderr().is_terminal();
        Progress {
            bar: shown.then(|| {
                let bar = indicatif::ProgressBar::new_spinner();
                bar.enable_steady_tick(Duration::from_millis(200));
                bar
            }),
            budget: args.budget,
        }
    }

    fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    fn states(&self, found: &Found, elapsed: Duration) {
        if let Some(bar) = &self.bar {
            let of = match self.budget {
                Budget::Time(time) => {
                    let (is, of) = (seconds(elapsed.as_secs_f64()), seconds(time.as_secs_f64()));
                    format!("{is} of {of}")
                }
                Budget::States(states) => format!("of {}", count(states)),
            };
            let (states, bad) = (count(found.states), count(found.bad()));
            bar.set_message(format!("{states} states, {bad} bad; {of}"));
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
