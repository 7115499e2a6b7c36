//! The process that traces: everything that stops is attended to and goes on.
//!
//! Promise: nothing is waited for longer than ten seconds: then the kernel ends us, and lets go of
//! all. It ends when the supervisor does.

use super::begun::FollowOutcome;
use super::start::Start;
use super::{FollowPlan, How, News, LONGEST};
use crate::reach::attach::tracer::{self, undisturb};
use crate::reach::status;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use synclater_sys::ptrace::{Next, Stop, Thread};
use synclater_sys::wait::{self, For};
use synclater_sys::{process, signal, socket};

/// Has the tracer look at its door: SIGUSR1.
pub const RING: i32 = 10;

/// No program takes longer to be seen to: what would, waits for one that waits for us (a file
/// system that a traced process serves), and the kernel lets go of all when we end.
const LONGEST_LOOK: u32 = 10;

/// How often it looks at its door at least.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Bytes by which a process is asked for that runs already: its number, how, when it began.
pub const ASKING: usize = 13;

/// News that the supervisor has not taken yet, at most: it may be stopped.
const MOST_NEWS: usize = 10_000;

/// What is known of a thread.
#[derive(Clone, Default)]
struct Tracee {
    /// Whether its process is only watched.
    watched: bool,
    /// Where it will stop when the libraries of its program are there.
    ahead: Option<Range<u64>>,
    /// What was told last of its process.
    told: Option<How>,
}

/// Everything that is traced.
pub struct Tracees {
    start: Start,
    news: OwnedFd,
    door: OwnedFd,
    known: HashMap<u32, Tracee>,
    untold: VecDeque<News>,
    /// Whether anybody was traced since that was last told.
    has_some: bool,
    is_done: bool,
}

impl Tracees {
    /// Nothing is traced yet.
    #[must_use]
    pub fn new(plan: FollowPlan, news: OwnedFd, door: OwnedFd) -> Tracees {
        Tracees {
            start: Start::new(plan),
            news,
            door,
            known: HashMap::new(),
            untold: VecDeque::new(),
            has_some: false,
            is_done: false,
        }
    }

    /// Until the supervisor, process `parent`, ends; the status for a job.
    pub fn tend(mut self, parent: u32) -> i32 {
        process::leave_session();
        process::set_name(c"synclater-trace");
        process::be_punctual();
        signal::let_interrupt(RING);
        signal::let_alarm_end();
        self.is_done = !process::end_with_parent(parent);
        let mut looked = Instant::now();
        while !self.is_done {
            let patience = match Thread::next() {
                Next::Thread(thread) => {
                    signal::end_after(LONGEST_LOOK);
                    self.attend(thread);
                    signal::end_after(0);
                    // Where there is always another one, nobody is heard who rings.
                    if looked.elapsed() < BETWEEN_LOOKS {
                        continue;
                    }
                    Duration::ZERO
                }
                Next::Interrupted => Duration::ZERO,
                Next::Nobody => {
                    if std::mem::take(&mut self.has_some) {
                        self.tell(News::Nobody);
                    }
                    self.tell_rest();
                    let is_told = self.untold.is_empty();
                    Duration::from_millis(if is_told { 3_600_000 } else { 50 })
                }
            };
            let fds = [
                (self.door.as_fd(), For::Input),
                (self.news.as_fd(), For::Input),
            ];
            // Of a socket whose other end is closed, poll(2) says so for good.
            let [asked, over] = wait::any(&fds, patience)[..] else {
                continue;
            };
            if asked {
                self.answer_door();
            }
            self.is_done = over;
            looked = Instant::now();
        }
        0
    }

