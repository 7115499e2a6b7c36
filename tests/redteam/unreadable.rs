//! What cannot be read is not nothing: folders that cannot be listed, lock files that cannot be
//! opened, entries of others, and entries that say more than which file systems owe.

use super::keepers::set_limit;
use super::ledger::{entry_of, is_settled, is_told, kill, namesake, plant, PLANTED};
use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::SlowDisk;
use crate::sessions::stage::{as_root, give_to_nobody, AS_NOBODY};
use crate::wait::until;
use std::os::unix::fs::PermissionsExt;

#[test]
fn sessions_that_cannot_be_listed_are_not_none() {
    let stage = Stage::new("unlistable");
    let mut scribe = scribe(&stage, &[]);
    let id = stage.id();
    // No session, whatever it is.
    std::fs::write(stage.run_dir().join("file"), "").expect("a file");
    let mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(stage.run_dir(), mode).expect("chmod");
    };
    mode(0o777);
    for words in [&["settle"][..], &["settle", &id], &["ps"], &["detach", &id]] {
        is_told(&stage.ask(words), &stage.run_dir());
    }
    mode(0o711);
    stage.ask(&["settle"]).must_succeed();
    ends_well(&stage, &mut scribe);
}

#[test]
fn a_dead_session_whose_lock_file_cannot_be_read_is_not_cleared_away() {
    let stage = Stage::new("few-files");
    let scribe = scribe(&stage, &[]);
    let id = stage.id();
    kill(&stage, &scribe);
    // One file beside the standard ones: that is open while the lock file is read.
    let mut command = stage.with_folders("prlimit");
    command.args(["--nofile=4", SYNCLATER, "settle"]);
    command.env("SYNCLATER_STATE_DIR", stage.file("another"));
    is_told(&run(&mut command), &stage.run_dir().join(&id));
    let _ = entry_of(&stage);
    is_settled(&stage, &stage.ask(&["settle"]));
}

#[test]
fn settle_tells_of_a_living_namesake_in_another_run_folder() {
    let (stage, other) = (Stage::new("first"), Stage::new("second"));
    let (mut first, mut second) = (namesake(&stage, &stage), namesake(&other, &stage));
    warm(&stage, &mut first, &stage.work());
    let (entry, _) = entry_of(&stage);
    let mut settle = other.synclater(&["settle"]);
    is_told(
        &run(settle.env("SYNCLATER_STATE_DIR", stage.state())),
        &entry,
    );
    second.end().must_succeed();
    first.end().must_succeed();
}

#[test]
fn a_lost_write_is_told_where_its_file_system_has_left_the_entry() {
    let stage = Stage::new("lost-and-left");
    let path = plant(&stage, "kelp.json", "kelp");
    let text = std::fs::read_to_string(&path).expect("an entry");
    let text = text.replacen('{', "{\"error\": \"EIO\",", 1);
    std::fs::write(&path, text).expect("an entry");
    for _ in 0..2 {
        let settle = stage.ask(&["settle"]);
        is_told(&settle, &path);
        assert!(settle.stderr.contains("EIO: writes were lost"), "{settle}");
    }
    let status = stage.ask(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stdout.contains("writes were lost"), "{status}");
    stage.ask(&["status", "--forget", "kelp"]).must_succeed();
    stage.ask(&["settle"]).must_succeed();
}

#[test]
fn who_forgets_a_session_leaves_what_its_namesake_has() {
    let (stage, away) = (Stage::new("forgotten"), Stage::new("ledger-away"));
    let scribe = scribe(&stage, &[]);
    let id = stage.id();
    kill(&stage, &scribe);
    // Its own ledger is not there for a moment, and another has one of its name, which was cut.
    let (state, hidden) = (stage.state(), stage.file("hidden"));
    std::fs::rename(&state, &hidden).expect("another name");
    let cut = plant(&away, &format!("{id}.json"), &id);
    let text = std::fs::read_to_string(&cut).expect("an entry");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot");
    let text = text.replace(boot.trim(), "11111111-2222-3333-4444-555555555555");
    std::fs::write(&cut, text).expect("an entry");
    let mut forget = stage.synclater(&["status", "--forget", &id]);
    run(forget.env("SYNCLATER_STATE_DIR", away.state())).must_succeed();
    assert_eq!(stage.left_in_run_dir(), [stage.run_dir().join(&id)]);
    std::fs::rename(&hidden, &state).expect("its name");
    is_settled(&stage, &stage.ask(&["settle"]));
}

#[test]
fn a_cut_session_is_named_though_its_lock_cannot_be_opened() {
    if !as_root("a_cut_session_is_named_though_its_lock_cannot_be_opened") {
        return;
    }
    let stage = Stage::for_nobody("closed-lock");
    let entry = plant(&stage, "kelp.json", "kelp");
    let text = std::fs::read_to_string(&entry).expect("an entry");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the boot");
    let text = text.replace(boot.trim(), "11111111-2222-3333-4444-555555555555");
    std::fs::write(&entry, text).expect("an entry");
    let lock = stage.state().join(format!("kelp.{PLANTED}.lock"));
    std::fs::write(&lock, "").expect("a lock");
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o000)).expect("chmod");
    for path in [&entry, &lock] {
        give_to_nobody(path);
    }
    let synclater = stage.copy_of(Path::new(SYNCLATER));
    let mut command = stage.with_folders(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).arg(synclater).arg("status");
    let status = run(&mut command);
    assert_eq!(status.status.code(), Some(1), "{status}");
    assert!(status.stdout.contains("kelp"), "{status}");
}

/// The lock beside the entry comes over a socket.
#[test]
fn a_session_that_could_not_take_its_lock_relaxes_nothing_until_it_can() {
    if !as_root("a_session_that_could_not_take_its_lock_relaxes_nothing_until_it_can") {
        return;
    }
    let (stage, elsewhere) = (Stage::new("lock-lost"), Stage::new("same-ledger"));
    let ledger = SlowDisk::new("ext4", 64, 1500);
    let mut scribe = scribe_with_ledger_on(&stage, &ledger, "1h");
    let has = |kind| ledger_has(&ledger, kind);
    assert!(until(LIMIT, || has("lock")));
    let before = set_limit(scribe.pid(), Some(3));
    assert!(until(LIMIT, || has("json")));
    // Two flushes follow behind the name of the entry.
    crate::sessions::stage::pass(Duration::from_secs(4));
    set_limit(scribe.pid(), before);
    warm(&stage, &mut scribe, &stage.work());
    let mut settle = elsewhere.synclater(&["settle"]);
    let settle = run(settle.env("SYNCLATER_STATE_DIR", ledger.path()));
    assert_eq!(settle.status.code(), Some(125), "{settle}");
    assert!(settle.stderr.contains("its session lives"), "{settle}");
    assert!(has("json"), "{settle}");
    ends_well(&stage, &mut scribe);
}
