//! Errors that say that a write was lost, or may be: their numbers, their names, and what is said
//! of them.

use std::io;
use std::os::fd::AsFd;
use synclater_account::run::SettleError;

/// Who settled was killed: what would have been an errno is not known (`ECANCELED`, which nobody
/// else says).
pub const KILLED: i32 = rustix::io::Errno::CANCELED.raw_os_error();

/// The errno that requests answer from then on.
#[must_use]
pub fn for_requests(errno: i32) -> u32 {
    match errno {
        KILLED => rustix::io::Errno::IO.raw_os_error(),
        errno => errno,
    }
    .unsigned_abs()
}

/// The name of an error of a settle, for people.
#[must_use]
pub fn errno_name(errno: i32) -> String {
    match errno {
        5 => "EIO".into(),
        28 => "ENOSPC".into(),
        30 => "EROFS".into(),
        117 => "EUCLEAN".into(),
        122 => "EDQUOT".into(),
        KILLED => SettleError::KILLED.into(),
        other => io::Error::from_raw_os_error(other).to_string(),
    }
}

/// What is said of the error of this name that others have noted.
#[must_use]
pub fn to_others(name: &str) -> String {
    match name {
        SettleError::KILLED => format!("{}: writes may be lost", SettleError::WAS_KILLED),
        _ => format!("{name} was told to somebody else who settled there: writes were lost"),
    }
}

/// The errno of what a disk may have lost: what it says itself (blk_errors, Linux 6.18).
pub(super) fn loss(e: &std::io::Error) -> Option<i32> {
    use rustix::io::Errno;
    let all = [
        Errno::IO,
        Errno::NODATA,
        Errno::REMOTEIO,
        Errno::NOLINK,
        Errno::ILSEQ,
        Errno::TIMEDOUT,
    ];
    let errno = Errno::from_io_error(e).filter(|errno| all.contains(errno));
    errno.map(Errno::raw_os_error)
}

/// What fsync(2) answers: 0, or an errno.
pub(super) fn errno_of_fsync(file: impl AsFd) -> i32 {
    rustix::fs::fsync(file).map_or_else(rustix::io::Errno::raw_os_error, |()| 0)
}
