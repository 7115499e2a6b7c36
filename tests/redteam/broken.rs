//! Disks that lose writes: who hears of it, and whom it concerns.

use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{keep_mounts_private, Disk, SmallDisk};
use crate::sessions::stage::as_root;
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// Somebody else's sync hears of what was lost, before anybody else does.
fn is_heard_of_by_others(disk: &SmallDisk) {
    let heard = run(clean("sync").arg("-f").arg(&disk.mount));
    assert!(!heard.status.success(), "nothing was lost: {heard}");
}

/// A session that owes more on the disk than that takes.
pub(super) fn owing(disk: &SmallDisk, stage: &Stage) -> Running {
    let mut scribe = scribe(stage, &[]);
    warm(stage, &mut scribe, &disk.mount);
    save(&mut scribe, &disk.mount, &["small"]);
    owes_too_much(&mut scribe, disk);
    scribe
}

/// Writes more than the disk takes, without a request behind it: somebody may have it written, and
/// lost, at any moment.
fn owes_too_much(scribe: &mut Running, disk: &SmallDisk) {
    let big = format!("open 1 {}", disk.mount.join("big").display());
    for line in [&big, "grow 1 40"] {
        assert_eq!(does(scribe, line), 0, "{line}");
    }
}

/// The writes are lost, whoever asks, and however often.
fn is_told_for_good(stage: &Stage) {
    for _ in 0..2 {
        let told = stage.ask(&["settle"]);
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert_eq!(stage.entries().len(), 1, "the entry was closed: {told}");
    }
}

pub fn kill_all(pids: &[Pid]) {
    // All stand still first, so that none settles in another's place.
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in pids {
            let _ = kill_process(*pid, signal);
        }
    }
}

fn are_gone(stage: &Stage) {
    let gone = until(LIMIT, || stage.of_synclater().is_empty());
    assert!(gone, "{:?}", stage.of_synclater());
}

#[test]
fn an_error_that_the_keeper_met_is_told_by_every_command_after_it() {
    if !as_root("an_error_that_the_keeper_met_is_told_by_every_command_after_it") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::new("kept"));
    let mut scribe = owing(&disk, &stage);
    kill_all(&[scribe.pid()]);
    scribe.no_more();
    are_gone(&stage);
    disk.has_room_again();
    is_told_for_good(&stage);
}

#[test]
fn an_error_that_a_killed_supervisor_met_is_met_by_the_keeper_too() {
    if !as_root("an_error_that_a_killed_supervisor_met_is_met_by_the_keeper_too") {
        return;
    }
    let (disk, stage) = (SmallDisk::new(), Stage::new("met"));
    let mut scribe = owing(&disk, &stage);
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    disk.has_room_again();
    kill_all(&[scribe.pid()]);
    scribe.no_more();
    are_gone(&stage);
    is_told_for_good(&stage);
}

#[test]
fn an_error_that_ext4_tells_to_fsync_alone_fails_the_run() {
    if !as_root("an_error_that_ext4_tells_to_fsync_alone_fails_the_run") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    umount(disk.path());
    let image = disk.image();
    run(clean("tune2fs").args(["-e", "continue"]).arg(&image)).must_succeed();
    let groups = run(clean("dumpe2fs").arg(&image)).must_succeed().stdout;
    // "  Block bitmap at 34 (+34), csum 0x…"
    for at in groups.split("Block bitmap at ").skip(1) {
        let block = at.split([' ', ',']).next().expect("a number");
        let size = groups.split("Block size:").nth(1).expect("a size");
        let size = size.split_whitespace().next().expect("a number");
        let mut spoil = clean("dd");
        spoil
            .arg("if=/dev/urandom")
            .arg(format!("of={}", image.display()));
        spoil.arg(format!("bs={size}")).arg(format!("seek={block}"));
        run(spoil.args(["count=1", "conv=fsync,notrunc"])).must_succeed();
    }
    mount(&["-o", "loop"], &image.display().to_string(), disk.path());
    let stage = Stage::new("spoilt");
    let mut scribe = scribe(&stage, &[]);
    for n in 0..40 {
        let line = format!("save {}", disk.path().join(n.to_string()).display());
        // What is real is answered by the kernel.
        let _ = does(&mut scribe, &line);
    }
    let end = scribe.end();
    // Where it has counted an error before anything could be put off there, nothing is.
    let report = stage.report();
    let owed = report["filesystems"].as_array().expect("a list").iter();
    let is_it = |fs: &&serde_json::Value| fs["mount"] == *disk.path().to_string_lossy();
    if owed.filter(is_it).any(|fs| fs["requests"] != 0) {
        assert_eq!(end.status.code(), Some(125), "{end}");
        assert!(end.stderr.contains("EUCLEAN"), "{end}");
    }
}

