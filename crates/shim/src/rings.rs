//! The mirror of `c/watch/rings.h`, and their reader.
//!
//! Promise: whatever stands in the rings, reading ends after as many cells as a ring has, follows
//! no value as a pointer or an index, and gives what was written in the order of its places. A
//! place that a writer took and never filled (it was killed in between) is passed over in the end.

use crate::page::{Layout, SHARDS};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8};

/// First bytes of a rings file.
pub const RINGS_MAGIC: u64 = 0x676e_6972_7461_6c73;
/// Rings of one session.
pub const RING_MAX: usize = 512;
/// Where ring 0 begins in the file: its histogram, then its cells.
pub const RINGS_DATA: usize = 69_632;
/// Kinds of calls in a histogram, from [`KIND_READ`].
pub const HIST_KINDS: usize = 5;
/// Places of a histogram: place p counts calls that took less than 2^p ns, and at least half of it.
pub const HIST_PLACES: usize = 44;
/// Bytes of a cell.
pub const CELL: usize = 64;

const TYPE_EVENT: u32 = 1;
const TYPE_STAT: u32 = 2;
const TYPE_TEXT: u32 = 3;
const TYPE_CALLER: u32 = 4;
const TYPE_PROCESS: u32 = 5;
const TYPE_COUNT: u32 = 6;
const TEXT_BYTES: usize = 60;

/// [`Event::done`]: made for real.
pub const DONE_REAL: u8 = 0;
/// [`Event::done`]: put off.
pub const DONE_OWED: u8 = 1;
/// [`Event::done`]: answered with an error.
pub const DONE_NOTHING: u8 = 2;
/// [`Event::done`]: left to the kernel, its end is not seen.
pub const DONE_QUEUED: u8 = 3;

const HAS_STAT: u16 = 1;
const HAS_TEXT: u16 = 2;
const HAS_BYTES: u16 = 4;
const HAS_NO_FILE: u16 = 8;

/// The first [`Event::kind`] that is no request.
pub const KIND_READ: u8 = 15;

/// Names of [`Event::kind`], from 1; as docs/FORMAT.md has them.
pub const KIND_WORDS: [&str; 19] = [
    "fsync",
    "fdatasync",
    "sync",
    "syncfs",
    "msync",
    "sync_file_range",
    "O_SYNC write",
    "O_DSYNC write",
    "RWF_SYNC write",
    "RWF_DSYNC write",
    "aio_fsync",
    "libaio fsync",
    "io_uring fsync",
    "io_uring sync_file_range",
    "read",
    "write",
    "open",
    "rename",
    "close",
];

/// Control words of one process's ring.
#[repr(C)]
pub struct Ring {
    /// As the process sees it; 0 is a free ring.
    pub pid: AtomicU32,
    /// 1: there is memory behind the histogram, and behind what was written of the cells.
    pub backed: AtomicU32,
    /// Inode of its pid namespace, 1 where it is not known.
    pub pid_ns: AtomicU64,
    /// Cells ever taken.
    pub head: AtomicU64,
    /// Events that found no room.
    pub lost: AtomicU64,
    reserved_line: [u64; 4],
    /// Cells ever read, for writers to see.
    pub tail: AtomicU64,
    reserved_tail: [u64; 7],
}

/// The head of a rings file.
#[repr(C)]
pub struct Rings {
    /// [`RINGS_MAGIC`].
    pub magic: AtomicU64,
    /// [`crate::page::VERSION`].
    pub version: AtomicU32,
    reserved_head: u32,
    /// Rings that were ever claimed.
    pub count: AtomicU32,
    /// Moved on, and woken, at each quarter of a ring.
    pub bell: AtomicU32,
    reserved: [u64; 5],
    /// Control words of each.
    pub ring: [Ring; RING_MAX],
}

/// Counts of the threads that hash to one shard, by kind and place.
#[repr(C)]
pub struct HistShard {
    /// By kind, by place.
    pub count: [[AtomicU32; HIST_PLACES]; HIST_KINDS],
    reserved: [u32; 4],
}

