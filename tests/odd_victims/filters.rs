//! Victims that put a seccomp filter on themselves, and children that are born with one.

use super::*;
use crate::harness::backend::{Backend, Scene};
use crate::harness::limits::count;

#[test]
fn a_victim_with_a_filter_of_its_own_is_not_killed_and_syncs_for_real() {
    for way in ["prctl", "seccomp", "exec"] {
        let stage = Stage::new("filter");
        let mut command = reported(&stage, &[]);
        let log = stage.traced(&mut command, "fsync", "victim.log");
        command.arg(program("filter")).arg(stage.work()).arg(way);
        let outcome = run(command.arg(REQUESTS.to_string())).must_succeed();
        assert_eq!(outcome.stdout, "alive\n", "{way}: {outcome}");
        assert_eq!(log.count("fsync"), REQUESTS, "{way}");
    }
}

#[test]
fn a_filter_that_the_kernel_has_refused_keeps_nothing_real() {
    for (how, victim) in FILTERED_BY {
        if !how.is_empty() && !as_root("a_filter_that_the_kernel_has_refused_keeps_nothing_real") {
            return;
        }
        let stage = Stage::new("refused-filter");
        is_kept(&stage, &filters(&stage, how, victim, "tried"));
        let report = stage.report();
        assert!(
            number(&report, "skipped") > REQUESTS / 2,
            "{how:?}: {report:#}"
        );
    }
}

/// How a victim is reached that puts a filter on itself.
const FILTERED_BY: [(&[&str], &str); 3] = [
    (&[], "filter"),
    (&["--follow"], "filter"),
    (&["--follow"], "filter_static"),
];

fn filters(stage: &Stage, how: &[&str], victim: &str, way: &str) -> Outcome {
    filters_of(stage, how, victim, way, &REQUESTS.to_string())
}

fn filters_of(stage: &Stage, how: &[&str], victim: &str, way: &str, n: &str) -> Outcome {
    let mut command = stage.with_folders(SYNCLATER);
    command
        .args(["run", "--quiet"])
        .args(stage.json())
        .args(how);
    command
        .arg("--")
        .arg(program(victim))
        .arg(stage.work())
        .arg(way);
    run(command.arg(n))
}

#[test]
fn a_child_that_is_forked_while_a_filter_is_refused_has_none() {
    for (how, victim) in FILTERED_BY {
        let name = "a_child_that_is_forked_while_a_filter_is_refused_has_none";
        if !how.is_empty() && !as_root(name) {
            return;
        }
        let stage = Stage::new("forked-filter");
        let outcome = filters(&stage, how, victim, "forks");
        let report = stage.report();
        assert_eq!(
            outcome.status.code(),
            Some(0),
            "{how:?}: {outcome}\n{report:#}"
        );
        // Those of one child are 62. On a busy machine the session takes its time to begin.
        let starting = "the session was still starting on that file system";
        let begun = REQUESTS - report["kept_real"][starting].as_u64().unwrap_or(0);
        assert!(
            number(&report, "skipped") > begun - 500,
            "{how:?}: {report:#}"
        );
        assert_eq!(
            report["escaped"],
            serde_json::json!([]),
            "{how:?}: {report:#}"
        );
    }
}

#[test]
fn a_filter_behind_one_that_was_refused_keeps_all_real() {
    for (how, victim) in FILTERED_BY {
        if !how.is_empty() && !as_root("a_filter_behind_one_that_was_refused_keeps_all_real") {
            return;
        }
        let stage = Stage::new("both-filters");
        let outcome = filters(&stage, how, victim, "both").must_succeed();
        assert_eq!(outcome.stdout, "alive\n", "{outcome}");
        let report = stage.report();
        let [requests, skipped] = ["requests", "skipped"].map(|key| number(&report, key));
        assert!(
            requests <= REQUESTS / 2 + 1 && skipped > 0,
            "{how:?}: {report:#}"
        );
    }
}

#[test]
fn soak_a_child_that_gets_a_filter_while_it_is_forked_is_not_killed_by_our_calls() {
    let name = "soak_a_child_that_gets_a_filter_while_it_is_forked_is_not_killed_by_our_calls";
    for (how, victim) in [
        (&[][..], "born_filtered"),
        (&["--follow"], "born_filtered_static"),
    ] {
        if !how.is_empty() && !as_root(name) {
            return;
        }
        for way in ["handler", "thread"] {
            let stage = Stage::new("born-filtered");
            let children = count(100, 2000);
            let outcome = filters_of(&stage, how, victim, way, &children.to_string());
            let forked = outcome
                .stdout
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok());
            assert!(forked > Some(0), "{how:?} {way}: {outcome}");
            let ended = outcome.stdout.ends_with(" forked, 0 ended badly\n");
            assert!(ended, "{how:?} {way}: {outcome}");
            outcome.must_succeed();
        }
    }
}

/// Puts the filter on all threads while one of them, which the libc may not know, forks: behind the
/// copy of the memory.
fn is_born_elsewhere(mut command: Command, victim: &str, folder: &Path, way: &str) {
    let children = count(20, 500).to_string();
    command.arg(program(victim)).arg(folder);
    let outcome = run(command.args([way, &children]));
    let born = outcome.stdout.split(' ').next();
    let born = born.and_then(|n| n.parse().ok());
    assert!(born > Some(0), "{way}: {outcome}");
    let ended = outcome.stdout.ends_with(" born with it, 0 ended badly\n");
    assert!(ended, "{way}: {outcome}");
}

#[test]
fn soak_a_child_of_a_thread_that_the_libc_does_not_know_is_not_killed_by_our_calls() {
    let name = "soak_a_child_of_a_thread_that_the_libc_does_not_know_is_not_killed_by_our_calls";
    if !as_root(name) {
        return;
    }
    for (backend, victim, way) in [
        (Backend::Run("exit"), "born_elsewhere", "known"),
        (Backend::Run("exit"), "born_elsewhere", "unknown"),
        (Backend::Followed("exit"), "born_elsewhere_static", "known"),
        (Backend::Alone, "born_elsewhere", "known"),
        (Backend::Alone, "born_elsewhere", "unknown"),
    ] {
        let scene = Scene::new("born-elsewhere");
        let command = scene.command(backend);
        is_born_elsewhere(command, victim, &scene.work(), way);
    }
}

#[test]
fn a_child_that_is_forked_beside_more_such_calls_than_are_counted_is_real() {
    let name = "a_child_that_is_forked_beside_more_such_calls_than_are_counted_is_real";
    if !as_root(name) {
        return;
    }
    // Those behind the first 24 were counted in 8 bits.
    for calls in ["279", "280", "281"] {
        let stage = Stage::new("crowd");
        let mut command = reported(&stage, &[]);
        let log = stage.traced(&mut command, "fdatasync", "victim.log");
        command.arg(program("crowd")).arg(stage.work()).arg(calls);
        let outcome = run(&mut command).must_succeed();
        assert_eq!(outcome.stdout, "done\n", "{outcome}");
        assert_eq!(log.count("fdatasync"), 50, "{calls}");
    }
}
