//! Bugs of programs that are on everybody's machine, each with the finding that is expected.

use super::*;

/// The SQLite of a pragma `synchronous` in a journal mode, on a file system.
fn sqlite(fs: &str, journal: &str, synchronous: &str, size: (usize, usize), seed: u64) -> Value {
    let (rows, states) = size;
    let stage = Stage::new("crash_sqlite");
    let (folder, states) = (bug("sqlite-last-commit"), states.to_string());
    let check = format!("/usr/bin/python3 -B {}/check.py", folder.display());
    let writer = folder.join("writer.py");
    let pragmas = [
        format!("JOURNAL={journal}"),
        format!("SYNCHRONOUS={synchronous}"),
    ];
    let seed = seed.to_string();
    let words = [
        "--fs", fs, "--seed", &seed, "--budget", &states, "--check", &check, "--", "env",
    ];
    let rows_word = format!("ROWS={rows}");
    let more = [
        &pragmas[0],
        &pragmas[1],
        &rows_word,
        "/usr/bin/python3",
        "-B",
    ];
    let program = [writer.to_str().expect("text")];
    let (outcome, report) = crash(&stage, &[&words[..], &more, &program].concat());
    assert_eq!(number(&report, "acknowledged"), rows as u64, "{outcome}");
    let asked = number(&report, "states") >= states.parse().expect("a number");
    assert!(asked || report["complete"] == true, "{outcome}");
    report
}

#[test]
fn soak_sqlite_loses_its_last_commit_for_want_of_a_sync_of_the_folder() {
    if !can_cut("soak_sqlite_loses_its_last_commit_for_want_of_a_sync_of_the_folder") {
        return;
    }
    for fs in FILE_SYSTEMS {
        for seed in 1..=count(1, 10) as u64 {
            let report = sqlite(fs, "delete", "full", (count(12, 60), count(40, 150)), seed);
            println!(
                "{fs}, seed {seed}: {} of {} bad",
                report["bad"], report["states"]
            );
            assert!(number(&report, "bad") > 5, "{report:#}");
            assert!(first(&report, "said").starts_with("lost"), "{report:#}");
            let missing = first(&report, "missing");
            assert!(
                missing.starts_with("fsync of its folder before"),
                "{report:#}"
            );
            let differences = &report["failures"][0]["differences"];
            assert_eq!(
                differences[0], "test.db-journal is still there",
                "{report:#}"
            );
        }
    }
}

#[test]
fn soak_sqlite_is_clean_with_extra_and_with_a_wal() {
    if !can_cut("soak_sqlite_is_clean_with_extra_and_with_a_wal") {
        return;
    }
    for fs in FILE_SYSTEMS {
        for (journal, synchronous) in [("delete", "extra"), ("wal", "full")] {
            let size = (count(12, 150), count(40, 600));
            let report = sqlite(fs, journal, synchronous, size, 1);
            println!(
                "{fs}, {journal}, {synchronous}: 0 of {} bad",
                report["states"]
            );
            assert_eq!(number(&report, "bad"), 0, "{report:#}");
            assert!(
                number(&report, "states") >= count(20, 500) as u64,
                "{report:#}"
            );
        }
    }
}

/// The script of a bug, and its report.
fn script(name: &str, fs: &str, seed: usize, variables: &[(&str, &str)]) -> (Outcome, Value) {
    let stage = Stage::new("crash_bug");
    let mut command = stage.with_folders(bug(name).join("run"));
    command.args([fs, &seed.to_string()]);
    command.env("SYNCLATER", crate::sessions::stage::SYNCLATER);
    command
        .env("OPTIONS", "--json")
        .envs(variables.iter().copied());
    let outcome = run(&mut command);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or(Value::Null);
    assert!(report["states"].as_u64() > Some(0), "{outcome}");
    (outcome, report)
}

