//! Rings of io_uring of which the kernel takes what the library has looked at later, or elsewhere.

use super::*;
use crate::harness::disk::Disk;
use crate::sessions::stage::{as_root, program};

/// The reason for which a request is real.
const OF_A_KIND: &str = "asynchronous, and of a kind that cannot be put off";

/// A command in a session that owes already where it asks for more: behind so many requests, of
/// which those are real that come before the ledger has the file system.
fn warm_command(stage: &Stage, way: &str) -> Command {
    warm_command_on(&stage.work(), stage, way)
}

fn warm_command_on(dir: &Path, stage: &Stage, way: &str) -> Command {
    let file = dir.join("ring");
    let script = "\"$0\" \"$1\" 1 20003; shift; exec \"$@\"";
    let mut command = session(stage, &["--until", "exit"]);
    command.args(["sh", "-c", script]);
    command.arg(program("hammer")).arg(dir);
    command.arg(program("rings_uring")).arg(file).arg(way);
    command
}

/// Whether the only session owes anything.
fn owes(stage: &Stage) -> bool {
    stage.sessions()[0]["oldest_s"].is_number()
}

/// Whether the command owes again where it says "rest", behind a settle where it said "part".
fn owes_again(stage: &Stage, ring: &mut Running) -> bool {
    assert_eq!(ring.hear(), "part");
    assert!(owes(stage));
    run(&mut stage.synclater(&["settle", &stage.id()])).must_succeed();
    assert!(!owes(stage), "{:#?}", stage.sessions());
    ring.tell("on");
    assert_eq!(ring.hear(), "rest");
    let owes = owes(stage);
    ring.tell("on");
    owes
}

#[test]
fn what_the_kernel_left_in_a_ring_is_owed_as_of_when_it_is_taken() {
    let stage = Stage::new("in-part");
    let mut ring = Running::start(&stage, warm_command(&stage, "part"));
    assert!(owes_again(&stage, &mut ring));
    ends_well(&stage, &mut ring);
}

/// It stays a NOP: nothing in it says any more what it was, but for the file that it names.
#[test]
fn an_entry_of_which_all_but_the_opcode_is_written_anew_is_owed() {
    if !as_root("an_entry_of_which_all_but_the_opcode_is_written_anew_is_owed") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("rewritten"));
    let command = warm_command_on(disk.path(), &stage, "rewritten");
    let mut ring = Running::start(&stage, command);
    assert!(owes_again(&stage, &mut ring));
    assert!(owes_again(&stage, &mut ring));
    assert_eq!(ring.hear(), "part");
    stage
        .ask(&["set", &stage.id(), "--until", "now"])
        .must_succeed();
    ring.tell("on");
    assert_eq!(ring.hear(), "rest");
    is_whole_behind_a_cut(&disk);
    ring.tell("on");
    ends_well(&stage, &mut ring);
}

/// As much of the file is there where the power is cut as was written.
fn is_whole_behind_a_cut(disk: &Disk) {
    let [kept, written] = [disk.cut().path(), disk.path()].map(|dir| {
        let file = std::fs::metadata(dir.join("ring"));
        file.map_or(0, |m| m.len())
    });
    assert_eq!(kept, written);
}

/// Nothing of such a program is put off any more.
#[test]
fn what_the_kernel_left_in_a_ring_is_real_behind_a_seccomp_filter() {
    if !as_root("what_the_kernel_left_in_a_ring_is_real_behind_a_seccomp_filter") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("filtered"));
    let command = warm_command_on(disk.path(), &stage, "filtered");
    let mut ring = Running::start(&stage, command);
    assert_eq!(ring.hear(), "part");
    ring.tell("on");
    assert_eq!(ring.hear(), "rest");
    is_whole_behind_a_cut(&disk);
    ring.tell("on");
    ends_well(&stage, &mut ring);
}

/// A thread of the kernel's looks in its maker's descriptors, and the library in the child's.
#[test]
fn what_a_child_asks_of_its_parents_polled_ring_stays_real() {
    for (way, real) in [("own", None), ("parents", Some(10))] {
        let stage = Stage::new("polled");
        run(&mut warm_command(&stage, way)).must_succeed();
        let report = stage.report();
        assert_eq!(report["requests"], 20003 + 10, "{report:#}");
        let kept = &report["kept_real"][OF_A_KIND];
        assert_eq!(kept.as_u64(), real, "{way}: {report:#}");
    }
}

/// The kernel changes no entry, so a program may prepare them once.
#[test]
fn entries_that_are_prepared_once_are_requests_each_time() {
    let stage = Stage::new("once");
    let mut ring = Running::start(&stage, warm_command(&stage, "once"));
    assert_eq!(ring.hear(), "once");
    stage
        .ask(&["set", &stage.id(), "--until", "now"])
        .must_succeed();
    ring.tell("on");
    ends_well(&stage, &mut ring);
    let report = stage.report();
    // Half of the 8 entries are hints; the dial is at `now` for the last two of five rounds.
    assert_eq!(report["requests"], 20003 + 5 * 4, "{report:#}");
    assert_eq!(report["hints"], 5 * 4, "{report:#}");
    assert_eq!(
        report["kept_real"]["the dial was at now"],
        2 * 4,
        "{report:#}"
    );
}

/// What was made of it for the kernel is undone whatever is written into it.
#[test]
fn an_entry_that_was_prepared_once_is_a_request_whatever_is_changed_in_it() {
    let stage = Stage::new("changed");
    run(&mut warm_command(&stage, "changed")).must_succeed();
    let report = stage.report();
    assert_eq!(report["requests"], 20003 + 6, "{report:#}");
    assert_eq!(report["kept_real"][OF_A_KIND], 1, "{report:#}");
}

#[test]
fn what_is_linked_behind_what_the_kernel_left_in_a_ring_stays_real() {
    let stage = Stage::new("linked");
    run(&mut warm_command(&stage, "linked")).must_succeed();
    let report = stage.report();
    assert_eq!(report["requests"], 20003 + 1, "{report:#}");
    assert_eq!(report["kept_real"][OF_A_KIND], 1, "{report:#}");
}
