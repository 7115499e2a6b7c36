//! What is thought of a state.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use synclater_sys::signal::Inherited;

/// What a check may say; more is cut.
const SAID_MAX: u64 = 4096;

/// Who judges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A shell command line, with the folder and the file of acknowledgements as two more arguments.
    Shell(OsString),
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Good,
    /// Something is lost or corrupt; in the check's words.
    Bad(String),
    /// The check itself failed.
    Failed(String),
}

impl Check {
    /// The command for a folder.
    fn command(&self, folder: &Path, acks: &Path) -> Command {
        let Check::Shell(line) = self;
        let mut command = Command::new("sh");
        let mut script = line.clone();
        script.push(" \"$@\"");
        command
            .arg("-c")
            .arg(script)
            .arg("check")
            .arg(folder)
            .arg(acks);
        command
    }

    /// Judges what is in a folder. `scratch` is a file for what the check says.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn judge(
        &self,
        folder: &Path,
        acks: &Path,
        scratch: &PathBuf,
        patience: Duration,
        inherited: &Inherited,
    ) -> io::Result<Verdict> {
        let said = File::create(scratch)?;
        let mut command = self.command(folder, acks);
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .process_group(0);
        command.stdout(said.try_clone()?).stderr(said);
        synclater_sys::process::with_inherited(&mut command, inherited);
        let mut child = command.spawn()?;
        let begun = Instant::now();
        let mut wait = Duration::from_micros(100);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begun.elapsed() > patience {
                break None;
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(2));
        };
        let group = rustix::process::Pid::from_raw(child.id() as i32);
        if let Some(group) = group {
            let kill = rustix::process::Signal::KILL;
            let _ = rustix::process::kill_process_group(group, kill);
        }
        let _ = child.wait();
        let words = said_in(scratch)?;
        Ok(match status.and_then(|s| s.code()) {
            Some(0) => Verdict::Good,
            Some(1) => Verdict::Bad(words),
            Some(code) => Verdict::Failed(format!("exit status {code}: {words}")),
            None if status.is_none() => {
                let seconds = patience.as_secs_f64();
                Verdict::Failed(format!("it took longer than {seconds} s: {words}"))
            }
            None => Verdict::Failed(format!("a signal ended it: {words}")),
        })
    }
}

fn said_in(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut file = File::open(file)?;
    file.rewind()?;
    file.take(SAID_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
