//! `synclater probe`: its figures are the disk's, and it leaves nothing behind.

use crate::harness::command::{clean, run, LIMIT};
use crate::harness::dir::Dir;
use crate::harness::disk::{Erratic, SlowDisk};
use crate::harness::limits::needs_root;
use crate::sessions::stage::{has_four_parts, Stage, SYNCLATER};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the folder");
    let name = |e: std::io::Result<std::fs::DirEntry>| e.expect("an entry").file_name();
    entries
        .map(|e| name(e).to_string_lossy().into_owned())
        .collect()
}

/// The median of one kind by one thread, in seconds.
fn median(report: &Value, kind: &str) -> f64 {
    let rows = report["syncs"].as_array().expect("rows");
    let row = rows.iter().find(|r| r["kind"] == kind && r["threads"] == 1);
    row.unwrap_or_else(|| panic!("{kind}: {report}"))["p50_s"]
        .as_f64()
        .expect("a median")
}

#[test]
fn the_cost_of_a_sync_is_the_disk_s_also_in_a_session_that_relaxes() {
    if !needs_root("the_cost_of_a_sync_is_the_disk_s_also_in_a_session_that_relaxes") {
        return;
    }
    let disk = SlowDisk::new("ext4", 128, 8);
    let stage = Stage::new("probe");
    let probe = ["probe", "--json", "--for", "200ms", "--threads", "2"];
    let inside = [&["run", "--quiet", "--", SYNCLATER][..], &probe].concat();
    for words in [&probe[..], &inside] {
        let outcome = run(stage.synclater(words).arg(disk.path())).must_succeed();
        let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        assert_eq!(
            (&report["version"], &report["fstype"]),
            (&1.into(), &"ext4".into())
        );
        for kind in [
            "fsync",
            "fdatasync",
            "O_DSYNC",
            "RWF_DSYNC",
            "fdatasync in place",
            "rename+fsync(dir)",
        ] {
            let cost = median(&report, kind);
            assert!((0.007..0.5).contains(&cost), "{kind}: {cost} s, {words:?}");
        }
        for row in report["syncs"].as_array().expect("rows") {
            let bins = row["histogram"].as_array().expect("bins");
            let n: u64 = bins
                .iter()
                .map(|b| b["n"].as_u64().expect("a number"))
                .sum();
            assert_eq!(Some(n), row["count"].as_u64(), "{row}");
        }
        assert_eq!(names_in(&disk.path()), ["lost+found"]);
    }
}

/// What a probe by one thread says in the end, and all that it says.
fn verdict(disk: &SlowDisk, patience: &str) -> (String, String) {
    let mut probe = clean(SYNCLATER);
    probe.args(["probe", "--threads", "1", "--for", patience]);
    let said = run(probe.arg(disk.path())).must_succeed().stdout;
    let last = said.lines().last().expect("a line").to_owned();
    (last, said)
}

/// The number before `mark` in a sentence.
fn number_before(text: &str, mark: &str) -> f64 {
    let (before, _) = text
        .split_once(mark)
        .unwrap_or_else(|| panic!("{mark}: {text}"));
    let word = before.split_whitespace().last().expect("a word");
    word.parse().unwrap_or_else(|_| panic!("{word}: {text}"))
}

#[test]
fn a_disk_that_delays_some_of_its_flushes_is_called_erratic_and_a_slow_one_even() {
    if !needs_root("a_disk_that_delays_some_of_its_flushes_is_called_erratic") {
        return;
    }
    // Without a journal a sync is one flush; what a busy machine adds is far below four times 6 ms.
    let bad = Erratic {
        bad_ms: 30,
        bad_share: 0.08,
        seed: 1,
    };
    let erratic = SlowDisk::erratic("ext2", 64, 6, bad);
    let (last, said) = verdict(&erratic, "2s");
    assert!(last.starts_with("Erratic: "), "{said}");
    assert!(
        (4.0..14.0).contains(&number_before(&last, " % took")),
        "{said}"
    );
    assert!(
        (34.0..50.0).contains(&number_before(&last, " ms, the others")),
        "{said}"
    );
    let fsync = said
        .lines()
        .rfind(|line| line.starts_with("fsync"))
        .expect("its line");
    assert!(fsync.contains('█') && fsync.contains('▁'), "{said}");
    let even = SlowDisk::new("ext2", 64, 20);
    let (last, said) = verdict(&even, "500ms");
    assert!(last.starts_with("Even: "), "{said}");
}

