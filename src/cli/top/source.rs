//! Where `top` gets its figures: a recording that is being made, read by a thread of its own, and
//! the session itself, asked once a second by another; or the kernel, in place of both.
//!
//! Promise: whoever looks never waits for either. A connection that breaks while the session lives
//! is made again; a recording on disk is read from where it ends now.

use super::PURPOSE;
use crate::cli::requesters;
use crate::cli::set::stands_still;
use crate::record::kernel::{Recording, Then};
use crate::record::sink::{self, now_ns, Sink};
use crate::session::control::{ask, watch, Answer, Living, Request};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use synclater_account::ps::PsSession;
use synclater_bpf::Filter;
use synclater_recording::analysis::live::{Live, Setup};
use synclater_recording::record::read::Stream;
use synclater_recording::record::table::Table;
use synclater_recording::record::tail::tail;
use synclater_sys::lock::lock;
use synclater_text::message::Trouble;

/// How late a connection tells of requests, and a file.
const LAG: Duration = Duration::from_millis(500);
const LAG_OF_FILE: Duration = Duration::from_millis(1500);
/// A recording grows each second, if only by the machine's figures.
const GROWS: Duration = Duration::from_secs(5);
/// How often a file is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often the session is asked.
const ASK: Duration = Duration::from_secs(1);
/// The figures span so long where the interval is shorter.
const SPAN: Duration = Duration::from_secs(5);

/// How often the kernel's requests are passed on, and the memory in which they wait.
const EVERY: Duration = Duration::from_millis(200);
const RING_BYTES: usize = 16 << 20;

const AS_IT_WAS: &str = "the session is as it was";

/// Where batches come from.
enum Source {
    /// The session records for us alone.
    Connection(Box<dyn Read + Send>),
    /// It is being recorded into a file.
    File(Follow),
}

/// What is watched.
enum Target {
    Session(Living),
    /// Every process of the machine, or those that are named in words.
    Machine(String),
}

/// What the threads have found out.
#[derive(Default)]
struct SourceState {
    session: Option<PsSession>,
    /// The session has not answered since.
    silent_since: Option<Instant>,
    /// Why there are no figures at the moment.
    note: Option<String>,
    /// What the session said to a command.
    answer: Option<String>,
}

/// What all threads know.
struct State {
    target: Target,
    live: Mutex<Live>,
    told: Mutex<SourceState>,
    /// Whether something was told since it was last looked at.
    news: AtomicBool,
    over: AtomicBool,
}

/// A session that is being watched, or the machine.
#[derive(Clone)]
pub struct Watched(Arc<State>);

