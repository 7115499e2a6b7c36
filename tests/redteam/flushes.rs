//! Written is not flushed: the disk's cache.

use super::keepers::{is_in_kernel, named, waits_for_one};
use super::*;
use crate::harness::apart::{Apart, Kind};
use crate::harness::command::LIMIT;
use crate::harness::disk::{flushes, Disk, SlowDisk, SmallFolder};
use crate::harness::limits::needs_net;
use crate::sessions::death::{children, is_gone};
use crate::sessions::stage::{as_root, AS_NOBODY};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
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

/// By a user without rights: root would flush the device itself.
#[test]
fn settle_flushes_the_disk_of_a_file_whose_mount_is_covered() {
    if !as_root("settle_flushes_the_disk_of_a_file_whose_mount_is_covered") {
        return;
    }
    let (disk, stage) = (Disk::new("xfs", 320), Stage::for_nobody("covered"));
    crate::programs::let_others_in(disk.path().parent().expect("above"));
    let program = stage.work().join("synclater");
    crate::harness::command::copy_program(SYNCLATER, &program);
    let script = "set -e; cd \"$1\"; d() { dd if=/dev/zero bs=4k count=1 status=none \"$@\"; }; \
        d of=file conv=fsync; chown 65534 file; sync -f .; \
        d of=file conv=notrunc; d of=other conv=fdatasync; mount -t tmpfs none \"$1\"; \
        stat=/sys/block/$2/stat; shift 2; cat $stat; \"$@\" settle ./file; cat $stat";
    let mut command = stage.with_folders("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
    command.arg(disk.path());
    command.arg(disk.device().replace("/dev/", ""));
    let told = run(command.args(AS_NOBODY).arg(program)).must_succeed();
    let [before, said, after] = told.stdout.lines().collect::<Vec<_>>()[..] else {
        panic!("{told}");
    };
    assert!(said.ends_with("file system settled"), "{told}");
    let flushes = |stat: &str| stat.split_whitespace().nth(15).map(str::to_owned);
    assert_ne!(flushes(before), flushes(after), "no flush was sent: {told}");
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
    // Which disk refuses a flush cannot be told without /sys: it might be this one.
    let _apart = Apart::from_others(Kind::Refusing);
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
pub(super) fn may_refuse(flush_ms: u32) -> SlowDisk {
    let disk = SlowDisk::quick_at_first(flush_ms);
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

/// A btrfs that is mounted in the session's own namespace alone: its number is no disk's.
#[test]
fn a_flush_that_another_disk_refused_is_not_that_of_a_container_s_btrfs() {
    if !as_root("a_flush_that_another_disk_refused_is_not_that_of_a_container_s_btrfs") {
        return;
    }
    let (disk, its) = (may_refuse(0), Disk::new("btrfs", 160));
    let stage = Stage::new("container");
    let (mut scribe, _) = scribe_apart(&stage, &its, "true");
    warm(&stage, &mut scribe, its.path());
    save(&mut scribe, its.path(), &["a"]);
    refuses(&disk);
    save(&mut scribe, its.path(), &["b"]);
    ends_well(&stage, &mut scribe);
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

/// At `never`, and without a ledger, the session's page alone knows; and it hears no disk.
#[test]
fn a_flush_that_failed_counts_also_where_its_file_system_has_left() {
    if !as_root("a_flush_that_failed_counts_also_where_its_file_system_has_left") {
        return;
    }
    let (disk, stage) = (may_refuse(0), Stage::new("refused-and-left"));
    let mut command = stage.with_folders("setpriv");
    for set in ["--bounding-set", "--inh-caps"] {
        command.args([set, "-perfmon,-sys_admin"]);
    }
    command.args([SYNCLATER, "run", "--quiet", "--until", "never", "--"]);
    let none = "/proc/none";
    command.env("SYNCLATER_STATE_DIR", none).arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    warm(&stage, &mut scribe, &disk.path());
    save(&mut scribe, &disk.path(), &["a"]);
    let once = disk.path().with_file_name("img.once");
    std::fs::write(once, "").expect("until one was refused");
    let told = stage.ask(&["settle", &disk.path().display().to_string()]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    let number = rustix::fs::stat(disk.path()).expect("a disk").st_dev;
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    let has_left = || !is_held(scribe.pid(), number);
    assert!(until(LIMIT, has_left), "{:#}", stage.session());
    let id = stage.id();
    for ask in [&["settle", &id][..], &["set", &id, "--until", "now"]] {
        let told = stage.ask(ask);
        assert_eq!(told.status.code(), Some(125), "{told}");
    }
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(125), "{end}");
}

/// Whether a process has something open on a device.
pub(super) fn is_held(pid: Pid, number: u64) -> bool {
    let files = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    let all = files.expect("its descriptors").flatten();
    let is_it = |path: PathBuf| rustix::fs::stat(path).is_ok_and(|s| s.st_dev == number);
    all.map(|f| f.path()).any(is_it)
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
    disk.becomes_slow();
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || waits_for_one(keeper)));
    refuses(&disk);
    assert!(until(LIMIT, || is_gone(&keeper)));
    std::fs::write(disk.quick(), "").expect("it is quick again");
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

/// A disk reports a refused flush once; sync(2) returns no error, and would lose that report.
#[test]
fn a_sync_that_is_made_in_a_sessions_place_hides_no_flush_that_fails() {
    if !as_root("a_sync_that_is_made_in_a_sessions_place_hides_no_flush_that_fails") {
        return;
    }
    let _apart = Apart::from_others(Kind::Each);
    let (disk, stage) = (may_refuse(0), Stage::new("refused-once"));
    let mut apart = WithoutFuse::new(&stage);
    let mut scribe = apart.scribe(&stage);
    warm(&stage, &mut scribe, &disk.path());
    save(&mut scribe, &disk.path(), &["a"]);
    if puts_sync_off(&stage, &mut scribe) {
        let keeper = named(&stage, "synclater-keep");
        scribe.send(Signal::STOP);
        kill_process(keeper, Signal::KILL).expect("it lives");
        scribe.send(Signal::KILL);
        let once = disk.path().with_file_name("img.once");
        std::fs::write(&once, "").expect("until one was refused");
        let told = run(apart.synclater(&stage).arg("settle"));
        assert!(!once.exists(), "it has refused none: {told}");
        assert_eq!(told.status.code(), Some(125), "{told}");
        assert!(told.stderr.contains("EIO"), "{told}");
    }
    scribe.end();
    apart.0.end();
}

/// What was put off behind the settle of its disk would be flushed by sync(2), which tells nobody.
#[test]
fn nothing_is_put_off_while_a_sync_that_was_put_off_is_made() {
    if !as_root("nothing_is_put_off_while_a_sync_that_was_put_off_is_made") {
        return;
    }
    let _apart = Apart::from_others(Kind::Each);
    let (disk, stage) = (SlowDisk::quick_at_first(3000), Stage::new("behind-sync"));
    let mut apart = WithoutFuse::new(&stage);
    let mut scribe = apart.scribe(&stage);
    for folder in [&disk.path(), &stage.work()] {
        warm(&stage, &mut scribe, folder);
    }
    save(&mut scribe, &disk.path(), &["a"]);
    if puts_sync_off(&stage, &mut scribe) {
        disk.becomes_slow();
        let mut settle = stage.with_folders(SYNCLATER);
        settle.args(["settle", &stage.id()]);
        let mut settle = Running::start(&stage, settle);
        let supervisor = scribe.pid();
        let is_slow = || children(supervisor, "").into_iter().any(is_in_kernel);
        assert!(until(LIMIT, is_slow), "{:#}", stage.session());
        let before = stage.counted().1;
        save(&mut scribe, &stage.work(), &["b", "c"]);
        assert_eq!(stage.counted().1, before, "{:#}", stage.session());
        std::fs::write(disk.quick(), "").expect("it is quick again");
        settle.end().must_succeed();
        warm(&stage, &mut scribe, &stage.work());
    }
    ends_well(&stage, &mut scribe);
    apart.0.end();
}

/// The supervisor goes on while the keeper makes it, whose lease it had lost.
#[test]
fn nothing_is_put_off_while_a_keeper_makes_a_sync_that_was_put_off() {
    if !as_root("nothing_is_put_off_while_a_keeper_makes_a_sync_that_was_put_off") {
        return;
    }
    let _apart = Apart::from_others(Kind::Each);
    let (other, stage) = (SlowDisk::quick_at_first(6000), Stage::new("keepers-sync"));
    let mut apart = WithoutFuse::new(&stage);
    // Out of sight, it is flushed by sync(2) alone.
    let mut hide = clean("nsenter");
    hide.args(["-m", "-t", &apart.0.pid().to_string(), "umount"]);
    run(hide.arg(other.path())).must_succeed();
    let mut scribe = apart.scribe(&stage);
    warm(&stage, &mut scribe, &stage.work());
    if puts_sync_off(&stage, &mut scribe) {
        let keeper = named(&stage, "synclater-keep");
        let syncs = || children(keeper, "").into_iter().any(is_in_kernel);
        other.becomes_slow();
        scribe.send(Signal::STOP);
        assert!(until(LIMIT, syncs), "the keeper makes no sync()");
        scribe.send(Signal::CONT);
        let before = stage.counted().1;
        save(&mut scribe, &stage.work(), &["b", "c"]);
        let after = stage.counted().1;
        // On a busy machine it may be over by now.
        assert!(!syncs() || after == before, "{:#}", stage.session());
        std::fs::write(other.quick(), "").expect("it is quick again");
        warm(&stage, &mut scribe, &stage.work());
    }
    ends_well(&stage, &mut scribe);
    apart.0.end();
}

/// A mount namespace that has no FUSE: with one in sight every sync() is real. A session there sees
/// no disk that is served in user space, so it is told what any of them refuses: its test is
/// [`Apart`] from each.
struct WithoutFuse(Running);

impl WithoutFuse {
    fn new(stage: &Stage) -> WithoutFuse {
        let hide = "awk '$3 ~ /^fuse/ { print $2 }' /proc/mounts | xargs -r umount -l";
        let mut apart = clean("unshare");
        apart.args(["-m", "--propagation", "private", "sh", "-c"]);
        apart.arg(format!("{hide}; echo ready; read end"));
        let mut apart = WithoutFuse(Running::start(stage, apart));
        assert_eq!(apart.0.hear(), "ready");
        apart
    }

    fn synclater(&self, stage: &Stage) -> std::process::Command {
        let mut command = stage.with_folders("nsenter");
        command.args(["-m", "-t", &self.0.pid().to_string(), SYNCLATER]);
        command
    }

    fn scribe(&self, stage: &Stage) -> Running {
        let mut command = self.synclater(stage);
        command.args(["run", "--quiet"]).args(stage.json());
        command.arg("--").arg(tool("scribe"));
        let mut scribe = Running::start(stage, command);
        scribe.be_ready();
        scribe
    }
}

/// It is mounted in nobody's sight here, or to be read alone: a container's.
#[test]
fn a_sync_that_was_put_off_flushes_an_xfs_of_another_namespace() {
    if !as_root("a_sync_that_was_put_off_flushes_an_xfs_of_another_namespace") {
        return;
    }
    let _apart = Apart::from_others(Kind::Each);
    for is_in_sight in [false, true] {
        let (disk, stage) = (Disk::new("xfs", 320), Stage::new("elsewhere"));
        let device = disk.device();
        let mut apart = clean("unshare");
        apart.args(["-m", "--propagation", "private"]);
        apart.args(["sh", "-c", "echo ready; read end"]);
        let mut apart = Running::start(&stage, apart);
        assert_eq!(apart.hear(), "ready");
        let bind = is_in_sight.then(|| Bind::to_read(disk.path(), &stage.file("to-read")));
        umount(disk.path());
        let mut without_fuse = WithoutFuse::new(&stage);
        let mut scribe = without_fuse.scribe(&stage);
        if puts_sync_off(&stage, &mut scribe) {
            // Behind this its log is clean.
            let mut sync = clean("nsenter");
            sync.args(["-m", "-t", &apart.pid().to_string(), "sync", "-f"]);
            run(sync.arg(disk.path())).must_succeed();
            let before = flushes(&device);
            ends_well(&stage, &mut scribe);
            assert!(
                flushes(&device) > before,
                "no flush was sent: {is_in_sight}"
            );
        }
        without_fuse.0.end();
        drop(bind);
        apart.no_more();
        apart.end();
    }
}

/// A folder that is mounted at another place, too.
struct Bind(PathBuf);

impl Bind {
    /// To be read alone.
    fn to_read(folder: &Path, at: &Path) -> Bind {
        std::fs::create_dir(at).expect("a folder");
        mount(&["--bind"], &folder.display().to_string(), at);
        let bind = Bind(at.into());
        let mut again = clean("mount");
        run(again.args(["-o", "remount,bind,ro"]).arg(at)).must_succeed();
        bind
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        run(clean("umount").arg(&self.0));
    }
}
