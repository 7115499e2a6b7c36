//! The disk: that it keeps what a disk must keep and no more, lies and fails where it is told to.

use super::*;

#[test]
fn soak_a_writer_that_syncs_loses_nothing_but_on_a_disk_that_lies_or_without_syncs() {
    let name = "soak_a_writer_that_syncs_loses_nothing_but_on_a_disk_that_lies_or_without_syncs";
    if !can_cut(name) {
        return;
    }
    let stage = Stage::new("crash_prefix");
    let (states, steps) = (count(80, 2000).to_string(), count(70, 700).to_string());
    for fs in FILE_SYSTEMS {
        let words = |more: &[&str], budget: &str, steps: &str| -> Value {
            let fixed = ["--fs", fs, "--no-rerun", "--budget", budget];
            let program = ["--check", "builtin:prefix", "--", "builtin:prefix", steps];
            let (outcome, report) = crash(&stage, &[&fixed[..], more, &program].concat());
            println!(
                "{fs} {more:?}: {} of {} bad",
                report["bad"], report["states"]
            );
            let acknowledged = number(&report, "acknowledged").to_string();
            assert_eq!(acknowledged, steps, "{outcome}");
            report
        };
        let report = words(&[], &states, &steps);
        assert_eq!(number(&report, "bad"), 0, "{report:#}");
        assert!(
            number(&report, "states") >= states.parse().expect("it"),
            "{report:#}"
        );
        let report = words(&["--lies"], "80", &steps);
        assert!(number(&report, "bad") > 0, "{report:#}");
        // Long enough for a busy machine: the first requests of a session are real.
        let report = words(&["-u", "never"], "80", "1500");
        assert!(number(&report, "bad") > 0, "{report:#}");
    }
}

/// A shell script as the command, judged by `true`.
fn script(words: &[&str], script: &str) -> (Outcome, Value) {
    let stage = Stage::new("crash_disk");
    let fixed = ["--no-rerun", "--budget", "10", "--check", "true #"];
    crash(
        &stage,
        &[&fixed[..], words, &["--", "sh", "-c", script]].concat(),
    )
}

#[test]
fn discards_and_ranges_to_be_zeroed_are_writes_of_zeros() {
    if !can_cut("discards_and_ranges_to_be_zeroed_are_writes_of_zeros") {
        return;
    }
    let removed = "head -c 4000000 /dev/urandom >a; sync -f .; rm a; sync -f .; echo done";
    let (outcome, report) = script(&["-o", "discard"], removed);
    assert!(number(&report, "zeroed") > 0, "{outcome}");
    let (outcome, report) = script(&[], removed);
    assert_eq!(number(&report, "zeroed"), 0, "{outcome}");
    // ext4 zeros what is around a write into space that was set aside.
    let set_aside = "fallocate -l 16384 a; sync -f .; \
        printf x | dd of=a bs=4096 seek=1 conv=notrunc status=none; sync -f .; echo done";
    let (outcome, report) = script(&["-o", "dioread_lock"], set_aside);
    assert!(number(&report, "zeroed") > 0, "{outcome}");
}

#[test]
fn a_flush_that_fails_is_the_program_s_to_see() {
    if !can_cut("a_flush_that_fails_is_the_program_s_to_see") {
        return;
    }
    let twice = "echo a >a; sync a || echo failed; echo b >>a; sync a || echo failed; echo end";
    for fs in FILE_SYSTEMS {
        let words = |more: &[&'static str]| [&["--fs", fs][..], more].concat();
        let lines = |more: &[&'static str]| number(&script(&words(more), twice).1, "acknowledged");
        assert_eq!(lines(&[]), 1, "{fs}");
        assert_eq!(lines(&["--fail-flush", "1000"]), 1, "{fs}");
        assert!(lines(&["--fail-flush", "1+"]) > 1, "{fs}");
        assert!(lines(&["--fail-write", "1+"]) > 1, "{fs}");
    }
}

#[test]
fn flushes_take_as_long_as_the_disk_is_told_to() {
    if !can_cut("flushes_take_as_long_as_the_disk_is_told_to") {
        return;
    }
    let timed = "t=$(date +%s%N); for n in 1 2 3 4 5; do echo $n >>a; sync a; done; \
        echo $((($(date +%s%N) - t) / 1000000))";
    let took = |words: &[&str]| -> u64 {
        let stage = Stage::new("crash_slow");
        let fixed = ["--no-rerun", "--budget", "10", "--check", "false #"];
        let (_, report) = crash(
            &stage,
            &[&fixed[..], words, &["--", "sh", "-c", timed]].concat(),
        );
        first(&report, "after").parse().expect("milliseconds")
    };
    let slow = took(&["--flush-takes", "100ms"]);
    assert!(slow >= 500, "{slow} ms");
    let erratic = took(&["--flush-sometimes", "100%:100ms"]);
    assert!(erratic >= 500, "{erratic} ms");
    // And hardly any where nobody asks for that; a machine may be busy.
    let quick = took(&[]);
    assert!(quick < slow, "{quick} ms, {slow} ms");
}

#[test]
fn a_flush_that_takes_for_ever_keeps_nobody_from_ending() {
    if !can_cut("a_flush_that_takes_for_ever_keeps_nobody_from_ending") {
        return;
    }
    let words = ["--flush-takes", "1h", "--for", "1s"];
    let (outcome, report) = script(&words, "echo a >a; sync a; echo a");
    assert!(report.get("status").is_none(), "{outcome}");
}

#[test]
fn options_of_mount_are_told_from_those_of_the_file_system() {
    if !can_cut("options_of_mount_are_told_from_those_of_the_file_system") {
        return;
    }
    let (outcome, report) = script(
        &["-o", "noatime,nodev,data=journal"],
        "grep $PWD /proc/mounts",
    );
    assert_eq!(number(&report, "acknowledged"), 1, "{outcome}");
}
