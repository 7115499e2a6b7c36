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
use std::time::Duration;
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
    /// Bytes of contents that may be kept, and whether there were more.
    room: usize,
    overfull: bool,
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
                overfull: false,
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
        let mut begun = std::mem::take(&mut r.begun[voice as usize]);
        begun.extend_from_slice(bytes);
        while let Some(end) = begun.iter().position(|b| *b == b'\n') {
            let rest = begun.split_off(end + 1);
            begun.pop();
            r.log.mark(Mark::Line(voice, begun), now_ns());
            begun = rest;
        }
        r.begun[voice as usize] = begun;
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
        inner.own.clear();
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
    fn zero(&self, at: u32, sectors: u32);
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
        if (store.len() * store.unit()).saturating_add(bytes.len()) > r.room {
            r.overfull = true;
            return Err(Errno::EIO);
        }
        if r.on {
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

    fn zero(&self, at: u32, sectors: u32) {
        let mut r = lock(&self.inner);
        if r.on {
            r.log.zero(at, sectors, now_ns());
        }
        r.now.0[at as usize..(at + sectors) as usize].fill(0);
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
        if !takes.is_zero() {
            // Nobody else asks this disk for anything meanwhile but readers of the log.
            drop(r);
            std::thread::sleep(takes);
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

    fn zero(&self, at: u32, sectors: u32) {
        let zeros = vec![0; self.sector()];
        let mut inner = lock(&self.inner);
        for sector in at..at + sectors {
            inner.own.insert(sector, zeros.as_slice().into());
        }
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// Names in the folder; their numbers follow that of the root.
const NAMES: [&str; 4] = ["disk", "out", "err", "ack"];
const DISK: INodeNo = INodeNo(2);

/// A folder with a disk in it, and with the files through which the program speaks.
struct Folder<D> {
    disk: Arc<D>,
    size: u64,
}

impl<D: Disk> Folder<D> {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        let is_root = ino == INodeNo::ROOT;
        FileAttr {
            ino,
            size: if ino == DISK { self.size } else { 0 },
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
                DISK => 0o600,
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
        3 => Some(Voice::Out),
        4 => Some(Voice::Err),
        5 => Some(Voice::Ack),
        _ => None,
    }
}

impl<D: Disk> Filesystem for Folder<D> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(PIECE);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let at = NAMES.iter().position(|n| name == *n);
        match at.filter(|_| parent == INodeNo::ROOT) {
            Some(at) => {
                let attributes = self.attributes(INodeNo(at as u64 + 2));
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
        if ino != DISK {
            return reply.data(&[]);
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
        match self.write_bytes(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if ino != DISK {
            return reply.ok();
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
        if ino != DISK || mode & (punches | zeroes) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let unit = self.disk.sector() as u64;
        let whole = offset.is_multiple_of(unit) && length.is_multiple_of(unit);
        match self.sectors(offset, length) {
            Some((first, count)) if whole => {
                self.disk.zero(first, count);
                reply.ok();
            }
            _ => reply.error(Errno::EINVAL),
        }
    }
}

/// fallocate(2)
mod libc_mode {
    pub const PUNCH_HOLE: i32 = 2;
    pub const ZERO_RANGE: i32 = 16;
}

/// Mounts a folder with the file `disk` in it, served by a thread of its own until it is unmounted.
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
