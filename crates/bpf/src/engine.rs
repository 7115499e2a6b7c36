//! The trace programs in the kernel, and the ring that they write to.

use crate::event::{Event, Process};
use crate::filter::{device_key, exe_key};
use crate::kernel::{self, refused};
use crate::record::{self, Record};
use crate::{points, Error, Filter};
use libbpf_rs::{Link, MapCore, MapFlags, Object, OpenObject, RingBuffer, RingBufferBuilder};
use rustix::event::{epoll, Timespec};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use synclater_sys::lock::lock;

/// Compiled by build.rs.
static PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.o"));

/// Records taken from the ring in one go.
const BATCH: usize = 4096;
/// In one call of `drain`, so that it ends however fast others write.
const BATCHES_MAX: usize = 1024;
/// Of processes that are remembered, before those that have ended are forgotten.
const PROCESSES_MAX: usize = 32_768;

type Inbox = Arc<Mutex<Vec<Record>>>;

/// The trace programs in the kernel and the ring that they write to.
#[derive(Debug)]
pub struct Engine {
    // In the order of dropping: the programs first, so that nothing is written any more.
    links: Vec<Link>,
    ring: RingBuffer<'static>,
    /// Ready when the ring has been filled to its mark, and only then.
    ready: OwnedFd,
    object: Object,
    inbox: Inbox,
    processes: HashMap<u32, Arc<Process>>,
    absent: Vec<&'static str>,
}

