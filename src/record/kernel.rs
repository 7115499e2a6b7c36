//! A recording of what the kernel sees: every process of the machine, or those that are asked for,
//! without a restart and without a library in them.
//!
//! Promise: each request is one row; what the kernel's ring lost is counted, per process. The
//! recording ends in order at a signal, at its time, or with its command.
//!
//! What it does not do: nothing is put off, and callers' code is not told.

use super::places::Places;
use super::sink::Sink;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use synclater_bpf::{BootClock, Engine, Event, Process, Route};
use synclater_recording::record::row::{Name, Names, Row};
use synclater_recording::record::title::role;
use synclater_recording::record::{answered, done, event};

/// How long the kernel's ring is left alone at most.
const ROUND: Duration = Duration::from_millis(100);
/// Processes that are remembered; beyond it all are forgotten at once.
const PROCESSES_MAX: usize = 1 << 16;

/// A process with the names of its executable and command.
type CachedProcess = (Arc<Process>, Name, Name);

/// A recording under way.
pub struct Recording {
    engine: Engine,
    sink: Sink,
    places: Places,
    processes: HashMap<u32, CachedProcess>,
    lost: BTreeMap<u32, u64>,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Go on.
    GoOn,
    /// It is over.
    End,
}

fn failed(e: &synclater_bpf::Error) -> io::Error {
    io::Error::other(e.to_string())
}

impl Recording {
    /// Of what `engine` sees, into `sink`.
    #[must_use]
    pub fn new(engine: Engine, sink: Sink) -> Recording {
        Recording {
            engine,
            sink,
            places: Places::new(),
            processes: HashMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// Records until `look` says that it is over; that is asked ten times a second. Returns how
    /// many requests were recorded, and how many lost.
    ///
    /// # Errors
    /// Those of writing the file; what was written reads up to the last whole batch.
    pub fn run(mut self, mut look: impl FnMut() -> Then) -> io::Result<(u64, u64)> {
        self.sink.go()?;
        loop {
            let then = look();
            if then == Then::GoOn {
                self.engine.poll(ROUND).map_err(|e| failed(&e))?;
            }
            self.drain()?;
            if self.sink.tick()? || then == Then::End {
                if self.sink.renew_names().is_some() {
                    self.processes.clear();
                    self.sink.names_are_new();
                }
                self.count_losses()?;
            }
            if then == Then::End {
                let told = (self.sink.requests, self.sink.lost);
                return self.sink.end().map(|()| told);
            }
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        let clock = BootClock::now();
        let mut events = Vec::new();
        let drained = self.engine.drain(|e| events.push(e));
        drained.map_err(|e| failed(&e))?;
        for e in events {
            let row = self.row(&e, &clock);
            self.sink.request(row)?;
        }
        Ok(())
    }

    fn count_losses(&mut self) -> io::Result<()> {
        let lost = self.engine.lost().map_err(|e| failed(&e))?;
        for (pid, count) in lost {
            let before = self.lost.insert(pid, count).unwrap_or(0);
            if count > before {
                self.sink
                    .lost(Some(pid).filter(|p| *p != 0), count - before)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, e: &Event, clock: &BootClock) -> Row {
        let place = match (e.mount_id, e.device) {
            (Some(id), dev) => Some(self.places.of_mount(
                e.pid,
                id.into(),
                dev.unwrap_or_default(),
            )),
            (None, Some(dev)) => Some(self.places.of_dev(dev)),
            (None, None) => None,
        };
        let (exe, command) = self.who(e);
        let names = self.sink.names();
        let place = place.as_deref();
        let errno = e.errno();
        let queued = e.route == Route::Aio;
        Row {
            event: names.name(event::REQUEST),
            time_ns: clock.utc_ns(e.start_ns),
            duration_ns: e.duration_ns,
            pid: Some(e.pid),
            tid: Some(e.tid),
            uid: Some(e.uid),
            exe,
            command,
            kind: names.name(e.kind.name()),
            fd: e.fd.filter(|fd| *fd >= 0),
            path: path_name(e, names),
            inode: e.inode,
            fstype: name_of(place.map(|p| &*p.fstype).or(e.fstype.as_deref()), names),
            mount: name_of(place.map(|p| &*p.mount), names),
            device: name_of(place.map(|p| &*p.device), names),
            parents: name_of(place.map(|p| &*p.parents), names),
            flags: Some(e.flags).filter(|f| *f != 0),
            result: e.result.map(|r| if r < 0 { -1 } else { r }),
            errno,
            answered: names.name(if queued {
                answered::QUEUED
            } else {
                answered::KERNEL
            }),
            done: names.name(done::REAL),
            dirty: e.dirty,
            ..Row::default()
        }
    }

    fn who(&mut self, e: &Event) -> (Name, Name) {
        let Some(process) = &e.process else {
            return (Name::NONE, Name::NONE);
        };
        if let Some((known, exe, command)) = self.processes.get(&e.pid) {
            if Arc::ptr_eq(known, process) {
                return (*exe, *command);
            }
        }
        let names = self.sink.names();
        let exe = process.exe.as_deref().map(Path::to_string_lossy);
        let exe = exe.map_or(Name::NONE, |exe| names.name(&exe));
        let words: Vec<_> = process.args.iter().map(|a| a.to_string_lossy()).collect();
        let command = if words.is_empty() {
            names.name(&e.comm.to_string_lossy())
        } else {
            names.name(&role(&words.join(" ")))
        };
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let known = (process.clone(), exe, command);
        self.processes.insert(e.pid, known);
        (exe, command)
    }
}

/// The name of a text; none of one that is empty.
fn name_of(text: Option<&str>, names: &mut Names) -> Name {
    match text {
        None | Some("") => Name::NONE,
        Some(text) => names.name(text),
    }
}

/// The path; where its beginning was left out it begins with dots.
fn path_name(e: &Event, names: &mut Names) -> Name {
    let Some(path) = &e.path else {
        return Name::NONE;
    };
    let text = String::from_utf8_lossy(path.as_os_str().as_bytes());
    if e.path_cut {
        return names.name(&format!(".../{text}"));
    }
    names.name(&text)
}
