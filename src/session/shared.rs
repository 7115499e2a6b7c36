//! The control page and the slots of one session, as the supervisor and the keeper hold them: the
//! slots of its own user are a file that his programs open by its path, and each other user that is
//! a member has slots of his own ([`Others`]).

use super::compile::Compiled;
use super::others::Others;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use synclater_proc::status::Status;
use synclater_shim::page::{self, Layout, Page, Slots};
use synclater_sys::clock::{LeaseClock, Reading, Source};
use synclater_sys::memory::Mapping;
use synclater_sys::mount;

/// How long answers may go on being late after the last heartbeat. The design's bound is 2 s.
pub const LEASE: Duration = Duration::from_millis(1800);

/// How much further ahead a lease is believed at most.
const BEYOND: Duration = Duration::from_millis(200);

/// How long programs go on as if they were relaxed, at most, when nobody renews their lease.
pub const RELAXES_ON: Duration = LEASE.saturating_add(BEYOND);

/// Whose slots: the session's own user's, or the room of another one among [`Others`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The session's own user's.
    Own,
    /// That of another user.
    Other(usize),
}

/// Page and slots, with their files.
pub struct Shared {
    page: Mapping,
    slots: Mapping,
    slots_file: File,
    others: Others,
    /// The session's own user.
    user: u32,
    began: Instant,
    /// Path of the page: what victims find in `SYNCLATER_PAGE`.
    pub path: PathBuf,
    /// The clock of leases and debts.
    pub clock: LeaseClock,
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
}

impl Shared {
    /// Makes `page` and `slots` in `dir`. Nothing is relaxed yet: `relax` is 0. The lease's
    /// clock is measured since `start`.
    ///
    /// # Errors
    /// `ENOSPC`, `EACCES` and the like, from the files.
    pub fn create(
        dir: &Path,
        rules: &Compiled,
        socket: &[u8; 32],
        start: Reading,
    ) -> io::Result<Shared> {
        let path = dir.join("page");
        let slots_file = create(&dir.join("slots"), 0o600)?;
        let slots = Mapping::create(&slots_file, size_of::<Slots>())?;
        let size = size_of::<Page>() + rules.bytes.len();
        let page = Mapping::create(&create(&path, 0o644)?, size)?;
        let shared = Shared {
            page,
            slots,
            slots_file,
            others: Others::new(),
            user: synclater_sys::process::effective_user(),
            began: Instant::now(),
            path,
            clock: LeaseClock::new(start),
        };
        shared.fill(rules, socket, u32::try_from(size).unwrap_or(0));
        Ok(shared)
    }

    fn fill(&self, rules: &Compiled, socket: &[u8; 32], size: u32) {
        let (p, s) = (self.page(), self.slots());
        for (to, from) in self.page.bytes()[size_of::<Page>()..]
            .iter()
            .zip(&rules.bytes)
        {
            to.store(*from, SeqCst);
        }
        p.socket
            .iter()
            .zip(socket)
            .for_each(|(to, from)| to.store(*from, SeqCst));
        p.lease_span.store(self.clock.ticks(RELAXES_ON), SeqCst);
        let clock = match self.clock.source() {
            Source::Counter => page::CLOCK_TSC,
            Source::Realtime => page::CLOCK_REALTIME,
        };
        p.clock.store(clock, SeqCst);
        p.now_mask.store(rules.now_mask, SeqCst);
        p.rule_count.store(rules.count, SeqCst);
        p.rules_at
            .store(u32::try_from(size_of::<Page>()).unwrap_or(0), SeqCst);
        p.rule_needs.store(rules.needs, SeqCst);
        p.slots_size
            .store(u32::try_from(size_of::<Slots>()).unwrap_or(0), SeqCst);
        p.filters.store(seccomp_filters(), SeqCst);
        s.size
            .store(u32::try_from(size_of::<Slots>()).unwrap_or(0), SeqCst);
        s.version.store(page::VERSION, SeqCst);
        s.magic.store(page::SLOTS_MAGIC, SeqCst);
        p.size.store(size, SeqCst);
        p.version.store(page::VERSION, SeqCst);
        p.magic.store(page::PAGE_MAGIC, SeqCst);
    }

    /// The control page.
    #[must_use]
    pub fn page(&self) -> &Page {
        Page::view(self.page.bytes()).expect("the mapping was made for a page")
    }

    /// The slots of the session's own user. Victims write them.
    #[must_use]
    pub fn slots(&self) -> &Slots {
        Slots::view(self.slots.bytes()).expect("the mapping was made for the slots")
    }

