//! What a request that the filter asks about is answered: the decisions of the library
//! (crates/shim/c/core/), made from outside.
//!
//! Promise: the same order as there: a request is counted first, and only then are the dial, the
//! lease and the state of the file system read; so a settle that begins after the relaxation was
//! ended covers every request that still saw it.
//! Not as there: what asks for `O_SYNC` gets it, since writes are not asked about and it could not
//! come back; it is counted. Requests are not recorded: while a recording is made each counts as an
//! event that was lost.

mod books;
#[cfg(test)]
mod same;
mod umounts;

use super::visitor::{Visitor, Visitors};
use super::Terms;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use synclater_patching::filter::{asked, telling_argument, Asked};
use synclater_proc::maps::{self, Mapping};
use synclater_shim::page::{self, Kept, Page, Slots};
use synclater_sys::remote::Memory;
use synclater_sys::seccomp::{check_fsync, has_x32, sync_range, Answer, Call};
use umounts::Turns;
pub use umounts::Unmounting;

/// What is to be done about a call.
pub enum Verdict {
    /// It is answered.
    Answered(Answer),
    /// It is to be made here, and answered as the kernel does.
    Made(Making),
    /// It is made by the program, once nothing of ours stands in the way.
    Unmounts(Unmounting),
}

/// A call that is made for somebody, or answered at once: what is open for it is closed behind.
pub struct Making {
    asked: Asked,
    /// What it is answered, if that is known.
    pub answer: Option<Answer>,
    /// What is open for it. To close that may wait for who serves it (FUSE), as the call does.
    pub file: Option<OwnedFd>,
    slot: usize,
    shard: usize,
}

/// How far a call had come when its answerer ended: it was counted.
pub const COUNTED: u64 = 1;
/// So was what becomes of it.
pub const ALL_COUNTED: u64 = 2;

/// Where it is decided.
pub struct Desk {
    terms: Terms,
    turns: Turns,
}

/// What a request is about.
struct Subject<'a> {
    visitor: &'a Visitor,
    file: Option<&'a OwnedFd>,
    /// Its number there, or -1.
    descriptor: i32,
    /// Or a part of its memory.
    mapped: Option<&'a Mapping>,
}

/// Flags of msync(2); `MS_ASYNC` beside `MS_SYNC` is an error.
const MS_INVALIDATE: u32 = 2;
const MS_SYNC: u32 = 4;

fn itself() -> Verdict {
    Verdict::Answered(Answer::Itself)
}

impl Desk {
    /// With the terms of a session.
    #[must_use]
    pub fn new(terms: Terms) -> Desk {
        let turns = Turns::default();
        Desk { terms, turns }
    }

