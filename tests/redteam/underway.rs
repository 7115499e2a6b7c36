//! Syncs of ours whose process is killed, with whoever waits for it, while a disk refuses what it
//! is asked: nobody else is told, and what flushes next is told nothing.

use super::broken::kill_all;
use super::flushes::may_refuse;
use super::*;
use crate::harness::command::{Outcome, LIMIT};
use crate::harness::disk::keep_mounts_private;
use crate::sessions::death::{children, helper_of, is_gone, waiting_for_disk};
use crate::sessions::stage::{as_root, marked_in};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// synclater as who may not watch what disks refuse.
fn blind(stage: &Stage, words: &[&str]) -> Command {
    let mut command = stage.with_folders("setpriv");
    for set in ["--bounding-set", "--inh-caps"] {
        command.args([set, "-perfmon,-sys_admin"]);
    }
    command.arg(SYNCLATER).args(words);
    command
}

/// A session that owes on a disk, beside others of its run folder.
fn owing(stage: &Stage, disk: &SlowDisk) -> Running {
    owing_by(stage, &disk.path(), |_| {})
}

/// The same of a session whose command is changed by `with`.
fn owing_by(stage: &Stage, disk: &Path, with: impl Fn(&mut Command)) -> Running {
    let skipped = || -> u64 {
        let all = stage.sessions();
        let of = |key| move |value: &serde_json::Value| value[key].as_u64();
        let rows = all.iter().filter_map(|s| s["processes"].as_array());
        rows.flatten().filter_map(of("skipped")).sum()
    };
    let mut command = blind(stage, &["run", "--quiet", "--until", "exit", "--"]);
    with(command.arg(tool("scribe")));
    let mut scribe = Running::start(stage, command);
    scribe.be_ready();
    let before = skipped();
    let is_put_off = until(LIMIT, || {
        save(&mut scribe, disk, &["a"]);
        skipped() > before
    });
    assert!(is_put_off, "{:#?}", stage.sessions());
    scribe
}

/// The disk takes its time from now on, and refuses the first flush at its end.
fn refuses_once(disk: &SlowDisk) -> PathBuf {
    let once = disk.path().with_file_name("img.once");
    std::fs::write(&once, "").expect("until one was refused");
    disk.becomes_slow();
    once
}

/// Kills these at once: none of them learns of the others.
fn kill_at_once(pids: &[Pid]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in pids {
            kill_process(*pid, signal).expect("it is there");
        }
    }
}

/// The disk has refused what the dead had asked for, and is quick again.
fn has_refused(disk: &SlowDisk, once: &Path, dead: &[Pid]) {
    assert!(until(LIMIT, || !once.exists()), "it has refused nothing");
    std::fs::write(disk.quick(), "").expect("it is quick again");
    assert!(until(LIMIT, || dead.iter().all(is_gone)), "{dead:?}");
}

fn says_that_one_was_killed(told: &Outcome) {
    assert_eq!(told.status.code(), Some(125), "{told}");
    assert!(told.stderr.contains("was killed, and with it"), "{told}");
}

/// Two sessions owe on a disk that refuses a flush while `kill` has who settles for the first be
/// killed, as it ends or is killed itself: it returns these. Then neither is durable.
fn is_known_of(kill: impl Fn(&Stage, &SlowDisk, &mut Running) -> Vec<Pid>) {
    let (disk, stage) = (may_refuse(500), Stage::new("both-killed"));
    let mut other = owing(&stage, &disk);
    let mut first = owing(&stage, &disk);
    let once = refuses_once(&disk);
    let dead = kill(&stage, &disk, &mut first);
    // Who looks before they are gone takes nothing away from who looks later.
    stage.ask(&["ps"]);
    has_refused(&disk, &once, &dead);
    says_that_one_was_killed(&other.end());
    if is_gone(&first.pid()) {
        // Its keeper may be at it.
        let told = run(&mut blind(&stage, &["settle"]));
        says_that_one_was_killed(&told);
        first.end();
    } else {
        says_that_one_was_killed(&first.end())
    }
    assert_eq!(stage.marked(), []);
}

