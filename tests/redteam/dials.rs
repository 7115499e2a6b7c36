//! Dials that move: what was put off under the one before.

use super::*;
use crate::sessions::stage::as_root;

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
    let disk = crate::harness::disk::Disk::new("ext4", 64);
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
