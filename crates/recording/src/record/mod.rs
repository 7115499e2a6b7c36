//! Recordings: what a row is, how rows are written as an Arrow IPC stream, and how they are read.
//!
//! Promise: what was written before the writer died is read back, up to the last whole batch, and
//! the reader says whether the end is missing. A recording of a newer version is refused, never
//! misread; a column that this version does not know is passed over, one that is absent is unknown.
//!
//! What it does not do: it opens no file. The form is documented in docs/FORMAT.md; a test holds
//! that page and [`schema::COLUMNS`] to the same list.

mod build;
mod gate;
pub mod header;
pub mod machine;
pub mod read;
pub mod row;
pub mod schema;
pub mod table;
pub mod tail;
pub mod title;
pub mod write;

/// Values of the column `event`: what a row is about.
pub mod event {
    /// One sync request.
    pub const REQUEST: &str = "request";
    /// One slow call that is no sync request (`--io`).
    pub const IO: &str = "io";
    /// How many faster calls of that kind there were; see `metric`.
    pub const IO_REST: &str = "io_rest";
    /// One figure of the machine, taken once a second.
    pub const SAMPLE: &str = "sample";
    /// A settle: what was owed on one file system became durable.
    pub const SETTLE: &str = "settle";
    /// Requests that a full ring lost.
    pub const LOST: &str = "lost";
    /// A process whose requests the session did not reach, at its end; without a process: why it is
    /// not known who else there was.
    pub const ESCAPED: &str = "escaped";
    /// The last row of a recording that was ended in order.
    pub const END: &str = "end";
}

/// Values of the column `kind`: the calls that ask for durability, by the name of the call or flag.
pub mod kind {
    /// fsync(2).
    pub const FSYNC: &str = "fsync";
    /// fdatasync(2).
    pub const FDATASYNC: &str = "fdatasync";
    /// sync(2).
    pub const SYNC: &str = "sync";
    /// syncfs(2).
    pub const SYNCFS: &str = "syncfs";
    /// msync(2) with `MS_SYNC`.
    pub const MSYNC: &str = "msync";
    /// sync_file_range(2): a hint, no durability.
    pub const SYNC_FILE_RANGE: &str = "sync_file_range";
    /// A write to a descriptor opened with `O_SYNC`.
    pub const O_SYNC: &str = "O_SYNC write";
    /// A write to a descriptor opened with `O_DSYNC`.
    pub const O_DSYNC: &str = "O_DSYNC write";
    /// pwritev2(2) with `RWF_SYNC`.
    pub const RWF_SYNC: &str = "RWF_SYNC write";
    /// pwritev2(2) with `RWF_DSYNC`.
    pub const RWF_DSYNC: &str = "RWF_DSYNC write";
    /// aio_fsync(3).
    pub const AIO_FSYNC: &str = "aio_fsync";
    /// libaio's fsync or fdatasync, or a write with such a flag.
    pub const LIBAIO: &str = "libaio fsync";
    /// io_uring's fsync.
    pub const IO_URING: &str = "io_uring fsync";
    /// io_uring's sync_file_range: a hint.
    pub const IO_URING_RANGE: &str = "io_uring sync_file_range";

    /// read(2) and its kin: no request.
    pub const READ: &str = "read";
    /// write(2) and its kin, where it is no request.
    pub const WRITE: &str = "write";
    /// open(2) and its kin: no request.
    pub const OPEN: &str = "open";
    /// rename(2) and its kin: no request.
    pub const RENAME: &str = "rename";
    /// close(2): no request.
    pub const CLOSE: &str = "close";

    /// Whether a kind asks for write-back only, not for durability.
    #[must_use]
    pub fn is_hint(kind: &str) -> bool {
        kind == SYNC_FILE_RANGE || kind == IO_URING_RANGE
    }
}

/// Values of the column `answered`: who answered the request.
pub mod answered {
    /// The kernel, when the call was made for real.
    pub const KERNEL: &str = "kernel";
    /// The library, at once.
    pub const AT_ONCE: &str = "at once";
    /// Handed to the kernel asynchronously: when it completed was not seen.
    pub const QUEUED: &str = "queued";
}

/// Values of the column `done`: what became of the request.
pub mod done {
    /// Made for real at that moment.
    pub const REAL: &str = "real";
    /// Put off: settled together with debt number `debt`.
    pub const OWED: &str = "owed";
    /// Not carried out: the dial is `never`.
    pub const SKIPPED: &str = "skipped";
    /// Refused: a bad argument, or a write-back error seen before.
    pub const NOTHING: &str = "nothing";
}
