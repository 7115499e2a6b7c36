//! The mirror of `c/core/page.h`: what stands where, who writes it, and in which unit, is said
//! there.
//!
//! Every field that the other side may write while we look is an atomic. The page is written by us
//! alone; the slots are written by victims, so each value is input: load once, check, then use.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicU8, Ordering::SeqCst};

/// First bytes of a page file.
pub const PAGE_MAGIC: u64 = 0x6567617074616c73;
/// First bytes of a slots file.
pub const SLOTS_MAGIC: u64 = 0x746f6c7374616c73;
/// Layout version; a shim of another version makes every call for real.
pub const VERSION: u32 = 10;
/// File systems of one session.
pub const FS_MAX: usize = 64;
/// The row of debt that `sync()` owes on everything.
pub const ALL_FS: usize = 64;
/// Places of the table of device numbers (open addressing).
pub const NAME_MAX: usize = 512;
/// Places that a look-up in that table tries.
pub const PROBE_MAX: usize = 16;
/// Different dials of one session; class 0 is the session's own.
pub const CLASS_MAX: usize = 16;
/// Rules of one session.
pub const RULE_MAX: usize = 16384;
/// Process slots; slot 0 serves every process that found no other.
pub const SLOT_MAX: usize = 512;
/// Counter lines of one slot.
pub const SHARDS: usize = 8;
/// Numbers of kin in [`Slots::tsyncs`].
pub const KIN_MAX: usize = 4096;
/// Places of [`Slots::took`], eight to a doubling.
pub const TOOK_PLACES: usize = 240;
/// The first of them ends at 2 to this, and an eighth, in ticks.
pub const TOOK_FIRST: u32 = 10;
/// Reasons of [`Slot::kept`].
pub const KEPT_MAX: usize = 16;

/// [`Page::clock`]: the invariant time stamp counter.
pub const CLOCK_TSC: u32 = 1;
/// [`Page::clock`]: nanoseconds of `CLOCK_REALTIME`.
pub const CLOCK_REALTIME: u32 = 2;

/// [`Fs::state`]: every request stays real.
pub const FS_REAL: u32 = 0;
/// [`Fs::state`]: held, and in the ledger on disk; requests may be answered later.
pub const FS_OWES: u32 = 1;

/// [`Name::fs`]: not on the tested list when it was asked about.
pub const NAME_REAL: u32 = 256;
/// [`Name::fs`]: memory only, where the descriptor says so too.
pub const NAME_MEMORY: u32 = 257;
/// [`Name::fs`]: the file system could not be told.
pub const NAME_UNKNOWN: u32 = 258;
/// [`Name::fs`]: mounted in another mount namespace alone.
pub const NAME_AWAY: u32 = 259;
/// [`Name::dev`]: nothing stands here any more.
pub const NAME_GONE: u64 = u64::MAX;

/// [`Slot::flags`]: the process set up an io_uring.
pub const SLOT_URING: u32 = 1;
/// The signal numbers (`F_SETSIG`) that mark a descriptor which lost `O_DSYNC`, or `O_SYNC`.
pub const MARKS: [i32; 2] = [32, 33];
/// [`Slot::flags`]: the process took the signal number that marks stripped descriptors.
pub const SLOT_MARK_LOST: u32 = 2;
/// [`Slot::flags`]: the process holds `O_SYNC` descriptors that were not stripped.
pub const SLOT_OSYNC_KEPT: u32 = 4;
/// [`Slot::flags`]: the process restricts its own calls (a seccomp filter, and its like), so that
/// every request is real from then on.
pub const SLOT_RESTRICTED: u32 = 8;

/// [`Slot::umount`]: nothing asked.
pub const UMOUNT_NONE: u32 = 0;
/// [`Slot::umount`]: the victim is about to unmount and waits.
pub const UMOUNT_ASKED: u32 = 1;
/// [`Slot::umount`]: settled, our descriptor is closed.
pub const UMOUNT_READY: u32 = 2;
/// [`Slot::umount`]: the victim's call was made.
pub const UMOUNT_OVER: u32 = 3;

/// [`Page::rule_needs`]: a rule looks at the executable.
pub const NEEDS_EXE: u32 = 1;
/// [`Page::rule_needs`]: a rule looks at the effective user.
pub const NEEDS_USER: u32 = 2;
/// [`Page::rule_needs`]: a rule looks at the path.
pub const NEEDS_PATH: u32 = 4;

