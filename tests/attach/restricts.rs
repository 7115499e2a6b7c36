//! Programs that restrict themselves while they are attached (tests/sessions/restricts.c): what
//! they are answered is the kernel's, nothing kills them, and what stands makes their requests
//! real.

use super::refusals::refused;
use super::*;
use crate::follow::in_go;
use crate::harness::disk::SlowDisk;
use crate::harness::limits::{count, skip};
use crate::sessions::stage::as_root;

fn restricting(stage: &Stage, name: &str, what: &str) -> Running {
    let mut command = clean(program(name));
    command.arg(what).arg(stage.work());
    started(stage, command)
}

/// What it does, and whether its requests are real behind that.
const WAYS: [(&str, bool); 6] = [
    ("often", true),
    ("high", true),
    ("enabled", false),
    ("unequal", false),
    ("by-place", true),
    ("forks", true),
];

#[test]
fn what_restricts_itself_is_answered_by_the_kernel_and_real_only_where_that_stands() {
    let name = "what_restricts_itself_is_answered_by_the_kernel_and_real_only_where_that_stands";
    if !as_root(name) {
        return;
    }
    for victim in ["restricts", "restricts_static", "restricts_32"] {
        for (what, is_real) in WAYS {
            let has_libc = victim == "restricts";
            if !has_libc && what == "by-place" || victim == "restricts_32" && what == "high" {
                continue;
            }
            let stage = Stage::new("restricts");
            let mut victim_ = restricting(&stage, victim, what);
            let session = stage.attach_to(&victim_, "1s");
            stage.warm(&mut victim_);
            victim_.tell("now");
            assert_eq!(victim_.hear(), "now 0", "{victim} {what}");
            assert_eq!(!stage.is_later(&mut victim_), is_real, "{victim} {what}");
            let escaped = stage.session()["escaped"].to_string();
            let is_named = escaped.contains("has restricted its own calls");
            assert_eq!(is_named, is_real, "{victim} {what}: {escaped}");
            stage.detach(&session);
            assert_eq!(victim_.sync("file"), 0, "{victim} {what}");
            victim_.end();
        }
    }
}

/// Whether a thread of it is in seccomp(2).
fn asks(victim: &Running) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", victim.pid().as_raw_nonzero()));
    let call = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("syscall"));
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .any(|t| call(t).is_ok_and(|c| c.starts_with("317 ")))
}

#[test]
fn one_that_is_about_to_restrict_itself_is_attached_only_behind_that() {
    if !as_root("one_that_is_about_to_restrict_itself_is_attached_only_behind_that") {
        return;
    }
    for is_attached in [false, true] {
        let stage = Stage::new("about-to");
        let mut victim = restricting(&stage, "restricts", "refused");
        let pid = number(victim.pid());
        // The call begins in the gate then, and stays there.
        let session = is_attached.then(|| stage.attach_to(&victim, "1s"));
        victim.tell("now");
        assert_eq!(victim.hear(), "now 0");
        assert!(until(LIMIT, || asks(&victim)), "it does not ask");
        if let Some(session) = &session {
            stage.detach(session);
        }
        refused(&stage, &pid, "is putting a seccomp filter on itself");
        victim.tell("on");
        assert_eq!(victim.hear(), "on 14");
        let session = stage.attach_to(&victim, "1s");
        stage.warm(&mut victim);
        stage.detach(&session);
        assert_eq!(changed_code(victim.pid()), Vec::<String>::new());
        victim.end();
    }
}

/// Attaches it so that requests for what `path` names may be late, and records.
fn recorded(stage: &Stage, victim: &Running, path: &Path) -> String {
    let (pid, record) = (number(victim.pid()), stage.file("go.rec"));
    let (record, only) = (
        record.display().to_string(),
        format!("path={}", path.display()),
    );
    let whom = ["--pid", &pid, "--until", "1s", "--only", &only];
    stage.attach(&[&whom[..], &["--force", "--record", &record]].concat())
}

/// A Go program that syncs on a slow disk.
fn on_disk(stage: &Stage, disk: &SlowDisk, what: &str) -> Option<Running> {
    let path = in_go(stage, "tests/attach/restricting.go")?;
    let mut command = clean(path);
    command.arg(disk.path()).arg(what);
    Some(started(stage, command))
}

/// The filter forbids to ask where a file lies, which is asked behind a sync that was real.
#[test]
fn soak_a_filter_of_a_go_program_that_stands_before_the_disk_answers_kills_nobody() {
    const NAME: &str =
        "soak_a_filter_of_a_go_program_that_stands_before_the_disk_answers_kills_nobody";
    if !as_root(NAME) {
        return;
    }
    for _ in 0..count(1, 20) {
        let (disk, stage) = (SlowDisk::quick_at_first(4000), Stage::new("go-behind"));
        let Some(mut victim) = on_disk(&stage, &disk, "behind") else {
            return skip(NAME, "no Go compiler (go) is installed");
        };
        // What is called so may be late, so the disk is one that owes.
        let session = recorded(&stage, &victim, &disk.path().join("warm"));
        victim.tell("on");
        assert_eq!(victim.hear(), "warm");
        disk.becomes_slow();
        victim.tell("on");
        assert_eq!(victim.hear(), "over");
        stage.detach(&session);
        victim.end();
    }
}

#[test]
fn a_call_that_restricts_nothing_waits_for_no_disk() {
    const NAME: &str = "a_call_that_restricts_nothing_waits_for_no_disk";
    if !as_root(NAME) {
        return;
    }
    let (disk, stage) = (SlowDisk::new("ext4", 64, 2000), Stage::new("go-asks"));
    let Some(mut victim) = on_disk(&stage, &disk, "asks") else {
        return skip(NAME, "no Go compiler (go) is installed");
    };
    let session = recorded(&stage, &victim, Path::new("/nonexistent"));
    victim.tell("on");
    let longest_ms: u64 = victim.hear().parse().expect("milliseconds");
    assert!(longest_ms < 1000, "{longest_ms} ms");
    stage.detach(&session);
    victim.end();
}

/// While all stacks of the gate are in use, too.
#[test]
fn soak_a_filter_of_a_go_program_with_many_threads_kills_nobody() {
    const NAME: &str = "soak_a_filter_of_a_go_program_with_many_threads_kills_nobody";
    let stage = Stage::new("go-filter");
    let Some(path) = in_go(&stage, "tests/attach/restricting.go") else {
        return skip(NAME, "no Go compiler (go) is installed");
    };
    for _ in 0..count(4, 100) {
        let mut command = clean(&path);
        command.arg(stage.work());
        let mut victim = started(&stage, command);
        let session = recorded(&stage, &victim, Path::new("/nonexistent"));
        victim.tell("on");
        assert_eq!(victim.hear(), "over");
        stage.detach(&session);
        victim.end();
    }
}
