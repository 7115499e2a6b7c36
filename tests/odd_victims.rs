//! Containers and odd victims: namespaces, limits, filters, block devices, chroots, and programs
//! that the library does not reach. Each has the right outcome or real syncs.

mod filters;
mod namespaces;

use crate::harness::command::{clean, copy_program, run, Outcome, LIMIT};
use crate::harness::disk::{keep_mounts_private, mount_copy, Disk, SlowDisk};
use crate::servers::leftovers::Leftovers;
use crate::sessions::stage::{as_root, program, progress, Running, Stage, SyncLog, SYNCLATER};
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// So many that the ledger entry is on disk before the last, on a busy disk too.
const REQUESTS: u64 = 5003;

fn number(report: &Value, key: &str) -> u64 {
    report[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {report:#}"))
}

/// `synclater run` with a report; what comes behind is the command.
fn reported(stage: &Stage, before: &[&str]) -> Command {
    let json = stage.json();
    let mut command = stage.with_folders("env");
    command.args(before).arg(SYNCLATER);
    command.args(["run", "--quiet"]).args(json).arg("--");
    command
}

/// Appends a hammer that makes [`REQUESTS`].
fn hammer(command: &mut Command, dir: &Path) {
    command.arg(program("hammer")).arg(dir);
    command.args(["1", &REQUESTS.to_string()]);
}

/// Every request was counted, some were put off, and those were settled.
fn is_kept(stage: &Stage, outcome: &Outcome) {
    let report = stage.report();
    assert_eq!(outcome.status.code(), Some(0), "{outcome}\n{report:#}");
    assert_eq!(number(&report, "requests"), REQUESTS, "{report:#}");
    assert!(number(&report, "skipped") > 0, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    assert!(stage.entries().is_empty(), "{:?}", stage.entries());
}

// --- Limits --------------------------------------------------------------------------------------

const NO_ROOM: &str = "\
import os, resource, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.write(f, b'a')
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for i in range(int(sys.argv[2])):
    os.fsync(f)
";

#[test]
fn a_victim_that_may_write_no_file_is_served() {
    let stage = Stage::new("no-room");
    let mut command = reported(&stage, &[]);
    command
        .args(["python3", "-c", NO_ROOM])
        .arg(stage.work().join("file"));
    is_kept(&stage, &run(command.arg(REQUESTS.to_string())));
}

#[test]
fn synclater_that_may_write_no_file_says_so() {
    let stage = Stage::new("no-file");
    // Through a pipe: a file would have no room for what it says either.
    let script = "(ulimit -f 0; exec \"$@\") 2>&1 | cat >&2";
    let mut command = stage.with_folders("bash");
    command.args(["-o", "pipefail", "-c", script, "bash"]);
    command.args([SYNCLATER, "run", "--quiet", "--", "true"]);
    let outcome = run(&mut command);
    assert!(
        outcome.status.code().is_some(),
        "ended by a signal: {outcome}"
    );
    let said = outcome.status.success() || crate::sessions::stage::has_four_parts(&outcome.stderr);
    assert!(said, "{outcome}");
}

// --- Block devices -------------------------------------------------------------------------------

/// A loop device on an image; detached with its guard.
pub struct Device {
    pub path: PathBuf,
}

impl Device {
    pub fn new(stage: &Stage) -> Device {
        let image = stage.file("device.img");
        let file = std::fs::File::create(&image).expect("the image");
        file.set_len(32 << 20).expect("its size");
        let made = run(clean("losetup").args(["-f", "--show"]).arg(&image)).must_succeed();
        Device {
            path: made.stdout.trim().into(),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run(clean("losetup").arg("-d").arg(&self.path));
    }
}

/// Takes 700 groups and a filter that says EPERM to sync_file_range, and executes a dd that syncs.
const FILTERED: &str = "\
import ctypes, os, struct, sys
os.setgroups([1000000000 + k for k in range(700)])
call, error = int(sys.argv[2]), 0x50001
says = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, error), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *i) for i in says))
filter = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
dd = ['dd', 'if=/dev/zero', 'of=' + sys.argv[1], 'count=1', 'conv=fsync', 'status=none']
os.execvp('dd', dd)
";

