//! What reached the kernel: trace points counted for all that this process starts.
//!
//! Uses perf_event_open(2), one event a trace point and processor, all events of a processor in one
//! ring, and keeps those of our descendants, which the fork records tell. Events that descendants
//! inherit would not do: the kernel takes them away at an exec that changes the user or group.
//! The trace points are those of the file systems (`ext4_sync_file_enter` and its kin): they see
//! raw system calls, io_uring and O_SYNC writes alike, and unlike the `sys_enter_*` ones they put
//! no tax on the other system calls of the machine. Only file systems of a type that is mounted at
//! the start are watched: each trace point costs 0.2 ms of start-up.
//! Its twenty numbers (perf_event_open(2), <linux/perf_event.h>) stand here, since neither libc nor
//! linux-raw-sys has them.
//! Needs root (CAP_PERFMON) or `kernel.perf_event_paranoid` below 0, and tracefs for the event
//! numbers, which is mounted detached where it is not mounted.

use crate::attendant::Held;
use crate::processors::{counted, Counted, EachProcessor};
use crate::seen::Record;
pub use crate::seen::{Process, Seen};
use crate::tracefs::Tracefs;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// The trace points, and whether one stands for a whole file system; a kernel may lack some.
const POINTS: [(&str, bool); 7] = [
    ("ext4/ext4_sync_file_enter", false),
    ("btrfs/btrfs_sync_file", false),
    ("xfs/xfs_file_fsync", false),
    ("xfs/xfs_dir_fsync", false),
    ("ext4/ext4_sync_fs", true),
    ("btrfs/btrfs_sync_fs", true),
    ("xfs/xfs_fs_sync_fs", true),
];

const RING_PAGES: usize = 64;

/// struct `perf_event_header`: type, misc and, in its last two bytes, the size of the record.
const HEADER: usize = 8;
const MAX_RECORD: usize = u16::MAX as usize;
pub(crate) const PAGE: usize = 4096;

pub(crate) struct Ring {
    start: NonNull<u8>,
    pages: usize,
    events: Vec<OwnedFd>,
    main: OwnedFd,
    /// Perf's ids of the events that stand for whole file systems.
    whole: Vec<u64>,
}

/// The counting of one process tree.
pub struct Syncs {
    rings: EachProcessor<Ring>,
    /// Read already, but younger than what another ring may still have to tell.
    pending: Vec<(u64, Record)>,
    seen: Seen,
    watched: &'static [&'static str],
    /// The mount that the trace points were found in, where it is our own: its end waits too.
    tracefs: Option<OwnedFd>,
}

// SAFETY: a ring's memory is read by whoever has the `Syncs`, through `&mut` and one at a time.
unsafe impl Send for Ring {}

impl Syncs {
    /// Counts for every process that this one starts from now on, and watches in which of them a
    /// file with one of the names `libraries` is mapped.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where perf events are not permitted; `ENOENT` without trace points.
    pub fn count_descendants(libraries: &'static [&'static str]) -> io::Result<Syncs> {
        let mut syncs = Syncs::count(libraries, MMAP | MMAP2)?;
        let seen = &mut syncs.seen.by_pid;
        seen.insert(std::process::id(), Process::default());
        Ok(syncs)
    }

    /// Counts for the processes that [`Syncs::include`] names and what they fork, until they
    /// execute another program.
    ///
    /// # Errors
    /// As [`Syncs::count_descendants`].
    pub fn count_chosen() -> io::Result<Syncs> {
        // What they execute is known, and what they load makes no difference.
        let mut syncs = Syncs::count(&[], 0)?;
        syncs.seen = Seen::of_programs();
        Ok(syncs)
    }

    /// Counts for a process that runs already and executes `exe`, in which the library is.
    pub fn include(&mut self, pid: u32, exe: String) {
        self.seen();
        let process = Process {
            exe,
            has_library: true,
            has_linker: true,
            executed: true,
            ..Process::default()
        };
        // One that was forked by another is counted already.
        self.seen.by_pid.entry(pid).or_insert(process);
    }

    /// Counts, and hears of everybody's forks and programs and of what `more` asks for.
    fn count(libraries: &'static [&'static str], more: u64) -> io::Result<Syncs> {
        let dir = Tracefs::open()?;
        let ids = point_ids(&dir)?;
        let rings = EachProcessor::open(move |cpu| Ring::open(&ids, more, cpu))?;
        let (pending, watched) = (Vec::new(), libraries);
        Ok(Syncs {
            rings,
            pending,
            seen: Seen::default(),
            watched,
            tracefs: dir.mount,
        })
    }

    /// What was seen when it was last read.
    #[must_use]
    pub fn so_far(&self) -> &Seen {
        &self.seen
    }

    /// Of those that are there still, these alone are ours.
    pub fn keep_only(&mut self, ours: &BTreeSet<u32>) {
        self.seen.keep_only(ours);
    }

    /// Those that were said to end, and have, are nobody of ours from now on.
    pub fn sweep(&mut self) {
        self.seen.sweep(crate::process::is_alive);
    }

    /// Forgets what those made that had this number before.
    pub fn forget(&mut self, pid: u32) {
        self.seen.forget(pid);
    }

    /// Watches on processors that have come back, too.
    pub fn look_for_processors(&mut self) {
        self.rings.look();
    }

    /// Reads what was seen up to now.
    pub fn seen(&mut self) -> &Seen {
        // A fork on one processor comes before what the child does on another one, whichever ring
        // is read first: records are taken in the order of their times, up to now.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        let mut records = std::mem::take(&mut self.pending);
        self.rings.iter().for_each(|ring| ring.drain(&mut records));
        records.sort_by_key(|(time, _)| *time);
        let later = records.partition_point(|(time, _)| *time <= now);
        self.pending = records.split_off(later);
        for (_, record) in records {
            self.seen.note(record, self.watched);
        }
        &self.seen
    }

    /// What an attendant is to hold. The rings go first: they take what all the machine does.
    #[must_use]
    pub fn held(&self) -> Held<'_> {
        let events = self.rings.iter().flat_map(|ring| &ring.events);
        let tracefs = self.tracefs.iter();
        Held {
            until_the_end: self.fds(),
            longer: events.chain(tracefs).map(AsFd::as_fd).collect(),
        }
    }

    /// The rings, to wait for: readable when one is half full.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.rings.iter().map(|r| r.main.as_fd()).collect()
    }
}

