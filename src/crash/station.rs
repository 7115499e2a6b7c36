//! A disk with a loop device on it and a place to mount it at.

use super::disk::{served, Disk};
use super::fs::Plan;
use rustix::mount::{unmount, MountFlags, UnmountFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use synclater_sys::loopdev::{Loop, Through};

/// How long a file system that is in use is asked to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// One disk, its folder and what is mounted of it.
pub struct Station<D> {
    /// The disk.
    pub disk: Arc<D>,
    plan: Plan,
    dir: PathBuf,
    place: PathBuf,
}

/// A file system that is mounted.
pub struct Mounted {
    at: PathBuf,
    device: Option<Loop>,
}

impl<D: Disk> Station<D> {
    /// Puts a disk into the folder `dir`, which it makes, to be mounted at `place`.
    ///
    /// # Errors
    /// Those of mkdir(2) and of [`served::mount`].
    pub fn new(disk: Arc<D>, plan: &Plan, dir: PathBuf, place: &Path) -> io::Result<Station<D>> {
        for name in ["fuse", "nodes"] {
            std::fs::create_dir_all(dir.join(name))?;
        }
        std::fs::create_dir_all(place)?;
        served::mount(&disk, plan.size, plan.sector, &dir.join("fuse"))?;
        Ok(Station {
            disk,
            plan: plan.clone(),
            dir,
            place: place.to_path_buf(),
        })
    }

    /// A file of its FUSE folder.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join("fuse").join(name)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        self.place.clone()
    }

    /// A block device of the disk.
    ///
    /// # Errors
    /// Those of [`Loop::new`].
    pub fn device(&self) -> io::Result<Loop> {
        let name = served::name_of(self.disk.generation());
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.file(&name))?;
        Loop::new(
            file,
            self.plan.sector,
            Through::Direct,
            &self.dir.join("nodes"),
        )
    }

    /// Mounts its file system.
    ///
    /// # Errors
    /// Those of [`Loop::new`] and of mount(2).
    pub fn mount(&self) -> io::Result<Mounted> {
        self.try_mount()?
    }

    /// As [`Station::mount`]; the inner error is what the file system says of its disk.
    ///
    /// # Errors
    /// Those of the machine.
    pub fn try_mount(&self) -> io::Result<io::Result<Mounted>> {
        let device = self.device()?;
        let at = self.place();
        Ok(
            match self.plan.mount(device.path(), &at, MountFlags::empty()) {
                Ok(()) => Ok(Mounted {
                    at,
                    device: Some(device),
                }),
                Err(e) if is_of_the_machine(&e) => return Err(e),
                Err(e) => Err(e),
            },
        )
    }
}

/// Whether an error of mount(2) tells of the machine, not of the disk.
fn is_of_the_machine(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let of_the_machine = [
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::PERM,
        Errno::ACCESS,
        Errno::NODEV,
        Errno::BUSY,
        Errno::EXIST,
        Errno::NXIO,
        Errno::NOENT,
        Errno::NOSPC,
    ];
    Errno::from_io_error(e).is_some_and(|e| of_the_machine.contains(&e))
}

impl Mounted {
    /// Where.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts it, and waits for that.
    ///
    /// # Errors
    /// `EBUSY` where somebody uses it for longer than ten seconds.
    pub fn end(self) -> io::Result<()> {
        self.end_while(|| {})
    }

    /// As [`Mounted::end`]; `busy` may see to whoever uses it.
    ///
    /// # Errors
    /// `EBUSY` where somebody uses it for longer than ten seconds.
    pub fn end_while(mut self, mut busy: impl FnMut()) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match unmount(&self.at, UnmountFlags::empty()) {
                Ok(()) => break,
                Err(rustix::io::Errno::BUSY) if begun.elapsed() < PATIENCE => {
                    busy();
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(device) = self.device.take() {
            device.end();
        }
        Ok(())
    }
}

impl<D> Drop for Station<D> {
    fn drop(&mut self) {
        // Its thread ends with the mount. What still has the disk open keeps it until then.
        let _ = unmount(self.dir.join("fuse"), UnmountFlags::DETACH);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.device.is_some() {
            let _ = unmount(&self.at, UnmountFlags::DETACH);
        }
    }
}
