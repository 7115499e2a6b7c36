//! Mounts that others make, move and take away, and numbers that are used again.

use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{keep_mounts_private, Disk};
use crate::sessions::stage::{as_root, program};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Unmounts a disk, and keeps it on a loop device of its own until that is detached.
pub(super) fn unmounted(disk: &Disk) -> String {
    let mut setup = clean("losetup");
    setup.args(["--find", "--show"]).arg(disk.image());
    let device = run(&mut setup).must_succeed().stdout.trim().to_owned();
    umount(disk.path());
    device
}

#[test]
fn a_file_system_that_root_mounts_meanwhile_loses_nothing() {
    if !as_root("a_file_system_that_root_mounts_meanwhile_loses_nothing") {
        return;
    }
    for kind in ["ext4", "xfs", "btrfs"] {
        let disk = Disk::new(kind, 320);
        let device = unmounted(&disk);
        let stage = Stage::new("mounted");
        let mut scribe = scribe(&stage, &[]);
        mount(&["-t", kind], &device, disk.path());
        run(clean("losetup").arg("-d").arg(&device)).must_succeed();
        save(&mut scribe, disk.path(), &NAMES);
        warm(&stage, &mut scribe, disk.path());
        ends_well(&stage, &mut scribe);
        are_whole(disk.cut().path(), &NAMES);
    }
}

/// Options of an overlay with all its folders in one.
pub(super) fn overlay_on(at: &Path) -> String {
    for dir in ["lower", "upper", "work"] {
        std::fs::create_dir(at.join(dir)).expect("a directory");
    }
    let of = |dir: &str| at.join(dir).display().to_string();
    let (lower, upper, work) = (of("lower"), of("upper"), of("work"));
    format!("lowerdir={lower},upperdir={upper},workdir={work}")
}

#[test]
fn a_number_that_a_tmpfs_had_is_not_taken_for_memory() {
    if !as_root("a_number_that_a_tmpfs_had_is_not_taken_for_memory") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    let stage = Stage::new("number");
    let at = stage.work().join("at");
    std::fs::create_dir(&at).expect("a mount point");
    let options = overlay_on(disk.path());
    let mut scribe = scribe(&stage, &[]);
    let number = || std::fs::metadata(&at).expect("the mount").dev();
    // Others use numbers too: until it is the same.
    let same = (0..50).any(|_| {
        mount(&["-t", "tmpfs"], "none", &at);
        let before = number();
        save(&mut scribe, &at, &["t"]);
        umount(&at);
        mount(&["-t", "overlay", "-o", &options], "none", &at);
        let same = number() == before;
        if !same {
            umount(&at);
        }
        same
    });
    assert!(same, "the number is not used again");
    save(&mut scribe, &at, &NAMES);
    ends_well(&stage, &mut scribe);
    umount(&at);
    are_whole(&disk.cut().path().join("upper"), &NAMES);
}

fn subvolume(verb: &str, at: &Path) {
    run(clean("btrfs").args(["-q", "subvolume", verb]).arg(at)).must_succeed();
}

fn number_of(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").dev()
}

/// Has something be put off in a subvolume and deletes that; then has `make` make things until one
/// has its number: others use numbers too, and leave some free.
fn take_over(
    stage: &Stage,
    scribe: &mut Running,
    disk: &Disk,
    make: impl Fn(usize) -> PathBuf,
) -> PathBuf {
    const TRIES: usize = 8;
    let mut again = |round: usize| {
        let from = disk.path().join("from");
        subvolume("create", &from);
        warm(stage, scribe, &from);
        let number = number_of(&from);
        subvolume("delete", &from);
        let mut made = (round * TRIES..(round + 1) * TRIES).map(&make);
        made.find(|at| number_of(at) == number)
    };
    let taken = (0..10).find_map(&mut again);
    taken.expect("the number is not used again")
}

