//! What the session's page says of a request, and what is written into its slots: the class and the
//! file system, the debt, the counters.

use super::{add, shard_of, Desk, Subject};
use crate::reach::net::visitor::Visitor;
use rustix::fs::FileType;
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use synclater_patching::filter::Asked;
use synclater_policy::dial::Until;
use synclater_shim::page::{self, Kept, Shard};
use synclater_sys::mount::place_of_fd;
use synclater_sys::seccomp::sync_range;
use synclater_sys::wait;

/// An index that no file system has: what is asked for is in memory alone.
const NOTHING: usize = usize::MAX;

fn is_memory(file: &OwnedFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC)
}

impl Desk {
    /// The file system and the class that a request may be owed to, a write-back error, or why it
    /// is real.
    pub(super) fn later(
        &self,
        subject: &Subject<'_>,
    ) -> Result<Result<(usize, usize), Errno>, Kept> {
        if !self.relaxes() {
            return Err(Kept::Now);
        }
        if self.terms.shared.lease_is_over() {
            return Err(Kept::Lease);
        }
        // What a session inside takes for real, it has promised.
        if subject.visitor.is_inside(self.terms.supervisor) {
            return Err(Kept::Now);
        }
        let class = self.class(subject)?;
        match self.page().error.load(SeqCst) {
            0 => {}
            error => return Ok(Err(Errno::from_raw_os_error(error.cast_signed()))),
        }
        Ok(self.filesystem(subject)?.map(|fs| (fs, class)))
    }

    pub(super) fn relaxes(&self) -> bool {
        self.page().relax.load(SeqCst) != 0
    }

    pub(super) fn class(&self, subject: &Subject<'_>) -> Result<usize, Kept> {
        let Some(rules) = &self.terms.rules else {
            return if self.is_now(0) {
                Err(Kept::Now)
            } else {
                Ok(0)
            };
        };
        let exe = subject.visitor.exe().ok_or(Kept::Rule)?;
        let path = rules.asks_for_path().then(|| path_of(subject)).flatten();
        let user = rules
            .asks_for_user()
            .then(|| subject.visitor.user())
            .flatten();
        let users = &self.terms.users;
        let path = path.as_ref().map(|p| p.as_os_str().as_bytes());
        let exe = exe.as_os_str().as_bytes();
        let at = rules
            .first_match_at(
                exe,
                |glob| user.is_some_and(|uid| users.fit(glob, uid)),
                path,
            )
            .ok_or(Kept::Rule)?;
        self.terms.shared.has_decided(self.terms.places[at].start);
        let class = self.class_of(rules.rules[at].until);
        if self.is_now(class) {
            Err(Kept::Rule)
        } else {
            Ok(class)
        }
    }

    /// Whether requests of a class are real.
    fn is_now(&self, class: usize) -> bool {
        self.page().now_mask.load(SeqCst) >> class & 1 == 1
    }

    pub(super) fn class_of(&self, until: Option<Until>) -> usize {
        crate::session::compile::class_of(&self.terms.classes, until)
    }

    /// The file system that a request may be owed to, by the number that its descriptor shows now;
    /// `None` where it has nothing to write.
    pub(super) fn filesystem(&self, subject: &Subject<'_>) -> Result<Result<usize, Errno>, Kept> {
        let (page, slots) = (self.page(), self.slots());
        if let Some(mapping) = subject.mapped {
            return self.named((mapping.device, 0), subject, None).map(Ok);
        }
        let Some(file) = subject.file else {
            if page.sync_ok.load(SeqCst) != 0 {
                return Ok(Ok(page::ALL_FS));
            }
            let before = slots.want_sync.fetch_or(page::SYNC_WANTS, SeqCst);
            if before & page::SYNC_WANTS == 0 {
                self.ring();
                return Err(Kept::Ledger);
            }
            return Err(Kept::SyncAll);
        };
        let place = place_of_fd(file).map_err(|_| Kept::Unknown)?;
        if !matches!(
            place.kind,
            FileType::RegularFile | FileType::Directory | FileType::Symlink
        ) {
            return Err(Kept::Block);
        }
        let fs = self.named((place.dev, place.mount), subject, Some(file))?;
        // Its own write-back errors, as fsync would tell them, of a part that has nothing to write.
        const FAR: i64 = 0x7fff_ffff_ffff_f000;
        const WAIT_BEFORE: u32 = 1;
        match sync_range(file.as_fd(), FAR, 1, WAIT_BEFORE) {
            Ok(()) => Ok(Ok(fs)),
            Err(e) => Ok(Err(Errno::from_io_error(&e).unwrap_or(Errno::IO))),
        }
    }

