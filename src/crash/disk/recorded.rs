//! A disk whose past is written down, and which does wrong what it is asked to.

use super::{Disk, Said};
use crate::record::sink::now_ns;
use fuser::Errno;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use synclater_powercut::log::{Image, Log, Mark, Voice};
use synclater_powercut::store::Store;
use synclater_random::Random;
use synclater_recording::record::machine;
use synclater_sys::lock::{lock, read, write};

/// A line that is longer counts up to here.
const LINE_MAX: usize = 1 << 16;
/// A flush that takes long looks so often whether it is to hurry.
const SLICE: Duration = Duration::from_millis(20);
/// What an operation takes beside its contents.
const OP_BYTES: usize = 80;

/// What the disk does wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// It answers flushes and does not make them.
    pub lies: bool,
    /// The first flush that fails, counted from 1, and whether all behind it fail.
    pub flush_fails: Option<(u64, bool)>,
    /// The same of writes.
    pub write_fails: Option<(u64, bool)>,
    /// What each flush takes.
    pub flush_takes: Duration,
    /// What a share of the flushes takes more.
    pub sometimes: (f64, Duration),
    /// Chooses that share.
    pub seed: u64,
}

/// A disk whose past is written down.
pub struct Recorded {
    store: Arc<RwLock<Store>>,
    /// Who is asked before something counts as said.
    holder: Mutex<Option<Sender<Said>>>,
    /// Who answers in the end.
    releaser: Mutex<Option<Sender<Said>>>,
    inner: Mutex<Recording>,
}

struct Recording {
    log: Log,
    now: Image,
    /// Whether what happens is written down.
    on: bool,
    /// Lines that have no end yet.
    begun: [Vec<u8>; 3],
    faults: Faults,
    random: Random,
    flushes: u64,
    writes: u64,
    /// Bytes that may be kept, that are kept, and whether there were more.
    room: usize,
    kept: usize,
    overfull: bool,
    /// Flushes take no time any more.
    hurried: bool,
}

/// What the memory has room for: half of what is free.
fn room() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = machine::available_memory(&text).unwrap_or(1 << 30);
    usize::try_from(free / 2).unwrap_or(usize::MAX)
}

impl Recorded {
    /// A disk that is `image` now, whose past is not written down yet.
    #[must_use]
    pub fn new(store: Arc<RwLock<Store>>, image: Image) -> Recorded {
        Recorded {
            store,
            holder: Mutex::default(),
            releaser: Mutex::default(),
            inner: Mutex::new(Recording {
                log: Log::new(Image::zeros(0)),
                now: image,
                on: false,
                begun: Default::default(),
                faults: Faults::default(),
                random: Random::new(0),
                flushes: 0,
                writes: 0,
                room: room(),
                kept: 0,
                overfull: false,
                hurried: false,
            }),
        }
    }

    /// Whether more was written than the memory has room for: such writes failed.
    #[must_use]
    pub fn is_overfull(&self) -> bool {
        lock(&self.inner).overfull
    }

    /// Writes down from now on.
    pub fn begin(&self) {
        let mut r = lock(&self.inner);
        r.log = Log::new(r.now.clone());
        r.on = true;
    }

    /// Does what `faults` say from now on; their numbers count from here.
    pub fn misbehave(&self, faults: Faults) {
        let mut r = lock(&self.inner);
        r.faults = faults;
        r.random = Random::new(faults.seed);
        (r.flushes, r.writes) = (0, 0);
    }

    /// Flushes take no time from now on.
    pub fn hurry(&self) {
        lock(&self.inner).hurried = true;
    }

    /// Writes the end down, and nothing more. The disk goes on working.
    pub fn end(&self, status: i32) -> Log {
        let mut r = lock(&self.inner);
        for voice in [Voice::Out, Voice::Err, Voice::Ack] {
            let rest = std::mem::take(&mut r.begun[voice as usize]);
            if !rest.is_empty() {
                r.log.mark(Mark::Line(voice, rest), now_ns());
            }
        }
        r.log.mark(Mark::Exit(status), now_ns());
        (r.on, r.faults) = (false, Faults::default());
        // Their threads end with these, and let go of this disk.
        (*lock(&self.holder), *lock(&self.releaser)) = (None, None);
        std::mem::replace(&mut r.log, Log::new(Image::zeros(0)))
    }

    /// The disk as it is now.
    #[must_use]
    pub fn now(&self) -> Image {
        lock(&self.inner).now.clone()
    }

    /// What is said goes to somebody from now on, who lets it count when he likes.
    pub fn hold(&self, holder: Sender<Said>) {
        *lock(&self.holder) = Some(holder);
    }

