//! The laboratory at work, in its namespaces.

use super::found::{last_of_stderr, Bad, Found};
use super::missing::{workers, Search, Setting};
use super::progress::Progress;
use super::stop::Stop;
use super::{told, Args, Budget, Judge, NOTHING, WRITER};
use crate::cli::whole_file::WholeFile;
use crate::crash::bench::{Before, Bench, Run};
use crate::crash::disk::recorded::Faults;
use crate::crash::fs::{Kind, Plan};
use crate::crash::judge::{Check, Conditions, Verdict};
use crate::crash::kept::{About, Shelf};
use crate::crash::search::Laboratory;
use crate::crash::victim::{self, Ending};
use crate::voice;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use synclater_powercut::cuts::{Cut, Cuts};
use synclater_powercut::log::{Image, Voice};
use synclater_powercut::report::{gist, page, CrashReport, Line};
use synclater_powercut::store::Store;
use synclater_sys::lock::read;
use synclater_sys::signal::{Inherited, Signals};
use synclater_text::message::Trouble;
use synclater_text::number::counted;

/// The writer that is brought along: src/crash/writer/prefix.c.
const PREFIX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/prefix"));

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

/// The file systems that were not asked for, as they usually are.
fn others(args: &Args) -> Vec<Plan> {
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != args.fs);
    let plan = |kind: Kind| Plan {
        kind,
        size: args.size.unwrap_or(0).max(kind.usual_size()),
        sector: args.sector.parse().unwrap_or(4096),
        mkfs: Vec::new(),
        options: String::new(),
    };
    kinds.map(plan).collect()
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
    // What is named by a path is meant from here, not from the laboratory's folder.
    let program = Path::new(&words[0]);
    if program.is_relative() && program.components().count() > 1 && program.exists() {
        words[0] = std::path::absolute(program)?.into();
    }
    Ok(words)
}

/// Does all of it; the exit status.
///
/// # Errors
/// A [`Trouble`] where the laboratory does not work.
pub fn run(args: &Args, dir: &Path, inherited: Inherited) -> anyhow::Result<i32> {
    let stop = Stop::new(Signals::take()?, dir);
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
    let place = lab.join("fs");
    let bench = Bench {
        plan: &plan,
        dir: &lab,
        place: &place,
        store: store.clone(),
        victim: &victim,
        faults: faults(args),
    };
    let progress = Progress::new(args.quiet, args.budget);
    progress.say("making the disk");
    let base = bench.prepare(args.setup.as_deref(), || stop.is_wanted())?;
    progress.say("running the command");
    let mut run = bench.run(0, &base, &before(args), || stop.is_wanted())?;
    starts(args, &run, bench.voice())?;
    let laboratory = Laboratory {
        plan: &plan,
        check: &check(args, &mut run),
        conditions: conditions(args, inherited)?,
        voice: bench.voice(),
        dir: &lab,
        place: &place,
        store,
        fsck: args.fsck,
        workers: workers(args.fs),
    };
    let tried = try_check(&run, &laboratory, &base, &progress)?;
    let (found, mut report) = search(args, &run, &laboratory, &progress, &stop)?;
    tried.tell(&mut report.notes);
    progress.searched();
    let bad = found.failures();
    let syncs = told::syncs(&run);
    told::explain(&run, &syncs, &bad, &mut report);
    if !args.no_rerun && found.failed.is_none() {
        let setting = Setting {
            bench: &Bench {
                victim: &victim.with_patience_after(&run.log.times_ns),
                store: bench.store.clone(),
                ..bench
            },
            laboratory: &laboratory,
            base: &base,
            first: &run,
            others: &others(args),
            set_up: args.setup.as_deref(),
        };
        Search::new(setting, &progress).explain(&bad, &mut report, &stop);
    }
    keep(args, &run, (&found, &bad), &laboratory, &mut report);
    progress.end();
    let line = || told::line(&run.log, &syncs, bench.voice(), plan.sector, &found.places);
    tell(args, &report, page_file, line)?;
    match &found.failed {
        Some((_, why)) => Err(check_failed(why, &report).into()),
        None => Ok(status_of(&found, stop.was_wanted())),
    }
}

/// The exit status: whether a state is bad, and 125 where that is not known.
fn status_of(found: &Found, was_stopped: bool) -> i32 {
    match found.bad() {
        0 if was_stopped || found.flaky() > 0 => crate::cli::OURS,
        bad => i32::from(bad > 0),
    }
}