    fn page(&self) -> &'static Page {
        self.terms.shared.page()
    }

    fn slots(&self) -> &'static Slots {
        self.terms.shared.slots()
    }

    /// Whether to decide may take longer: what a program's memory or a path leads to may be a file
    /// system whose server waits for us as well.
    #[must_use]
    pub fn may_wait(&self, call: &Call) -> bool {
        use Asked::{Msync, OpenHow, Umount};
        asked(call.arch, call.number).is_some_and(|a| [Msync, OpenHow, Umount].contains(&a))
    }

    /// Decides about a call. `counted` is called once it is counted.
    pub fn decide(&self, call: &Call, visitors: &mut Visitors, counted: impl Fn()) -> Verdict {
        let Some(asked) = asked(call.arch, call.number) else {
            return itself();
        };
        // A kernel that has no such programs says so.
        if call.is_x32() && !has_x32() {
            return itself();
        }
        if let Asked::Fsync | Asked::Fdatasync | Asked::Syncfs | Asked::Range = asked {
            return self.of_file(asked, call, visitors, counted);
        }
        let visitor = match visitors.meet(call.tid, self.slots()) {
            Ok(visitor) if !visitor.is_one_of_us => visitor,
            // Who cannot be looked at makes it for real, too.
            _ => return itself(),
        };
        match asked {
            Asked::Sync => self.of_everything(visitor, counted),
            Asked::Msync => self.of_memory(visitor, call, counted),
            Asked::Umount => self.of_mount(visitor, call).unwrap_or_else(itself),
            _ => self.left_alone(visitor, asked, call, counted),
        }
    }

    /// What was received by one that has ended: made for real.
    pub fn rescue(&self, call: &Call, stage: u64, visitors: &mut Visitors) -> Answer {
        use Asked::{Fdatasync, FlaggedWrite, Fsync, Msync, Range, Sync, Syncfs};
        let asked = asked(call.arch, call.number);
        let requests = [Fsync, Fdatasync, Syncfs, Sync, Msync, FlaggedWrite, Range];
        if !asked.is_some_and(|asked| requests.contains(&asked)) {
            return Answer::Itself;
        }
        let is_hint = asked == Some(Range);
        if let Ok(visitor) = visitors.meet(call.tid, self.slots()) {
            let at = self.counters(visitor);
            if stage < COUNTED {
                add(if is_hint { &at.hints } else { &at.requests });
            }
            if is_hint {
                add(&at.hints_real);
            } else if stage < ALL_COUNTED {
                self.keep(visitor, Kept::Lease);
            }
        }
        Answer::Itself
    }

    fn of_file(
        &self,
        asked: Asked,
        call: &Call,
        visitors: &mut Visitors,
        counted: impl Fn(),
    ) -> Verdict {
        // The kernel takes the lower half, too.
        let fd = call.arguments[0] as i32;
        let found = visitors.file_of(call.tid, fd, self.slots());
        let (visitor, file) = match found {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BADF) => {
                let Some(visitor) = visitors.known(call.tid) else {
                    return itself();
                };
                self.count(visitor, asked);
                counted();
                return self.failed(visitor, asked, Errno::BADF);
            }
            Err(_) => return self.not_looked_at(asked, call, visitors, counted),
            Ok(found) => found,
        };
        if visitor.is_one_of_us {
            return self.making(visitor, asked, Some(file), Some(Answer::Itself));
        }
        self.count(visitor, asked);
        counted();
        if self.relaxes() || asked == Asked::Range {
            if let Err(e) = check(asked, &file, call) {
                return self.failing(visitor, asked, file, errno(e));
            }
        }
        let subject = Subject {
            visitor,
            file: Some(&file),
            descriptor: fd,
            mapped: None,
        };
        match self.later(&subject) {
            Ok(Ok((fs, class))) => {
                self.owe(fs, class);
                if is_overlay(&file) {
                    // What lies below it may be anybody's.
                    self.making(visitor, asked, Some(file), Some(Answer::Value(0)))
                } else {
                    Verdict::Answered(Answer::Value(0))
                }
            }
            Ok(Err(e)) => self.failing(visitor, asked, file, e),
            Err(_) if asked == Asked::Range => {
                add(&self.counters(visitor).hints_real);
                self.making(visitor, asked, Some(file), None)
            }
            Err(why) => self.made(visitor, asked, Some(file), why),
        }
    }

    /// A request whose descriptor may not be looked at (Yama, say): the program makes it.
    fn not_looked_at(
        &self,
        asked: Asked,
        call: &Call,
        visitors: &Visitors,
        counted: impl Fn(),
    ) -> Verdict {
        if let Some(visitor) = visitors.known(call.tid).filter(|v| !v.is_one_of_us) {
            self.count(visitor, asked);
            counted();
            if asked == Asked::Range {
                add(&self.counters(visitor).hints_real);
            } else {
                self.keep(visitor, Kept::Unknown);
            }
        }
        itself()
    }

    fn of_everything(&self, visitor: &Visitor, counted: impl Fn()) -> Verdict {
        self.count(visitor, Asked::Sync);
        counted();
        let subject = Subject {
            visitor,
            file: None,
            descriptor: -1,
            mapped: None,
        };
        match self.later(&subject) {
            Ok(Ok((fs, class))) => {
                self.owe(fs, class);
                Verdict::Answered(Answer::Value(0))
            }
            // sync(2) has no error.
            Ok(Err(_)) => self.made(visitor, Asked::Sync, None, Kept::Now),
            Err(why) => self.made(visitor, Asked::Sync, None, why),
        }
    }

    /// msync: what its range maps, one file system after the other. Made by the program itself
    /// where it is real: its memory is its own.
    fn of_memory(&self, visitor: &Visitor, call: &Call, counted: impl Fn()) -> Verdict {
        let [start, length, flags, ..] = call.arguments;
        self.count(visitor, Asked::Msync);
        counted();
        if !self.relaxes() {
            return self.kept(visitor, Kept::Now);
        }
        // Every page size is a multiple of it; where that is greater, the kernel says so.
        let page_bytes = 4096;
        if !start.is_multiple_of(page_bytes) || flags as u32 & !MS_INVALIDATE != MS_SYNC {
            return self.failed(visitor, Asked::Msync, Errno::INVAL);
        }
        // As the kernel computes it: the greatest length is none.
        let length = length.wrapping_add(page_bytes - 1) & !(page_bytes - 1);
        let end = start.wrapping_add(length);
        if end < start {
            return self.failed(visitor, Asked::Msync, Errno::NOMEM);
        }
        // Locked pages say EBUSY; and nothing is put off that has nothing to write.
        if flags as u32 != MS_SYNC || start == end {
            return self.kept(visitor, Kept::Unknown);
        }
        match self.of_range(visitor, start..end) {
            Ok(Ok(())) => Verdict::Answered(Answer::Value(0)),
            Ok(Err(e)) => self.failed(visitor, Asked::Msync, e),
            Err(why) => self.kept(visitor, why),
        }
    }

    /// Owes what a range of memory maps, or says what the kernel would, or why it is real.
    fn of_range(&self, visitor: &Visitor, range: Range<u64>) -> Result<Result<(), Errno>, Kept> {
        let text = std::fs::read(format!("/proc/{}/maps", visitor.tid)).or(Err(Kept::Unknown))?;
        let all = maps::read(&String::from_utf8_lossy(&text));
        let within = all
            .iter()
            .filter(|m| m.range.end > range.start && m.range.start < range.end);
        let (mut at, mut has_gap, mut debts) = (range.start, false, Vec::new());
        for mapping in within {
            has_gap |= mapping.range.start > at;
            at = mapping.range.end;
            if mapping.inode == 0 {
                continue;
            }
            if !is_file(visitor.tid, mapping) {
                return Err(Kept::Unknown);
            }
            let subject = Subject {
                visitor,
                file: None,
                descriptor: -1,
                mapped: Some(mapping),
            };
            match self.later(&subject)? {
                Ok(debt) => debts.push(debt),
                Err(e) => return Ok(Err(e)),
            }
        }
        has_gap |= at < range.end;
        if debts.is_empty() && !has_gap {
            return Err(Kept::Unknown);
        }
        for (fs, class) in debts {
            self.owe(fs, class);
        }
        Ok(if has_gap { Err(Errno::NOMEM) } else { Ok(()) })
    }

    /// Calls that are counted, and made by the program itself.
    fn left_alone(
        &self,
        visitor: &Visitor,
        asked: Asked,
        call: &Call,
        counted: impl Fn(),
    ) -> Verdict {
        let slot = visitor.slot(self.slots());
        match asked {
            Asked::FlaggedWrite => {
                self.count(visitor, asked);
                counted();
                self.keep(visitor, Kept::OSync);
            }
            Asked::Ring => {
                slot.flags.fetch_or(page::SLOT_URING, SeqCst);
            }
            // Its writes are not seen: it stands for them.
            _ if opens_for_synced_writes(call) => {
                self.count(visitor, asked);
                counted();
                self.keep(visitor, Kept::OSync);
                slot.flags.fetch_or(page::SLOT_OSYNC_KEPT, SeqCst);
            }
            _ => {}
        }
        itself()
    }

    /// A call that the program makes by itself, and why it is real.
    fn kept(&self, visitor: &Visitor, why: Kept) -> Verdict {
        self.keep(visitor, why);
        itself()
    }

    fn failed(&self, visitor: &Visitor, asked: Asked, e: Errno) -> Verdict {
        Verdict::Answered(self.error(visitor, asked, e))
    }

    /// The same of what is open here: of any file system, other users' among them.
    fn failing(&self, visitor: &Visitor, asked: Asked, file: OwnedFd, e: Errno) -> Verdict {
        let answer = self.error(visitor, asked, e);
        self.making(visitor, asked, Some(file), Some(answer))
    }

    fn error(&self, visitor: &Visitor, asked: Asked, e: Errno) -> Answer {
        if asked != Asked::Range {
            add(&self.counters(visitor).failed);
        }
        Answer::Errno(e.raw_os_error())
    }

    fn made(&self, visitor: &Visitor, asked: Asked, file: Option<OwnedFd>, why: Kept) -> Verdict {
        self.keep(visitor, why);
        self.making(visitor, asked, file, None)
    }

    fn making(
        &self,
        visitor: &Visitor,
        asked: Asked,
        file: Option<OwnedFd>,
        answer: Option<Answer>,
    ) -> Verdict {
        Verdict::Made(Making {
            asked,
            answer,
            file,
            slot: visitor.place(self.slots()),
            shard: shard_of(visitor),
        })
    }

    /// Makes a call for somebody, and closes what is open for it; either may take long.
    pub fn make(&self, making: Making) -> Answer {
        if let Some(answer) = making.answer {
            return answer;
        }
        let clock = &self.terms.shared.clock;
        let before = clock.now();
        let made = match (making.asked, &making.file) {
            (Asked::Fsync, Some(file)) => rustix::fs::fsync(file),
            (Asked::Fdatasync, Some(file)) => rustix::fs::fdatasync(file),
            (Asked::Syncfs, Some(file)) => rustix::fs::syncfs(file),
            (Asked::Sync, _) => {
                rustix::fs::sync();
                Ok(())
            }
            _ => return Answer::Itself,
        };
        let took = clock.now().wrapping_sub(before);
        let shard = &self.slots().slot[making.slot].shard[making.shard];
        shard.ticks.fetch_add(took, SeqCst);
        add(&shard.timed);
        add(&shard.elsewhere);
        match made {
            Ok(()) => Answer::Value(0),
            Err(e) => Answer::Errno(e.raw_os_error()),
        }
    }
}

