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

/// Kills every process that has to do with a directory.
pub struct Leftovers {
    dir: PathBuf,
}

impl Leftovers {
    pub fn of(dir: &Path) -> Leftovers {
        let dir = dir.canonicalize().expect("the test's directory");
        Leftovers { dir }
    }

    /// Processes that live and have to do with the directory.
    pub fn alive(&self) -> Vec<(i32, String)> {
        let own = std::process::id().cast_signed();
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let ours = pids.filter(|&pid| pid != own && self.has_to_do_with(pid));
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
            && (said.contains(&*self.dir.to_string_lossy())
                || below(link("cwd"))
                || below(link("root"))
                || files.any(below))
    }
}

fn arguments(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let gone = until(LIMIT, || {
            let left = self.alive();
            for pid in left.iter().filter_map(|(pid, _)| Pid::from_raw(*pid)) {
                // It may have ended in between; that is what is wanted.
                let _ = kill_process(pid, Signal::KILL);
            }
            left.is_empty()
        });
        if !gone {
            eprintln!("still running: {:?}", self.alive());
        }
    }
}
