//! Every victim answers as without synclater: stdout, stderr and exit status, for each class of
//! program and each back end. The run without synclater is the oracle.

use crate::harness::backend::{backends, Backend, Scene};
use crate::harness::command::{run, Outcome};
use crate::harness::disk::Disk;
use crate::harness::limits::{count, needs_root};
use crate::harness::victims::{victim, Class, CLASSES};
use std::path::Path;

/// Runs a victim in a fresh directory.
fn outcome_of(name: &str, class: Class, backend: Backend) -> Outcome {
    let scene = Scene::new(name);
    run(scene
        .command(backend)
        .arg(victim(name, class))
        .arg(scene.work()))
}

/// The first lines that differ, or none.
fn difference(expected: &Outcome, got: &Outcome) -> Option<String> {
    let mut found = Vec::new();
    if expected.status != got.status {
        found.push(format!(
            "ended with {}, not {}",
            got.status, expected.status
        ));
    }
    for (name, want, have) in [
        ("stdout", &expected.stdout, &got.stdout),
        ("stderr", &expected.stderr, &got.stderr),
    ] {
        found.extend(first_difference(want, have).map(|text| format!("{name} {text}")));
    }
    (!found.is_empty()).then(|| format!("{}\n    {}", got.command, found.join("\n    ")))
}