/// The line that tells of filters stands behind that of the groups.
#[test]
fn a_filter_is_seen_however_many_groups_a_user_has() {
    if !as_root("a_filter_is_seen_however_many_groups_a_user_has") {
        return;
    }
    let stage = Stage::new("groups");
    let number = if cfg!(target_arch = "x86_64") {
        "277"
    } else {
        "84"
    };
    let mut command = reported(&stage, &[]);
    command.args(["/usr/bin/python3", "-c", FILTERED]);
    command.arg(stage.file("written")).arg(number);
    run(&mut command).must_succeed();
}

/// Syncs of a script that reach the kernel in a session; $1 is a block device, $2 a hammer, $3 a
/// directory. A device is told from a file by nothing here, so scripts sync devices only.
fn real_syncs(stage: &Stage, script: &str, device: &Device) -> u64 {
    let mut command = reported(stage, &[]);
    let log = stage.traced(&mut command, "fsync,fdatasync", "victim.log");
    command.args(["sh", "-ec", script, "sh"]).arg(&device.path);
    command.arg(program("hammer")).arg(stage.work());
    run(&mut command).must_succeed();
    log.count("fsync") + log.count("fdatasync")
}

#[test]
fn syncs_of_a_block_device_stay_real() {
    if !as_root("syncs_of_a_block_device_stay_real") {
        return;
    }
    let dd = "dd if=/dev/zero bs=4k count=3 status=none conv=fsync,notrunc";
    let scripts = [
        (format!("{dd} of=\"$1\""), 1),
        (format!("{dd} >\"$1\""), 1),
        (format!("{dd} 1<>\"$1\""), 1),
        (format!("{dd} of=\"$1\"; {dd} of=\"$1\"; {dd} of=\"$1\""), 3),
        ("mkfs.ext4 -q -F \"$1\"".to_owned(), 1),
    ];
    for (script, at_least) in scripts {
        let stage = Stage::new("device");
        let device = Device::new(&stage);
        let real = real_syncs(&stage, &script, &device);
        assert!(real >= at_least, "{script}: {real}");
    }
}

const INHERITED: &str = "\
import os, sys
for i in range(23):
    os.fsync(5)
";

#[test]
fn syncs_of_a_block_device_that_was_open_at_the_start_stay_real() {
    if !as_root("syncs_of_a_block_device_that_was_open_at_the_start_stay_real") {
        return;
    }
    let stage = Stage::new("open-device");
    let device = Device::new(&stage);
    let log = SyncLog(stage.file("victim.log"));
    // A session whose entry is on disk before: otherwise everything would be real anyway.
    let script = "exec 5<>\"$1\"; shift; exec \"$@\"";
    let warm = "\"$1\" \"$2\" 1 2003; shift 2; exec \"$@\"";
    let mut command = stage.with_folders("sh");
    command.args(["-c", script, "sh"]).arg(&device.path);
    command.args([SYNCLATER, "run", "--quiet", "--", "sh", "-c", warm, "sh"]);
    command.arg(program("hammer")).arg(stage.work());
    command
        .args(["strace", "-f", "-qq", "-e", "trace=fsync", "-o"])
        .arg(&log.0);
    run(command.args(["python3", "-c", INHERITED])).must_succeed();
    assert_eq!(log.count("fsync"), 23);
}

// --- Out of reach --------------------------------------------------------------------------------

/// What the report says of the processes that escaped with a name.
fn escaped(report: &Value, name: &str) -> Vec<Value> {
    let all = report["escaped"].as_array().expect("escaped").clone();
    let is_it = |e: &Value| e["exe"].as_str().is_some_and(|x| x.ends_with(name));
    all.into_iter().filter(is_it).collect()
}

