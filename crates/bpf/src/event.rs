//! What is handed over: one request, and the process that made it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// Which call or flag asked for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// fsync(2).
    Fsync,
    /// fdatasync(2).
    Fdatasync,
    /// sync(2).
    Sync,
    /// syncfs(2).
    Syncfs,
    /// msync(2) with `MS_SYNC`.
    Msync,
    /// sync_file_range(2): a hint.
    SyncFileRange,
    /// A write to a file opened with `O_SYNC`.
    WriteSync,
    /// A write to a file opened with `O_DSYNC`.
    WriteDsync,
    /// A write with `RWF_SYNC`.
    WriteRwfSync,
    /// A write with `RWF_DSYNC`.
    WriteRwfDsync,
    /// io_uring's fsync.
    IoUring,
    /// io_uring's sync_file_range: a hint.
    IoUringRange,
    /// libaio's fsync or fdatasync, or a write through it that syncs.
    Libaio,
    /// A sync that reached the file system in another way: a write on a mount with `sync`, say.
    Other,
}

/// Kinds by the number that the trace programs give them, from 1 on.
const KINDS: [(Kind, &str); 14] = [
    (Kind::Fsync, "fsync"),
    (Kind::Fdatasync, "fdatasync"),
    (Kind::Sync, "sync"),
    (Kind::Syncfs, "syncfs"),
    (Kind::Msync, "msync"),
    (Kind::SyncFileRange, "sync_file_range"),
    (Kind::WriteSync, "O_SYNC write"),
    (Kind::WriteDsync, "O_DSYNC write"),
    (Kind::WriteRwfSync, "RWF_SYNC write"),
    (Kind::WriteRwfDsync, "RWF_DSYNC write"),
    (Kind::IoUring, "io_uring fsync"),
    (Kind::IoUringRange, "io_uring sync_file_range"),
    (Kind::Libaio, "libaio fsync"),
    (Kind::Other, "other"),
];

impl Kind {
    /// The name, as in the column `kind` of a recording.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = KINDS.iter().find(|(kind, _)| *kind == self);
        found.map_or("other", |(_, name)| name)
    }

    pub(crate) fn of_number(n: u8) -> Kind {
        let at = usize::from(n).wrapping_sub(1);
        KINDS.get(at).map_or(Kind::Other, |(kind, _)| *kind)
    }
}

/// The way by which a request was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// A system call of its own.
    Call,
    /// io_uring, from submission to completion.
    IoUring,
    /// io_submit(2): when it completed is not seen.
    Aio,
    /// At the file system, without the call's beginning: the duration is that of the sync alone
    /// (ext4) or not known (XFS, btrfs).
    FileSystem,
}

/// A process, as it was at its first request since it last executed a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The file it executes, as the process itself sees the path.
    pub exe: Option<PathBuf>,
    /// Its arguments, at most 1,024 bytes of them; a program may have changed them by then.
    pub args: Vec<OsString>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When it began, on CLOCK_BOOTTIME; see [`crate::BootClock`].
    pub start_ns: u64,
    /// How long the program waited; of io_uring, from submission to completion.
    pub duration_ns: Option<u64>,
    /// Process, in the outermost name space.
    pub pid: u32,
    /// Thread, as the program sees it.
    pub tid: u32,
    /// Effective user, as the machine counts them.
    pub uid: u32,
    /// The thread's short name.
    pub comm: OsString,
    /// The process; unknown only where a full ring lost what told of it.
    pub process: Option<Arc<Process>>,
    /// Which call or flag.
    pub kind: Kind,
    /// How it was seen.
    pub route: Route,
    /// Descriptor, as the program gave it; bad ones too.
    pub fd: Option<i32>,
    /// Flags of msync, sync_file_range, pwritev2, io_uring's fsync; the `RWF_` flags of a write.
    pub flags: u32,
    /// What the call returned: bytes, 0, or a negative error number; `None` where not seen.
    pub result: Option<i64>,
    /// The superblock's device (major, minor), as in the third field of mountinfo.
    pub device: Option<(u32, u32)>,
    /// The mount's id, as in the first field of mountinfo of the process.
    pub mount_id: Option<u32>,
    /// The file system's type, at most 15 bytes of it.
    pub fstype: Option<String>,
    /// Inode number.
    pub inode: Option<u64>,
    /// The file's path as the process sees it, from its own root on.
    pub path: Option<PathBuf>,
    /// The path is so long that its beginning was left out; it is relative then.
    pub path_cut: bool,
    /// The file had been removed.
    pub deleted: bool,
    /// Whether the sync had anything to do when it began, as far as the file system tells.
    pub dirty: Option<bool>,
}

impl Event {
    /// The error number, where the call failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        /// A call that the kernel begins anew; to the program it was interrupted, or not at all.
        const RESTARTS: std::ops::RangeInclusive<i64> = 512..=516;
        const EINTR: i32 = 4;
        let error = self.result?.checked_neg().filter(|e| *e > 0)?;
        if RESTARTS.contains(&error) {
            return Some(EINTR);
        }
        i32::try_from(error).ok()
    }
}