    /// What the page says of a number on a mount.
    fn named(
        &self,
        (number, mount): (u64, u64),
        subject: &Subject<'_>,
        file: Option<&OwnedFd>,
    ) -> Result<usize, Kept> {
        let page = self.page();
        match page.named(number, mount) {
            Some(fs) if (fs as usize) < page::FS_MAX => {
                let owes = page.fs[fs as usize].state.load(SeqCst) == page::FS_OWES;
                owes.then_some(fs as usize).ok_or(Kept::Ledger)
            }
            Some(page::NAME_MEMORY) if file.is_some_and(is_memory) => Ok(NOTHING),
            Some(page::NAME_MEMORY | page::NAME_REAL) => Err(Kept::Filesystem),
            Some(page::NAME_AWAY) => Err(Kept::Away),
            Some(_) => Err(Kept::Unknown),
            None if number == 0 => Err(Kept::Unknown),
            None => {
                let slot = subject.visitor.slot(self.slots());
                if slot.ask_dev.load(SeqCst) != number {
                    slot.ask_fd.store(subject.descriptor, SeqCst);
                    slot.ask_dev.store(number, SeqCst);
                    self.ring();
                }
                Err(Kept::Ledger)
            }
        }
    }

    pub(super) fn owe(&self, fs: usize, class: usize) {
        let (page, slots) = (self.page(), self.slots());
        if fs == NOTHING {
            add(&slots.in_memory);
            return;
        }
        if fs < page::FS_MAX && page.several.load(SeqCst) != 0 {
            add(&slots.fs_requests[fs]);
        }
        let debt = &slots.debt[fs][class];
        slots.owed[fs / 32].fetch_or(1 << (fs % 32), SeqCst);
        let now = self.terms.shared.clock.now() | 1;
        let is_sync = fs == page::ALL_FS;
        if is_sync {
            slots.want_sync.fetch_or(page::SYNC_LATER, SeqCst);
        }
        let is_first =
            debt.load(SeqCst) == 0 && debt.compare_exchange(0, now, SeqCst, SeqCst).is_ok();
        if is_first || is_sync {
            self.ring();
        }
    }

    /// Wakes the supervisor.
    pub(super) fn ring(&self) {
        let bell = &self.slots().doorbell;
        bell.fetch_add(1, SeqCst);
        wait::wake(bell);
    }

    pub(super) fn counters(&self, visitor: &Visitor) -> &'static Shard {
        &visitor.slot(self.slots()).shard[shard_of(visitor)]
    }

    pub(super) fn count(&self, visitor: &Visitor, asked: Asked) {
        let at = self.counters(visitor);
        add(if asked == Asked::Range {
            &at.hints
        } else {
            &at.requests
        });
        if self.page().record.load(SeqCst) != 0 {
            add(&visitor.slot(self.slots()).lost);
        }
    }

    pub(super) fn keep(&self, visitor: &Visitor, why: Kept) {
        add(&self.counters(visitor).real);
        let kept = &visitor.slot(self.slots()).kept[why as usize];
        kept.fetch_add(1, SeqCst);
    }
}

/// The file of a request, as we see it.
fn path_of(subject: &Subject<'_>) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    if let Some(mapping) = subject.mapped {
        return Some(PathBuf::from(&mapping.name));
    }
    let file = subject.file?;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}
