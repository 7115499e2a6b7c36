//! What is thought of a state.

use super::builtin::Builtin;
use super::damage::{is_damage, unreadable};
use rustix::fs::OFlags;
use rustix::process::{kill_process, kill_process_group, Pid, Signal};
use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use synclater_powercut::tree::{self, Tree};
use synclater_sys::command;
use synclater_sys::process;
use synclater_sys::signal::Inherited;

/// What a check may say; more is cut.
const SAID_MAX: usize = 4096;

/// Who judges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A shell command line, with two more arguments: the folder, the file of acknowledgements.
    Shell(OsString),
    /// One that is brought along.
    Builtin(Builtin),
    /// What lay in the folder at the acknowledgements before and behind the cut: nothing that both
    /// have may be missing.
    Neighbours(Vec<Arc<Tree>>),
}

/// In the environment of a check and of all that it starts: whose they are.
const MARK: &str = "SYNCLATER_CRASH_CHECK";

/// What had been acknowledged.
pub struct Acknowledged {
    /// A file with it.
    pub file: PathBuf,
    /// How many lines.
    pub lines: usize,
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Good,
    /// Something is lost or corrupt; in the check's words.
    Bad(String),
    /// The check did not end in its time; in words.
    Hangs(String),
    /// It was bad, and when it was mounted and judged again it was good; in the words of the first.
    Flaky(String),
    /// The check itself failed.
    Failed(String),
}

impl Check {
    /// The command for a folder.
    fn command(&self, folder: &Path, acks: &Path) -> io::Result<Command> {
        let mut command = match self {
            Check::Builtin(builtin) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("crash-check").arg(builtin.name());
                command
            }
            Check::Shell(line) => {
                let mut command = Command::new("sh");
                let mut script = line.clone();
                if !takes_arguments(line.as_bytes()) {
                    script.push(" \"$@\"");
                }
                command.arg("-c").arg(script).arg("check");
                command
            }
            Check::Neighbours(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        command.arg(folder).arg(acks);
        Ok(command)
    }

    /// Judges what is in a folder, with so many lines acknowledged. `scratch` is a name that the
    /// processes of this judge alone have.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn judge(
        &self,
        folder: &Path,
        acks: &Acknowledged,
        scratch: &Path,
        conditions: &Conditions,
    ) -> io::Result<Verdict> {
        if let Check::Neighbours(trees) = self {
            let last = trees.len().saturating_sub(1);
            let (before, after) = (acks.lines.min(last), (acks.lines + 1).min(last));
            let state = match super::tree::read(folder) {
                Err(e) if is_damage(&e) => return Ok(Verdict::Bad(unreadable(&e))),
                state => state?,
            };
            return Ok(match tree::far(&state, &trees[before], &trees[after]) {
                Some(words) => Verdict::Bad(words),
                None => Verdict::Good,
            });
        }
        let (read, write) = std::io::pipe()?;
        rustix::fs::fcntl_setfl(&read, OFlags::NONBLOCK)?;
        let mut said = Said(read, Vec::new());
        let mut command = self.command(folder, &acks.file)?;
        command.env(MARK, scratch).current_dir(&conditions.cwd);
        command.stdin(Stdio::null()).process_group(0);
        command.stdout(write.try_clone()?).stderr(write);
        command::with_inherited(&mut command, &conditions.inherited);
        let mut child = command.spawn()?;
        drop(command);
        let begun = Instant::now();
        let mut wait = Duration::from_micros(100);
        let status = loop {
            said.drain();
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begun.elapsed() > conditions.patience {
                break None;
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(2));
        };
        if let Some(group) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
        end_strays(scratch);
        said.drain();
        let words = String::from_utf8_lossy(&said.1).trim().to_owned();
        Ok(match status.and_then(|s| s.code()) {
            Some(0) => Verdict::Good,
            Some(1) => Verdict::Bad(words),
            Some(code) => failed(format!("exit status {code}"), &words),
            None if status.is_none() => Verdict::Hangs(hangs(conditions.patience, &words)),
            None => failed("a signal ended it".to_owned(), &words),
        })
    }
}

/// What is said of a state on which the check did not end, and what that had said by then.
fn hangs(patience: Duration, words: &str) -> String {
    let longer = format!(
        "hangs: the check took longer than {} s",
        patience.as_secs_f64()
    );
    match words {
        "" => longer,
        words => format!("{longer}: {words}"),
    }
}

/// The verdict where a check has not judged, with the words that it said.
fn failed(why: String, words: &str) -> Verdict {
    match words {
        "" => Verdict::Failed(why),
        words => Verdict::Failed(format!("{why}: {words}")),
    }
}

/// Under which a check runs.
#[derive(Clone)]
pub struct Conditions {
    /// How long it may take.
    pub patience: Duration,
    /// The folder in which it begins: the caller's.
    pub cwd: PathBuf,
    /// The signal state that it begins with.
    pub inherited: Inherited,
}

/// Whether a shell line names its arguments itself.
fn takes_arguments(line: &[u8]) -> bool {
    let names: [&[u8]; 6] = [b"$1", b"$2", b"$@", b"$*", b"${1", b"${2"];
    names
        .iter()
        .any(|name| line.windows(name.len()).any(|w| w == *name))
}

/// What a check says: the begin of it is kept, the rest is read and forgotten.
struct Said(PipeReader, Vec<u8>);

impl Said {
    fn drain(&mut self) {
        let mut piece = [0; 1 << 16];
        while let Ok(1..) = self.0.read(&mut piece).inspect(|n| {
            let room = SAID_MAX.saturating_sub(self.1.len());
            self.1.extend_from_slice(&piece[..room.min(*n)]);
        }) {}
    }
}

/// Ends what a check has started in groups of their own, servers for instance, and has left. One
/// that is becoming another program just now is not seen: who finds the state in use asks again.
pub fn end_strays(scratch: &Path) {
    let mark = [MARK.as_bytes(), b"=", scratch.as_os_str().as_bytes()].concat();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let strays: Vec<u32> = process::all()
            .filter(|pid| *pid > 1 && is_stray(*pid, &mark))
            .collect();
        if strays.is_empty() {
            return;
        }
        for pid in strays.iter().filter_map(|n| Pid::from_raw(*n as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process has the variable `mark` in its environment.
fn is_stray(pid: u32, mark: &[u8]) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|b| *b == 0)
        .any(|variable| variable == mark)
}
