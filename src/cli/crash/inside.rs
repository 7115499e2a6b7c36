//! The laboratory at work, in its namespaces.

use super::found::Found;
use super::missing::Search;
use super::progress::Progress;
use super::{told, Args, Budget, Judge, NOTHING, WRITER};
use crate::cli::whole_file::WholeFile;
use crate::crash::bench::{Before, Bench, Run};
use crate::crash::disk::Faults;
use crate::crash::fs::Plan;
use crate::crash::judge::Check;
use crate::crash::kept::{About, Shelf};
use crate::crash::search::Laboratory;
use crate::crash::victim::{self, Ending};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use synclater_model::crash::cuts::Cuts;
use synclater_model::crash::log::Voice;
use synclater_model::crash::store::Store;
use synclater_model::report::crash::{page, CrashReport};
use synclater_model::report::message::Trouble;
use synclater_sys::signal::{Inherited, Signals};

/// The file by which the outer process says that it is to end.
const STOP: &str = "stop";
/// The writer that is brought along: src/crash/writer/prefix.c.
const PREFIX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/prefix"));

/// Says that it is to end.
pub fn stop(dir: &Path) {
    let _ = std::fs::write(dir.join(STOP), "");
}

/// Whether somebody wants an end.
pub struct Stop<'a> {
    signals: Signals,
    dir: &'a Path,
    wanted: bool,
}

