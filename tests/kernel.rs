//! The engine behind `record --system`: each request of a program is seen once, whatever made it,
//! filters hold, what a full ring loses is counted exactly. Needs root and the feature `bpf`.

pub mod stage;

use crate::harness::command::{clean, run};
use crate::harness::disk::Disk;
use crate::harness::limits::{count, skip};
use stage::{by_kind, can_watch, each_sync, part_of, watch, Bits, Watched};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_bpf::{cgroup_id, Event, Filter, Kind, Route};

const ROUNDS: u64 = 5;
/// Large enough for everything that a test here makes.
const RING: usize = 4 << 20;

/// What a part of `each_sync` makes in one round.
fn made_by(part: char) -> Vec<(Kind, u64)> {
    match part {
        'c' => vec![
            (Kind::Fsync, 1),
            (Kind::Fdatasync, 1),
            (Kind::Syncfs, 1),
            (Kind::Msync, 1),
            (Kind::SyncFileRange, 1),
        ],
        'w' => vec![
            (Kind::WriteDsync, 2),
            (Kind::WriteSync, 2),
            (Kind::WriteRwfDsync, 1),
            (Kind::WriteRwfSync, 1),
        ],
        'e' => vec![(Kind::Fsync, 1), (Kind::Fdatasync, 1), (Kind::IoUring, 1)],
        'a' => vec![(Kind::Libaio, 3)],
        's' => vec![(Kind::IoUring, 1)],
        'u' => vec![
            (Kind::IoUring, 3),
            (Kind::IoUringRange, 1),
            (Kind::WriteDsync, 2),
            (Kind::WriteRwfSync, 1),
        ],
        other => panic!("no such part: {other}"),
    }
}

fn made(parts: &str) -> BTreeMap<Kind, u64> {
    let mut sum = BTreeMap::new();
    for (kind, n) in parts.chars().flat_map(made_by) {
        *sum.entry(kind).or_default() += n * ROUNDS;
    }
    sum
}

fn each(dir: &Path, parts: &str, bits: Bits) -> Command {
    let mut command = clean(each_sync(bits));
    command.arg(dir).arg(ROUNDS.to_string()).arg(parts);
    command
}

fn only(pid: u32) -> Filter {
    Filter {
        pids: [pid].into(),
        ..Filter::default()
    }
}

/// The file of a request is the one that its kind is made on.
fn has_its_file(e: &Event, dir: &Path) {
    let is_write = |kind| matches!(kind, Kind::WriteDsync | Kind::WriteSync);
    let name = match e.kind {
        kind if is_write(kind) && kind == Kind::WriteSync => "osync",
        kind if is_write(kind) => "dsync",
        Kind::Libaio if e.path == Some(dir.join("dsync")) => "dsync",
        _ => "plain",
    };
    let path = dir.join(name);
    let file = path.metadata().expect("the file");
    assert_eq!(e.path.as_ref(), Some(&path), "{e:#?}");
    assert_eq!(e.inode, Some(file.ino()), "{e:#?}");
    assert!(!e.path_cut && !e.deleted, "{e:#?}");
}

// --- Routes --------------------------------------------------------------------------------------

#[test]
fn each_request_is_seen_once_on_each_file_system() {
    if !can_watch("each_request_is_seen_once_on_each_file_system") {
        return;
    }
    for (kind, size_mib) in [("ext4", 32), ("xfs", 300), ("btrfs", 128)] {
        let disk = Disk::new(kind, size_mib);
        let program = each(disk.path(), "cwau", Bits::Native);
        let seen = watch(&program, RING, only).must_succeed();
        assert_eq!(by_kind(&seen.events), made("cwau"), "{kind}");
        for e in &seen.events {
            has_its_file(e, disk.path());
            assert_eq!(e.fstype.as_deref(), Some(kind), "{e:#?}");
            let queued = e.kind == Kind::Libaio;
            assert_eq!(e.duration_ns.is_none(), queued, "{e:#?}");
            assert!(e.errno().is_none(), "{e:#?}");
            let process = e.process.as_ref().expect("the process");
            assert_eq!(process.exe, Some(each_sync(Bits::Native)));
            assert_eq!(process.args.len(), 4, "{process:?}");
        }
    }
}

