//! Dials that move: what was put off under the one before.

use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{Disk, SmallFolder};
use crate::sessions::stage::as_root;
use crate::wait::until;

#[test]
fn nothing_is_owed_once_the_dial_has_come_to_now() {
    let stage = Stage::new("to-now");
    let mut scribe = scribe(&stage, &[]);
    let id = stage.id();
    for _ in 0..8 {
        save(&mut scribe, &stage.work(), &["a", "b"]);
        stage.ask(&["set", &id, "-u", "now"]).must_succeed();
        let session = stage.session();
        assert_eq!(session["debt"], 0, "{session:#}");
        stage.ask(&["set", &id, "-u", "exit"]).must_succeed();
        warm(&stage, &mut scribe, &stage.work());
    }
    ends_well(&stage, &mut scribe);
}

#[test]
fn what_a_stricter_dial_has_promised_is_kept_by_a_longer_one() {
    if !as_root("what_a_stricter_dial_has_promised_is_kept_by_a_longer_one") {
        return;
    }
    let disk = Disk::new("ext4", 64);
    let stage = Stage::new("longer");
    let mut scribe = scribe(&stage, &["--until", "1h"]);
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["kept"]);
    stage
        .ask(&["set", &stage.id(), "-u", "never"])
        .must_succeed();
    are_whole(disk.cut().path(), &["kept"]);
    ends_well(&stage, &mut scribe);
}

#[test]
fn what_is_put_off_after_never_is_in_an_entry_that_says_so() {
    if !as_root("what_is_put_off_after_never_is_in_an_entry_that_says_so") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("after-never"));
    let ledger = SmallFolder::over(&stage.state());
    let mut scribe = scribe(&stage, &[]);
    warm(&stage, &mut scribe, disk.path());
    let id = stage.id();
    let set = |dial: &str| stage.ask(&["set", &id, "-u", dial]).must_succeed();
    let is_never = |stage: &Stage| {
        let text = std::fs::read_to_string(&stage.entries()[0]).expect("the entry");
        let entry: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        entry["is_never"] == true
    };
    let never = |stage: &Stage| {
        set("never");
        assert!(until(LIMIT, || is_never(stage)));
    };
    never(&stage);
    set("exit");
    warm(&stage, &mut scribe, disk.path());
    assert!(!is_never(&stage), "something is put off");
    never(&stage);
    ledger.fill();
    set("exit");
    save(&mut scribe, disk.path(), &["a", "b"]);
    crate::redteam::broken::kill_all(&stage.of_synclater());
    are_whole(disk.cut().path(), &["a", "b"]);
    scribe.no_more();
}
