//! The disk of the laboratory: a file of FUSE, below a loop device.
//!
//! Promise: one thread answers, so that the log's order is the order in which the disk completed
//! what it was asked. What the program says goes through files beside the disk, whose writes are
//! answered once they stand in the log: nothing that was written after a line stands before it.
//!
//! What it does not do: it never touches a file of the machine; all is kept in memory.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, SessionACL, WriteFlags,
};
use rustix::mount::MountFlags;
use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use synclater_model::crash::cuts::Dice;
use synclater_model::crash::log::{Image, Log, Mark, Voice};
use synclater_model::crash::store::Store;
use synclater_sys::contain;

/// The largest piece in which the kernel hands data over.
const PIECE: u32 = 1 << 20;
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// What the program says, and waits for an answer.
pub struct Said {
    /// Where.
    pub voice: Voice,
    bytes: Vec<u8>,
    reply: ReplyWrite,
}

impl Said {
    /// Lines that end in it.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.bytes.iter().filter(|b| **b == b'\n').count()
    }
}

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

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
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
    dice: Dice,
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
    let free = text
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let kib: usize = free.and_then(|n| n.trim().parse().ok()).unwrap_or(1 << 20);
    kib * 1024 / 2
}

fn now_ns() -> i64 {
    crate::record::sink::now_ns()
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
                dice: Dice::new(0),
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
        r.dice = Dice::new(faults.seed);
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
        said.reply
            .written(u32::try_from(said.bytes.len()).unwrap_or(0));
    }

    fn say(&self, voice: Voice, bytes: &[u8]) {
        let mut r = lock(&self.inner);
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

/// A line that is longer counts up to here.
const LINE_MAX: usize = 1 << 16;
/// A flush that takes long looks so often whether it is to hurry.
const SLICE: Duration = Duration::from_millis(20);
/// What an operation takes beside its contents.
const OP_BYTES: usize = 80;

fn add_to_line(line: &mut Vec<u8>, bytes: &[u8]) {
    let room = LINE_MAX.saturating_sub(line.len());
    line.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

impl Recording {
    /// Whether so many bytes more may be kept; they count as kept then.
    fn has_room(&mut self, bytes: usize) -> bool {
        let has = self.kept.saturating_add(bytes) <= self.room;
        match has {
            true => self.kept += bytes,
            false => self.overfull = true,
        }
        has
    }
}

/// Whether the operation of this number fails.
fn fails(which: Option<(u64, bool)>, number: u64) -> bool {
    which.is_some_and(|(first, sticks)| number == first || sticks && number > first)
}

/// A disk as it was after a power cut: what is written to it now goes nowhere else.
pub struct State {
    store: Arc<RwLock<Store>>,
    inner: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    image: Option<Image>,
    generation: u64,
    own: HashMap<u32, Box<[u8]>>,
}

impl State {
    /// No disk yet.
    #[must_use]
    pub fn new(store: Arc<RwLock<Store>>) -> State {
        State {
            store,
            inner: Mutex::default(),
        }
    }

    /// The disk is this from now on.
    pub fn become_image(&self, image: Image) {
        let mut inner = lock(&self.inner);
        inner.image = Some(image);
        inner.own = HashMap::new();
        inner.generation += 1;
    }
}

/// What answers for a disk.
pub trait Disk: Send + Sync + Sized + 'static {
    /// Bytes of a sector.
    fn sector(&self) -> usize;
    /// Reads whole sectors.
    fn read(&self, at: u32, to: &mut [u8]);
    /// Writes whole sectors.
    ///
    /// # Errors
    /// Where the disk does it wrong on purpose.
    fn write(&self, at: u32, bytes: &[u8]) -> Result<(), Errno>;
    /// Makes sectors zeros.
    ///
    /// # Errors
    /// Where the disk does it wrong on purpose.
    fn zero(&self, at: u32, sectors: u32) -> Result<(), Errno>;
    /// How often it has become another one: whoever has opened an earlier one gets errors.
    fn generation(&self) -> u64 {
        0
    }
    /// Makes everything durable that was answered.
    ///
    /// # Errors
    /// Where the disk does it wrong on purpose.
    fn flush(&self) -> Result<(), Errno>;
    /// Is called in the thread that serves it: only threads that this one starts can answer.
    fn begin_to_serve(self: &Arc<Self>) {}
    /// Hears what the program says.
    fn hear(&self, said: Said) {
        said.reply
            .written(u32::try_from(said.bytes.len()).unwrap_or(0));
    }
}

impl Disk for Recorded {
    fn sector(&self) -> usize {
        self.store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .unit()
    }

    fn read(&self, at: u32, to: &mut [u8]) {
        let r = lock(&self.inner);
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        for (part, sector) in to.chunks_exact_mut(store.unit()).zip(at as usize..) {
            part.copy_from_slice(store.get(r.now.0.get(sector).copied().unwrap_or(0)));
        }
    }

    fn write(&self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let mut r = lock(&self.inner);
        if r.on {
            r.writes += 1;
            if fails(r.faults.write_fails, r.writes) {
                return Err(Errno::EIO);
            }
        }
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        let stored = store.len() * store.unit();
        if r.on {
            let sectors = bytes.len() / store.unit();
            if stored + bytes.len() > r.room || !r.has_room(sectors * 4 + OP_BYTES) {
                r.overfull = true;
                return Err(Errno::EIO);
            }
            r.log.write(&mut store, at, bytes, now_ns());
            let op = r.log.ops.len() - 1;
            let mut now = std::mem::replace(&mut r.now, Image(Vec::new()));
            r.log.apply(&mut now, op, |_| true);
            r.now = now;
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
        let slow = share > 0.0 && (r.dice.below(1 << 32) as f64) < share * f64::from(u32::MAX);
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

impl Disk for State {
    fn sector(&self) -> usize {
        self.store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .unit()
    }

    fn read(&self, at: u32, to: &mut [u8]) {
        let inner = lock(&self.inner);
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let image = inner.image.as_ref().map_or(&[][..], |i| &i.0);
        for (part, sector) in to.chunks_exact_mut(store.unit()).zip(at..) {
            part.copy_from_slice(match inner.own.get(&sector) {
                Some(own) => own,
                None => store.get(image.get(sector as usize).copied().unwrap_or(0)),
            });
        }
    }

    fn write(&self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let unit = self.sector();
        let mut inner = lock(&self.inner);
        for (part, sector) in bytes.chunks_exact(unit).zip(at..) {
            inner.own.insert(sector, part.into());
        }
        Ok(())
    }

    fn zero(&self, at: u32, sectors: u32) -> Result<(), Errno> {
        let zeros = vec![0; self.sector()];
        let mut inner = lock(&self.inner);
        for sector in at..at + sectors {
            inner.own.insert(sector, zeros.as_slice().into());
        }
        Ok(())
    }

    fn generation(&self) -> u64 {
        lock(&self.inner).generation
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// Names of what is said on; their numbers follow that of the root. Behind them are the disks,
/// each with its generation in name and number.
const VOICES: [&str; 3] = ["out", "err", "ack"];
const DISKS: u64 = 16;

/// The name of the disk of a generation.
#[must_use]
pub fn name_of(generation: u64) -> String {
    format!("disk-{generation}")
}

/// A folder with a disk in it, and with the files through which the program speaks.
struct Folder<D> {
    disk: Arc<D>,
    size: u64,
}

impl<D: Disk> Folder<D> {
    /// Whether this is the disk of now.
    fn is_disk(&self, ino: INodeNo) -> bool {
        ino.0 == DISKS + self.disk.generation()
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        let is_root = ino == INodeNo::ROOT;
        FileAttr {
            ino,
            size: if ino.0 >= DISKS { self.size } else { 0 },
            blocks: 0,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind: if is_root {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: match ino {
                INodeNo::ROOT => 0o755,
                disk if disk.0 >= DISKS => 0o600,
                _ => 0o666,
            },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Where bytes lie, in whole sectors around them.
    fn sectors(&self, offset: u64, length: u64) -> Option<(u32, u32)> {
        let unit = self.disk.sector() as u64;
        let end = offset.checked_add(length).filter(|end| *end <= self.size)?;
        let (first, behind) = (offset / unit, end.div_ceil(unit));
        let number = |n: u64| u32::try_from(n).ok();
        Some((number(first)?, number(behind - first)?))
    }

    fn read_bytes(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let length = length.min(self.size.saturating_sub(offset));
        let unit = self.disk.sector();
        let (first, count) = self.sectors(offset, length)?;
        let mut bytes = vec![0; count as usize * unit];
        self.disk.read(first, &mut bytes);
        let skipped = (offset % unit as u64) as usize;
        bytes.truncate(skipped + length as usize);
        Some(bytes.split_off(skipped))
    }

    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let unit = self.disk.sector();
        let sectors = self.sectors(offset, bytes.len() as u64);
        let (first, count) = sectors.ok_or(Errno::ENOSPC)?;
        let skipped = (offset % unit as u64) as usize;
        if skipped == 0 && bytes.len().is_multiple_of(unit) {
            return self.disk.write(first, bytes);
        }
        // The kernel writes whole sectors; somebody else may not.
        let mut whole = vec![0; count as usize * unit];
        self.disk.read(first, &mut whole);
        whole[skipped..skipped + bytes.len()].copy_from_slice(bytes);
        self.disk.write(first, &whole)
    }
}

fn voice_of(ino: INodeNo) -> Option<Voice> {
    match ino.0 {
        2 => Some(Voice::Out),
        3 => Some(Voice::Err),
        4 => Some(Voice::Ack),
        _ => None,
    }
}

impl<D: Disk> Filesystem for Folder<D> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(PIECE);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let voice = VOICES.iter().position(|n| name == *n);
        let generation = name
            .to_str()
            .and_then(|n| n.strip_prefix("disk-")?.parse::<u64>().ok());
        let number = voice.map(|at| at as u64 + 2);
        let number = number.or(generation.map(|n| n.saturating_add(DISKS)));
        match number.filter(|_| parent == INodeNo::ROOT) {
            Some(number) => {
                let attributes = self.attributes(INodeNo(number));
                reply.entry(&FOR_EVER, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_EVER, &self.attributes(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // `>` of a shell cuts what was said; it was said all the same.
        reply.attr(&FOR_EVER, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino.0 < DISKS {
            return reply.data(&[]);
        }
        if !self.is_disk(ino) {
            return reply.error(Errno::EIO);
        }
        match self.read_bytes(offset, size.into()) {
            Some(bytes) => reply.data(&bytes),
            None => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(voice) = voice_of(ino) {
            return self.disk.hear(Said {
                voice,
                bytes: data.to_vec(),
                reply,
            });
        }
        if !self.is_disk(ino) {
            return reply.error(Errno::EIO);
        }
        match self.write_bytes(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if ino.0 < DISKS {
            return reply.ok();
        }
        if !self.is_disk(ino) {
            return reply.error(Errno::EIO);
        }
        match self.disk.flush() {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // close(2) asks for nothing: the kernel need not tell of it again.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (punches, zeroes) = (libc_mode::PUNCH_HOLE, libc_mode::ZERO_RANGE);
        if !self.is_disk(ino) || mode & (punches | zeroes) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let unit = self.disk.sector() as u64;
        let whole = offset.is_multiple_of(unit) && length.is_multiple_of(unit);
        match self.sectors(offset, length) {
            Some((first, count)) if whole => match self.disk.zero(first, count) {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(e),
            },
            _ => reply.error(Errno::EINVAL),
        }
    }
}

/// fallocate(2)
mod libc_mode {
    pub const PUNCH_HOLE: i32 = 2;
    pub const ZERO_RANGE: i32 = 16;
}

/// Mounts a folder with the disk in it, served by a thread of its own until it is unmounted.
///
/// # Errors
/// Those of opening /dev/fuse and of mount(2).
pub fn mount<D: Disk>(disk: &Arc<D>, size: u64, at: &Path) -> io::Result<()> {
    let folder = Folder {
        disk: disk.clone(),
        size,
    };
    let (disk, at) = (disk.clone(), at.to_path_buf());
    let (to, from) = std::sync::mpsc::channel();
    let serving = std::thread::Builder::new().name("disk".into());
    serving.spawn(
        move || match contain::serve_apart(|| session(folder, &at)) {
            Ok(session) => {
                disk.begin_to_serve();
                let _ = to.send(Ok(()));
                let _ = session.run();
            }
            Err(e) => {
                let _ = to.send(Err(e));
            }
        },
    )?;
    from.recv().unwrap_or_else(|e| Err(io::Error::other(e)))
}

fn session<D: Disk>(folder: Folder<D>, at: &Path) -> io::Result<Session<Folder<D>>> {
    let fuse = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        fuse.as_raw_fd()
    );
    let options = CString::new(options)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("synclater", at, "fuse", safe, options.as_c_str())?;
    Session::from_fd(
        folder,
        OwnedFd::from(fuse),
        SessionACL::All,
        Config::default(),
    )
}
