//! Recordings by the kernel's trace points, as a user makes them.

use super::{kinds, read};
use crate::harness::command::{clean, run};
use crate::harness::limits::count;
use crate::kernel::stage::can_watch;
use crate::sessions::stage::Stage;
use serde_json::Value;

#[test]
fn soak_an_fio_job_that_syncs_through_io_uring_is_seen() {
    if !can_watch("soak_an_fio_job_that_syncs_through_io_uring_is_seen") {
        return;
    }
    let stage = Stage::new("record_fio");
    let (file, report) = (stage.file("recording"), stage.file("fio.json"));
    let target = stage.work().join("target");
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let mut command = stage.synclater(&["record", "--system", "--quiet", "-o"]);
    command.arg(&file).args(["--", "fio", "--name=job"]);
    command.arg(format!("--filename={}", text(&target)));
    command.arg(format!("--size={}k", 4 * count(100, 10_000)));
    command.args(["--rw=write", "--bs=4k", "--ioengine=io_uring", "--fsync=1"]);
    command
        .args(["--output-format=json", "--output"])
        .arg(&report);
    run(command.current_dir(stage.work())).must_succeed();
    let report = std::fs::read_to_string(report).expect("fio's report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let made = report["jobs"][0]["sync"]["total_ios"].as_u64();
    let table = read(&file);
    assert!(
        table.is_whole() && table.lost.is_empty(),
        "{:?}",
        table.lost
    );
    let seen = kinds(&table).get("io_uring fsync").map(|n| *n as u64);
    assert!(
        seen > Some(50) && seen == made,
        "{seen:?} of {made:?}: {:?}",
        kinds(&table)
    );
    let paths: Vec<&str> = table.files.iter().map(|f| f.path.as_str()).collect();
    assert!(paths.contains(&&*text(&target)), "{paths:?}");
}

#[test]
fn a_recording_of_one_process_ends_with_it_and_says_whose_it_is() {
    if !can_watch("a_recording_of_one_process_ends_with_it_and_says_whose_it_is") {
        return;
    }
    let stage = Stage::new("record_pid");
    let file = stage.file("recording");
    let mut victim = clean("sleep").arg("3").spawn().expect("sleep");
    let pid = victim.id().to_string();
    // It has no `--for`, and nobody sends it a signal.
    let mut command = stage.synclater(&["record", "--quiet", "--pid", &pid, "-o"]);
    let ended = run(command.arg(&file));
    victim.wait().expect("it ended");
    ended.must_succeed();
    let table = read(&file);
    assert!(table.is_whole());
    assert_eq!(table.header.whose, format!("process {pid}"));
    let text = stage
        .ask(&["report", file.to_str().expect("text")])
        .must_succeed()
        .stdout;
    assert!(
        text.contains(&format!("process {pid}")) && !text.contains("whole machine"),
        "{text}"
    );
}