/// Prints the report, and writes the page where one is wanted.
fn tell(
    args: &Args,
    report: &CrashReport,
    page_file: Option<WholeFile>,
    line: impl FnOnce() -> Line,
) -> Result<(), Trouble> {
    voice::print(&if args.json {
        report.to_json()
    } else {
        report.render()
    })?;
    match page_file {
        Some(place) => place
            .write(&page::page(report, &line()))
            .map_err(|e| no_page(&e)),
        None => Ok(()),
    }
}

/// Empty folders of most systems, which nobody misses in a mount namespace of our own.
const EMPTY: [&str; 4] = ["/media", "/mnt", "/srv", "/opt"];

/// Whether other users can reach what lies in a folder: a server's, to which the program changes.
fn is_reached_by_others(dir: &Path) -> bool {
    dir.ancestors().all(lets_others_pass)
}

fn lets_others_pass(dir: &Path) -> bool {
    dir.metadata()
        .is_ok_and(|m| m.permissions().mode() & 1 != 0)
}

/// A folder for everything, in memory: below `dir`, unless others cannot reach that.
fn in_memory(dir: &Path) -> std::io::Result<PathBuf> {
    let own = dir.join("lab");
    let lab = if is_reached_by_others(dir) {
        own
    } else {
        empty_folder().unwrap_or(own)
    };
    if lab.starts_with(dir) {
        std::fs::create_dir(&lab)?;
    }
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("synclater", &lab, "tmpfs", flags, c"mode=0711")?;
    Ok(lab)
}

