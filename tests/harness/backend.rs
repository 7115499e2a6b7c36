//! The ways to run a victim, and the scene it runs in.

use super::command::{clean, run};
use super::dir::Dir;
use super::disk::keep_mounts_private_if_possible;
use super::library::preload;
use super::limits::needs_net;
use super::victims::tool;
use std::path::PathBuf;
use std::process::Command;

/// How a victim is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Without synclater: the oracle.
    None,
    /// The library without a session, at `never`.
    Alone,
    /// The library with a session's page that has no supervisor, where every request is put off:
    /// as if the victim saw a `single` writable file system, or `several`.
    Page(&'static str),
    /// `synclater run` at this dial.
    Run(&'static str),
    /// The same with a recording.
    Recorded(&'static str),
    /// With a recording that has other calls too, each that took this long: at `now`, or with an
    /// hour at `exit`.
    Timed(&'static str),
    /// `synclater attach` at this dial, while it stands at its begin.
    Attached(&'static str),
    /// `synclater run --follow` at this dial, behind something that cleans the environment.
    Followed(&'static str),
    /// `synclater run --net` at this dial, without the library.
    Net(&'static str),
}

const BACKENDS: [Backend; 17] = [
    Backend::Alone,
    Backend::Page("single"),
    Backend::Page("several"),
    Backend::Run("now"),
    Backend::Run("exit"),
    Backend::Run("never"),
    Backend::Run("1s"),
    Backend::Recorded("now"),
    Backend::Recorded("exit"),
    // Every call is recorded; none is.
    Backend::Timed("1ns"),
    Backend::Timed("1h"),
    Backend::Attached("now"),
    Backend::Attached("1s"),
    Backend::Followed("now"),
    Backend::Followed("exit"),
    Backend::Net("now"),
    Backend::Net("exit"),
];

/// Every way to run a victim with synclater; SYNCLATER_BACKEND=alone, =exit… leaves one of them.
pub fn backends() -> impl Iterator<Item = Backend> {
    let chosen = std::env::var("SYNCLATER_BACKEND").ok();
    let is_possible =
        |b: &Backend| !matches!(b, Backend::Net(_)) || needs_net("victims under --net");
    let is_chosen =
        move |b: &Backend| chosen.as_ref().is_none_or(|name| name == b.name()) && is_possible(b);
    BACKENDS.into_iter().filter(is_chosen)
}

impl Backend {
    fn name(&self) -> &'static str {
        match self {
            Backend::None => "none",
            Backend::Alone => "alone",
            Backend::Page(sight) => sight,
            Backend::Run(until) | Backend::Recorded(until) => until,
            Backend::Timed(slower) => slower,
            Backend::Attached(_) => "attach",
            Backend::Followed(_) => "follow",
            Backend::Net(_) => "net",
        }
    }
}

/// Fresh directories for one run: the victim's, and synclater's sessions and ledger.
pub struct Scene {
    dir: Dir,
}

impl Scene {
    pub fn new(name: &str) -> Scene {
        keep_mounts_private_if_possible();
        let dir = Dir::new(name);
        for below in ["work", "run", "state"] {
            dir.make(below);
        }
        Scene { dir }
    }

    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Where the trace and the reports of this run go.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What a back end without a supervisor puts into the victim's environment.
    pub fn variables(&self, backend: Backend) -> Vec<String> {
        let own = match backend {
            Backend::None
            | Backend::Run(_)
            | Backend::Recorded(_)
            | Backend::Timed(_)
            | Backend::Attached(_)
            | Backend::Followed(_)
            | Backend::Net(_) => return Vec::new(),
            Backend::Alone => "SYNCLATER_UNTIL=never".to_owned(),
            Backend::Page(sight) => {
                let mut command = clean(tool("bare_page"));
                run(command.arg(self.dir.join("run")).arg(sight)).must_succeed();
                format!("SYNCLATER_PAGE={}", self.dir.join("run/page").display())
            }
        };
        vec![format!("LD_PRELOAD={}", preload()), own]
    }

    /// A command that runs the words appended to it as this back end does.
    pub fn command(&self, backend: Backend) -> Command {
        match backend {
            Backend::None | Backend::Alone | Backend::Page(_) => {
                let mut command = clean("env");
                command.args(self.variables(backend));
                command
            }
            Backend::Run(until) | Backend::Recorded(until) => {
                let mut command = self.session(until);
                if let Backend::Recorded(_) = backend {
                    command.arg("--record").arg(self.file("recording"));
                }
                command.arg("--");
                command
            }
            Backend::Attached(until) => {
                let mut command = self.with_folders(tool("attached"));
                command.args([env!("CARGO_BIN_EXE_synclater"), until]);
                command
            }
            Backend::Followed(until) => {
                let mut command = self.session(until);
                command.args(["--follow", "--", "env", "-i", "PATH=/usr/bin:/bin"]);
                command
            }
            Backend::Net(until) => {
                let mut command = self.session(until);
                command.args(["--net", "--", "env", "-i", "PATH=/usr/bin:/bin"]);
                command
            }
            Backend::Timed(slower) => {
                let mut command = self.session(if slower == "1h" { "exit" } else { "now" });
                command.arg("--record").arg(self.file("recording"));
                command.args(["--io", "--slower", slower, "--"]);
                command
            }
        }
    }

    /// A program that keeps its sessions and its ledger here.
    fn with_folders(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = clean(program);
        command.env("SYNCLATER_RUN_DIR", self.dir.join("run"));
        command.env("SYNCLATER_STATE_DIR", self.state());
        command
    }

    fn session(&self, until: &str) -> Command {
        let mut command = self.with_folders(env!("CARGO_BIN_EXE_synclater"));
        command.args(["run", "--quiet", "--until", until]);
        command
    }
}
