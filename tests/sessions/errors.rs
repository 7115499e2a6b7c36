//! Writes that are lost: a disk that has less room than it says, a loop device on an image in a
//! tmpfs of limited size.

use super::stage::{as_root, has_four_parts, pass, program, Running, Stage, AS_NOBODY, SYNCLATER};
use crate::harness::command::{clean, copy_program, run, LIMIT};
use crate::harness::disk::{keep_mounts_private, SmallDisk};
use crate::wait::until;
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn is_lost_write(errno: i32) -> bool {
    errno == EIO || errno == ENOSPC
}

/// The name that a message gives an errno.
fn name_of(errno: i32) -> &'static str {
    if errno == EIO {
        "EIO"
    } else {
        "ENOSPC"
    }
}

/// The error is told by each later request, by the exit status, the message and the ledger.
fn is_told(stage: &Stage, disk: &SmallDisk, victim: &mut Running) {
    let mut errno = 0;
    let told = until(LIMIT, || {
        errno = victim.sync("file");
        errno != 0
    });
    assert!(told && is_lost_write(errno), "errno {errno}");
    for name in ["file", "another", "file"] {
        assert_eq!(victim.sync(name), errno, "{name}");
    }
    let end = victim.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    assert!(has_four_parts(&end.stderr), "{end}");
    let mount = disk.mount.display().to_string();
    for said in [&mount, &disk.device(), name_of(errno)] {
        assert!(end.stderr.contains(said), "{said}: {end}");
    }
    assert_eq!(stage.entries().len(), 1, "the entry was closed");
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stdout.contains(&mount), "{status}");
    let status = stage.ask(&["status", "--json"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    let all: serde_json::Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(all[0]["outcome"], "lost_writes", "{status}");
    assert_eq!(all[0]["error"], name_of(errno), "{status}");
}

#[test]
fn a_lost_write_is_told_by_every_later_request_of_a_duration() {
    if !as_root("a_lost_write_is_told_by_every_later_request_of_a_duration") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::new("lost"));
    let mut victim = stage.demand_on(&disk.mount, &["-u", "300ms"]);
    stage.warm(&mut victim);
    assert_eq!(victim.sync("another"), 0);
    victim.tell("write big 40");
    assert_eq!(victim.hear(), "write 0");
    is_told(&stage, &disk, &mut victim);
}

#[test]
fn a_lost_write_is_told_by_every_request_after_a_settle() {
    if !as_root("a_lost_write_is_told_by_every_request_after_a_settle") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::new("lost"));
    let mut victim = stage.demand_on(&disk.mount, &[]);
    stage.warm(&mut victim);
    assert_eq!(victim.sync("another"), 0);
    victim.tell("write big 40");
    assert_eq!(victim.hear(), "write 0");
    let settle = stage.ask(&["settle", &stage.id()]);
    assert_eq!(settle.status.code(), Some(125), "{settle}");
    assert!(has_four_parts(&settle.stderr), "{settle}");
    is_told(&stage, &disk, &mut victim);
}

#[test]
fn a_lost_write_at_the_end_fails_a_command_that_succeeded() {
    if !as_root("a_lost_write_at_the_end_fails_a_command_that_succeeded") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::new("lost"));
    let json = stage.json();
    let mut victim = stage.demand_on(&disk.mount, &[&json[0], &json[1]]);
    stage.warm(&mut victim);
    victim.tell("write big 40");
    let end = victim.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    let device = disk.device();
    assert!(end.stderr.contains(&device), "{end}");
    let report = stage.report();
    assert_eq!(report["exit_status"], 125, "{report:#}");
    assert_eq!(report["settled"], 0, "{report:#}");
    assert_eq!(stage.entries().len(), 1, "the entry was closed");
}

