//! Sessions that are dead, and what the ledger says of them: on which file system they owe, in
//! which ledger that stands, whose an entry is, and who may have written it.

use super::mounts::{overlay_on, unmounted};
use super::*;
use crate::harness::command::{Outcome, LIMIT};
use crate::harness::disk::Disk;
use crate::sessions::death::is_gone;
use crate::sessions::stage::{as_root, has_four_parts};
use crate::wait::until;
use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// What a session says first, in another run folder too.
const NAME: &str = "inlet";

fn is_keeper(pid: &Pid) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|n| n.starts_with("synclater-keep"))
}

/// Kills supervisor and keeper, so that neither settles.
pub(super) fn kill(stage: &Stage, scribe: &Running) {
    let keeper = stage.of_synclater().into_iter().find(is_keeper);
    let to_keeper = |signal| keeper.map(|pid| kill_process(pid, signal).expect("it lives"));
    to_keeper(Signal::STOP);
    scribe.send(Signal::KILL);
    to_keeper(Signal::KILL);
    let ended = || stage.of_synclater().iter().all(|pid| !is_keeper(pid));
    assert!(until(LIMIT, ended), "the keeper lives");
    assert!(until(LIMIT, || has_ended(scribe)), "the supervisor lives");
}

/// Whether it was killed; nobody has waited for it yet.
pub(super) fn has_ended(scribe: &Running) -> bool {
    is_gone(&scribe.pid())
}

/// The only entry, and its text.
pub(super) fn entry_of(stage: &Stage) -> (PathBuf, String) {
    let all = stage.entries();
    assert_eq!(all.len(), 1, "{all:?}");
    let text = std::fs::read_to_string(&all[0]).expect("an entry");
    (all[0].clone(), text)
}

/// It is told in four parts that something is not settled, with the status.
pub(super) fn is_told(outcome: &Outcome, about: &Path) {
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    let name = about.display().to_string();
    assert!(outcome.stderr.contains(&name), "{name}: {outcome}");
    assert!(!outcome.stdout.contains("no sessions"), "{outcome}");
}

pub(super) fn is_settled(stage: &Stage, outcome: &Outcome) {
    assert_eq!(outcome.status.code(), Some(0), "{outcome}");
    assert!(outcome.stderr.contains("synced"), "{outcome}");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
    assert!(stage.left_in_run_dir().is_empty());
}

/// An overlay without a UUID, as containers have it, at a folder of its own.
pub(super) fn overlay(disk: &Disk, name: &str) -> PathBuf {
    let (folder, at) = (
        disk.path().join(name),
        disk.path().join(format!("at-{name}")),
    );
    [&folder, &at]
        .into_iter()
        .for_each(|d| std::fs::create_dir(d).expect("a directory"));
    let options = format!("{},uuid=null", overlay_on(&folder));
    mount(&["-t", "overlay", "-o", &options], "overlay", &at);
    at
}

#[test]
fn another_overlay_is_not_settled_for_one_that_is_gone() {
    if !as_root("another_overlay_is_not_settled_for_one_that_is_gone") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("overlays"));
    let first = overlay(&disk, "first");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &first);
    save(&mut scribe, &first, &["a"]);
    kill(&stage, &scribe);
    run(clean("umount").arg("-l").arg(&first)).must_succeed();
    let other = overlay(&disk, "other");
    let settle = stage.ask(&["settle"]);
    umount(&other);
    is_told(&settle, &first);
    assert_eq!(stage.entries().len(), 1);
    // Nor for one that has its place.
    let again = overlay(&disk, "again");
    mount(&["--move"], &again.display().to_string(), &first);
    let settle = stage.ask(&["settle"]);
    umount(&first);
    is_told(&settle, &first);
}

