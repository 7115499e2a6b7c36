//! The proof that a session lives, to whoever shares its ledger: a lock beside its entry.
//!
//! Promise: the file `ID.TOKEN.lock` is locked before the entry that it belongs to has its name,
//! and as long as the supervisor or its keeper lives, in whatever container. Process numbers and
//! namespace numbers are used again, names too: each life of a container has the same ones.
//!
//! By way of another mount (an overlay's upper folder) the same file has another lock. So it says
//! which file it is to its session, by device and inode: those are nobody else's as long as that
//! lives. Where whoever looks sees others, a free lock proves nothing, and the supervisor is looked
//! for by its number and start (`stale.rs`).
//!
//! What it does not do: where the ledger's file system has no locks there is no such file.
//!
//! Relies on: flock(2) being the open file's, which its copies in other processes share.

use super::dirs;
use rustix::fs::{flock, open, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use synclater_sys::socket;

/// The supervisor's side: where the lock comes from, and the lock.
pub struct Proof {
    ours: OwnedFd,
    theirs: OwnedFd,
    lock: Option<OwnedFd>,
    was_lost: bool,
}

impl Proof {
    /// One that nobody has made yet.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn to_come() -> io::Result<Proof> {
        let (ours, theirs) = socket::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok(Proof {
            ours,
            theirs,
            lock: None,
            was_lost: false,
        })
    }

    /// Where whoever makes the lock is to leave it, if nobody has made it yet: not even one who
    /// failed at what comes behind.
    pub fn wanted_at(&mut self) -> Option<BorrowedFd<'_>> {
        self.lock().is_none().then(|| self.theirs.as_fd())
    }

    /// The lock, if it was made.
    pub fn lock(&mut self) -> Option<BorrowedFd<'_>> {
        if self.lock.is_none() {
            if let Ok((_, fds)) = socket::receive(&self.ours, &mut [0]) {
                self.lock = fds.into_iter().next();
                // With too many files open the kernel leaves it out (MSG_CTRUNC).
                self.was_lost = self.lock.is_none();
            }
        }
        self.as_held()
    }

    /// The lock, if it has come.
    #[must_use]
    pub fn as_held(&self) -> Option<BorrowedFd<'_>> {
        self.lock.as_ref().map(AsFd::as_fd)
    }

    /// Whether it was made, and did not reach us: nobody has it, so the entry proves nothing.
    #[must_use]
    pub fn was_lost(&self) -> bool {
        self.was_lost
    }
}

/// Makes the file `path`, locked, and leaves the lock at `wanted_at`. It may wait for the disk.
///
/// # Errors
/// Those of open(2) and sendmsg(2); none where files cannot be locked there: then there is none.
pub fn prove(path: &Path, wanted_at: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for _ in 0..8 {
        let lock = open(path, flags, Mode::RUSR | Mode::WUSR)?;
        if let Err(e) = flock(&lock, FlockOperation::LockExclusive) {
            std::fs::remove_file(path)?;
            return match e {
                Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => Ok(()),
                e => Err(e.into()),
            };
        }
        // One that was not locked yet may have been removed for a dead session's.
        if rustix::fs::fstat(&lock)?.st_nlink != 0 {
            let lock = File::from(lock);
            lock.write_all_at(file_id(&lock)?.as_bytes(), 0)?;
            return socket::send(wanted_at, &[0], &[lock.as_fd()]);
        }
    }
    Err(Errno::AGAIN.into())
}

/// Which file it is, to those who see it as we do: its device and inode.
fn file_id(file: &File) -> io::Result<String> {
    let seen = file.metadata()?;
    Ok(format!("{}:{}\n", seen.dev(), seen.ino()))
}

/// Whether a lock is the very file that its session has locked.
fn is_theirs(lock: &File) -> bool {
    let mut said = [0; 64];
    let said = lock.read_at(&mut said, 0).map(|n| said[..n].to_vec());
    file_id(lock).is_ok_and(|id| said.is_ok_and(|said| said == id.as_bytes()))
}

/// What was found where a lock should be.
pub enum Found {
    /// Nobody had it: as long as this is open, we do.
    Free(File),
    /// The same of what may be another file to its session, which may have that locked.
    Another(File),
    /// Somebody has it: the session, or who settles in its place.
    Held,
    /// There is one, and whether anybody has it cannot be told: it cannot be opened.
    NotTold,
    /// No lock, or one that says nothing.
    Nothing,
}

/// Takes the lock in the file `path`, if nobody has it: for oneself, or beside others who look.
#[must_use]
pub fn take(path: &Path, for_oneself: bool) -> Found {
    match path.symlink_metadata() {
        Ok(seen) if seen.is_file() && dirs::distrust(&seen).is_none() => {}
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Found::NotTold,
        _ => return Found::Nothing,
    }
    let (how, operation) = if for_oneself {
        (OFlags::RDWR, FlockOperation::NonBlockingLockExclusive)
    } else {
        (OFlags::RDONLY, FlockOperation::NonBlockingLockShared)
    };
    let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Found::Nothing,
        // As where no more files can be opened.
        Err(_) => return Found::NotTold,
    };
    match flock(&file, operation) {
        Ok(()) if is_theirs(&file) => Found::Free(file),
        Ok(()) => Found::Another(file),
        Err(Errno::WOULDBLOCK) => Found::Held,
        Err(_) => Found::Nothing,
    }
}