/// One of [`EMPTY`] that is empty, and that others can reach.
fn empty_folder() -> Option<PathBuf> {
    EMPTY
        .map(PathBuf::from)
        .into_iter()
        .find(|dir| is_empty(dir) && is_reached_by_others(dir))
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// What is done at each acknowledgement of the run that is looked at.
fn before(args: &Args) -> Before {
    Before {
        make: None,
        look: matches!(args.check, None | Some(Judge::Neighbours)),
    }
}

fn conditions(args: &Args, inherited: Inherited) -> std::io::Result<Conditions> {
    Ok(Conditions {
        patience: args.patience,
        cwd: std::env::current_dir()?,
        inherited,
    })
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
    stop: &Stop<'_>,
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
    let made = found.states + cuts.same;
    let mut report = found.report(args, run, laboratory.voice);
    report.complete = complete && !stop.was_wanted() && found.failed.is_none();
    (report.cuts, report.seconds) = (made, begun.elapsed().as_secs_f64());
    if stop.was_wanted() {
        report
            .notes
            .push("it was ended before its time; this is what it has".into());
    }
    Ok((found, report))
}

/// What a check has said of two disks that no power cut was on.
#[derive(Default)]
struct Tried {
    /// That it finds fault with what the command has left.
    finds_fault: Option<String>,
    /// That it finds no fault with what was there before the command.
    finds_none: Option<String>,
}

impl Tried {
    /// In front of what is known already, or behind it.
    fn tell(self, notes: &mut Vec<String>) {
        notes.splice(0..0, self.finds_fault);
        notes.extend(self.finds_none);
    }
}

/// Has the check judge the disk as the command has left it, and as it was before.
///
/// # Errors
/// A [`Trouble`] where the check itself fails on the first: it would on each state.
fn try_check(
    run: &Run,
    laboratory: &Laboratory<'_>,
    base: &Image,
    progress: &Progress,
) -> Result<Tried, Trouble> {
    let mut tried = Tried::default();
    if matches!(laboratory.check, Check::Neighbours(_)) {
        return Ok(tried);
    }
    progress.say("trying the check");
    let judge = |name, image| laboratory.judge_image(name, &run.log, image);
    match judge("clean", run.after.clone()).map_err(|e| no_look(&e))? {
        Verdict::Failed(why) | Verdict::Hangs(why) => return Err(check_fails_anyway(&why)),
        Verdict::Bad(words) => {
            let fault = "the check finds fault without any power cut too";
            tried.finds_fault = Some(match gist(&words) {
                "" => fault.to_owned(),
                gist => format!("{fault}: {gist}"),
            });
        }
        Verdict::Good | Verdict::Flaky(_) => {}
    }
    let lines = run.log.lines(laboratory.voice, run.log.ops.len()).count() as u64;
    if lines > 0 && judge("before", base.clone()).map_err(|e| no_look(&e))? == Verdict::Good {
        tried.finds_none = Some(format!(
            "the check has not shown that it can fail: with {} it calls the folder good as it was \
             before the command ran",
            counted(lines, "acknowledgement")
        ));
    }
    Ok(tried)
}

/// The name under which the state is kept on which the check failed.
const OF_CHECK: &str = "check";

/// Keeps the states that failed, for a look, and the one on which the check itself did.
fn keep(
    args: &Args,
    run: &Run,
    (found, bad): (&Found, &[Bad]),
    laboratory: &Laboratory<'_>,
    report: &mut CrashReport,
) {
    if bad.is_empty() && found.failed.is_none() {
        return;
    }
    let where_it_was = (laboratory.plan.sector, laboratory.place);
    let kept = Shelf::new().and_then(|mut shelf| {
        let store = read(&laboratory.store);
        let mut put = |about: About, cut: &Cut| {
            let said = run.log.said(laboratory.voice, cut.at);
            shelf.put(about, &run.log.state(cut), &store, &said)
        };
        if let Some((cut, why)) = &found.failed {
            let sentence = "the check itself failed on this state";
            report.check_failed_on = Some(put(
                about(args, where_it_was, OF_CHECK, sentence, why),
                cut,
            )?);
        }
        for (failure, bad) in report.failures.iter_mut().zip(bad) {
            let (sentence, said) = (&failure.sentence, &failure.said);
            let about = about(args, where_it_was, &failure.id, sentence, said);
            failure.replay = Some(put(about, &bad.cut)?);
        }
        Ok(())
    });
    if let Err(e) = kept {
        report
            .notes
            .push(format!("not every failure could be kept for --replay: {e}"));
    }
}

/// What is known of a state that is kept.
fn about(args: &Args, plan: (u32, &Path), id: &str, sentence: &str, said: &str) -> About {
    let (sector, place) = plan;
    About {
        id: id.to_owned(),
        fs: args.fs.name().into(),
        sector,
        options: args.options.clone(),
        sentence: sentence.to_owned(),
        said: said.to_owned(),
        check: args.check.as_ref().map(Judge::text).unwrap_or_default(),
        place: place.to_path_buf(),
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

/// The program has to have run: one that fails before it acknowledges anything, on a disk that does
/// not fail, is not what was to be looked at.
fn starts(args: &Args, run: &Run, voice: Voice) -> Result<(), Trouble> {
    let fails = args.fail_flush.is_some() || args.fail_write.is_some();
    let is_silent = run.log.said(voice, run.log.ops.len()).is_empty();
    let why = match run.ending {
        Ending::Status(126 | 127) => "it could not be started",
        Ending::Status(125) => "synclater could not run it",
        Ending::Status(1..) if is_silent && !fails => "it had acknowledged nothing then",
        _ => return Ok(()),
    };
    let what = format!("the command ended with status {}", run.ending.number());
    let why = match last_of_stderr(&run.log, 10) {
        said if said.is_empty() => why.to_owned(),
        said => format!("{why}: {said}"),
    };
    let try_ = if why.contains("No space left on device") {
        "a greater disk: --size 1G"
    } else {
        "run it by hand in an empty folder; `--setup` makes what it needs"
    };
    Err(Trouble::new(
        what,
        why,
        try_,
        "no power was cut; nothing is left",
    ))
}

fn no_look(e: &std::io::Error) -> Trouble {
    Trouble::new(
        "cannot look at a state",
        e.to_string(),
        "look at dmesg; does the check leave something running in the folder?",
        "the command was run and no more states are looked at; nothing is left",
    )
}

fn check_fails_anyway(why: &str) -> Trouble {
    Trouble::new(
        "the check itself failed on the disk as the command has left it",
        why.to_owned(),
        "it ends with 0 for a good folder and 1 for a bad one; try it by hand on a folder in which \
         the command has run",
        "the command was run, no power was cut; nothing is left",
    )
}

fn check_failed(why: &str, report: &CrashReport) -> Trouble {
    let look = report.check_failed_on.as_ref();
    let look = look.map_or(String::new(), |words| format!("; the state: {words}"));
    Trouble::new(
        "the check itself failed",
        why.to_owned(),
        format!("it ends with 0 for a good state and 1 for a bad one{look}"),
        "the command was run and no more states are looked at; above is what there is",
    )
}
