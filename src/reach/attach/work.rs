//! Attaching and detaching by a process of ours, which traces one other process and ends.
//!
//! Promise: nothing waits for it; what takes too long is given up.

use super::owner::SourceSession;
use super::refusal::Refusal;
use super::tracer::Still;
use super::{left_by, put_in, take_out, target, AttachOutcome, Payload};
use crate::reach::program::Incarnation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use synclater_sys::clock::LeaseClock;
use synclater_sys::job::{self, Job};
use synclater_sys::process;
use synclater_sys::sharing::MemorySurvey;

/// One process being attached or detached, by a process of ours.
pub struct Work {
    job: Job,
    answer: File,
    begun: Instant,
    stood_still: Duration,
}

/// What such a process says at its end.
#[derive(Serialize, Deserialize)]
struct Report {
    told: AttachOutcome,
    stood_still: Duration,
}

/// No work takes longer: whatever it waits for does not come.
const LIMIT: Duration = Duration::from_secs(10);

impl Work {
    /// Begins to attach a process, if it still executes this program, which may have begun a moment
    /// ago where it `is_new`. What others execute may be `known`.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn attach(
        (pid, program): (u32, Incarnation),
        is_new: bool,
        payload: &Payload,
        known: &MemorySurvey,
    ) -> io::Result<Work> {
        Work::begin(payload.fds().collect(), |still| {
            put_in(pid, program, is_new, payload, known, still).unwrap_or_else(Into::into)
        })
    }

    /// Begins to take process `pid` out of a session; one that is in another one is left alone.
    ///
    /// # Errors
    /// As [`Work::attach`].
    pub fn detach(pid: u32, whose: SourceSession, known: &MemorySurvey) -> io::Result<Work> {
        Work::begin(Vec::new(), |still| {
            take_out(pid, whose, known, still).unwrap_or_else(Into::into)
        })
    }

    /// Begins to look which dead session has left process `pid`, if one has.
    ///
    /// # Errors
    /// As [`Work::attach`].
    pub fn look(pid: u32, clock: LeaseClock) -> io::Result<Work> {
        Work::begin(Vec::new(), |_| AttachOutcome::Left {
            session: left_by(pid, clock),
        })
    }

    /// Begins to look whether process `pid` can be attached: [`AttachOutcome::Refused`] where it
    /// cannot. Its memory and its program may keep whoever looks waiting.
    ///
    /// # Errors
    /// As [`Work::attach`].
    pub fn consider(pid: u32) -> io::Result<Work> {
        Work::begin(Vec::new(), |_| match target::look(pid) {
            Ok(_) => AttachOutcome::Left { session: None },
            Err(refusal) => AttachOutcome::Refused { refusal },
        })
    }

    fn begin(
        fds: Vec<BorrowedFd<'_>>,
        work: impl FnOnce(&Still) -> AttachOutcome,
    ) -> io::Result<Work> {
        let (answer, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let job = Job::start(|| {
            process::be_punctual();
            let all: Vec<_> = fds.into_iter().chain([theirs.as_fd()]).collect();
            let kept = job::keep_only(&all);
            let still = Still::default();
            let told = work(&still);
            let stood_still = still.longest();
            let report = Report { told, stood_still };
            let report = serde_json::to_vec(&report).unwrap_or_default();
            let to = all.last().map(|fd| fd.as_fd());
            let done = to.is_some_and(|fd| rustix::io::write(fd, &report).is_ok());
            std::mem::forget(kept);
            i32::from(!done)
        })?;
        let answer = answer.into();
        let begun = Instant::now();
        Ok(Work {
            job,
            answer,
            begun,
            stood_still: Duration::ZERO,
        })
    }

    /// Whether it has kept others waiting.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.begun.elapsed() > Duration::from_secs(1)
    }

    /// Whether it is, or was, given up.
    #[must_use]
    pub fn took_too_long(&self) -> bool {
        self.begun.elapsed() > LIMIT
    }

    /// What became of it, once that is known; the process that did it is gone then.
    pub fn finished(&mut self) -> Option<AttachOutcome> {
        if self.took_too_long() {
            // It may wait for a dead disk, and not die of that at once.
            self.job.kill();
            let why = format!("it could not be looked at for {} s", LIMIT.as_secs());
            let refusal = Refusal::new(why, "look for a dead FUSE or NFS below it");
            return Some(AttachOutcome::Refused { refusal });
        }
        let status = self.job.status()?;
        let mut text = Vec::new();
        let _ = self.answer.read_to_end(&mut text);
        let Ok(Report { told, stood_still }) = serde_json::from_slice(&text) else {
            let why = format!("what traced it ended early (status {status})");
            return Some(AttachOutcome::Busy { why });
        };
        self.stood_still = stood_still;
        Some(told)
    }

    /// The longest time that the process stood still for it, whatever became of it; zero before it
    /// has finished.
    #[must_use]
    pub fn stood_still(&self) -> Duration {
        self.stood_still
    }
}

impl AsFd for Work {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.job.as_fd()
    }
}
