//! What the laboratory answers: its checks, its explanations, and the states it keeps for a look.

use super::*;
use crate::harness::command::clean;
use crate::harness::disk::keep_mounts_private;

/// The delivery without a sync of the folder, with these words before it.
fn delivery(stage: &Stage, words: &[&str]) -> (Outcome, Value) {
    let deliver = bug("maildir-no-folder-sync").join("deliver.py");
    let set_up = ["--setup", "mkdir -p tmp new cur", "--budget", "40"];
    let program = [
        "--",
        "/usr/bin/python3",
        "-B",
        deliver.to_str().expect("text"),
    ];
    crash(stage, &[&set_up[..], words, &program].concat())
}

#[test]
fn checks_that_are_brought_along_find_what_is_lost() {
    if !can_cut("checks_that_are_brought_along_find_what_is_lost") {
        return;
    }
    let stage = Stage::new("crash_builtin");
    let (_, report) = delivery(&stage, &["--check", "builtin:maildir", "--no-rerun"]);
    assert!(
        first(&report, "said").starts_with("lost: message message-"),
        "{report:#}"
    );
    let (_, report) = delivery(&stage, &["--fs", "btrfs", "--check", "builtin:none"]);
    assert!(
        first(&report, "said").starts_with("lost: new/message-"),
        "{report:#}"
    );
    assert!(
        first(&report, "missing").starts_with("fsync of the folder new"),
        "{report:#}"
    );
    // What was acknowledged before it was written is near: one of the neighbours has it not.
    let words = [
        "--no-rerun",
        "--budget",
        "30",
        "--check",
        "builtin:none",
        "--",
        "sh",
        "-c",
    ];
    let honest = "for n in 1 2 3; do echo $n >$n; sync $n .; echo $n; done";
    let (_, report) = crash(&stage, &[&words[..], &[honest]].concat());
    assert_eq!(number(&report, "bad"), 0, "{report:#}");
}

/// SQLite in a journal mode, with several pages in each transaction.
const PAGES: &str = "
import sqlite3, sys
db = sqlite3.connect('a.db', isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[1])
db.execute('create table t(a primary key, b)')
for n in range(6):
    db.execute('begin')
    for k in range(200):
        db.execute('insert into t values(?, ?)', (n * 1000 + k * 37 % 200, 'x' * 100))
    db.execute('commit')
    print(n, flush=True)
";

#[test]
fn databases_that_are_torn_are_found() {
    if !can_cut("databases_that_are_torn_are_found") {
        return;
    }
    let stage = Stage::new("crash_torn");
    let check = [
        "--check",
        "builtin:sqlite",
        "--no-rerun",
        "--budget",
        "100",
        "--",
    ];
    let words = |journal| {
        let program = ["/usr/bin/python3", "-B", "-c", PAGES, journal];
        crash(&stage, &[&check[..], &program].concat()).1
    };
    let report = words("off");
    assert!(number(&report, "bad") > 10, "{report:#}");
    assert!(first(&report, "said").starts_with("a.db: "), "{report:#}");
    assert_eq!(number(&words("delete"), "bad"), 0);
}

#[test]
fn each_failure_is_rebuilt_by_its_replay() {
    if !can_cut("each_failure_is_rebuilt_by_its_replay") {
        return;
    }
    // Or a session of another test that syncs everything holds what is to be unmounted.
    keep_mounts_private();
    let stage = Stage::new("crash_replay");
    let temp = stage.file("temp");
    std::fs::create_dir(&temp).expect("a folder");
    for fs in FILE_SYSTEMS {
        let check = bug("maildir-no-folder-sync").join("check.py");
        let check = format!("/usr/bin/python3 -B {}", check.display());
        let (outcome, report) = delivery(&stage, &["--fs", fs, "--check", &check, "--no-rerun"]);
        let failures = report["failures"].as_array().expect("failures");
        assert!(!failures.is_empty(), "{outcome}");
        for failure in failures {
            let replay = failure["replay"].as_str().expect("words");
            let id = replay
                .strip_prefix("synclater crash --replay ")
                .expect("an id");
            let mut command = stage.synclater(&["crash", "--json", "--replay", id]);
            let replayed = run(command.env("TMPDIR", &temp)).must_succeed();
            let state: Value = serde_json::from_str(&replayed.stdout).expect("JSON");
            let at = state["mounted"].as_str().expect("a place");
            let acknowledged = state["acknowledged"].as_str().expect("a file");
            let words = check
                .split(' ')
                .chain([at, acknowledged])
                .collect::<Vec<_>>();
            let judged = run(clean(words[0]).args(&words[1..]));
            run(clean("umount").arg(at)).must_succeed();
            assert_eq!(judged.status.code(), Some(1), "{fs}: {failure:#}\n{judged}");
            assert_eq!(judged.stdout.trim(), failure["said"], "{fs}");
            for made in state["made"].as_array().expect("folders") {
                let made = made.as_str().expect("a path");
                std::fs::remove_dir(made).expect("an empty folder");
            }
        }
    }
    let unknown = run(&mut stage.synclater(&["crash", "--replay", "zz/F1"]));
    assert_eq!(unknown.status.code(), Some(125));
    assert!(
        unknown.stderr.contains("those that are kept: "),
        "{unknown}"
    );
}