#[test]
fn an_entry_of_a_ring_that_completes_in_silence_is_seen_at_its_submission() {
    if !can_watch("an_entry_of_a_ring_that_completes_in_silence_is_seen_at_its_submission") {
        return;
    }
    let disk = Disk::in_memory();
    let seen = watch(&each(disk.path(), "su", Bits::Native), RING, only).must_succeed();
    assert_eq!(by_kind(&seen.events), made("su"));
    let silent = seen.events.iter().filter(|e| e.result.is_none());
    assert_eq!(silent.count() as u64, ROUNDS);
    seen.events
        .iter()
        .for_each(|e| has_its_file(e, disk.path()));
}

#[test]
fn a_sync_of_everything_is_one_request_without_a_file() {
    if !can_watch("a_sync_of_everything_is_one_request_without_a_file") {
        return;
    }
    let seen = watch(clean("sync").arg("--"), RING, only).must_succeed();
    assert_eq!(by_kind(&seen.events), [(Kind::Sync, 1)].into());
    let e = &seen.events[0];
    assert_eq!((e.path.as_ref(), e.fd, e.device), (None, None, None));
    assert_eq!(e.result, Some(0));
}

#[test]
fn a_refused_call_is_a_request_with_its_error() {
    if !can_watch("a_refused_call_is_a_request_with_its_error") {
        return;
    }
    let dir = Disk::in_memory();
    let seen = watch(&each(dir.path(), "e", Bits::Native), RING, only).must_succeed();
    assert_eq!(by_kind(&seen.events), made("e"));
    for e in &seen.events {
        let bad = e.kind != Kind::Fdatasync;
        assert_eq!(e.errno(), Some(if bad { 9 } else { 22 }), "{e:#?}");
        assert_eq!(e.fd == Some(999), bad, "{e:#?}");
        assert_eq!(e.path, None, "{e:#?}");
    }
}

#[test]
fn writes_that_sync_are_seen_at_the_file_system_where_calls_are_not_watched() {
    if !can_watch("writes_that_sync_are_seen_at_the_file_system_where_calls_are_not_watched") {
        return;
    }
    for (kind, size_mib) in [("ext4", 32), ("xfs", 300), ("btrfs", 128)] {
        let disk = Disk::new(kind, size_mib);
        let filter = |pid| Filter {
            writes: false,
            ..only(pid)
        };
        let program = each(disk.path(), "cw", Bits::Native);
        let seen = watch(&program, RING, filter).must_succeed();
        assert_eq!(by_kind(&seen.events), made("cw"), "{kind}");
        for e in &seen.events {
            has_its_file(e, disk.path());
            let route = part_of(&made("w"), e.kind).then_some(Route::FileSystem);
            assert_eq!(e.route, route.unwrap_or(Route::Call), "{e:#?}");
            let timed = e.route == Route::Call || kind == "ext4";
            assert_eq!(e.duration_ns.is_some(), timed, "{e:#?}");
        }
    }
}

#[test]
fn what_a_32_bit_program_syncs_is_seen_at_the_file_system() {
    if !can_watch("what_a_32_bit_program_syncs_is_seen_at_the_file_system") {
        return;
    }
    for (kind, size_mib) in [("ext4", 32), ("xfs", 300), ("btrfs", 128)] {
        let disk = Disk::new(kind, size_mib);
        let seen = watch(&each(disk.path(), "cw", Bits::Small), RING, only).must_succeed();
        let mut expected = made("cw");
        // These reach no file.
        expected.remove(&Kind::Syncfs);
        expected.remove(&Kind::SyncFileRange);
        assert_eq!(by_kind(&seen.events), expected, "{kind}");
    }
}