impl HistShard {
    /// Takes what was counted of the kind with index `kind` at `place`.
    fn take_one(&self, kind: usize, place: usize) -> u64 {
        let count = &self.count[kind][place];
        match count.load(Relaxed) {
            0 => 0,
            _ => u64::from(count.swap(0, Relaxed)),
        }
    }
}

/// How many calls of one process took how long, of those below the threshold.
#[repr(C, align(8))]
pub struct Hist {
    /// By shard.
    pub shard: [HistShard; SHARDS],
    reserved: [u8; 1024],
}

impl Hist {
    /// Takes what was counted of the kind with index `kind` at `place`.
    fn take_one(&self, kind: usize, place: usize) -> u64 {
        self.shard.iter().map(|s| s.take_one(kind, place)).sum()
    }

    /// Takes all that was counted: `to` gets kind, place and count.
    pub fn take(&self, mut to: impl FnMut(Count)) {
        for kind in 0..HIST_KINDS {
            for place in 0..HIST_PLACES {
                let count = self.take_one(kind, place);
                if count > 0 {
                    to(Count {
                        kind: KIND_READ + kind as u8,
                        place: place as u32,
                        count,
                    });
                }
            }
        }
    }
}

/// Calls of one kind that took about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Index into [`KIND_WORDS`], from 1.
    pub kind: u8,
    /// They took less than 2 to this power nanoseconds, and at least half of that.
    pub place: u32,
    /// How many.
    pub count: u64,
}

const _: () = assert!(size_of::<Hist>() == 8192);

impl crate::page::sealed::Sealed for Rings {}
impl Layout for Rings {}
impl crate::page::sealed::Sealed for Hist {}
impl Layout for Hist {}

const _: () = assert!(size_of::<Ring>() == 128);
const _: () = assert!(size_of::<Rings>() <= RINGS_DATA);

/// One cell, as words.
#[repr(C, align(8))]
pub struct Cell([AtomicU32; CELL / 4]);

const _: () = assert!(size_of::<Cell>() == CELL);

/// Bytes that a ring of `cells` takes in the file, with its histogram.
#[must_use]
pub const fn ring_bytes(cells: usize) -> usize {
    size_of::<Hist>() + cells * CELL
}

/// Where ring `index` begins; `None` where no file is that long.
fn start_of(index: usize, cells: usize) -> Option<usize> {
    let size = cells.checked_mul(CELL)?.checked_add(size_of::<Hist>())?;
    RINGS_DATA.checked_add(index.checked_mul(size)?)
}

/// The histogram of ring `index` in a mapped rings file with rings of `count` cells; `None` where
/// the mapping ends before.
#[must_use]
pub fn hist_of(bytes: &[AtomicU8], index: usize, count: usize) -> Option<&Hist> {
    Hist::view(bytes.get(start_of(index, count)?..)?)
}

/// The cells of ring `index` in a mapped rings file; `None` where the mapping ends before.
#[must_use]
pub fn cells_of(bytes: &[AtomicU8], index: usize, count: usize) -> Option<&[Cell]> {
    let start = start_of(index, count)?.checked_add(size_of::<Hist>())?;
    let part = bytes.get(start..start.checked_add(count.checked_mul(CELL)?)?)?;
    let first = part.as_ptr().cast::<Cell>();
    if !first.is_aligned() {
        return None;
    }
    // SAFETY: the part has `count` cells and is aligned for them; a cell is atomics all through, so
    // any bytes are valid and others may write them; the lifetime is that of the borrowed bytes.
    Some(unsafe { std::slice::from_raw_parts(first, count) })
}