/// Why a request was kept real: index into [`Slot::kept`], `SL_KEPT_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kept {
    /// The dial is at `now`, or the session is over.
    Now = 0,
    /// A rule says `now`, or no rule matches.
    Rule = 1,
    /// The lease ran out.
    Lease = 2,
    /// The file system is not in the ledger yet.
    Ledger = 3,
    /// The file system is not on the tested list.
    Filesystem = 4,
    /// A block device, or another special file.
    Block = 5,
    /// The file system could not be told.
    Unknown = 6,
    /// `sync()` where a file system must stay real.
    SyncAll = 7,
    /// `O_SYNC` that could not be taken off.
    OSync = 8,
    /// The file system is mounted in another mount namespace alone, with which it would go.
    Away = 10,
}

/// Why requests were kept real, by index into [`Slot::kept`], in words for people.
pub const KEPT_WORDS: [&str; 11] = [
    "the dial was at now",
    "a rule says now, or none matches",
    "the lease had run out",
    "the session was still starting on that file system",
    "the file system is not tested, or not sound: `synclater doctor` says which",
    "a block device or another special file",
    "the file system could not be told",
    "sync() where a file system must stay real: `synclater doctor` names it",
    "O_SYNC that could not be taken off",
    "asynchronous, and of a kind that cannot be put off",
    "the file system is mounted in another mount namespace alone",
];

/// One superblock.
#[repr(C)]
pub struct Fs {
    /// `FS_*`.
    pub state: AtomicU32,
    /// Moved on each time that it is held.
    pub held: AtomicU32,
    /// `major << 32 | minor`, as in mountinfo.
    pub dev: AtomicU64,
}

/// What a device number means; 0 is an empty place.
#[repr(C)]
pub struct Name {
    /// `major << 32 | minor`, as stat and maps show it.
    pub dev: AtomicU64,
    /// 0: on every mount; else the one that it counts on.
    pub mount: AtomicU64,
    /// Index into [`Page::fs`], or `NAME_*`.
    pub fs: AtomicU32,
    /// Odd while it is changed.
    pub turn: AtomicU32,
}

/// One rule; offsets are from the start of the page, 0 matches anything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Glob over the executable.
    pub exe: u32,
    /// Glob over the file's path.
    pub path: u32,
    /// Array of uids.
    pub users: u32,
    /// How many uids.
    pub user_count: u32,
    /// The dial's class.
    pub class: u32,
    /// Zero.
    pub reserved: u32,
}

/// The control page's fixed part; rules and their strings follow.
#[repr(C)]
pub struct Page {
    /// [`PAGE_MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Bytes of the whole file.
    pub size: AtomicU32,
    /// Ticks until which answers may be late.
    pub lease_until: AtomicU64,
    /// Ticks that `lease_until` may be ahead at most.
    pub lease_span: AtomicU64,
    /// `CLOCK_*`.
    pub clock: AtomicU32,
    /// 0: every call is real.
    pub relax: AtomicU32,
    /// errno of a write-back error, or 0.
    pub error: AtomicU32,
    /// 1: more than one file system has owed; requests are counted for each.
    pub several: AtomicU32,
    /// Bit c: class c is at `now`.
    pub now_mask: AtomicU32,
    /// How many rules.
    pub rule_count: AtomicU32,
    /// Not 0: events are recorded. Another number than before: what was told of descriptors is told
    /// again.
    pub record: AtomicU32,
    /// `NEEDS_*`.
    pub rule_needs: AtomicU32,
    /// Bytes of the slots file.
    pub slots_size: AtomicU32,
    /// Seccomp filters that a process of the session has at its start.
    pub filters: AtomicU32,
    /// 1: the session has an entry in its ledger, which is gone only if somebody else has taken it.
    pub entered: AtomicU32,
    /// 1: `sync()` may be put off.
    pub sync_ok: AtomicU32,
    /// Abstract name of the socket that hands out the slots.
    pub socket: [AtomicU8; 32],
    /// Offset of the rules.
    pub rules_at: AtomicU32,
    /// Cells of one ring, a power of two; 0 without a recording.
    pub ring_cells: AtomicU32,
    /// Superblocks.
    pub fs: [Fs; FS_MAX],
    /// Device numbers.
    pub names: [Name; NAME_MAX],
    /// Where `record` is set: ticks from which on a call that is no request is an event; 0: no such
    /// calls are timed.
    pub slow: AtomicU64,
    /// Nanoseconds of a tick, times 2^20.
    pub scale: AtomicU32,
    /// Not 0: a seccomp filter of the session looks at sync requests too, and lets those pass that
    /// carry this ([`cookie`]).
    pub net: AtomicU32,
    /// errno of a write-back error that somebody was told who settles, or 0: whom it concerns is
    /// judged by the supervisor.
    pub told: AtomicU32,
    /// The same that somebody was told who settled for himself where the session owes, or 0.
    pub heard: AtomicU32,
}