#[test]
fn an_error_that_somebody_else_has_heard_is_told_by_the_file_it_is_about() {
    let name = "an_error_that_somebody_else_has_heard_is_told_by_the_file_it_is_about";
    if !as_root(name) {
        return;
    }
    for has_room_again in [true, false] {
        let small = SmallDisk::new();
        let stage = Stage::new("heard");
        let mut scribe = scribe(&stage, &[]);
        let big = small.mount.join("big");
        assert_eq!(does(&mut scribe, &format!("open 1 {}", big.display())), 0);
        assert_eq!(does(&mut scribe, "grow 1 40"), 0);
        is_heard_of_by_others(&small);
        if has_room_again {
            small.has_room_again();
            warm(&stage, &mut scribe, &small.mount);
        }
        let told = does(&mut scribe, "keep 1");
        let end = scribe.end();
        assert!(told != 0 || end.status.code() == Some(125), "{end}");
    }
}

#[test]
fn what_stdio_wrote_unseen_and_the_disk_lost_fails_the_run() {
    if !as_root("what_stdio_wrote_unseen_and_the_disk_lost_fails_the_run") {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("unseen"));
    let mut scribe = scribe(&stage, &[]);
    let stream = format!("stream {}", small.mount.join("log").display());
    for line in [&stream, "flush 10240"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}\n{:#}", stage.report());
}

#[test]
fn what_stdio_wrote_and_the_disk_lost_behind_a_failed_umount_fails_the_run() {
    if !as_root("what_stdio_wrote_and_the_disk_lost_behind_a_failed_umount_fails_the_run") {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("unseen-later"));
    let mut scribe = scribe(&stage, &[]);
    let stream = format!("stream {}", small.mount.join("log").display());
    assert_eq!(does(&mut scribe, &stream), 0);
    let umount = format!("umount {}", small.mount.display());
    let busy = rustix::io::Errno::BUSY.raw_os_error();
    assert_eq!(does(&mut scribe, &umount), busy);
    assert_eq!(does(&mut scribe, "flush 10240"), 0);
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}\n{:#}", stage.report());
}

#[test]
fn folders_and_inodes_that_the_disk_lost_fail_the_run_where_no_attribute_can_be_set() {
    let name = "folders_and_inodes_that_the_disk_lost_fail_the_run_where_no_attribute_can_be_set";
    if !as_root(name) {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("immutable"));
    let below = small.mount.join("below");
    std::fs::create_dir(&below).expect("a folder");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &below);
    run(clean("chattr").arg("+i").arg(&small.mount)).must_succeed();
    small.is_full();
    // Empty files: nothing but inodes and folders.
    for n in 0..3000 {
        let line = format!("touch {}", below.join(n.to_string()).display());
        // Where somebody has all written meanwhile, the session may have heard of it first.
        let told = does(&mut scribe, &line);
        assert!([0, EIO].contains(&told), "{line}: {told}");
    }
    run(clean("sync").arg("-f").arg(&small.mount));
    let end = scribe.end();
    run(clean("chattr").arg("-i").arg(&small.mount)).must_succeed();
    assert_eq!(end.status.code(), Some(125), "{end}\n{:#}", stage.report());
}

/// The ledger of a stage, on a disk of its own that can be full.
pub(super) struct SmallLedger(PathBuf);

