//! Which mounts the members of a session write to, as far as /proc shows it: what sync() is about.
//!
//! Promise: nothing is opened and no file system is asked, since its server may wait for us: it is
//! read in /proc what a process has open for writing, and where its working directory lies.
//! Not promised: to see what was closed before anybody looked.

use super::filesystems::{dev_of, mounts_of};
use std::collections::BTreeSet;
use std::path::Path;
use synclater_sys::{mount, process};

/// At most so many descriptors of one process are looked at; of one with more nothing is known.
const DESCRIPTORS_MAX: usize = 1024;

/// The mask of statx for the number that mountinfo shows.
const MNT_ID: u32 = 0x1000;

/// Device numbers of the superblocks that a process writes to, as mountinfo shows them. `None`
/// where that cannot be told; empty for a process that is gone.
#[must_use]
pub fn written_by(pid: u32) -> Option<BTreeSet<u64>> {
    let mut mounts = BTreeSet::new();
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    for (n, file) in files.into_iter().flatten().flatten().enumerate() {
        if n == DESCRIPTORS_MAX {
            return None;
        }
        let text = process::text(file.path()).unwrap_or_default();
        mounts.extend(mount_written_to(&text));
    }
    mounts.extend(mount::id_of_path(
        Path::new(&format!("/proc/{pid}/cwd")),
        MNT_ID,
    ));
    let table = mounts_of(&pid.to_string());
    let its = |id: &u64| table.iter().find(|m| m.id == *id).map(dev_of);
    Some(mounts.iter().filter_map(its).collect())
}

/// The mount of a descriptor that is open for writing, from its fdinfo (proc(5)).
fn mount_written_to(fdinfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = fdinfo.lines().find_map(|l| l.strip_prefix(name));
        line.map(str::trim)
    };
    let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
    const ACCESS: u32 = 3;
    (flags & ACCESS != 0)
        .then(|| field("mnt_id:")?.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_counts_where_it_is_open_for_writing() {
        let of = |flags| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t29\nino:\t17\n");
        assert_eq!(mount_written_to(&of("0100002")), Some(29));
        assert_eq!(mount_written_to(&of("02100001")), Some(29));
        assert_eq!(mount_written_to(&of("0100000")), None);
        assert_eq!(mount_written_to("pos:\t0\n"), None);
    }

    #[test]
    fn we_write_where_we_have_a_file_open() {
        let dir = std::env::temp_dir().join(format!("usage-{}", std::process::id()));
        let _file = std::fs::File::create(&dir).expect("a file");
        let dev = mounts_of("self")
            .iter()
            .find(|m| mount::id_of_path(&dir, MNT_ID).is_ok_and(|id| id == m.id))
            .map(dev_of);
        let written = written_by(std::process::id()).expect("few descriptors");
        assert!(dev.is_some_and(|dev| written.contains(&dev)));
        let _ = std::fs::remove_file(dir);
    }
}