/// Whether the syncs of our descendants can be counted here.
///
/// # Errors
/// As [`Syncs::count_descendants`].
pub fn is_permitted() -> io::Result<()> {
    let (id, _) = *point_ids(&Tracefs::open()?)?
        .first()
        .ok_or(io::ErrorKind::NotFound)?;
    open_event(&mut attributes(TRACEPOINT, id, 0), 0).map(drop)
}

/// Write-back errors anywhere on this machine, as they happen (`filemap_set_wb_err`).
pub struct LostWrites {
    events: EachProcessor<Event>,
}

/// One of those that count, and what it had counted at the last look.
struct Event {
    fd: OwnedFd,
    before: u64,
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Event {
    /// One of the trace point with this number.
    fn open(id: u64, cpu: usize) -> io::Result<Event> {
        let fd = open_event(&mut attributes(TRACEPOINT, id, 0), cpu)?;
        Ok(Event { fd, before: 0 })
    }
}

impl LostWrites {
    /// Starts counting.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where perf events of other processes are not permitted.
    pub fn watch() -> io::Result<LostWrites> {
        let dir = Tracefs::open()?;
        let id = dir.id("filemap/filemap_set_wb_err")?;
        let events = EachProcessor::open(move |cpu| Event::open(id, cpu))?;
        Ok(LostWrites { events })
    }

    /// What keeps the trace point on.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.events.iter().map(AsFd::as_fd).collect()
    }

    /// Whether there were some since the last call, or may have been: a processor has come back.
    pub fn told(&mut self) -> bool {
        let mut told = self.events.look();
        for event in self.events.iter_mut() {
            if let Some(Counted { times, .. }) = counted(event.as_fd()) {
                told |= std::mem::replace(&mut event.before, times) != times;
            }
        }
        told
    }
}

fn point_ids(dir: &Tracefs) -> io::Result<Vec<(u64, bool)>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let ids: Vec<(u64, bool)> = POINTS
        .iter()
        .filter(|(point, _)| is_mounted(point, &mounts))
        .filter_map(|(point, whole)| Some((dir.id(point).ok()?, *whole)))
        .collect();
    if ids.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(ids)
}

/// Whether one of these mounts is of the file system that a trace point belongs to.
fn is_mounted(point: &str, mounts: &str) -> bool {
    let fs = point.split('/').next().unwrap_or("");
    mounts.lines().any(|l| l.contains(&format!(" - {fs} ")))
}

/// struct perf_event_attr up to its fifth version (112 bytes), as words.
pub(crate) fn attributes(kind: u32, config: u64, flags: u64) -> [u64; 14] {
    const TOTAL_TIME_ENABLED: u64 = 1;
    const SAMPLE_TID: u64 = 1 << 1;
    const SAMPLE_TIME: u64 = 1 << 2;
    const SAMPLE_ID: u64 = 1 << 6;
    let mut a = [0u64; 14];
    a[0] = u64::from(kind) | (112u64 << 32); // type, size
    a[1] = config;
    a[2] = 1; // sample_period
    a[3] = SAMPLE_TID | SAMPLE_TIME | SAMPLE_ID;
    a[4] = TOTAL_TIME_ENABLED; // read_format
    a[5] = flags | WATERMARK | SAMPLE_ID_ALL | USE_CLOCKID;
    a[6] = (RING_PAGES * PAGE / 2) as u64; // wakeup_watermark, bp_type
    a[11] = CLOCK_MONOTONIC << 32; // sample_stack_user, clockid
    a
}

