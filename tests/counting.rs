//! What reaches the kernel: no call that makes the disk work, from the library alone at `never`,
//! with a page that puts everything off, and from a session at `exit` once its entry is on disk.
//!
//! The run without synclater is traced too: a victim that makes no such call there proves nothing.

use crate::harness::backend::{backends, Backend, Scene};
use crate::harness::command::{clean, run, Outcome};
use crate::harness::limits::{is_root, skip};
use crate::harness::trace::Trace;
use crate::harness::victims::{victim, Class, CLASSES};
use crate::sessions::stage::{Running, Stage};
use serde_json::{json, Value};
use std::path::Path;
use std::process::Command;

const COUNTED: [Backend; 4] = [
    Backend::Alone,
    Backend::Page("single"),
    Backend::Page("several"),
    Backend::Run("exit"),
];

/// How many calls of a kind a failure's message shows.
const SHOWN_MAX: usize = 3;

fn trace(name: &str, class: Class, backend: Backend) -> Trace {
    let scene = Scene::new(name);
    Trace::of(&scene, backend, &[&victim(name, class), &scene.work()])
}

/// The calls that got through, as text; empty when none did.
fn escaped(name: &str, class: Class, backend: Backend) -> String {
    let trace = trace(name, class, backend);
    let io = trace.io();
    let lines = io.iter().map(|(call, arguments)| {
        let shown = &arguments[..arguments.len().min(SHOWN_MAX)];
        format!("\n    {} × {call}: {}", arguments.len(), shown.join(" | "))
    });
    lines.collect()
}

fn nothing_escapes(name: &str, classes: &[Class]) {
    nothing_escapes_but(name, classes, "", 0);
}

/// As [`nothing_escapes`], but for `allowed` calls of one kind, which docs/LIMITS.md names.
fn nothing_escapes_but(name: &str, classes: &[Class], kind: &str, allowed: usize) {
    let but = format!("\n    {allowed} × {kind}:");
    let mut found = String::new();
    for &class in classes {
        let oracle = trace(name, class, Backend::None);
        assert!(
            !oracle.io().is_empty(),
            "{name} asks for no I/O: {}",
            oracle.outcome
        );
        for backend in backends().filter(|b| COUNTED.contains(b)) {
            let calls = escaped(name, class, backend);
            let only_allowed = allowed > 0 && calls.starts_with(&but) && calls.lines().count() == 2;
            if !calls.is_empty() && !only_allowed {
                found += &format!("\n  {class:?}, {backend:?}:{calls}");
            }
        }
    }
    assert!(found.is_empty(), "{name}: these reached the kernel:{found}");
}

#[test]
fn no_fsync_reaches_the_kernel() {
    nothing_escapes("fsync", &CLASSES);
}

#[test]
fn no_fdatasync_reaches_the_kernel() {
    nothing_escapes("fdatasync", &CLASSES);
}

#[test]
fn no_sync_reaches_the_kernel() {
    nothing_escapes("sync", &CLASSES);
}

#[test]
fn no_syncfs_reaches_the_kernel() {
    nothing_escapes("syncfs", &CLASSES);
}

#[test]
fn no_msync_with_ms_sync_reaches_the_kernel() {
    nothing_escapes("msync", &CLASSES);
}

#[test]
fn no_sync_file_range_with_flags_reaches_the_kernel() {
    nothing_escapes("sync_file_range", &CLASSES);
}

#[test]
fn no_write_reaches_a_descriptor_with_o_sync() {
    nothing_escapes("open", &CLASSES);
    nothing_escapes("write_sync", &CLASSES);
}

#[test]
fn no_fortified_open_leaves_o_sync() {
    nothing_escapes("open_fortified", &[Class::Native, Class::Small]);
}

#[test]
fn no_openat2_leaves_o_sync() {
    nothing_escapes("openat2", &CLASSES);
}