#[test]
fn a_program_may_acknowledge_on_a_descriptor_of_its_own() {
    if !can_cut("a_program_may_acknowledge_on_a_descriptor_of_its_own") {
        return;
    }
    let stage = Stage::new("crash_ack");
    let script = "echo noise; echo a >a; sync a .; echo a >&7; echo b >b; echo b >&7";
    let check = "for n in $(cat $2); do [ -s $1/$n ] || { echo lost $n; exit 1; }; done";
    let words = [
        "--ack-fd", "7", "--budget", "30", "--check", check, "--", "sh", "-c", script,
    ];
    let (_, report) = crash(&stage, &words);
    assert_eq!(number(&report, "acknowledged"), 2, "{report:#}");
    assert_eq!(first(&report, "said"), "lost b", "{report:#}");
    assert_eq!(first(&report, "after"), "b", "{report:#}");
}

#[test]
fn soak_a_log_of_a_gibibyte_stays_usable() {
    if !can_cut("soak_a_log_of_a_gibibyte_stays_usable") {
        return;
    }
    let stage = Stage::new("crash_large");
    let (mib, states) = (count(64, 1024), count(10, 100).to_string());
    let script = format!("head -c {mib}M /dev/urandom >a; sync a .; echo done");
    let check = format!("[ ! -s $2 ] || [ $(stat -c %s $1/a) = {} ]", mib << 20);
    let words = [
        "--size",
        "2G",
        "--fs",
        "xfs",
        "--no-rerun",
        "--budget",
        &states,
        "--check",
    ];
    let program = [&check, "--", "sh", "-c", &script];
    let (outcome, report) = crash(&stage, &[&words[..], &program].concat());
    println!(
        "{mib} MiB: {} states in {} s",
        report["states"], report["seconds"]
    );
    assert_eq!(number(&report, "bad"), 0, "{outcome}");
    assert!(number(&report, "states") >= 3, "{outcome}");
}

/// The first example of the help, as it stands there.
#[test]
fn relative_names_are_meant_from_where_the_caller_is() {
    if !can_cut("relative_names_are_meant_from_where_the_caller_is") {
        return;
    }
    let stage = Stage::new("crash_relative");
    let script = |name: &str, text: &str| {
        let path = stage.work().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a file");
        run(clean("chmod").arg("+x").arg(path)).must_succeed();
    };
    script("writer", "echo a >log; sync log .; echo done");
    script("check", "[ ! -s $2 ] || [ -s $1/log ]");
    let mut command = stage.synclater(&["crash", "--html", "page.html", "--check", "./check"]);
    let outcome = run(command.args(["--", "./writer"]).current_dir(stage.work())).must_succeed();
    assert!(outcome.stdout.contains("none is bad"), "{outcome}");
    let page = std::fs::read_to_string(stage.work().join("page.html")).expect("a page");
    assert!(page.contains("none is bad"), "{page}");
}

#[test]
fn what_no_sync_can_close_is_not_laid_to_one() {
    if !can_cut("what_no_sync_can_close_is_not_laid_to_one") {
        return;
    }
    let stage = Stage::new("crash_advice");
    let two = "for n in 1 2 3; do echo $n >a; sync a .; echo $n >b; sync b .; echo $n; done";
    let check = "cd $1 && [ \"$(cat a 2>&1)\" = \"$(cat b 2>&1)\" ] || { echo unlike; exit 1; }";
    let check = format!("[ ! -s $2 ] || {{ {check}; }}");
    let words = ["--budget", "60", "--check", &check, "--", "sh", "-c", two];
    let (outcome, report) = crash(&stage, &words);
    assert!(report["failures"][0].get("missing").is_none(), "{outcome}");
    assert!(first(&report, "advice").contains("not atomic"), "{outcome}");
    // A check that finds fault with everything is told from a program that loses something.
    let words = [
        "--budget", "10", "--check", "false #", "--", "sh", "-c", two,
    ];
    let (outcome, report) = crash(&stage, &words);
    assert!(report["notes"][0]
        .as_str()
        .is_some_and(|n| n.contains("without any power cut")));
    assert!(
        first(&report, "advice").contains("not even syncfs"),
        "{outcome}"
    );
}

