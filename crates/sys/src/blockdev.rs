//! Block devices, by their numbers.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Major and minor.
pub type Number = (u32, u32);

/// A device number as a file of sysfs has it.
#[must_use]
pub fn number_in(file: &Path) -> Option<Number> {
    let text = std::fs::read_to_string(file).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The disk with this number, or else the one with that name in sysfs, if its number (`st_rdev` of
/// stat(2)) is one that `is_it`.
pub fn open((major, minor): Number, name: &str, is_it: impl Fn(u64) -> bool) -> Option<File> {
    let by_number = PathBuf::from(format!("/dev/block/{major}:{minor}"));
    if let Some(disk) = open_disk(by_number, &is_it) {
        return Some(disk);
    }
    // A slash in a device's name is another character in /sys.
    open_disk(Path::new("/dev").join(name.replace('!', "/")), &is_it)
}

fn open_disk(path: PathBuf, is_it: impl Fn(u64) -> bool) -> Option<File> {
    let mut how = OpenOptions::new();
    how.read(true).custom_flags(libc::O_NONBLOCK);
    let file = how.open(path).ok()?;
    let meta = file.metadata().ok()?;
    (meta.file_type().is_block_device() && is_it(meta.rdev())).then_some(file)
}
