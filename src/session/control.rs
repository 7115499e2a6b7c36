//! How other commands speak to a running session: one line of JSON each way, over a local socket in
//! the session's folder. The kernel tells who asks; only the session's owner and root are answered.
//! Whoever asks to watch gets a recording behind the line.

use super::belongings::memory_of;
use super::dirs;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synclater_account::ps::PsSession;
use synclater_sys::wait::{self, For};
use synclater_sys::{process, socket};
use synclater_text::message::Trouble;

/// How long a client waits for an answer where something is settled before.
const PATIENCE: Duration = Duration::from_secs(3600);
/// For everything else, where the supervisor does not run: one that does answers within
/// milliseconds.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// The same where it does run, on a machine that has little time for it.
const BUSY_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked whether it runs: it does several times in that.
const LOOK: Duration = Duration::from_millis(500);

/// How long a client that watches may leave what it asked for unread.
const UNREAD: Duration = Duration::from_secs(5);

/// What can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Whether it answers at all.
    Hello,
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
    /// Let go of what was attached, and end.
    Detach {
        /// Whether the report is to be JSON.
        json: bool,
    },
    /// Show every request from now on; see [`watch`].
    Watch,
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
    /// To [`Request::Watch`]. Without a `recording` one follows on this connection, for as long as
    /// it is read.
    Watching {
        /// The file into which the session is being recorded.
        recording: Option<String>,
    },
    /// To [`Request::Detach`]: the session is over.
    Ended {
        /// The report.
        said: String,
        /// What could not be done, as it is told; empty where everything was.
        wrong: String,
        /// The status to end with.
        status: i32,
    },
    /// Settled, as far as that can be, or the dial is set; but what had been put off is not
    /// durable.
    Lost {
        /// What was lost, and where.
        why: String,
    },
    /// Not done.
    Refused {
        /// Why.
        why: String,
        /// What to try; empty where nobody knows.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        remedy: String,
    },
}

impl Answer {
    /// Not done, and nothing to try is known.
    #[must_use]
    pub fn refused(why: impl Into<String>) -> Answer {
        Answer::refused_but(why, "")
    }

    /// Not done.
    #[must_use]
    pub fn refused_but(why: impl Into<String>, remedy: impl Into<String>) -> Answer {
        let (why, remedy) = (why.into(), remedy.into());
        Answer::Refused { why, remedy }
    }
}

/// One living session, as found in the run folder.
#[derive(Clone, Debug)]
pub struct Living {
    /// Its id.
    pub id: String,
    /// Its folder.
    pub dir: PathBuf,
}

impl Living {
    /// The page that it shares with its victims.
    #[must_use]
    pub fn page(&self) -> PathBuf {
        memory_of(&self.dir).join("page")
    }
}

/// The session of the run folder that has this id, if there is one; a dead one, too.
#[must_use]
pub fn session(id: &str) -> Option<Living> {
    sessions().into_iter().find(|s| s.id == id)
}

/// The sessions of the run folder, in order, dead ones among them; none where it cannot be told.
#[must_use]
pub fn sessions() -> Vec<Living> {
    listed().unwrap_or_default()
}

/// The same, for whoever says that there are no others.
///
/// # Errors
/// Why it cannot be told, as a message for the user.
pub fn listed() -> Result<Vec<Living>, Trouble> {
    let run = dirs::run_dir();
    list(&run).map_err(|why| {
        Trouble::new(
            format!("cannot tell which sessions there are in {}", run.display()),
            why,
            "look at who has put what there: it has to be a folder of yours that nobody else may \
             write; SYNCLATER_RUN_DIR names another one",
            "no session was asked, and nothing was changed",
        )
    })
}

