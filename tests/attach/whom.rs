//! Processes by executable, by user; those that begin later; those in other namespaces.

use super::*;
use crate::harness::command::run;
use crate::harness::disk::Disk;
use crate::sessions::stage::{as_root, give_to_nobody, has_four_parts, AS_NOBODY};
use std::path::{Path, PathBuf};

/// A copy of the obedient victim under a name that nothing else has.
fn named(stage: &Stage, name: &str) -> PathBuf {
    let path = stage.file(name);
    crate::harness::command::copy_program(program("demand"), &path);
    path
}

pub(super) fn is_attached(stage: &Stage, victim: &Running) -> bool {
    let session = stage.session();
    let rows = session["processes"].as_array().expect("processes");
    let pid = victim.pid().as_raw_nonzero().get();
    rows.iter().any(|r| r["pid"] == pid && r["how"] == "attach")
}

#[test]
fn a_process_whose_name_is_no_text_is_attached() {
    use std::os::unix::ffi::OsStrExt;
    for name in ["demand", "demand_static"] {
        let stage = Stage::new("no-text");
        let copy = stage
            .work()
            .join(std::ffi::OsStr::from_bytes(b"no\xfftext"));
        crate::harness::command::copy_program(program(name), &copy);
        let mut command = clean(copy);
        command.arg(stage.work());
        let mut victim = Running::start(&stage, command);
        victim.be_ready();
        let session = stage.attach_to(&victim, "1h");
        stage.warm(&mut victim);
        let report = stage.detach(&session);
        assert!(report["skipped"].as_u64() > Some(0), "{report:#}");
        victim.end().must_succeed();
    }
}

#[test]
fn processes_of_an_executable_are_attached_those_too_that_begin_later() {
    let stage = Stage::new("exe");
    let program = named(&stage, "many-exe-23");
    let start = || {
        let mut command = clean(&program);
        command.arg(stage.work());
        started(&stage, command)
    };
    let (mut first, mut second) = (start(), start());
    let other = demand(&stage);
    let session = stage.attach(&["--exe", "many-exe-*", "-u", "1h"]);
    assert!(is_attached(&stage, &first) && is_attached(&stage, &second));
    assert!(!is_attached(&stage, &other));
    stage.warm(&mut first);
    stage.warm(&mut second);
    let mut third = start();
    assert!(until(LIMIT, || is_attached(&stage, &third)));
    assert!(stage.is_later(&mut third));
    let pids = [first.pid(), second.pid(), third.pid()];
    stage.detach(&session);
    for pid in pids {
        assert_eq!(changed_code(pid), Vec::<String>::new());
    }
}

/// Its code begins at the same place each time.
#[test]
fn a_program_that_is_not_position_independent_is_attached_again_once_it_has_executed_itself() {
    let stage = Stage::new("itself");
    let path = stage.file("an-exe-37");
    crate::harness::command::copy_program(program("demand_static"), &path);
    let mut command = clean(&path);
    command.arg(stage.work());
    let mut victim = started(&stage, command);
    let session = stage.attach(&["--exe", "an-exe-37", "-u", "1h"]);
    stage.warm(&mut victim);
    victim.tell("again");
    assert_eq!(victim.hear(), "ready");
    assert!(until(LIMIT, || stage.is_later(&mut victim)));
    stage.detach(&session);
}

