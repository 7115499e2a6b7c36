//! The session's recording, where one is made: into a file, or for somebody who watches.
//!
//! Promise: who watches changes nothing but what the recording itself costs. When he goes, or does
//! not read, recording is switched off without a word; the end of the session does not wait for
//! him. One watches at a time: the rings have one reader.

use super::Supervisor;
use crate::record::recorder::{self, Outcome as Recorded, Recorder};
use crate::record::rings::SharedRings;
use crate::record::{out, sink};
use crate::session::control::{Answer, Client};
use crate::supervisor::report;
use crate::voice;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How often somebody who watches is sent what is new.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// Rings for somebody who watches: what is lost is counted, and he sees that it is.
const WATCH_RING_BYTES: usize = 1 << 20;
/// The longest time that a row of a recording on disk waits.
const FILE_EVERY: Duration = Duration::from_secs(1);

/// A recording under way.
pub struct Recording {
    /// The process that writes it.
    pub recorder: Recorder,
    /// Where it goes.
    to: To,
}

/// Where a recording goes.
enum To {
    /// A file, as the user named it.
    File(PathBuf),
    /// Somebody who watches.
    Client(Client),
}

/// The session's recordings.
#[derive(Default)]
pub struct Recordings {
    recording: Option<Recording>,
    pub(super) rings: Option<&'static SharedRings>,
    /// Those that were begun.
    begun: u32,
    /// From how long on other calls are slow, where they are timed.
    pub slower: Option<Duration>,
    recorded: Option<(PathBuf, Recorded)>,
}

impl Recordings {
    /// What tells of the recorder, and whether somebody who watches has hung up.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let Some(recording) = &self.recording else {
            return Vec::new();
        };
        let mut fds = vec![recording.recorder.as_fd()];
        if let To::Client(client) = &recording.to {
            fds.push(client.as_fd());
        }
        fds
    }
}

impl Supervisor {
    /// Everything is recorded into `file` from now on, through rings of `ring_bytes`.
    ///
    /// # Errors
    /// Where there is no memory for the rings, or no process to be had.
    pub fn record(&mut self, file: File, name: PathBuf, ring_bytes: usize) -> std::io::Result<()> {
        let rings = self.rings(ring_bytes)?;
        let recorder = self.start_recorder(rings, file, FILE_EVERY, true)?;
        let to = To::File(name);
        self.recordings.recording = Some(Recording { recorder, to });
        Ok(())
    }

    /// The command was started: what was in the file before may go.
    pub fn recording_goes(&self) {
        if let Some(recording) = &self.recordings.recording {
            recording.recorder.go();
        }
    }