impl SmallLedger {
    pub(super) fn of(stage: &Stage) -> SmallLedger {
        keep_mounts_private();
        let mut tmpfs = clean("mount");
        tmpfs.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "none"]);
        run(tmpfs.arg(stage.state())).must_succeed();
        SmallLedger(stage.state())
    }

    pub(super) fn fill(&self) {
        let fill = std::fs::write(self.filler(), vec![b'x'; 65536]);
        assert!(fill.is_err(), "the ledger's disk is not full");
    }

    pub(super) fn make_room(&self) {
        std::fs::remove_file(self.filler()).expect("the filler");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallLedger {
    fn drop(&mut self) {
        umount(&self.0);
    }
}

#[test]
fn what_a_settle_in_a_dead_sessions_place_tells_is_noted_or_not_asked() {
    if !as_root("what_a_settle_in_a_dead_sessions_place_tells_is_noted_or_not_asked") {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("no-room"));
    let ledger = SmallLedger::of(&stage);
    let mut scribe = owing(&small, &stage);
    ledger.fill();
    kill_all(&stage.of_synclater());
    scribe.no_more();
    // One that was killed while it settled holds the session's lock until the disk lets it go.
    let full = || stage.ask(&["settle"]);
    let is_refused = until(LIMIT, || full().stderr.contains("no room"));
    let full = full();
    ledger.make_room();
    let told = stage.ask(&["settle"]);
    let entries = stage.entries();
    assert!(is_refused, "{full}");
    assert_eq!(full.status.code(), Some(125), "{full}");
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(told.stderr.contains("writes were lost"), "{told}");
    assert_eq!(entries.len(), 1, "the entry was closed: {told}");
}

/// Neither one that is settled before it, nor one behind it.
#[test]
fn a_loss_is_told_of_the_file_system_that_refused_alone() {
    if !as_root("a_loss_is_told_of_the_file_system_that_refused_alone") {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("one-of-three"));
    let [before, behind] = [(), ()].map(|()| Disk::new("ext4", 64));
    let mut scribe = scribe(&stage, &[]);
    for disk in [before.path(), &small.mount, behind.path()] {
        warm(&stage, &mut scribe, disk);
        save(&mut scribe, disk, &["a"]);
    }
    // First: a session that hears of the loss notes that, and not on which of them it was.
    kill_all(&stage.of_synclater());
    owes_too_much(&mut scribe, &small);
    scribe.no_more();
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    let lost = told
        .stderr
        .lines()
        .filter(|line| line.contains("were lost"));
    let lost: Vec<&str> = lost.collect();
    let names = |disk: &Path| {
        lost.iter()
            .any(|line| line.contains(&*disk.to_string_lossy()))
    };
    assert!(names(&small.mount), "{told}");
    assert!(
        ![&before, &behind].iter().any(|d| names(d.path())),
        "{told}"
    );
}

/// The mark of a sync of ours in this run folder whose process was killed.
fn leave_a_mark(stage: &Stage, of: &Path) {
    let read = |path: &str| std::fs::read_to_string(path).expect(path);
    let of = of.display().to_string();
    let table = read("/proc/thread-self/mountinfo");
    let is_its = |line: &&str| line.split(' ').nth(4) == Some(of.as_str());
    let line = table.lines().find(is_its).expect("it is mounted");
    let namespace = std::fs::metadata("/proc/self/ns/pid").expect("a namespace");
    let (boot, ns) = (read("/proc/sys/kernel/random/boot_id"), namespace.ino());
    let text = format!("{} 999999 {ns} - - - -\n{line}\n", boot.trim());
    let run = std::fs::metadata(stage.run_dir()).expect("the run folder");
    let name = format!(".syncing.{}.{}.left", run.dev(), run.ino());
    std::fs::write(stage.run_dir().join(name), text).expect("a mark");
}

#[test]
fn a_loss_that_is_known_is_said_rather_than_one_that_may_be() {
    if !as_root("a_loss_that_is_known_is_said_rather_than_one_that_may_be") {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("known"));
    let mut scribe = owing(&small, &stage);
    kill_all(&stage.of_synclater());
    scribe.no_more();
    leave_a_mark(&stage, &small.mount);
    for _ in 0..2 {
        let told = stage.ask(&["settle"]);
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert!(told.stderr.contains("writes were lost"), "{told}");
    }
    assert_eq!(stage.marked(), [], "it is noted");
}

fn has_put_off(session: &serde_json::Value) -> bool {
    let processes = session["processes"].as_array().expect("processes");
    processes
        .iter()
        .any(|p| p["skipped"].as_u64().is_some_and(|n| n > 0))
}

#[test]
fn an_error_from_before_is_told_by_aio_too_and_in_a_session_within_another() {
    let name = "an_error_from_before_is_told_by_aio_too_and_in_a_session_within_another";
    if !as_root(name) {
        return;
    }
    let within: &[&str] = &["--", SYNCLATER, "run", "--quiet"];
    for (options, ask) in [(&[][..], "aio 1"), (within, "keep 1")] {
        let (small, stage) = (SmallDisk::new(), Stage::new("before"));
        let mut command = session(&stage, options);
        command.arg(tool("scribe"));
        let mut scribe = Running::start(&stage, command);
        scribe.be_ready();
        let big = format!("open 1 {}", small.mount.join("big").display());
        for line in [&big, "grow 1 40"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        is_heard_of_by_others(&small);
        small.has_room_again();
        let warm = format!("save {}", small.mount.join("warm").display());
        let put_off = until(crate::harness::command::LIMIT, || {
            assert_eq!(does(&mut scribe, &warm), 0);
            stage.sessions().iter().all(has_put_off)
        });
        assert!(put_off, "nothing is put off: {:#?}", stage.sessions());
        let told = does(&mut scribe, ask);
        let end = scribe.end();
        assert!(told != 0, "{ask}: {end}");
    }
}

#[test]
fn an_error_from_between_two_sessions_that_a_process_was_attached_to_is_told() {
    let name = "an_error_from_between_two_sessions_that_a_process_was_attached_to_is_told";
    if !as_root(name) {
        return;
    }
    let (small, stage) = (SmallDisk::new(), Stage::new("between"));
    let mut scribe = Running::start(&stage, clean(tool("scribe")));
    scribe.be_ready();
    let big = format!("open 1 {}", small.mount.join("big").display());
    assert_eq!(does(&mut scribe, &big), 0);
    let pid = scribe.pid().as_raw_nonzero().to_string();
    let attach = |scribe: &mut Running| {
        stage
            .ask(&["attach", "--pid", &pid, "--until", "1h"])
            .must_succeed();
        warm(&stage, scribe, &small.mount);
    };
    attach(&mut scribe);
    assert_eq!(does(&mut scribe, "keep 1"), 0);
    stage.ask(&["detach", &stage.id()]).must_succeed();

    assert_eq!(does(&mut scribe, "grow 1 40"), 0);
    is_heard_of_by_others(&small);
    small.has_room_again();
    attach(&mut scribe);
    let told = does(&mut scribe, "keep 1");
    let end = stage.ask(&["detach", &stage.id()]);
    assert!(told != 0, "{end}");
}

#[test]
fn what_a_program_wrote_and_made_durable_by_sync_alone_is_no_warning() {
    if !as_root("what_a_program_wrote_and_made_durable_by_sync_alone_is_no_warning") {
        return;
    }
    // Also by a thread with open files of its own behind a leader that has ended, and by one that
    // does not see what it has open.
    for (mode, root) in [(None, None), (Some("apart"), None), (None, Some("jail"))] {
        let (small, stage) = (SmallDisk::new(), Stage::new("by-sync"));
        let mut command = session(&stage, &[]);
        command.arg(tool("scribe")).args(mode);
        let mut scribe = Running::start(&stage, command);
        scribe.be_ready();
        let put_off = until(crate::harness::command::LIMIT, || {
            let before = stage.counted().1;
            assert_eq!(does(&mut scribe, "sync"), 0);
            stage.counted().1 > before
        });
        if !put_off {
            // Something else in sight keeps every sync() real.
            return;
        }
        let big = format!("open 1 {}", small.mount.join("big").display());
        assert_eq!(does(&mut scribe, &big), 0);
        if let Some(verb) = root {
            let jail = format!("{verb} {}", stage.work().display());
            assert_eq!(does(&mut scribe, &jail), 0);
        }
        for line in ["grow 1 40", "sync"] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        // Who writes where is looked at four times a second, or for a tenth of the time.
        let looked = Instant::now() + Duration::from_secs(3);
        while Instant::now() < looked {
            stage.counted();
        }
        let end = scribe.end();
        let report = stage.report();
        assert_eq!(
            end.status.code(),
            Some(125),
            "{mode:?}, {root:?}: {end}\n{report:#}"
        );
    }
}

#[test]
fn it_is_looked_at_each_sync_who_writes_however_many_there_are() {
    if !as_root("it_is_looked_at_each_sync_who_writes_however_many_there_are") {
        return;
    }
    // 60 processes with 200 descriptors.
    let crowd = "for fd in $(seq 20 220); do eval \"exec $fd</etc/passwd\"; done
        for k in $(seq 60); do sleep 1000 & done
        for fd in $(seq 20 220); do eval \"exec $fd<&-\"; done
        \"$0\"; status=$?; kill $(jobs -p); exit $status";
    let (small, stage) = (SmallDisk::new(), Stage::new("crowd"));
    let mut command = session(&stage, &[]);
    command.args(["bash", "-c", crowd]).arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    let put_off = until(crate::harness::command::LIMIT, || {
        let before = stage.counted().1;
        assert_eq!(does(&mut scribe, "sync"), 0);
        stage.counted().1 > before
    });
    if !put_off {
        // Something else in sight keeps every sync() real.
        return;
    }
    let big = format!("open 1 {}", small.mount.join("big").display());
    for line in [&big, "grow 1 40", "sync"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    // A look takes a quarter of that; without one at each sync() the next is ten times as far off.
    crate::sessions::stage::pass(Duration::from_secs(2));
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}\n{:#}", stage.report());
}

#[test]
fn a_broken_file_system_that_the_command_never_wrote_to_is_a_warning() {
    if !as_root("a_broken_file_system_that_the_command_never_wrote_to_is_a_warning") {
        return;
    }
    let small = SmallDisk::new();
    let stage = Stage::new("elsewhere");
    let mut scribe = scribe(&stage, &[]);
    let put_off = until(crate::harness::command::LIMIT, || {
        let before = stage.counted().1;
        assert_eq!(does(&mut scribe, "sync"), 0);
        stage.counted().1 > before
    });
    if put_off {
        // Somebody else writes more there than its disk takes.
        let script = "dd if=/dev/zero of=\"$1\" bs=1M count=40 2>/dev/null";
        let mut other = clean("sh");
        run(other
            .args(["-c", script, "sh"])
            .arg(small.mount.join("other")));
        assert_eq!(does(&mut scribe, "sync"), 0);
        let set = stage.ask(&["set", &stage.id(), "-u", "now"]).must_succeed();
        assert!(set.stdout.contains("settled, but for"), "{set}");
    }
    let end = scribe.end();
    let report = stage.report();
    assert_eq!(end.status.code(), Some(0), "{end}\n{report:#}");
    if put_off {
        let doubts = report["doubts"].to_string();
        assert!(
            doubts.contains(&small.mount.display().to_string()),
            "{report:#}"
        );
        // Also where nobody wants a summary.
        assert!(end.stderr.contains("warning: "), "{end}");
    }
}

/// A file system that takes no writes, until this is dropped.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(at: &'a Path) -> Frozen<'a> {
        run(clean("fsfreeze").arg("-f").arg(at)).must_succeed();
        Frozen(at)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run(clean("fsfreeze").arg("-u").arg(self.0));
    }
}

#[test]
fn a_frozen_file_system_does_not_keep_a_run_from_its_end() {
    if !as_root("a_frozen_file_system_does_not_keep_a_run_from_its_end") {
        return;
    }
    for options in [&[][..], &["--follow"]] {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("frozen"));
        let mut scribe = scribe(&stage, options);
        warm(&stage, &mut scribe, disk.path());
        save(&mut scribe, disk.path(), &["a"]);
        let frozen = Frozen::new(disk.path());
        // What asks whether it takes writes is left behind, and is not the command's.
        stage.ask(&["settle", &stage.id()]).must_succeed();
        let end = scribe.end();
        drop(frozen);
        assert_eq!(end.status.code(), Some(0), "{end}");
        are_whole(disk.cut().path(), &["a"]);
    }
}

