//! The file of a recording.
//!
//! Promise: what was in the file stays until the recording has something to record: a command that
//! cannot be started costs nobody an earlier recording.

use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use synclater_text::message::Trouble;

/// What every recording begins with: Arrow's mark of a message.
const MARK: [u8; 4] = [0xff; 4];

/// A file that is being written, or will be.
#[derive(Debug)]
pub struct Out {
    file: File,
    /// What is to be written once it goes.
    held: Option<Vec<u8>>,
}

/// Opens a file for a recording; what is in it is left for now. `-` is standard output: what else
/// is printed there goes to standard error from then on.
///
/// # Errors
/// Those of open(2); `InvalidInput` where it holds something that is no recording, or is a
/// terminal; `AlreadyExists` where it holds one, and nothing may be written `over` it.
pub fn open(path: &Path, over: bool) -> io::Result<File> {
    if path == Path::new("-") {
        return standard_output();
    }
    let mut how = File::options();
    // It holds names that others may not read.
    how.write(true).create(true).truncate(false).mode(0o600);
    let file = how.open(path)?;
    // As long as it is written: whoever wrote over it would spoil both.
    if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Err(is_written());
    }
    let about = file.metadata()?;
    if about.is_file() && about.len() > 0 {
        let mut begin = [0; 4];
        File::open(path)?.read_exact(&mut begin).unwrap_or(());
        if begin != MARK {
            let why = "it holds something that is no recording";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        if !over {
            let why = "it holds a recording already";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
    }
    Ok(file)
}

/// Marks a file, as long as it is open, as one into which no recording may be written.
///
/// # Errors
/// `ResourceBusy` where a recorder is writing it.
pub fn share(file: &File) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Err(is_written()),
        _ => Ok(()),
    }
}

fn is_written() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another one is writing it")
}

/// Standard output for a recording alone.
fn standard_output() -> io::Result<File> {
    let out = rustix::stdio::stdout();
    if synclater_sys::command::output_was_closed() {
        let why = "standard output was closed (>&-)";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    if out.is_terminal() {
        let why = "standard output is a terminal, and a recording is no text";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let ours = rustix::io::fcntl_dupfd_cloexec(out, 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(ours.into())
}

/// What to try where [`open`] fails.
#[must_use]
pub fn remedy_of(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AlreadyExists => "--force writes over it; or name another file",
        io::ErrorKind::NotFound => "make the folder, or name another file",
        io::ErrorKind::ResourceBusy => "wait until it has ended, or name another file",
        _ => "name a recording or a new file, where you can write and there is room",
    }
}

/// What is said of a recording that is not whole; `state` of what it is of.
#[must_use]
pub fn not_whole(path: &Path, e: &io::Error, state: &str) -> Trouble {
    let what = if path == Path::new("-") {
        "the recording on standard output is not whole".to_owned()
    } else {
        format!("the recording {} is not whole", path.display())
    };
    let dead = rustix::io::Errno::OWNERDEAD.raw_os_error();
    let (why, try_) = match e.kind() {
        _ if e.raw_os_error() == Some(dead) => (
            "the process that writes it was killed".to_owned(),
            "record again",
        ),
        io::ErrorKind::BrokenPipe => (e.to_string(), "record again, for one who reads to the end"),
        _ => (
            e.to_string(),
            "free space there, or name a file on another disk, and record again",
        ),
    };
    let state =
        format!("{state}; what was written reads up to its last whole batch, if it has one");
    Trouble::new(what, why, try_, state)
}

impl Out {
    /// Into `file`. Where there is something in it, only once that is said to go.
    #[must_use]
    pub fn new(file: File) -> Out {
        let holds = file.metadata().is_ok_and(|m| m.is_file() && m.len() > 0);
        Out {
            file,
            held: holds.then(Vec::new),
        }
    }

    /// Whether it waits.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.held.is_some()
    }

    /// What was in the file goes, and what was written is there instead.
    ///
    /// # Errors
    /// Those of ftruncate(2) and write(2).
    pub fn go(&mut self) -> io::Result<()> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&held)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.held {
            Some(held) => held.write(bytes),
            None => self.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