fn is_named_with_its_count(words: &[&str], victim: &str) {
    let stage = Stage::new("escaped");
    let mut command = reported(&stage, &[]);
    command.args(words).arg(program(victim)).arg(stage.work());
    run(command.args(["1", &REQUESTS.to_string()])).must_succeed();
    let report = stage.report();
    let found = escaped(&report, victim);
    assert_eq!(found.len(), 1, "{report:#}");
    assert_eq!(found[0]["requests"], REQUESTS, "{report:#}");
    let pid = u64::try_from(progress(&stage.work()).1).expect("a process");
    assert_eq!(found[0]["pid"], pid, "{report:#}");
    assert!(
        found[0]["why"].as_str().is_some_and(|w| !w.is_empty()),
        "{report:#}"
    );
    assert_eq!(number(&report, "requests"), 0, "{report:#}");
}

#[test]
fn a_process_without_its_environment_is_named_with_its_count() {
    if as_root("a_process_without_its_environment_is_named_with_its_count") {
        is_named_with_its_count(&["env", "-i"], "hammer");
    }
}

#[test]
fn a_static_program_is_named_with_its_count() {
    if as_root("a_static_program_is_named_with_its_count") {
        is_named_with_its_count(&[], "hammer_static");
    }
}

#[test]
fn who_is_in_a_sync_when_it_is_counted_or_killed_has_not_escaped() {
    if !as_root("who_is_in_a_sync_when_it_is_counted_or_killed_has_not_escaped") {
        return;
    }
    let disk = SlowDisk::new("ext4", 64, 20);
    let stage = Stage::new("in_a_sync");
    let mut command = stage.synclater(&["run", "--quiet", "-u", "now"]);
    command.args(stage.json()).arg("--");
    command.arg(program("hammer")).arg(disk.path()).arg("4");
    command.current_dir(disk.path());
    let mut victim = Running::start(&stage, command);
    assert!(until(LIMIT, || progress(&disk.path()).0 > 4));
    for _ in 0..30 {
        let session = stage.session();
        assert_eq!(session["escaped"], serde_json::json!([]), "{session:#}");
    }
    let hammer = Pid::from_raw(progress(&disk.path()).1).expect("a process");
    kill_process(hammer, Signal::KILL).expect("it runs");
    let outcome = victim.end();
    assert!(!outcome.status.success(), "{outcome}");
    let report = stage.report();
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    assert!(number(&report, "real") > 4, "{report:#}");
}

/// Puts programs and the libraries that they need into a directory to chroot into.
pub fn furnish(root: &Path, programs: &[&Path]) {
    let script = "set -e; root=$1; shift; mkdir -p \"$root/bin\"; for p; do \
        cp \"$p\" \"$root/bin\"; for f in $(ldd \"$p\" | grep -o '/[^ ]*'); do \
        mkdir -p \"$root$(dirname \"$f\")\"; cp \"$f\" \"$root$f\"; done; done";
    let mut command = clean("sh");
    command.args(["-c", script, "sh"]).arg(root);
    run(command.args(programs)).must_succeed();
}

/// A directory to chroot into: `sh` and the libraries that it needs, and nothing of ours.
fn small_world(stage: &Stage) -> PathBuf {
    let root = stage.file("world");
    furnish(&root, &[Path::new("/bin/sh")]);
    root
}

const ROOTS: &str = "\
import os
for _ in range(20):
    os.chroot('/')
print(os.open('/dev/null', os.O_RDONLY))
";

#[test]
fn chroot_takes_no_descriptor() {
    if !as_root("chroot_takes_no_descriptor") {
        return;
    }
    let bare = run(clean("python3").args(["-c", ROOTS])).must_succeed();
    for dial in ["now", "exit"] {
        let stage = Stage::new("roots");
        let mut command = stage.with_folders(SYNCLATER);
        command.args(["run", "--quiet", "--until", dial, "--"]);
        let within = run(command.args(["python3", "-c", ROOTS])).must_succeed();
        assert_eq!(within.stdout, bare.stdout, "{dial}");
    }
}

