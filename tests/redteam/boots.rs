//! Where a session was that is asked about: in which boot, in which container, by which mount its
//! folders are seen. What lives lives, whatever those say; of what cannot be told nothing is
//! settled.

use super::ledger::{entry_of, has_ended, is_settled, is_told, kill, overlay, scribe_with_ledger};
use super::mounts::overlay_on;
use super::*;
use crate::harness::command::{Outcome, LIMIT};
use crate::harness::disk::Disk;
use crate::harness::limits::count;
use crate::sessions::stage::{as_root, has_four_parts};
use crate::wait::until;
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use synclater_shim::page::Page;

#[test]
fn a_session_in_another_pid_namespace_keeps_its_entry() {
    if !as_root("a_session_in_another_pid_namespace_keeps_its_entry") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("pids"));
    let mut scribe = contained_scribe(&stage, disk.path());
    let (entry, _) = entry_of(&stage);
    is_told(&stage.ask(&["settle"]), &entry);
    assert_eq!(stage.entries().len(), 1, "its entry was closed");
    let end = scribe.end();
    assert_eq!(end.status.code(), Some(0), "{end}");
}

/// Something as process 1 of a container, with a run folder of its own.
fn contained(stage: &Stage, run_dir: &str, words: &[&str]) -> Command {
    let mut command = stage.with_folders("unshare");
    command.args(["-p", "-f", "--kill-child", "--mount-proc", SYNCLATER]);
    command.args(words);
    command.env("SYNCLATER_RUN_DIR", stage.file(run_dir));
    command
}

/// A session in a container that owes in `dir`.
fn contained_scribe(stage: &Stage, dir: &Path) -> Running {
    let mut command = contained(stage, "inside", &["run", "--quiet", "--"]);
    command.arg(tool("scribe"));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    let entered = until(LIMIT, || {
        save(&mut scribe, dir, &["warm"]);
        stage.entries().len() == 1
    });
    assert!(entered, "it has no entry");
    scribe
}

/// Each life of a container has the same numbers: of processes, and of its pid namespace.
#[test]
fn a_container_that_died_is_settled_by_its_next_life() {
    if !as_root("a_container_that_died_is_settled_by_its_next_life") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("lives"));
    let scribe = contained_scribe(&stage, disk.path());
    scribe.send(Signal::KILL);
    assert!(until(LIMIT, || has_ended(&scribe)), "it lives");
    let (entry, _) = entry_of(&stage);
    let is_free = || is_locked_by_nobody(&entry);
    assert!(until(LIMIT, is_free), "the container lives");
    let settle = run(&mut contained(&stage, "next", &["settle"]));
    assert_eq!(settle.status.code(), Some(0), "{settle}");
    assert!(settle.stderr.contains("synced"), "{settle}");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
    let left = std::fs::read_dir(stage.state()).expect("the ledger");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_session_lives_by_whatever_mount_its_ledger_is_seen() {
    if !as_root("a_session_lives_by_whatever_mount_its_ledger_is_seen") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("views"));
    let at = overlay(&disk, "view");
    let mut command = session(&stage, &[]);
    command.env("SYNCLATER_STATE_DIR", at.join("state"));
    command.arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    warm(&stage, &mut scribe, &stage.work());
    let below = disk.path().join("view/upper/state");
    let mut settle = stage.synclater(&["settle"]);
    settle.env("SYNCLATER_STATE_DIR", &below);
    is_told(
        &run(settle.env("SYNCLATER_RUN_DIR", stage.file("other"))),
        &below,
    );
    // Nor is it taken for cut by one whose container has a boot id of its own.
    let id = stage.file("boot_id");
    std::fs::write(&id, "1d5e2c5c-0f1c-4a54-8e39-0d4f9a3c0c11\n").expect("an id");
    let other = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id",
        id.display()
    );
    let mut settle = where_it_is(&stage, &other, &["settle"]);
    settle.env("SYNCLATER_STATE_DIR", &below);
    is_told(
        &run(settle.env("SYNCLATER_RUN_DIR", stage.file("other"))),
        &below,
    );
    ends_well(&stage, &mut scribe);
    umount(&at);
}

