//! Hierarchies of control groups, by the mounts of them that are in sight.
//!
//! Promise: what is returned is the root of one, open. The path to it may lead to another place by
//! now, which somebody else has made: so it is looked at once it is open, and not gone by again.

use super::dirs;
use super::mounts::mounts_of;
use rustix::fs::{mkdirat, openat, Mode, OFlags};
use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use synclater_proc::mountinfo::Mount;
use synclater_sys::mount;

/// Whether a mount is the hierarchy of version 1 that freezes, and may be written to.
fn freezes(m: &Mount) -> bool {
    let has_it = m.super_options.split(',').any(|o| o == "freezer");
    m.fstype == "cgroup" && has_it && m.writable
}

/// Whether it is that of version 2, and may be written to.
fn is_v2(m: &Mount) -> bool {
    m.fstype == "cgroup2" && m.writable
}

/// The root of cgroup2, and of the one of cgroup v1 that freezes, where it is mounted to be written
/// and nobody else's.
pub fn to_write() -> impl Iterator<Item = OwnedFd> {
    let found = [outermost(freezes, is_own), outermost(is_v2, is_own)];
    found.into_iter().flatten()
}

/// Whether a folder is nobody else's.
fn is_own(seen: &Metadata) -> bool {
    dirs::distrust(seen).is_none()
}

/// The root of cgroup2, where it is ours or root's.
#[must_use]
pub fn version_2() -> Option<OwnedFd> {
    outermost(
        |m| m.fstype == "cgroup2",
        |seen| dirs::distrust_above(seen).is_none(),
    )
}

/// The way to a folder that is held open, for as long as it is: nobody can have it lead elsewhere.
#[must_use]
pub fn held(root: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", root.as_raw_fd()).into()
}

/// Of several mounts of one the outermost that is not covered by another.
fn outermost(
    is_one: impl Fn(&Mount) -> bool,
    is_ours: impl Fn(&Metadata) -> bool,
) -> Option<OwnedFd> {
    let mut all = mounts_of("self");
    all.retain(is_one);
    if all.iter().any(|m| m.root == b"/") {
        all.retain(|m| m.root == b"/");
    }
    all.iter().find_map(|one| root_of(one, &is_ours))
}

/// The root of a mount that is not covered by another, open.
fn root_of(one: &Mount, is_ours: impl Fn(&Metadata) -> bool) -> Option<OwnedFd> {
    let root = mount::open_point(one.path()).ok()?;
    let is_it = mount::id_of_fd(&root, mount::MNT_ID).is_ok_and(|id| id == one.id);
    let root = File::from(root);
    let is_ours = root.metadata().is_ok_and(|seen| is_ours(&seen));
    (is_it && is_ours).then(|| OwnedFd::from(root))
}

/// Leaves the victims' cgroups, where such hierarchies can be written: that of cgroup2, and the one
/// that freezes of cgroup v1. Best effort: without it, what freezes or kills those hits the caller
/// too (the keeper's ledger entry stays open).
pub fn enter_own_cgroup() {
    for root in to_write() {
        let _ = enter_group(&root);
    }
}

fn enter_group(root: &OwnedFd) -> rustix::io::Result<()> {
    let _ = mkdirat(root, KEEPERS, Mode::from_raw_mode(0o755));
    let in_it = OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let group = openat(root, KEEPERS, in_it | OFlags::DIRECTORY, Mode::empty())?;
    let members = openat(group, "cgroup.procs", in_it | OFlags::WRONLY, Mode::empty())?;
    rustix::io::write(members, b"0").map(drop)
}

/// Where keepers live, in each hierarchy.
pub const KEEPERS: &str = "synclater-keeper";