/// What a request was, as a victim wrote it: nothing of it is to be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Thread.
    pub tid: u32,
    /// Ticks at its begin.
    pub start: u64,
    /// Ticks that it took.
    pub took: u64,
    /// Return address.
    pub caller: u64,
    /// Bytes written to the file before, where that was seen.
    pub bytes: Option<u64>,
    /// Descriptor, or -1.
    pub fd: i32,
    /// Effective user.
    pub uid: u32,
    /// Flags of the call.
    pub flags: u32,
    /// What it returned, or -errno.
    pub result: i32,
    /// Index into [`KIND_WORDS`], from 1.
    pub kind: u8,
    /// `DONE_*`.
    pub done: u8,
    /// Index into [`crate::page::KEPT_WORDS`].
    pub why: u8,
    /// Index of the file system in the page, [`crate::page::ALL_FS`], or 255.
    pub fs: u8,
    /// Whether the file could not be told.
    pub no_file: bool,
}

/// What the file was like before the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Type and permissions.
    pub mode: u32,
    /// Inode number.
    pub inode: u64,
    /// Mount id, or 0.
    pub mount: u64,
    /// Major and minor number of the device.
    pub dev: (u32, u32),
    /// Time of its last modification.
    pub mtime_ns: u64,
    /// Time of its last change.
    pub ctime_ns: u64,
    /// Size in bytes.
    pub size: u64,
}

/// One record of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A request. `path` tells what its descriptor is from now on.
    Request {
        /// What it was.
        event: Event,
        /// What its file was like.
        stat: Option<Stat>,
        /// What its descriptor is.
        path: Option<Vec<u8>>,
    },
    /// Where the code that calls from `address` lies.
    Caller {
        /// Return address.
        address: u64,
        /// Its place in `file`.
        offset: u64,
        /// The file; empty where it could not be told.
        file: Vec<u8>,
    },
    /// Calls that the program was counted for which this process was before.
    Counted(Count),
    /// Who writes this ring.
    Process {
        /// The executable's path.
        exe: Vec<u8>,
        /// The command line, its words ended by NUL.
        command: Vec<u8>,
        /// Its effective user.
        uid: u32,
    },
}

impl Cell {
    fn word(&self, at: usize) -> u32 {
        self.0[at].load(Relaxed)
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 1)) << 32
    }

    fn event(&self) -> Event {
        let [kind, done, why, fs] = self.word(14).to_le_bytes();
        let has = (self.word(15) >> 16) as u16;
        Event {
            tid: self.word(1),
            start: self.long(2),
            took: self.long(4),
            caller: self.long(6),
            bytes: (has & HAS_BYTES != 0).then(|| self.long(8)),
            fd: self.word(10).cast_signed(),
            uid: self.word(11),
            flags: self.word(12),
            result: self.word(13).cast_signed(),
            kind,
            done,
            why,
            fs,
            no_file: has & HAS_NO_FILE != 0,
        }
    }

    fn has(&self) -> (u16, usize) {
        let word = self.word(15);
        ((word >> 16) as u16, (word & 0xffff) as usize)
    }

    fn stat(&self) -> Stat {
        Stat {
            mode: self.word(1),
            inode: self.long(2),
            mount: self.long(4),
            dev: (self.word(7), self.word(6)),
            mtime_ns: self.long(8),
            ctime_ns: self.long(10),
            size: self.long(12),
        }
    }

    /// The state's type and number of cells, where it names `place`.
    fn state(&self, place: u64) -> Option<(u32, usize)> {
        let state = self.0[0].load(Acquire);
        let named = state >> 16 == (place & 0xffff) as u32;
        (state != 0 && named).then_some((state & 0xff, (state >> 8 & 0xff) as usize))
    }
}

/// Reads one ring; keeps its own place, since victims can write the shared one.
#[derive(Debug, Default)]
pub struct Reader {
    tail: u64,
}

/// How reading a ring ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// All was read.
    Empty,
    /// A place was taken and is not filled yet.
    Unfilled,
    /// There is more.
    More,
}

impl Reader {
    /// A reader of a ring that may have been read before.
    #[must_use]
    pub fn new(ring: &Ring) -> Reader {
        Reader {
            tail: ring.tail.load(SeqCst),
        }
    }