fn first_difference(want: &str, have: &str) -> Option<String> {
    if want == have {
        return None;
    }
    let same = want
        .lines()
        .zip(have.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let line = |text: &str| text.lines().nth(same).unwrap_or("(nothing)").to_owned();
    let differing = want
        .lines()
        .zip(have.lines())
        .filter(|(a, b)| a != b)
        .count();
    Some(format!(
        "line {}, {differing} lines differ:\n      expected {}\n      got      {}",
        same + 1,
        line(want),
        line(have)
    ))
}

fn same_everywhere(name: &str) {
    compare(name, backends(), |class, backend| {
        outcome_of(name, class, backend)
    });
}

fn compare(
    name: &str,
    backends: impl Iterator<Item = Backend>,
    run_one: impl Fn(Class, Backend) -> Outcome,
) {
    compare_in(&CLASSES, name, backends, run_one);
}

fn compare_in(
    classes: &[Class],
    name: &str,
    backends: impl Iterator<Item = Backend>,
    run_one: impl Fn(Class, Backend) -> Outcome,
) {
    let backends: Vec<Backend> = backends.collect();
    let mut found = Vec::new();
    for &class in classes {
        let expected = run_one(class, Backend::None);
        assert!(
            !expected.stdout.is_empty(),
            "{name} says nothing: {expected}"
        );
        assert_ne!(expected.status.code(), Some(99), "{expected}");
        for backend in backends.iter().copied() {
            let got = run_one(class, backend);
            let differs = difference(&expected, &got);
            found.extend(differs.map(|text| format!("{class:?}, {backend:?}: {text}")));
        }
    }
    assert!(found.is_empty(), "{name}:\n  {}", found.join("\n  "));
}

#[test]
fn fsync_answers_as_the_kernel_does() {
    same_everywhere("fsync");
}

#[test]
fn fdatasync_answers_as_the_kernel_does() {
    same_everywhere("fdatasync");
}

#[test]
fn syncfs_answers_as_the_kernel_does() {
    same_everywhere("syncfs");
}

#[test]
fn sync_leaves_errno_alone() {
    same_everywhere("sync");
}

#[test]
fn descriptors_without_a_disk_are_refused_at_now_and_where_requests_look() {
    // Elsewhere procfs, sysfs, nsfs and pidfds answer 0: docs/LIMITS.md, "Special files".
    let exact = [Backend::Run("now"), Backend::Page("several")];
    compare("pseudo_files", exact.into_iter(), |class, backend| {
        outcome_of("pseudo_files", class, backend)
    });
}

#[test]
fn msync_answers_as_the_kernel_does() {
    same_everywhere("msync");
}

#[test]
fn sync_file_range_answers_as_the_kernel_does() {
    same_everywhere("sync_file_range");
}

#[test]
fn an_open_with_o_sync_looks_as_asked_for() {
    same_everywhere("open");
}

#[test]
fn a_fortified_open_looks_as_asked_for() {
    same_everywhere("open_fortified");
}

#[test]
fn a_fortified_open_that_would_create_ends_the_program() {
    same_everywhere("open_fortified_misuse");
}

#[test]
fn openat2_looks_as_asked_for() {
    same_everywhere("openat2");
}

#[test]
fn open_by_handle_at_looks_as_asked_for() {
    same_everywhere("open_by_handle_at");
}

#[test]
fn o_sync_survives_dup_fork_exec_and_sockets() {
    same_everywhere("osync_travels");
}

#[test]
fn an_open_with_o_sync_leaves_locks_and_watches_alone() {
    same_everywhere("osync_locks");
}

#[test]
fn o_sync_on_fifos_and_devices_changes_nothing() {
    same_everywhere("osync_special");
}

#[test]
fn writes_to_o_sync_files_answer_as_the_kernel_does() {
    same_everywhere("write_sync");
}

#[test]
fn pwritev2_with_sync_flags_answers_as_the_kernel_does() {
    same_everywhere("pwritev2");
}

/// The library by itself takes every file for one that it may answer for.
#[test]
fn flags_that_a_file_refuses_write_nothing() {
    let in_sessions = backends().filter(|backend| *backend != Backend::Alone);
    compare("refused_flags", in_sessions, |class, backend| {
        outcome_of("refused_flags", class, backend)
    });
}

#[test]
fn aio_fsync_completes_as_asked_for() {
    same_everywhere("aio_fsync");
}

#[test]
fn io_submit_completes_as_asked_for() {
    same_everywhere("io_submit");
}

#[test]
fn libaio_completes_as_asked_for() {
    same_everywhere("io_submit_libaio");
}

#[test]
fn io_uring_completes_as_asked_for() {
    same_everywhere("io_uring");
}

#[test]
fn every_entry_of_a_ring_completes_while_the_ledger_is_written() {
    same_everywhere("io_uring_rounds");
}

#[test]
fn every_write_of_libaio_completes_while_the_ledger_is_written() {
    same_everywhere("io_submit_rounds");
}

#[test]
fn nobody_writes_to_a_block_of_libaio_whose_completion_was_taken() {
    same_everywhere("aio_reaped");
}

#[test]
fn a_block_of_libaio_is_submitted_by_several_threads() {
    same_everywhere("aio_shared");
}

/// What is attached or followed takes more: docs/LIMITS.md.
#[test]
fn requests_are_made_on_small_stacks_too() {
    let library = backends().filter(|b| {
        let is_other = matches!(b, Backend::Attached(_) | Backend::Followed(_));
        !is_other && !matches!(b, Backend::Net(_))
    });
    compare("small_stacks", library, |class, backend| {
        outcome_of("small_stacks", class, backend)
    });
}

#[test]
fn syscall_passes_every_number_and_argument() {
    same_everywhere("syscall");
}

#[test]
fn cancellation_points_are_those_of_the_libc() {
    same_everywhere("cancel");
}

#[test]
fn reads_answer_as_the_kernel_does() {
    same_everywhere("read");
}

#[test]
fn closes_let_go_what_the_libc_s_own_do() {
    same_everywhere("close");
}

#[test]
fn renames_answer_as_the_kernel_does() {
    same_everywhere("rename");
}

#[test]
fn calls_on_files_answer_as_the_kernel_does() {
    same_everywhere("files");
}

#[test]
fn vfork_and_exec_go_on_as_before() {
    same_everywhere("vfork_exec");
}

#[test]
fn threads_keep_their_errno() {
    same_everywhere("threads");
}

#[test]
fn every_process_of_a_tree_is_answered() {
    same_everywhere("fork_tree");
}

/// What reaches programs that load no library: every kind of call that it looks at.
#[test]
fn static_32_bit_programs_answer_as_the_kernel_does() {
    let all = [
        "fsync",
        "fdatasync",
        "syncfs",
        "sync",
        "msync",
        "sync_file_range",
        "open",
        "openat2",
        "open_by_handle_at",
        "osync_travels",
        "osync_locks",
        "osync_special",
        "write_sync",
        "pwritev2",
        "io_submit",
        "syscall",
        "cancel",
        "vfork_exec",
        "threads",
        "fork_tree",
    ];
    let reaches = |b: &Backend| matches!(b, Backend::Attached(_) | Backend::Followed(_));
    for name in all {
        let backends = backends().filter(reaches);
        compare_in(&[Class::SmallStatic], name, backends, |class, backend| {
            outcome_of(name, class, backend)
        });
    }
}

#[test]
fn umount_works_where_something_is_owed() {
    if !needs_root("umount_works_where_something_is_owed") {
        return;
    }
    // Without a supervisor nobody would let go of the file system.
    let supervised = || backends().filter(|b| !matches!(b, Backend::Page(_)));
    let unmounted = |class, backend, way: &[&str]| {
        let (disk, scene) = (Disk::new("ext4", 16), Scene::new("umount"));
        let outcome = run(scene
            .command(backend)
            .arg(victim("umount", class))
            .arg(disk.path())
            .args(way));
        assert!(!disk.is_mounted(), "still mounted: {outcome}");
        outcome
    };
    compare("umount", supervised(), |class, backend| {
        unmounted(class, backend, &[])
    });
    // musl's syscall(3) is out of reach of attach.
    let classes = [Class::Native, Class::Small];
    compare_in(&classes, "umount", supervised(), |class, backend| {
        unmounted(class, backend, &["by its number"])
    });
}

/// Looks at the mounts' paths made 300 of 2,100 find it in use on a busy machine of two processors,
/// and children that had not closed what they inherited 10 of 2,100. Since neither is there any
/// more 1 of 10,700 was.
#[test]
fn soak_who_unmounts_hardly_ever_finds_us_holding_on() {
    if !needs_root("soak_who_unmounts_hardly_ever_finds_us_holding_on") {
        return;
    }
    let rounds = count(200, 5000);
    let (disk, scene) = (Disk::new("ext4", 16), Scene::new("umounts"));
    let outcome = run(scene
        .command(Backend::Run("exit"))
        .arg(victim("umounts", Class::Native))
        .arg(disk.path())
        .arg(rounds.to_string()))
    .must_succeed();
    let in_use: usize = outcome.stdout.trim().parse().expect("a number");
    println!("{in_use} of {rounds} in use");
    assert!(in_use <= 1 + rounds / 500, "{outcome}");
}

#[test]
fn every_victim_has_a_test() {
    let tests = [include_str!("fidelity.rs"), include_str!("mixed_tree.rs")];
    let files = std::fs::read_dir(crate::harness::victims::directory()).expect("tests/victims");
    let names = files.filter_map(|entry| {
        let path = entry.expect("entry").path();
        let is_program = path.extension().is_some_and(|e| e == "c");
        let name = Path::new(path.file_stem()?).display().to_string();
        is_program.then_some(name)
    });
    let missing: Vec<String> = names
        .filter(|name| !tests.iter().any(|t| t.contains(&format!("(\"{name}\""))))
        .collect();
    assert!(missing.is_empty(), "victims without a test: {missing:?}");
}
