//! Follow: a process of ours traces the command and all that it starts, and puts the shim back
//! where a program would begin without it.
//!
//! Promise: a program is changed only between its execution and its first instruction, and never so
//! that it loses rights that it would have gained. Nothing depends on the tracer: when it is
//! killed, the kernel lets go of every process, and what was reached stays so. System calls and
//! forks cost nothing measurable; each signal stops its thread for the tracer.
//!
//! Map: [`Follower`] is what the supervisor sees of it; `tracees` is the process that traces;
//! `start` decides what a `program` needs, and `begun` is what became of it; `rights` sees to those
//! that gain some.

mod begun;
mod program;
mod rights;
mod start;
mod tracees;

use super::attach::Payload;
use rustix::net::sockopt::Timeout;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use synclater_account::escape::Escape;
use synclater_policy::glob::Glob;
use synclater_sys::job::{self, Job};
use synclater_sys::wait::{self, For};
use synclater_sys::{process, socket};
use tracees::Tracees;

/// What programs find the shim by.
pub struct Environment {
    /// The library, as `LD_PRELOAD` names it.
    pub library: PathBuf,
    /// The session's page.
    pub page: PathBuf,
    /// The pages of the session and of those around it, as `SYNCLATER_PAGE` holds them.
    pub pages: OsString,
    /// The session's supervisor, from which programs descend.
    pub supervisor: u32,
}

/// How programs are reached.
pub enum Manner {
    /// By their environment, where they load a library; else by their sites.
    Environment(Environment),
    /// By their sites, which can be put back. Of what a process starts that is only watched, those
    /// that execute one of these.
    Sites(Vec<Glob>),
}

/// What programs are to begin with.
pub struct FollowPlan {
    /// How.
    pub manner: Manner,
    /// What goes into programs that load no library; why there is none.
    pub payload: Result<Payload, String>,
}

/// How a program was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// It has the library by itself.
    Launch,
    /// It was given the library.
    Follow,
    /// Its system-call sites lead to the gate.
    Sites,
}

impl How {
    /// As `ps` has it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            How::Launch => "launch",
            How::Follow => "follow",
            How::Sites => "sites",
        }
    }
}

/// What the tracer has to tell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum News {
    /// A process executes a program that was reached.
    Reached {
        /// The process.
        pid: u32,
        /// How.
        how: How,
    },
    /// A process executes a program that was not.
    Missed {
        /// The process.
        pid: u32,
        /// The program.
        exe: String,
        /// Why not.
        why: String,
    },
    /// The command cannot be traced.
    Refused {
        /// Why not.
        why: String,
    },
    /// A process that was to be followed is, or is not.
    Taken {
        /// The process.
        pid: u32,
        /// When it began, as it was asked for.
        began: u64,
        /// Why not.
        why: Option<String>,
    },
    /// Nobody is followed any more.
    Nobody,
}

/// How a process that runs already is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// With all that it starts.
    All,
    /// It is only watched: what it starts is followed where it is meant.
    Meant,
}

/// The supervisor's end.
pub struct Follower {
    job: Job,
    news: OwnedFd,
    door: Option<OwnedFd>,
}

/// Bytes of the longest news.
const LONGEST: usize = 8192;

impl Follower {
    /// Starts the tracer; it traces nothing yet.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn start(plan: FollowPlan) -> io::Result<Follower> {
        let (news, to) = socket::pair()?;
        let (door, behind) = socket::pair()?;
        // A child waits at the door.
        for end in [&news, &to, &behind] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let patience = Some(Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&door, Timeout::Recv, patience)?;
        let parent = std::process::id();
        let job = Job::start(move || {
            let mut all = vec![to.as_fd(), behind.as_fd()];
            all.extend(plan.payload.iter().flat_map(Payload::fds));
            // What was kept stays open under the numbers that it has.
            std::mem::forget(job::keep_only(&all));
            Tracees::new(plan, to, behind).tend(parent)
        })?;
        let door = Some(door);
        Ok(Follower { job, news, door })
    }

    /// The tracer's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.job.pid()
    }

    /// Where a process asks to be traced before it executes the command.
    #[must_use]
    pub fn door(&self) -> Option<BorrowedFd<'_>> {
        self.door.as_ref().map(AsFd::as_fd)
    }

    /// Nobody else will ask.
    pub fn close_door(&mut self) {
        self.door = None;
    }

    /// The next news, without waiting.
    #[must_use]
    pub fn news(&self) -> Option<News> {
        let mut buf = [0; LONGEST];
        let (n, _) = socket::receive(&self.news, &mut buf).ok()?;
        serde_json::from_slice(&buf[..n]).ok()
    }

    /// Has the tracer take the process that runs already as number `pid`, and began then (as
    /// `process::began` tells it); [`News::Taken`] says whether it could. Asked twice, it takes it
    /// once.
    pub fn take(&self, pid: u32, began: u64, follow: Follow) {
        let mut message = pid.to_ne_bytes().to_vec();
        message.push(u8::from(follow == Follow::All));
        message.extend(began.to_ne_bytes());
        let sent = self.door().map(|door| socket::send(door, &message, &[]));
        if sent.is_some_and(|sent| sent.is_ok()) {
            let _ = process::kill(self.pid(), tracees::RING);
        }
    }

    /// What is told of a tracer that was killed.
    #[must_use]
    pub fn lost(pid: u32) -> Escape {
        Escape {
            pid,
            exe: "(tracer)".into(),
            why: "it was killed: what is started from then on is not followed".into(),
            requests: None,
        }
    }

    /// Ends the tracer, once it has seen to the thread that it looks at: whoever it traces goes on
    /// alone from then on. One that does not end within two seconds is killed.
    pub fn end(self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        /// What is rung while it does not wait is not heard.
        const RINGS: Duration = Duration::from_millis(5);
        let Follower { job, news, door } = self;
        drop((news, door));
        let begun = Instant::now();
        while job.finished().is_none() {
            if begun.elapsed() > PATIENCE {
                return job.end();
            }
            let _ = process::kill(job.pid(), tracees::RING);
            let _ = wait::any(&[(job.as_fd(), For::Input)], RINGS);
        }
    }

    /// Whether it has ended, which it does by itself only after us.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.job.finished().is_some()
    }
}

impl AsFd for Follower {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}