#[test]
fn what_is_mounted_nowhere_any_more_is_not_said_to_be_settled() {
    if !as_root("what_is_mounted_nowhere_any_more_is_not_said_to_be_settled") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    let stage = Stage::new("nowhere");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    kill_all(&stage.of_synclater());
    scribe.no_more();
    are_gone(&stage);
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    is_told_for_good(&stage);
}

/// The relaxation ends while file 1 is asked for by `ask`, which has been decided, and waits for a
/// file system that is frozen.
fn outlives_the_relaxation(name: &str, before: &[&str], ask: &str) {
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new(name));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let open = format!("open 1 {}", disk.path().join("a").display());
    assert_eq!(does(&mut scribe, &open), 0);
    let requests = stage.counted().0;
    let frozen = Frozen::new(disk.path());
    for line in before {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    scribe.tell(&format!("{ask} 1"));
    // It has been decided: what is counted first.
    assert!(until(LIMIT, || stage.counted().0 > requests));
    let set = stage.ask(&["set", &stage.id(), "-u", "now"]);
    drop(frozen);
    set.must_succeed();
    assert_eq!(scribe.hear(), format!("{ask} 0"));
    are_whole(disk.cut().path(), &["a"]);
    ends_well(&stage, &mut scribe);
}

#[test]
fn what_aio_wrote_once_the_relaxation_was_over_is_made_durable_by_itself() {
    if as_root("what_aio_wrote_once_the_relaxation_was_over_is_made_durable_by_itself") {
        outlives_the_relaxation("aio-late", &["queue 1"], "aio");
    }
}

#[test]
fn what_libaio_wrote_once_the_relaxation_was_over_is_made_durable_by_itself() {
    if as_root("what_libaio_wrote_once_the_relaxation_was_over_is_made_durable_by_itself") {
        outlives_the_relaxation("libaio-late", &[], "submit");
    }
}