/// A flag: the event begins with [`Ring::enable`].
pub(crate) const DISABLED: u64 = 1;
pub(crate) const TRACEPOINT: u32 = 2;
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
pub(crate) const SAMPLE_RAW: u64 = 1 << 10;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const USE_CLOCKID: u64 = 1 << 25;
const CLOCK_MONOTONIC: u64 = 1;
const COMM_EXEC: u64 = 1 << 24;

/// An event of the trace point with this number, for a trace program to be attached to: the program
/// then runs for everybody, while the event itself counts only what the calling thread does.
///
/// # Errors
/// `EACCES` or `EPERM` where perf events are not permitted.
pub fn event_for_program(id: u64) -> io::Result<OwnedFd> {
    open_event_of(&mut attributes(TRACEPOINT, id, 0), 0, -1)
}

/// Opens an event of everybody on one processor.
pub(crate) fn open_event(attributes: &mut [u64; 14], cpu: usize) -> io::Result<OwnedFd> {
    open_event_of(attributes, -1, i32::try_from(cpu).unwrap_or(0))
}

/// The same, and the event tells how many of its records found no room (Linux 6.0), where it can.
pub(crate) fn open_event_with_lost(how: &mut [u64; 14], cpu: usize) -> io::Result<OwnedFd> {
    const LOST: u64 = 1 << 4;
    how[4] |= LOST; // read_format
    let event = open_event(how, cpu);
    let is_old = event
        .as_ref()
        .is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL));
    if !is_old {
        return event;
    }
    how[4] &= !LOST;
    open_event(how, cpu)
}

/// The same of one thread, on every processor (-1) or on one.
pub(crate) fn open_event_of(attributes: &mut [u64; 14], pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const CLOEXEC: libc::c_ulong = 8;
    let (a, number) = (attributes.as_mut_ptr(), libc::SYS_perf_event_open);
    // SAFETY: the kernel reads `size` bytes (112, the array's length) from `a`.
    let fd = unsafe { libc::syscall(number, a, pid, cpu, -1, CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.main.as_fd()
    }
}

impl Ring {
    fn open(ids: &[(u64, bool)], more: u64, cpu: usize) -> io::Result<Ring> {
        let watch = COMM | COMM_EXEC | TASK | more;
        let main = open_event(&mut attributes(SOFTWARE, DUMMY, watch), cpu)?;
        let mut ring = Ring::around(main, RING_PAGES)?;
        for &(id, whole) in ids {
            let event = open_event(&mut attributes(TRACEPOINT, id, 0), cpu)?;
            redirect(&event, &ring.main)?;
            ring.whole.extend(whole.then(|| event_id(&event)).flatten());
            ring.events.push(event);
        }
        Ok(ring)
    }

    /// The ring of one event, of so many pages: a power of two.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn around(main: OwnedFd, pages: usize) -> io::Result<Ring> {
        let len = (pages + 1) * PAGE;
        let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::SHARED;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let p = unsafe { rustix::mm::mmap(null_mut(), len, prot, flags, &main, 0) }?;
        let start = NonNull::new(p.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Ring {
            start,
            pages,
            events: Vec::new(),
            main,
            whole: Vec::new(),
        })
    }

    /// PERF_EVENT_IOC_ENABLE: begins what was opened [`DISABLED`].
    ///
    /// # Errors
    /// Those of the ioctl.
    pub(crate) fn enable(&self) -> io::Result<()> {
        const ENABLE: libc::c_ulong = 0x2400;
        // SAFETY: a perf descriptor of ours; the argument is a number.
        done(unsafe { libc::ioctl(self.main.as_raw_fd(), ENABLE, 0) })
    }

    /// data_head (offset 1024) or data_tail (1032) of struct perf_event_mmap_page.
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the mapping is `pages` + 1 pages and `offset` lies in the first, aligned to 8.
        let p = unsafe { self.start.as_ptr().add(offset) };
        // SAFETY: the kernel and we access this word atomically; it lives as long as the mapping.
        unsafe { &*p.cast::<AtomicU64>() }
    }

    /// Copies what lies at `at` in the order that it was written in: the area ends and begins anew.
    fn read(&self, at: u64, to: &mut [u8]) {
        let area = self.pages * PAGE;
        let offset = usize::try_from(at % area as u64).unwrap_or(0);
        let (first, second) = to.split_at_mut(to.len().min(area - offset));
        self.copy(PAGE + offset, first);
        self.copy(PAGE, second);
    }

    /// Copies from the mapping, of which `to` is no larger part than there is behind `offset`.
    fn copy(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: `offset` is inside the mapping, of `pages` + 1 pages.
        let from = unsafe { self.start.as_ptr().add(offset) };
        // SAFETY: as many bytes are there, see above, and the kernel writes no record before the
        // tail says that it has been read.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    fn drain(&self, records: &mut Vec<(u64, Record)>) {
        self.each(|record| records.extend(parse(record, &self.whole)));
    }

    /// What its event tells of itself, also of what found no room for a record.
    pub(crate) fn counted(&self) -> Counted {
        counted(self.main.as_fd()).unwrap_or_default()
    }

    /// Takes each record that is there.
    pub(crate) fn each(&self, mut take: impl FnMut(&[u8])) {
        let head = self.word(1024).load(Ordering::Acquire);
        let mut at = self.word(1032).load(Ordering::Relaxed);
        let mut record = [0; MAX_RECORD];
        while at < head {
            let mut header = [0; HEADER];
            self.read(at, &mut header);
            let size = u16::from_ne_bytes([header[6], header[7]]);
            if usize::from(size) < HEADER || u64::from(size) > head - at {
                break;
            }
            let record = &mut record[..usize::from(size)];
            self.read(at, record);
            take(record);
            at += u64::from(size);
        }
        self.word(1032).store(head, Ordering::Release);
    }
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