#[test]
fn a_session_lives_by_whatever_mount_its_folders_are_seen() {
    if !as_root("a_session_lives_by_whatever_mount_its_folders_are_seen") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("folders"));
    let (at, upper) = (overlay(&disk, "view"), disk.path().join("view/upper"));
    run(clean("mkdir").args(["-m", "711"]).arg(at.join("run"))).must_succeed();
    let run_dir = stage.run_dir();
    mount(&["--bind"], &at.join("run").display().to_string(), &run_dir);
    let mut scribe = scribe_with_ledger(&stage, &at.join("state"));
    warm(&stage, &mut scribe, disk.path());
    let (upper, state) = (upper.display(), at.join("state"));
    let below = format!(
        "mount --bind {upper}/run {} && mount --bind {upper}/state {}",
        run_dir.display(),
        state.display()
    );
    // Nor where its number says nothing, or its start: both are of other namespaces.
    for namespaces in [
        MOUNTS,
        &["-m", "-p", "-f", "--kill-child", "--mount-proc"],
        &["-m", "-T", "--boottime", "3600"],
    ] {
        let mut settle = unshared(&stage, namespaces, &below, &["settle"]);
        let settle = run(settle.env("SYNCLATER_STATE_DIR", &state));
        assert_eq!(settle.status.code(), Some(125), "{namespaces:?}: {settle}");
        let files = std::fs::read_dir(at.join("state")).expect("the ledger");
        assert_eq!(files.count(), 2, "an entry, and its lock");
        assert_eq!(stage.left_in_run_dir(), [run_dir.join(stage.id())]);
    }
    ends_well(&stage, &mut scribe);
    umount(&run_dir);
    umount(&at);
}

/// Where the only session has its memory.
fn memory_of(stage: &Stage) -> PathBuf {
    let lock = stage.left_in_run_dir()[0].join("lock");
    let text = std::fs::read(lock).expect("a lock file");
    let memory = text.split(|b| *b == b'\n').next().expect("a line");
    PathBuf::from(String::from_utf8_lossy(memory).into_owned())
}

/// A container that was killed comes again with its folders, and without its memory.
fn lose_memory(stage: &Stage) {
    std::fs::remove_dir_all(memory_of(stage)).expect("the session's memory");
}

/// A dead session without its memory, and its entry.
fn owing_without_memory(name: &str) -> (Stage, PathBuf) {
    let stage = Stage::new(name);
    let scribe = scribe(&stage, &[]);
    kill(&stage, &scribe);
    lose_memory(&stage);
    let (entry, _) = entry_of(&stage);
    (stage, entry)
}

#[test]
fn what_had_no_entry_has_none_in_a_next_life() {
    if !as_root("what_had_no_entry_has_none_in_a_next_life") {
        return;
    }
    let stage = Stage::new("no-entry");
    let scribe = cold_scribe(&stage, &["--until", "now"], &[]);
    kill(&stage, &scribe);
    lose_memory(&stage);
    // Where the mount of the ledger has another number, as in another container.
    let settle = run(&mut where_it_is(&stage, "true", &["settle"]));
    assert_eq!(settle.status.code(), Some(0), "{settle}");
    assert!(stage.left_in_run_dir().is_empty());
}

#[test]
fn what_had_an_entry_is_not_forgotten_in_a_next_life() {
    if !as_root("what_had_an_entry_is_not_forgotten_in_a_next_life") {
        return;
    }
    let (stage, entry) = owing_without_memory("its-entry");
    std::fs::rename(&entry, stage.file("later")).expect("another name");
    is_told(&stage.ask(&["settle"]), &stage.state());
    std::fs::rename(stage.file("later"), &entry).expect("its own name");
    is_settled(&stage, &stage.ask(&["settle"]));
}

#[test]
fn what_was_settled_from_another_run_folder_is_missed_by_nobody() {
    if !as_root("what_was_settled_from_another_run_folder_is_missed_by_nobody") {
        return;
    }
    for keeps_memory in [true, false] {
        let stage = Stage::new("by-the-ledger");
        let scribe = scribe(&stage, &[]);
        kill(&stage, &scribe);
        if !keeps_memory {
            lose_memory(&stage);
        }
        let mut settle = stage.synclater(&["settle"]);
        let settle = run(settle.env("SYNCLATER_RUN_DIR", stage.file("other")));
        assert!(settle.stderr.contains("synced"), "{keeps_memory}: {settle}");
        let settle = stage.ask(&["settle"]);
        assert_eq!(settle.status.code(), Some(0), "{keeps_memory}: {settle}");
        assert!(stage.left_in_run_dir().is_empty(), "{keeps_memory}");
    }
}