#[test]
fn an_executable_that_nobody_runs_is_said_and_leaves_no_session() {
    let stage = Stage::new("nobody");
    let outcome = stage.ask(&["attach", "--exe", "an-exe-28", "--exe", "/no/exe-28"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(has_four_parts(&outcome.stderr), "{outcome}");
    assert!(
        outcome
            .stderr
            .contains("no process executes an-exe-28 or /no/exe-28"),
        "{outcome}"
    );
    assert!(outcome.stderr.contains("--follow"), "{outcome}");
    assert_eq!(stage.ask(&["ps"]).must_succeed().stdout, "no sessions\n");
}

/// One that names processes ends with them; one that names a program waits for the next.
#[test]
fn what_ends_with_its_process_is_not_said_to_go_on() {
    let stage = Stage::new("ends-with-it");
    let mut command = clean(program("demand"));
    command.arg(stage.work());
    let mut victim = started(&stage, command);
    let pid = number(victim.pid());
    let said = stage.ask(&["attach", "--pid", &pid]).must_succeed().stdout;
    assert!(
        said.contains("; it ends with what is attached, by "),
        "{said}"
    );
    victim.end();
    assert!(until(LIMIT, || stage.sessions().is_empty()));
}

#[test]
fn without_an_end_it_is_said_what_ends_it_and_since_when_it_goes_on() {
    let stage = Stage::new("no-end");
    let program = named(&stage, "an-exe-27");
    let mut command = clean(&program);
    command.arg(stage.work());
    let _victim = started(&stage, command);
    for (more, ends) in [(&[][..], false), (&["--for", "1h"], true)] {
        let words = [&["attach", "--exe", "an-exe-27"][..], more].concat();
        let said = stage.ask(&words).must_succeed().stdout;
        let id = stage.id();
        let what = format!("; it ends by `synclater detach {id}`, or with --for T");
        assert_eq!(said.contains(&what), !ends, "{said}");
        let shown = stage.ask(&["ps"]).must_succeed().stdout;
        assert!(
            shown.contains(", for ") && shown.contains(" now, supervisor"),
            "{shown}"
        );
        stage.detach(&id);
    }
}

#[test]
fn an_executable_that_nobody_runs_yet_is_waited_for() {
    let stage = Stage::new("later");
    let program = named(&stage, "an-exe-29");
    let whole = program.display().to_string();
    let words = ["attach", "--exe", &whole, "--follow"];
    let outcome = stage.ask(&words).must_succeed();
    assert!(outcome.stdout.contains("no such process yet"), "{outcome}");
    let mut command = clean(&program);
    command.arg(stage.work());
    let mut victim = started(&stage, command);
    assert!(until(LIMIT, || is_attached(&stage, &victim)));
    stage.warm(&mut victim);
    stage.detach(&stage.id());
}

/// The same program, running as root and as nobody.
fn of_two_users(stage: &Stage, name: &str) -> (Running, Running) {
    let program = named(stage, name);
    let mut command = clean(&program);
    command.arg(stage.work());
    let root = started(stage, command);
    let mut command = clean(AS_NOBODY[0]);
    command
        .args(&AS_NOBODY[1..])
        .arg(&program)
        .arg(stage.work());
    (root, started(stage, command))
}

#[test]
fn only_the_chosen_users_requests_are_put_off() {
    if !as_root("only_the_chosen_users_requests_are_put_off") {
        return;
    }
    let stage = Stage::new("users");
    stage.open_to_others(0o777);
    let (mut root, mut nobody) = of_two_users(&stage, "an-exe-31");
    let session = stage.attach(&["--exe", "an-exe-31", "--only", "user=65534", "-u", "1h"]);
    let seen = |stage: &Stage, victim: &Running| {
        let session = stage.session();
        let pid = victim.pid().as_raw_nonzero().get();
        let rows = session["processes"].as_array().expect("processes").clone();
        let row = rows.into_iter().find(|r| r["pid"] == pid).expect("its row");
        (row["requests"].clone(), row["skipped"].clone())
    };
    let put_off = until(LIMIT, || {
        assert_eq!(nobody.sync("of-nobody"), 0);
        seen(&stage, &nobody).1 != 0
    });
    assert!(put_off, "{:#}", stage.session());
    for _ in 0..7 {
        assert_eq!(root.sync("of-root"), 0);
    }
    assert_eq!(seen(&stage, &root), (7.into(), 0.into()));
    stage.detach(&session);
}

/// What of a process's memory others can see it write: the files behind it.
fn shared_to_write(victim: &Running) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", number(victim.pid())));
    let maps = maps.expect("maps");
    let rows = maps.lines().filter(|l| l.contains(" rw-s "));
    rows.map(|l| {
        l.split_whitespace()
            .skip(3)
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    })
    .collect()
}

#[test]
fn processes_of_two_users_have_no_memory_in_common() {
    if !as_root("processes_of_two_users_have_no_memory_in_common") {
        return;
    }
    let stage = Stage::new("two-users");
    stage.open_to_others(0o777);
    let (mut root, mut nobody) = of_two_users(&stage, "two-exe-43");
    let session = stage.attach(&["--exe", "two-exe-43", "-u", "1h"]);
    stage.warm(&mut root);
    let put_off = until(LIMIT, || {
        let (_, before) = stage.counted();
        assert_eq!(nobody.sync("of-nobody"), 0);
        stage.counted().1 > before
    });
    assert!(put_off, "{:#}", stage.session());
    let (of_root, of_nobody) = (shared_to_write(&root), shared_to_write(&nobody));
    assert!(!of_root.is_empty() && !of_nobody.is_empty());
    let in_common: Vec<_> = of_root.iter().filter(|f| of_nobody.contains(f)).collect();
    assert!(in_common.is_empty(), "{in_common:?}");
    let report = stage.detach(&session);
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
}

#[test]
fn a_base_name_that_root_says_means_no_program_of_somebody_else() {
    if !as_root("a_base_name_that_root_says_means_no_program_of_somebody_else") {
        return;
    }
    let stage = Stage::new("base-name");
    stage.open_to_others(0o777);
    let of_root = named(&stage, "base-exe-47");
    let theirs = stage.work().join("base-exe-47");
    crate::harness::command::copy_program(&of_root, &theirs);
    give_to_nobody(&theirs);
    let mut command = clean(&of_root);
    command.arg(stage.work());
    let root = started(&stage, command);
    let mut command = clean(AS_NOBODY[0]);
    command.args(&AS_NOBODY[1..]).arg(&theirs).arg(stage.work());
    let nobody = started(&stage, command);
    let outcome = stage
        .ask(&["attach", "--exe", "base-exe-47"])
        .must_succeed();
    assert!(outcome.stdout.contains(": 1 process attached"), "{outcome}");
    assert!(is_attached(&stage, &root) && !is_attached(&stage, &nobody));
    let refused = format!("cannot attach to {} (base-exe-47)", number(nobody.pid()));
    let by_path = format!("--exe {}", theirs.display());
    for part in [&refused, "it belongs to user 65534", &by_path] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome}");
    }
    stage.detach(&stage.id());
    // Who says the whole path means it.
    let session = stage.attach(&["--exe", &theirs.display().to_string()]);
    assert!(is_attached(&stage, &nobody) && !is_attached(&stage, &root));
    stage.detach(&session);
}

