//! The sites of programs that were searched before: what a program executes again and again is read
//! and searched once.
//!
//! Promise: what is remembered of a file is what a search would find. A file is known by device,
//! inode, size and both times; whoever writes to it changes ctime (inode(7)), which no program can
//! set. Remembered is only what
//! - is executed at this moment, so that nobody has it open to write, mapped neither (`ETXTBSY`,
//!   execve(2)); Linux 6.11 and 6.12 allow that: there nothing is remembered;
//! - was not changed within the last [`SETTLED`]: within one tick of the kernel's clock a second
//!   change would leave the same time;
//! - lies on a file system that keeps these times itself: those of a network's may be old ones.
//!
//! Before a byte of a program is exchanged it is compared with what was found, whatever is
//! remembered.

use super::find::Site;
use super::Kind;
use rustix::fs::{statfs, statx, AtFlags, Statx, StatxFlags, StatxTimestamp, CWD};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use synclater_proc::maps::Mapping;

/// How long a file is to be as it is.
const SETTLED: Duration = Duration::from_secs(2);

/// More files are forgotten, all at once.
const MOST: usize = 1000;

/// ext2 to ext4, XFS, btrfs (magic.h).
const KEEP_TIMES: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// A version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File {
    device: (u32, u32),
    inode: u64,
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

fn of(time: StatxTimestamp) -> (i64, u32) {
    (time.tv_sec, time.tv_nsec)
}

impl File {
    fn of(seen: &Statx) -> File {
        File {
            device: (seen.stx_dev_major, seen.stx_dev_minor),
            inode: seen.stx_ino,
            size: seen.stx_size,
            modified: of(seen.stx_mtime),
            changed: of(seen.stx_ctime),
        }
    }

    /// Whether it was changed last some time before `now`, in seconds since 1970.
    fn is_settled(&self, now: Duration) -> bool {
        let changed = u64::try_from(self.changed.0).map(Duration::from_secs);
        changed.is_ok_and(|changed| changed + SETTLED + Duration::from_secs(1) < now)
    }
}

/// A part of a file that is mapped, and what it was searched for.
type Part = (File, u64, u64, Kind);

/// What was found.
#[derive(Debug, Default)]
pub struct Remembered(RefCell<HashMap<Part, Vec<Site>>>);

impl Remembered {
    /// What `search` finds in the part of file `file` that `m` maps, of a program that has not made
    /// a step; the sites are as if its code began at 0.
    pub fn sites<E>(
        &self,
        file: Option<File>,
        m: &Mapping,
        kind: Kind,
        search: impl FnOnce() -> Result<Vec<Site>, E>,
    ) -> Result<Vec<Site>, E> {
        let Some(file) = file.filter(|file| file.inode == m.inode) else {
            return search();
        };
        let part = (file, m.offset, m.range.end - m.range.start, kind);
        if let Some(found) = self.0.borrow().get(&part) {
            return Ok(found.clone());
        }
        let found = search()?;
        let mut all = self.0.borrow_mut();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(part, found.clone());
        Ok(found)
    }
}

/// What process `pid` executes, where that may be remembered. Nobody is asked who serves a file
/// system.
#[must_use]
pub fn executed(pid: u32) -> Option<File> {
    let exe = format!("/proc/{pid}/exe");
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let seen = statx(CWD, &exe, flags, StatxFlags::BASIC_STATS).ok()?;
    let all = u64::from(seen.stx_mask) & u64::from(StatxFlags::BASIC_STATS.bits());
    let is_whole = all == u64::from(StatxFlags::BASIC_STATS.bits());
    let now = SystemTime::UNIX_EPOCH.elapsed().ok()?;
    let file = Some(File::of(&seen)).filter(|file| is_whole && file.is_settled(now))?;
    let kind = statfs(&exe).ok()?.f_type as u64;
    (KEEP_TIMES.contains(&kind) && no_writers_are_let_in()).then_some(file)
}

/// Whether this kernel keeps what is executed from being opened to write.
fn no_writers_are_let_in() -> bool {
    use std::sync::OnceLock;
    static ARE_KEPT_OUT: OnceLock<bool> = OnceLock::new();
    *ARE_KEPT_OUT.get_or_init(|| {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        !["6.11.", "6.12."].iter().any(|r| release.starts_with(r))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        File {
            device: (8, 1),
            inode: 7,
            size: 4096,
            modified: (1000, 5),
            changed: (1000, 5),
        }
    }

    fn mapping(inode: u64) -> Mapping {
        Mapping {
            range: 0x1000..0x2000,
            writable: false,
            executable: true,
            shared: false,
            offset: 0,
            device: 0,
            inode,
            name: String::new(),
        }
    }

    /// How often a search is made by these, one after the other.
    fn searches(all: &[(Option<File>, Mapping, Kind)]) -> usize {
        let remembered = Remembered::default();
        let mut searches = 0;
        for (file, m, kind) in all {
            let search = || {
                searches += 1;
                Ok::<_, ()>(Vec::new())
            };
            remembered.sites(*file, m, *kind, search).expect("sites");
        }
        searches
    }

    #[test]
    fn a_file_is_searched_once_and_one_that_changed_is_searched_anew() {
        let (m, kind) = (mapping(7), Kind::Whole);
        let known = (Some(file()), m.clone(), kind);
        assert_eq!(searches(&[known.clone(), known.clone()]), 1);
        let changed = |(seconds, part)| File {
            changed: (seconds, part),
            ..file()
        };
        let others = [
            changed((1001, 5)),
            changed((1000, 6)),
            File {
                size: 4097,
                ..file()
            },
            File {
                modified: (1, 1),
                ..file()
            },
            File {
                device: (8, 2),
                ..file()
            },
        ];
        for other in others {
            let other = (Some(other), m.clone(), kind);
            assert_eq!(searches(&[known.clone(), other]), 2);
        }
        let elsewhere = Mapping {
            offset: 4096,
            ..m.clone()
        };
        for other in [
            (Some(file()), elsewhere, kind),
            (Some(file()), m, Kind::Program),
        ] {
            assert_eq!(searches(&[known.clone(), other]), 2);
        }
    }

    #[test]
    fn what_is_not_known_for_certain_is_searched_each_time() {
        let unknown = (None, mapping(7), Kind::Whole);
        assert_eq!(searches(&[unknown.clone(), unknown]), 2);
        let another = (Some(file()), mapping(8), Kind::Whole);
        assert_eq!(searches(&[another.clone(), another]), 2);
    }

    #[test]
    fn a_file_that_was_changed_just_now_is_not_settled() {
        let is = |seconds, part| file().is_settled(Duration::new(seconds, part));
        assert!(!is(1000, 6) && !is(1003, 0) && !is(999, 0));
        assert!(is(1003, 1) && is(2000, 0));
    }
}
