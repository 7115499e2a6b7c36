//! Dials that move: what was put off under the one before.

use super::*;
use crate::harness::command::LIMIT;
use crate::harness::disk::{Disk, SmallFolder};
use crate::sessions::death::children;
use crate::sessions::stage::{as_root, has_four_parts};
use crate::wait::until;
use rustix::process::Pid;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    let supervisor = scribe.pid();
    let never = |stage: &Stage| {
        set("never");
        // Who has written it has the one before in its hands still, and gives that room free.
        let writes = || !children(supervisor, "synclater-job").is_empty();
        assert!(until(LIMIT, || is_never(stage) && !writes()));
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

/// A control group of our own, that can be frozen; nobody is in it when this is dropped.
struct Group {
    folder: PathBuf,
    freeze: (&'static str, [&'static str; 2]),
}

const V1: (&str, [&str; 2]) = ("freezer.state", ["THAWED", "FROZEN"]);
const V2: (&str, [&str; 2]) = ("cgroup.freeze", ["0", "1"]);

impl Group {
    /// In a hierarchy of which `is_it` a line of /proc/self/mounts.
    fn new(
        freeze: (&'static str, [&'static str; 2]),
        is_it: &dyn Fn(&str) -> bool,
    ) -> Option<Group> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        let hierarchy = mounts.lines().find(|line| is_it(line))?.split(' ').nth(1)?;
        // Several tests may have one at once.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Relaxed);
        let name = format!("synclater-{}-{}-{next}", freeze.0, std::process::id());
        let folder = Path::new(hierarchy).join(name);
        std::fs::create_dir(&folder).ok()?;
        let group = Group { folder, freeze };
        group.folder.join(freeze.0).exists().then_some(group)
    }

    fn v1() -> Option<Group> {
        Group::new(V1, &|line| {
            line.contains(" cgroup ") && line.contains("freezer")
        })
    }

    fn v2() -> Option<Group> {
        Group::new(V2, &|line| line.contains(" cgroup2 "))
    }

    fn is_frozen(&self, yes: bool) {
        let (file, words) = self.freeze;
        std::fs::write(self.folder.join(file), words[usize::from(yes)]).expect("it freezes");
    }

    /// In front of a command: it begins in this group.
    fn words(&self) -> [String; 4] {
        let procs = self.folder.join("cgroup.procs").display().to_string();
        let script = "echo $$ >\"$0\" && exec \"$@\"";
        ["sh".into(), "-c".into(), script.into(), procs]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let (file, words) = self.freeze;
        let _ = std::fs::write(self.folder.join(file), words[0]);
        let _ = std::fs::remove_dir(self.folder.join("synclater-keeper"));
        until(LIMIT, || {
            std::fs::remove_dir(&self.folder).is_ok() || !self.folder.exists()
        });
    }
}

#[test]
fn a_keeper_settles_for_a_session_whose_control_group_is_frozen() {
    const NAME: &str = "a_keeper_settles_for_a_session_whose_control_group_is_frozen";
    if !as_root(NAME) {
        return;
    }
    let Some(freezer) = Group::v1().or_else(Group::v2) else {
        return crate::harness::limits::skip(NAME, "no control group that can be frozen");
    };
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("frozen"));
    let mut command = stage.with_folders("env");
    command.args(freezer.words());
    command.args([SYNCLATER, "run", "--quiet"]);
    command.args(stage.json()).arg("--").arg(tool("scribe"));
    let mut scribe = Running::start(&stage, command);
    scribe.be_ready();
    warm(&stage, &mut scribe, disk.path());
    save(&mut scribe, disk.path(), &["a"]);
    freezer.is_frozen(true);
    let is_there = || {
        let seen = std::fs::metadata(disk.cut().path().join("a"));
        seen.is_ok_and(|m| m.len() == 4096)
    };
    // Before the kernel writes by itself what is 30 s old.
    let is_settled = until(Duration::from_secs(20), is_there);
    freezer.is_frozen(false);
    assert!(is_settled, "nobody settles");
    ends_well(&stage, &mut scribe);
}

/// A scribe in a session in `group` and in a mount namespace of its own, where `script` has been
/// done with the group as "$0" and a folder of the test's as "$1".
fn scribe_in(stage: &Stage, group: &Group, namespaces: &[&str], script: &str) -> Running {
    let at = stage.file("groups");
    std::fs::create_dir(&at).expect("a mount point");
    let script = format!("{script} && shift && exec \"$@\"");
    let mut command = stage.with_folders("env");
    command.args(group.words());
    command.arg("unshare").args(namespaces);
    command.args(["--propagation", "private", "sh", "-c", &script]);
    command.arg(&group.folder).arg(&at);
    command.args([SYNCLATER, "run", "--quiet"]);
    command.args(stage.json()).arg("--").arg(tool("scribe"));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    warm(stage, &mut scribe, &stage.work());
    scribe
}

