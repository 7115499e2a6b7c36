//! Processes that have one memory without being threads of each other: none is entered, as the
//! threads of another one run there.

use super::refusals::refused;
use super::*;
use crate::harness::command::run;
use crate::harness::disk::Disk;
use crate::sessions::stage::{as_root, has_four_parts, SYNCLATER};
use rustix::process::{kill_process, Signal};

/// One that does what it is told, and a line that it is told, with the number it answers.
fn sharing(stage: &Stage, folder: &Path) -> Running {
    executed(stage, &program("sharing"), folder)
}

fn executed(stage: &Stage, program: &Path, folder: &Path) -> Running {
    let mut command = clean(program);
    command.arg(folder);
    let mut begun = Running::start(stage, command);
    assert_eq!(begun.hear(), "ready");
    begun
}

fn has_one(sharing: &mut Running, line: &str) -> String {
    sharing.tell(line);
    let said = sharing.hear();
    let number = said.split(' ').nth(1);
    number.expect("a number").to_owned()
}

/// Whoever is refused runs as before.
fn is_refused(stage: &Stage, pid: &str) {
    let attach = stage.ask(&["attach", "--pid", pid, "-u", "1h"]);
    assert_eq!(attach.status.code(), Some(125), "{attach}");
    assert!(attach.stderr.contains("runs in its memory"), "{attach}");
}

/// Is gone with what shares its memory, which its end ends.
fn ends(mut sharing: Running) {
    sharing.no_more();
    sharing.end();
}

#[test]
fn processes_that_have_one_memory_are_left_alone_parents_too() {
    let stage = Stage::new("one-memory");
    let mut parent = sharing(&stage, &stage.work());
    let child = has_one(&mut parent, "child");
    is_refused(&stage, &child);
    is_refused(&stage, &number(parent.pid()));
    ends(parent);
}

#[test]
fn processes_that_have_one_memory_are_left_alone_whoever_their_parents_are() {
    let stage = Stage::new("orphans");
    let mut parent = sharing(&stage, &stage.work());
    let orphan = has_one(&mut parent, "orphan");
    is_refused(&stage, &orphan);
    ends(parent);
}

/// It is a process of its own number, of its unit, and executes what its parent does.
#[test]
fn a_child_of_vfork_is_left_alone() {
    let stage = Stage::new("vforked");
    let mut parent = sharing(&stage, &stage.work());
    let child = has_one(&mut parent, "vfork 20000");
    is_refused(&stage, &child);
    ends(parent);
}

/// It is tried for some seconds, and nobody else could say what came of it.
#[test]
fn whoever_attaches_is_told_where_the_supervisor_was_killed_meanwhile() {
    let stage = Stage::new("killed-meanwhile");
    let mut parent = sharing(&stage, &stage.work());
    let child = has_one(&mut parent, "vfork 20000");
    let command = stage.synclater(&["attach", "--pid", &child, "-u", "1h"]);
    let mut attach = Running::start(&stage, command);
    assert!(until(LIMIT, || !stage.sessions().is_empty()));
    let supervisor = stage.session()["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let supervisor = supervisor.and_then(Pid::from_raw).expect("a process");
    kill_process(supervisor, Signal::KILL).expect("it tries");
    let told = attach.end();
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(
        told.stderr.contains("not known what was attached"),
        "{told}"
    );
    assert!(has_four_parts(&told.stderr), "{told}");
    ends(parent);
}

/// What it writes to its log is there behind a power cut.
fn syncs_what_it_writes(sharing: &mut Running, disk: &Disk, detach: &Outcome) {
    sharing.tell("write");
    assert_eq!(sharing.hear(), "write");
    let log = std::fs::read(disk.cut().path().join("log")).expect("the log");
    let written = log.iter().filter(|b| **b == b'k').count();
    assert_eq!(written, 16 * 4096, "{detach}");
}

/// Its own table of descriptors has none that lost `O_SYNC`.
#[test]
fn what_lost_o_sync_is_synced_behind_a_detach_beside_a_child_of_vfork() {
    if !as_root("what_lost_o_sync_is_synced_behind_a_detach_beside_a_child_of_vfork") {
        return;
    }
    // Where the first thread has ended, the process shows no memory by its own number.
    for leaves in [false, true] {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("vfork-and-o-sync"));
        let mut parent = sharing(&stage, disk.path());
        let pid = number(parent.pid());
        let session = stage.attach(&["--pid", &pid, "-u", "1h"]);
        for line in ["open", "leave"].into_iter().take(1 + usize::from(leaves)) {
            parent.tell(line);
            assert_eq!(parent.hear(), line);
        }
        has_one(&mut parent, "vfork 1000");
        // Where nobody is left that it can let go of, it may have ended by itself.
        let detach = stage.ask(&["detach", &session]);
        let is_named = detach.stdout.contains("1 descriptor lost");
        assert!(leaves || is_named, "{detach}");
        syncs_what_it_writes(&mut parent, &disk, &detach);
        ends(parent);
    }
}