/// `settle` with another run folder, the session's own one in sight or not.
fn settle_elsewhere(stage: &Stage, in_sight: bool) -> Outcome {
    ask_elsewhere(stage, in_sight, &["settle"])
}

fn ask_elsewhere(stage: &Stage, in_sight: bool, words: &[&str]) -> Outcome {
    let run_dir = stage.run_dir();
    let hide = format!(
        "mount -t tmpfs none /dev/shm && mount -t tmpfs none {}",
        run_dir.display()
    );
    let script = if in_sight { "true" } else { &hide };
    let mut command = where_it_is(stage, script, words);
    run(command.env("SYNCLATER_RUN_DIR", stage.file("other")))
}

/// They had two seconds left, in which nobody would have settled for them.
#[test]
fn programs_of_the_dead_put_nothing_off_behind_a_settle_by_the_ledger() {
    if !as_root("programs_of_the_dead_put_nothing_off_behind_a_settle_by_the_ledger") {
        return;
    }
    for in_sight in [true, false] {
        let (disk, stage) = (Disk::new("ext4", 320), Stage::new("goes-on"));
        let mut scribe = scribe_that_owes_on(&stage, &disk);
        kill(&stage, &scribe);
        let settle = settle_elsewhere(&stage, in_sight);
        assert_eq!(settle.status.code(), Some(0), "{in_sight}: {settle}");
        save(&mut scribe, disk.path(), &["a", "b", "c"]);
        are_whole(disk.cut().path(), &["a", "b", "c"]);
        // Nobody misses the entry, and nothing is left that would say that it was closed.
        let own = stage.ask(&["settle"]);
        assert_eq!(own.status.code(), Some(0), "{in_sight}: {own}");
        assert!(stage.left_in_run_dir().is_empty(), "{in_sight}");
        assert_eq!(files_in(&stage.state()), 0, "{in_sight}");
    }
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).expect("a folder").count()
}

/// Has the page of the only session say that it has lost a write.
fn lose_a_write(stage: &Stage) {
    let page = memory_of(stage).join("page");
    let page = File::options().write(true).open(page).expect("a page");
    let error = Errno::IO.raw_os_error().to_ne_bytes();
    let at = offset_of!(Page, error) as u64;
    page.write_all_at(&error, at).expect("it is ours");
}

/// The page alone remembers what the ledger had no room for.
#[test]
fn a_lost_write_that_a_page_remembers_is_told_whoever_settles() {
    if !as_root("a_lost_write_that_a_page_remembers_is_told_whoever_settles") {
        return;
    }
    for in_sight in [true, false] {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("remembered"));
        let scribe = scribe_that_owes_on(&stage, &disk);
        kill(&stage, &scribe);
        lose_a_write(&stage);
        let settle = settle_elsewhere(&stage, in_sight);
        let status = if in_sight { 125 } else { 0 };
        assert_eq!(settle.status.code(), Some(status), "{settle}");
        // Whatever looks first, and until it is forgotten.
        stage.ask(&["ps"]).must_succeed();
        for _ in 0..2 {
            let own = stage.ask(&["settle"]);
            assert_eq!(own.status.code(), Some(125), "{in_sight}: {own}");
            assert!(own.stderr.contains("EIO"), "{in_sight}: {own}");
            assert_eq!(stage.entries().len(), 1, "{in_sight}");
        }
        let entry = stage.entries()[0].clone();
        let id = entry.file_stem().expect("a name").to_string_lossy();
        stage.ask(&["status", "--forget", &id]).must_succeed();
        stage.ask(&["settle"]).must_succeed();
        assert!(stage.left_in_run_dir().is_empty(), "{in_sight}");
    }
}

/// The page still says what whoever forgot it did not see there.
#[test]
fn a_lost_write_is_forgotten_once_wherever_that_is() {
    if !as_root("a_lost_write_is_forgotten_once_wherever_that_is") {
        return;
    }
    for in_sight in [true, false] {
        let (disk, stage) = (Disk::new("ext4", 64), Stage::new("forgotten"));
        let scribe = scribe_that_owes_on(&stage, &disk);
        kill(&stage, &scribe);
        lose_a_write(&stage);
        let settle = settle_elsewhere(&stage, true);
        assert_eq!(settle.status.code(), Some(125), "{in_sight}: {settle}");
        let entry = stage.entries()[0].clone();
        let id = entry.file_stem().expect("a name").to_string_lossy();
        ask_elsewhere(&stage, in_sight, &["status", "--forget", &id]).must_succeed();
        for _ in 0..2 {
            stage.ask(&["settle"]).must_succeed();
        }
        assert!(stage.left_in_run_dir().is_empty(), "{in_sight}");
        assert_eq!(files_in(&stage.state()), 0, "{in_sight}");
    }
}

