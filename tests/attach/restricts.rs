//! Programs that restrict themselves while they are attached (tests/sessions/restricts.c): what
//! they are answered is the kernel's, nothing kills them, and what stands makes their requests
//! real.

use super::refusals::refused;
use super::*;
use crate::follow::in_go;
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
    { tasks.into_iter().flatten().flatten() }.any(|t| call(t).is_ok_and(|c| c.starts_with("317 ")))
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
        let (pid, record) = (number(victim.pid()), stage.file("go.rec"));
        let record = record.display().to_string();
        let whom = [
            "--pid",
            &pid,
            "--until",
            "1s",
            "--only",
            "path=/nonexistent",
        ];
        let options = [&whom[..], &["--force", "--record", &record]].concat();
        let session = stage.attach(&options);
        victim.tell("on");
        assert_eq!(victim.hear(), "over");
        stage.detach(&session);
        victim.end();
    }
}