/// The other one would write without a sync to what has lost its `O_SYNC`.
#[test]
fn processes_that_have_one_table_of_descriptors_are_left_alone() {
    let stage = Stage::new("one-table");
    let mut parent = sharing(&stage, &stage.work());
    let child = has_one(&mut parent, "table");
    for pid in [&child, &number(parent.pid())] {
        refused(
            &stage,
            pid,
            "has the same descriptors (clone with CLONE_FILES)",
        );
    }
    ends(parent);
}

/// One that is made while it is attached is in the session, and finds the mark.
#[test]
fn a_process_that_comes_to_have_ones_descriptors_syncs_what_lost_o_sync() {
    if !as_root("a_process_that_comes_to_have_ones_descriptors_syncs_what_lost_o_sync") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("later-table"));
    let mut parent = sharing(&stage, disk.path());
    let session = stage.attach(&["--pid", &number(parent.pid()), "-u", "1h"]);
    has_one(&mut parent, "table");
    let detach = stage.ask(&["detach", &session]);
    assert!(detach.status.success(), "{detach}");
    syncs_what_it_writes(&mut parent, &disk, &detach);
    ends(parent);
}

/// Whoever is listed has ended when it is compared, and whom it has made was not listed.
#[test]
fn processes_that_come_and_go_in_one_memory_are_seen_by_attach_and_detach() {
    let stage = Stage::new("chain");
    for attaches_first in [false, true] {
        let mut parent = sharing(&stage, &stage.work());
        let pid = number(parent.pid());
        let session = attaches_first.then(|| stage.attach(&["--pid", &pid, "-u", "1h"]));
        has_one(&mut parent, "chain 2");
        if let Some(session) = session {
            let detach = stage.ask(&["detach", &session]);
            assert_eq!(detach.status.code(), Some(125), "{detach}");
            let said = detach.stdout.clone() + &detach.stderr;
            assert!(said.contains("runs in its memory"), "{detach}");
        } else {
            is_refused(&stage, &pid);
        }
        ends(parent);
    }
}

/// Of many that wait for their turn not each is compared with each.
#[test]
fn of_many_processes_none_that_has_anothers_memory_is_entered() {
    let stage = Stage::new("many-share");
    // Others of this program belong to other tests.
    let its = stage.copy_of(&program("sharing"));
    let one = || executed(&stage, &its, &stage.work());
    let mut parents: Vec<Running> = (0..3).map(|_| one()).collect();
    for parent in &mut parents {
        has_one(parent, "child");
    }
    let alone = one();
    let attach = stage.ask(&["attach", "--exe", &its.display().to_string(), "-u", "1h"]);
    let refused = attach.stderr.matches("runs in its memory").count();
    assert_eq!(refused, 6, "{attach}");
    assert!(attach.stdout.contains("1 process attached"), "{attach}");
    parents.into_iter().for_each(ends);
    ends(alone);
}

/// Without rights they cannot be compared (kcmp(2)); their memory has another size.
#[test]
fn a_process_of_another_group_keeps_nobody_from_being_attached_or_let_go_of() {
    if !as_root("a_process_of_another_group_keeps_nobody_from_being_attached_or_let_go_of") {
        return;
    }
    let stage = Stage::for_nobody("another-group");
    let as_nobody = |group: u32| {
        let mut command = stage.with_folders("setpriv");
        command.args(["--reuid=65534", "--clear-groups"]);
        command.args([&format!("--regid={group}"), "--"]);
        command
    };
    let begin = |group: u32| {
        let mut command = as_nobody(group);
        command.arg(program("sharing")).arg(stage.work());
        let mut begun = Running::start(&stage, command);
        assert_eq!(begun.hear(), "ready");
        begun
    };
    let (one, mut other) = (begin(65534), begin(100));
    has_one(&mut other, "child");
    let ask = |words: &[&str]| {
        let mut command = as_nobody(65534);
        run(command.arg(SYNCLATER).args(words))
    };
    let pid = number(one.pid());
    let told = ask(&["attach", "--json", "--pid", &pid, "-u", "1h"]).must_succeed();
    let told: Value = serde_json::from_str(&told.stdout).expect("JSON");
    ask(&["detach", told["id"].as_str().expect("an id")]).must_succeed();
    // One that has its memory is not taken for that.
    let mut its = sharing(&stage, &stage.work());
    has_one(&mut its, "apart");
    let told = ask(&["attach", "--pid", &number(its.pid()), "-u", "1h"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(told.stderr.contains("may not be compared"), "{told}");
    [one, other, its].into_iter().for_each(ends);
}
