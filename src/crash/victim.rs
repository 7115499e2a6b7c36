//! The program on the laboratory's disk.

use super::disk::recorded::Recorded;
use super::station::Station;
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use synclater_sys::command;
use synclater_sys::process;
use synclater_sys::signal::Inherited;

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Bytes of a folder's path in which a session's socket has room: unix(7) allows 107 in all.
const SOCKET_DIR_MAX: usize = 80;

/// What is run, and how.
#[derive(Clone)]
pub struct Plan {
    /// The program and its arguments; `{}` stands for the folder.
    pub words: Vec<OsString>,
    /// The dial.
    pub until: String,
    /// The descriptor on which it acknowledges, where that is not stdout.
    pub ack_fd: Option<u32>,
    /// How long it may take.
    pub patience: Duration,
    /// The signal state that commands begin with.
    pub inherited: Inherited,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this status, or 128 and a signal's number.
    Status(i32),
    /// It took too long and was killed.
    TooLong,
    /// Somebody wanted an end.
    Stopped,
}

impl Ending {
    /// A number for the log.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Ending::Status(status) => status,
            Ending::TooLong | Ending::Stopped => 128 + Signal::KILL.as_raw(),
        }
    }
}

/// Words with the folder in place of `{}`.
fn in_folder(words: &[OsString], folder: &Path) -> Vec<OsString> {
    let folder = folder.as_os_str().as_bytes();
    words.iter().map(|word| with_folder(word, folder)).collect()
}

/// A word with the folder in place of each `{}`.
fn with_folder(word: &OsStr, folder: &[u8]) -> OsString {
    let mut out = Vec::new();
    let mut rest = word.as_bytes();
    while let Some(at) = rest.windows(2).position(|w| w == b"{}") {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(folder);
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    OsString::from_vec(out)
}

fn status_of(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(-1)
}

/// Ends every process of this pid namespace but the first and ourselves; how many programs that
/// were, without our own.
pub fn end_everybody() -> usize {
    let own = std::process::id();
    let exe = std::fs::read_link("/proc/self/exe").ok();
    let mut programs = None;
    loop {
        let others: Vec<u32> = process::all()
            .filter(|n| *n != 1 && *n != own && process::is_running(*n))
            .collect();
        let first = others.iter().filter(|n| exe_of(**n) != exe).count();
        let programs = *programs.get_or_insert(first);
        if others.is_empty() {
            return programs;
        }
        for pid in others.iter().filter_map(|n| Pid::from_raw(*n as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn exe_of(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

impl Plan {
    /// The same for further runs, which may take longer than the first, but not by much: what
    /// happened to the disk in that was at these `times`.
    #[must_use]
    pub fn with_patience_after(&self, times: &[i64]) -> Plan {
        let took = times
            .last()
            .zip(times.first())
            .map_or(0, |(last, first)| last - first);
        let took = Duration::from_nanos(u64::try_from(took).unwrap_or(0));
        let mut plan = self.clone();
        plan.patience = self.patience.min(3 * took + Duration::from_secs(5));
        plan
    }

    /// The command, in a session of synclater that is recorded. The session's ledger lies in
    /// memory, as it ends with the laboratory: so hardly any request is made for real because its
    /// entry is not there yet, and the machine's own ledger hears nothing of it.
    fn command(&self, folder: &Path, recording: &Path, acks: &Path) -> io::Result<Command> {
        let mut words = in_folder(&self.words, folder);
        if let Some(fd) = self.ack_fd {
            // The shell opens the descriptor and is the program then.
            let script = format!("exec \"$@\" {fd}>>\"$0\"");
            let before = ["sh".into(), "-c".into(), script.into(), acks.into()];
            words.splice(0..0, before);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.env("SYNCLATER_STATE_DIR", recording.with_extension("ledger"));
        let sessions = recording.with_extension("session");
        if sessions.as_os_str().len() <= SOCKET_DIR_MAX {
            command.env("SYNCLATER_RUN_DIR", sessions);
        }
        command.args(["run", "--quiet", "--until", &self.until, "--record"]);
        command.arg(recording).arg("--").args(words);
        command.current_dir(folder);
        command::with_inherited(&mut command, &self.inherited);
        Ok(command)
    }

    /// Runs it on a disk that is mounted at `folder`, until it has ended, it takes too long, or
    /// `stop` says so; how it ended, and how many processes of its own were still running then, and
    /// were ended.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn run(
        &self,
        station: &Station<Recorded>,
        recording: &Path,
        mut stop: impl FnMut() -> bool,
    ) -> io::Result<(Ending, usize)> {
        let folder = station.place();
        let mut command = self.command(&folder, recording, &station.file("ack"))?;
        command
            .stdin(Stdio::null())
            .stdout(to_append(&station.file("out"))?)
            .stderr(to_append(&station.file("err"))?);
        let mut child = command.spawn()?;
        let ending = self.end_of(&mut child, &mut stop)?;
        station.disk.hurry();
        let more = end_everybody();
        let _ = child.wait();
        Ok((ending, more))
    }

    /// Waits for its end, as long as it may take.
    fn end_of(&self, child: &mut Child, stop: &mut impl FnMut() -> bool) -> io::Result<Ending> {
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Ending::Status(status_of(status)));
            }
            if stop() {
                return Ok(Ending::Stopped);
            }
            if begun.elapsed() > self.patience {
                return Ok(Ending::TooLong);
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn to_append(file: &Path) -> io::Result<File> {
    File::options().append(true).open(file)
}

/// Runs a shell command line in a folder, with its output where ours goes; its status, or `None`
/// where it took too long or `stop` said so.
///
/// # Errors
/// Where it cannot be started.
pub fn set_up(
    line: &OsStr,
    folder: &Path,
    plan: &Plan,
    mut stop: impl FnMut() -> bool,
) -> io::Result<Option<i32>> {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(line)
        .current_dir(folder)
        .stdin(Stdio::null());
    command.stdout(io::stderr());
    command::with_inherited(&mut command, &plan.inherited);
    let mut child = command.spawn()?;
    let ending = plan.end_of(&mut child, &mut stop)?;
    end_everybody();
    let _ = child.wait();
    Ok(match ending {
        Ending::Status(status) => Some(status),
        Ending::TooLong | Ending::Stopped => None,
    })
}