#[test]
fn no_open_by_handle_at_leaves_o_sync() {
    let name = "no_open_by_handle_at_leaves_o_sync";
    if crate::harness::limits::needs_root(name) {
        nothing_escapes("open_by_handle_at", &CLASSES);
    }
}

#[test]
fn no_copy_of_a_descriptor_has_o_sync() {
    nothing_escapes("osync_travels", &CLASSES);
}

#[test]
fn no_pwritev2_with_a_sync_flag_reaches_the_kernel() {
    nothing_escapes("pwritev2", &CLASSES);
}

#[test]
fn no_aio_fsync_reaches_the_kernel() {
    // A descriptor that is read-only, and one of a directory, are left to the libc; so is musl.
    nothing_escapes_but("aio_fsync", &[Class::Native, Class::Small], "fsync", 2);
}

#[test]
fn no_sync_block_of_io_submit_reaches_the_kernel() {
    // A directory can be synced by a block, but nothing else can be asked of it: it stays real.
    nothing_escapes_but("io_submit", &CLASSES, "io_submit", 2);
    nothing_escapes_but("io_submit_libaio", &[Class::Native], "io_submit", 2);
}

#[test]
fn no_sync_by_its_number_reaches_the_kernel() {
    nothing_escapes("syscall", &CLASSES);
}

#[test]
fn no_sync_of_a_thread_reaches_the_kernel() {
    nothing_escapes("threads", &CLASSES);
}

#[test]
fn no_sync_of_a_child_reaches_the_kernel() {
    nothing_escapes("fork_tree", &CLASSES);
    nothing_escapes("vfork_exec", &CLASSES);
}

// --- Rounds: what strace does not show, counted at the file system -------------------------------

/// As `ROUNDS` in `tests/victims/io_rounds.h`.
const ROUNDS: u64 = 131;

/// Victims that make requests of one kind so often; which kind, is their second argument.
const RINGS: &str = "io_uring_rounds";
const LIBAIO: &str = "io_submit_rounds";

/// As in linux/magic.h.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// `synclater run` with a report, whose `escaped` is what file systems were asked for by processes
/// without the library, or past it.
fn reported(scene: &Scene, until: &str) -> Command {
    let mut command = clean(env!("CARGO_BIN_EXE_synclater"));
    command.env("SYNCLATER_RUN_DIR", scene.file("run"));
    command.env("SYNCLATER_STATE_DIR", scene.state());
    command.args(["run", "--quiet", "--until", until, "--json"]);
    command.arg(scene.file("report.json")).arg("--");
    command
}

