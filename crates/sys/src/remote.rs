//! Another process's memory and descriptors.
//!
//! Promise: a [`Memory`] is that of one program image. Once the process has executed another, or
//! has ended, reading and writing fail: what was meant for the one never reaches the other.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The memory of a process.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens it; that takes the right to trace the process.
    ///
    /// # Errors
    /// Those of open(2) of `/proc/PID/mem`.
    pub fn open(pid: u32) -> io::Result<Memory> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Memory(file))
    }

    /// Reads `buf.len()` bytes at `at`.
    ///
    /// # Errors
    /// `EIO` where nothing is mapped.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buf, at)
    }

    /// Reads a range.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn bytes(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; len];
        self.read(at, &mut buf)?;
        Ok(buf)
    }

    /// Reads up to `len` bytes at `at`: as many as are mapped there in one piece.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn up_to(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; len];
        let n = self.0.read_at(&mut buf, at)?;
        buf.truncate(n);
        Ok(buf)
    }

    /// Writes at `at`, also where the process itself may only read: what it shares with others, or
    /// with a file, is copied for it first (`FOLL_FORCE`).
    ///
    /// # Errors
    /// `EIO` where nothing is mapped.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }
}

/// A descriptor of another process's thread, as one of ours (pidfd_getfd(2), Linux 5.6).
///
/// # Errors
/// `EBADF` where it has no such descriptor; `EPERM` where we may not trace it.
pub fn descriptor(pid: u32, tid: u32, number: i32) -> io::Result<OwnedFd> {
    // A first thread that has ended has no descriptors any more (PIDFD_THREAD, Linux 6.9).
    const PIDFD_THREAD: libc::c_long = libc::O_EXCL as libc::c_long;
    let pidfd = pidfd_of(tid, PIDFD_THREAD).or_else(|_| pidfd_of(pid, 0))?;
    let (of, number) = (
        libc::c_long::from(pidfd.as_raw_fd()),
        libc::c_long::from(number),
    );
    // SAFETY: pidfd_getfd takes three numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, of, number, 0) })
}

fn pidfd_of(pid: u32, flags: libc::c_long) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), flags) };
    owned(fd)
}

/// The signal that tells of an open file, 0 for the usual one (`F_GETSIG` of fcntl(2)).
///
/// # Errors
/// Those of fcntl(2).
pub fn signal_of(file: BorrowedFd<'_>) -> io::Result<i32> {
    const F_GETSIG: i32 = 11;
    // SAFETY: fcntl takes a descriptor that is open, and a number.
    let signal = unsafe { libc::fcntl(file.as_raw_fd(), F_GETSIG) };
    if signal < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(signal)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file in memory that may be executed, holding `bytes`; nobody can change it any more.
///
/// # Errors
/// Those of memfd_create(2): `EACCES` where `vm.memfd_noexec` forbids it.
pub fn executable_memory(name: &std::ffi::CStr, bytes: &[u8]) -> io::Result<File> {
    use rustix::fs::{fcntl_add_seals, memfd_create, MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3 wants it said that the file is to be executed; earlier ones do not know the flag.
    let fd = memfd_create(name, flags | MemfdFlags::EXEC).or_else(|_| memfd_create(name, flags))?;
    let file = File::from(fd);
    file.write_all_at(bytes, 0)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file)
}