#[test]
fn what_somebody_settles_in_a_dead_sessions_place_is_not_settled_by_another() {
    let stage = Stage::new("one-settles");
    let scribe = scribe(&stage, &[]);
    kill(&stage, &scribe);
    let files = std::fs::read_dir(stage.state()).expect("the ledger");
    let is_lock = |path: &PathBuf| path.extension().is_some_and(|x| x == "lock");
    let lock = files.flatten().map(|f| f.path()).find(is_lock);
    let lock = std::fs::File::open(lock.expect("a lock")).expect("it opens");
    flock(&lock, FlockOperation::LockExclusive).expect("nobody has it");
    let (entry, _) = entry_of(&stage);
    is_told(&stage.ask(&["settle"]), &entry);
    assert_eq!(stage.entries(), std::slice::from_ref(&entry));
    drop(lock);
    // And nothing of it is forgotten.
    std::fs::rename(&entry, stage.file("later")).expect("another name");
    is_told(&stage.ask(&["settle"]), &stage.state());
    std::fs::rename(stage.file("later"), &entry).expect("its own name");
    is_settled(&stage, &stage.ask(&["settle"]));
}

#[test]
fn a_copy_of_an_overlays_upper_folder_is_not_settled_for_it() {
    if !as_root("a_copy_of_an_overlays_upper_folder_is_not_settled_for_it") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("copied"));
    let [first, other] = ["first", "other"].map(|name| disk.path().join(name));
    std::fs::create_dir(&first).expect("a directory");
    let options = overlay_on(&first);
    let at = disk.path().join("at");
    std::fs::create_dir(&at).expect("a mount point");
    mount(&["-t", "overlay", "-o", &options], "overlay", &at);
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &at);
    save(&mut scribe, &at, &["a"]);
    kill(&stage, &scribe);
    run(clean("umount").arg("-l").arg(&at)).must_succeed();
    run(clean("cp").arg("-a").arg(&first).arg(&other)).must_succeed();
    let of_other = options.replace(&*first.to_string_lossy(), &other.to_string_lossy());
    mount(&["-t", "overlay", "-o", &of_other], "overlay", &at);
    let settle = stage.ask(&["settle"]);
    umount(&at);
    is_told(&settle, &at);
    assert_eq!(stage.entries().len(), 1);
}

#[test]
fn a_keeper_that_has_not_settled_yet_is_not_settled_for() {
    let stage = Stage::new("keeper");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &stage.work());
    let keeper = stage.of_synclater().into_iter().find(is_keeper);
    let keeper = keeper.expect("a keeper");
    kill_process(keeper, Signal::STOP).expect("it lives");
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || has_ended(&scribe)), "the supervisor lives");
    let (entry, _) = entry_of(&stage);
    let mut settle = stage.synclater(&["settle"]);
    let settle = run(settle.env("SYNCLATER_RUN_DIR", stage.file("other")));
    is_told(&settle, &entry);
    assert!(settle.stderr.contains("waiting for that"), "{settle}");
    assert_eq!(stage.entries().len(), 1);
    kill_process(keeper, Signal::CONT).expect("it lives");
    assert!(
        until(LIMIT, || stage.entries().is_empty()),
        "it does not settle"
    );
}

#[test]
fn an_ext4_that_is_made_anew_is_not_settled_for_the_one_before() {
    if !as_root("an_ext4_that_is_made_anew_is_not_settled_for_the_one_before") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("zeros"));
    let device = unmounted(&disk);
    let make = || {
        let mut mkfs = clean("mkfs.ext4");
        run(mkfs.args(["-q", "-F", "-U", "clear"]).arg(&device)).must_succeed();
        mount(&["-t", "ext4"], &device, disk.path());
    };
    make();
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    kill(&stage, &scribe);
    umount(disk.path());
    make();
    run(clean("losetup").arg("-d").arg(&device)).must_succeed();
    is_told(&stage.ask(&["settle"]), disk.path());
    assert_eq!(stage.entries().len(), 1);
}

#[test]
fn a_file_system_without_a_uuid_is_settled_where_it_is_still_mounted() {
    if !as_root("a_file_system_without_a_uuid_is_settled_where_it_is_still_mounted") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("still"));
    let (at, other) = (overlay(&disk, "one"), overlay(&disk, "other"));
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, &at);
    save(&mut scribe, &at, &NAMES);
    kill(&stage, &scribe);
    // Wherever it is by now.
    umount(&other);
    mount(&["--move"], &at.display().to_string(), &other);
    let settle = stage.ask(&["settle"]);
    umount(&other);
    is_settled(&stage, &settle);
    are_whole(&disk.cut().path().join("one/upper"), &NAMES);
}

const NAMES: [&str; 3] = ["a", "b", "c"];