fn keeper_of(session: &Running) -> Pid {
    children(session.pid(), "synclater-keep")[0]
}

#[test]
fn a_settle_that_is_killed_with_its_supervisor_and_keeper_is_known() {
    if !as_root("a_settle_that_is_killed_with_its_supervisor_and_keeper_is_known") {
        return;
    }
    is_known_of(|_, _, first| {
        let keeper = keeper_of(first);
        first.send(Signal::TERM);
        let all = vec![first.pid(), keeper, helper_of(first.pid())];
        kill_at_once(&all);
        all
    });
}

/// The keeper settles behind them.
#[test]
fn a_settle_that_is_killed_with_its_supervisor_is_known() {
    if !as_root("a_settle_that_is_killed_with_its_supervisor_is_known") {
        return;
    }
    is_known_of(|_, _, first| {
        let keeper = keeper_of(first);
        first.send(Signal::TERM);
        let both = [first.pid(), helper_of(first.pid())];
        kill_at_once(&both);
        // It ends once it has settled.
        [&both[..], &[keeper]].concat()
    });
}

#[test]
fn a_settle_that_is_killed_with_its_keeper_is_known() {
    if !as_root("a_settle_that_is_killed_with_its_keeper_is_known") {
        return;
    }
    is_known_of(|_, _, first| {
        let keeper = keeper_of(first);
        first.send(Signal::KILL);
        let both = vec![keeper, helper_of(keeper)];
        kill_at_once(&both);
        both
    });
}

/// `synclater settle PATH`, killed with what settles for it.
fn settle_is_killed(stage: &Stage, disk: &SlowDisk) -> Vec<Pid> {
    let path = disk.path().display().to_string();
    let mut settle = Running::start(stage, blind(stage, &["settle", &path]));
    let both = vec![settle.pid(), helper_of(settle.pid())];
    kill_at_once(&both);
    settle.end();
    both
}

#[test]
fn a_settle_of_a_path_that_is_killed_with_its_command_is_known() {
    if !as_root("a_settle_of_a_path_that_is_killed_with_its_command_is_known") {
        return;
    }
    is_known_of(|stage, disk, _| settle_is_killed(stage, disk));
    // Also where nobody owes.
    let (disk, stage) = (may_refuse(500), Stage::new("nobody-owes"));
    let once = refuses_once(&disk);
    let dead = settle_is_killed(&stage, &disk);
    has_refused(&disk, &once, &dead);
    let path = disk.path().display().to_string();
    says_that_one_was_killed(&stage.ask(&["settle", &path]));
    stage.ask(&["settle", &path]).must_succeed();
}

/// The same of a device, whose file system has another number (btrfs).
#[test]
fn a_settle_of_a_device_that_is_killed_with_its_command_is_known() {
    if !as_root("a_settle_of_a_device_that_is_killed_with_its_command_is_known") {
        return;
    }
    let (disk, stage) = (
        SlowDisk::new("btrfs", 160, 500),
        Stage::new("device-killed"),
    );
    std::fs::write(disk.quick(), "").expect("as long as this is there");
    let mut other = owing(&stage, &disk);
    let settles = || Running::start(&stage, blind(&stage, &["settle", &disk.device()]));
    let once = refuses_once(&disk);
    let mut settle = settles();
    let both = [settle.pid(), helper_of(settle.pid())];
    kill_at_once(&both);
    has_refused(&disk, &once, &both);
    settle.end();
    says_that_one_was_killed(&other.end());
    // Of one that nobody has mounted.
    umount(&disk.path());
    let once = refuses_once(&disk);
    let mut settle = settles();
    let both = [settle.pid(), helper_of(settle.pid())];
    kill_at_once(&both);
    has_refused(&disk, &once, &both);
    settle.end();
    says_that_one_was_killed(&settles().end());
    settles().end().must_succeed();
    mount(&[], &disk.device(), &disk.path());
}