/// One cache line of counters.
#[repr(C)]
pub struct Shard {
    /// Covered requests.
    pub requests: AtomicU64,
    /// Made for real.
    pub real: AtomicU64,
    /// Answered with an error.
    pub failed: AtomicU64,
    /// `sync_file_range` calls.
    pub hints: AtomicU64,
    /// Ticks spent in real requests.
    pub ticks: AtomicU64,
    /// `sync_file_range` calls made for real.
    pub hints_real: AtomicU64,
    /// Those of `real` whose time is in `ticks`.
    pub timed: AtomicU64,
    /// Those of `real` that another process made: the net's.
    pub elsewhere: AtomicU64,
}

/// One process.
#[repr(C)]
pub struct Slot {
    /// As the process sees it; 0 is a free slot.
    pub pid: AtomicU32,
    /// `SLOT_*`.
    pub flags: AtomicU32,
    /// Inode of its pid namespace, 0 unknown.
    pub pid_ns: AtomicU64,
    /// A device number that the page does not know.
    pub ask_dev: AtomicU64,
    /// The number of what is about to be unmounted.
    pub umount_dev: AtomicU64,
    /// `UMOUNT_*`; a futex.
    pub umount: AtomicU32,
    /// Effective user when the slot was claimed.
    pub uid: AtomicU32,
    /// Events that found no ring at all.
    pub lost: AtomicU64,
    /// A descriptor with the number [`Slot::ask_dev`], or -1.
    pub ask_fd: AtomicI32,
    reserved_ask: u32,
    /// The mount of what is about to be unmounted, as mountinfo shows it; 0: not known.
    pub umount_mount: AtomicU64,
    /// Requests kept real, by reason.
    pub kept: [AtomicU32; KEPT_MAX],
    /// Counters.
    pub shard: [Shard; SHARDS],
}

/// `sync()` was asked for and wants every file system in the ledger.
pub const SYNC_WANTS: u32 = 1;
/// A `sync()` was put off, and it was not looked yet who writes where.
pub const SYNC_LATER: u32 = 2;

/// The slots file. Hostile input: victims write it.
#[repr(C)]
pub struct Slots {
    /// [`SLOTS_MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Bytes of the file.
    pub size: AtomicU32,
    /// Moved on, and woken, at each event.
    pub doorbell: AtomicU32,
    reserved_look: u32,
    /// Not 0: a descriptor may have lost its `O_SYNC`. Bit 0: by a member with these slots; bit 1:
    /// by another user, who says so in slots of his own.
    pub stripped: AtomicU32,
    /// [`SYNC_WANTS`], [`SYNC_LATER`].
    pub want_sync: AtomicU32,
    /// Bit i ([`FS_MAX`]: sync): a request was put off there, settled meanwhile or not.
    pub owed: [AtomicU32; 3],
    /// Not 0: a request was kept real by a session inside, which was asked before.
    pub unasked: AtomicU32,
    /// Requests put off that owe nothing: of what lies in memory.
    pub in_memory: AtomicU64,
    reserved: u64,
    /// Ticks of the oldest request owed, by file system and class.
    pub debt: [[AtomicU64; CLASS_MAX]; FS_MAX + 1],
    /// Requests by file system, with [`Page::several`].
    pub fs_requests: [AtomicU64; FS_MAX],
    /// Processes.
    pub slot: [Slot; SLOT_MAX],
    /// By file system: how many syncs that were made for real took how long.
    pub took: [[AtomicU32; TOOK_PLACES]; FS_MAX],
    /// Bit i: rule i, as they lie behind the page, has decided about a process or a request.
    pub matched: [AtomicU32; RULE_MAX / 32],
    /// How many calls were to put a filter on all threads of a process, by kin.
    pub tsyncs: [AtomicU32; KIN_MAX],
}