#[test]
fn a_number_that_a_deleted_subvolume_had_is_not_taken_for_its_file_system() {
    if !as_root("a_number_that_a_deleted_subvolume_had_is_not_taken_for_its_file_system") {
        return;
    }
    let (first, other) = (Disk::new("btrfs", 320), Disk::new("btrfs", 320));
    let stage = Stage::new("subvolume");
    let mut scribe = scribe(&stage, &[]);
    let to = take_over(&stage, &mut scribe, &first, |k| {
        let to = other.path().join(format!("to-{k}"));
        subvolume("create", &to);
        to
    });
    save(&mut scribe, &to, &NAMES);
    warm(&stage, &mut scribe, &to);
    ends_well(&stage, &mut scribe);
    let name = to.file_name().expect("its name");
    are_whole(&other.cut().path().join(name), &NAMES);
}

#[test]
fn a_btrfs_of_which_only_a_subvolume_owes_is_unmounted_by_the_program() {
    if !as_root("a_btrfs_of_which_only_a_subvolume_owes_is_unmounted_by_the_program") {
        return;
    }
    let (disk, stage) = (Disk::new("btrfs", 320), Stage::new("subvolume-umount"));
    let sub = disk.path().join("sub");
    subvolume("create", &sub);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &sub);
    save(&mut scribe, &sub, &NAMES);
    let line = format!("umount {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0, "{line}");
    are_whole(&disk.cut().path().join("sub"), &NAMES);
    ends_well(&stage, &mut scribe);
}

#[test]
fn a_number_that_a_subvolume_had_is_not_taken_for_it_on_an_overlay() {
    if !as_root("a_number_that_a_subvolume_had_is_not_taken_for_it_on_an_overlay") {
        return;
    }
    let (first, other) = (Disk::new("btrfs", 320), Disk::new("ext4", 64));
    let stage = Stage::new("subvolume-overlay");
    let mut scribe = scribe(&stage, &[]);
    let at = take_over(&stage, &mut scribe, &first, |k| {
        let at = other.path().join(k.to_string());
        std::fs::create_dir(&at).expect("a directory");
        let options = overlay_on(&at);
        mount(&["-t", "overlay", "-o", &options], "none", &at);
        at
    });
    save(&mut scribe, &at, &NAMES);
    warm(&stage, &mut scribe, &at);
    ends_well(&stage, &mut scribe);
    let name = at.file_name().expect("its name");
    are_whole(&other.cut().path().join(name).join("upper"), &NAMES);
}

#[test]
fn a_file_in_a_deleted_subvolume_is_synced_for_real() {
    if !as_root("a_file_in_a_deleted_subvolume_is_synced_for_real") {
        return;
    }
    let disk = Disk::new("btrfs", 320);
    let stage = Stage::new("deleted");
    let volume = disk.path().join("volume");
    let mut scribe = scribe(&stage, &[]);
    subvolume("create", &volume);
    warm(&stage, &mut scribe, &volume);
    let kept = volume.join("kept");
    assert_eq!(does(&mut scribe, &format!("open 1 {}", kept.display())), 0);
    assert_eq!(does(&mut scribe, "keep 1"), 0);
    let (requests, skipped) = stage.counted();
    subvolume("delete", &volume);
    for _ in 0..5 {
        assert_eq!(does(&mut scribe, "keep 1"), 0);
    }
    assert_eq!(stage.counted(), (requests + 5, skipped));
    warm(&stage, &mut scribe, disk.path());
    ends_well(&stage, &mut scribe);
}