impl Watched {
    /// Watches a session in intervals of a length; `spanning` several where they are short.
    ///
    /// # Errors
    /// A [`Trouble`] where it refuses or does not answer.
    pub fn begin(session: Living, interval: Duration, spanning: bool) -> Result<Watched, Trouble> {
        let (source, lag) = match open(&session) {
            Ok(Source::File(file)) => (Source::File(file), LAG_OF_FILE),
            Ok(connection) => (connection, LAG),
            Err(Closed::Refused(why)) => {
                return Err(cannot_watch(&session, why, "end the other `synclater top`"));
            }
            Err(Closed::Failed(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                let what = format!("cannot watch session {}", session.id);
                return Err(stands_still(&session, what));
            }
            Err(Closed::Failed(_)) if !session.dir.exists() => {
                return Err(cannot_watch(
                    &session,
                    "it has ended".into(),
                    "synclater ps",
                ));
            }
            Err(Closed::Failed(e)) => {
                let try_ = "synclater ps; a stopped supervisor does not answer";
                return Err(cannot_watch(&session, e.to_string(), try_));
            }
        };
        let (asked, read) = (session.clone(), session.clone());
        let watched = Watched::new(Target::Session(session), setup(interval, spanning, lag));
        let (asker, reader) = (watched.0.clone(), watched.0.clone());
        std::thread::spawn(move || asker.keep_asking(&asked));
        std::thread::spawn(move || reader.keep_reading(&read, source));
        Ok(watched)
    }

    /// Watches what the kernel sees of those that the filter leaves, as above; `whose` says in
    /// words who they are.
    ///
    /// # Errors
    /// A [`Trouble`] where it cannot be asked.
    pub fn kernel(
        filter: &Filter,
        whose: String,
        interval: Duration,
        spanning: bool,
    ) -> Result<Watched, Trouble> {
        let engine = requesters::engine(filter, RING_BYTES, PURPOSE)?;
        let (ours, theirs) = UnixStream::pair().map_err(cannot_watch_machine)?;
        let header = sink::header("", &[], "now", "kernel");
        let file = File::from(std::os::fd::OwnedFd::from(theirs));
        let sink = Sink::begin(file, &header, EVERY).map_err(cannot_watch_machine)?;
        let watched = Watched::new(Target::Machine(whose), setup(interval, spanning, LAG));
        let (recorder, reader) = (watched.0.clone(), watched.0.clone());
        std::thread::spawn(move || recorder.keep_recording(Recording::new(engine, sink)));
        std::thread::spawn(move || reader.read_all(ours));
        Ok(watched)
    }

    fn new(target: Target, setup: Setup) -> Watched {
        Watched(Arc::new(State {
            live: Mutex::new(Live::new(setup, now_ns())),
            told: Mutex::default(),
            news: AtomicBool::new(false),
            over: AtomicBool::new(false),
            target,
        }))
    }

    /// Closes the intervals that are over; whether there was one.
    pub fn advance(&self) -> bool {
        lock(&self.0.live).advance(now_ns()) > 0
    }

    /// The figures as they are now.
    pub fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.0.live)
    }

    /// Whether the session has told anything since this was asked last.
    pub fn has_news(&self) -> bool {
        self.0.news.swap(false, SeqCst)
    }

    /// The session as it was when it answered last.
    pub fn session(&self) -> Option<PsSession> {
        lock(&self.0.told).session.clone()
    }

    /// What is wrong at the moment, in words.
    pub fn note(&self) -> Option<String> {
        let told = lock(&self.0.told);
        let silent = told.silent_since.map(|since| {
            let seconds = since.elapsed().as_secs();
            format!("the session has not answered for {seconds} s")
        });
        silent.or_else(|| told.note.clone())
    }

    /// What the session said to a command, once.
    pub fn answer(&self) -> Option<String> {
        lock(&self.0.told).answer.take()
    }

    /// The session's name.
    pub fn id(&self) -> Option<&str> {
        match &self.0.target {
            Target::Session(session) => Some(&session.id),
            Target::Machine(_) => None,
        }
    }

    /// Who is watched where it is no session, in words.
    pub fn machine(&self) -> Option<&str> {
        match &self.0.target {
            Target::Session(_) => None,
            Target::Machine(whose) => Some(whose),
        }
    }

    /// Whether the session has ended, or the kernel tells no more.
    pub fn is_over(&self) -> bool {
        self.0.over.load(SeqCst)
    }

    /// Asks the session for something, in the background.
    pub fn command(&self, request: Request) {
        let state = self.0.clone();
        std::thread::spawn(move || {
            let Target::Session(session) = &state.target else {
                return;
            };
            let answer = match ask(session, &request) {
                Ok(Answer::Done { said }) => said,
                Ok(Answer::Lost { why }) => why,
                Ok(Answer::Refused { why, .. }) => format!("refused: {why}"),
                Ok(_) => "it answered another question".into(),
                Err(e) => format!("no answer: {e}"),
            };
            lock(&state.told).answer = Some(answer);
            state.news.store(true, SeqCst);
        });
    }
}

fn cannot_watch(session: &Living, why: String, try_: &str) -> Trouble {
    let what = format!("cannot watch session {}", session.id);
    Trouble::new(what, why, try_, AS_IT_WAS)
}

fn cannot_watch_machine(e: io::Error) -> Trouble {
    PURPOSE.cannot("the machine", e.to_string(), "try again")
}

/// Intervals of a length, and how many of them are looked at together.
fn setup(interval: Duration, spanning: bool, lag: Duration) -> Setup {
    let window = SPAN.as_nanos().div_ceil(interval.as_nanos().max(1));
    Setup {
        interval_ns: i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX),
        window: if spanning {
            window.clamp(1, 5) as usize
        } else {
            1
        },
        lag_ns: i64::try_from(lag.as_nanos()).unwrap_or(0),
    }
}

/// Why there is nothing to read.
enum Closed {
    /// The session says so.
    Refused(String),
    /// It did not answer, or the file cannot be read.
    Failed(io::Error),
}

impl From<io::Error> for Closed {
    fn from(e: io::Error) -> Closed {
        Closed::Failed(e)
    }
}