/// Where a group is seen alone: other sessions have keepers, too.
const ALONE: &str = "umount -R /sys/fs/cgroup; mount -t cgroup2 none \"$1\"";

/// A group of version 2 for a test of this name, which is skipped where there is none.
fn group_for(test: &str) -> Option<Group> {
    let group = as_root(test).then(Group::v2)?;
    if group.is_none() {
        crate::harness::limits::skip(test, "no control groups of version 2");
    }
    group
}

#[test]
fn a_keeper_leaves_no_control_group_behind() {
    let Some(group) = group_for("a_keeper_leaves_no_control_group_behind") else {
        return;
    };
    let stage = Stage::new("group");
    let mut scribe = scribe_in(&stage, &group, &["-m", "-C"], ALONE);
    let keepers = group.folder.join("synclater-keeper");
    assert!(keepers.exists(), "it has none");
    ends_well(&stage, &mut scribe);
    assert!(!keepers.exists(), "it is still there");
}

#[test]
fn a_keeper_does_not_go_into_its_sessions_own_control_group() {
    let Some(group) = group_for("a_keeper_does_not_go_into_its_sessions_own_control_group") else {
        return;
    };
    let stage = Stage::new("own-group");
    let bind = "mount --bind \"$0\" \"$1\"";
    let mut scribe = scribe_in(&stage, &group, &["-m"], bind);
    let is_in_it = group.folder.join("synclater-keeper").exists();
    ends_well(&stage, &mut scribe);
    assert!(!is_in_it, "it is");
}

#[test]
fn a_keeper_takes_the_mount_of_control_groups_that_is_not_covered() {
    const NAME: &str = "a_keeper_takes_the_mount_of_control_groups_that_is_not_covered";
    let Some(group) = group_for(NAME) else {
        return;
    };
    let stage = Stage::new("anew");
    let hierarchy = group.folder.parent().expect("a hierarchy").display();
    let anew = format!("mount -t tmpfs none {hierarchy} && mount -t cgroup2 none {hierarchy}");
    let mut scribe = scribe_in(&stage, &group, &["-m"], &anew);
    let of = |pid: Pid| std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
    let groups = stage
        .of_synclater()
        .into_iter()
        .filter_map(|pid| of(pid).ok());
    let groups: Vec<String> = groups.collect();
    ends_well(&stage, &mut scribe);
    let is_out = |of_one: &String| of_one.lines().any(|l| l == "0::/synclater-keeper");
    assert!(groups.iter().any(is_out), "{groups:?}");
}

#[test]
fn a_keeper_writes_nothing_to_what_lies_over_a_control_group() {
    let Some(group) = group_for("a_keeper_writes_nothing_to_what_lies_over_a_control_group") else {
        return;
    };
    let stage = Stage::new("covered");
    let precious = stage.file("precious");
    std::fs::write(&precious, "precious").expect("a file");
    let cover = format!(
        "{ALONE} && mount -t tmpfs none \"$1\" && mkdir \"$1/synclater-keeper\" && \
         ln -s {} \"$1/synclater-keeper/cgroup.procs\"",
        precious.display()
    );
    let mut scribe = scribe_in(&stage, &group, &["-m", "-C"], &cover);
    ends_well(&stage, &mut scribe);
    let text = std::fs::read_to_string(&precious).expect("a file");
    assert_eq!(text, "precious");
}

/// Whose bound would come late, or never: no process is left to wait for it.
#[test]
fn a_session_by_a_clock_that_is_slow_is_refused() {
    let stage = Stage::new("slow-clock");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/still.c");
    let library = stage.file("libstill.so");
    let mut gcc = clean("gcc");
    gcc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library);
    run(gcc.arg(&source)).must_succeed();
    for (slower, starts) in [("1", true), ("0", false), ("10", false)] {
        for words in [
            &["run", "-u", "1s", "--", "echo", "it runs"][..],
            &["settle"],
        ] {
            let mut command = stage.synclater(words);
            command.env("LD_PRELOAD", &library).env("SLOWER", slower);
            let outcome = run(&mut command);
            let status = if starts { 0 } else { 125 };
            assert_eq!(outcome.status.code(), Some(status), "{slower}: {outcome}");
            let has_run = outcome.stdout.contains("it runs");
            assert_eq!(has_run, starts && words[0] == "run", "{slower}: {outcome}");
            assert!(starts || has_four_parts(&outcome.stderr), "{outcome}");
        }
    }
}
