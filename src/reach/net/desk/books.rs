//! What the session's page says of a request, and what is written into its slots: the class and the
//! file system, the debt, the counters.

use super::{add, shard_of, Desk, Subject};
use crate::reach::net::visitor::Visitor;
use rustix::fs::{AtFlags, FileType, StatxFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use synclater_model::policy::dial::Until;
use synclater_model::reach::filter::Asked;
use synclater_shim::page::{self, Kept, Shard};
use synclater_sys::wait;

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
        let class = self.class(subject)?;
        match self.page().error.load(SeqCst) {
            0 => {}
            error => return Ok(Err(Errno::from_raw_os_error(error.cast_signed()))),
        }
        let fs = self.filesystem(subject)?;
        self.may_owe(fs).map(|()| Ok((fs, class)))
    }

    pub(super) fn relaxes(&self) -> bool {
        self.page().relax.load(SeqCst) != 0
    }

    pub(super) fn class(&self, subject: &Subject<'_>) -> Result<usize, Kept> {
        let is_now = |class: usize| self.page().now_mask.load(SeqCst) >> class & 1 == 1;
        let Some(rules) = &self.terms.rules else {
            return if is_now(0) { Err(Kept::Now) } else { Ok(0) };
        };
        let exe = subject.visitor.exe().ok_or(Kept::Rule)?;
        let path = rules.asks_for_path().then(|| path_of(subject)).flatten();
        let user = rules
            .asks_for_user()
            .then(|| subject.visitor.user())
            .flatten();
        let users = &self.terms.users;
        let is_user = |glob: &str| user.is_some_and(|uid| users.fit(glob, uid));
        let path = path.as_ref().map(|p| p.as_os_str().as_bytes());
        let exe = exe.as_os_str().as_bytes();
        let rule = rules.first_match(exe, is_user, path).ok_or(Kept::Rule)?;
        let class = self.class_of(rule.until);
        if is_now(class) {
            Err(Kept::Rule)
        } else {
            Ok(class)
        }
    }

    pub(super) fn class_of(&self, until: Option<Until>) -> usize {
        crate::session::compile::class_of(&self.terms.classes, until)
    }

    pub(super) fn filesystem(&self, subject: &Subject<'_>) -> Result<usize, Kept> {
        let page = self.page();
        if let Some(mapping) = subject.mapped {
            let is_it = |fs: &page::Fs| {
                fs.state.load(SeqCst) != page::FS_FREE && fs.dev.load(SeqCst) == mapping.device
            };
            return page.fs.iter().position(is_it).ok_or(Kept::Unknown);
        }
        let Some(file) = subject.file else {
            return Ok(page::ALL_FS);
        };
        let (id, kind) = self.place_of(file)?;
        if !matches!(
            kind,
            FileType::RegularFile | FileType::Directory | FileType::Symlink
        ) {
            return Err(Kept::Block);
        }
        if let Some(fs) = self.filesystem_of(id) {
            return Ok(fs);
        }
        let slot = subject.visitor.slot(self.slots());
        if slot.ask_mount.swap(id, SeqCst) != id {
            self.ring();
        }
        Err(Kept::Unknown)
    }

    /// The mount that a file lies in, and what it is.
    pub(super) fn place_of(&self, file: &OwnedFd) -> Result<(u64, FileType), Kept> {
        let mask = self.page().mount_mask.load(SeqCst);
        let want = StatxFlags::from_bits_retain(mask) | StatxFlags::TYPE;
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let x = rustix::fs::statx(file, "", how, want).map_err(|_| Kept::Unknown)?;
        if x.stx_mask & mask == 0 {
            return Err(Kept::Unknown);
        }
        Ok((x.stx_mnt_id, FileType::from_raw_mode(x.stx_mode.into())))
    }

    /// The file system of a mount, where the page has it.
    pub(super) fn filesystem_of(&self, mount: u64) -> Option<usize> {
        let (page, first) = (self.page(), page::mount_place(mount));
        let places = (0..page::PROBE_MAX).map(|k| &page.mounts[(first + k) % page::MOUNT_MAX]);
        { places.take_while(|m| m.id.load(SeqCst) != 0) }
            .find(|m| m.id.load(SeqCst) == mount)
            .map(|m| m.fs.load(SeqCst) as usize)
            .filter(|fs| *fs < page::FS_MAX)
    }

    pub(super) fn may_owe(&self, fs: usize) -> Result<(), Kept> {
        let (page, slots) = (self.page(), self.slots());
        if fs == page::ALL_FS {
            if page.sync_ok.load(SeqCst) != 0 {
                return Ok(());
            }
            if slots.want_sync.swap(1, SeqCst) == 0 {
                self.ring();
            }
            return Err(Kept::SyncAll);
        }
        match page.fs[fs].state.load(SeqCst) {
            page::FS_OWES | page::FS_NOTHING => Ok(()),
            page::FS_KNOWN => {
                if slots.want.fetch_or(1 << fs, SeqCst) >> fs & 1 == 0 {
                    self.ring();
                }
                Err(Kept::Ledger)
            }
            _ => Err(Kept::Filesystem),
        }
    }

    pub(super) fn owe(&self, fs: usize, class: usize) {
        let (page, slots) = (self.page(), self.slots());
        if fs < page::FS_MAX {
            if page.single.load(SeqCst) == 0 || slots.look.load(SeqCst) != 0 {
                add(&slots.fs_requests[fs]);
            }
            if page.fs[fs].state.load(SeqCst) == page::FS_NOTHING {
                return;
            }
        }
        let debt = &slots.debt[fs][class];
        let now = self.terms.shared.clock.now() | 1;
        let is_first = || debt.compare_exchange(0, now, SeqCst, SeqCst).is_ok();
        if debt.load(SeqCst) == 0 && is_first() {
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