/// Those in the folder `run`; none where there is no such folder.
fn list(run: &Path) -> Result<Vec<Living>, String> {
    match run.symlink_metadata() {
        Err(e) if says_nothing_there(&e) => return Ok(Vec::new()),
        Err(e) => return Err(e.to_string()),
        Ok(seen) => dirs::distrust(&seen).map_or(Ok(()), Err)?,
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(run).map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        let (name, dir) = (entry.file_name(), entry.path());
        if !name.as_encoded_bytes().starts_with(b".") && has_lock(&dir) {
            let id = name.to_string_lossy().into_owned();
            found.push(Living { id, dir });
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// Whether a folder has a session's lock, or may have one.
fn has_lock(dir: &Path) -> bool {
    let seen = dir.join("lock").symlink_metadata();
    !seen.is_err_and(|e| says_nothing_there(&e))
}

fn says_nothing_there(e: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(e.kind(), NotFound | NotADirectory)
}

/// The supervisor's end.
pub struct Server {
    listener: UnixListener,
}

/// One client that waits for its answer.
pub struct Client {
    stream: UnixStream,
}

/// The longest path of a socket (unix(7)).
const PATH_MAX: usize = 107;

/// The path of the control socket in a folder of memory, by way of a descriptor that has to be kept
/// where it would be too long.
fn socket_in(dir: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    let path = dir.join("control");
    if path.as_os_str().len() <= PATH_MAX {
        return Ok((path, None));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(dir, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/control", folder.as_raw_fd());
    Ok((path.into(), Some(folder)))
}

impl Server {
    /// Listens in the session's folder of memory; others cannot connect.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn open(dir: &Path) -> io::Result<Server> {
        let (path, _folder) = socket_in(dir)?;
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener })
    }

    /// The next request, without waiting for one to arrive; whoever connected is given half a
    /// second, which a busy machine may take from connect to write; the lease allows for it.
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
            .set_read_timeout(Some(Duration::from_millis(500)))
            .ok()?;
        let mut line = String::new();
        let mut reader = BufReader::new(io::Read::take(&client.stream, 4096));
        reader.read_line(&mut line).ok()?;
        let request = serde_json::from_str(&line).map_err(|e| e.to_string());
        Some((client, request))
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Client {
    /// Answers and hangs up.
    pub fn answer(mut self, answer: &Answer) {
        let _ = self.say(answer);
    }

    fn say(&mut self, answer: &Answer) -> io::Result<()> {
        let text = serde_json::to_string(answer)?;
        self.stream
            .set_write_timeout(Some(Duration::from_millis(100)))?;
        writeln!(self.stream, "{text}")
    }

    /// Says that a recording follows. Returns where to write it, as a file: writing fails once the
    /// client has gone, or has not read for [`UNREAD`].
    ///
    /// # Errors
    /// Those of the socket.
    pub fn begin_recording(&mut self) -> io::Result<File> {
        self.say(&Answer::Watching { recording: None })?;
        self.stream.set_write_timeout(Some(UNREAD))?;
        Ok(OwnedFd::from(self.stream.try_clone()?).into())
    }

    /// Who asks, by number; 0 where it is in another pid namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        socket::peer(&self.stream).map_or(0, |peer| peer.pid)
    }

    /// Whether a client that only listens has hung up: nothing else can come from it.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        let fds = [(self.as_fd(), wait::For::Input)];
        wait::any(&fds, Duration::ZERO).contains(&true)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Asks a session. What may take long is asked once it is clear that it answers at all, and waited
/// for as long as it goes on answering.
///
/// # Errors
/// `WouldBlock` where it does not answer in time: it stands still, has not run for some seconds, or
/// hardly.
/// `NotFound` or `ConnectionRefused` where nobody listens; `InvalidData` for an answer of another
/// version.
pub fn ask(session: &Living, request: &Request) -> io::Result<Answer> {
    if !takes_long(request) {
        return put(session, request).map(|(answer, _)| answer);
    }
    put(session, &Request::Hello)?;
    let asked = send(session, request)?;
    let begun = Instant::now();
    while !wait::any(&[(asked.as_fd(), For::Input)], SHORT_PATIENCE).contains(&true) {
        match put(session, &Request::Hello) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(e),
            // It may have ended by now, with an answer for us before that.
            _ if begun.elapsed() > PATIENCE => return Err(io::ErrorKind::WouldBlock.into()),
            _ => {}
        }
    }
    answer(asked).map(|(answer, _)| answer)
}

/// Asks to see every request of a session from now on. Where the answer names no recording, one
/// follows: what is to be read from the connection.
///
/// # Errors
/// As [`ask`].
pub fn watch(session: &Living) -> io::Result<(Answer, BufReader<UnixStream>)> {
    let (answer, rest) = put(session, &Request::Watch)?;
    rest.get_ref().set_read_timeout(None)?;
    Ok((answer, rest))
}

/// Whether anybody listens: a supervisor, if only a stopped one.
#[must_use]
pub fn is_there(session: &Living) -> bool {
    let listens = listens_in(&memory_of(&session.dir));
    matches!(listens, Listens::Supervisor { .. })
}

/// Who listens to a session's control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listens {
    /// A supervisor, if only a stopped one.
    Supervisor {
        /// Its process id; 0 where it is in another pid namespace.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// Nobody: it is dead.
    Nobody,
    /// There is no such socket in sight, or it may not be asked.
    NotKnown,
}

/// Connects without waiting for whoever listens: another user's may never take it.
fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{
        connect, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Who listens in a session's folder of memory.
#[must_use]
pub fn listens_in(memory: &Path) -> Listens {
    let stream = socket_in(memory).and_then(|(path, _folder)| connect_at_once(&path));
    match stream {
        Ok(stream) => socket::peer(&stream).map_or(Listens::NotKnown, |peer| {
            let (pid, uid) = (peer.pid, peer.uid);
            Listens::Supervisor { pid, uid }
        }),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Listens::Nobody,
        Err(_) => Listens::NotKnown,
    }
}

fn takes_long(request: &Request) -> bool {
    match request {
        Request::Settle | Request::Detach { .. } | Request::Set { .. } => true,
        Request::Hello | Request::Ps | Request::Watch => false,
    }
}

fn put(session: &Living, request: &Request) -> io::Result<(Answer, BufReader<UnixStream>)> {
    let asked = send(session, request)?;
    wait_for_answer(&asked)?;
    answer(asked)
}

/// Waits for an answer for as long as whoever listened runs at times.
fn wait_for_answer(asked: &UnixStream) -> io::Result<()> {
    // Of one in another pid namespace nothing is seen: it is taken to stand still.
    let supervisor = socket::peer(asked).map_or(0, |peer| peer.pid);
    let begun = Instant::now();
    let (mut ran, mut ran_at) = (process::switches(supervisor), begun);
    while !wait::any(&[(asked.as_fd(), For::Input)], LOOK).contains(&true) {
        let now = process::switches(supervisor);
        if now != ran || process::is_runnable(supervisor) {
            (ran, ran_at) = (now, Instant::now());
        }
        let is_late = ran_at.elapsed() >= SHORT_PATIENCE || begun.elapsed() >= BUSY_PATIENCE;
        let stands_still = ran_at.elapsed() > LOOK * 2 && process::is_stopped(supervisor);
        if is_late || stands_still {
            return Err(io::ErrorKind::WouldBlock.into());
        }
    }
    Ok(())
}

/// What is said where [`has_ended`].
pub const UNANSWERED: &str = "it ended before it had answered";

/// Whether an error of [`ask`] says that the session ended, or was killed, before it had answered.
#[must_use]
pub fn has_ended(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    [
        BrokenPipe,
        ConnectionRefused,
        ConnectionReset,
        UnexpectedEof,
    ]
    .contains(&e.kind())
}

fn send(session: &Living, request: &Request) -> io::Result<UnixStream> {
    let (path, _folder) = socket_in(&memory_of(&session.dir))?;
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(SHORT_PATIENCE))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    Ok(stream)
}

fn answer(from: UnixStream) -> io::Result<(Answer, BufReader<UnixStream>)> {
    let mut line = String::new();
    let mut rest = BufReader::with_capacity(1 << 18, from);
    if rest.read_line(&mut line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, UNANSWERED));
    }
    let answer = serde_json::from_str(&line);
    let answer = answer.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok((answer, rest))
}
