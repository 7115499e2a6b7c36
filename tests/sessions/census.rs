//! Who a session takes for its own: nobody who only has a number that one of its own had, and no
//! longer than there is something to be told of him.

use super::stage::{as_root, program, Running, Stage, SYNCLATER};
use crate::harness::command::{clean, copy_program};
use crate::harness::limits::count;
use crate::wait::until;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// Starts a child that syncs and ends, says its number, and waits for a line.
const MOTHER: &str = "\
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], env={})
child.wait()
print(child.pid, flush=True)
sys.stdin.readline()
";

#[test]
fn a_stranger_with_the_number_of_one_that_has_ended_is_not_named() {
    if !as_root("a_stranger_with_the_number_of_one_that_has_ended_is_not_named") {
        return;
    }
    let stage = Stage::new("stranger");
    let copy = |name: &str| {
        let path = stage.file(name);
        copy_program(program("hammer_static"), &path);
        path
    };
    let (child, stranger) = (copy("child-exe"), copy("stranger-exe"));
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["run", "--quiet"]).args(stage.json());
    command.args(["--", "python3", "-c", MOTHER]).arg(child);
    let mut mother = Running::start(&stage, {
        command.arg(stage.work()).args(["1", "3"]);
        command
    });
    let number: u32 = mother.hear().trim().parse().expect("a number");
    let has_it = || {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).expect("root");
        let mut stranger = clean(&stranger);
        let mut stranger = stranger
            .arg(stage.work())
            .args(["1", "50"])
            .spawn()
            .expect("it runs");
        let is_it = stranger.id() == number;
        stranger.wait().expect("it ends");
        is_it
    };
    // Others may be faster.
    assert!(until(LIMIT, has_it));
    mother.tell("end");
    mother.end().must_succeed();
    let report = stage.report();
    let escaped = report["escaped"].as_array().expect("a list");
    let exes: Vec<&str> = escaped.iter().filter_map(|e| e["exe"].as_str()).collect();
    assert!(
        exes.iter().all(|exe| exe.ends_with("/child-exe")),
        "{report:#}"
    );
    assert_eq!(
        (exes.len(), &escaped[0]["requests"]),
        (1, &3.into()),
        "{report:#}"
    );
}

/// Kilobytes that a process has in memory.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let number = line.and_then(|l| l.split_whitespace().next());
    number.expect("VmRSS").parse().expect("a number")
}

/// Runs each line's number of children that sync once, one after the other, and says so.
const MOTHER_OF_MANY: &str = "\
import subprocess, sys
for line in sys.stdin:
    for _ in range(int(line)):
        subprocess.run(sys.argv[1:], check=True)
    print('done', flush=True)
";

#[test]
fn soak_a_session_does_not_grow_with_children_that_have_ended() {
    let stage = Stage::new("many-children");
    let mut command = stage.with_folders(SYNCLATER);
    command.args(["run", "--quiet"]).args(stage.json());
    command.args(["--", "python3", "-c", MOTHER_OF_MANY]);
    command
        .arg(program("hammer"))
        .arg(stage.work())
        .args(["1", "1"]);
    let mut mother = Running::start(&stage, command);
    let mut children = |n: usize| {
        mother.tell(&n.to_string());
        assert_eq!(mother.hear().trim(), "done");
        resident(mother.pid().as_raw_nonzero().get())
    };
    let before = children(500);
    let many = count(2500, 20_000);
    let after = children(many);
    println!("{before} KiB, {after} KiB {many} children later");
    // It was 200 KiB a thousand.
    assert!(
        after < before + 250,
        "{before} KiB, {after} KiB {many} children later"
    );
    mother.no_more();
    mother.end().must_succeed();
    let report = stage.report();
    // Who is forgotten is counted.
    assert_eq!(report["requests"], 500 + many, "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
}