/// The upper half of a cookie, where an argument has 64 bits: `SL_COOKIE`.
pub const COOKIE: u64 = 0x7379_6e63 << 32;

/// What a real call of the library carries as its sixth argument (its fifth in pwritev2), where it
/// has 64 bits; 32-bit programs have room for `net` alone.
#[must_use]
pub fn cookie(net: u32) -> u64 {
    COOKIE | u64::from(net)
}

/// The first place of a device number in [`Page::names`]; the next [`PROBE_MAX`] - 1 follow.
#[must_use]
pub fn name_place(dev: u64) -> usize {
    (dev.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 as usize
}

/// The ticks in the middle of a place of [`Slots::took`].
#[must_use]
pub fn took_ticks(place: usize) -> u64 {
    let eighth = (1u64 << TOOK_FIRST << (place.min(TOOK_PLACES - 1) / 8)) / 8;
    eighth * (8 + place as u64 % 8) + eighth / 2
}

impl Page {
    /// The errno of a write that was lost, also where it is not known whether that concerns the
    /// session; or 0.
    #[must_use]
    pub fn lost(&self) -> u32 {
        let all = [&self.error, &self.told, &self.heard].map(|errno| errno.load(SeqCst));
        all.into_iter().find(|errno| *errno != 0).unwrap_or(0)
    }

    /// The places where a device number may stand.
    pub fn places(&self, dev: u64) -> impl Iterator<Item = &Name> {
        let first = name_place(dev);
        (0..PROBE_MAX).map(move |k| &self.names[(first + k) % NAME_MAX])
    }

    /// What stands for a device number on a mount (0: not known which), as the shim reads it: an
    /// index, or `NAME_*`.
    #[must_use]
    pub fn named(&self, dev: u64, mount: u64) -> Option<u32> {
        for place in self.places(dev) {
            let turn = place.turn.load(SeqCst);
            match place.dev.load(SeqCst) {
                0 => return None,
                there if there != dev => continue,
                _ => {}
            }
            let (on, fs) = (place.mount.load(SeqCst), place.fs.load(SeqCst));
            if turn % 2 == 1 || place.turn.load(SeqCst) != turn {
                return None;
            }
            if on == 0 || on == mount {
                return Some(fs);
            }
        }
        None
    }
}

/// A structure of this file: atomics all through, valid for any bytes.
pub trait Layout: sealed::Sealed + Sized {
    /// The structure at the start of shared memory, or `None` where the memory is too small or not
    /// aligned to 8. Nothing is said of its content.
    #[must_use]
    fn view(bytes: &[AtomicU8]) -> Option<&Self> {
        let start = bytes.as_ptr().cast::<Self>();
        if bytes.len() < size_of::<Self>() || !start.is_aligned() {
            return None;
        }
        // SAFETY: size and alignment were checked; implementors hold atomics (and reserved words
        // that nobody reads), so any bytes are valid and others may write them; the lifetime is
        // that of the borrowed bytes.
        Some(unsafe { &*start })
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Page {}
    impl Sealed for super::Slots {}
}

impl Layout for Page {}
impl Layout for Slots {}

const _: () = assert!(size_of::<Fs>() == 16);
const _: () = assert!(size_of::<Name>() == 24);
const _: () = assert!(size_of::<Rule>() == 24);
const _: () = assert!(size_of::<Shard>() == 64);
const _: () = assert!(size_of::<Slot>() == 128 + 64 * SHARDS);
const _: () = assert!(size_of::<Page>() == 144 + 16 * FS_MAX + 24 * NAME_MAX);
const _: () = assert!(
    size_of::<Slots>()
        == 64
            + 8 * (FS_MAX + 1) * CLASS_MAX
            + 8 * FS_MAX
            + 4 * FS_MAX * TOOK_PLACES
            + RULE_MAX / 8
            + 4 * KIN_MAX
            + SLOT_MAX * size_of::<Slot>()
);
