//! Written is not flushed: the disk's cache.

use super::keepers::{named, waits_for_one};
use super::told::{is_slow, quick};
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{flushes, Disk, SlowDisk, SmallFolder};
use crate::harness::limits::needs_net;
use crate::sessions::death::is_gone;
use crate::sessions::stage::as_root;
use crate::wait::until;
use rustix::process::{kill_process, Signal};
use std::path::PathBuf;

/// Overwrites a file on a disk, has an outsider force the log, and settles by `end`: then the data
/// is still to be written, and the log is not.
fn is_flushed(kind: &'static str, end: impl Fn(&Stage, &Disk, Running)) {
    let disk = Disk::new(kind, 320);
    let stage = Stage::new("flush");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let file = disk.path().join("file");
    for line in [&format!("open 1 {}", file.display()), "keep 1"] {
        assert_eq!(does(&mut scribe, line), 0);
    }
    run(clean("sync").arg("-f").arg(disk.path())).must_succeed();
    assert_eq!(does(&mut scribe, "over 1"), 0);
    let mut outsider = clean("dd");
    outsider.args(["if=/dev/zero", "bs=4k", "count=1", "conv=fdatasync"]);
    let other = format!("of={}", disk.path().join("other").display());
    run(outsider.arg(other)).must_succeed();
    let before = flushes(&disk.device());
    end(&stage, &disk, scribe);
    let after = flushes(&disk.device());
    assert!(after > before, "{kind}: settled, and no flush was sent");
}

#[test]
fn what_ends_a_session_flushes_a_disk_whose_log_is_clean() {
    if !as_root("what_ends_a_session_flushes_a_disk_whose_log_is_clean") {
        return;
    }
    for kind in ["xfs", "ext4", "btrfs"] {
        is_flushed(kind, |stage, _, mut scribe| ends_well(stage, &mut scribe));
    }
}

#[test]
fn settle_flushes_a_disk_whose_log_is_clean() {
    if !as_root("settle_flushes_a_disk_whose_log_is_clean") {
        return;
    }
    for named_by_path in [true, false] {
        is_flushed("xfs", |stage, disk, mut scribe| {
            let id = stage.id();
            let path = disk.path().display().to_string();
            let what = if named_by_path { &path } else { &id };
            let said = stage.ask(&["settle", what]).must_succeed();
            assert!(said.stdout.contains("settled"), "{said}");
            ends_well(stage, &mut scribe);
        });
    }
}

#[test]
fn what_is_settled_from_inside_of_a_session_is_settled_then() {
    let name = "what_is_settled_from_inside_of_a_session_is_settled_then";
    if !as_root(name) || !needs_net(name) {
        return;
    }
    let all = [&[][..], &["--follow"], &["--net"]];
    for (options, is_copy) in all.into_iter().flat_map(|o| [(o, false), (o, true)]) {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("inside"));
        // Also by a copy that is not called synclater.
        let copy = stage.file("another");
        crate::harness::command::copy_program(SYNCLATER, &copy);
        let program = if is_copy { copy } else { SYNCLATER.into() };
        let mut scribe = scribe(&stage, options);
        warm(&stage, &mut scribe, disk.path());
        let open = format!("open 1 {}", disk.path().join("a").display());
        let settle = format!(
            "tell {} settle {}",
            program.display(),
            disk.path().display()
        );
        for line in [&open, "grow 1 1", &settle] {
            assert_eq!(does(&mut scribe, line), 0, "{line}");
        }
        let file = std::fs::metadata(disk.cut().path().join("a"));
        assert_eq!(
            file.map_or(0, |m| m.len()),
            1 << 20,
            "{options:?} {is_copy}"
        );
        ends_well(&stage, &mut scribe);
    }
}

/// The first syncfs of an ext4 without a journal flushes in front of what it writes last. Whether
/// there is a journal stands in /sys, which may be gone by then.
#[test]
fn an_ext4_without_a_journal_is_flushed_behind_all_though_nobody_can_see_what_it_is() {
    let name = "an_ext4_without_a_journal_is_flushed_behind_all_though_nobody_can_see_what_it_is";
    if !as_root(name) {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("no-sys"));
    umount(disk.path());
    let image = disk.image();
    run(clean("mkfs.ext4")
        .args(["-q", "-F", "-O", "^has_journal"])
        .arg(&image))
    .must_succeed();
    mount(&["-o", "loop"], &image.display().to_string(), disk.path());
    let mut command = stage.with_folders("unshare");
    command.args([
        "-m",
        "--propagation",
        "private",
        SYNCLATER,
        "run",
        "--quiet",
    ]);
    command.args(stage.json()).arg("--").arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    let mut hide = clean("nsenter");
    hide.args(["-t", &scribe.pid().as_raw_nonzero().to_string(), "-m"]);
    run(hide.args(["umount", "-l", "/sys"])).must_succeed();
    let before = flushes(&disk.device());
    ends_well(&stage, &mut scribe);
    assert!(flushes(&disk.device()) >= before + 2);
}