#[test]
fn a_write_on_a_mount_with_sync_is_seen_as_other() {
    if !can_watch("a_write_on_a_mount_with_sync_is_seen_as_other") {
        return;
    }
    let disk = Disk::new("ext4", 32);
    let mut remount = clean("mount");
    run(remount.args(["-o", "remount,sync"]).arg(disk.path())).must_succeed();
    let file = disk.path().join("file");
    let mut program = clean("dd");
    program.args(["if=/dev/zero", "bs=4096", "count=3", "status=none"]);
    program.arg(format!("of={}", file.display()));
    let seen = watch(&program, RING, only).must_succeed();
    assert_eq!(by_kind(&seen.events), [(Kind::Other, 3)].into());
    assert_eq!(seen.events[0].path, Some(file));
}

#[test]
fn the_fsyncs_of_fio_through_io_uring_are_seen() {
    if !can_watch("the_fsyncs_of_fio_through_io_uring_are_seen") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    let mut fio = clean("fio");
    fio.args([
        "--name=job",
        "--ioengine=io_uring",
        "--rw=randwrite",
        "--bs=4k",
    ]);
    fio.args(["--size=1M", "--fsync=1", "--output-format=json", "--thread"]);
    fio.arg(format!("--directory={}", disk.path().display()));
    let seen = watch(&fio, RING, only).must_succeed();
    let report: serde_json::Value = serde_json::from_str(&seen.stdout).expect("fio's report");
    let syncs = report["jobs"][0]["sync"]["total_ios"].as_u64();
    let syncs = syncs.expect("fio's count of syncs");
    assert!(syncs > 200, "{report:#}");
    assert_eq!(by_kind(&seen.events).get(&Kind::IoUring), Some(&syncs));
    for e in seen.events.iter().filter(|e| e.kind == Kind::IoUring) {
        assert_eq!(e.path, Some(disk.path().join("job.0.0")), "{e:#?}");
    }
    // The kernel may write back between a write and its fsync.
    let dirty = seen.events.iter().filter(|e| e.dirty == Some(true)).count();
    assert!(dirty as u64 > syncs / 2, "{dirty} of {syncs}");
}

// --- Filters -------------------------------------------------------------------------------------

/// A shell that runs `each_sync` `times` times, each a process of its own.
fn shell(dir: &Path, times: usize) -> Command {
    let mut command = clean("sh");
    let line = r#"for i in $(seq "$3"); do "$1" "$2" 5 c || exit; done"#;
    command.args(["-c", line, "sh"]);
    command.arg(each_sync(Bits::Native)).arg(dir);
    command.arg(times.to_string());
    command
}

fn times(expected: &BTreeMap<Kind, u64>, n: u64) -> BTreeMap<Kind, u64> {
    expected
        .iter()
        .map(|(kind, each)| (*kind, each * n))
        .collect()
}

#[test]
fn soak_a_process_is_watched_alone_or_with_its_descendants() {
    if !can_watch("soak_a_process_is_watched_alone_or_with_its_descendants") {
        return;
    }
    let dir = Disk::in_memory();
    let alone = watch(&shell(dir.path(), 2), RING, only).must_succeed();
    assert_eq!(by_kind(&alone.events), BTreeMap::new());
    let runs = count(20, 500);
    let all = |pid| Filter {
        descendants: true,
        ..only(pid)
    };
    let seen = watch(&shell(dir.path(), runs), RING, all).must_succeed();
    assert_eq!(by_kind(&seen.events), times(&made("c"), runs as u64));
    // Each is known by its executable, however short it lived.
    let exe = Some(each_sync(Bits::Native));
    for e in &seen.events {
        let process = e.process.as_ref().expect("the process");
        assert_eq!((&process.exe, process.pid), (&exe, e.pid), "{e:#?}");
    }
    let pids: std::collections::BTreeSet<u32> = seen.events.iter().map(|e| e.pid).collect();
    assert_eq!(pids.len(), runs);
}

