//! What a run says that it has saved: measured beside it, or not claimed.

use super::stage::{as_root, Stage, SYNCLATER};
use crate::harness::command::{run, Outcome};
use crate::harness::disk::{Disk, SlowDisk};
use crate::harness::limits::count;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Appends and syncs, a file for each thread. With 8 ms a flush one such sync takes 17 ms.
const APPENDS: &str = "\
import os, sys, threading
folder, threads, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def append(k):
    f = os.open(f'{folder}/{os.getpid()}-{k}', os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for _ in range(count):
        os.write(f, b'x' * 4096)
        os.fsync(f)
all = [threading.Thread(target=append, args=(k,)) for k in range(threads)]
[t.start() for t in all]
[t.join() for t in all]
";

/// Fsyncs a file of each folder in turn.
const IN_TURN: &str = "\
import os, sys
files = [os.open(f'{d}/file', os.O_CREAT | os.O_WRONLY | os.O_APPEND) for d in sys.argv[2:]]
for _ in range(int(sys.argv[1])):
    for f in files:
        os.write(f, b'x' * 4096)
        os.fsync(f)
";

/// One after the other, each a process of its own.
const ONE_BY_ONE: &str = "for k in $(seq \"$3\"); do python3 -c \"$1\" \"$2\" 1 10; done";

fn probe(stage: &Stage, folder: &Path) -> Outcome {
    let words = ["probe", "--for", "300ms", "--threads", "4"];
    run(stage.synclater(&words).arg(folder)).must_succeed()
}

/// The report of a run at a dial, and how long it took.
fn ran(stage: &Stage, until: &str, command: &[&str]) -> (Value, f64) {
    let mut all = stage.with_folders(SYNCLATER);
    all.args(["run", "--quiet", "-u", until]).args(stage.json());
    let begun = Instant::now();
    run(all.arg("--").args(command)).must_succeed();
    (stage.report(), begun.elapsed().as_secs_f64())
}

fn number(report: &Value, key: &str) -> f64 {
    report[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key}: {report:#}"))
}

/// What the summary of a run says.
fn summary(stage: &Stage, command: &[&str]) -> String {
    let mut all: Command = stage.with_folders(SYNCLATER);
    all.args(["run", "--summary", "--"]).args(command);
    run(&mut all).must_succeed().stderr
}

#[test]
fn soak_what_was_saved_is_what_real_syncs_take_longer() {
    if !as_root("soak_what_was_saved_is_what_real_syncs_take_longer") {
        return;
    }
    let disk = SlowDisk::new("ext4", 128, 8);
    let (stage, folder) = (Stage::new("saved"), disk.path());
    let at = folder.display().to_string();
    probe(&stage, &folder);
    let shapes: [&[&str]; 3] = [
        &["python3", "-c", APPENDS, &at, "1", "120"],
        &["python3", "-c", APPENDS, &at, "4", "60"],
        &["sh", "-c", ONE_BY_ONE, "sh", APPENDS, &at, "12"],
    ];
    let (mut near, times) = (0, count(3, 30));
    for k in 0..times {
        let shape = shapes[k % shapes.len()];
        let (_, real) = ran(&stage, "now", shape);
        let (report, later) = ran(&stage, "exit", shape);
        let (said, saved) = (number(&report, "saved_s_estimate"), real - later);
        println!("said {said:.3} s, measured {saved:.3} s, {:?}", &shape[3..]);
        near += usize::from((said - saved).abs() <= 0.2 * saved);
        assert!(
            said > saved / 2.0 && said < saved * 2.0,
            "measured {saved}: {report:#}"
        );
        let [from, to] = ["saved_s_from", "saved_s_to"].map(|key| number(&report, key));
        assert!(from <= said && said <= to, "{report:#}");
    }
    assert!(
        near * 10 >= times * 9 || times < 10,
        "{near} of {times} within a fifth"
    );
}

#[test]
fn without_a_measurement_no_time_is_said_to_be_saved_and_how_to_measure_is() {
    if !as_root("without_a_measurement_no_time_is_said_to_be_saved_and_how_to_measure_is") {
        return;
    }
    let disk = SlowDisk::new("ext4", 128, 1);
    let (stage, folder) = (Stage::new("not-saved"), disk.path());
    let at = folder.display().to_string();
    let command = ["python3", "-c", APPENDS, &at, "1", "90"];
    // That of another disk tells nothing.
    probe(&stage, &stage.work());
    let (report, _) = ran(&stage, "exit", &command);
    assert_eq!(report["saved_s_estimate"], Value::Null, "{report:#}");
    let advice = format!("`synclater probe {at}` measures");
    let said = summary(&stage, &command);
    assert!(said.contains("time saved: not known"), "{said}");
    assert!(
        said.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .contains(&advice),
        "{said}"
    );
    // What is advised changes the answer.
    probe(&stage, &folder);
    let said = summary(&stage, &command);
    assert!(
        said.contains(" saved (") && !said.contains("not known"),
        "{said}"
    );
}

#[test]
fn real_syncs_of_the_same_run_tell_what_one_costs_from_a_hundred_on() {
    if !as_root("real_syncs_of_the_same_run_tell_what_one_costs_from_a_hundred_on") {
        return;
    }
    let disk = SlowDisk::new("ext4", 128, 2);
    let stage = Stage::new("hundred");
    let [real, later] = ["real", "later"].map(|name| {
        let folder = disk.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        folder.display().to_string()
    });
    let rule = format!("path={later}");
    for (count, knows) in [("90", false), ("130", true)] {
        let mut all = stage.with_folders(SYNCLATER);
        all.args(["run", "--quiet", "--only", &rule])
            .args(stage.json());
        let command = ["python3", "-c", IN_TURN, count, &real, &later];
        run(all.arg("--").args(command)).must_succeed();
        let report = stage.report();
        assert_eq!(
            report["saved_s_estimate"].is_f64(),
            knows,
            "{count}: {report:#}"
        );
        if knows {
            let basis = report["saved_basis"].as_str().expect("a basis");
            assert!(basis.ends_with(" real ones of this run"), "{basis}");
            let each = number(&report, "saved_s_each");
            assert!((0.003..0.05).contains(&each), "{report:#}");
        }
    }
}

#[test]
fn what_lies_in_memory_has_saved_nothing() {
    if !as_root("what_lies_in_memory_has_saved_nothing") {
        return;
    }
    let (disk, memory) = (SlowDisk::new("ext4", 128, 2), Disk::in_memory());
    let stage = Stage::new("in-memory");
    let folders = [disk.path(), memory.path().to_owned()].map(|f| f.display().to_string());
    probe(&stage, &disk.path());
    // One on the disk for a thousand in memory.
    let command = format!(
        "python3 -c \"$1\" 40 {}; python3 -c \"$1\" 4000 {}",
        folders[0], folders[1]
    );
    let (report, _) = ran(&stage, "exit", &["sh", "-c", &command, "sh", IN_TURN]);
    let said = number(&report, "saved_s_estimate");
    assert!(said < 40.0 * 0.05, "{report:#}");
    let rows = report["filesystems"].as_array().expect("rows");
    let counted: f64 = rows.iter().map(|row| number(row, "requests")).sum();
    assert!(counted <= 40.0, "{report:#}");
}

#[test]
fn a_probe_tells_nothing_of_another_disk_that_is_mounted_in_its_place() {
    if !as_root("a_probe_tells_nothing_of_another_disk_that_is_mounted_in_its_place") {
        return;
    }
    let (first, second) = (Disk::new("ext4", 64), Disk::new("ext4", 64));
    let stage = Stage::new("other-disk");
    let place = stage.work().join("place");
    std::fs::create_dir(&place).expect("a folder");
    let mount = |disk: &Disk| {
        let device = disk.device();
        run(Command::new("mount").arg(device).arg(&place)).must_succeed();
    };
    let unmount = || run(Command::new("umount").arg(&place)).must_succeed();
    let at = place.display().to_string();
    // Enough of them: the first are real, until the session knows the file system.
    let command = ["python3", "-c", APPENDS, &at, "1", "5000"];
    let mut told = Vec::new();
    for (disk, probes) in [(&first, true), (&second, false), (&first, false)] {
        mount(disk);
        if probes {
            probe(&stage, &place);
        }
        told.push(ran(&stage, "exit", &command).0["saved_s_estimate"].is_f64());
        unmount();
    }
    assert_eq!(told, [true, false, true]);
}