#[test]
fn what_is_made_anew_over_an_ext4_is_not_taken_for_that() {
    if !as_root("what_is_made_anew_over_an_ext4_is_not_taken_for_that") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    let device = unmounted(&disk);
    mount(&[], &device, disk.path());
    let stage = Stage::new("anew");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let line = format!("umount {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), 0);
    run(clean("mkfs.ext2").args(["-q", "-F"]).arg(&device)).must_succeed();
    mount(&["-t", "ext2"], &device, disk.path());
    run(clean("losetup").arg("-d").arg(&device)).must_succeed();
    let is_later = is_put_off(&stage, &mut scribe, disk.path(), 20);
    ends_well(&stage, &mut scribe);
    assert!(!is_later, "ext2 is not on the tested list");
}

/// An overlay that writes to a tmpfs that is mounted nowhere any more, as of a container.
fn overlay_on_hidden(stage: &Stage) -> PathBuf {
    keep_mounts_private();
    let [hidden, at] = ["hidden", "at"].map(|name| stage.work().join(name));
    for dir in [&hidden, &at] {
        std::fs::create_dir(dir).expect("a mount point");
    }
    mount(&["-t", "tmpfs"], "none", &hidden);
    let options = overlay_on(&hidden);
    mount(&["-t", "overlay", "-o", &options], "none", &at);
    run(clean("umount").arg("-l").arg(&hidden)).must_succeed();
    at
}

#[test]
fn an_overlay_on_what_is_out_of_sight_and_no_disk_stays_real() {
    if !as_root("an_overlay_on_what_is_out_of_sight_and_no_disk_stays_real") {
        return;
    }
    let stage = Stage::new("hidden");
    let at = overlay_on_hidden(&stage);
    let mut scribe = scribe(&stage, &[]);
    let is_later = is_put_off(&stage, &mut scribe, &at, 20);
    ends_well(&stage, &mut scribe);
    umount(&at);
    assert!(!is_later, "it may be a FUSE");
}

#[test]
fn settle_claims_no_more_of_a_path_than_is_known_of_its_file_system() {
    if !as_root("settle_claims_no_more_of_a_path_than_is_known_of_its_file_system") {
        return;
    }
    let stage = Stage::new("claims");
    let hidden = overlay_on_hidden(&stage);
    let (old, whole) = (Disk::new("ext2", 16), Disk::new("ext4", 64));
    let paths = ["whole", "volatile", "lower", "over"].map(|name| stage.work().join(name));
    let [at, volatile, lower, over] = &paths;
    for dir in &paths {
        std::fs::create_dir(dir).expect("a mount point");
    }
    let options = overlay_on(whole.path());
    mount(&["-t", "overlay", "-o", &options], "none", at);
    let options = format!("{},volatile", overlay_on(lower));
    mount(&["-t", "overlay", "-o", &options], "none", volatile);
    // By the path of its upper folder it lies upon itself.
    let options = overlay_on(over);
    std::fs::create_dir(over.join("lower/upper")).expect("a folder");
    mount(&["-t", "overlay", "-o", &options], "none", over);
    assert!(over.join("upper").exists());
    let not_known = "file system written; whether it is durable is not known:";
    for (path, said) in [
        (hidden.as_path(), format!("{not_known} no disk is known")),
        (old.path(), format!("{not_known} not on the tested list")),
        (whole.path(), "file system settled".to_owned()),
        (at, "file system settled".to_owned()),
        (volatile, format!("{not_known} it is mounted volatile")),
        (over, format!("{not_known} what it writes to is not")),
    ] {
        let path = path.display().to_string();
        let settle = stage.ask(&["settle", &path]).must_succeed();
        let line = format!("{path}: {said}");
        assert!(settle.stdout.contains(&line), "{settle}");
    }
    for at in [&hidden, at, volatile, over] {
        umount(at);
    }
}

#[test]
fn a_disk_that_is_settled_by_its_device_has_all_of_its_file_system() {
    if !as_root("a_disk_that_is_settled_by_its_device_has_all_of_its_file_system") {
        return;
    }
    let stage = Stage::new("device");
    for kind in ["ext4", "xfs", "btrfs"] {
        let disk = Disk::new(kind, 320);
        std::fs::write(disk.path().join("file"), "written").expect("written");
        let hidden = "umount \"$1\" && shift && exec \"$@\"";
        let mut command = stage.with_folders("unshare");
        command
            .args(["-m", "sh", "-c", hidden, "sh"])
            .arg(disk.path());
        command.args([SYNCLATER, "settle", &disk.device()]);
        let settle = run(&mut command).must_succeed();
        let says = settle
            .stdout
            .contains("a file system on it holds in memory is not");
        assert!(says, "{kind}: {settle}");
        let settle = stage.ask(&["settle", &disk.device()]).must_succeed();
        assert!(
            settle.stdout.contains("file system settled"),
            "{kind}: {settle}"
        );
        let cut = disk.cut();
        let said = std::fs::read_to_string(cut.path().join("file")).unwrap_or_default();
        assert_eq!(said, "written", "{kind}");
    }
}

#[test]
fn a_mount_that_is_moved_over_a_tmpfs_loses_nothing() {
    if !as_root("a_mount_that_is_moved_over_a_tmpfs_loses_nothing") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    let stage = Stage::new("moved");
    let (from, at) = (stage.work().join("from"), stage.work().join("at"));
    [&from, &at]
        .into_iter()
        .for_each(|d| std::fs::create_dir(d).expect("a mount point"));
    let mut command = session(&stage, &[]);
    command.args(["unshare", "-m", "--propagation", "private"]);
    let mut scribe = Running::start(&stage, {
        command.arg(tool("scribe"));
        command
    });
    scribe.be_ready();
    warm(&stage, &mut scribe, &stage.work());
    let pid = pid_of_scribe(&stage);
    let script = "set -e; mount --bind \"$1\" \"$2\"; mount -t tmpfs none \"$3\"; \
        mount --move \"$2\" \"$3\"";
    let mut inside = clean("nsenter");
    inside.args(["-t", &pid, "-m", "sh", "-c", script, "sh"]);
    run(inside.arg(disk.path()).arg(&from).arg(&at)).must_succeed();
    save(&mut scribe, &at, &NAMES);
    ends_well(&stage, &mut scribe);
    are_whole(disk.cut().path(), &NAMES);
}

pub(super) fn pid_of_scribe(stage: &Stage) -> String {
    let session = stage.session();
    let rows = session["processes"].as_array().expect("processes").clone();
    let is_it = |r: &&serde_json::Value| r["exe"].as_str().is_some_and(|x| x.ends_with("/scribe"));
    let row = rows.iter().find(is_it).expect("the scribe");
    row["pid"].to_string()
}

#[test]
fn an_umount_during_a_settle_drops_no_settle() {
    if !as_root("an_umount_during_a_settle_drops_no_settle") {
        return;
    }
    let disk = Disk::new("ext4", 320);
    let stage = Stage::new("during");
    let bound = stage.work().join("bound");
    std::fs::create_dir(&bound).expect("a mount point");
    mount(&["--bind"], &disk.path().display().to_string(), &bound);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let id = stage.id();
    for round in 0..5 {
        // Something to write, so that it takes its time.
        let big = disk.path().join(format!("big-{round}"));
        assert_eq!(does(&mut scribe, &format!("open 1 {}", big.display())), 0);
        assert_eq!(does(&mut scribe, "grow 1 24"), 0);
        let settle = Running::start(&stage, stage.synclater(&["settle", &id]));
        let late = [format!("late-{round}")];
        save(&mut scribe, disk.path(), &[&late[0]]);
        assert_eq!(does(&mut scribe, &format!("umount {}", bound.display())), 0);
        // It was settled before it was let go of, the late one too.
        are_whole(disk.cut().path(), &[&late[0]]);
        drop(settle);
        mount(&["--bind"], &disk.path().display().to_string(), &bound);
        warm(&stage, &mut scribe, disk.path());
    }
    ends_well(&stage, &mut scribe);
    umount(&bound);
}

#[test]
fn mounts_that_come_and_go_leave_no_places_taken() {
    if !as_root("mounts_that_come_and_go_leave_no_places_taken") {
        return;
    }
    keep_mounts_private();
    let stage = Stage::new("places");
    let at = stage.work().join("at");
    std::fs::create_dir(&at).expect("a mount point");
    let mut scribe = scribe(&stage, &[]);
    for _ in 0..300 {
        mount(&["-t", "tmpfs"], "none", &at);
        save(&mut scribe, &at, &["x"]);
        umount(&at);
    }
    mount(&["--bind"], &stage.work().display().to_string(), &at);
    warm(&stage, &mut scribe, &at);
    let (requests, skipped) = stage.counted();
    for _ in 0..50 {
        save(&mut scribe, &at, &["y"]);
    }
    assert_eq!(stage.counted(), (requests + 50, skipped + 50));
    assert_eq!(does(&mut scribe, &format!("umount {}", at.display())), 0);
    ends_well(&stage, &mut scribe);
}

#[test]
fn a_chroot_whose_root_is_no_mount_point_is_relaxed() {
    if !as_root("a_chroot_whose_root_is_no_mount_point_is_relaxed") {
        return;
    }
    let stage = Stage::new("plain-chroot");
    let root = stage.file("world");
    crate::odd_victims::furnish(&root, &[SYNCLATER.as_ref(), &program("hammer")]);
    for dir in ["proc", "tmp", "run", "var/lib", "var/cache", "dev/shm"] {
        std::fs::create_dir_all(root.join(dir)).expect("a directory of the chroot");
    }
    keep_mounts_private();
    let proc = root.join("proc");
    mount(&["-t", "proc"], "none", &proc);
    let mut command = clean("chroot");
    command.arg(&root).args([
        "/bin/synclater",
        "run",
        "--quiet",
        "--json",
        "/tmp/report",
        "--",
    ]);
    run(command.args(["/bin/hammer", "/tmp", "1", "2003"])).must_succeed();
    let text = std::fs::read_to_string(root.join("tmp/report")).expect("the report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    umount(&proc);
    assert!(report["skipped"].as_u64() > Some(0), "{report:#}");
}

#[test]
fn a_keeper_that_is_killed_during_an_umount_stands_in_nobodys_way() {
    if !as_root("a_keeper_that_is_killed_during_an_umount_stands_in_nobodys_way") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("keeper-killed"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let pids = stage.of_synclater();
    let name = |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let is_it = |pid: &&Pid| name(pid).is_ok_and(|n| n.starts_with("synclater-keep"));
    let keeper = *pids.iter().find(is_it).expect("a keeper");
    kill_process(keeper, Signal::STOP).expect("it lives");
    scribe.tell(&format!("umount {}", disk.path().display()));
    let supervisor = scribe.pid();
    let holds = || {
        let fds = std::fs::read_dir(format!("/proc/{supervisor}/fd")).expect("its files");
        let mut links = fds
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|to| to.starts_with(disk.path()))
    };
    assert!(until(LIMIT, || !holds()), "it does not let go");
    kill_process(keeper, Signal::KILL).expect("it lives");
    assert_eq!(scribe.hear(), "umount 0");
    warm(&stage, &mut scribe, &stage.work());
    ends_well(&stage, &mut scribe);
}

#[test]
fn a_mount_that_nobody_uses_expires_as_without_a_session() {
    if !as_root("a_mount_that_nobody_uses_expires_as_without_a_session") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("expires"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    let again = rustix::io::Errno::AGAIN.raw_os_error();
    let line = format!("expire {}", disk.path().display());
    assert_eq!(does(&mut scribe, &line), again);
    assert_eq!(does(&mut scribe, &line), 0);
    are_whole(disk.cut().path(), &["a"]);
    ends_well(&stage, &mut scribe);
}

#[test]
fn threads_that_unmount_at_the_same_moment_are_both_made_room_for() {
    if !as_root("threads_that_unmount_at_the_same_moment_are_both_made_room_for") {
        return;
    }
    let disks = [Disk::new("ext4", 64), Disk::new("ext4", 64)];
    let stage = Stage::new("both");
    let mut scribe = scribe(&stage, &[]);
    for disk in &disks {
        warm(&stage, &mut scribe, disk.path());
        save(&mut scribe, disk.path(), &["a"]);
    }
    let [one, other] = disks.each_ref().map(Disk::path);
    let line = format!("both {} {}", one.display(), other.display());
    assert_eq!(does(&mut scribe, &line), 0);
    disks
        .iter()
        .for_each(|disk| are_whole(disk.cut().path(), &["a"]));
    ends_well(&stage, &mut scribe);
}

/// Each asks the supervisor once (a look at what is mounted there), however many wait beside it.
#[test]
fn threads_that_unmount_at_once_take_turns() {
    if !as_root("threads_that_unmount_at_once_take_turns") {
        return;
    }
    const THREADS: usize = 48;
    let stage = Stage::new("turns");
    let (log, at) = (stage.file("asked"), stage.work());
    let script = "mkdir $(seq $N) && for k in $(seq $N); do mount --bind . $k || exit 9; done
        exec \"$@\" $(seq $N)";
    let mut command = stage.with_folders("unshare");
    command.env("N", THREADS.to_string()).current_dir(&at);
    command.args(["-m", "--propagation", "private", "bash", "-c", script, "0"]);
    command.args([SYNCLATER, "run", "--quiet", "-u", "exit", "--"]);
    command.args(["strace", "-f", "-qq", "-e", "trace=statx", "-o"]);
    command.arg(&log).args(["python3", "-c"]);
    command.arg(include_str!("at_once.py"));
    let outcome = run(&mut command).must_succeed();
    assert_eq!(outcome.stdout.trim(), "0", "{outcome}");
    let calls = crate::harness::trace::calls_in(&log);
    let asked = calls
        .iter()
        .filter(|call| call.arguments.contains("NO_AUTOMOUNT"));
    assert_eq!(asked.count(), THREADS);
}

#[test]
fn an_umount_beside_programs_that_fork_all_the_time_is_not_refused() {
    if !as_root("an_umount_beside_programs_that_fork_all_the_time_is_not_refused") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("forks"));
    // What loses its O_SYNC is looked for in every process.
    let script = "for k in 1 2 3 4; do (while [ ! -e \"$1/stop\" ]; do /bin/true; done) & done; \
        for k in 1 2 3 4 5 6 7 8; do \
          dd if=/dev/zero of=\"$0/f\" bs=4k count=4 oflag=dsync status=none || exit 9; done; \
        umount \"$0\"; status=$?; : >\"$1/stop\"; wait; exit $status";
    let words = ["run", "--quiet", "-u", "exit", "--", "sh", "-c", script];
    let mut command = stage.synclater(&words);
    command.arg(disk.path()).arg(stage.work());
    run(&mut command).must_succeed();
}

#[test]
fn an_umount_beside_many_descriptors_is_not_refused() {
    if !as_root("an_umount_beside_many_descriptors_is_not_refused") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("descriptors"));
    let script = "ulimit -n 4096; for fd in $(seq 20 2500); do eval \"exec $fd</dev/null\"; done
        for k in 1 2 3 4 5 6 7 8; do
          dd if=/dev/zero of=\"$0/f\" bs=4k count=4 oflag=dsync status=none || exit 9; done
        umount \"$0\"";
    let words = ["run", "--quiet", "-u", "exit", "--", "bash", "-c", script];
    run(stage.synclater(&words).arg(disk.path())).must_succeed();
}

#[test]
fn an_umount_that_has_to_look_at_many_keeps_nobody_waiting() {
    if !as_root("an_umount_that_has_to_look_at_many_keeps_nobody_waiting") {
        return;
    }
    let (disk, other) = (Disk::new("ext4", 64), Disk::new("ext4", 64));
    let stage = Stage::new("many");
    // 120 processes with 200 descriptors; what loses its O_SYNC is looked for in all of them.
    let script = "for fd in $(seq 20 220); do eval \"exec $fd</etc/passwd\"; done
        for k in $(seq 120); do sleep 1000 & done
        for fd in $(seq 20 220); do eval \"exec $fd<&-\"; done
        (until [ -e \"$2/stop\" ]; do
            dd if=/dev/zero of=\"$1/f\" bs=512 count=1 conv=fsync status=none || exit
        done) & writer=$!
        for k in 1 2 3 4 5 6 7 8; do
            dd if=/dev/zero of=\"$0/f\" bs=4k count=4 oflag=dsync status=none || exit 9
        done
        begun=$(date +%s%N); umount \"$0\"; status=$?; echo $(($(date +%s%N) - begun))
        : >\"$2/stop\"; wait $writer; kill $(jobs -p); exit $status";
    let json = stage.json();
    let mut command = stage.synclater(&["run", "--quiet", "-u", "50ms"]);
    command.args(json).args(["--", "bash", "-c", script]);
    command.args([disk.path(), other.path(), &stage.work()]);
    let told = run(&mut command).must_succeed().stdout;
    let took = told.trim().parse::<f64>().expect("nanoseconds") / 1e9;
    let oldest = stage.report()["oldest_s"].as_f64().expect("an age");
    assert!(
        oldest < took / 2.0,
        "{oldest} s, beside an umount of {took} s"
    );
}
