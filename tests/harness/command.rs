//! Commands with a deadline, in a process group of their own that is killed when it has passed.
//!
//! Output goes through files, not pipes: a descendant that lives on cannot hold the test up.

use super::dir::Dir;
use super::limits::count;
use crate::wait::until;
use rustix::process::{kill_process_group, Pid, Signal};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::time::Duration;

/// Longer than any command here takes, on a slow machine too.
pub const LIMIT: Duration = Duration::from_secs(120);

/// What a command left.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The command, to be run again by hand.
    pub command: String,
}

impl Outcome {
    /// # Panics
    /// Unless the exit status is 0; the message holds everything.
    pub fn must_succeed(self) -> Outcome {
        assert!(self.status.success(), "{self}");
        self
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "command: {}", self.command)?;
        writeln!(f, "ended:   {}", self.status)?;
        writeln!(f, "stdout:\n{}", self.stdout)?;
        writeln!(f, "stderr:\n{}", self.stderr)
    }
}

/// A command with a clean environment: PATH and C locale, nothing of synclater's.
pub fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").env("HOME", "/");
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("XDG_CACHE_HOME", cache_for_all());
    for name in ["SYNCLATER_CI_MARK", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// The cache of users without a home, whoever a command becomes: each has folders of his own there.
fn cache_for_all() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let user = rustix::process::geteuid().as_raw();
        let cache = PathBuf::from(format!("/var/tmp/synclater-tests-{user}"));
        let _ = std::fs::create_dir(&cache);
        std::fs::set_permissions(&cache, Permissions::from_mode(0o1777)).expect("chmod");
        cache
    })
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started, or has not ended after [`LIMIT`], of which a soak gets five: then its
/// group is killed.
pub fn run(command: &mut Command) -> Outcome {
    let output = Dir::new("output");
    let shown = show(command);
    let (out, err) = (output.join("stdout"), output.join("stderr"));
    command.stdin(std::process::Stdio::null());
    command.stdout(File::create(&out).expect("stdout"));
    command.stderr(File::create(&err).expect("stderr"));
    let started = command.process_group(0).spawn();
    let mut child = started.unwrap_or_else(|e| panic!("{shown}: {e}"));
    let status = end_of(&mut child);
    let read = |path| String::from_utf8_lossy(&fs::read(path).expect("output")).into_owned();
    let (stdout, stderr) = (read(&out), read(&err));
    let Some(status) = status else {
        panic!(
            "not ended after {:?}: {shown}\nstdout:\n{stdout}\nstderr:\n{stderr}",
            limit()
        );
    };
    Outcome {
        status,
        stdout,
        stderr,
        command: shown,
    }
}

/// How long a command may take.
fn limit() -> Duration {
    LIMIT * count(1, 5) as u32
}

fn end_of(child: &mut Child) -> Option<ExitStatus> {
    let mut status = None;
    until(limit(), || {
        status = child.try_wait().expect("wait");
        status.is_some()
    });
    if status.is_none() {
        // The group may have ended in between; that is no failure.
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        let _ = child.wait();
    }
    status
}

/// The command as a shell would take it, with the variables that matter.
fn show(command: &Command) -> String {
    let ours = |name: &str| name.starts_with("SYNCLATER") || name == "LD_PRELOAD" || name == "WARM";
    let quote = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy());
    let variables = command.get_envs().filter_map(|(name, value)| {
        let name = name.to_string_lossy();
        ours(&name).then(|| format!("{name}={}", quote(value.unwrap_or_default())))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(quote);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_command_gives_its_output_and_its_status() {
    let outcome = run(clean("sh").args(["-c", "echo out; echo err >&2; exit 23"]));
    assert_eq!(outcome.stdout, "out\n");
    assert_eq!(outcome.stderr, "err\n");
    assert_eq!(outcome.status.code(), Some(23));
}

/// Makes a copy of a program, by another process: what this one has open for writing, a child that
/// another test starts at that moment has, too, and then it cannot be executed (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let words = [from.as_ref(), to.as_ref()];
    run(clean("cp").arg("--preserve=mode").args(words)).must_succeed();
}
