//! Disks that lose writes: who hears of it, and whom it concerns.

use super::*;
use crate::harness::dir::Dir;
use crate::harness::disk::{keep_mounts_private, Disk};
use crate::sessions::stage::as_root;
use crate::wait::until;
use rustix::process::{kill_process, Signal};
use std::path::PathBuf;

/// A file system of 64 MiB on a disk that takes 24 only.
struct Small {
    mount: PathBuf,
    memory: PathBuf,
    _dir: Dir,
}

impl Small {
    fn new() -> Small {
        keep_mounts_private();
        let dir = Dir::new("small");
        let (memory, at) = (dir.make("memory"), dir.make("mount"));
        mount(&["-t", "tmpfs", "-o", "size=24m"], "none", &memory);
        let image = memory.join("image");
        let file = std::fs::File::create(&image).expect("the image");
        file.set_len(64 << 20).expect("its size");
        let mut make = clean("mkfs.ext4");
        run(make.args(["-q", "-O", "^has_journal"]).arg(&image)).must_succeed();
        mount(&["-o", "loop"], &image.display().to_string(), &at);
        Small {
            mount: at,
            memory,
            _dir: dir,
        }
    }

    /// Somebody else's sync hears of what was lost, before anybody else does.
    fn is_heard_of_by_others(&self) {
        let heard = run(clean("sync").arg("-f").arg(&self.mount));
        assert!(!heard.status.success(), "nothing was lost: {heard}");
    }

    fn has_room_again(&self) {
        mount(&["-o", "remount,size=100m"], "none", &self.memory);
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        for at in [&self.mount, &self.memory] {
            run(clean("umount").arg("-l").arg(at));
        }
    }
}

#[test]
fn an_error_that_somebody_else_has_heard_is_told_by_the_file_it_is_about() {
    let name = "an_error_that_somebody_else_has_heard_is_told_by_the_file_it_is_about";
    if !as_root(name) {
        return;
    }
    for has_room_again in [true, false] {
        let small = Small::new();
        let stage = Stage::new("heard");
        let mut scribe = scribe(&stage, &[]);
        let big = small.mount.join("big");
        assert_eq!(does(&mut scribe, &format!("open 1 {}", big.display())), 0);
        assert_eq!(does(&mut scribe, "grow 1 40"), 0);
        small.is_heard_of_by_others();
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
fn a_broken_file_system_that_the_command_never_wrote_to_is_a_warning() {
    if !as_root("a_broken_file_system_that_the_command_never_wrote_to_is_a_warning") {
        return;
    }
    let small = Small::new();
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
    let ours = stage.of_synclater();
    // All stand still first, so that none settles in another's place.
    for signal in [Signal::STOP, Signal::KILL] {
        ours.iter().for_each(|pid| {
            let _ = kill_process(*pid, signal);
        });
    }
    scribe.no_more();
    let gone = until(crate::harness::command::LIMIT, || {
        stage.of_synclater().is_empty()
    });
    assert!(gone, "{:?}", stage.of_synclater());
    run(clean("umount").arg("-l").arg(disk.path())).must_succeed();
    let told = stage.ask(&["settle"]);
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(!stage.entries().is_empty(), "the entry was closed: {told}");
    let again = stage.ask(&["settle"]);
    assert_eq!(again.status.code(), Some(125), "{again}");
}
