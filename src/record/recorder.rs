//! The recorder: a process of its own that drains the rings of a session into a file.
//!
//! Promise: victims never wait for it, nor does the supervisor before the end. What it could not
//! keep up with is counted by the victims, per process, and told in the recording. When the
//! supervisor dies, the recording is ended in order; when the recorder is killed, the file reads up
//! to its last whole batch.
//!
//! What it does not do: it decides nothing, and settles nothing.

use super::drain::Drain;
use super::messages::{number, Before, END, ESCAPED, GO, MESSAGE_MAX, SETTLE, SETTLED};
use super::rings::SharedRings;
use super::sink::Sink;
use crate::session::shared::Shared;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::escape::{alike, Escape};
use synclater_recording::record::header::Header;
use synclater_sys::job::{self, Job};
use synclater_sys::{process, socket, wait};

/// How long its end may take: it writes to a disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where it writes to somebody who may not read.
const SHORT_PATIENCE: Duration = Duration::from_millis(50);

/// So many kinds of escape are told: they are what differs.
const ESCAPES_MAX: usize = 100;
/// How long it may take to hear of one.
const HEARS_WITHIN: Duration = Duration::from_secs(2);
/// Its answers: a letter and three numbers.
const DONE: u8 = b'D';
const FAILED: u8 = b'F';

/// What a recording came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests in it.
    pub requests: u64,
    /// Requests that were lost.
    pub lost: u64,
    /// 0, or the errno that ended it.
    pub errno: i32,
}

/// How a recording is made.
pub struct Plan {
    /// What it says of itself.
    pub header: Header,
    /// A number that no other recording of the session has; not 0. Victims tell again what their
    /// descriptors are when it changes.
    pub number: u32,
    /// The longest time that a row waits to be written.
    pub every: Duration,
    /// Whether it goes before the victims where there are too few processors for all.
    pub hurries: bool,
}

/// The supervisor's end.
pub struct Recorder {
    job: Job,
    socket: OwnedFd,
    outcome: Option<Outcome>,
}

fn message(letter: u8, fs: u8, ticks: u64, errno: i32) -> [u8; 16] {
    let mut m = [0; 16];
    (m[0], m[1]) = (letter, fs);
    m[4..8].copy_from_slice(&errno.to_le_bytes());
    m[8..].copy_from_slice(&ticks.to_le_bytes());
    m
}