#[test]
fn a_chroot_without_the_library_says_nothing() {
    if !as_root("a_chroot_without_the_library_says_nothing") {
        return;
    }
    let stage = Stage::new("chroot");
    let world = small_world(&stage);
    let child = "/bin/sh -c 'echo child'; echo parent";
    let by_python = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); \
        os.execv('/bin/sh', ['sh', '-c', sys.argv[2]])";
    let mut by_command = reported(&stage, &[]);
    by_command
        .arg("chroot")
        .arg(&world)
        .args(["/bin/sh", "-c", child]);
    let mut by_call = reported(&stage, &[]);
    by_call
        .args(["python3", "-c", by_python])
        .arg(&world)
        .arg(child);
    for mut command in [by_command, by_call] {
        let outcome = run(&mut command).must_succeed();
        assert_eq!(outcome.stdout, "child\nparent\n", "{outcome}");
        assert_eq!(outcome.stderr, "", "{outcome}");
    }
}

#[test]
fn what_gains_rights_is_named_and_so_is_what_it_starts() {
    if !as_root("what_gains_rights_is_named_and_so_is_what_it_starts") {
        return;
    }
    let stage = Stage::new("gains");
    // Root is not told to gain anything: another user starts them.
    stage.open_to_others(0o777);
    let copy = |name: &str, of: &str| {
        let path = stage.file(name);
        copy_program(program(of), &path);
        path
    };
    let (group, capable) = (copy("set-group", "hammer"), copy("capable", "hammer"));
    let plain = copy("plain", "hammer_static");
    run(clean("chgrp").arg("daemon").arg(&group)).must_succeed();
    run(clean("chmod").arg("2755").arg(&group)).must_succeed();
    run(clean("chmod").arg("755").args([&capable, &plain])).must_succeed();
    run(clean("setcap").arg("cap_net_raw+ep").arg(&capable)).must_succeed();
    run(clean("chmod").arg("777").arg(stage.work())).must_succeed();
    let script = "for p; do setpriv --reuid 65534 --clear-groups $p . 1 7; done";
    let mut command = reported(&stage, &[]);
    command
        .args(["sh", "-c", script, "sh"])
        .args([&group, &capable, &plain]);
    run(command.current_dir(stage.work())).must_succeed();
    let report = stage.report();
    let escaped = report["escaped"].as_array().expect("a list");
    for (exe, why) in [
        (&group, "gained rights"),
        (&capable, "gained rights"),
        (&plain, "a static program"),
    ] {
        let its = escaped
            .iter()
            .find(|e| e["exe"] == exe.display().to_string());
        let its = its.unwrap_or_else(|| panic!("{exe:?}: {report:#}"));
        assert_eq!(its["requests"], 7, "{its}");
        assert!(
            its["why"]
                .as_str()
                .is_some_and(|said| said.starts_with(why)),
            "{its}"
        );
    }
}

#[test]
fn what_runs_in_a_chroot_is_said_to_and_the_advice_reaches_it() {
    if !as_root("what_runs_in_a_chroot_is_said_to_and_the_advice_reaches_it") {
        return;
    }
    let stage = Stage::new("chrooted");
    let world = small_world(&stage);
    furnish(&world, &[&program("hammer")]);
    let ran = |more: &[&str]| {
        let mut command = stage.with_folders(SYNCLATER);
        command
            .args(["run", "--summary"])
            .args(stage.json())
            .args(more);
        command.args(["--", "chroot"]).arg(&world);
        command.args(["/bin/hammer", "/", "1", &REQUESTS.to_string()]);
        (run(&mut command).must_succeed().stderr, stage.report())
    };
    let (said, report) = ran(&[]);
    assert_eq!(number(&report, "requests"), 0, "{report:#}");
    assert!(said.contains("another root: chroot"), "{said}");
    assert!(
        said.ends_with("to reach programs in another root: --follow\n"),
        "{said}"
    );
    let (said, report) = ran(&["--follow"]);
    assert_eq!(report["escaped"], serde_json::json!([]), "{report:#}");
    assert!(number(&report, "skipped") > REQUESTS / 2, "{report:#}");
    assert!(!said.contains("--follow"), "{said}");
}

