//! Recorders and supervisors that are killed, and disks that fill up.

use super::read;
use crate::harness::command::{clean, run, LIMIT};
use crate::harness::disk::Disk;
use crate::harness::limits::needs_root;
use crate::sessions::death::named_child;
use crate::sessions::stage::{has_four_parts, program, progress, Running, Stage};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::path::PathBuf;

/// A session that records a victim which hammers.
struct Hammered {
    running: Running,
    stage: Stage,
    file: PathBuf,
}

impl Hammered {
    fn new(name: &str) -> Hammered {
        let stage = Stage::new(name);
        let file = stage.file("recording");
        let mut command = stage.synclater(&["run", "--quiet", "--record"]);
        command.arg(&file).arg("--");
        command.arg(program("hammer")).arg(stage.work()).arg("4");
        let running = Running::start(&stage, command);
        let h = Hammered {
            running,
            stage,
            file,
        };
        // More than a batch of 65,536 rows takes: what is shorter may be a part of the first one.
        let begun = until(LIMIT, || {
            h.answered() > 10_000 && std::fs::metadata(&h.file).is_ok_and(|m| m.len() > 8_000_000)
        });
        assert!(begun, "{} answered", h.answered());
        h
    }

    fn answered(&self) -> u64 {
        progress(&self.stage.work()).0
    }

    /// The process of this session with that name.
    fn process(&self, name: &str) -> Pid {
        named_child(self.running.pid(), name)
    }
}

#[test]
fn a_recorder_that_is_killed_leaves_whole_batches_and_a_victim_that_goes_on() {
    let h = Hammered::new("record_killed");
    kill_process(h.process("synclater-rec"), Signal::KILL).expect("kill");
    let before = h.answered();
    assert!(
        until(LIMIT, || h.answered() > before + 10_000),
        "the victim stands still"
    );
    let told = until(LIMIT, || h.running.stderr().contains("was killed"));
    assert!(told, "{}", h.running.stderr());
    assert!(
        has_four_parts(&h.running.stderr()),
        "{}",
        h.running.stderr()
    );
    let table = read(&h.file);
    assert!(!table.is_whole());
    assert!(table.rows.len() > 1000, "{}", table.rows.len());
}

#[test]
fn a_recording_is_written_and_not_said_to_be_whole_when_the_supervisor_is_killed() {
    let h = Hammered::new("record_orphan");
    let recorder = h.process("synclater-rec");
    kill_process(h.running.pid(), Signal::KILL).expect("kill");
    let gone = || rustix::process::test_kill_process(recorder).is_err();
    assert!(until(LIMIT, gone), "the recorder goes on");
    let table = read(&h.file);
    assert!(!table.is_whole() && table.cut.is_none(), "{:?}", table.cut);
    assert!(table.rows.len() > 100, "{}", table.rows.len());
    let before = h.answered();
    assert!(
        until(LIMIT, || h.answered() > before),
        "the victim stands still"
    );
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_command() {
    if !needs_root("a_full_disk_ends_the_recording_and_not_the_command") {
        return;
    }
    let disk = Disk::new("ext4", 8);
    let stage = Stage::new("record_full");
    let file = disk.path().join("recording");
    let fill = disk.path().join("fill");
    let room = "dd if=/dev/zero bs=1K status=none";
    let fill = format!(
        "{room} of={0} 2>/dev/null; truncate -s -64K {0}; sync",
        fill.display()
    );
    run(clean("sh").arg("-c").arg(fill)).must_succeed();
    let mut command = stage.synclater(&["run", "-u", "never", "--quiet", "--record"]);
    command.arg(&file).args(["--", "timeout", "3"]);
    command.arg(program("hammer")).arg(stage.work()).arg("2");
    let outcome = run(&mut command);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("No space left"), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(progress(&stage.work()).0 > 10_000, "the victim stood still");
    assert!(!read(&file).is_whole());
}

#[test]
fn a_recording_that_cannot_be_begun_starts_no_command() {
    let stage = Stage::new("record_nowhere");
    for path in ["/nowhere/file", "/"] {
        let mut command = stage.synclater(&["record", "-o", path, "--", "touch"]);
        command.arg(stage.work().join("touched"));
        let outcome = run(&mut command);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
    for ring in ["0", "1K", "3M", "1T", "x", "-1"] {
        let words = ["record", "-o", "f", "--ring", ring, "--", "true"];
        assert_eq!(stage.ask(&words).status.code(), Some(125), "{ring}");
    }
    assert!(!stage.work().join("touched").exists());
}

#[test]
fn what_is_in_the_file_stays_where_nothing_is_recorded() {
    let stage = Stage::new("record_over");
    let file = stage.file("recording");
    let path = file.to_str().expect("text");
    stage
        .ask(&["record", "-o", path, "--", "sync", "-d", "/etc/passwd"])
        .must_succeed();
    let before = std::fs::read(&file).expect("the recording");
    for words in [
        vec!["record", "--force", "-o", path, "--", "/no/such/command"],
        vec![
            "record",
            "--force",
            "-o",
            path,
            "--system",
            "--",
            "/no/such/command",
        ],
        vec!["record", "--force", "-o", path, "--unit", "no-such-unit"],
    ] {
        let outcome = stage.ask(&words);
        assert!(!outcome.status.success(), "{outcome}");
        assert!(std::fs::read(&file).expect("it") == before, "{outcome}");
    }
    // Another recording takes its place.
    stage
        .ask(&["record", "--force", "-o", path, "--", "true"])
        .must_succeed();
    assert_eq!(read(&file).rows.len(), 0);
    assert!(read(&file).is_whole());
}

#[test]
fn a_file_that_is_no_recording_is_not_written_over() {
    let stage = Stage::new("record_other");
    let file = stage.file("notes");
    std::fs::write(&file, "all that I know\n").expect("a file");
    let path = file.to_str().expect("text");
    let touched = stage.work().join("touched");
    for more in [&[][..], &["--system"]] {
        let mut command = stage.synclater(&["record", "-o", path]);
        let outcome = run(command.args(more).args(["--", "touch"]).arg(&touched));
        if more.is_empty() || outcome.stderr.contains("no recording") {
            assert!(outcome.stderr.contains("no recording"), "{outcome}");
        }
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
    }
    let after = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(after, "all that I know\n");
    assert!(!touched.exists());
}
