//! How a disk is served: a folder of FUSE with the disk in it, and the files through which the
//! program speaks.

use super::{Disk, Said};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, SessionACL, WriteFlags,
};
use rustix::fs::FallocateFlags;
use rustix::mount::MountFlags;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use synclater_powercut::log::Voice;
use synclater_sys::contain;

/// The largest piece in which the kernel hands data over.
const PIECE: u32 = 1 << 20;
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Names of what is said on; their numbers follow that of the root. Behind them are the disks,
/// each with its generation in name and number.
const VOICES: [&str; 3] = ["out", "err", "ack"];
const DISKS: u64 = 16;

/// The name of the disk of a generation.
#[must_use]
pub fn name_of(generation: u64) -> String {
    format!("disk-{generation}")
}

/// A folder with a disk in it, and with the files through which the program speaks.
struct Folder<D> {
    disk: Arc<D>,
    size: u64,
    /// Bytes of a sector.
    sector: usize,
}

impl<D: Disk> Folder<D> {
    /// Whether this is the disk of now.
    fn is_disk(&self, ino: INodeNo) -> bool {
        ino.0 == DISKS + self.disk.generation()
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        let is_root = ino == INodeNo::ROOT;
        FileAttr {
            ino,
            size: if ino.0 >= DISKS { self.size } else { 0 },
            blocks: 0,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind: if is_root {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: match ino {
                INodeNo::ROOT => 0o755,
                disk if disk.0 >= DISKS => 0o600,
                _ => 0o666,
            },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Where bytes lie, in whole sectors around them.
    fn sectors(&self, offset: u64, length: u64) -> Option<(u32, u32)> {
        let unit = self.sector as u64;
        let end = offset.checked_add(length).filter(|end| *end <= self.size)?;
        let (first, behind) = (offset / unit, end.div_ceil(unit));
        let count = u32::try_from(behind - first).ok()?;
        Some((u32::try_from(first).ok()?, count))
    }

    fn read_bytes(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let length = length.min(self.size.saturating_sub(offset));
        let unit = self.sector;
        let (first, count) = self.sectors(offset, length)?;
        let mut bytes = vec![0; count as usize * unit];
        self.disk.read(first, &mut bytes);
        let skipped = (offset % unit as u64) as usize;
        bytes.truncate(skipped + length as usize);
        Some(bytes.split_off(skipped))
    }

    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let unit = self.sector;
        let sectors = self.sectors(offset, bytes.len() as u64);
        let (first, count) = sectors.ok_or(Errno::ENOSPC)?;
        let skipped = (offset % unit as u64) as usize;
        if skipped == 0 && bytes.len().is_multiple_of(unit) {
            return self.disk.write(first, bytes);
        }
        // The kernel writes whole sectors; somebody else may not.
        let mut whole = vec![0; count as usize * unit];
        self.disk.read(first, &mut whole);
        whole[skipped..skipped + bytes.len()].copy_from_slice(bytes);
        self.disk.write(first, &whole)
    }
}

fn voice_of(ino: INodeNo) -> Option<Voice> {
    match ino.0 {
        2 => Some(Voice::Out),
        3 => Some(Voice::Err),
        4 => Some(Voice::Ack),
        _ => None,
    }
}

impl<D: Disk> Filesystem for Folder<D> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(PIECE);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let voice = VOICES.iter().position(|n| name == *n);
        let generation = name
            .to_str()
            .and_then(|n| n.strip_prefix("disk-")?.parse::<u64>().ok());
        let number = voice.map(|at| at as u64 + 2);
        let number = number.or(generation.map(|n| n.saturating_add(DISKS)));
        match number.filter(|_| parent == INodeNo::ROOT) {
            Some(number) => {
                let attributes = self.attributes(INodeNo(number));
                reply.entry(&FOR_EVER, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_EVER, &self.attributes(ino));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // `>` of a shell cuts what was said; it was said all the same.
        reply.attr(&FOR_EVER, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino.0 < DISKS {
            return reply.data(&[]);
        }
        if !self.is_disk(ino) {
            return reply.error(Errno::EIO);
        }
        match self.read_bytes(offset, size.into()) {
            Some(bytes) => reply.data(&bytes),
            None => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(voice) = voice_of(ino) {
            return self.disk.hear(Said {
                voice,
                bytes: data.to_vec(),
                reply,
            });
        }
        if !self.is_disk(ino) {
            return reply.error(Errno::EIO);
        }
        match self.write_bytes(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if ino.0 < DISKS {
            return reply.ok();
        }
        if !self.is_disk(ino) {
            return reply.error(Errno::EIO);
        }
        match self.disk.flush() {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // close(2) asks for nothing: the kernel need not tell of it again.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let zeroes = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if !self.is_disk(ino) || !mode.intersects(zeroes) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let unit = self.sector as u64;
        let whole = offset.is_multiple_of(unit) && length.is_multiple_of(unit);
        match self.sectors(offset, length) {
            Some((first, count)) if whole => match self.disk.zero(first, count) {
                Ok(()) => reply.ok(),
                Err(e) => reply.error(e),
            },
            _ => reply.error(Errno::EINVAL),
        }
    }
}

/// Mounts a folder with the disk in it, of so many bytes and bytes of a sector, served by a thread
/// of its own until it is unmounted.
///
/// # Errors
/// Those of opening /dev/fuse and of mount(2).
pub fn mount<D: Disk>(disk: &Arc<D>, size: u64, sector: u32, at: &Path) -> io::Result<()> {
    let folder = Folder {
        disk: disk.clone(),
        size,
        sector: sector as usize,
    };
    let (disk, at) = (disk.clone(), at.to_path_buf());
    let (to, from) = std::sync::mpsc::channel();
    let serving = std::thread::Builder::new().name("disk".into());
    serving.spawn(
        move || match contain::serve_apart(|| session(folder, &at)) {
            Ok(session) => {
                disk.begin_to_serve();
                let _ = to.send(Ok(()));
                let _ = session.run();
            }
            Err(e) => {
                let _ = to.send(Err(e));
            }
        },
    )?;
    from.recv().unwrap_or_else(|e| Err(io::Error::other(e)))
}

fn session<D: Disk>(folder: Folder<D>, at: &Path) -> io::Result<Session<Folder<D>>> {
    let fuse = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        fuse.as_raw_fd()
    );
    let options = CString::new(options)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("synclater", at, "fuse", safe, options.as_c_str())?;
    Session::from_fd(
        folder,
        OwnedFd::from(fuse),
        SessionACL::All,
        Config::default(),
    )
}