#[test]
fn in_a_chroot_without_proc_nothing_is_said_to_be_seen() {
    if !as_root("in_a_chroot_without_proc_nothing_is_said_to_be_seen") {
        return;
    }
    let stage = Stage::new("no-proc");
    let root = stage.file("world");
    furnish(&root, &[SYNCLATER.as_ref(), &program("hammer")]);
    let hammers = ["--", "/bin/hammer", "/", "1", "7"];
    for (words, code) in [
        (&["run", "--summary"][..], 0),
        (&["run", "--summary", "-u", "now"], 0),
        (&["run", "--summary", "-u", "never"], 0),
        (&["record", "-o", "/a.rec"], 125),
        (&["run", "--record", "/b.rec"], 125),
    ] {
        let mut command = clean("chroot");
        command
            .arg(&root)
            .arg("/bin/synclater")
            .args(words)
            .args(hammers);
        let outcome = run(&mut command);
        assert_eq!(outcome.status.code(), Some(code), "{outcome}");
        let four = crate::sessions::stage::has_four_parts(&outcome.stderr);
        assert!(
            four && outcome.stderr.contains("/proc is not mounted"),
            "{words:?}: {outcome}"
        );
        assert!(
            !outcome.stderr.contains("no sync requests\n"),
            "{words:?}: {outcome}"
        );
    }
    assert!(!root.join("a.rec").exists() && !root.join("b.rec").exists());
}

/// Runs synclater in a chroot that is a disk of its own, and unmounts it at once.
fn unmounts_after(words: &[&str]) {
    let disk = Disk::new("ext4", 1024);
    let root = disk.path();
    // Where the test fails: what lives on in the chroot would keep the disk after its guard.
    let _leftovers = Leftovers::of(root);
    furnish(
        root,
        &[SYNCLATER.as_ref(), "/bin/true".as_ref(), &program("hammer")],
    );
    for dir in ["proc", "tmp", "run", "var/lib", "var/cache", "dev/shm"] {
        std::fs::create_dir_all(root.join(dir)).expect("a directory of the chroot");
    }
    let proc = root.join("proc");
    run(clean("mount").args(["-t", "proc", "none"]).arg(&proc)).must_succeed();
    let mut command = clean("chroot");
    command.arg(root).args(["/bin/synclater", "run", "--quiet"]);
    run(command.arg("--").args(words)).must_succeed();
    for mount in [proc.as_path(), root] {
        run(clean("umount").arg(mount)).must_succeed();
    }
}

#[test]
fn a_chroot_can_be_unmounted_right_after_its_session() {
    if !as_root("a_chroot_can_be_unmounted_right_after_its_session") {
        return;
    }
    let requests = REQUESTS.to_string();
    for _ in 0..3 {
        unmounts_after(&["/bin/true"]);
        unmounts_after(&["/bin/hammer", "/tmp", "1", &requests]);
    }
}

#[test]
fn a_mount_over_a_directory_of_the_victim_is_told_from_the_one_below() {
    if !as_root("a_mount_over_a_directory_of_the_victim_is_told_from_the_one_below") {
        return;
    }
    keep_mounts_private();
    let stage = Stage::new("over");
    // The session sees one disk when it begins, and has its entry; then another one appears.
    let script = "set -e; cd \"$1\"; mkdir mnt; truncate -s 32M img; mkfs.ext4 -q img; \
        \"$2\" . 1 2003; mount -o loop img mnt; \"$2\" mnt 1 2003; sync; umount mnt";
    let mut command = reported(&stage, &[]);
    command.args(["sh", "-c", script, "sh"]).arg(stage.work());
    run(command.arg(program("hammer"))).must_succeed();
    let report = stage.report();
    let fs = report["filesystems"]
        .as_array()
        .expect("file systems")
        .clone();
    let of = |end: &str| {
        let found = fs
            .iter()
            .find(|f| f["mount"].as_str().is_some_and(|m| m.ends_with(end)));
        found.and_then(|f| f["requests"].as_u64()).unwrap_or(0)
    };
    assert!(
        of("mnt") > 0 || number(&report, "real") > 2000,
        "{report:#}"
    );
    assert!(of("mnt") <= 2003, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
}