/// Nobody waits for the disk until it says so, too: a power cut behind the end may find it open.
#[test]
fn a_lock_file_of_another_boot_misses_no_entry() {
    if !as_root("a_lock_file_of_another_boot_misses_no_entry") {
        return;
    }
    let (stage, entry) = owing_without_memory("other-boot");
    std::fs::remove_file(&entry).expect("it goes");
    is_told(&stage.ask(&["settle"]), &stage.state());
    let lock = stage.left_in_run_dir()[0].join("lock");
    let text = std::fs::read(&lock).expect("a lock file");
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").expect("an id");
    let boot = boot.trim_ascii();
    let at = text.windows(boot.len()).position(|w| w == boot);
    let mut other = text;
    other[at.expect("it names its boot")] ^= 1;
    std::fs::write(&lock, other).expect("written");
    stage.ask(&["settle"]).must_succeed();
    assert!(stage.left_in_run_dir().is_empty());
}

/// What an image holds already lies in a lower layer, whose folders get no other name.
#[test]
fn a_session_starts_in_a_layer_above_that_of_another() {
    if !as_root("a_session_starts_in_a_layer_above_that_of_another") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("layers"));
    let starts = |at: &Path| {
        let mut command = session(&stage, &[]);
        command.env("SYNCLATER_RUN_DIR", at.join("run")).arg("true");
        run(&mut command).must_succeed();
        assert!(at.join("run/.spare").exists(), "there is none to take");
    };
    let first = overlay(&disk, "first");
    starts(&first);
    umount(&first);
    let (above, at) = (disk.path().join("above"), disk.path().join("at-above"));
    std::fs::create_dir(&above).expect("a directory");
    std::fs::create_dir(&at).expect("a directory");
    let lower = format!("lowerdir={}:", disk.path().join("first/upper").display());
    let options = overlay_on(&above).replace("lowerdir=", &lower);
    mount(&["-t", "overlay", "-o", &options], "overlay", &at);
    starts(&at);
    starts(&at);
    umount(&at);
}

/// A child of the session's that ends with it may be the last to have a trace point, whose close
/// waits for each processor: what it has besides is closed before.
#[test]
fn soak_a_layer_can_be_unmounted_right_behind_its_session() {
    if !as_root("soak_a_layer_can_be_unmounted_right_behind_its_session") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("layer"));
    for round in 0..count(15, 1000) {
        let at = overlay(&disk, &format!("layer-{round}"));
        for _ in 0..2 {
            let mut command = session(&stage, &[]);
            command.env("SYNCLATER_RUN_DIR", at.join("run")).arg("true");
            run(&mut command).must_succeed();
        }
        let outcome = run(clean("umount").arg(&at));
        assert!(outcome.status.success(), "round {round}: {outcome}");
    }
}

/// Whether nobody holds the lock beside an entry.
fn is_locked_by_nobody(entry: &Path) -> bool {
    let files = entry.parent().map(std::fs::read_dir);
    let files = files.expect("a ledger").expect("files").flatten();
    let is_lock = |p: &PathBuf| p.extension().is_some_and(|x| x == "lock");
    let lock = files.map(|f| f.path()).find(is_lock).expect("a lock");
    let file = std::fs::File::open(lock).expect("a lock");
    let how = rustix::fs::FlockOperation::NonBlockingLockShared;
    rustix::fs::flock(&file, how).is_ok()
}

/// Something in a mount namespace where `script` has been done.
fn where_it_is(stage: &Stage, script: &str, words: &[&str]) -> Command {
    unshared(stage, MOUNTS, script, words)
}

const MOUNTS: &[&str] = &["-m"];

/// Something in new `namespaces`, options of unshare(1), where `script` has been done.
fn unshared(stage: &Stage, namespaces: &[&str], script: &str, words: &[&str]) -> Command {
    let mut command = stage.with_folders("unshare");
    let script = format!("{script} && exec \"$@\"");
    command.args(namespaces);
    command.args(["sh", "-c", &script, "sh", SYNCLATER]);
    command.args(words);
    command
}

/// Where /proc has processes alone (systemd's ProcSubset=pid).
const SUBSET: &str = "mount -t proc -o subset=pid proc /proc";