#[test]
fn a_program_whose_path_has_lines_writes_none_of_its_own() {
    if !as_root("a_program_whose_path_has_lines_writes_none_of_its_own") {
        return;
    }
    let stage = Stage::new("lines");
    stage.open_to_others(0o777);
    let folder = stage.work().join("a\nsynclater: all is well");
    std::fs::create_dir(&folder).expect("a folder");
    let theirs = folder.join("base-exe-48");
    crate::harness::command::copy_program(named(&stage, "base-exe-48"), &theirs);
    give_to_nobody(&theirs);
    let mut command = clean(&theirs);
    command.arg(stage.work());
    let _victim = started(&stage, command);
    let outcome = stage.ask(&["attach", "--exe", "base-exe-48"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("--pid"), "{outcome}");
    let mut lines = outcome.stderr.lines().map(str::trim);
    assert!(!lines.any(|l| l.starts_with("synclater: all")), "{outcome}");
}

/// Starts what lies at `program` where `script` has been done in a mount namespace of its own.
fn elsewhere(stage: &Stage, script: &str, program: &Path, words: &[&Path]) -> Running {
    let mut command = clean("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c"]);
    let script = format!("{script} && program=$1 && shift && exec \"$program\" \"$0\"");
    command
        .arg(script)
        .arg(stage.work())
        .arg(program)
        .args(words);
    started(stage, command)
}

#[test]
fn an_executable_that_root_says_means_no_file_of_another_namespace() {
    if !as_root("an_executable_that_root_says_means_no_file_of_another_namespace") {
        return;
    }
    let stage = Stage::new("namespaces");
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        let folder = stage.work().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let path = folder.join("there-exe-53");
        crate::harness::command::copy_program(program("demand"), &path);
        path
    });
    let mut command = clean(&ours);
    command.arg(stage.work());
    let host = started(&stage, command);
    let over = "mount --bind \"$(dirname \"$2\")\" \"$(dirname \"$1\")\"";
    let container = elsewhere(&stage, over, &ours, &[&theirs]);
    let service = elsewhere(&stage, "mount -t tmpfs none /mnt", &ours, &[]);
    for said in ["there-exe-53", &ours.display().to_string()] {
        let outcome = stage
            .ask(&["attach", "--exe", said, "-u", "1h"])
            .must_succeed();
        assert!(
            is_attached(&stage, &host) && is_attached(&stage, &service),
            "{said}"
        );
        assert!(!is_attached(&stage, &container), "{said}");
        let refused = format!("cannot attach to {}", number(container.pid()));
        for part in [&refused, "of its own mount namespace"] {
            assert!(outcome.stderr.contains(part), "{part}: {outcome}");
        }
        stage.detach(&stage.id());
    }
    // An upgrade replaces both: only of a mount of ours it is certain where the old one lay.
    std::fs::remove_file(&ours).expect("a file");
    std::fs::remove_file(&theirs).expect("a file");
    let session = stage.attach(&["--exe", &ours.display().to_string(), "-u", "1h"]);
    assert!(is_attached(&stage, &host));
    assert!(!is_attached(&stage, &service) && !is_attached(&stage, &container));
    stage.detach(&session);
}