    /// The slots of every user that has some: the own user's first, and each later one behind all
    /// that were there.
    pub fn all_slots(&self) -> impl Iterator<Item = &Slots> {
        std::iter::once(self.slots()).chain(self.others.all())
    }

    /// Whether a request was ever put off in row `fs` of the debts, by whoever it was.
    #[must_use]
    pub fn was_owed(&self, fs: usize) -> bool {
        self.all_slots()
            .any(|s| s.owed[fs / 32 % 3].load(SeqCst) >> (fs % 32) & 1 == 1)
    }

    /// Row `fs` owes, whatever requests are seen.
    pub fn owes(&self, fs: usize) {
        self.slots().owed[fs / 32 % 3].fetch_or(1 << (fs % 32), SeqCst);
    }

    /// Whether somebody may have a file that has lost its `O_SYNC`.
    #[must_use]
    pub fn any_stripped(&self) -> bool {
        self.all_slots().any(|s| s.stripped.load(SeqCst) & 1 != 0)
    }

    /// Whether a request was kept real by a session inside, before this one's rules were asked.
    #[must_use]
    pub fn any_unasked(&self) -> bool {
        self.all_slots().any(|s| s.unasked.load(SeqCst) != 0)
    }

    /// Rule `place` of the page has decided about a request.
    pub fn has_decided(&self, place: usize) {
        if let Some(word) = self.slots().matched.get(place / 32) {
            word.fetch_or(1 << (place % 32), SeqCst);
        }
    }

    /// Whether rule `place` of the page has decided about anything.
    #[must_use]
    pub fn has_matched(&self, place: usize) -> bool {
        self.all_slots().any(|s| {
            let word = s.matched.get(place / 32);
            word.map_or(0, |w| w.load(SeqCst)) >> (place % 32) & 1 == 1
        })
    }

    /// How many syncs of file system `fs` were made for real, by the places of [`Slots::took`]:
    /// those of the session's own user; others could make up any.
    #[must_use]
    pub fn took(&self, fs: usize) -> Vec<u64> {
        self.each_took(fs, |n| n.load(SeqCst))
    }

    /// The same, of which the next look knows nothing more.
    pub fn take_took(&self, fs: usize) -> Vec<u64> {
        self.each_took(fs, |n| n.swap(0, SeqCst))
    }

    fn each_took(&self, fs: usize, read: impl Fn(&AtomicU32) -> u32) -> Vec<u64> {
        let mut all = vec![0u64; page::TOOK_PLACES];
        for (sum, n) in all
            .iter_mut()
            .zip(self.slots().took.get(fs).into_iter().flatten())
        {
            *sum = read(n).into();
        }
        all
    }

    /// Requests that were put off of files in memory.
    #[must_use]
    pub fn in_memory(&self) -> u64 {
        let all = self.all_slots().map(|s| s.in_memory.load(SeqCst));
        all.fold(0, u64::saturating_add)
    }

    /// Row `fs` is another superblock's from now on.
    pub fn forget_owed(&self, fs: usize) {
        for slots in self.all_slots() {
            slots.owed[fs / 32 % 3].fetch_and(!(1 << (fs % 32)), SeqCst);
        }
    }

    /// As [`Shared::all_slots`], with whose they are; `None` for the session's own user.
    pub fn rooms(&self) -> impl Iterator<Item = (Option<u32>, &Slots)> {
        let others = self.others.by_user();
        std::iter::once((None, self.slots())).chain(others.map(|(user, s)| (Some(user), s)))
    }

    /// Where `user` has slots, who gets some where there are some left. From the first other user
    /// on everybody looks whether a descriptor that he writes to has lost its `O_SYNC`: what one
    /// user marks, others would not see in time.
    #[must_use]
    pub fn room_of(&self, user: u32) -> Option<Room> {
        if user == self.user {
            return Some(Room::Own);
        }
        let room = self.others.room_of(user)?;
        self.slots().stripped.fetch_or(2, SeqCst);
        Some(Room::Other(room))
    }