fn report(scene: &Scene, outcome: &Outcome) -> Value {
    let text = std::fs::read_to_string(scene.file("report.json"));
    let text = text.unwrap_or_else(|e| panic!("{e}: {outcome}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn rounds(command: &mut Command, name: &str, scene: &Scene, kind: &str) -> Outcome {
    let program = victim(name, Class::Native);
    run(command.arg(program).arg(scene.work()).arg(kind)).must_succeed()
}

/// How many syncs of such a victim a file system saw. An outer session counts them, of which the
/// victim knows nothing.
fn seen_by_the_file_system(name: &str, kind: &str, backend: Backend) -> u64 {
    let (outer, inner) = (Scene::new("rounds-seen"), Scene::new("rounds"));
    let mut command = reported(&outer, "now");
    command.args(["env", "-u", "LD_PRELOAD", "-u", "SYNCLATER_PAGE"]);
    command.args(inner.variables(backend));
    if let Backend::Run(until) = backend {
        // Another victim waits until the entry is on disk, and is told apart by its name.
        let of = |name: &str, path| format!("{name}={}", Path::new(&path).display());
        command.arg(of("SYNCLATER_RUN_DIR", inner.file("run")));
        command.arg(of("SYNCLATER_STATE_DIR", inner.state()));
        command.arg(of("WARM", inner.state()));
        command.arg(env!("CARGO_BIN_EXE_synclater"));
        command.args(["run", "--quiet", "--until", until, "--", "sh", "-c"]);
        command.arg("\"$0\" \"$1\" > \"$1/warm.log\" && unset WARM && shift && exec \"$@\"");
        command
            .arg(victim("fsync", Class::Native))
            .arg(inner.work());
    }
    let outcome = rounds(&mut command, name, &inner, kind);
    assert!(!outcome.stderr.contains("COLD"), "{outcome}");
    let report = report(&outer, &outcome);
    let escaped = report["escaped"].as_array().expect("escapes").iter();
    let ours = escaped.filter(|e| e["exe"].as_str().is_some_and(|x| x.ends_with("_rounds")));
    ours.map(|e| e["requests"].as_u64().expect("root sees it"))
        .sum()
}

/// Where the kernel's count can be had, and the kernel has what such a victim needs.
fn can_count(test: &str, name: &str) -> bool {
    let scene = Scene::new("rounds");
    let outcome = rounds(&mut clean("env"), name, &scene, "plain");
    if outcome.stdout.starts_with("no io_") {
        skip(test, outcome.stdout.trim());
    } else if !is_root() {
        skip(test, "to see what a file system is asked for needs root");
    } else if rustix::fs::statfs(scene.work()).expect("statfs").f_type == TMPFS {
        skip(test, "what a tmpfs is asked for cannot be seen");
    } else {
        return true;
    }
    false
}

/// Such requests reach the file system once a round without synclater, and as often as `real` says
/// under every back end that puts all off.
fn rounds_that_reach_the_file_system(name: &str, kind: &str, real: impl Fn(Backend) -> u64) {
    assert_eq!(
        seen_by_the_file_system(name, kind, Backend::None),
        ROUNDS,
        "{name}, {kind}, without synclater"
    );
    for backend in backends().filter(|b| COUNTED.contains(b)) {
        let seen = seen_by_the_file_system(name, kind, backend);
        assert_eq!(seen, real(backend), "{name}, {kind}, {backend:?}");
    }
}

/// Without a session, at `never`, nobody would settle: the flag of a descriptor stays off.
fn but_alone(backend: Backend) -> u64 {
    if backend == Backend::Alone {
        0
    } else {
        ROUNDS
    }
}

#[test]
fn no_fsync_of_a_ring_reaches_the_file_system() {
    if can_count("no_fsync_of_a_ring_reaches_the_file_system", RINGS) {
        rounds_that_reach_the_file_system(RINGS, "plain", |_| 0);
    }
}

#[test]
fn an_fsync_that_waits_in_a_ring_reaches_the_file_system() {
    let name = "an_fsync_that_waits_in_a_ring_reaches_the_file_system";
    if can_count(name, RINGS) {
        rounds_that_reach_the_file_system(RINGS, "linked", |_| ROUNDS);
        rounds_that_reach_the_file_system(RINGS, "drained", |_| ROUNDS);
        rounds_that_reach_the_file_system(RINGS, "behind a drained one", |_| ROUNDS);
        rounds_that_reach_the_file_system(RINGS, "registered", |_| ROUNDS);
    }
}

#[test]
fn a_write_of_a_ring_to_an_o_dsync_file_reaches_the_file_system() {
    let name = "a_write_of_a_ring_to_an_o_dsync_file_reaches_the_file_system";
    if can_count(name, RINGS) {
        rounds_that_reach_the_file_system(RINGS, "O_DSYNC", but_alone);
        rounds_that_reach_the_file_system(RINGS, "O_DSYNC, filtered", |_| ROUNDS);
        rounds_that_reach_the_file_system(RINGS, "O_DSYNC, lost, filtered", |_| ROUNDS);
    }
}

#[test]
fn a_write_of_a_ring_is_synced_where_a_signal_took_the_place_of_the_mark() {
    let name = "a_write_of_a_ring_is_synced_where_a_signal_took_the_place_of_the_mark";
    if can_count(name, RINGS) {
        rounds_that_reach_the_file_system(RINGS, "O_DSYNC, lost", but_alone);
    }
}

#[test]
fn a_write_of_libaio_to_an_o_dsync_file_is_synced() {
    let name = "a_write_of_libaio_to_an_o_dsync_file_is_synced";
    if can_count(name, LIBAIO) {
        rounds_that_reach_the_file_system(LIBAIO, "O_DSYNC", but_alone);
        rounds_that_reach_the_file_system(LIBAIO, "O_DSYNC, lost", but_alone);
        rounds_that_reach_the_file_system(LIBAIO, "O_DSYNC, filtered", |_| ROUNDS);
        rounds_that_reach_the_file_system(LIBAIO, "O_DSYNC, lost, filtered", |_| ROUNDS);
        rounds_that_reach_the_file_system(LIBAIO, "O_DSYNC, filtered, at once", |_| ROUNDS);
    }
}

/// What the kernel is handed by libaio when the dial of the session has been moved to `now` between
/// the open and the writes.
fn submitted_at_now(kind: &str) -> String {
    let stage = Stage::new("rounds");
    let mut command = stage.synclater(&["run", "--quiet"]);
    command.args(stage.json()).arg("--");
    let log = stage.traced(&mut command, "io_submit", "victim.log");
    command.arg(victim(LIBAIO, Class::Native));
    command.arg(stage.work()).arg(kind);
    let mut running = Running::start(&stage, command);
    running.be_ready();
    stage
        .ask(&["set", &stage.id(), "--until", "now"])
        .must_succeed();
    running.end().must_succeed();
    let report = stage.report();
    assert_eq!(report["requests"], ROUNDS, "{kind}: {report:#}");
    assert_eq!(report["real"], ROUNDS, "{kind}: {report:#}");
    std::fs::read_to_string(&log.0).expect("the trace")
}

#[test]
fn a_write_of_libaio_has_its_flag_back_when_the_dial_is_at_now() {
    // Which flag was taken off, nobody knows any more where the mark is lost: so the stronger one.
    for (kind, flag) in [("O_DSYNC", "RWF_DSYNC"), ("O_DSYNC, lost", "RWF_SYNC")] {
        let text = submitted_at_now(kind);
        let flagged = text.matches(&format!("aio_rw_flags={flag},")).count() as u64;
        assert_eq!(flagged, ROUNDS, "{kind}: {text}");
    }
}

#[test]
fn a_write_of_libaio_is_synced_where_its_blocks_may_not_be_looked_at() {
    let stage = Stage::new("rounds");
    let mut command = stage.synclater(&["run", "--quiet", "--until", "1h", "--"]);
    let log = stage.traced(&mut command, "io_submit,process_vm_readv", "victim.log");
    command.args(["-e", "inject=process_vm_readv:error=EPERM"]);
    command.arg(victim(LIBAIO, Class::Native));
    command.arg(stage.work()).arg("O_DSYNC");
    let mut running = Running::start(&stage, command);
    running.be_ready();
    running.end().must_succeed();
    let text = std::fs::read_to_string(&log.0).expect("the trace");
    let flagged = text.matches("aio_rw_flags=RWF_DSYNC,").count() as u64;
    assert_eq!(flagged, ROUNDS, "{text}");
}

/// Every request of a kind is counted, as put off or as real, and none as escaped.
fn is_in_the_report(name: &str, kind: &str, all_real: bool) {
    let scene = Scene::new("rounds");
    let outcome = rounds(&mut reported(&scene, "exit"), name, &scene, kind);
    let report = report(&scene, &outcome);
    let number = |key: &str| report[key].as_u64().expect("a number");
    assert_eq!(number("requests"), ROUNDS, "{name}, {kind}: {report:#}");
    assert_eq!(
        number("skipped") + number("real"),
        ROUNDS,
        "{name}, {kind}: {report:#}"
    );
    assert!(
        !all_real || number("skipped") == 0,
        "{name}, {kind}: {report:#}"
    );
    assert_eq!(report["escaped"], json!([]), "{name}, {kind}: {report:#}");
}

#[test]
fn every_fsync_of_a_ring_is_in_the_report_and_none_has_escaped() {
    let name = "every_fsync_of_a_ring_is_in_the_report_and_none_has_escaped";
    if can_count(name, RINGS) {
        is_in_the_report(RINGS, "plain", false);
        is_in_the_report(RINGS, "linked", true);
        is_in_the_report(RINGS, "registered", true);
    }
}

#[test]
fn every_write_of_libaio_to_an_o_dsync_file_is_in_the_report_and_none_has_escaped() {
    let name = "every_write_of_libaio_to_an_o_dsync_file_is_in_the_report_and_none_has_escaped";
    if can_count(name, LIBAIO) {
        is_in_the_report(LIBAIO, "O_DSYNC", true);
        is_in_the_report(LIBAIO, "O_DSYNC, lost", true);
    }
}

/// The ways to submit that liburing has since 2.8 and 2.9, on whatever liburing is here.
#[test]
fn the_newer_ways_to_submit_are_put_off_too() {
    let scene = Scene::new("newer-uring");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/newer_uring.c");
    let (library, program) = (scene.file("libnewer.so"), scene.file("newer"));
    let compile = |arguments: &[&str], into: &Path| {
        let mut gcc = clean("gcc");
        gcc.args(["-O1", "-D_GNU_SOURCE", "-o"])
            .arg(into)
            .arg(&source);
        run(gcc.args(arguments)).must_succeed();
    };
    let newer = library.display().to_string();
    compile(&["-DNEWER", "-shared", "-fPIC", "-luring"], &library);
    compile(&[&newer, "-luring"], &program);
    let mut command = reported(&scene, "exit");
    command
        .arg(&program)
        .arg(scene.work().join("file"))
        .arg("2000");
    let outcome = run(&mut command).must_succeed();
    let report = report(&scene, &outcome);
    assert_eq!(report["requests"], 4000, "{report:#}");
    assert!(report["skipped"].as_u64() > Some(1000), "{report:#}");
}

/// Where the plugin's own libraries are seen by nobody else, and where they go and come back.
#[test]
fn a_plugin_with_a_liburing_of_its_own_submits_what_it_did() {
    let scene = Scene::new("plugin");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/plugin.c");
    let (plugin, program) = (scene.file("plugin.so"), scene.file("plugin"));
    let compile = |arguments: &[&str], into: &Path| {
        let mut gcc = clean("gcc");
        gcc.args(["-O2", "-D_GNU_SOURCE", "-o"])
            .arg(into)
            .arg(&source);
        run(gcc.args(arguments)).must_succeed();
    };
    compile(&["-DPLUGIN", "-shared", "-fPIC", "-luring"], &plugin);
    compile(&[], &program);
    for mode in ["local", "global"] {
        for until in ["now", "exit"] {
            let mut command = reported(&scene, until);
            command.arg(&program).arg(scene.work().join("file"));
            command.arg(&plugin).args([mode, "5"]);
            let outcome = run(&mut command).must_succeed();
            let report = report(&scene, &outcome);
            assert_eq!(report["requests"], 10, "{mode}, {until}: {report:#}");
        }
    }
}

/// Of a fork beside a thread that submits, no lock of the linker's is left to the child.
#[test]
fn children_of_a_program_that_submits_submit_too() {
    let scene = Scene::new("forks-uring");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/forks_uring.c");
    let program = scene.file("forks");
    let mut gcc = clean("gcc");
    gcc.args(["-O2", "-D_GNU_SOURCE", "-o"])
        .arg(&program)
        .arg(source);
    run(gcc.args(["-luring", "-lpthread"])).must_succeed();
    let outcome = run(reported(&scene, "exit").arg(&program).arg("300")).must_succeed();
    assert_eq!(outcome.stdout, "300 of 300\n", "{outcome}");
}
