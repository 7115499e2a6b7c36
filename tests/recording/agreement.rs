//! A recording agrees with strace and with bpftrace, which look at the system calls, in the same
//! run: SQLite, PostgreSQL under pgbench, Dovecot with 8 connections that append.
//!
//! With strace the counts agree exactly, by kind, process, thread, path and failure. With bpftrace,
//! on a disk whose flushes take 2 ms, they agree exactly by all but the path, and the times within
//! 10 %. A duration in a recording is taken around the system call, in the program, and so has in
//! it what bpftrace's own probes take (about a microsecond).
//!
//! With the kernel's trace points, which are another engine of ours, in the same run they agree
//! exactly; so `--system` agrees with the others.
//!
//! Hints (sync_file_range) are counted and not timed: they wait for nothing.

use super::read;
use super::seen::{counted, difference, in_recording, in_strace, strace, Seen, Straced, Watch};
use crate::harness::disk::SlowDisk;
use crate::harness::limits::{count, is_root, skip};
use crate::kernel::stage::can_watch;
use crate::programs::{let_others_in, script, Place};
use crate::servers::daemon::{Daemon, Stopped};
use crate::servers::leftovers::Leftovers;
use crate::servers::{answers, directory, dovecot_config, free_port, imap_append, names_to_import};
use crate::wait::until;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use synclater_recording::record::table::{Process, Table, UNKNOWN};

const FLUSH_MS: u32 = 2;
/// How far two clocks may be apart.
const TOLERANCE: f64 = 0.1;
const CONNECTIONS: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);

/// What is run, in a directory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Sqlite,
    Postgresql,
    Dovecot,
    /// Calls that fail, and some that seldom stand in a program.
    Odd,
}

/// The kinds of calls, the failing ones and those without a path too.
const ODD: &str = r#"
import ctypes, mmap, os, threading
libc = ctypes.CDLL(None)
f = os.open("file", os.O_RDWR | os.O_CREAT)
os.write(f, bytes(65536))
r, w = os.pipe()
m = mmap.mmap(f, 65536)
def all_of_it():
    for fd in f, r, 777, -1:
        for call in libc.fsync, libc.fdatasync, libc.syncfs:
            call(fd)
        libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(65536), 2)
    m[0:5] = b"bytes"
    m.flush()
    libc.msync(None, 4096, 4)
    here = os.getcwd()
    os.rename(here + "/file", here + "/other")
    os.fsync(f)
    os.rename(here + "/other", here + "/file")
    os.sync()
all_of_it()
threads = [threading.Thread(target=libc.fsync, args=(f,)) for _ in range(7)]
for t in threads: t.start()
for t in threads: t.join()
for k in range(3):
    if os.fork() == 0:
        all_of_it()
        os._exit(0)
    os.wait()
os.unlink("file")
os.fsync(f)
here = os.open(".", os.O_DIRECTORY)
os.fsync(here)
"#;

impl Load {
    fn can_run(self, name: &str) -> bool {
        let can = is_root() || matches!(self, Load::Sqlite | Load::Odd);
        if !can {
            skip(name, "changing to the server's user needs root");
        }
        can
    }

    /// The command, which works in `dir`.
    fn words(self, place: &Place, dir: &Path, port: u16) -> Vec<String> {
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        let words = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect();
        match self {
            Load::Sqlite => {
                let mut statements = String::from("create table t(a);");
                for i in 0..count(50, 2000) {
                    statements += &format!("insert into t values({i});");
                }
                words(&["sqlite3", &text(&dir.join("mail.db")), &statements])
            }
            Load::Postgresql => {
                let each = count(20, 2000).to_string();
                let script = text(&script("postgresql.sh"));
                words(&["bash", &script, &text(dir), "8", &each])
            }
            Load::Dovecot => {
                let import = names_to_import(place);
                let mail = directory(&dir.join("mail"), "2000");
                let config = dovecot_config(&place.scene.work(), &mail, port, &import);
                words(&["dovecot", "-F", "-c", &text(&config)])
            }
            Load::Odd => {
                let go = format!("import os\nos.chdir({:?})\n{ODD}", text(dir));
                words(&["/usr/bin/python3", "-c", &go])
            }
        }
    }

    /// What is done to a daemon that runs, and its end.
    fn finish(self, mut daemon: Daemon, port: u16) -> Stopped {
        if self == Load::Dovecot {
            daemon.wait_until("an answer at its port", || answers(port));
            let messages = count(5, 250);
            std::thread::scope(|scope| {
                for _ in 0..CONNECTIONS {
                    scope.spawn(|| imap_append(port, messages));
                }
            });
        }
        let stopped = if self == Load::Dovecot {
            daemon.stop()
        } else {
            daemon.end()
        };
        assert_eq!(stopped.status.code(), Some(0), "{}", stopped.output);
        stopped
    }
}