    /// The session's own user.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user
    }

    /// The rooms of other users.
    #[must_use]
    pub fn others(&self) -> &Others {
        &self.others
    }

    /// The slots' file or memory, for a member that may not open it by itself.
    #[must_use]
    pub fn slots_file(&self, room: Room) -> &File {
        match room {
            Room::Own => &self.slots_file,
            Room::Other(room) => self.others.file(room),
        }
    }

    /// The files and memory of the slots of every user.
    pub fn slots_files(&self) -> impl Iterator<Item = &File> {
        std::iter::once(&self.slots_file).chain(self.others.files())
    }

    /// How long ago the session began.
    #[must_use]
    pub fn age_of_session(&self) -> Duration {
        self.began.elapsed()
    }

    /// How old a request is that a member noted at `tick`: not older than the session, which is
    /// also what is believed of one in the future.
    #[must_use]
    pub fn age(&self, tick: u64) -> Duration {
        self.clock.age(tick, self.began.elapsed())
    }

    /// Moves the lease on; whether it was over.
    pub fn heartbeat(&self) -> bool {
        let until = self.clock.now().wrapping_add(self.clock.ticks(LEASE));
        let before = self.page().lease_until.swap(until, SeqCst);
        self.is_over(before)
    }

    /// Ends the lease at once: nobody is there any more who would settle.
    pub fn end_lease(&self) {
        let over = self.clock.now().wrapping_sub(1);
        self.page().lease_until.store(over, SeqCst);
    }

    /// Whether the lease ran out: the supervisor has stood still.
    #[must_use]
    pub fn lease_is_over(&self) -> bool {
        self.is_over(self.page().lease_until.load(SeqCst))
    }

    fn is_over(&self, lease: u64) -> bool {
        lease.wrapping_sub(self.clock.now()) > self.page().lease_span.load(SeqCst)
    }

    /// Allows or ends relaxing. Whoever ends it settles afterwards: every request that was still
    /// answered late is covered by a settle that begins after this call.
    pub fn relax(&self, on: bool) {
        self.page().relax.store(u32::from(on), SeqCst);
    }
}

/// What a page says whose session is dead.
struct Left(Vec<u8>);

impl Left {
    /// `None` of what is no page of this release.
    fn read(path: &Path) -> Option<Left> {
        let left = Left(std::fs::read(path).ok()?);
        let is_ours = left.0.starts_with(&page::PAGE_MAGIC.to_ne_bytes())
            && left.word(offset_of!(Page, version)) == Some(page::VERSION);
        is_ours.then_some(left)
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }
}

/// The write-back error that the session met whose page this is, or that somebody was told who
/// settled for it: 0 and what is no page are none.
#[must_use]
pub fn error_in(path: &Path) -> Option<i32> {
    let left = Left::read(path)?;
    let all = [
        offset_of!(Page, error),
        offset_of!(Page, told),
        offset_of!(Page, heard),
    ];
    let mut errnos = all.into_iter().filter_map(|at| left.word(at));
    i32::try_from(errnos.find(|errno| *errno != 0)?).ok()
}

/// Tells the session whose page this is what somebody else was told who settled where it owes, as
/// well as can be.
pub fn tell(path: &Path, errno: i32) {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let page = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path);
    let told = errno.unsigned_abs().to_ne_bytes();
    let _ = page.and_then(|page| page.write_all_at(&told, offset_of!(Page, heard) as u64));
}

/// Whether a page is there, in memory alone.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    Left::read(path).is_some() && mount::is_tmpfs(path)
}

/// Whether the dead session whose page this is has an entry in its ledger; `None` where there is no
/// page any more.
#[must_use]
pub fn was_entered(path: &Path) -> Option<bool> {
    Left::read(path)?
        .word(offset_of!(Page, entered))
        .map(|entered| entered != 0)
}

/// From now on the entry of the dead session whose page this is may be gone: somebody settles what
/// it says, and closes it.
///
/// # Errors
/// Those of writing it; `ENOENT` where it is not in sight.
pub fn is_being_closed(path: &Path) -> io::Result<()> {
    clear_word(path, offset_of!(Page, entered))
}

/// Programs of the dead session whose page this is put nothing off any more: until its lease is
/// over they would. A settle that begins behind this covers whatever they have put off.
///
/// Where it is not in sight they may have it all the same, in a mount namespace of theirs, or
/// removed: see [`wait_for_lease`].
///
/// # Errors
/// Those of writing the page, where there is one.
pub fn relaxes_no_more(path: &Path) -> io::Result<()> {
    match clear_word(path, offset_of!(Page, relax)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Waits until whoever is dead by now relaxes nothing any more.
pub fn wait_for_lease() {
    std::thread::sleep(RELAXES_ON);
}

fn clear_word(path: &Path, at: usize) -> io::Result<()> {
    let page = OpenOptions::new().write(true).open(path)?;
    page.write_all_at(&[0; 4], at as u64)
}

/// Seccomp filters of this process; containers put some in.
#[must_use]
pub fn seccomp_filters() -> u32 {
    if !synclater_sys::process::is_filtered() {
        return 0;
    }
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let filters = Status::parse(text).number("Seccomp_filters");
    filters.and_then(|n| n.try_into().ok()).unwrap_or(0)
}
