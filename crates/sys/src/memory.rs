//! Files mapped shared: the control page and the slots.
//!
//! Promise: the bytes stay mapped as long as the [`Mapping`] lives, and its length is backed by the
//! file system (the file is allocated in full, or is memory that is not to be cut short), so that
//! touching them never raises SIGBUS for want of space. Not promised: what stands there. Other
//! processes write it, hence atomics only; and who may open a file by its path may cut it short.

use rustix::fs::{
    fallocate, fcntl_add_seals, fstat, memfd_create, FallocateFlags, MemfdFlags, SealFlags,
};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU64, AtomicU8};

/// The superblock of memory that several share and that is in no file system (memfd_create(2),
/// MAP_SHARED with MAP_ANONYMOUS, shmget(2)), `major << 32 | minor`, as /proc/PID/maps has it.
///
/// # Errors
/// Those of memfd_create(2).
pub fn device_of_memory() -> io::Result<u64> {
    let flags = MemfdFlags::CLOEXEC;
    let fd = memfd_create(c"synclater", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(c"synclater", flags))?;
    let device = fstat(&fd)?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Ok(u64::from(major) << 32 | u64::from(minor))
}

/// A shared mapping of a whole file.
pub struct Mapping {
    start: NonNull<AtomicU8>,
    len: usize,
}

// SAFETY: the mapping is shared memory that is only reached as atomics, and unmapped once, by Drop.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out `&[AtomicU8]` and nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Allocates `len` bytes of `file` and maps them for reading and writing.
    ///
    /// # Errors
    /// `ENOSPC` on a full file system, and whatever mmap(2) says.
    pub fn create(file: &File, len: usize) -> io::Result<Mapping> {
        file.set_len(len as u64)?;
        fallocate(file, FallocateFlags::empty(), 0, len as u64)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of `file` for reading and writing, of which only the first `backed` are
    /// allocated: what lies behind must not be touched before [`back`] has allocated it.
    ///
    /// # Errors
    /// As [`Mapping::create`].
    pub fn create_in_part(file: &File, len: usize, backed: usize) -> io::Result<Mapping> {
        file.set_len(len as u64)?;
        back(file, 0, backed)?;
        Self::map(file, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Makes memory of `len` bytes that a process of another user may be given to write, and maps
    /// it. Its size is fixed for good (memfd_create(2), seals), so that nobody can take it away
    /// from under the others; memory is behind what was touched.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`, and whatever memfd_create(2) and mmap(2) say.
    pub fn create_sealed(name: &CStr, len: usize) -> io::Result<(File, Mapping)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Linux 6.3 wants it said that it is not to be executed; earlier ones do not know the flag.
        let fd = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, flags))?;
        let file = File::from(fd);
        file.set_len(len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let mapping = Self::map(&file, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((file, mapping))
    }

    /// Maps an existing file whole, for reading and writing.
    ///
    /// # Errors
    /// `EINVAL` on an empty file; whatever mmap(2) says.
    pub fn open(file: &File) -> io::Result<Mapping> {
        Self::map(
            file,
            size_of_file(file)?,
            ProtFlags::READ | ProtFlags::WRITE,
        )
    }

    /// Maps an existing file whole, for reading.
    ///
    /// # Errors
    /// `EINVAL` on an empty file; whatever mmap(2) says.
    pub fn open_read_only(file: &File) -> io::Result<Mapping> {
        Self::map(file, size_of_file(file)?, ProtFlags::READ)
    }

    fn map(file: &File, len: usize, prot: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let p = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED, file.as_fd(), 0) }?;
        let start = NonNull::new(p.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Mapping { start, len })
    }

    /// The mapped bytes. A read-only mapping must not be stored to (it would fault): callers of
    /// [`Mapping::open_read_only`] load only.
    #[must_use]
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: `start` and `len` are what mmap returned and was asked for; the mapping lives as
        // long as `self`; AtomicU8 has no invalid values and allows writes by others.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The same as words; bytes behind the last whole one are left out.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: a mapping begins on a page, so it is aligned to 8; any bytes are valid words, and
        // both views are atomics.
        let (_, words, _) = unsafe { self.bytes().align_to::<AtomicU64>() };
        words
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours and no borrow of it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn size_of_file(file: &File) -> io::Result<usize> {
    Ok(usize::try_from(fstat(file)?.st_size).unwrap_or(0))
}

/// Allocates `len` bytes of `file` at `from`.
///
/// # Errors
/// `ENOSPC` on a full file system.
pub fn back(file: &File, from: usize, len: usize) -> io::Result<()> {
    fallocate(file, FallocateFlags::empty(), from as u64, len as u64)?;
    Ok(())
}