    /// Traces whoever asks for it, and whom the supervisor asks for.
    fn answer_door(&mut self) {
        let mut message = [0; 16];
        let (n, _) = match socket::receive(&self.door, &mut message) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => (0, Vec::new()),
        };
        let pid = u32::from_ne_bytes(message[..4].try_into().unwrap_or_default());
        match n {
            4 => {
                let errno = match Thread::seize_all(pid) {
                    Ok(_) => 0,
                    Err(e) => {
                        let why = tracer::why_refused(pid, &e);
                        self.tell(News::Refused { why });
                        e.raw_os_error().unwrap_or(1)
                    }
                };
                self.has_some |= errno == 0;
                let _ = socket::send(&self.door, &errno.to_ne_bytes(), &[]);
            }
            ASKING => {
                let began = u64::from_ne_bytes(message[5..ASKING].try_into().unwrap_or_default());
                let why = self.take(pid, began, message[4] == 0).err();
                self.tell(News::Taken { pid, began, why });
            }
            _ => {
                // Closed: a socket that nobody asks at takes its place.
                if let Ok(other) = self.news.try_clone() {
                    self.door = other;
                }
            }
        }
    }

    /// Traces every thread of the process from now on that has this number and began then; why not,
    /// in no words where it is gone.
    fn take(&mut self, pid: u32, began: u64, only_watched: bool) -> Result<(), String> {
        loop {
            let mut fresh = 0;
            let threads = tracer::threads_of(pid);
            if process::began(pid) != Some(began) {
                return Err(String::new());
            }
            for &tid in &threads {
                match Thread::seize_all(tid) {
                    Ok(_) => fresh += 1,
                    // Begun by one that is traced already, or taken before.
                    Err(_) if status::tracer_of(pid) == std::process::id() => {}
                    Err(e) if tid == pid => return Err(tracer::why_refused(pid, &e)),
                    Err(_) => {}
                }
                self.known.entry(tid).or_default().watched = only_watched;
            }
            self.has_some |= fresh > 0;
            if process::began(pid) != Some(began) {
                // Another has its number, since a moment ago: what that executes is looked at.
                for tid in threads {
                    self.known.entry(tid).or_default().watched = true;
                }
                return Err(String::new());
            }
            if fresh == 0 {
                return Ok(());
            }
        }
    }

    fn tell(&mut self, news: News) {
        if self.untold.len() < MOST_NEWS {
            self.untold.push_back(news);
        }
        self.tell_rest();
    }

    /// Tells what there is room for.
    fn tell_rest(&mut self) {
        while let Some(news) = self.untold.front() {
            let text = serde_json::to_vec(news).unwrap_or_default();
            if text.len() <= LONGEST && socket::send(&self.news, &text, &[]).is_err() {
                return;
            }
            self.untold.pop_front();
        }
    }

    fn attend(&mut self, mut thread: Thread) {
        let tid = thread.tid();
        match thread.stop() {
            None => {}
            Some(Stop::Gone) => self.forget(tid),
            Some(Stop::Group(_)) => thread.resume(),
            Some(Stop::Made(child)) => {
                let as_its_maker = self.made_by(tid);
                self.known.entry(child).or_insert(as_its_maker);
                thread.go();
            }
            Some(Stop::Interrupted) => {
                if !self.known.contains_key(&tid) {
                    // It stops sooner than its maker, which stands still until that is looked at.
                    let maker = process::maker(tid).unwrap_or(0);
                    let as_its_maker = self.made_by(maker);
                    self.known.insert(tid, as_its_maker);
                }
                thread.go();
            }
            Some(Stop::Signal(_)) if self.has_arrived(&thread) => {
                thread.keep_signal();
                let (thread, begun, gone) = self.start.arrive(thread);
                gone.into_iter().for_each(|tid| self.forget(tid));
                self.go_on(tid, thread, begun);
            }
            Some(Stop::Signal(_)) => {
                // One that is ignored disturbs nobody who is not traced.
                let _ = undisturb(&thread, true);
                thread.go();
            }
            Some(Stop::Executed(former)) => {
                if former != tid {
                    self.forget(former);
                }
                let known = self.known.entry(tid).or_default();
                known.ahead = None;
                if std::mem::take(&mut known.watched) && !self.start.is_meant(tid) {
                    self.forget(tid);
                    return thread.release();
                }
                let (thread, begun) = self.start.begin(thread);
                self.go_on(tid, thread, begun);
            }
        }
    }

    fn forget(&mut self, tid: u32) {
        self.known.remove(&tid);
    }

    /// What is known of whatever `maker` makes. Of one that nobody knows any more, what it executes
    /// is looked at before it is followed.
    fn made_by(&self, maker: u32) -> Tracee {
        let unknown = Tracee {
            watched: true,
            ..Tracee::default()
        };
        self.known.get(&maker).cloned().unwrap_or(unknown)
    }

    /// Whether a thread stops because the libraries of its program are there.
    fn has_arrived(&mut self, thread: &Thread) -> bool {
        const SIGURG: i32 = 23;
        let Some(known) = self.known.get_mut(&thread.tid()) else {
            return false;
        };
        let Some(range) = &known.ahead else {
            return false;
        };
        let is_it = thread.stop() == Some(Stop::Signal(SIGURG))
            && thread.registers().is_ok_and(|r| range.contains(&r.ip()));
        if is_it {
            known.ahead = None;
        }
        is_it
    }

    /// Tells what became of a program, and lets it go on. In this order: it may end at once, and
    /// the supervisor with it.
    fn go_on(&mut self, pid: u32, thread: Option<Thread>, begun: FollowOutcome) {
        match &begun {
            // It is gone, or is let go of.
            _ if thread.is_none() => self.forget(pid),
            FollowOutcome::Left { .. } => self.forget(pid),
            FollowOutcome::Reached(how) => {
                let told = self.known.entry(pid).or_default().told.replace(*how);
                if told.unwrap_or(How::Launch) == *how {
                    return thread.into_iter().for_each(|mut thread| thread.resume());
                }
            }
            FollowOutcome::Ahead(range) => {
                self.known.entry(pid).or_default().ahead = Some(range.clone());
            }
            FollowOutcome::Missed { .. } => self.known.entry(pid).or_default().told = None,
        }
        let is_left = matches!(begun, FollowOutcome::Left { .. });
        match begun {
            FollowOutcome::Reached(how) => self.tell(News::Reached { pid, how }),
            FollowOutcome::Ahead(_) => {}
            FollowOutcome::Left { exe, why } | FollowOutcome::Missed { exe, why } => {
                self.tell(News::Missed { pid, exe, why });
            }
        }
        match thread {
            Some(thread) if is_left => thread.release(),
            Some(mut thread) => thread.resume(),
            None => {}
        }
    }
}