#[test]
fn an_executable_is_watched_by_its_name_or_path() {
    if !can_watch("an_executable_is_watched_by_its_name_or_path") {
        return;
    }
    let dir = Disk::in_memory();
    // A copy of its own: other tests run the program too.
    let program = dir.path().join("a program of its own");
    crate::harness::command::copy_program(each_sync(Bits::Native), &program);
    let mut command = clean(&program);
    command.arg(dir.path()).arg(ROUNDS.to_string()).arg("c");
    let named = |name: &OsStr| Filter {
        exes: [name.to_owned()].into(),
        ..Filter::default()
    };
    let elsewhere = Path::new("/elsewhere").join(program.file_name().expect("a name"));
    let cases = [
        (program.file_name().expect("a name"), true),
        (program.as_os_str(), true),
        (elsewhere.as_os_str(), false),
        (OsStr::new("a program"), false),
    ];
    for (name, is_it) in cases {
        let seen = watch(&command, RING, |_| named(name)).must_succeed();
        let expected = if is_it { made("c") } else { BTreeMap::new() };
        assert_eq!(by_kind(&seen.events), expected, "{name:?}");
    }
}

#[test]
fn a_device_is_watched_alone() {
    if !can_watch("a_device_is_watched_alone") {
        return;
    }
    let (one, other) = (Disk::new("ext4", 32), Disk::new("xfs", 300));
    let number = one.path().metadata().expect("metadata").dev();
    let device = (rustix::fs::major(number), rustix::fs::minor(number));
    let on = |pid| Filter {
        devices: [device].into(),
        ..only(pid)
    };
    let mut both = clean("sh");
    both.args(["-c", r#""$1" "$2" 5 cwau && exec "$1" "$3" 5 cwaue"#, "sh"]);
    both.arg(each_sync(Bits::Native));
    both.arg(other.path()).arg(one.path());
    let seen = watch(&both, RING, |pid| Filter {
        descendants: true,
        ..on(pid)
    });
    let seen = seen.must_succeed();
    // Refused calls have no device.
    assert_eq!(by_kind(&seen.events), made("cwau"));
    assert!(seen.events.iter().all(|e| e.device == Some(device)));
}

#[test]
fn a_control_group_is_watched_with_all_below_it() {
    const NAME: &str = "a_control_group_is_watched_with_all_below_it";
    if !can_watch(NAME) {
        return;
    }
    let Some(group) = stage::Group::new() else {
        skip(NAME, "no control groups of version 2 here");
        return;
    };
    let below = group.path().join("below");
    std::fs::create_dir(&below).expect("a group in the group");
    let dir = Disk::in_memory();
    let filter = |_| Filter {
        cgroups: [cgroup_id(group.path()).expect("the group's id")].into(),
        ..Filter::default()
    };
    let mut inside = clean("sh");
    let line = r#"echo $$ >"$1/cgroup.procs" && exec "$2" "$3" 5 c"#;
    inside.args(["-c", line, "sh"]).arg(&below);
    inside.arg(each_sync(Bits::Native)).arg(dir.path());
    let seen = watch(&inside, RING, filter).must_succeed();
    assert_eq!(by_kind(&seen.events), made("c"));
    let outside = watch(&each(dir.path(), "c", Bits::Native), RING, filter).must_succeed();
    assert_eq!(by_kind(&outside.events), BTreeMap::new());
}

// --- Limits --------------------------------------------------------------------------------------

#[test]
fn what_a_full_ring_loses_is_counted_exactly() {
    if !can_watch("what_a_full_ring_loses_is_counted_exactly") {
        return;
    }
    let dir = Disk::in_memory();
    let seen = Watched::start(&each(dir.path(), "ccccwau", Bits::Native), 4096, only)
        .end_without_a_look()
        .must_succeed();
    let made: u64 = made("cwau").values().sum();
    let lost: u64 = seen.lost.values().sum();
    assert_eq!(seen.events.len() as u64 + lost, made, "{:?}", seen.lost);
    assert!(lost > 0 && !seen.events.is_empty());
    assert_eq!(seen.lost.keys().collect::<Vec<_>>(), [&seen.pid]);
}

#[test]
fn names_of_any_bytes_and_depth_are_told_as_they_are() {
    if !can_watch("names_of_any_bytes_and_depth_are_told_as_they_are") {
        return;
    }
    let disk = Disk::new("ext4", 32);
    let hostile = OsStr::from_bytes(b"\x1b[2J\n\xff \"'\\");
    let long = "x".repeat(255);
    let deep: PathBuf = std::iter::repeat_n("deep", 40).collect();
    for below in [Path::new(hostile), Path::new(&long), &deep] {
        let dir = disk.path().join(below);
        std::fs::create_dir_all(&dir).expect("a directory");
        let seen = watch(&each(&dir, "c", Bits::Native), RING, only).must_succeed();
        assert_eq!(by_kind(&seen.events), made("c"));
        for e in &seen.events {
            assert_eq!(e.path, Some(dir.join("plain")), "{below:?}");
        }
    }
    // Too long to be told: the end of the path is, and it says that the beginning is missing.
    let mut program = clean("sh");
    let line = r#"cd "$1" && for i in $(seq 15); do mkdir "$2" && cd "$2" || exit; done
                  : >file && exec sync file"#;
    let top = disk.path().join("top");
    std::fs::create_dir(&top).expect("a directory");
    program.args(["-c", line, "sh"]).arg(&top).arg(&long);
    let seen = watch(&program, RING, only).must_succeed();
    let [e] = &seen.events[..] else {
        panic!("{:#?}", seen.events);
    };
    assert!(e.path_cut, "{e:#?}");
    let path = e.path.as_ref().expect("its end");
    assert!(path.ends_with(Path::new(&long).join("file")) && path.is_relative());
}

#[test]
fn a_path_begins_at_the_root_that_the_process_has() {
    if !can_watch("a_path_begins_at_the_root_that_the_process_has") {
        return;
    }
    let disk = Disk::new("ext4", 32);
    let root = disk.path().join("root");
    std::fs::create_dir_all(root.join("inside")).expect("a root");
    crate::harness::command::copy_program(each_sync(Bits::Static), root.join("program"));
    let mut program = clean("chroot");
    program.arg(&root).args(["/program", "/inside", "5", "c"]);
    let seen = watch(&program, RING, only).must_succeed();
    assert_eq!(by_kind(&seen.events), made("c"));
    for e in &seen.events {
        assert_eq!(e.path.as_deref(), Some(Path::new("/inside/plain")));
    }
}

#[test]
fn a_needless_request_is_told_from_one_that_had_something_to_do() {
    if !can_watch("a_needless_request_is_told_from_one_that_had_something_to_do") {
        return;
    }
    for (kind, size_mib) in [("ext4", 32), ("xfs", 300), ("btrfs", 128)] {
        let disk = Disk::new(kind, size_mib);
        let mut program = clean("sh");
        // Nothing happens between the first sync of each file and the second.
        let line = r#"cd "$1" && echo x >f && sync f && sync f && echo y >>f && sync -d f &&
                      sync -d f && chmod 600 f && sync f && sync f"#;
        program.args(["-c", line, "sh"]).arg(disk.path());
        let all = |pid| Filter {
            descendants: true,
            ..only(pid)
        };
        let seen = watch(&program, RING, all).must_succeed();
        let dirty: Vec<_> = seen.events.iter().map(|e| e.dirty).collect();
        let expected = [true, false, true, false, true, false].map(Some);
        assert_eq!(dirty, expected, "{kind}: {:#?}", seen.events);
    }
}