#[test]
fn a_state_on_which_the_check_fails_is_kept_and_the_rest_is_told() {
    if !can_cut("a_state_on_which_the_check_fails_is_kept_and_the_rest_is_told") {
        return;
    }
    let stage = Stage::new("crash_failing");
    let check = "case $(wc -l <$2) in 0) kill -9 $$;; 1) echo one; exit 1;; *) exit 0;; esac";
    let script = "for n in 1 2; do echo $n >$n; sync $n .; echo $n; done";
    let mut command = stage.synclater(&["crash", "--json", "--no-rerun", "--check", check]);
    let outcome = run(command.args(["--", "sh", "-c", script]));
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("a report");
    assert!(report["check_failed_on"]
        .as_str()
        .is_some_and(|w| w.ends_with("/check")));
    assert!(outcome.stderr.contains("a signal ended it"), "{outcome}");
    assert!(outcome.stderr.contains("crash --replay "), "{outcome}");
}

#[test]
fn a_program_that_floods_its_stdout_is_heard_in_full() {
    if !can_cut("a_program_that_floods_its_stdout_is_heard_in_full") {
        return;
    }
    let stage = Stage::new("crash_flood");
    let script =
        "head -c 1048576 /dev/zero | tr '\\0' '\\n' | dd bs=1M iflag=fullblock status=none";
    let words = [
        "--no-rerun",
        "--budget",
        "3",
        "--check",
        "true #",
        "--",
        "sh",
        "-c",
        script,
    ];
    let (_, report) = crash(&stage, &words);
    assert_eq!(number(&report, "acknowledged"), 1 << 20, "{report:#}");
}

/// A writer whose files name each other by their paths: SQLite's super-journal of two databases
/// that are attached to each other holds the paths of both journals.
const ATTACHED: &str = "
import os, sqlite3
db = sqlite3.connect(os.path.abspath('one.db'), isolation_level=None)
db.execute('attach ? as other', (os.path.abspath('two.db'),))
for name in ('main', 'other'):
    db.execute(f'pragma {name}.journal_mode=delete')
    db.execute(f'pragma {name}.synchronous=extra')
    db.execute(f'create table {name}.t(n)')
print(0, flush=True)
for n in range(1, 25):
    db.execute('begin')
    db.execute('insert into main.t values(?)', (n,))
    db.execute('insert into other.t values(?)', (n,))
    db.execute('commit')
    print(n, flush=True)
";

/// Both have the same rows, and all that were acknowledged.
const BOTH: &str = "
import os, sqlite3, sys
said = [int(line) for line in open(sys.argv[2])]
if not said:
    sys.exit(0)
db = sqlite3.connect(os.path.join(sys.argv[1], 'one.db'))
db.execute('attach ? as other', (os.path.join(sys.argv[1], 'two.db'),))
one, two = ([n for n, in db.execute(f'select n from {name}.t')] for name in ('main', 'other'))
lost = [n for n in said[1:] if n not in one]
if one != two or lost:
    print('lost' if lost else 'one has what the other has not', len(one), len(two), lost[:3])
    sys.exit(1)
";

#[test]
fn what_names_itself_by_its_path_is_judged_where_it_ran() {
    if !can_cut("what_names_itself_by_its_path_is_judged_where_it_ran") {
        return;
    }
    for fs in FILE_SYSTEMS {
        let stage = Stage::new("crash_paths");
        std::fs::write(stage.file("both.py"), BOTH).expect("the check");
        let check = format!("/usr/bin/python3 -B {}", stage.file("both.py").display());
        let words = [
            "--fs",
            fs,
            "--check",
            &check,
            "--no-rerun",
            "--budget",
            "400",
        ];
        let program = ["--", "/usr/bin/python3", "-c", ATTACHED];
        let (_, report) = crash(&stage, &[&words[..], &program].concat());
        assert!(number(&report, "states") > 100, "{fs}: {report:#}");
        assert_eq!(number(&report, "bad"), 0, "{fs}: {report:#}");
    }
}

const TWO_FILES: &str = "for n in 1 2; do echo $n >$n; sync $n .; echo $n; done";

/// `synclater crash` of [`TWO_FILES`] with a check.
fn judged_by(stage: &Stage, check: &str, words: &[&str]) -> Outcome {
    let mut command = stage.synclater(&["crash", "--json", "--no-rerun", "--budget", "30"]);
    command.args(["--check", check]).args(words);
    run(command.args(["--", "sh", "-c", TWO_FILES]))
}

