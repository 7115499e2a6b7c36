//! A daemon in the foreground, its output in files, ended with its guard.

use crate::programs::Place;
use crate::wait::until;
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Longer than anything takes that a test waits for, on a slow machine too.
pub const LIMIT: Duration = Duration::from_secs(120);

/// What is running.
pub struct Daemon {
    child: Child,
    pub place: Place,
}

impl Daemon {
    pub fn start(place: Place, command: &mut Command) -> Daemon {
        let file = |name| File::create(place.scene.file(name)).expect("output");
        command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Daemon { child, place }
    }

    /// Waits for a condition.
    ///
    /// # Panics
    /// If the daemon ends before, or [`LIMIT`] has passed.
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        let mut status = None;
        let child = &mut self.child;
        let held = until(LIMIT, || {
            status = child.try_wait().expect("wait");
            status.is_some() || condition()
        });
        assert!(
            status.is_none(),
            "ended with {status:?} before {what}\n{}",
            self.output()
        );
        assert!(held, "no {what} after {LIMIT:?}\n{}", self.output());
    }

    /// Sends SIGTERM to the process that was started, and waits for its end.
    pub fn stop(self) -> Stopped {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("SIGTERM");
        self.end()
    }

    /// Waits for the end of the process that was started.
    pub fn end(mut self) -> Stopped {
        let mut status = None;
        until(LIMIT, || {
            status = self.child.try_wait().expect("wait");
            status.is_some()
        });
        let output = self.output();
        Stopped {
            status: status.unwrap_or_else(|| panic!("still running\n{output}")),
            output,
            report: report(self.place.scene.file("report.json")),
            daemon: self,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn output(&self) -> String {
        let file = |name| std::fs::read_to_string(self.place.scene.file(name)).unwrap_or_default();
        format!("stdout:\n{}\nstderr:\n{}", file("stdout"), file("stderr"))
    }
}

fn report(path: PathBuf) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.place.leftovers.end();
        // Both fail where it has ended; that is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What has ended.
pub struct Stopped {
    pub status: ExitStatus,
    pub output: String,
    /// The session's report; null without a session.
    pub report: Value,
    /// Its directories are still there.
    pub daemon: Daemon,
}

impl Stopped {
    pub fn number(&self, key: &str) -> u64 {
        let number = self.report[key].as_u64();
        number.unwrap_or_else(|| panic!("{key}: {:#}\n{}", self.report, self.output))
    }

    /// Requests of escaped processes with this executable, and why they escaped.
    pub fn escaped(&self, program: &str) -> Vec<(u64, String)> {
        let all = self.report["escaped"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let is_it = |e: &&Value| e["exe"].as_str().is_some_and(|x| x.ends_with(program));
        let told = |e: &Value| {
            let why = e["why"].as_str().unwrap_or_default();
            (e["requests"].as_u64().unwrap_or(0), why.to_owned())
        };
        all.iter().filter(is_it).map(told).collect()
    }
}
