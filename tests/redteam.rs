//! What others can do to the promise that everything is durable behind a status other than 125.
//!
//! A `scribe` in the session writes where it is told; mounts are made by the test, which is outside
//! of the session. What was acknowledged is looked for in a copy of the disk's image.

mod aborted;
mod boots;
mod broken;
mod descriptors;
mod dials;
mod flushes;
mod held;
mod judged;
mod keepers;
mod ledger;
mod model;
mod mounts;
mod numbers;
mod rings;
mod strangers;
mod told;
mod underway;
mod unreadable;
mod unseen;
mod watched;

use crate::harness::command::{clean, run};
use crate::harness::disk::{Disk, SlowDisk};
use crate::harness::victims::tool;
use crate::sessions::stage::{Running, Stage, SYNCLATER};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// `synclater run` with a report; what comes behind is the command.
fn session(stage: &Stage, options: &[&str]) -> Command {
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["run", "--quiet"]).args(stage.json());
    command.args(options).arg("--");
    command
}

/// A scribe in a session whose first request has been put off.
fn scribe(stage: &Stage, options: &[&str]) -> Running {
    let mut scribe = cold_scribe(stage, options, &[]);
    warm(stage, &mut scribe, &stage.work());
    scribe
}

/// A scribe in a session, with these words on its command line.
fn cold_scribe(stage: &Stage, options: &[&str], words: &[&Path]) -> Running {
    let mut command = session(stage, options);
    command.arg(tool("scribe")).args(words);
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    scribe
}

/// A scribe in a session whose ledger lies on a disk that takes its time, and which has asked for
/// its first entry there.
fn scribe_with_ledger_on(stage: &Stage, ledger: &SlowDisk, dial: &str) -> Running {
    let mut command = session(stage, &["--until", dial]);
    command
        .env("SYNCLATER_STATE_DIR", ledger.path())
        .arg(tool("scribe"));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    save(&mut scribe, &stage.work(), &["a"]);
    scribe
}

/// Whether a file in a ledger has this kind of name.
fn ledger_has(ledger: &SlowDisk, kind: &str) -> bool {
    let files = std::fs::read_dir(ledger.path()).expect("the ledger");
    let mut paths = files.flatten().map(|f| f.path());
    paths.any(|p| p.extension().is_some_and(|x| x == kind))
}

/// A scribe in a session that is, as a whole, in a mount namespace of its own, in which `disk` is
/// mounted, and `more` is done with it as "$1". With it comes what keeps the namespace: its end
/// would unmount what is mounted there, and so write all.
fn scribe_apart(stage: &Stage, disk: &Disk, more: &str) -> (Running, std::fs::File) {
    umount(disk.path());
    let script = format!("mount -o loop \"$0\" \"$1\" && {more} && shift && exec \"$@\"");
    let mut command = clean("unshare");
    command.args(["-m", "--propagation", "private"]);
    command.args(["sh", "-c", &script]);
    command.arg(disk.image()).arg(disk.path());
    let scribe = scribe_behind(command, stage);
    let namespace = format!("/proc/{}/ns/mnt", mounts::pid_of_scribe(stage));
    (scribe, std::fs::File::open(namespace).expect("a namespace"))
}

/// A scribe in a session that `command` becomes, whose last words are that one's command line.
fn scribe_behind(mut command: Command, stage: &Stage) -> Running {
    let inner = session(stage, &[]);
    command.arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))));
    command.arg(tool("scribe"));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    scribe
}

/// Has it save a file in `dir` until that is put off: on a busy machine what could not be had at
/// once is tried again after ten seconds.
fn warm(stage: &Stage, scribe: &mut Running, dir: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_put_off(stage, scribe, dir, 20) {
        assert!(
            Instant::now() < until,
            "nothing is put off in {}",
            dir.display()
        );
    }
}

/// Whether one of so many files saved in `dir` is put off.
fn is_put_off(stage: &Stage, scribe: &mut Running, dir: &Path, tries: usize) -> bool {
    let skipped = |stage: &Stage| stage.counted().1;
    let before = skipped(stage);
    let path = dir.join("warm");
    (0..tries).any(|_| {
        assert_eq!(does(scribe, &format!("save {}", path.display())), 0);
        skipped(stage) > before
    })
}

/// Has it do something; 0, or an errno.
fn does(scribe: &mut Running, line: &str) -> i32 {
    scribe.tell(line);
    let said = scribe.hear();
    let (verb, result) = said.split_once(' ').expect("a verb and a number");
    assert!(line.starts_with(verb), "{line}: {said}");
    result.parse().expect("a number")
}

/// Saves files in `dir`, of which each is acknowledged.
fn save(scribe: &mut Running, dir: &Path, names: &[&str]) {
    for name in names {
        let line = format!("save {}", dir.join(name).display());
        assert_eq!(does(scribe, &line), 0, "{line}");
    }
}

/// Each of these files is in `dir`, whole.
fn are_whole(dir: &Path, names: &[&str]) {
    for name in names {
        let text = std::fs::read(dir.join(name)).unwrap_or_default();
        let whole = text.len() == 4096 && text.iter().all(|b| *b == b'k');
        assert!(
            whole,
            "{name} was acknowledged and is lost: {} bytes",
            text.len()
        );
    }
}

/// Ends it; the session must say that everything is durable.
fn ends_well(stage: &Stage, scribe: &mut Running) {
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(0), "{end}\n{:#}", stage.report());
}

fn mount(words: &[&str], what: &str, at: &Path) {
    run(clean("mount").args(words).arg(what).arg(at)).must_succeed();
}

fn umount(at: &Path) {
    run(clean("umount").arg(at)).must_succeed();
}