fn text_at(b: &[u8], at: usize) -> Option<String> {
    let bytes = b.get(at..)?.split(|&c| c == 0).next()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// One record with its time. Samples have `pid tid time id` behind the header; the others have the
/// same four at their end (sample_id_all).
fn parse(b: &[u8], whole: &[u64]) -> Option<(u64, Record)> {
    let trailer = b.len().checked_sub(16);
    let (pid, other) = (u32_at(b, 8)?, u32_at(b, 12)?);
    let record = match u32_at(b, 0)? {
        2 => Record::Lost(u64_at(b, 16)?),
        // One process: the first thread has the process's number; threads are not told apart.
        3 if pid == other => {
            let exec = b.get(5)? & 0x20 != 0; // PERF_RECORD_MISC_COMM_EXEC
            Record::Name {
                pid,
                name: text_at(b, 16)?,
                exec,
            }
        }
        4 => Record::End {
            pid,
            is_first: u32_at(b, 16)? == pid,
        },
        7 if pid != other => Record::Fork { pid, parent: other },
        7 => Record::Thread { pid },
        9 => {
            // PERF_SAMPLE_ID comes last of the three.
            let whole = whole.contains(&u64_at(b, 24)?);
            return Some((u64_at(b, 16)?, Record::Sync { pid, whole }));
        }
        10 => Record::Map {
            pid,
            file: text_at(b, 72)?,
            inode: u64_at(b, 48)?,
        },
        _ => return None,
    };
    Some((u64_at(b, trailer?)?, record))
}

/// PERF_EVENT_IOC_ID: the number that samples of this event bear (those of inherited copies too).
fn event_id(event: &OwnedFd) -> Option<u64> {
    const ID: libc::c_ulong = 0x8008_2407;
    let mut id = 0u64;
    // SAFETY: the call writes the 8 bytes of `id`.
    let r = unsafe { libc::ioctl(event.as_raw_fd(), ID, &raw mut id) };
    (r == 0).then_some(id)
}

/// PERF_EVENT_IOC_SET_OUTPUT: the event writes into the ring of `main`.
fn redirect(event: &OwnedFd, main: &OwnedFd) -> io::Result<()> {
    const SET_OUTPUT: libc::c_ulong = 0x2405;
    // SAFETY: both are perf descriptors of ours; the argument is a number.
    done(unsafe { libc::ioctl(event.as_raw_fd(), SET_OUTPUT, main.as_raw_fd()) })
}

/// PERF_EVENT_IOC_SET_FILTER: the event of a trace point happens only where its fields are such.
///
/// # Errors
/// `EINVAL` where the kernel does not understand it.
pub(crate) fn keep_only(event: impl AsFd, filter: &CStr) -> io::Result<()> {
    const SET_FILTER: libc::c_ulong = 0x4008_2406;
    let event = event.as_fd().as_raw_fd();
    // SAFETY: a perf descriptor of ours; the kernel reads a text that ends with 0.
    done(unsafe { libc::ioctl(event, SET_FILTER, filter.as_ptr()) })
}

/// The result of an ioctl.
fn done(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