fn recording_command(place: &Place) -> Command {
    let mut command = place.synclater();
    command.args(["record", "--quiet", "-o"]);
    command.arg(place.scene.file("recording")).arg("--");
    command
}

/// A recording of a load, and strace's log of the same run.
fn with_strace(load: Load, name: &str) -> (Table, Straced) {
    let place = Place::new(name);
    let (dir, port) = (place.scene.work(), free_port());
    let log = place.scene.file("strace");
    let mut command = recording_command(&place);
    strace(&mut command, &log).args(load.words(&place, &dir, port));
    let daemon = Daemon::start(place, &mut command);
    let stopped = load.finish(daemon, port);
    let place = &stopped.daemon.place;
    // strace is no child of the command: it writes the last lines when that has ended.
    let done = until(LIMIT, || place.leftovers.alive().is_empty());
    assert!(done, "{:?}", place.leftovers.alive());
    (read(&place.scene.file("recording")), in_strace(&log))
}

/// A recording of a load on a slow disk, and what bpftrace saw in the same run.
fn with_bpftrace(load: Load, name: &str) -> Result<(Table, Vec<Seen>), String> {
    let disk = SlowDisk::new("ext4", 1024, FLUSH_MS);
    let_others_in(&disk.path());
    let _leftovers = Leftovers::of(&disk.path());
    let place = Place::new(name);
    let dir = directory(&disk.path().join("load"), "root");
    let port = free_port();
    let mut watch = Watch::new();
    let mut command = recording_command(&place);
    command.args(load.words(&place, &dir, port));
    let daemon = Daemon::start(place, &mut watch.gated(&command));
    watch.begin(daemon.pid())?;
    let stopped = load.finish(daemon, port);
    let place = &stopped.daemon.place;
    Ok((read(&place.scene.file("recording")), watch.end()))
}

fn is_complete(table: &Table) {
    assert!(
        table.is_whole() && table.lost.is_empty(),
        "{:?}",
        table.lost
    );
}

fn agrees_with_strace(load: Load, name: &str, least: usize) {
    if !load.can_run(name) {
        return;
    }
    let (table, seen) = with_strace(load, name);
    is_complete(&table);
    let recorded = in_recording(&table);
    let kinds = counted(seen.requests.iter().map(|s| s.kind.as_str()));
    println!("{name}: {kinds:?}");
    assert!(seen.requests.len() >= least, "{kinds:?}");
    let (ours, theirs) = (seen.by_file(&recorded), seen.by_file(&seen.requests));
    let apart = difference(&ours, &theirs);
    assert!(
        apart.is_empty(),
        "only in the recording +, in strace -: {apart:#?}"
    );
}

/// A recording of a load, and one of the kernel's trace points of the same run.
fn with_the_kernel(load: Load, name: &str) -> (Table, Table) {
    let place = Place::new(name);
    let (dir, port) = (place.scene.work(), free_port());
    let mut command = place.synclater();
    command.args(["record", "--system", "--quiet", "-o"]);
    command.arg(place.scene.file("kernel")).arg("--");
    let inner = recording_command(&place);
    command.arg(inner.get_program()).args(inner.get_args());
    command.args(load.words(&place, &dir, port));
    let daemon = Daemon::start(place, &mut command);
    let stopped = load.finish(daemon, port);
    let file = |name: &str| read(&stopped.daemon.place.scene.file(name));
    (file("recording"), file("kernel"))
}

fn agrees_with_the_kernel(load: Load, name: &str, least: usize) {
    if !load.can_run(name) || !can_watch(name) {
        return;
    }
    let (table, kernel) = with_the_kernel(load, name);
    is_complete(&table);
    is_complete(&kernel);
    assert_eq!(kernel.header.engine, "kernel");
    let ours = in_recording(&table);
    // The session's own processes sync too.
    let session = |p: &&Process| p.exe.ends_with("/synclater");
    let own: Vec<u32> = kernel
        .processes
        .iter()
        .filter(session)
        .filter_map(|p| p.pid)
        .collect();
    let mut theirs = in_recording(&kernel);
    theirs.retain(|s| !own.contains(&s.pid));
    let kinds = counted(theirs.iter().map(|s| s.kind.as_str()));
    println!("{name}: {kinds:?}");
    assert!(theirs.len() >= least, "{kinds:?}");
    // The library tells of a descriptor's path once, the kernel of each request's: they differ
    // where a program renames what it has open.
    let renames = matches!(load, Load::Dovecot | Load::Odd);
    let path = |s: &Seen| (!renames).then(|| s.path.clone());
    let whole = |s: &Seen| (s.who(), path(s));
    let apart = difference(
        &counted(ours.iter().map(whole)),
        &counted(theirs.iter().map(whole)),
    );
    assert!(
        apart.is_empty(),
        "only in the library's +, in the kernel's -: {apart:#?}"
    );
    for kind in kinds.keys().filter(|k| **k != "sync_file_range") {
        let (ours, theirs) = (times(&ours, kind), times(&theirs, kind));
        let [total, their_total] = [&ours, &theirs].map(|t| t.iter().sum::<u64>());
        println!("{name}: {kind}: total {total} and {their_total} ns");
    }
}

