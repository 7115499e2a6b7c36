//! A terminal that a test sees and types into: one pane of a tmux server of its own.
//!
//! Promise: the server ends with its guard, and with it what runs in the pane.

use super::command::{clean, run, LIMIT};
use crate::wait::until;
use std::path::PathBuf;
use std::process::Command;

/// A server with one pane.
pub struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// Starts `script` in a pane of a size. The environment is that of `command`, which is a tmux;
    /// `socket` names the server.
    pub fn start(mut command: Command, socket: PathBuf, size: (u16, u16), script: &str) -> Tmux {
        let (columns, rows) = (size.0.to_string(), size.1.to_string());
        command.env("LC_ALL", "C.UTF-8");
        command.args(["-u", "-f", "/dev/null", "-S"]).arg(&socket);
        command.args(["new-session", "-d", "-x", &columns, "-y", &rows, script]);
        // From here on there is something to end.
        let tmux = Tmux { socket };
        run(&mut command).must_succeed();
        tmux
    }

    fn tmux(&self) -> Command {
        let mut command = clean("tmux");
        command.env("LC_ALL", "C.UTF-8");
        command.args(["-u", "-S"]).arg(&self.socket);
        command
    }

    /// What stands on the screen.
    pub fn screen(&self) -> String {
        let outcome = run(self.tmux().args(["capture-pane", "-p"]));
        outcome.must_succeed().stdout
    }

    /// Types keys, by tmux's names (`Enter`, `Tab`, `C-c`) or as they are.
    pub fn press(&self, keys: &[&str]) {
        run(self.tmux().arg("send-keys").args(keys)).must_succeed();
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let words = ["resize-window", "-x", &columns, "-y", &rows];
        run(self.tmux().args(words)).must_succeed();
    }

    /// The process that was started in the pane.
    pub fn pid(&self) -> i32 {
        let outcome = run(self.tmux().args(["list-panes", "-F", "#{pane_pid}"]));
        let outcome = outcome.must_succeed();
        outcome.stdout.trim().parse().expect("a number")
    }

    /// Waits until the screen is as it should be; the screen.
    ///
    /// # Panics
    /// With the screen, where it does not become so.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let became = until(LIMIT, || {
            screen = self.screen();
            condition(&screen)
        });
        assert!(became, "{what}:\n{screen}");
        screen
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").output();
    }
}