/// A command that is interrupted leaves what settles for it to its end.
#[test]
fn a_settle_that_is_interrupted_is_none_that_was_killed() {
    if !as_root("a_settle_that_is_interrupted_is_none_that_was_killed") {
        return;
    }
    for signal in [Signal::INT, Signal::TERM] {
        let (disk, stage) = (may_refuse(500), Stage::new("interrupted-settle"));
        let mut other = owing(&stage, &disk);
        for what in [disk.device(), disk.path().display().to_string()] {
            disk.becomes_slow();
            let mut settle = Running::start(&stage, blind(&stage, &["settle", &what]));
            let helper = helper_of(settle.pid());
            settle.send(signal);
            settle.end();
            std::fs::write(disk.quick(), "").expect("it is quick again");
            assert!(until(LIMIT, || is_gone(&helper)), "{what}");
            assert_eq!(stage.marked(), [], "{what}");
        }
        let end = other.end();
        assert_eq!(end.status.code(), Some(0), "{end}");
    }
}

/// The session that keeps it lives, and owes elsewhere.
#[test]
fn a_sync_of_the_ledger_that_is_killed_is_known_of_who_owes_on_its_disk() {
    let name = "a_sync_of_the_ledger_that_is_killed_is_known_of_who_owes_on_its_disk";
    if !as_root(name) {
        return;
    }
    let (disk, stage) = (may_refuse(500), Stage::new("ledger-killed"));
    let (ledger, elsewhere) = (disk.path().join("ledger"), Disk::new("ext4", 64));
    std::fs::create_dir(&ledger).expect("a folder");
    let with_it = |command: &mut Command| {
        command.env("SYNCLATER_STATE_DIR", &ledger);
    };
    let mut other = owing_by(&stage, &disk.path(), with_it);
    let once = refuses_once(&disk);
    let mut command = blind(&stage, &["run", "--quiet", "--until", "exit", "--"]);
    with_it(command.arg(tool("scribe")));
    let mut first = Running::start(&stage, command);
    first.be_ready();
    save(&mut first, elsewhere.path(), &["a"]);
    let mut writer = None;
    let waits = until(LIMIT, || {
        let waiting = waiting_for_disk(first.pid());
        writer = stage.marked().into_iter().find(|pid| waiting.contains(pid));
        writer.is_some()
    });
    assert!(waits, "no entry is written");
    let writer = writer.expect("it waits");
    kill_at_once(&[writer]);
    has_refused(&disk, &once, &[writer]);
    says_that_one_was_killed(&other.end());
    first.end();
}

#[test]
fn a_probe_that_is_killed_is_known_of_who_owes_there() {
    if !as_root("a_probe_that_is_killed_is_known_of_who_owes_there") {
        return;
    }
    let (disk, stage) = (may_refuse(500), Stage::new("probe-killed"));
    let mut other = owing(&stage, &disk);
    let once = refuses_once(&disk);
    let path = disk.path().display().to_string();
    let mut probe = Running::start(&stage, blind(&stage, &["probe", &path]));
    is_syncing(probe.pid(), &stage.run_dir());
    let pid = probe.pid();
    kill_at_once(&[pid]);
    has_refused(&disk, &once, &[pid]);
    probe.end();
    says_that_one_was_killed(&other.end());
}

