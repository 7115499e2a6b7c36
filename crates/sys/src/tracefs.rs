//! tracefs: the numbers of the kernel's trace points, also where it is not mounted.
//!
//! Promise: nothing is mounted that anybody else sees.

use rustix::fs::{Mode, OFlags};
use rustix::mount::{fsconfig_create, fsmount, fsopen, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::io;
use std::os::fd::OwnedFd;

/// The directory of trace points.
pub struct Tracefs {
    events: OwnedFd,
    /// Where tracefs was not mounted: a mount that nobody else sees.
    pub(crate) mount: Option<OwnedFd>,
}

impl Tracefs {
    /// Opens the directory where it is mounted, else a mount of our own.
    ///
    /// # Errors
    /// `EPERM` or `EACCES` where it is neither mounted nor may be; `ENODEV` without such a file
    /// system.
    pub fn open() -> io::Result<Tracefs> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        for path in [
            "/sys/kernel/tracing/events",
            "/sys/kernel/debug/tracing/events",
        ] {
            if let Ok(events) = rustix::fs::open(path, flags, Mode::empty()) {
                return Ok(Tracefs {
                    events,
                    mount: None,
                });
            }
        }
        let fs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&fs)?;
        let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let events = rustix::fs::openat(&mount, "events", flags, Mode::empty())?;
        let mount = Some(mount);
        Ok(Tracefs { events, mount })
    }

    /// The number of a trace point.
    ///
    /// # Errors
    /// Those of open(2): `ENOENT` where the kernel does not have it.
    pub fn id(&self, point: &str) -> io::Result<u64> {
        let number = self.text(point, "id")?;
        number
            .trim()
            .parse()
            .map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// What its events look like, for people.
    ///
    /// # Errors
    /// As [`Tracefs::id`].
    pub fn format(&self, point: &str) -> io::Result<String> {
        self.text(point, "format")
    }

    fn text(&self, point: &str, file: &str) -> io::Result<String> {
        let path = format!("{point}/{file}");
        let fd = rustix::fs::openat(&self.events, path, OFlags::CLOEXEC, Mode::empty())?;
        io::read_to_string(std::fs::File::from(fd))
    }
}