/// 23 requests in a session as `command` starts it, of which all are real, and why is told.
fn is_real(stage: &Stage, mut command: Command) {
    let hammer = crate::sessions::stage::program("hammer");
    let outcome = run(command.arg(hammer).arg(stage.work()).args(["1", "23"])).must_succeed();
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert_eq!(stage.report()["real"], 23, "{:#}", stage.report());
}

/// A session that owes nothing but on `disk`, whose UUID tells it in other mount namespaces.
fn scribe_that_owes_on(stage: &Stage, disk: &Disk) -> Running {
    let mut scribe = scribe_with_ledger(stage, &stage.state());
    warm(stage, &mut scribe, disk.path());
    scribe
}

#[test]
fn where_the_boot_has_no_name_nothing_is_settled_for_one_of_another() {
    if !as_root("where_the_boot_has_no_name_nothing_is_settled_for_one_of_another") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("nameless"));
    let json = stage.json();
    let words = ["run", "--quiet", &json[0], &json[1], "--"];
    is_real(&stage, where_it_is(&stage, SUBSET, &words));

    let scribe = scribe_that_owes_on(&stage, &disk);
    let (entry, text) = entry_of(&stage);
    let ask_elsewhere = |words: &[&str]| {
        let mut command = where_it_is(&stage, SUBSET, words);
        run(command.env("SYNCLATER_RUN_DIR", stage.file("elsewhere")))
    };
    let id = entry.file_stem().expect("a name").to_string_lossy();
    let forget = ask_elsewhere(&["status", "--forget", &id]);
    assert_eq!(forget.status.code(), Some(125), "{forget}");
    kill(&stage, &scribe);
    is_told(&ask_elsewhere(&["settle"]), &entry);
    let status = ask_elsewhere(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stderr.contains("boot_id"), "{status}");
    // Nor is one settled that does not say of which it is.
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("an id");
    std::fs::write(&entry, text.replace(own.trim(), "")).expect("an entry");
    let mut here = stage.synclater(&["settle"]);
    is_told(
        &run(here.env("SYNCLATER_RUN_DIR", stage.file("elsewhere"))),
        &entry,
    );
    std::fs::write(&entry, text).expect("an entry");
    // What is in memory is of this boot.
    is_settled(&stage, &run(&mut where_it_is(&stage, SUBSET, &["settle"])));
}

#[test]
fn a_container_with_a_boot_id_of_its_own_settles_what_its_last_life_has_left() {
    if !as_root("a_container_with_a_boot_id_of_its_own_settles_what_its_last_life_has_left") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("own-boots"));
    let scribe = scribe_that_owes_on(&stage, &disk);
    let (entry, _) = entry_of(&stage);
    let id = stage.file("boot_id");
    std::fs::write(&id, "1d5e2c5c-0f1c-4a54-8e39-0d4f9a3c0c11\n").expect("an id");
    let next = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id",
        id.display()
    );
    let ask = |words: &[&str]| run(&mut where_it_is(&stage, &next, words));
    let id = entry.file_stem().expect("a name").to_string_lossy();
    // It lives, whatever boot it names.
    let mut settle = where_it_is(&stage, &next, &["settle"]);
    is_told(
        &run(settle.env("SYNCLATER_RUN_DIR", stage.file("elsewhere"))),
        &entry,
    );
    assert_eq!(ask(&["status", "--forget", &id]).status.code(), Some(125));
    assert_eq!(
        ask(&["status"]).stdout,
        "no session was cut or left unsettled\n"
    );
    kill(&stage, &scribe);
    // Who does not see what it had in memory names it as cut.
    let mut settle = where_it_is(&stage, &next, &["settle"]);
    let cut = run(settle.env("SYNCLATER_RUN_DIR", stage.file("elsewhere")));
    assert!(cut.stderr.contains("cut by a reboot"), "{cut}");
    assert_eq!(stage.entries(), [entry]);
    is_settled(&stage, &ask(&["settle"]));
}

#[test]
fn where_proc_is_of_another_pid_namespace_everything_is_real() {
    if !as_root("where_proc_is_of_another_pid_namespace_everything_is_real") {
        return;
    }
    let stage = Stage::new("other-proc");
    let json = stage.json();
    let mut command = stage.with_folders("unshare");
    command.args(["-p", "-f", "--kill-child", SYNCLATER, "run", "--quiet"]);
    command.args([&json[0], &json[1], "--"]);
    is_real(&stage, command);
}