/// The folder is gone by then, and its inode given to another one.
#[test]
fn a_sync_that_was_killed_in_another_run_folder_of_that_inode_is_not_this_ones() {
    let name = "a_sync_that_was_killed_in_another_run_folder_of_that_inode_is_not_this_ones";
    if !as_root(name) {
        return;
    }
    for is_anothers in [false, true] {
        let (disk, stage) = (may_refuse(500), Stage::new("its-inode"));
        let mut other = owing(&stage, &disk);
        // Not made at the same tick of the clock.
        let gone = Stage::new("gone");
        let once = refuses_once(&disk);
        let probes = if is_anothers { &gone } else { &stage };
        let path = disk.path().display().to_string();
        let mut probe = Running::start(probes, blind(probes, &["probe", &path]));
        let pid = probe.pid();
        is_syncing(pid, &probes.run_dir());
        kill_at_once(&[pid]);
        has_refused(&disk, &once, &[pid]);
        probe.end();
        let inode = |stage: &Stage| std::fs::metadata(stage.run_dir()).expect("a folder").ino();
        let name = |stage: &Stage| format!(".{}.", inode(stage));
        for mark in gone.marks() {
            let given = mark.to_string_lossy().replace(&name(&gone), &name(&stage));
            std::fs::rename(mark, given).expect("as if it had that inode");
        }
        assert_eq!(stage.marked(), [pid]);
        match (is_anothers, other.end()) {
            (false, end) => says_that_one_was_killed(&end),
            (true, end) => assert!(!end.stderr.contains("was killed"), "{end}"),
        }
    }
}

/// An overlay copies the folder meanwhile: the copy has its inode, and is younger.
#[test]
fn a_sync_that_was_killed_in_a_run_folder_that_an_overlay_copies_is_known() {
    let name = "a_sync_that_was_killed_in_a_run_folder_that_an_overlay_copies_is_known";
    if !as_root(name) {
        return;
    }
    keep_mounts_private();
    let (disk, stage) = (may_refuse(500), Stage::new("copied-up"));
    let mut other = owing(&stage, &disk);
    kill_all(&stage.of_synclater());
    other.end();
    let layers = Disk::new("ext4", 64);
    let [lower, upper, work, point] =
        ["lower", "upper", "work", "point"].map(|name| layers.path().join(name));
    for folder in [&lower.join("run"), &upper, &work, &point] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    let [lower, upper, work] = [lower, upper, work].map(|path| path.display().to_string());
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    mount(&["-t", "overlay", "-o", &layers], "overlay", &point);
    let run_folder = point.join("run");
    let there = |words: &[&str]| {
        let mut command = blind(&stage, words);
        command.env("SYNCLATER_RUN_DIR", &run_folder);
        command
    };
    let once = refuses_once(&disk);
    let path = disk.path().display().to_string();
    let mut probe = Running::start(&stage, there(&["probe", &path]));
    let pid = probe.pid();
    is_syncing(pid, &run_folder);
    let made = || std::fs::metadata(&run_folder).expect("a folder").created();
    let before = made().expect("its file system says when");
    kill_at_once(&[pid]);
    has_refused(&disk, &once, &[pid]);
    probe.end();
    std::fs::write(run_folder.join("new"), "").expect("what has it copied");
    assert_ne!(made().expect("its file system says when"), before);
    says_that_one_was_killed(&run(&mut there(&["settle"])));
    umount(&point);
}

/// It waits for a disk, and has said so in this run folder: what it waited for before is no sync.
fn is_syncing(pid: Pid, run_folder: &Path) {
    let waits = || std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(in_disk);
    let is = || marked_in(run_folder).contains(&pid) && waits();
    assert!(until(LIMIT, is), "it does not probe");
}

/// Whether one of these threads waits for a disk.
fn in_disk(threads: std::fs::ReadDir) -> bool {
    let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat"));
    let waits = |thread| stat(thread).is_ok_and(|stat| stat.contains(") D "));
    threads.flatten().any(waits)
}

/// What a command is begun by that sees less than others: words in front of it.
type Apart = fn(&Stage, &SlowDisk) -> Vec<String>;

/// Has `script` be run in a mount namespace of its own: by `$0`, what is named there, and the
/// command.
fn in_namespace(script: &str, named: &Path) -> Vec<String> {
    let words = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
    ];
    let named = named.display().to_string();
    words
        .map(str::to_owned)
        .into_iter()
        .chain([named])
        .collect()
}

fn with_limit(limit: &str) -> Vec<String> {
    ["prlimit", limit, "--"].map(str::to_owned).to_vec()
}

