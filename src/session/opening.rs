//! Opens that may wait for a program: an overlay on a FUSE asks its server, who may be anybody.
//!
//! Promise: whoever opens here waits for 0.4 s at most, and in the long run for a tenth of the
//! time: the heartbeat waits meanwhile. What has not come by then does not come. A process that
//! goes on hanging, which no signal may end, holds what it was to open and nothing of ours.
//! Relies on: neither a reference (`O_PATH`) nor a way that the kernel knows, nor statx(2) without
//! synchronisation, asking a file system; nor closing a folder of one.

use rustix::fs::{open, openat2, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use synclater_proc::mountinfo::Mount;
use synclater_sys::job::{self, Job};
use synclater_sys::lock::lock;
use synclater_sys::{socket, wait};

/// How long one may take.
const PATIENCE: Duration = Duration::from_millis(400);

/// Those after each other may take this together, and a share of the time since.
const PATIENCE_MAX: Duration = Duration::from_millis(800);
const SHARE: u32 = 10;

/// So many may hang at once: each is a process that only its file system can end.
const HANGING_MAX: usize = 8;

/// How the files of a file system are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// At once: a disk is waited for at most.
    Direct,
    /// In a process of its own, which costs a millisecond.
    Apart,
}

impl Opening {
    /// That of a mount of a tested type.
    #[must_use]
    pub fn of(mount: &Mount) -> Opening {
        match mount.fstype.as_str() {
            "ext4" | "xfs" | "btrfs" => Opening::Direct,
            _ => Opening::Apart,
        }
    }

    /// The file behind `theirs` once more, for reading, as an open file of its own: what somebody
    /// else's open file carries (locks, that it is written to) must not live as long as ours.
    ///
    /// # Errors
    /// `EACCES` where it may not be read, and the like; `TimedOut` where it is not had in time.
    pub fn again(self, theirs: impl AsFd) -> io::Result<OwnedFd> {
        match self {
            Opening::Direct => opened_again(theirs.as_fd()),
            Opening::Apart => in_time(theirs.as_fd(), |theirs| opened_again(theirs.as_fd()))
                .ok_or(io::ErrorKind::TimedOut.into()),
        }
    }
}

fn opened_again(theirs: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", theirs.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(open(link, flags, Mode::empty())?)
}

/// What lies at a path of ours, as far as the kernel knows the way without asking a file system:
/// its server may wait for us. It knows the way to every mount point. A reference, which opens
/// nothing.
#[must_use]
pub fn known_at(path: &Path, flags: OFlags) -> Option<OwnedFd> {
    let root = open("/", REFERENCE, Mode::empty()).ok()?;
    below(&root, path, flags, ResolveFlags::CACHED).ok()
}

/// The same, where a file system may be asked for the way, for as long as an open may take.
#[must_use]
pub fn found_at(path: &Path, flags: OFlags) -> Option<OwnedFd> {
    let root = open("/", REFERENCE, Mode::empty()).ok()?;
    match below(&root, path, flags, ResolveFlags::CACHED) {
        Err(Errno::AGAIN) => in_time(root.as_fd(), |root| {
            Ok(below(root, path, flags, ResolveFlags::empty())?)
        }),
        known => known.ok(),
    }
}

const REFERENCE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn below(root: &OwnedFd, path: &Path, flags: OFlags, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let how = how | ResolveFlags::IN_ROOT;
    openat2(root, path, flags | REFERENCE, Mode::empty(), how)
}

/// What `work` opens by `at`, in a process of its own. `None` where it fails, or takes too long.
#[must_use]
pub fn in_time(
    at: BorrowedFd<'_>,
    work: impl FnOnce(&OwnedFd) -> io::Result<OwnedFd>,
) -> Option<OwnedFd> {
    let patience = lock(&BUDGET).patience()?;
    let begun = Instant::now();
    let (job, ours) = start(at, work).ok()?;
    let has_come = wait::any(&[(ours.as_fd(), wait::For::Input)], patience)[0];
    lock(&BUDGET).spend(begun.elapsed());
    if !has_come {
        job.kill();
        lock(&BUDGET).hanging.push(job);
        return None;
    }
    let (_, fds) = socket::receive(&ours, &mut [0u8; 1]).ok()?;
    // It has what it opened, too: whoever unmounts that next must not find it busy.
    let _ = wait::any(&[(job.as_fd(), wait::For::Input)], patience);
    fds.into_iter().next()
}

/// Has a process open something by `at`, and send it to the socket.
fn start(
    at: BorrowedFd<'_>,
    work: impl FnOnce(&OwnedFd) -> io::Result<OwnedFd>,
) -> io::Result<(Job, OwnedFd)> {
    let (ours, theirs) = socket::pair()?;
    let job = Job::start(|| {
        let kept = job::keep_only(&[at, theirs.as_fd()]);
        let sent = work(&kept[0]).and_then(|file| socket::send(&kept[1], b"f", &[file.as_fd()]));
        // The child's, whose owners are its parent's.
        std::mem::forget(kept);
        i32::from(sent.is_err())
    })?;
    Ok((job, ours))
}

static BUDGET: Mutex<Budget> = Mutex::new(Budget {
    left: PATIENCE_MAX,
    since: None,
    hanging: Vec::new(),
});

/// How much longer this process may wait.
struct Budget {
    left: Duration,
    since: Option<Instant>,
    /// Those that were killed and are still there.
    hanging: Vec<Job>,
}

impl Budget {
    /// How long the next one may take; `None` where there is to be no next one yet.
    fn patience(&mut self) -> Option<Duration> {
        self.hanging.retain(|job| job.finished().is_none());
        let rest = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.left = (self.left + rest / SHARE).min(PATIENCE_MAX);
        self.since = Some(Instant::now());
        let may = self.hanging.len() < HANGING_MAX && !self.left.is_zero();
        may.then_some(self.left.min(PATIENCE))
    }

    fn spend(&mut self, took: Duration) {
        self.left = self.left.saturating_sub(took);
        self.since = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(left: Duration) -> Budget {
        Budget {
            left,
            since: None,
            hanging: Vec::new(),
        }
    }

    #[test]
    fn one_open_may_take_its_patience_and_all_of_them_no_more_than_their_share() {
        let mut budget = budget(PATIENCE_MAX);
        assert_eq!(budget.patience(), Some(PATIENCE));
        budget.spend(PATIENCE_MAX - Duration::from_millis(7));
        let next = budget.patience().expect("some is left");
        assert!(next >= Duration::from_millis(7) && next < PATIENCE);
        // Ten times that has to pass first.
        budget.spend(PATIENCE_MAX);
        budget.since = Some(Instant::now() - Duration::from_secs(1));
        let next = budget.patience().expect("time has passed");
        assert!(next >= Duration::from_millis(100), "{next:?}");
    }

    #[test]
    fn nobody_waits_where_nothing_is_left() {
        let mut budget = budget(Duration::ZERO);
        assert_eq!(budget.patience(), None);
    }
}