    /// The session's rings, which are made once: victims know no others.
    ///
    /// # Errors
    /// Where there is no memory for them.
    pub fn rings(&mut self, ring_bytes: usize) -> std::io::Result<&'static SharedRings> {
        if let Some(rings) = self.recordings.rings {
            return Ok(rings);
        }
        let memory = &self.session.belongings.memory;
        let rings = SharedRings::create(memory, ring_bytes, self.session.shared.others().len());
        let rings = rings.map_err(|e| {
            let why = format!("no room for its rings in {}: {e}", memory.display());
            std::io::Error::new(e.kind(), format!("{why}; a smaller --ring needs less"))
        })?;
        let rings: &'static SharedRings = Box::leak(Box::new(rings));
        self.recordings.rings = Some(rings);
        Ok(rings)
    }

    fn start_recorder(
        &mut self,
        rings: &'static SharedRings,
        file: File,
        every: Duration,
        hurries: bool,
    ) -> std::io::Result<Recorder> {
        let until = self.session.plan.classes[0].to_string();
        self.recordings.begun = self.recordings.begun.wrapping_add(1).max(1);
        let mut header = sink::header(
            &self.session.plan.id,
            &self.session.plan.command,
            &until,
            "library",
        );
        let slower = self.recordings.slower.map(|slower| slower.as_nanos());
        header.slower_ns = slower.map(|ns| u64::try_from(ns).unwrap_or(u64::MAX));
        let plan = recorder::Plan {
            header,
            number: self.recordings.begun,
            every,
            hurries,
        };
        Recorder::start(self.session.shared, rings, file, plan)
    }

    /// Shows `client` every request from now on, or says where it can read of them.
    pub(super) fn watch(&mut self, mut client: Client) {
        self.look_at_watcher();
        match &self.recordings.recording {
            Some(Recording {
                to: To::File(name), ..
            }) => client.answer(&where_it_is(name)),
            Some(Recording {
                to: To::Client(other),
                ..
            }) => {
                let who = match other.pid() {
                    0 => "somebody in another pid namespace".to_owned(),
                    pid => format!("process {pid}"),
                };
                let why = format!("{who} is watching it already");
                client.answer(&Answer::refused(why));
            }
            None => {
                let rings = match self.rings(WATCH_RING_BYTES) {
                    Ok(rings) => rings,
                    Err(e) => {
                        let why = format!("there is no memory for it: {e}");
                        return client.answer(&Answer::refused(why));
                    }
                };
                // From here on he sees that we hung up.
                let Ok(file) = client.begin_recording() else {
                    return;
                };
                if let Ok(recorder) = self.start_recorder(rings, file, WATCH_EVERY, false) {
                    let to = To::Client(client);
                    self.recordings.recording = Some(Recording { recorder, to });
                }
            }
        }
    }

    pub(super) fn settle_begins(&self, index: usize) {
        if let Some(r) = &self.recordings.recording {
            r.recorder
                .settle_begins(index, self.session.shared.clock.now());
        }
    }

    pub(super) fn settle_ended(&self, index: usize, errno: i32) {
        if let Some(r) = &self.recordings.recording {
            let now = self.session.shared.clock.now();
            r.recorder.settle_ended(index, now, errno);
        }
    }

    /// A recording that fails is told at once, and the command goes on without.
    pub(super) fn look_at_recorder(&mut self) {
        self.look_at_watcher();
        let Some(Recording {
            recorder,
            to: To::File(name),
        }) = &mut self.recordings.recording
        else {
            return;
        };
        let Some(outcome) = recorder.failure().filter(|o| o.errno != 0) else {
            return;
        };
        self.session.shared.page().record.store(0, SeqCst);
        voice::say(&format!("{}\n", trouble(name, &outcome)));
        self.recordings.recorded = Some((name.clone(), outcome));
        self.recordings.recording = None;
    }

    /// Who watched and is gone, or did not read, is forgotten.
    fn look_at_watcher(&mut self) {
        let Some(Recording {
            recorder,
            to: To::Client(client),
        }) = &mut self.recordings.recording
        else {
            return;
        };
        if recorder.failure().is_some() || client.has_gone() {
            self.end_recording();
        }
    }

    /// Ends the recording; says so where that fails.
    pub fn end_recording(&mut self) {
        let (Some(mut r), Some(rings)) = (self.recordings.recording.take(), self.recordings.rings)
        else {
            return;
        };
        let To::File(name) = r.to else {
            r.recorder.stop(self.session.shared, rings);
            return;
        };
        // What is missing in it belongs to it.
        let escaped = report::escapes(self);
        let unknown = self.seen.escapes.unknown_because();
        r.recorder.escaped(&escaped, unknown.as_deref());
        let outcome = r.recorder.end(self.session.shared, rings);
        if outcome.errno != 0 {
            voice::say(&format!("{}\n", trouble(&name, &outcome)));
        }
        self.recordings.recorded = Some((name, outcome));
    }

    /// What the recording came to, once it has ended.
    #[must_use]
    pub fn recorded(&self) -> Option<&(PathBuf, Recorded)> {
        self.recordings.recorded.as_ref()
    }
}

/// Where to read of the requests of a session that is being recorded.
fn where_it_is(name: &std::path::Path) -> Answer {
    let path = std::path::absolute(name).ok();
    match path.as_deref().and_then(std::path::Path::to_str) {
        Some(path) => Answer::Watching {
            recording: Some(path.to_owned()),
        },
        None => Answer::refused("it is being recorded into a file whose name is no text"),
    }
}

fn trouble(name: &std::path::Path, outcome: &Recorded) -> synclater_text::message::Trouble {
    let error = std::io::Error::from_raw_os_error(outcome.errno);
    out::not_whole(name, &error, "the command is not touched")
}