#[test]
fn a_base_name_that_root_says_means_nothing_on_a_mount_of_anybodys() {
    if !as_root("a_base_name_that_root_says_means_nothing_on_a_mount_of_anybodys") {
        return;
    }
    let (disk, stage) = (Disk::new("ext4", 64), Stage::new("nosuid"));
    let program_there = disk.path().join("stick-exe-59");
    crate::harness::command::copy_program(program("demand"), &program_there);
    let remount = |option: &str| {
        let mut command = clean("mount");
        let options = format!("remount,bind,{option}");
        run(command.args(["-o", &options]).arg(disk.path())).must_succeed();
    };
    let mut command = clean(&program_there);
    command.arg(stage.work());
    let victim = started(&stage, command);
    remount("nosuid");
    let outcome = stage.ask(&["attach", "--exe", "stick-exe-59", "-u", "1h"]);
    assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    assert!(outcome.stderr.contains("a mount with nosuid"), "{outcome}");
    remount("suid");
    let session = stage.attach(&["--exe", "stick-exe-59", "-u", "1h"]);
    assert!(is_attached(&stage, &victim));
    stage.detach(&session);
}

#[test]
fn a_process_in_a_container_is_attached() {
    if !as_root("a_process_in_a_container_is_attached") {
        return;
    }
    let stage = Stage::new("container");
    stage.open_to_others(0o777);
    give_to_nobody(&stage.work());
    // Namespaces of its own, another user, and a root folder without /proc.
    let root = stage.work().join("root");
    std::fs::create_dir_all(root.join("w")).expect("a root folder");
    crate::harness::command::copy_program(program("demand_static"), root.join("root-exe-37"));
    give_to_nobody(&root.join("w"));
    let mut command = clean("unshare");
    command.args([
        "--mount",
        "--pid",
        "--net",
        "--ipc",
        "--uts",
        "--fork",
        "--kill-child",
    ]);
    let script = "mount --bind \"$1\" \"$1\" && \
        exec chroot --userspec=65534:65534 \"$1\" /root-exe-37 /w";
    command.args(["sh", "-c", script, "sh"]).arg(&root);
    let mut victim = started(&stage, command);
    let session = stage.attach(&["--exe", "root-exe-37", "-u", "1h"]);
    let put_off = until(LIMIT, || {
        assert_eq!(victim.sync("file"), 0);
        stage.counted().1 > 0
    });
    let report = stage.detach(&session);
    assert!(put_off, "{report:#}");
    assert_eq!(report["settled"], report["skipped"], "{report:#}");
    assert_eq!(victim.sync("file"), 0);
}

/// The rows of a process among what escaped.
fn escaped(shown: &Value, victim: &Running) -> Vec<Value> {
    let pid = victim.pid().as_raw_nonzero().get();
    let rows = shown["escaped"].as_array().expect("escaped").clone();
    rows.into_iter().filter(|e| e["pid"] == pid).collect()
}

#[test]
fn what_passes_the_gate_by_is_counted_in_the_kernel() {
    if !as_root("what_passes_the_gate_by_is_counted_in_the_kernel") {
        return;
    }
    let stage = Stage::new("own-calls");
    let mut victim = demand(&stage);
    let own = |victim: &mut Running| {
        victim.tell("own file");
        assert_eq!(victim.hear(), "own 0");
    };
    assert_eq!(victim.sync("file"), 0);
    own(&mut victim);
    let session = stage.attach_to(&victim, "1h");
    stage.warm(&mut victim);
    let before = escaped(&stage.session(), &victim);
    assert_eq!(before.len(), 1, "{before:?}");
    assert_eq!(before[0]["requests"], 0);
    for _ in 0..3 {
        own(&mut victim);
    }
    let rows = escaped(&stage.session(), &victim);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["requests"], 3, "{rows:?}");
    let why = rows[0]["why"].as_str().expect("why");
    assert!(
        why.starts_with("1 of its system-call sites is out of reach"),
        "{why}"
    );
    let report = stage.detach(&session);
    assert_eq!(escaped(&report, &victim), rows);
}

#[test]
fn what_stays_real_is_named() {
    let stage = Stage::new("o-sync");
    let script = "import os,sys\n\
        how = os.O_CREAT | os.O_WRONLY | os.O_SYNC\n\
        fds = [os.open(f'{sys.argv[1]}/f{k}', how) for k in range(3)]\n\
        print('ready', flush=True)\n\
        for line in sys.stdin: print(os.write(fds[0], b'a'), flush=True)";
    let mut command = clean("/usr/bin/python3");
    command.args(["-c", script]).arg(stage.work());
    let mut victim = started(&stage, command);
    let session = stage.attach_to(&victim, "1s");
    let shown = escaped(&stage.session(), &victim)[0]["why"].to_string();
    assert!(shown.contains("3 of its descriptors"), "{shown}");
    for _ in 0..2 {
        victim.tell("write");
        assert_eq!(victim.hear(), "1");
    }
    let report = stage.detach(&session);
    let rows = escaped(&report, &victim);
    assert_eq!(rows.len(), 1, "{report:#}");
    let is_counted = report["escapes_unknown"].is_null();
    let requests = is_counted.then_some(2);
    assert_eq!(rows[0]["requests"].as_u64(), requests, "{report:#}");
}