    /// Has what was said noted; then the program goes on.
    pub fn release(&self, said: Said) {
        if let Some(releaser) = &*lock(&self.releaser) {
            let _ = releaser.send(said);
        }
    }

    fn note(&self, said: Said) {
        self.say(said.voice, &said.bytes);
        said.answer();
    }

    fn say(&self, voice: Voice, bytes: &[u8]) {
        let r = &mut *lock(&self.inner);
        if !r.on {
            return;
        }
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let mut line = std::mem::take(&mut r.begun[voice as usize]);
            add_to_line(&mut line, &rest[..end]);
            rest = &rest[end + 1..];
            line.shrink_to_fit();
            if r.has_room(line.len() + OP_BYTES) {
                r.log.mark(Mark::Line(voice, line), now_ns());
            }
        }
        add_to_line(&mut r.begun[voice as usize], rest);
    }
}

fn add_to_line(line: &mut Vec<u8>, bytes: &[u8]) {
    let room = LINE_MAX.saturating_sub(line.len());
    line.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

impl Recording {
    /// Whether so many bytes more may be kept; they count as kept then.
    fn has_room(&mut self, bytes: usize) -> bool {
        let has = self.kept.saturating_add(bytes) <= self.room;
        if has {
            self.kept += bytes
        } else {
            self.overfull = true
        }
        has
    }
}

/// Whether the operation of this number fails.
fn fails(which: Option<(u64, bool)>, number: u64) -> bool {
    which.is_some_and(|(first, sticks)| number == first || sticks && number > first)
}

impl Disk for Recorded {
    fn read(&self, at: u32, to: &mut [u8]) {
        let r = lock(&self.inner);
        let store = read(&self.store);
        for (part, sector) in to.chunks_exact_mut(store.unit()).zip(at as usize..) {
            part.copy_from_slice(store.get(r.now.0.get(sector).copied().unwrap_or(0)));
        }
    }

    fn write(&self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let r = &mut *lock(&self.inner);
        if r.on {
            r.writes += 1;
            if fails(r.faults.write_fails, r.writes) {
                return Err(Errno::EIO);
            }
        }
        let mut store = write(&self.store);
        let stored = store.len() * store.unit();
        if r.on {
            let sectors = bytes.len() / store.unit();
            if stored + bytes.len() > r.room || !r.has_room(sectors * 4 + OP_BYTES) {
                r.overfull = true;
                return Err(Errno::EIO);
            }
            r.log.write(&mut store, at, bytes, now_ns());
            r.log.apply(&mut r.now, r.log.ops.len() - 1, |_| true);
            return Ok(());
        }
        for (part, sector) in bytes.chunks_exact(store.unit()).zip(at as usize..) {
            r.now.0[sector] = store.put(part);
        }
        Ok(())
    }

    fn zero(&self, at: u32, sectors: u32) -> Result<(), Errno> {
        let mut r = lock(&self.inner);
        if r.on {
            r.writes += 1;
            let has_room = r.has_room(sectors as usize * 4 + OP_BYTES);
            if fails(r.faults.write_fails, r.writes) || !has_room {
                return Err(Errno::EIO);
            }
            r.log.zero(at, sectors, now_ns());
        }
        r.now.0[at as usize..(at + sectors) as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        let mut r = lock(&self.inner);
        if !r.on {
            return Ok(());
        }
        r.flushes += 1;
        let (share, more) = r.faults.sometimes;
        let slow = share > 0.0 && (r.random.below(1 << 32) as f64) < share * f64::from(u32::MAX);
        let takes = r.faults.flush_takes + if slow { more } else { Duration::ZERO };
        let (fails, lies) = (fails(r.faults.flush_fails, r.flushes), r.faults.lies);
        let begun = Instant::now();
        while begun.elapsed() < takes && !r.hurried {
            // Nobody else asks this disk for anything meanwhile but readers of the log.
            drop(r);
            std::thread::sleep((takes - begun.elapsed().min(takes)).min(SLICE));
            r = lock(&self.inner);
        }
        if fails {
            return Err(Errno::EIO);
        }
        r.log.flush(lies, now_ns());
        Ok(())
    }

    fn begin_to_serve(self: &Arc<Self>) {
        let (to, from) = std::sync::mpsc::channel();
        *lock(&self.releaser) = Some(to);
        let disk = self.clone();
        std::thread::spawn(move || from.into_iter().for_each(|said| disk.note(said)));
    }

    fn hear(&self, said: Said) {
        let holder = lock(&self.holder).clone();
        match holder {
            Some(holder) => {
                // Where nobody listens any more the program waits, until it is ended.
                let _ = holder.send(said);
            }
            None => self.note(said),
        }
    }
}
