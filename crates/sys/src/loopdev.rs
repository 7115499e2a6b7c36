//! Block devices made of files: loop(4).
//!
//! Promise: a device that was made here is given back when nobody has it open or mounted any more,
//! however its maker ends (`LO_FLAGS_AUTOCLEAR`). No device that somebody else made is touched.

use rustix::fs::{makedev, mknodat, FileType, Mode, OFlags, CWD};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// linux/loop.h
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// A free device that others may take before us is looked for so often.
const ATTEMPTS: u32 = 64;
const MAJOR: u32 = 7;

/// `struct loop_info64`
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    const NONE: Info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `struct loop_config`, Linux 5.8.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A block device.
#[derive(Debug)]
pub struct Loop {
    device: File,
    path: PathBuf,
}

/// How it reads and writes its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Past the page cache: each request of the device is one of the file.
    Direct,
    /// As anybody else: for files on file systems that know no direct I/O.
    Cache,
}

fn ioctl_value(file: &File, request: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the requests that are made here take no pointer.
    let got = unsafe { libc::ioctl(file.as_raw_fd(), request as _, 0) };
    match got {
        -1 => Err(io::Error::last_os_error()),
        got => Ok(got),
    }
}

/// Opens the device of a number; where nobody has made its node it is made in `nodes`.
fn open(number: u32, nodes: &Path) -> io::Result<(File, PathBuf)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let usual = PathBuf::from(format!("/dev/loop{number}"));
    match rustix::fs::open(&usual, flags, Mode::empty()) {
        Ok(fd) => return Ok((File::from(fd), usual)),
        Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e.into()),
    }
    let ours = nodes.join(format!("loop{number}"));
    match mknodat(
        CWD,
        &ours,
        FileType::BlockDevice,
        Mode::from_raw_mode(0o600),
        makedev(MAJOR, number),
    ) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let fd = rustix::fs::open(&ours, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let about = rustix::fs::fstat(&fd)?;
    let is_device = FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice;
    if !is_device || about.st_rdev != makedev(MAJOR, number) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok((File::from(fd), ours))
}

impl Loop {
    /// Makes a device of `file`, with logical sectors of `sector` bytes. Where /dev has no node for
    /// it one is made in the folder `nodes`.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where that is not permitted, `ENOENT` without the kernel's module,
    /// `EINVAL` before Linux 5.8 or where the file's system knows no direct I/O.
    pub fn new(file: impl AsFd, sector: u32, through: Through, nodes: &Path) -> io::Result<Loop> {
        let control = File::options()
            .read(true)
            .write(true)
            .open("/dev/loop-control")?;
        let direct = match through {
            Through::Direct => LO_FLAGS_DIRECT_IO,
            Through::Cache => 0,
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for _ in 0..ATTEMPTS {
            let number = ioctl_value(&control, LOOP_CTL_GET_FREE)?;
            let (device, path) = open(number.unsigned_abs(), nodes)?;
            let config = Config {
                fd: file.as_fd().as_raw_fd().unsigned_abs(),
                block_size: sector,
                info: Info {
                    flags: LO_FLAGS_AUTOCLEAR | direct,
                    ..Info::NONE
                },
                reserved: [0; 8],
            };
            // SAFETY: `config` is a `struct loop_config`, which the kernel only reads.
            let r = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &config) };
            if r == 0 {
                return Ok(Loop { device, path });
            }
            last = io::Error::last_os_error();
            if last.raw_os_error() != Some(libc::EBUSY) {
                return Err(last);
            }
        }
        Err(last)
    }

    /// Its node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it back, at once or, where it is mounted, as soon as it is not.
    pub fn end(self) {
        drop(self);
    }
}

/// Where the file of a loop device lies, and which device it is, if it is one: as `st_dev` and
/// `st_rdev` of stat(2). `device` is the number of what is at `path`. The file's system is asked,
/// and may not answer.
///
/// # Errors
/// `EACCES` where that is not permitted, `ENXIO` where it has no file, `ENODEV` where another one
/// is at `path`.
pub fn file_of(path: &Path, device: u64) -> io::Result<(u64, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let about = rustix::fs::fstat(&fd)?;
    let is_device = FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice;
    if !is_device || about.st_rdev != device {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut info = Info::NONE;
    // SAFETY: the call writes a `struct loop_info64` to `info`.
    match unsafe { libc::ioctl(fd.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } {
        0 => Ok((info.device, info.rdevice)),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = ioctl_value(&self.device, LOOP_CLR_FD);
    }
}