#[test]
fn a_state_that_is_good_when_it_is_judged_again_is_flaky_and_not_bad() {
    if !can_cut("a_state_that_is_good_when_it_is_judged_again_is_flaky_and_not_bad") {
        return;
    }
    let stage = Stage::new("crash_flaky");
    let marks = stage.file("marks");
    std::fs::create_dir(&marks).expect("a folder");
    // Bad the first time that so many lines are judged; the disk as it was left has two.
    let check = format!(
        "n=$(wc -l <$2); [ $n = 2 ] && exit 0; \
         mkdir {}/$n 2>/dev/null && {{ echo by chance; exit 1; }}; exit 0",
        marks.display()
    );
    let outcome = judged_by(&stage, &check, &[]);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("a report");
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert_eq!(number(&report, "bad"), 0, "{outcome}");
    assert!(number(&report, "flaky") > 0, "{outcome}");
    assert_eq!(report["flaky_said"], "by chance", "{outcome}");
}

#[test]
fn a_check_that_hangs_is_what_its_state_is_and_the_search_goes_on() {
    if !can_cut("a_check_that_hangs_is_what_its_state_is_and_the_search_goes_on") {
        return;
    }
    let stage = Stage::new("crash_hangs");
    let check = "case $(wc -l <$2) in 1) echo thinking; sleep 60;; esac; exit 0";
    let outcome = judged_by(&stage, check, &["--patience", "300ms"]);
    assert_eq!(outcome.status.code(), Some(1), "{outcome}");
    let report: Value = serde_json::from_str(&outcome.stdout).expect("a report");
    let said = first(&report, "said");
    assert_eq!(said, "hangs: the check took longer than 0.3 s: thinking");
    assert!(
        number(&report, "states") > number(&report, "bad"),
        "{outcome}"
    );
}

#[test]
fn a_check_that_has_not_shown_that_it_can_fail_is_named() {
    if !can_cut("a_check_that_has_not_shown_that_it_can_fail_is_named") {
        return;
    }
    let stage = Stage::new("crash_blind");
    for (check, is_named) in [("true #", true), ("[ ! -s $2 ] || [ -e $1/1 ]", false)] {
        let report: Value =
            serde_json::from_str(&judged_by(&stage, check, &[]).stdout).expect("JSON");
        let notes = report["notes"].to_string();
        assert_eq!(notes.contains("can fail"), is_named, "{check}: {report:#}");
    }
}

/// Appends, and has the pages written back: no journal's commit, no flush.
const WRITTEN_BACK: &str = "
import ctypes, os
libc = ctypes.CDLL(None)
log = os.open('log', os.O_WRONLY | os.O_APPEND)
for n in range(40):
    os.write(log, b'%d\\n' % n)
    libc.sync_file_range(log, ctypes.c_int64(0), ctypes.c_int64(0), 7)
    print(n, flush=True)
";

#[test]
fn the_sync_that_is_named_helps_on_each_file_system() {
    if !can_cut("the_sync_that_is_named_helps_on_each_file_system") {
        return;
    }
    // On ext4 any fsync would do: it commits the one journal.
    for fs in FILE_SYSTEMS {
        let stage = Stage::new("crash_everywhere");
        let check = "tail -n 1 $2 >$2.last; grep -qxFf $2.last $1/log || ! [ -s $2 ]";
        let words = [
            "--fs",
            fs,
            "--setup",
            "touch log",
            "--budget",
            "100",
            "--check",
            check,
        ];
        let program = ["--", "/usr/bin/python3", "-c", WRITTEN_BACK];
        let (_, report) = crash(&stage, &[&words[..], &program].concat());
        assert!(number(&report, "bad") > 0, "{fs}: {report:#}");
        let missing = first(&report, "missing");
        assert!(
            missing.starts_with("fsync of log before"),
            "{fs}: {report:#}"
        );
        for other in FILE_SYSTEMS {
            assert!(missing.contains(other), "{fs}: {missing}");
        }
    }
}

#[test]
fn where_the_program_does_not_work_no_sync_is_said_to_help() {
    if !can_cut("where_the_program_does_not_work_no_sync_is_said_to_help") {
        return;
    }
    let stage = Stage::new("crash_elsewhere");
    // On btrfs it acknowledges nothing, and ends as ever.
    let script = "[ $(stat -f -c %T .) = btrfs ] && exit 0; \
                  for n in 1 2 3; do echo $n >$n; sync $n; echo $n; done; rm 1; sync 2; echo rm";
    let check = "! grep -q rm $2 || [ ! -e $1/1 ]";
    let words = [
        "--fs", "xfs", "--budget", "60", "--check", check, "--", "sh", "-c", script,
    ];
    let (_, report) = crash(&stage, &words);
    let missing = first(&report, "missing");
    assert!(missing.contains("on xfs and ext4:"), "{report:#}");
    let untried = "it could not be tried on btrfs";
    assert!(missing.ends_with(untried), "{report:#}");
}