/// Durations of one kind in each view, in order of size.
fn times(seen: &[Seen], kind: &str) -> Vec<u64> {
    let mut times: Vec<u64> = seen
        .iter()
        .filter(|s| s.kind == kind)
        .map(|s| s.took_ns)
        .collect();
    times.sort_unstable();
    times
}

fn is_near(a: u64, b: u64) -> bool {
    (a as f64 - b as f64).abs() <= TOLERANCE * (b as f64)
}

fn agrees_with_bpftrace(load: Load, name: &str, least: usize) {
    if !is_root() {
        skip(name, "the kernel's trace points and a slow disk need root");
        return;
    }
    let (table, seen) = match with_bpftrace(load, name) {
        Ok(both) => both,
        Err(why) => return skip(name, &why),
    };
    is_complete(&table);
    let recorded = in_recording(&table);
    let [ours, theirs] = [&recorded, &seen].map(|s| counted(s.iter().map(Seen::who)));
    let apart = difference(&ours, &theirs);
    assert!(
        apart.is_empty(),
        "only in the recording +, in bpftrace -: {apart:#?}"
    );
    assert!(seen.len() >= least, "{}", seen.len());
    for (kind, number) in counted(seen.iter().map(|s| s.kind.as_str())) {
        let (ours, theirs) = (times(&recorded, kind), times(&seen, kind));
        assert!(ours.iter().all(|t| *t != UNKNOWN));
        let [total, their_total] = [&ours, &theirs].map(|t| t.iter().sum::<u64>());
        let [median, their_median] = [&ours, &theirs].map(|t| t[t.len() / 2]);
        println!(
            "{name}: {number} {kind}: total {total} and {their_total} ns, median {median} and \
             {their_median} ns"
        );
        if kind != "sync_file_range" {
            assert!(
                is_near(total, their_total),
                "{kind}: {total} ns, {their_total} ns"
            );
            assert!(
                is_near(median, their_median),
                "{kind}: {median} ns, {their_median} ns"
            );
        }
    }
}

#[test]
fn soak_a_recording_of_sqlite_has_what_strace_sees() {
    agrees_with_strace(Load::Sqlite, "agree-sqlite", 200);
}

#[test]
fn soak_a_recording_of_postgresql_has_what_strace_sees() {
    agrees_with_strace(Load::Postgresql, "agree-postgresql", 500);
}

#[test]
fn soak_a_recording_of_dovecot_has_what_strace_sees() {
    agrees_with_strace(Load::Dovecot, "agree-dovecot", 3 * 40);
}

#[test]
fn a_recording_of_calls_that_fail_has_what_strace_sees() {
    agrees_with_strace(Load::Odd, "agree-odd", 70);
}

#[test]
fn soak_a_recording_of_sqlite_has_what_the_kernel_sees() {
    agrees_with_the_kernel(Load::Sqlite, "kernel-sqlite", 200);
}

#[test]
fn soak_a_recording_of_postgresql_has_what_the_kernel_sees() {
    agrees_with_the_kernel(Load::Postgresql, "kernel-postgresql", 500);
}

#[test]
fn soak_a_recording_of_dovecot_has_what_the_kernel_sees() {
    agrees_with_the_kernel(Load::Dovecot, "kernel-dovecot", 3 * 40);
}

#[test]
fn a_recording_of_calls_that_fail_has_what_the_kernel_sees() {
    agrees_with_the_kernel(Load::Odd, "kernel-odd", 70);
}

#[test]
fn soak_a_recording_of_sqlite_has_the_times_that_bpftrace_sees() {
    agrees_with_bpftrace(Load::Sqlite, "times-sqlite", 200);
}

#[test]
fn soak_a_recording_of_postgresql_has_the_times_that_bpftrace_sees() {
    agrees_with_bpftrace(Load::Postgresql, "times-postgresql", 500);
}

#[test]
fn soak_a_recording_of_dovecot_has_the_times_that_bpftrace_sees() {
    agrees_with_bpftrace(Load::Dovecot, "times-dovecot", 3 * 40);
}