/// Whether what is mapped is a regular file: of a block device its mapping shows the superblock of
/// its node. Root can look (proc(5), map_files).
fn is_file(tid: u32, mapping: &Mapping) -> bool {
    let range = &mapping.range;
    let link = format!("/proc/{tid}/map_files/{:x}-{:x}", range.start, range.end);
    synclater_sys::mount::kind_at(link.as_ref()).is_ok_and(|k| k.is_file())
}

fn shard_of(visitor: &Visitor) -> usize {
    visitor.tid as usize % page::SHARDS
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, SeqCst);
}

fn errno(e: io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

fn is_overlay(file: &OwnedFd) -> bool {
    const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;
    rustix::fs::fstatfs(file).is_ok_and(|s| s.f_type as u64 == OVERLAYFS_SUPER_MAGIC)
}

/// What the kernel would say of the arguments.
fn check(asked: Asked, file: &OwnedFd, call: &Call) -> io::Result<()> {
    match asked {
        Asked::Syncfs => {
            let flags = rustix::fs::fcntl_getfl(file)?;
            if flags.contains(OFlags::PATH) {
                return Err(Errno::BADF.into());
            }
            Ok(())
        }
        Asked::Range => {
            let [_, at, n, flags, ..] = call.arguments;
            // Unknown flags are refused before anything is written.
            let flags = if flags as u32 & !7 == 0 {
                0
            } else {
                flags as u32
            };
            sync_range(file.as_fd(), at.cast_signed(), n.cast_signed(), flags)
        }
        _ => check_fsync(file.as_fd()),
    }
}

/// Whether an open asks that each write is durable.
fn opens_for_synced_writes(call: &Call) -> bool {
    const O_DSYNC: u64 = 0x1000;
    const O_ACCMODE: u64 = 3;
    let flags = match telling_argument(call.arch, call.number) {
        Some(place) => Some(call.arguments[place]),
        // openat2: the first word of what its third argument points to.
        None => word_at(call.tid, call.arguments[2]),
    };
    flags.is_some_and(|f| f & O_DSYNC != 0 && f & O_ACCMODE != 0)
}

/// A text in a thread's memory, up to its NUL; a path's length at most.
fn text_at(tid: u32, address: u64) -> Option<Vec<u8>> {
    let memory = Memory::open(tid).ok()?;
    let mut text = Vec::new();
    while text.len() < 4096 {
        // Not into the next page, which may not be there.
        let at = address.checked_add(text.len() as u64)?;
        let part = memory.up_to(at, 256 - (at % 256) as usize).ok()?;
        let end = part.iter().position(|b| *b == 0);
        text.extend(&part[..end.unwrap_or(part.len())]);
        if end.is_some() {
            return Some(text);
        }
        if part.is_empty() {
            return None;
        }
    }
    None
}

/// Eight bytes of a thread's memory.
fn word_at(tid: u32, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    Memory::open(tid).ok()?.read(address, &mut word).ok()?;
    Some(u64::from_ne_bytes(word))
}