/// An ext4 without a journal, on a disk that can refuse flushes: one that fails does not end it.
fn may_refuse(flush_ms: u32) -> SlowDisk {
    let disk = SlowDisk::new("ext4", 64, flush_ms);
    std::fs::write(quick(&disk), "").expect("as long as this is there");
    umount(&disk.path());
    let mut make = clean("mkfs.ext4");
    make.args(["-q", "-F", "-O", "^has_journal"]);
    run(make.arg(disk.device())).must_succeed();
    mount(&[], &disk.device(), &disk.path());
    disk
}

/// Has somebody sync while it refuses that.
fn refuses(disk: &SlowDisk) {
    let file = disk.path().with_file_name("img.refuses");
    std::fs::write(&file, "").expect("as long as this is there");
    let told = run(clean("sync").arg("-f").arg(disk.path()));
    std::fs::remove_file(file).expect("it refuses");
    assert!(!told.status.success(), "{told}");
}

fn owing_on(disk: &Path, stage: &Stage) -> Running {
    let mut scribe = scribe(stage, &["--until", "exit"]);
    warm(stage, &mut scribe, disk);
    save(&mut scribe, disk, &["a"]);
    scribe
}

/// It is told to nobody else, and the next one says nothing.
#[test]
fn a_flush_that_failed_for_somebody_else_is_heard_of() {
    if !as_root("a_flush_that_failed_for_somebody_else_is_heard_of") {
        return;
    }
    let (disk, healthy) = (may_refuse(0), Disk::new("ext4", 64));
    let (stage, other) = (Stage::new("refused"), Stage::new("not-refused"));
    let mut first = owing_on(&disk.path(), &stage);
    let mut second = owing_on(healthy.path(), &other);
    refuses(&disk);
    let end = first.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    assert_eq!(stage.report()["error"]["name"], "EIO");
    // Nor is it told to who has nothing to do with it.
    ends_well(&other, &mut second);
}

#[test]
fn a_flush_that_failed_while_nothing_was_to_be_settled_is_heard_of() {
    if !as_root("a_flush_that_failed_while_nothing_was_to_be_settled_is_heard_of") {
        return;
    }
    for is_settled_at_never in [false, true] {
        let (disk, stage) = (may_refuse(0), Stage::new("refused-at-never"));
        let mut scribe = owing_on(&disk.path(), &stage);
        let id = stage.id();
        stage.ask(&["set", &id, "--until", "never"]).must_succeed();
        save(&mut scribe, &disk.path(), &["b"]);
        refuses(&disk);
        if is_settled_at_never {
            let settle = stage.ask(&["settle", &id]);
            assert_eq!(settle.status.code(), Some(125), "{settle}");
        }
        stage.ask(&["set", &id, "--until", "exit"]).must_succeed();
        let end = scribe.end();
        assert_eq!(end.status.code(), Some(125), "{end}");
    }
}

/// No debt is noted of that.
#[test]
fn a_flush_that_failed_while_what_stdio_wrote_was_owed_is_heard_of() {
    if !as_root("a_flush_that_failed_while_what_stdio_wrote_was_owed_is_heard_of") {
        return;
    }
    let (disk, stage) = (may_refuse(0), Stage::new("refused-unseen"));
    let mut scribe = owing_on(&disk.path(), &stage);
    let open = format!("stream {}", disk.path().join("log").display());
    for line in [&open, "flush"] {
        assert_eq!(does(&mut scribe, line), 0, "{line}");
    }
    stage.ask(&["settle", &stage.id()]).must_succeed();
    assert_eq!(does(&mut scribe, "flush"), 0);
    refuses(&disk);
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
}

#[test]
fn a_flush_that_failed_while_a_keeper_settles_is_heard_of() {
    if !as_root("a_flush_that_failed_while_a_keeper_settles_is_heard_of") {
        return;
    }
    let (disk, stage) = (may_refuse(1500), Stage::new("refused-alone"));
    let mut scribe = owing_on(&disk.path(), &stage);
    let keeper = named(&stage, "synclater-keep");
    is_slow(&disk);
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || waits_for_one(keeper)));
    refuses(&disk);
    assert!(until(LIMIT, || is_gone(&keeper)));
    std::fs::write(quick(&disk), "").expect("it is quick again");
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    scribe.end();
}

/// A file system in a file on another one.
struct Inner {
    at: PathBuf,
    _over: SmallFolder,
}

