//! How other commands speak to a running session: one line of JSON each way, over a local socket in
//! the session's folder. The kernel tells who asks; only the session's owner and root are answered.

use super::belongings::memory_of;
use super::dirs;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use synclater_model::report::ps::PsSession;
use synclater_sys::{process, socket};

/// How long a client waits for an answer: settling may take long, and says so by itself.
const PATIENCE: Duration = Duration::from_secs(3600);
/// For everything else: a supervisor that runs answers within milliseconds.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);

/// What can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// The session as `ps` shows it.
    Ps,
    /// Another dial, or another end of the relaxation.
    Set {
        /// The dial, as `--until` takes it.
        until: Option<String>,
        /// Seconds until the relaxation ends.
        for_s: Option<f64>,
    },
    /// Pay now.
    Settle,
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Answer {
    /// To [`Request::Ps`].
    Session {
        /// The session.
        session: Box<PsSession>,
    },
    /// Done; in words.
    Done {
        /// What was done.
        said: String,
    },
    /// Not done.
    Refused {
        /// Why.
        why: String,
    },
}

/// One living session, as found in the run folder.
#[derive(Clone, Debug)]
pub struct Living {
    /// Its id.
    pub id: String,
    /// Its folder.
    pub dir: PathBuf,
}

/// The sessions of the run folder, in order; dead ones among them.
#[must_use]
pub fn sessions() -> Vec<Living> {
    let run = dirs::run_dir();
    let trusted = run
        .symlink_metadata()
        .is_ok_and(|m| dirs::distrust(&m).is_none());
    let entries = trusted
        .then(|| std::fs::read_dir(&run).ok())
        .flatten()
        .into_iter()
        .flatten()
        .flatten();
    let is_session = |d: &PathBuf| {
        let hidden = d
            .file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
        !hidden && d.join("lock").exists()
    };
    let mut found: Vec<Living> = entries
        .map(|e| Living {
            id: e.file_name().to_string_lossy().into_owned(),
            dir: e.path(),
        })
        .filter(|s| is_session(&s.dir))
        .collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

/// The supervisor's end.
pub struct Server {
    listener: UnixListener,
}

/// One client that waits for its answer.
pub struct Client {
    stream: UnixStream,
}

impl Server {
    /// Listens in the session's folder of memory; others cannot connect.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn open(dir: &Path) -> io::Result<Server> {
        let path = dir.join("control");
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener })
    }

    /// The next request, without waiting for one to arrive; whoever connected is given 100 ms.
    #[must_use]
    pub fn next(&self) -> Option<(Client, Result<Request, String>)> {
        let (stream, _) = self.listener.accept().ok()?;
        let peer = socket::peer(&stream).ok()?;
        let me = process::effective_user();
        let client = Client { stream };
        if peer.uid != 0 && peer.uid != me {
            return Some((client, Err("the session belongs to another user".into())));
        }
        client.stream.set_nonblocking(false).ok()?;
        client
            .stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .ok()?;
        let mut line = String::new();
        let mut reader = BufReader::new(io::Read::take(&client.stream, 4096));
        reader.read_line(&mut line).ok()?;
        let request = serde_json::from_str(&line).map_err(|e| e.to_string());
        Some((client, request))
    }
}

impl std::os::fd::AsFd for Server {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Client {
    /// Answers and hangs up.
    pub fn answer(mut self, answer: &Answer) {
        let _ = self
            .stream
            .set_write_timeout(Some(Duration::from_millis(100)));
        if let Ok(text) = serde_json::to_string(answer) {
            let _ = writeln!(self.stream, "{text}");
        }
    }
}

/// Asks a session.
///
/// # Errors
/// `NotFound` or `ConnectionRefused` where nobody listens; `InvalidData` for an answer of another
/// version.
pub fn ask(session: &Living, request: &Request) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(memory_of(&session.dir).join("control"))?;
    let patience = if matches!(request, Request::Settle) {
        PATIENCE
    } else {
        SHORT_PATIENCE
    };
    stream.set_read_timeout(Some(patience))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