#[test]
fn soak_a_delivery_without_a_sync_of_the_folder_loses_the_message() {
    if !can_cut("soak_a_delivery_without_a_sync_of_the_folder_loses_the_message") {
        return;
    }
    let budget = count(40, 200).to_string();
    for fs in FILE_SYSTEMS {
        for seed in 1..=count(1, 10) {
            let few = [("BUDGET", budget.as_str())];
            let (_, report) = script("maildir-no-folder-sync", fs, seed, &few);
            println!(
                "{fs}, seed {seed}: {} of {} bad",
                report["bad"], report["states"]
            );
            assert!(
                first(&report, "said").starts_with("lost message-"),
                "{report:#}"
            );
            let missing = first(&report, "missing");
            assert!(
                missing.starts_with("fsync of the folder new before"),
                "{report:#}"
            );
        }
        let with = [("BUDGET", budget.as_str()), ("FOLDER_SYNC", "1")];
        let (outcome, report) = script("maildir-no-folder-sync", fs, 1, &with);
        assert_eq!(number(&report, "bad"), 0, "{outcome}");
    }
}

#[test]
fn soak_git_leaves_damaged_objects_on_xfs_unless_it_syncs_all_of_them() {
    if !can_cut("soak_git_leaves_damaged_objects_on_xfs_unless_it_syncs_all_of_them") {
        return;
    }
    for seed in 1..=count(1, 10) {
        let budget = count(60, 300).to_string();
        let few = [
            ("BUDGET", budget.as_str()),
            ("OPTIONS", "--json --no-rerun"),
        ];
        let (_, report) = script("git-empty-objects", "xfs", seed, &few);
        println!(
            "xfs, seed {seed}: {} of {} bad",
            report["bad"], report["states"]
        );
        assert!(number(&report, "bad") > 0, "{report:#}");
    }
    let budget = count(60, 500).to_string();
    let few = [
        ("BUDGET", budget.as_str()),
        ("OPTIONS", "--json --no-rerun"),
    ];
    let with = [&few[..], &[("CORE_FSYNC", "all")]].concat();
    let (outcome, report) = script("git-empty-objects", "xfs", 1, &with);
    assert_eq!(number(&report, "bad"), 0, "{outcome}");
}

/// Workloads that keep their word, and the setting with which each of them does not: so it is seen
/// that its check can fail. The dial `never` would do too, but the first requests of a session are
/// real, for how long is a matter of the machine's load.
const KEPT: [(&str, &str, &str); 4] = [
    ("postgresql-default", "SETTINGS", "-c fsync=off"),
    (
        "mariadb-default",
        "SETTINGS",
        "--innodb-flush-log-at-trx-commit=2",
    ),
    ("redis-always", "POLICY", "everysec"),
    ("lmdb-default", "SYNC", "0"),
];

#[test]
fn soak_servers_with_their_default_durability_keep_their_word() {
    if !can_cut("soak_servers_with_their_default_durability_keep_their_word") {
        return;
    }
    let budget = count(8, 300).to_string();
    for (name, variable, careless) in KEPT {
        let few = [("BUDGET", budget.as_str())];
        let (outcome, report) = script(name, "ext4", 1, &few);
        println!("{name}: {} of {} bad", report["bad"], report["states"]);
        assert_eq!(number(&report, "bad"), 0, "{outcome}");
        assert!(number(&report, "acknowledged") > 10, "{outcome}");
        let options = ("OPTIONS", "--json --no-rerun");
        let careless = [("BUDGET", "8"), (variable, careless), options];
        let (outcome, report) = script(name, "ext4", 1, &careless);
        assert!(number(&report, "bad") > 0, "{outcome}");
    }
}

#[test]
fn soak_leveldb_has_a_hole_before_a_key_that_was_synced() {
    if !can_cut("soak_leveldb_has_a_hole_before_a_key_that_was_synced") {
        return;
    }
    for seed in 1..=count(1, 10) {
        let few = [("BUDGET", "5s"), ("OPTIONS", "--json --no-rerun")];
        let (_, report) = script("leveldb-hole", "ext4", seed, &few);
        println!("seed {seed}: {} of {} bad", report["bad"], report["states"]);
        assert!(
            first(&report, "said").starts_with("lost: a hole"),
            "{report:#}"
        );
    }
}
