//! Whether the file that a process executes is one of this machine: the one that its name leads to
//! in our own mount namespace.
//!
//! In a container, or a namespace that any user may make, every file can lie at any path, and /proc
//! shows it by that. A service of this machine with mounts of its own (systemd's `PrivateTmp=`)
//! executes the same file as one without.
//! Promise: no server of a file system is asked; what cannot be told is none of ours.

use crate::session::mounts::mounts_of;
use rustix::fs::{openat2, statx, AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags, CWD};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use synclater_sys::mount::{self, MNT_ID};

/// A file that a process executes, held, so that neither its number nor that of its mount is
/// another's meanwhile.
pub struct Program {
    exe: OwnedFd,
    /// As /proc names it.
    path: PathBuf,
}

impl Program {
    /// That of process `pid`; `None` where it cannot be had.
    #[must_use]
    pub fn of(pid: u32) -> Option<Program> {
        let exe = rustix::fs::open(format!("/proc/{pid}/exe"), PLACE, Mode::empty()).ok()?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", exe.as_raw_fd())).ok()?;
        Some(Program { exe, path })
    }

    /// Whether it is a file of this machine.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.seen_on().is_some()
    }

    /// Whether nobody but root can have made it. Whose it is means nothing where the kernel itself
    /// gives nothing for that (`nosuid`): what a user mounts has the owners that he likes.
    ///
    /// # Errors
    /// In words, what says otherwise.
    pub fn is_roots(&self) -> Result<(), String> {
        let on = self.seen_on();
        let table = mounts_of("self");
        let mount = table.iter().find(|m| Some(m.id) == on);
        if mount.is_none_or(|m| m.has("nosuid")) {
            return Err(
                "it lies on a mount with nosuid, where owners may be anybody's word".into(),
            );
        }
        let want = StatxFlags::UID | StatxFlags::GID | StatxFlags::MODE;
        let Some(file) = asked(&self.exe, want) else {
            return Err("its owner cannot be told".into());
        };
        let (of_group, of_others) = (file.stx_mode & 0o020 != 0, file.stx_mode & 0o002 != 0);
        match (file.stx_uid, file.stx_gid) {
            (0, group) if !of_others && (group == 0 || !of_group) => Ok(()),
            (0, _) => Err(format!(
                "others may write it (mode {:04o})",
                file.stx_mode & 0o7777
            )),
            (user, _) => Err(format!("it belongs to user {user}")),
        }
    }

    /// The number of the mount of ours by which it is one of this machine.
    fn seen_on(&self) -> Option<u64> {
        self.at_its_path().or_else(|| self.on_our_mounts())
    }

    /// Its path leads to it here, too.
    fn at_its_path(&self) -> Option<u64> {
        let here = by_path(&self.path)?;
        let is_it = identity(&here).is_some() && identity(&here) == identity(&self.exe);
        is_it.then(|| mount::id_of_fd(&here, MNT_ID).ok())?
    }

    fn on_our_mounts(&self) -> Option<u64> {
        let its = mount::id_of_fd(&self.exe, MNT_ID).ok()?;
        mounts_of("self").iter().any(|m| m.id == its).then_some(its)
    }
}

/// A place alone: the file is not opened.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What a path leads to as far as the kernel knows by heart (`RESOLVE_CACHED`, Linux 5.12), as it
/// does of whatever is executed.
fn by_path(path: &Path) -> Option<OwnedFd> {
    openat2(CWD, path, PLACE, Mode::empty(), ResolveFlags::CACHED).ok()
}

/// Device and inode number.
fn identity(file: impl AsFd) -> Option<(u32, u32, u64)> {
    let file = asked(file, StatxFlags::INO)?;
    Some((file.stx_dev_major, file.stx_dev_minor, file.stx_ino))
}

/// What is known of a file. One in user space is not asked for: its server may wait for us.
fn asked(file: impl AsFd, want: StatxFlags) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, want).ok()
}