impl Inner {
    /// In a folder of `outer`, over which a tmpfs with another file of that name is mounted then.
    fn covered(outer: &Path, stage: &Stage) -> Inner {
        let (folder, at) = (outer.join("images"), stage.file("inner"));
        let image = folder.join("img");
        for folder in [&folder, &at] {
            std::fs::create_dir(folder).expect("a folder");
        }
        let room = || std::fs::File::create(&image).and_then(|file| file.set_len(16 << 20));
        room().expect("an image");
        run(clean("mkfs.ext4")
            .args(["-q", "-O", "^has_journal"])
            .arg(&image))
        .must_succeed();
        mount(&["-o", "loop"], &image.display().to_string(), &at);
        let _over = SmallFolder::over(&folder);
        std::fs::write(&image, "").expect("another file");
        Inner { at, _over }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        run(clean("umount").arg(&self.at));
    }
}

#[test]
fn a_flush_that_failed_below_an_image_is_heard_of_whatever_has_its_name() {
    if !as_root("a_flush_that_failed_below_an_image_is_heard_of_whatever_has_its_name") {
        return;
    }
    let (disk, stage) = (may_refuse(0), Stage::new("refused-below"));
    let inner = Inner::covered(&disk.path(), &stage);
    let mut scribe = owing_on(&inner.at, &stage);
    refuses(&disk);
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
    drop(inner);
}

/// Whether it puts sync() off: else something in sight keeps every one real.
fn puts_sync_off(stage: &Stage, scribe: &mut Running) -> bool {
    until(LIMIT, || {
        let before = stage.counted().1;
        assert_eq!(does(scribe, "sync"), 0);
        stage.counted().1 > before
    })
}

/// A disk tells once that it has refused a flush, and sync(2) tells nobody.
#[test]
fn a_sync_that_is_made_in_a_sessions_place_hides_no_flush_that_fails() {
    if !as_root("a_sync_that_is_made_in_a_sessions_place_hides_no_flush_that_fails") {
        return;
    }
    let (disk, stage) = (may_refuse(0), Stage::new("refused-once"));
    // With a FUSE in sight every sync() is real.
    let hide = "awk '$3 ~ /^fuse/ { print $2 }' /proc/mounts | xargs -r umount -l";
    let mut apart = clean("unshare");
    apart.args(["-m", "--propagation", "private", "sh", "-c"]);
    let mut apart = Running::start(&stage, {
        apart.arg(format!("{hide}; echo ready; read end"));
        apart
    });
    assert_eq!(apart.hear(), "ready");
    let there = || {
        let mut command = stage.with_folders("nsenter");
        command.args(["-m", "-t", &apart.pid().to_string(), SYNCLATER]);
        command
    };
    let mut command = there();
    command.args(["run", "--quiet", "--"]).arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    warm(&stage, &mut scribe, &disk.path());
    save(&mut scribe, &disk.path(), &["a"]);
    if puts_sync_off(&stage, &mut scribe) {
        let keeper = named(&stage, "synclater-keep");
        scribe.send(Signal::STOP);
        kill_process(keeper, Signal::KILL).expect("it lives");
        scribe.send(Signal::KILL);
        let once = disk.path().with_file_name("img.once");
        std::fs::write(&once, "").expect("until one was refused");
        let told = run(there().arg("settle"));
        assert!(!once.exists(), "it has refused none: {told}");
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert!(told.stderr.contains("EIO"), "{told}");
    }
    scribe.end();
    apart.no_more();
    apart.end();
}

/// It is mounted in nobody's sight here: a container's.
#[test]
fn a_sync_that_was_put_off_flushes_an_xfs_of_another_namespace() {
    if !as_root("a_sync_that_was_put_off_flushes_an_xfs_of_another_namespace") {
        return;
    }
    let (disk, stage) = (Disk::new("xfs", 320), Stage::new("elsewhere"));
    let device = disk.device();
    let mut apart = clean("unshare");
    apart.args(["-m", "--propagation", "private"]);
    apart.args(["sh", "-c", "echo ready; read end"]);
    let mut apart = Running::start(&stage, apart);
    assert_eq!(apart.hear(), "ready");
    umount(disk.path());
    let mut scribe = scribe(&stage, &[]);
    if puts_sync_off(&stage, &mut scribe) {
        // Behind this its log is clean.
        let mut sync = clean("nsenter");
        sync.args(["-m", "-t", &apart.pid().to_string(), "sync", "-f"]);
        run(sync.arg(disk.path())).must_succeed();
        let before = flushes(&device);
        ends_well(&stage, &mut scribe);
        assert!(flushes(&device) > before, "no flush was sent");
    }
    apart.no_more();
    apart.end();
}