#[test]
fn a_file_system_is_settled_by_its_uuid_through_another_mount_of_it() {
    if !as_root("a_file_system_is_settled_by_its_uuid_through_another_mount_of_it") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("bound"));
    let bound = stage.work().join("bound");
    std::fs::create_dir(&bound).expect("a mount point");
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &NAMES);
    kill(&stage, &scribe);
    mount(&["--bind"], &disk.path().display().to_string(), &bound);
    umount(disk.path());
    let settle = stage.ask(&["settle"]);
    is_settled(&stage, &settle);
    are_whole(disk.cut().path(), &NAMES);
    umount(&bound);
}

#[test]
fn a_dead_session_whose_entry_cannot_be_read_is_not_cleared_away() {
    let stage = Stage::new("unreadable");
    let scribe = scribe(&stage, &[]);
    kill(&stage, &scribe);
    let (path, whole) = entry_of(&stage);
    let later = whole.replacen("\"version\": 1", "\"version\": 2", 1);
    for text in [later.as_str(), &whole[..60]] {
        std::fs::write(&path, text).expect("an entry");
        for verb in ["settle", "ps", "settle"] {
            is_told(&stage.ask(&[verb]), &path);
        }
        let status = stage.ask(&["status"]);
        assert_eq!(status.status.code(), Some(1), "{status}");
        assert!(has_four_parts(&status.stderr), "{status}");
        assert_eq!(
            status.stderr.matches("cannot be read").count(),
            1,
            "{status}"
        );
        assert_eq!(stage.left_in_run_dir().len(), 1);
    }
    std::fs::write(&path, whole).expect("an entry");
    is_settled(&stage, &stage.ask(&["settle"]));
}

/// A session with this ledger, which has owed nothing yet.
pub(super) fn scribe_with_ledger(stage: &Stage, ledger: &Path) -> Running {
    let mut command = session(stage, &[]);
    command.env("SYNCLATER_STATE_DIR", ledger);
    command.arg(tool("scribe"));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    scribe
}

/// A session with this ledger that owes, and is killed.
fn killed_with_ledger(stage: &Stage, ledger: &Path) {
    let mut scribe = scribe_with_ledger(stage, ledger);
    warm(stage, &mut scribe, &stage.work());
    kill(stage, &scribe);
}

#[test]
fn a_dead_sessions_entry_is_looked_for_in_its_own_ledger() {
    let stage = Stage::new("elsewhere");
    // The folder that this one leaves is the next one's.
    let mut longer = session(&stage, &[]);
    longer.env(
        "SYNCLATER_STATE_DIR",
        stage.file("a-ledger-with-a-longer-name"),
    );
    run(longer.arg("true")).must_succeed();
    let ledger = stage.file("another\nline");
    killed_with_ledger(&stage, &ledger);
    let files = || std::fs::read_dir(&ledger).expect("a ledger").count();
    assert_eq!(files(), 2, "an entry, and its lock");
    is_settled(&stage, &stage.ask(&["settle"]));
    assert_eq!(files(), 0);
}

#[test]
fn a_dead_session_whose_ledger_is_not_there_is_not_cleared_away() {
    let stage = Stage::new("gone");
    let (ledger, elsewhere) = (stage.file("other"), stage.file("elsewhere"));
    killed_with_ledger(&stage, &ledger);
    std::fs::rename(&ledger, &elsewhere).expect("another name");
    for verb in ["settle", "ps"] {
        is_told(&stage.ask(&[verb]), &ledger);
    }
    // Nor where its path leads to another one, as behind a link or below a mount.
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::create_dir(&ledger).expect("another ledger");
    std::fs::set_permissions(&ledger, private).expect("chmod");
    for verb in ["settle", "ps"] {
        is_told(&stage.ask(&[verb]), &ledger);
    }
    assert_eq!(stage.left_in_run_dir().len(), 1);
    std::fs::remove_dir(&ledger).expect("an empty folder");
    std::fs::rename(&elsewhere, &ledger).expect("its own name");
    // Nor where it has gone back in time, as by a snapshot of a btrfs subvolume.
    let is_entry = |p: &PathBuf| p.extension().is_some_and(|x| x == "json");
    let files = std::fs::read_dir(&ledger).expect("a ledger").flatten();
    let entry = files.map(|f| f.path()).find(is_entry).expect("an entry");
    std::fs::rename(&entry, stage.file("later")).expect("another name");
    for verb in ["settle", "ps"] {
        is_told(&stage.ask(&[verb]), &ledger);
    }
    std::fs::rename(stage.file("later"), &entry).expect("its own name");
    is_settled(&stage, &stage.ask(&["settle"]));
}