impl Drop for Engine {
    /// All at once: the kernel waits for all processors at each.
    fn drop(&mut self) {
        let links = std::mem::take(&mut self.links);
        let taken_away = links
            .into_iter()
            .map(|link| std::thread::spawn(|| drop(link)));
        for thread in taken_away.collect::<Vec<_>>() {
            // A thread that could not be waited for ends by itself.
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Loads the programs and attaches them. `ring_bytes` is rounded up to a power of two.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::NoTypes`], [`Error::NoTracePoints`], [`Error::Filter`], or
    /// what the kernel says to programs that should load.
    pub fn open(filter: &Filter, ring_bytes: usize) -> Result<Engine, Error> {
        kernel::check()?;
        kernel::listen();
        let ring_bytes = ring_bytes
            .clamp(4096, 1 << 30)
            .next_power_of_two()
            .try_into()
            .unwrap_or(1 << 30);
        let about = kernel::Kernel::look()?;
        let mut open = libbpf_rs::ObjectBuilder::default()
            .open_memory(PROGRAMS)
            .map_err(|e| refused("the trace programs cannot be read", &e))?;
        prepare(&mut open, filter, &about, ring_bytes)?;
        let object = open
            .load()
            .map_err(|e| refused("the kernel refuses the trace programs", &e))?;
        fill_sets(&object, filter)?;
        let (ring, inbox) = ring_of(&object)?;
        let ready = marked(&object)?;
        let mut engine = Engine {
            links: Vec::new(),
            ring,
            ready,
            object,
            inbox,
            processes: HashMap::new(),
            absent: Vec::new(),
        };
        let attached = points::attach(&engine.object, filter, &about)?;
        engine.links = attached.links;
        engine.absent = attached.absent;
        if filter.descendants {
            engine.add_descendants(filter)?;
        }
        Ok(engine)
    }

    /// A descriptor that becomes readable when an eighth of the ring is full. Look at least five
    /// times a second by yourself: what is less than that waits in silence.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    /// Waits until an eighth of the ring is full, at most `timeout`; tells whether it is.
    ///
    /// # Errors
    /// What poll(2) says. An interrupted wait is none.
    pub fn poll(&self, timeout: Duration) -> Result<bool, Error> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let nothing = epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        };
        match epoll::wait(&self.ready, &mut [nothing; 1], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(refused("waiting for trace points", &e)),
        }
    }

    /// Hands over what is in the ring, in the order in which it was written: a request comes when
    /// it has ended. Returns how many there were.
    ///
    /// # Errors
    /// What the ring says; it should say nothing.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> Result<usize, Error> {
        self.poll(Duration::ZERO)?; // the mark is seen
        let mut events = 0;
        for _ in 0..BATCHES_MAX {
            let taken = self.ring.consume_raw_n(BATCH);
            if taken < 0 {
                let e = std::io::Error::from_raw_os_error(-taken);
                return Err(refused("reading the ring of the trace points", &e));
            }
            let records = std::mem::take(&mut *lock(&self.inbox));
            for record in records {
                match record {
                    Record::Process(process) => self.remember(process),
                    Record::Request(mut event) => {
                        event.process = self.processes.get(&event.pid).cloned();
                        events += 1;
                        each(*event);
                    }
                }
            }
            if taken == 0 {
                break;
            }
        }
        Ok(events)
    }

    /// How many requests a full ring lost since the beginning, by process. Those of processes that
    /// there was no room to count for (over 16,000) are summed under 0.
    ///
    /// # Errors
    /// What the kernel says; it should say nothing.
    pub fn lost(&self) -> Result<BTreeMap<u32, u64>, Error> {
        let map = map_of(&self.object, "lost")?;
        let mut lost = BTreeMap::new();
        for key in map.keys() {
            let value = map
                .lookup(&key, MapFlags::ANY)
                .map_err(|e| refused("counting what was lost", &e))?;
            let pid = key.try_into().map(u32::from_ne_bytes);
            let count = value
                .and_then(|v| v.try_into().ok())
                .map(u64::from_ne_bytes);
            if let (Ok(pid), Some(count @ 1..)) = (pid, count) {
                lost.insert(pid, count);
            }
        }
        Ok(lost)
    }

    /// Trace points that this kernel lacks: what comes through their file systems by other routes
    /// than system calls, or through io_uring, is not seen, or not told apart.
    #[must_use]
    pub fn absent(&self) -> &[&'static str] {
        &self.absent
    }

    fn remember(&mut self, process: Arc<Process>) {
        if self.processes.len() >= PROCESSES_MAX {
            self.processes
                .retain(|pid, _| Path::new("/proc").join(pid.to_string()).exists());
        }
        self.processes.insert(process.pid, process);
    }

    /// Those that were started before the programs were attached; forks are followed by now. Goes
    /// on until a look at all processes finds none that is new.
    fn add_descendants(&self, filter: &Filter) -> Result<(), Error> {
        let pids = map_of(&self.object, "pids")?;
        let mut known = filter.pids.clone();
        loop {
            let parents = kernel::parents();
            let new: Vec<u32> = parents
                .iter()
                .filter(|(pid, parent)| known.contains(parent) && !known.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                add(&pids, &pid.to_ne_bytes(), 1)?;
                known.insert(pid);
            }
        }
    }
}

fn map_of<'a>(object: &'a Object, name: &str) -> Result<libbpf_rs::Map<'a>, Error> {
    let found = object.maps().find(|m| m.name() == name);
    found.ok_or_else(|| refused("the trace programs", &format!("they have no map {name}")))
}

fn add(map: &libbpf_rs::Map<'_>, key: &[u8], value: u32) -> Result<(), Error> {
    map.update(key, &value.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| refused("too much to filter by", &e))
}

/// The sets that the programs look into.
fn fill_sets(object: &Object, filter: &Filter) -> Result<(), Error> {
    let follows = filter.descendants.into();
    for pid in &filter.pids {
        add(&map_of(object, "pids")?, &pid.to_ne_bytes(), follows)?;
    }
    for pid in &filter.not_pids {
        add(&map_of(object, "not_pids")?, &pid.to_ne_bytes(), 1)?;
    }
    for id in &filter.cgroups {
        add(&map_of(object, "cgroups")?, &id.to_ne_bytes(), 1)?;
    }
    for device in &filter.devices {
        let key = device_key(*device).to_ne_bytes();
        add(&map_of(object, "devices")?, &key, 1)?;
    }
    for exe in &filter.exes {
        add(&map_of(object, "exes")?, &exe_key(exe)?, 1)?;
    }
    let (rest, none) = (0u32.to_ne_bytes(), 0u64.to_ne_bytes());
    map_of(object, "lost")?
        .update(&rest, &none, MapFlags::ANY)
        .map_err(|e| refused("the count of what is lost", &e))
}

/// What the programs are told before they are loaded, in the order of struct settings.
fn prepare(
    open: &mut OpenObject,
    filter: &Filter,
    about: &kernel::Kernel,
    ring_bytes: u32,
) -> Result<(), Error> {
    let settings = [
        std::process::id(),
        u32::from(!filter.pids.is_empty()),
        u32::from(!filter.cgroups.is_empty()),
        u32::from(!filter.exes.is_empty()),
        u32::from(!filter.devices.is_empty()),
        u32::from(filter.kernel_threads),
        ring_bytes / 8,
        u32::from(about.follows_uring()),
        u32::from(about.completion_by_pointer),
        about.dirty_pages_bit,
    ];
    let mut set = false;
    for mut map in open.maps_mut() {
        match map.name().to_str() {
            Some("ring") => map
                .set_max_entries(ring_bytes)
                .map_err(|e| refused("the size of the ring", &e))?,
            Some(".rodata.settings") => {
                let room = map.initial_value_mut().unwrap_or_default();
                set = room.len() == settings.len() * 4;
                for (to, word) in room.chunks_exact_mut(4).zip(settings) {
                    to.copy_from_slice(&word.to_ne_bytes());
                }
            }
            _ => {}
        }
    }
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(points::is_used(&name, filter, about));
    }
    if set {
        return Ok(());
    }
    Err(refused(
        "the trace programs",
        &"their settings have another form",
    ))
}

fn ring_of(object: &Object) -> Result<(RingBuffer<'static>, Inbox), Error> {
    let inbox = Inbox::default();
    let to = inbox.clone();
    let map = map_of(object, "ring")?;
    let mut builder = RingBufferBuilder::new();
    builder
        .add(&map, move |data| {
            lock(&to).extend(record::read(data));
            0
        })
        .map_err(|e| refused_ring(&e))?;
    let ring = builder.build().map_err(|e| refused_ring(&e))?;
    Ok((ring, inbox))
}

/// A descriptor that tells of the programs' wake-ups alone: by itself the ring's is ready as soon
/// as there is anything in it.
fn marked(object: &Object) -> Result<OwnedFd, Error> {
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| refused_ring(&e))?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    let ring = map_of(object, "ring")?;
    epoll::add(&ready, ring.as_fd(), epoll::EventData::new_u64(0), flags)
        .map_err(|e| refused_ring(&e))?;
    Ok(ready)
}

fn refused_ring(e: &dyn std::fmt::Display) -> Error {
    refused("the ring of the trace points", e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_can_be_sent_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Engine>();
    }
}