/// A session of `as_whom` in which more is written than the disk takes, and that is put off.
fn lossy(as_whom: &[&str], disk: &SmallDisk, stage: &Stage) -> Running {
    for copy in [SYNCLATER.as_ref(), program("demand").as_path()] {
        let name = Path::new(copy).file_name().expect("a name");
        copy_program(copy, stage.work().join(name));
    }
    if as_whom.is_empty() {
        for dir in ["work", "run", "state"] {
            run(clean("chown").arg("0").arg(stage.file(dir))).must_succeed();
        }
    }
    let mut command = stage.with_folders("env");
    command.args(as_whom).arg("env");
    command
        .arg(stage.work().join("synclater"))
        .args(["run", "--quiet", "--"]);
    command.arg(stage.work().join("demand")).arg(&disk.mount);
    let mut victim = Running::start(stage, command);
    // Others' sessions are not in root's list: so it is asked for a while instead.
    for _ in 0..50 {
        assert_eq!(victim.sync("file"), 0);
        pass(Duration::from_millis(20));
    }
    victim.tell("write big 40");
    assert_eq!(victim.hear(), "write 0");
    // Somebody may have had all written, and lost, meanwhile.
    let told = victim.sync("file");
    assert!(
        [0, rustix::io::Errno::IO.raw_os_error()].contains(&told),
        "{told}"
    );
    victim
}

/// The keeper settles for a supervisor that stands still, and so meets the error first.
fn a_stop_hides_no_error(as_whom: &[&str]) {
    let (disk, stage) = (SmallDisk::new(), Stage::for_nobody("stopped-lost"));
    let mut victim = lossy(as_whom, &disk, &stage);
    victim.send(Signal::STOP);
    // The lease, and the keeper's settle.
    pass(Duration::from_secs(4));
    victim.send(Signal::CONT);
    let end = victim.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    assert!(end.stderr.contains("writes were lost"), "{end}");
}

#[test]
fn a_lost_write_that_the_keeper_met_fails_the_run() {
    if as_root("a_lost_write_that_the_keeper_met_fails_the_run") {
        a_stop_hides_no_error(&[]);
    }
}

#[test]
fn a_lost_write_that_the_keeper_met_fails_the_run_of_a_user_without_rights() {
    if as_root("a_lost_write_that_the_keeper_met_fails_the_run_of_a_user_without_rights") {
        a_stop_hides_no_error(&AS_NOBODY);
    }
}

#[test]
fn where_no_process_can_be_had_a_lost_write_fails_the_run() {
    if !as_root("where_no_process_can_be_had_a_lost_write_fails_the_run") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::for_nobody("crowded"));
    let mut victim = lossy(&AS_NOBODY, &disk, &stage);
    let mut limit = clean(AS_NOBODY[0]);
    limit.args(&AS_NOBODY[1..]).args(["prlimit", "--nproc=1:1"]);
    let pid = victim.pid().as_raw_nonzero();
    run(limit.arg(format!("--pid={pid}"))).must_succeed();
    let end = victim.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    assert!(end.stderr.contains("writes were lost"), "{end}");
}

#[test]
fn a_loop_device_that_was_written_to_can_be_unmounted_inside_the_run() {
    let name = "a_loop_device_that_was_written_to_can_be_unmounted_inside_the_run";
    if !as_root(name) {
        return;
    }
    keep_mounts_private();
    let stage = Stage::new("builder");
    // Whoever looks at all loop devices, another test say, has this one open for a moment.
    let script = "set -e; cd \"$1\"; mkdir mnt; truncate -s 16M img; mkfs.ext4 -q img; \
        for round in 1 2 3; do mount -o loop img mnt; \
        dd if=/dev/zero of=mnt/f bs=4k count=9 conv=fsync status=none; sync; \
        \"$2\" mnt 2 300; umount mnt; done; \
        timeout 10 sh -c 'while losetup -j img | grep -q .; do :; done' || losetup -j img; \
        mountpoint mnt || true";
    let json = stage.json();
    let mut command = stage.synclater(&["run", "--quiet", &json[0], &json[1], "--"]);
    command.args(["sh", "-c", script, "sh"]).arg(stage.work());
    let outcome = run(command.arg(program("hammer"))).must_succeed();
    assert!(
        !outcome.stdout.contains("/dev/loop"),
        "the device is held: {outcome}"
    );
    assert!(outcome.stdout.contains("is not a mountpoint"), "{outcome}");
    let report = stage.report();
    assert!(report["requests"].as_u64() >= Some(900), "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
    let check = run(clean("fsck.ext4").arg("-fn").arg(stage.work().join("img")));
    check.must_succeed();
}