/// An empty ledger in `dir`, at the numbers of its device and of its own.
fn ledger_in(dir: &Path) -> (PathBuf, (u64, u64)) {
    let ledger = dir.join("ledger");
    std::fs::create_dir(&ledger).expect("a ledger");
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&ledger, private).expect("chmod");
    let seen = ledger.metadata().expect("a ledger");
    (ledger, (seen.dev(), seen.ino()))
}

#[test]
fn another_disks_ledger_with_the_numbers_of_the_one_before_is_not_taken_for_it() {
    if !as_root("another_disks_ledger_with_the_numbers_of_the_one_before_is_not_taken_for_it") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("numbers"));
    let device = unmounted(&disk);
    let make = || {
        run(clean("mkfs.ext4").args(["-q", "-F"]).arg(&device)).must_succeed();
        mount(&["-t", "ext4"], &device, disk.path());
        ledger_in(disk.path())
    };
    let (ledger, numbers) = make();
    killed_with_ledger(&stage, &ledger);
    umount(disk.path());
    assert_eq!(make().1, numbers);
    run(clean("losetup").arg("-d").arg(&device)).must_succeed();
    for verb in ["settle", "ps"] {
        is_told(&stage.ask(&[verb]), &ledger);
    }
    assert_eq!(stage.left_in_run_dir().len(), 1);
    // One that has owed nothing is in no ledger.
    std::fs::remove_dir_all(&stage.left_in_run_dir()[0]).expect("its folder");
    kill(&stage, &scribe_with_ledger(&stage, &ledger));
    std::fs::rename(&ledger, disk.path().join("other")).expect("another name");
    ledger_in(disk.path());
    assert_eq!(stage.ask(&["settle"]).status.code(), Some(0));
    assert!(stage.left_in_run_dir().is_empty());
}

#[test]
fn an_entry_that_cannot_be_read_is_told_by_settle_too() {
    let stage = Stage::new("alone");
    let path = stage.state().join("kelp.json");
    std::fs::write(&path, "{\"version\": 2}").expect("an entry");
    is_told(&stage.ask(&["settle"]), &path);
    assert!(path.exists());
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(has_four_parts(&status.stderr), "{status}");
}

/// A session that has put nothing off, in the ledger of `of`, with the name that both have.
pub(super) fn namesake(stage: &Stage, of: &Stage) -> Running {
    stage.leave_one_name();
    let mut command = session(stage, &[]);
    command.env("SYNCLATER_STATE_DIR", of.state());
    command.arg(tool("scribe"));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    assert_eq!(stage.id(), NAME);
    scribe
}

#[test]
fn two_sessions_of_one_name_do_not_share_an_entry() {
    let (stage, other) = (Stage::new("first"), Stage::new("second"));
    let (mut first, mut second) = (namesake(&stage, &stage), namesake(&other, &stage));
    warm(&stage, &mut first, &stage.work());
    let (_, entry) = entry_of(&stage);
    save(&mut second, &other.work(), &NAMES);
    let told = || has_four_parts(&second.stderr());
    assert!(until(LIMIT, told), "{}", second.stderr());
    assert!(
        second.stderr().contains("another session"),
        "{}",
        second.stderr()
    );
    assert_eq!(entry_of(&stage).1, entry);
    let skipped = other.counted().1;
    assert_eq!(skipped, 0, "the entry is another's");
    ends_well(&other, &mut second);
    assert_eq!(entry_of(&stage).1, entry);
    kill(&stage, &first);
    let settle = stage.ask(&["settle"]);
    assert!(settle.stderr.contains("synced"), "{settle}");
    assert!(stage.entries().is_empty());
}