fn open(session: &Living) -> Result<Source, Closed> {
    match watch(session)? {
        (Answer::Watching { recording: None }, rest) => Ok(Source::Connection(Box::new(rest))),
        (
            Answer::Watching {
                recording: Some(path),
            },
            _,
        ) => Ok(Source::File(Follow::begin(&path)?)),
        (Answer::Refused { why, .. }, _) => Err(Closed::Refused(why)),
        _ => Err(Closed::Refused("it answered another question".into())),
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    fn keep_reading(&self, session: &Living, first: Source) {
        let mut source = Some(first);
        while !self.is_over() {
            if let Some(source) = source.take() {
                let ended = match source {
                    Source::Connection(input) => self.read(&session.id, input),
                    Source::File(follow) => self.read(&session.id, follow),
                };
                self.note(ended.err());
                self.look_for_end(session);
            }
            std::thread::sleep(LOOK);
            match open(session) {
                _ if self.is_over() => {}
                Ok(opened) => {
                    self.note(None);
                    source = Some(opened);
                }
                Err(Closed::Refused(why)) => {
                    self.note(Some(format!("no figures: {why}")));
                    std::thread::sleep(ASK);
                }
                Err(Closed::Failed(e)) => {
                    self.note(Some(format!("no figures: {e}")));
                    self.look_for_end(session);
                }
            }
        }
    }

    /// Has the kernel's requests recorded, as long as anybody looks.
    fn keep_recording(&self, recording: Recording) {
        let ended = recording.run(|| {
            if self.is_over() {
                Then::End
            } else {
                Then::GoOn
            }
        });
        if let (false, Err(e)) = (self.is_over(), ended) {
            self.note(Some(format!("the kernel tells no more: {e}")));
        }
        self.over.store(true, SeqCst);
    }

    /// Reads what is recorded there.
    fn read_all(&self, input: impl Read) {
        if let Err(why) = self.read("", input) {
            self.note(Some(why));
        }
        self.over.store(true, SeqCst);
    }

    /// Reads until there is no more; the error says why, where it is not the session's end.
    fn read(&self, session: &str, input: impl Read) -> Result<(), String> {
        let mut stream = Stream::open(input).map_err(|e| format!("no figures: {e}"))?;
        if stream.header().session != session {
            return Err("no figures: the file is of another session".into());
        }
        let header = stream.header().clone();
        while let Some(batch) = stream.next_batch() {
            let table = Table::of_batch(&header, &batch);
            lock(&self.live).add(&table, now_ns());
            if table.is_whole() || self.is_over() {
                break;
            }
        }
        Ok(())
    }

    fn note(&self, note: Option<String>) {
        lock(&self.told).note = note;
        self.news.store(true, SeqCst);
    }

    fn keep_asking(&self, session: &Living) {
        while !self.is_over() {
            match ask(session, &Request::Ps) {
                Ok(Answer::Session { session: now }) => {
                    let mut told = lock(&self.told);
                    let another = told.session.as_ref().is_some_and(|s| s.pid != now.pid);
                    if another {
                        // Names of sessions come back.
                        self.over.store(true, SeqCst);
                    } else {
                        told.session = Some(*now);
                        told.silent_since = None;
                    }
                }
                Ok(_) => {}
                Err(_) => {
                    lock(&self.told).silent_since.get_or_insert(Instant::now());
                    self.look_for_end(session);
                }
            }
            self.news.store(true, SeqCst);
            let asked = Instant::now();
            while asked.elapsed() < ASK && !self.is_over() {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// The session is over where nobody can be asked any more.
    fn look_for_end(&self, session: &Living) {
        let connected = crate::session::control::is_there(session);
        if !connected {
            self.over.store(true, SeqCst);
        }
    }
}

/// A recording that grows, from where it ends now. At its end it waits for more.
struct Follow {
    file: BufReader<File>,
    /// What is to be read before what follows.
    needed: VecDeque<Range<u64>>,
    next: u64,
}

impl Follow {
    fn begin(path: &str) -> io::Result<Follow> {
        let meta = std::fs::metadata(path).map_err(|e| named(path, e))?;
        if !meta.is_file() {
            let why = "it is no file, and can be read but once";
            return Err(named(path, io::Error::other(why)));
        }
        let file = File::open(path).map_err(|e| named(path, e))?;
        let mut file = BufReader::with_capacity(1 << 16, file);
        let tail = tail(&mut file).map_err(|e| named(path, e))?;
        Ok(Follow {
            file,
            needed: tail.needed.into(),
            next: tail.next,
        })
    }

    /// Reads from a place, at most so many bytes.
    fn read_at(&mut self, at: u64, to: &mut [u8], most: u64) -> io::Result<usize> {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(to.len());
        if self.file.stream_position()? != at {
            self.file.seek(SeekFrom::Start(at))?;
        }
        self.file.read(&mut to[..most])
    }
}

/// The error with the name of the file that it is about.
fn named(path: &str, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{path}: {e}"))
}

impl Read for Follow {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if let Some(range) = self.needed.front().cloned() {
            let n = self.read_at(range.start, to, range.end - range.start)?;
            let rest = range.start + n as u64..range.end;
            self.needed.pop_front();
            if n > 0 && !rest.is_empty() {
                self.needed.push_front(rest);
            }
            return Ok(n);
        }
        let waiting = Instant::now();
        loop {
            let n = self.read_at(self.next, to, u64::MAX)?;
            self.next += n as u64;
            if n > 0 || to.is_empty() || waiting.elapsed() > GROWS {
                return Ok(n);
            }
            std::thread::sleep(LOOK);
        }
    }
}
