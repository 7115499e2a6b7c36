//! Every mount in sight with both its numbers, by listmount(2) and statmount(2) of Linux 6.8.
//!
//! Promise: no mount is touched. A look at a mount's path holds the mount for as long as it takes,
//! and whoever unmounts it in that moment gets `EBUSY`.
//!
//! Not in libc for every architecture yet: numbers and layouts are those of
//! include/uapi/linux/mount.h, where they are alike on all.

use std::io;

const STATMOUNT: libc::c_long = 457;
const LISTMOUNT: libc::c_long = 458;
/// Everything below our root.
const LSMT_ROOT: u64 = u64::MAX;
const SB_BASIC: u64 = 1;
const MNT_BASIC: u64 = 2;
/// `MNT_ID_REQ_SIZE_VER0`
const REQUEST_BYTES: u32 = 24;
/// Mounts that are asked for at once.
const AT_ONCE: usize = 256;

/// A mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSight {
    /// Its number, which no other mount ever has: `STATX_MNT_ID_UNIQUE`.
    pub id: u64,
    /// Its number in mountinfo.
    pub old_id: u64,
    /// Its superblock's device.
    pub dev: (u32, u32),
}

/// `struct mnt_id_req`
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    id: u64,
    /// listmount: behind which mount; statmount: what is wanted.
    param: u64,
}

/// `struct statmount`, as far as it is read here; the kernel fills in no more than there is.
#[repr(C)]
#[derive(Default)]
struct Answer {
    size: u32,
    options: u32,
    mask: u64,
    dev_major: u32,
    dev_minor: u32,
    magic: u64,
    sb_flags: u32,
    fs_type: u32,
    id: u64,
    parent: u64,
    old_id: u32,
    old_parent: u32,
}

fn request(id: u64, param: u64) -> Request {
    Request {
        size: REQUEST_BYTES,
        spare: 0,
        id,
        param,
    }
}

fn answered(r: libc::c_long) -> io::Result<usize> {
    usize::try_from(r).map_err(|_| io::Error::last_os_error())
}

/// The mounts below our root.
///
/// # Errors
/// `ENOSYS` before Linux 6.8; that or `EPERM` where a filter of seccomp does not know the calls.
pub fn in_sight() -> io::Result<Vec<InSight>> {
    let mut all = Vec::new();
    let mut last = 0;
    loop {
        let mut ids = [0u64; AT_ONCE];
        let asked = request(LSMT_ROOT, last);
        let to = ids.as_mut_ptr();
        // SAFETY: it reads `asked`, whose size stands in it, and writes AT_ONCE numbers at most.
        let r = unsafe { libc::syscall(LISTMOUNT, &raw const asked, to, AT_ONCE, 0) };
        let ids = &ids[..answered(r)?.min(AT_ONCE)];
        all.extend(ids.iter().filter_map(|id| of(*id).transpose()));
        match ids.last() {
            Some(id) if ids.len() == AT_ONCE => last = *id,
            _ => return all.into_iter().collect(),
        }
    }
}

/// The mount of this number; `None` where it is gone.
fn of(id: u64) -> io::Result<Option<InSight>> {
    let asked = request(id, SB_BASIC | MNT_BASIC);
    let mut answer = Answer::default();
    let room = size_of::<Answer>();
    // SAFETY: the call reads `asked`, whose size stands in it, and writes `room` bytes at most.
    let r = unsafe { libc::syscall(STATMOUNT, &raw const asked, &raw mut answer, room, 0) };
    match answered(r) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
        Ok(_) if answer.mask & (SB_BASIC | MNT_BASIC) != SB_BASIC | MNT_BASIC => {
            Err(io::Error::from_raw_os_error(libc::ENOSYS))
        }
        Ok(_) => Ok(Some(InSight {
            id: answer.id,
            old_id: answer.old_id.into(),
            dev: (answer.dev_major, answer.dev_minor),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{id_mask, id_of_path, UNIQUE};
    use std::path::Path;

    #[test]
    fn numbers_are_those_of_statx() {
        if id_mask() != Some(UNIQUE) {
            return;
        }
        let all = in_sight().expect("mounts");
        for path in ["/", "/proc", "/sys", "/dev"] {
            let id = id_of_path(Path::new(path), UNIQUE).expect("a number");
            let old_id = id_of_path(Path::new(path), 0x1000).expect("an old number");
            let is_it = |m: &&InSight| m.id == id && m.old_id == old_id;
            assert!(
                all.iter().any(|m| is_it(&m)),
                "{path}: {id} {old_id} {all:?}"
            );
        }
    }

    #[test]
    fn every_mount_of_mountinfo_is_there() {
        if id_mask() != Some(UNIQUE) {
            return;
        }
        let is_there = || {
            let text = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
            let all = in_sight().expect("mounts");
            text.lines().all(|line| {
                let old_id = line.split(' ').next().and_then(|n| n.parse().ok());
                all.iter().any(|m| Some(m.old_id) == old_id)
            })
        };
        // Others mount and unmount meanwhile.
        assert!((0..100).any(|_| is_there()));
    }
}