impl Stop<'_> {
    /// Asks.
    pub fn is_wanted(&mut self) -> bool {
        while let Some(signal) = self.signals.next() {
            self.wanted |= signal.ends();
        }
        self.wanted |= self.dir.join(STOP).exists();
        self.wanted
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

fn faults(args: &Args) -> Faults {
    Faults {
        lies: args.lies,
        flush_fails: args.fail_flush,
        write_fails: args.fail_write,
        flush_takes: args.flush_takes.unwrap_or(Duration::ZERO),
        sometimes: args.flush_sometimes.unwrap_or((0.0, Duration::ZERO)),
        seed: args.seed,
    }
}

/// The command, with the writer that is brought along in its place in `lab`.
fn words(args: &Args, lab: &Path) -> std::io::Result<Vec<OsString>> {
    let mut words = args.words();
    if words[0] == WRITER {
        let file = lab.join("prefix");
        std::fs::write(&file, PREFIX)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
        words[0] = file.into();
    }
    Ok(words)
}

/// Does all of it; the exit status.
///
/// # Errors
/// A [`Trouble`] where the laboratory does not work.
pub fn run(args: &Args, dir: &Path, inherited: Inherited) -> anyhow::Result<i32> {
    let mut stop = Stop {
        signals: Signals::take()?,
        dir,
        wanted: false,
    };
    let page_file = args.html.as_deref().map(page_at).transpose()?;
    let lab = in_memory(dir)?;
    let plan = plan(args);
    let victim = victim::Plan {
        words: words(args, &lab)?,
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
        faults: faults(args),
    };
    let progress = Progress::new(args.quiet, args.budget);
    progress.say("making the disk");
    let base = bench.prepare(args.setup.as_deref())?;
    progress.say("running the command");
    let mut run = bench.run(0, &base, &before(args), || stop.is_wanted())?;
    starts(&run)?;
    let laboratory = Laboratory {
        plan: &plan,
        check: &check(args, &mut run),
        patience: args.patience,
        voice: bench.voice(),
        dir: &lab,
        store,
        fsck: args.fsck,
        workers: std::thread::available_parallelism().map_or(1, |n| n.get()),
        inherited: &inherited,
    };
    let (found, mut report) = search(args, &run, &laboratory, &progress, &mut stop)?;
    progress.searched();
    let bad = found.failures();
    let syncs = told::syncs(&run);
    told::explain(&run, &syncs, &bad, &mut report);
    if !args.no_rerun {
        let search = Search::new(&bench, &laboratory, &base, &run, &progress);
        search.explain(&bad, &mut report, &mut stop);
    }
    keep(args, &run, &bad, &laboratory, &mut report);
    progress.end();
    if let Some(place) = page_file {
        let line = told::line(&run.log, &syncs, bench.voice(), plan.sector, &found.places);
        place
            .write(&page::page(&report, &line))
            .map_err(|e| no_page(&e))?;
    }
    super::super::print(&match args.json {
        true => report.to_json(),
        false => report.render(),
    })?;
    Ok(i32::from(report.bad > 0))
}

/// A folder for everything, in memory.
fn in_memory(dir: &Path) -> std::io::Result<PathBuf> {
    let lab = dir.join("lab");
    std::fs::create_dir(&lab)?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("synclater", &lab, "tmpfs", flags, None)?;
    Ok(lab)
}

/// What is done at each acknowledgement of the run that is looked at.
fn before(args: &Args) -> Before {
    match args.check {
        None | Some(Judge::Neighbours) => Before::Look,
        Some(Judge::Shell(_) | Judge::Builtin(_)) => Before::Nothing,
    }
}

fn check(args: &Args, run: &mut Run) -> Check {
    match args.check.clone() {
        Some(Judge::Shell(line)) => Check::Shell(line),
        Some(Judge::Builtin(builtin)) => Check::Builtin(builtin),
        None | Some(Judge::Neighbours) => Check::Neighbours(std::mem::take(&mut run.trees)),
    }
}

/// Goes through the states; what was found, and the report of it.
fn search(
    args: &Args,
    run: &Run,
    laboratory: &Laboratory<'_>,
    progress: &Progress,
    stop: &mut Stop<'_>,
) -> anyhow::Result<(Found, CrashReport)> {
    let begun = Instant::now();
    let mut found = Found::default();
    let mut cuts = Cuts::new(&run.log, laboratory.voice, args.seed);
    let mut complete = true;
    laboratory
        .search(&run.log, &mut cuts, |judged| {
            judged.into_iter().for_each(|j| found.hear(j));
            progress.states(found.states, found.bad(), begun.elapsed());
            let over = match args.budget {
                Budget::Time(time) => begun.elapsed() >= time,
                Budget::States(states) => found.states >= states,
            };
            complete &= !over;
            !over && found.failed.is_none() && !stop.is_wanted()
        })
        .map_err(|e| no_look(&e))?;
    if let Some(why) = &found.failed {
        return Err(check_failed(why).into());
    }
    let made = found.states + cuts.same;
    let mut report = found.report(args, run, laboratory.voice);
    report.complete = complete && !stop.wanted;
    (report.cuts, report.seconds) = (made, begun.elapsed().as_secs_f64());
    if stop.wanted {
        report
            .notes
            .push("it was ended before its time; this is what it has".into());
    }
    Ok((found, report))
}

/// Keeps the states that failed, for a look.
fn keep(
    args: &Args,
    run: &Run,
    bad: &[super::found::Bad],
    laboratory: &Laboratory<'_>,
    report: &mut CrashReport,
) {
    if bad.is_empty() {
        return;
    }
    let check = args.check.as_ref().map(Judge::text).unwrap_or_default();
    let kept = Shelf::new().and_then(|mut shelf| {
        let store = laboratory
            .store
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        for (failure, bad) in report.failures.iter_mut().zip(bad) {
            let about = About {
                id: failure.id.clone(),
                fs: args.fs.name().into(),
                sector: laboratory.plan.sector,
                options: args.options.clone(),
                sentence: failure.sentence.clone(),
                said: failure.said.clone(),
                check: check.clone(),
            };
            let (image, cut) = (run.log.state(&bad.cut), bad.cut.at);
            let said = run.log.said(laboratory.voice, cut);
            failure.replay = Some(shelf.put(about, &image, &store, &said)?);
        }
        Ok(())
    });
    if let Err(e) = kept {
        report
            .notes
            .push(format!("not every failure could be kept for --replay: {e}"));
    }
}

fn page_at(path: &Path) -> Result<WholeFile, Trouble> {
    WholeFile::at(path, Path::new("/")).map_err(|e| {
        let what = format!("cannot write the page {}", path.display());
        let try_ = "name a file in a folder that is there";
        Trouble::new(what, e.to_string(), try_, NOTHING)
    })
}

fn no_page(e: &std::io::Error) -> Trouble {
    let try_ = "free space there, or name another file";
    Trouble::new(
        "cannot write the page",
        e.to_string(),
        try_,
        "nothing of it is left",
    )
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

fn no_look(e: &std::io::Error) -> Trouble {
    Trouble::new(
        "cannot look at a state",
        e.to_string(),
        "look at dmesg; does the check leave something running in the folder?",
        "the command was run and no more states are looked at; nothing is left",
    )
}

fn check_failed(why: &str) -> Trouble {
    Trouble::new(
        "the check itself failed",
        why.to_owned(),
        "it ends with 0 for a good state and 1 for a bad one; run it by hand",
        "the command was run and no more states are looked at; nothing is left",
    )
}