/// Who looks, how many marks are left then, where that is certain.
const LOOKERS: [(Apart, Option<usize>); 9] = [
    (|_, _| with_limit("--fsize=0"), Some(1)),
    (
        |_, disk| in_namespace("umount -l \"$0\" && exec \"$@\"", &disk.path()),
        Some(0),
    ),
    (
        |stage, _| {
            let boot = stage.file("boot_id");
            std::fs::write(&boot, "1d5e2c5c-0f1c-4a54-8e39-0d4f9a3c0c11\n").expect("an id");
            let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
            in_namespace(script, &boot)
        },
        Some(0),
    ),
    (
        |stage, _| {
            let script =
                "state=$SYNCLATER_STATE_DIR; mv \"$state\" \"$0\"; \"$@\"; mv \"$0\" \"$state\"";
            in_namespace(script, &stage.file("moved"))
        },
        Some(1),
    ),
    (|_, _| with_limit("--nofile=4"), None),
    (|_, _| with_limit("--nofile=5"), None),
    (|_, _| with_limit("--nofile=6"), None),
    (|_, _| with_limit("--nofile=7"), None),
    (|_, _| with_limit("--nofile=8"), None),
];

#[test]
fn who_looks_and_can_note_nothing_takes_nothing_away() {
    if !as_root("who_looks_and_can_note_nothing_takes_nothing_away") {
        return;
    }
    for (number, (apart, left)) in LOOKERS.iter().enumerate() {
        let (disk, stage) = (may_refuse(500), Stage::new("cannot-note"));
        let mut other = owing(&stage, &disk);
        let once = refuses_once(&disk);
        let dead = settle_is_killed(&stage, &disk);
        has_refused(&disk, &once, &dead);
        let words = apart(&stage, &disk);
        let mut command = stage.with_folders(&words[0]);
        let told = run(command.args(&words[1..]).args([SYNCLATER, "status"]));
        let marks = stage.marked().len();
        assert!(
            left.is_none_or(|left| marks == left),
            "{number}: {marks}, {told}"
        );
        says_that_one_was_killed(&other.end());
    }
}

/// An overlay is known by where it is mounted, and that may be moved meanwhile.
#[test]
fn a_killed_settle_of_an_overlay_that_was_moved_is_known() {
    if !as_root("a_killed_settle_of_an_overlay_that_was_moved_is_known") {
        return;
    }
    keep_mounts_private();
    let (disk, stage) = (may_refuse(500), Stage::new("moved"));
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| disk.path().join(name));
    let (above, moved) = (stage.file("above"), stage.file("elsewhere"));
    let point = above.join("point");
    for folder in [&lower, &upper, &work, &point] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount(&["-t", "overlay", "-o", &layers], "overlay", &point);
    let mut other = owing_by(&stage, &point, |_| {});
    let mut first = owing_by(&stage, &point, |_| {});
    std::fs::rename(&above, &moved).expect("another name");
    let once = refuses_once(&disk);
    let keeper = keeper_of(&first);
    first.send(Signal::TERM);
    let dead = [first.pid(), keeper, helper_of(first.pid())];
    kill_at_once(&dead);
    has_refused(&disk, &once, &dead);
    says_that_one_was_killed(&other.end());
    let path = moved.join("point").display().to_string();
    let told = run(&mut blind(&stage, &["settle", &path]));
    assert_eq!(told.status.code(), Some(125), "{told}");
    first.end();
    umount(&moved.join("point"));
}

/// Nor does one that has ended by itself leave anything.
#[test]
fn a_settle_that_ends_leaves_no_mark() {
    if !as_root("a_settle_that_ends_leaves_no_mark") {
        return;
    }
    let (disk, stage) = (may_refuse(500), Stage::new("marks"));
    let mut session = owing(&stage, &disk);
    disk.becomes_slow();
    session.no_more();
    helper_of(session.pid());
    assert_eq!(stage.marked().len(), 1);
    // Who looks meanwhile takes it for no dead one's.
    let path = disk.path().display().to_string();
    stage.ask(&["settle", &path]).must_succeed();
    let end = session.end();
    assert_eq!(end.status.code(), Some(0), "{end}");
    assert_eq!(stage.marked(), []);
}