#[test]
fn the_median_of_an_fsync_is_the_one_that_fio_finds() {
    if !needs_root("the_median_of_an_fsync_is_the_one_that_fio_finds") {
        return;
    }
    let disk = SlowDisk::new("ext4", 128, 8);
    let mut probe = clean(SYNCLATER);
    probe.args(["probe", "--json", "--for", "700ms", "--threads", "1"]);
    let outcome = run(probe.arg(disk.path())).must_succeed();
    let ours = median(
        &serde_json::from_str(&outcome.stdout).expect("JSON"),
        "fsync",
    );
    let mut fio = clean("fio");
    fio.args([
        "--name=probe",
        "--rw=write",
        "--bs=4k",
        "--size=16m",
        "--fsync=1",
    ]);
    fio.args([
        "--ioengine=psync",
        "--runtime=1",
        "--time_based",
        "--output-format=json",
    ]);
    let outcome = run(fio.arg("--directory").arg(disk.path())).must_succeed();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let theirs = &report["jobs"][0]["sync"]["lat_ns"]["percentile"]["50.000000"];
    let theirs = theirs.as_f64().expect("fio's median") / 1e9;
    let ratio = ours / theirs;
    assert!((0.6..1.7).contains(&ratio), "{ours} s, fio {theirs} s");
}

/// A probe that goes on until it is stopped, once it writes.
fn long_probe(stage: &Stage, dir: &Path) -> Child {
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["probe", "--for", "1h"]).arg(dir);
    let child = command.stdout(Stdio::null()).spawn().expect("a probe");
    let writes = || {
        let name = names_in(dir).pop();
        name.is_some_and(|name| names_in(&dir.join(name)).iter().any(|n| n != "lock"))
    };
    assert!(until(LIMIT, writes), "it does not write");
    child
}

fn stop(mut probe: Child, signal: Signal) -> ExitStatus {
    let pid = Pid::from_child(&probe);
    kill_process(pid, signal).expect("kill");
    let mut status = None;
    let ended = until(LIMIT, || {
        status = probe.try_wait().expect("wait");
        status.is_some()
    });
    assert!(ended, "it goes on");
    status.expect("it has ended")
}

#[test]
fn an_interrupted_probe_dies_of_the_signal_and_leaves_nothing() {
    let (dir, stage) = (Dir::new("probed"), Stage::new("probes"));
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let status = stop(long_probe(&stage, dir.path()), signal);
        assert_eq!(status.signal(), Some(signal.as_raw()));
        assert!(names_in(dir.path()).is_empty());
    }
}

#[test]
fn what_a_killed_probe_left_goes_with_the_next_one_and_a_living_one_is_left_alone() {
    // Whoever settles there is told that one was killed: nobody of another test is.
    let (dir, stage) = (Dir::new("probed"), Stage::new("probes"));
    let killed = stop(long_probe(&stage, dir.path()), Signal::KILL);
    assert_eq!(killed.signal(), Some(Signal::KILL.as_raw()));
    assert_eq!(names_in(dir.path()).len(), 1);
    let mut short = clean(SYNCLATER);
    short.args(["probe", "--for", "1ms"]).arg(dir.path());
    run(&mut short).must_succeed();
    assert!(names_in(dir.path()).is_empty());
    let lives = long_probe(&stage, dir.path());
    run(&mut short).must_succeed();
    assert_eq!(names_in(dir.path()).len(), 1);
    stop(lives, Signal::INT);
}

#[test]
fn a_folder_that_cannot_be_probed_is_told_with_what_to_try() {
    for dir in ["/not/there", "/proc", "/dev/null"] {
        let outcome = run(clean(SYNCLATER).arg("probe").arg(dir));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
}
