//! What is looked at: filters that the kernel applies before anything is handed over.

use crate::Error;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

/// Requests to look at. Empty sets let everything through; of several sets, all must agree.
///
/// ```
/// use synclater_bpf::Filter;
/// let of_postgres = Filter {
///     exes: ["postgres".into()].into(),
///     ..Filter::default()
/// };
/// assert!(of_postgres.writes);
/// ```
#[derive(Clone, Debug)]
pub struct Filter {
    /// Processes.
    pub pids: BTreeSet<u32>,
    /// Those that they have started or will start, too.
    pub descendants: bool,
    /// Processes that are left out, whatever the rest says. The recorder's own always is.
    pub not_pids: BTreeSet<u32>,
    /// Control groups (version 2) and all below them; see [`cgroup_id`].
    pub cgroups: BTreeSet<u64>,
    /// Executables: a name (`postgres`), or a path as the process sees it.
    pub exes: BTreeSet<OsString>,
    /// Superblocks' devices (major, minor). sync(2), which means them all, is let through.
    pub devices: BTreeSet<(u32, u32)>,
    /// What the kernel's own threads do: loop devices, the NFS server, the end of libaio's
    /// requests.
    pub kernel_threads: bool,
    /// Watch the write calls, to time writes that sync as a whole and on every file system. Costs
    /// every write call of the machine a little. Without: seen at ext4, XFS and btrfs only.
    pub writes: bool,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter {
            pids: BTreeSet::new(),
            descendants: false,
            not_pids: BTreeSet::new(),
            cgroups: BTreeSet::new(),
            exes: BTreeSet::new(),
            devices: BTreeSet::new(),
            kernel_threads: false,
            writes: true,
        }
    }
}

/// The id of a control group by its directory below /sys/fs/cgroup.
///
/// # Errors
/// [`Error::Filter`] where the directory cannot be read.
pub fn cgroup_id(directory: &Path) -> Result<u64, Error> {
    match std::fs::metadata(directory) {
        Ok(m) if m.is_dir() => Ok(m.ino()),
        Ok(_) => Err(Error::Filter(format!("no control group: {directory:?}"))),
        Err(e) => Err(Error::Filter(format!("control group {directory:?}: {e}"))),
    }
}

pub(crate) const EXE_BYTES: usize = 256;

/// The key of an executable: a name, or the names of a path, the last first, and a slash.
pub(crate) fn exe_key(exe: &OsString) -> Result<[u8; EXE_BYTES], Error> {
    let mut bytes = Vec::new();
    if exe.as_bytes().contains(&b'/') {
        let full = std::fs::canonicalize(exe).unwrap_or_else(|_| exe.into());
        let names = full.components().rev();
        for name in names.filter(|c| matches!(c, Component::Normal(_))) {
            bytes.extend_from_slice(name.as_os_str().as_bytes());
            bytes.push(0);
        }
        bytes.push(b'/');
    } else {
        bytes.extend_from_slice(exe.as_bytes());
    }
    if bytes.len() >= EXE_BYTES || bytes.is_empty() {
        let why = format!("an executable's name has 1 to 254 bytes: {exe:?}");
        return Err(Error::Filter(why));
    }
    let mut key = [0; EXE_BYTES];
    key[..bytes.len()].copy_from_slice(&bytes);
    Ok(key)
}

/// The kernel's form of a device number.
pub(crate) fn device_key((major, minor): (u32, u32)) -> u32 {
    major << 20 | (minor & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_name_never_make_the_same_key() {
        let name = exe_key(&"sqlite3".into()).expect("name");
        let path = exe_key(&"/nowhere/sqlite3".into()).expect("path");
        assert_eq!(&name[..8], b"sqlite3\0");
        assert_eq!(&path[..17], b"sqlite3\0nowhere\0/");
        assert_ne!(name, path);
    }

    #[test]
    fn a_name_that_cannot_match_is_refused() {
        assert!(exe_key(&OsString::new()).is_err());
        assert!(exe_key(&"x".repeat(EXE_BYTES).into()).is_err());
        assert!(exe_key(&"x".repeat(254).into()).is_ok());
    }

    #[test]
    fn a_control_group_is_a_directory() {
        assert!(cgroup_id(Path::new("/")).is_ok());
        assert!(cgroup_id(Path::new("/proc/self/status")).is_err());
        assert!(cgroup_id(Path::new("/nowhere")).is_err());
    }
}