impl Recorder {
    /// Starts it. From now on victims write events.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn start(
        shared: &'static Shared,
        rings: &'static SharedRings,
        file: File,
        plan: Plan,
    ) -> io::Result<Recorder> {
        let (ours, theirs) = socket::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        rustix::io::ioctl_fionbio(&theirs, true)?;
        let before = Before::now(shared, rings);
        let number = plan.number;
        let job = Job::start(move || {
            let mut kept = job::keep_only(&[theirs.as_fd(), file.as_fd()]);
            // `kept` owns both now.
            std::mem::forget((theirs, file));
            let (file, socket) = (kept.pop(), kept.pop());
            let (Some(file), Some(socket)) = (file, socket) else {
                return 0;
            };
            process::leave_session();
            process::set_name(c"synclater-rec");
            if plan.hurries {
                // It has to keep up with victims that use every processor.
                let _ = rustix::process::setpriority_process(None, -10);
            }
            record(shared, rings, socket, File::from(file), &plan, before)
        })?;
        let page = shared.page();
        page.ring_cells
            .store(u32::try_from(rings.cells()).unwrap_or(0), SeqCst);
        page.record.store(number, SeqCst);
        Ok(Recorder {
            job,
            socket: ours,
            outcome: None,
        })
    }

    fn tell(&self, message: &[u8; 16]) {
        let _ = socket::send(&self.socket, message, &[]);
    }

    /// The command was started.
    pub fn go(&self) {
        self.tell(&message(GO, 0, 0, 0));
    }

    /// A settle of row `fs` of the debts begins at `ticks`.
    pub fn settle_begins(&self, fs: usize, ticks: u64) {
        let fs = u8::try_from(fs).unwrap_or(u8::MAX);
        self.tell(&message(SETTLE, fs, ticks, 0));
    }

    /// A settle of row `fs` ended at `ticks`.
    pub fn settle_ended(&self, fs: usize, ticks: u64, errno: i32) {
        let fs = u8::try_from(fs).unwrap_or(u8::MAX);
        self.tell(&message(SETTLED, fs, ticks, errno));
    }

    /// Who is missing in it, and why it is not known who else is.
    pub fn escaped(&self, all: &[Escape], unknown: Option<&str>) {
        let rest = unknown.map(|why| Escape {
            pid: 0,
            exe: String::new(),
            why: why.to_owned(),
            requests: None,
        });
        let begun = Instant::now();
        for escape in alike(all).into_iter().take(ESCAPES_MAX).chain(rest) {
            let mut message = vec![ESCAPED];
            message.extend(serde_json::to_vec(&escape).unwrap_or_default());
            while message.len() <= MESSAGE_MAX
                && socket::send(&self.socket, &message, &[])
                    .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
                && begun.elapsed() < HEARS_WITHIN
            {
                std::thread::sleep(HEARS_WITHIN / 1000);
            }
        }
    }

    /// Whether the recording has ended before it was told to; tells so once.
    pub fn failure(&mut self) -> Option<Outcome> {
        if self.outcome.is_some() {
            return None;
        }
        self.listen();
        if self.outcome.is_none() && self.job.finished().is_some() {
            self.listen();
            self.outcome = self.outcome.or(Some(Outcome {
                errno: rustix::io::Errno::OWNERDEAD.raw_os_error(),
                ..Outcome::default()
            }));
        }
        self.outcome
    }

    fn listen(&mut self) {
        let mut m = [0; 24];
        while let Ok((24, _)) = socket::receive(&self.socket, &mut m) {
            let failed = m[0] == FAILED;
            self.outcome = Some(Outcome {
                requests: number(&m[8..16]),
                lost: number(&m[16..24]),
                errno: if failed {
                    i32::from_le_bytes([m[4], m[5], m[6], m[7]])
                } else {
                    0
                },
            });
        }
    }

    /// Ends the recording and waits until it is written.
    pub fn end(&mut self, shared: &Shared, rings: &SharedRings) -> Outcome {
        self.tell_end(shared, rings, PATIENCE);
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        self.failure().unwrap_or(Outcome {
            errno: rustix::io::Errno::TIMEDOUT.raw_os_error(),
            ..Outcome::default()
        })
    }

    /// Ends a recording that somebody reads, whether he does or not.
    pub fn stop(self, shared: &Shared, rings: &SharedRings) {
        self.tell_end(shared, rings, SHORT_PATIENCE);
        // Where it writes to somebody who does not read: it does nothing else then, so no ring is
        // left half read.
        self.job.end();
    }

    /// Switches recording off and gives the recorder so much time to end by itself.
    fn tell_end(&self, shared: &Shared, rings: &SharedRings, patience: Duration) {
        shared.page().record.store(0, SeqCst);
        if self.outcome.is_some() {
            return;
        }
        self.tell(&message(END, 0, 0, 0));
        rings.head().bell.fetch_add(1, SeqCst);
        wait::wake(&rings.head().bell);
        let _ = wait::any(&[(self.job.as_fd(), wait::For::Input)], patience);
    }
}

impl AsFd for Recorder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.job.as_fd()
    }
}

/// The recorder's life; its exit status.
fn record(
    shared: &'static Shared,
    rings: &'static SharedRings,
    socket: OwnedFd,
    file: File,
    plan: &Plan,
    before: Before,
) -> i32 {
    let sink = match Sink::begin(file, &plan.header, plan.every) {
        Ok(sink) => sink,
        Err(e) => {
            let _ = socket::send(&socket, &answer(FAILED, errno_of(&e), 0, 0), &[]);
            return 0;
        }
    };
    let never = plan.header.until == "never";
    let mut drain = Drain::new(shared, rings, socket, sink, never, before);
    let ended = drain.run();
    let was_left = drain.was_left();
    let (sink, socket) = drain.into_parts();
    let (requests, lost) = (sink.requests, sink.lost);
    let ended = ended.and_then(|()| {
        if was_left {
            sink.break_off()
        } else {
            sink.end()
        }
    });
    let m = match ended {
        Ok(()) => answer(DONE, 0, requests, lost),
        Err(e) => {
            shared.page().record.store(0, SeqCst);
            answer(FAILED, errno_of(&e), requests, lost)
        }
    };
    let _ = socket::send(&socket, &m, &[]);
    0
}

/// An answer of the recorder.
fn answer(letter: u8, errno: i32, requests: u64, lost: u64) -> [u8; 24] {
    let mut m = [0; 24];
    m[0] = letter;
    m[4..8].copy_from_slice(&errno.to_le_bytes());
    m[8..16].copy_from_slice(&requests.to_le_bytes());
    m[16..].copy_from_slice(&lost.to_le_bytes());
    m
}

/// The number of an error; `EIO` of one that has none.
fn errno_of(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(5)
}
