//! What reaches the kernel: no call that makes the disk work, from the library alone at `never`,
//! with a page that puts everything off, and from a session at `exit` once its entry is on disk.
//!
//! The run without synclater is traced too: a victim that makes no such call there proves nothing.

use crate::harness::backend::{backends, Backend, Scene};
use crate::harness::trace::Trace;
use crate::harness::victims::{victim, Class, CLASSES};

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