#[test]
fn a_session_is_relaxed_once_its_namesake_is_over() {
    let (stage, other) = (Stage::new("first"), Stage::new("second"));
    let (mut first, mut second) = (namesake(&stage, &stage), namesake(&other, &stage));
    warm(&stage, &mut first, &stage.work());
    save(&mut second, &other.work(), &NAMES);
    ends_well(&stage, &mut first);
    warm(&other, &mut second, &other.work());
    assert_eq!(stage.entries().len(), 1);
    ends_well(&other, &mut second);
    assert!(stage.entries().is_empty());
}

#[test]
fn a_dead_session_leaves_its_namesakes_entry_alone() {
    let (stage, other) = (Stage::new("first"), Stage::new("second"));
    let (mut first, second) = (namesake(&stage, &stage), namesake(&other, &stage));
    warm(&stage, &mut first, &stage.work());
    kill(&other, &second);
    let mut ps = other.synclater(&["ps"]);
    run(ps.env("SYNCLATER_STATE_DIR", stage.state())).must_succeed();
    assert_eq!(stage.entries().len(), 1);
    ends_well(&stage, &mut first);
}

#[test]
fn what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not() {
    let stage = Stage::new("fresh");
    let in_ledger = |name: &str| stage.state().join(name);
    let dead = in_ledger("kelp.0123456789abcdef012345.new");
    let living = in_ledger("reef.0123456789abcdef012345.new");
    let lock = in_ledger("kelp.0123456789abcdef012345.lock");
    let others = ["kelp.lock", "kelp.new"].map(in_ledger);
    for path in others.iter().chain([&dead, &lock]) {
        std::fs::write(path, "{").expect("a file");
    }
    // It tells that the session is dead.
    let entry = plant(&stage, "reef.json", "reef");
    let needed = in_ledger(&format!("reef.{PLANTED}.lock"));
    std::fs::write(&needed, "").expect("a file");
    let file = std::fs::File::create(&living).expect("a file");
    let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, how).expect("a lock");
    let mut scribe = scribe(&stage, &[]);
    assert!(living.exists() && !dead.exists() && !lock.exists());
    ends_well(&stage, &mut scribe);
    let mut left: Vec<_> = std::fs::read_dir(stage.state())
        .expect("the ledger")
        .map(|e| e.expect("an entry").path())
        .collect();
    left.sort();
    let [lock, new] = others;
    assert_eq!(left, [lock, new, living, needed, entry]);
}

pub(super) const PLANTED: &str = "fedcba9876543210fedcba";

/// An entry of this boot in the stage's ledger that says it is `id`, of nobody who lives.
pub(super) fn plant(stage: &Stage, name: &str, id: &str) -> PathBuf {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot");
    let entry = serde_json::json!({
        "version": 1, "id": id, "boot_id": boot.trim(), "pid": 1, "command": ["true"],
        "token": PLANTED,
        "started": "2026-01-31T12:00:00Z", "until": "exit", "filesystems": [],
    });
    let path = stage.state().join(name);
    std::fs::write(&path, entry.to_string()).expect("an entry");
    path
}

#[test]
fn an_entry_that_names_another_file_removes_none() {
    let stage = Stage::new("planted");
    let target = stage.work().join("target.json");
    std::fs::write(&target, "{}").expect("a file");
    for id in ["../work/target", "kelp", "a/b", ""] {
        let path = plant(&stage, "a.json", id);
        is_told(&stage.ask(&["settle"]), &path);
        assert!(target.exists(), "removed by {id}");
        let status = stage.ask(&["status"]);
        assert_eq!(status.status.code(), Some(1), "{status}");
        assert!(has_four_parts(&status.stderr), "{status}");
        assert!(path.exists());
    }
}

#[test]
fn a_ledger_that_others_may_write_is_not_believed() {
    let stage = Stage::new("open");
    let path = plant(&stage, "kelp.json", "kelp");
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(stage.state(), mode).expect("chmod");
    for words in [
        &["settle"][..],
        &["status"],
        &["status", "--forget", "kelp"],
    ] {
        is_told(&stage.ask(words), &stage.state());
        assert!(path.exists());
    }
    let link = stage.file("link");
    std::os::unix::fs::symlink(stage.state(), &link).expect("a link");
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(stage.state(), mode).expect("chmod");
    let mut settle = stage.synclater(&["settle"]);
    is_told(&run(settle.env("SYNCLATER_STATE_DIR", &link)), &link);
    assert!(path.exists());
}