    /// The place that is read next.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.tail
    }

    /// Takes what is in the ring, at most as many records as it has cells.
    pub fn drain(&mut self, ring: &Ring, cells: &[Cell], mut to: impl FnMut(Record)) -> Rest {
        for _ in 0..cells.len() {
            let left = self.left(ring, cells);
            if left == 0 {
                return Rest::Empty;
            }
            let Some((record, used)) = self.read(cells, left) else {
                return Rest::Unfilled;
            };
            self.pass(ring, cells, used);
            record.into_iter().for_each(&mut to);
        }
        Rest::More
    }

    /// Passes over the place that is read next.
    pub fn skip(&mut self, ring: &Ring, cells: &[Cell]) {
        if self.left(ring, cells) > 0 {
            self.pass(ring, cells, 1);
        }
    }

    /// Cells that are taken and not read. A head that cannot be is brought in order.
    fn left(&mut self, ring: &Ring, cells: &[Cell]) -> usize {
        let left = ring.head.load(SeqCst).wrapping_sub(self.tail);
        match usize::try_from(left) {
            Ok(left) if left <= cells.len() => left,
            _ => {
                ring.head.store(self.tail, SeqCst);
                0
            }
        }
    }

    fn pass(&mut self, ring: &Ring, cells: &[Cell], used: usize) {
        for k in 0..used {
            self.at(cells, k).0[0].store(0, Relaxed);
        }
        self.tail = self.tail.wrapping_add(used as u64);
        ring.tail.store(self.tail, Release);
    }

    fn at<'a>(&self, cells: &'a [Cell], k: usize) -> &'a Cell {
        let place = self.tail.wrapping_add(k as u64) as usize;
        &cells[place % cells.len()]
    }

    /// Whether the cell `k` places on is filled, and of this type.
    fn is_of_type(&self, cells: &[Cell], k: usize, what: u32) -> bool {
        let place = self.tail.wrapping_add(k as u64);
        self.at(cells, k)
            .state(place)
            .is_some_and(|(t, _)| t == what)
    }

    /// The record at the next place, and how many cells it takes; `None` where that is not filled.
    /// One that makes no sense takes a cell and gives nothing.
    fn read(&self, cells: &[Cell], left: usize) -> Option<(Option<Record>, usize)> {
        let first = self.at(cells, 0);
        let (kind, count) = first.state(self.tail)?;
        if count == 0
            || count > left
            || !matches!(kind, TYPE_EVENT | TYPE_CALLER | TYPE_PROCESS | TYPE_COUNT)
        {
            return Some((None, 1));
        }
        let (has, length) = first.has();
        let mut next = 1;
        let mut stat = None;
        let has_stat = kind == TYPE_EVENT && has & HAS_STAT != 0;
        if has_stat && next < count && self.is_of_type(cells, next, TYPE_STAT) {
            stat = Some(self.at(cells, next).stat());
            next += 1;
        }
        let mut text = Vec::new();
        while text.len() < length && next < count && self.is_of_type(cells, next, TYPE_TEXT) {
            let cell = self.at(cells, next);
            let want = (length - text.len()).min(TEXT_BYTES);
            let bytes = cell.0[1..]
                .iter()
                .flat_map(|w| w.load(Relaxed).to_le_bytes());
            text.extend(bytes.take(want));
            next += 1;
        }
        let event = first.event();
        let record = match kind {
            TYPE_CALLER => Record::Caller {
                address: event.caller,
                offset: event.start,
                file: text,
            },
            TYPE_COUNT => Record::Counted(Count {
                kind: event.kind,
                place: event.flags,
                count: event.bytes.unwrap_or(0),
            }),
            TYPE_PROCESS => {
                let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
                Record::Process {
                    command: text.get(end + 1..).unwrap_or_default().to_vec(),
                    exe: text[..end].to_vec(),
                    uid: event.uid,
                }
            }
            _ => {
                let path = (has & HAS_TEXT != 0).then_some(text);
                Record::Request { event, stat, path }
            }
        };
        Some((Some(record), count))
    }
}
