//! Ends what a test's servers left behind, also when the test has failed.
//!
//! Daemons leave the process group and the session of whoever started them, clear their environment
//! and give themselves names. What they keep is a place: their working directory, an argument or an
//! open file lies below the test's own directory.

use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills every process that has to do with a directory.
pub struct Leftovers {
    dir: PathBuf,
}

impl Leftovers {
    pub fn of(dir: &Path) -> Leftovers {
        let dir = dir.canonicalize().expect("the test's directory");
        Leftovers { dir }
    }

    /// Processes that live and have to do with the directory. Not those that another test is about
    /// to start: between fork and exec they have what this process has, all that is open included.
    pub fn alive(&self) -> Vec<(i32, String)> {
        let own = std::process::id().cast_signed();
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let ours = pids.filter(|&pid| pid != own && !is_unborn(pid) && self.has_to_do_with(pid));
        ours.map(|pid| (pid, arguments(pid))).collect()
    }

    fn has_to_do_with(&self, pid: i32) -> bool {
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}"));
        let below = |path: std::io::Result<PathBuf>| path.is_ok_and(|p| p.starts_with(&self.dir));
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let mut files = files.flatten().map(|e| std::fs::read_link(e.path()));
        // A zombie has no arguments: it has ended.
        let said = arguments(pid);
        !said.is_empty()
            && (names(&said, &self.dir.to_string_lossy())
                || below(link("cwd"))
                || below(link("root"))
                || files.any(below))
    }
}

/// Whether a process executes this very program, as none does that a test has started.
fn is_unborn(pid: i32) -> bool {
    let exe = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    exe(&pid.to_string()).is_some_and(|its| Some(its) == exe("self"))
}

/// Whether some text names a directory or what is below it, and not another one whose name begins
/// like that.
fn names(text: &str, dir: &str) -> bool {
    let mut ends = text
        .match_indices(dir)
        .map(|(at, found)| &text[at + found.len()..]);
    ends.any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || "-_.".contains(c)))
}

fn arguments(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn is_supervisor(pid: i32) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
    exe.is_ok_and(|x| x == Path::new(env!("CARGO_BIN_EXE_synclater")))
}

fn end(pids: impl Iterator<Item = i32>) {
    for pid in pids.filter_map(Pid::from_raw) {
        // It may have ended in between; that is what is wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
}

impl Leftovers {
    /// Ends them all. A supervisor whose command is killed clears up behind itself, so it is killed
    /// only when it does not end by itself.
    pub fn end(&self) {
        let pids = || self.alive().into_iter().map(|(pid, _)| pid);
        let cleared = until(PATIENCE, || {
            end(pids().filter(|&pid| !is_supervisor(pid)));
            pids().next().is_none()
        });
        let gone = cleared
            || until(LIMIT, || {
                end(pids());
                pids().next().is_none()
            });
        if !gone {
            eprintln!("still running: {:?}", self.alive());
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_process_in_a_session_of_its_own_ends_with_the_guard() {
    let dir = crate::harness::dir::Dir::new("leftovers");
    let mut command = crate::harness::command::clean("setsid");
    let mut child = command
        .args(["sleep", "1000"])
        .current_dir(dir.path())
        .spawn()
        .expect("spawn");
    let leftovers = Leftovers::of(dir.path());
    assert!(until(LIMIT, || leftovers
        .alive()
        .iter()
        .any(|(_, said)| said.contains("1000"))));
    drop(leftovers);
    assert!(!child.wait().expect("wait").success());
    assert!(Leftovers::of(dir.path()).alive().is_empty());
}

#[test]
fn a_directory_is_told_from_one_whose_name_begins_like_it() {
    for (text, is_named) in [
        ("cat /tmp/sl-a-1-2", true),
        ("cat /tmp/sl-a-1-2/work/file", true),
        ("--root=/tmp/sl-a-1-2:/x", true),
        ("cat /tmp/sl-a-1-23", false),
        ("cat /tmp/sl-a-1-2-3/file", false),
        ("cat /tmp/sl-a-1-23 /tmp/sl-a-1-2", true),
    ] {
        assert_eq!(names(text, "/tmp/sl-a-1-2"), is_named, "{text}");
    }
}

#[test]
fn a_process_between_fork_and_exec_is_not_taken_for_a_leftover() {
    let dir = crate::harness::dir::Dir::new("unborn");
    let open = std::fs::File::create(dir.path().join("open")).expect("a file");
    let leftovers = Leftovers::of(dir.path());
    let (wait, go) = rustix::pipe::pipe().expect("a pipe");
    let mut child = synclater_sys::job::Job::start(|| {
        let _ = rustix::io::read(&wait, &mut [0u8; 1]);
        7
    });
    let child = child.as_mut().expect("a process");
    drop(open);
    leftovers.end();
    assert_eq!(rustix::io::write(&go, b"g"), Ok(1));
    let mut status = None;
    let ended = until(LIMIT, || {
        status = child.status();
        status.is_some()
    });
    assert!(ended);
    assert_eq!(status, Some(7));
}
