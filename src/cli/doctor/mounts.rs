//! The mounted file systems: which may be relaxed, which can clone, which sync by themselves.
//!
//! Relies on: /proc/self/mountinfo, proc_pid_mountinfo(5). Never touches a network or FUSE mount,
//! which may hang: only file systems that are local by their type are probed.

use super::{Check, Status};
use crate::session::durable::distrust;
use std::collections::HashSet;
use synclater_policy::filesystem::{kind, FsKind};
use synclater_proc::mountinfo::Mount;

/// Whether programs on it cannot be executed or mapped executable.
pub fn is_noexec(mount: &Mount) -> bool {
    mount.has("noexec")
}

/// Whether what is written there is gone after a reboot.
pub fn is_memory(mount: &Mount) -> bool {
    kind(&mount.fstype) == FsKind::Memory || mount.fstype == "devtmpfs"
}

/// One check for each file system that files are kept on, one for those in memory, and one for
/// mounts that sync by themselves.
pub fn mount_checks(table: &[Mount]) -> Vec<Check> {
    let mut seen = HashSet::new();
    let on_disk = table
        .iter()
        .filter(|m| !matches!(kind(&m.fstype), FsKind::Pseudo | FsKind::Memory));
    let first = on_disk.filter(|m| seen.insert((m.dev, m.fstype.clone())));
    let mut all: Vec<Check> = first.map(file_system_check).collect();
    all.extend(memory_check(table));
    all.push(sync_option_check(table));
    all
}

fn points<'a>(mounts: impl Iterator<Item = &'a Mount>) -> String {
    let mut points: Vec<String> = mounts.map(|m| m.path().display().to_string()).collect();
    points.sort();
    points.dedup();
    points.join(", ")
}

fn memory_check(table: &[Mount]) -> Option<Check> {
    let found = points(table.iter().filter(|m| kind(&m.fstype) == FsKind::Memory));
    let means = "Nothing there can be made durable, so nothing is owed.";
    let check = Check::new("file systems in memory", Status::Ok, found, means);
    (!check.seen.is_empty()).then_some(check)
}

fn file_system_check(mount: &Mount) -> Check {
    let name = format!("file system {}", mount.path().display());
    let on = format!("{} on {}", mount.fstype, mount.source);
    match kind(&mount.fstype) {
        FsKind::Tested => tested_check(&name, &on, mount),
        FsKind::Untested(why) => {
            let means = format!("Sync requests stay real here: {why}.");
            Check::new(&name, Status::Warn, on, means)
        }
        FsKind::Memory | FsKind::Pseudo => {
            Check::new(&name, Status::Ok, on, "Nothing to make durable.")
        }
    }
}

fn tested_check(name: &str, on: &str, mount: &Mount) -> Check {
    if mount.has("ro") {
        let means = "Mounted read-only: nothing can be owed here.";
        return Check::new(name, Status::Ok, format!("{on}, read-only"), means);
    }
    if let Some(why) = distrust(mount) {
        let means = format!("Sync requests stay real here: {why}.");
        let check = Check::new(name, Status::Warn, on, means);
        return match mount.fstype.as_str() {
            "ext4" => check.advise("umount it, then e2fsck -f"),
            _ => check,
        };
    }
    let clones = match synclater_sys::clone::supports_clone(mount.path()) {
        Ok(true) => "clones: yes".to_owned(),
        Ok(false) => "clones: no".to_owned(),
        Err(error) => format!(
            "clones: {}, not tried ({error})",
            clones_by_type(&mount.fstype)
        ),
    };
    let snapshots = if mount.fstype == "btrfs" { "yes" } else { "no" };
    let seen = format!("{on}, {clones}, snapshots: {snapshots}");
    let mut means = "Requests may be answered later and are settled by syncfs.".to_owned();
    if mount.fstype == "overlay" {
        means +=
            " An overlay keeps its own record of write-back errors: errors of the file system \
                  below may not show.";
    }
    Check::new(name, Status::Ok, seen, means)
}

fn clones_by_type(fstype: &str) -> &'static str {
    match fstype {
        "btrfs" => "yes by its type",
        "xfs" => "probably (the default of mkfs.xfs since 5.1)",
        "overlay" => "as the file system below",
        _ => "no by its type",
    }
}

fn sync_option_check(table: &[Mount]) -> Check {
    let name = "sync mounts";
    let syncing = table.iter().filter(|m| m.has("sync") || m.has("dirsync"));
    let found = points(syncing);
    if found.is_empty() {
        let means = "No file system syncs every write by a mount option.";
        return Check::new(name, Status::Ok, "none", means);
    }
    let means = "Mounted with sync or dirsync: the kernel waits for the disk in every write or \
                 directory change. That is no request, so it cannot be answered later.";
    let advice = "where that is not wanted: mount -o remount,async MOUNTPOINT";
    Check::new(name, Status::Warn, found, means).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use synclater_proc::mountinfo::{mount_of, parse_mountinfo};

    const TABLE: &[u8] = b"\
        22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard\n\
        30 27 254:0 /srv /srv rw,relatime - ext4 /dev/vda rw,discard\n\
        31 27 0:40 / /mnt/a\\040b rw,noexec,nosuid - xfs /dev/loop0 rw,sync\n\
        32 27 0:41 / /net rw - nfs4 host:/export rw\n\
        bad line\n";

    #[test]
    fn a_path_lies_on_the_deepest_mount_above_it() {
        let table = parse_mountinfo(TABLE);
        let on = |path: &str| mount_of(&table, Path::new(path)).map(Mount::path);
        assert_eq!(on("/mnt/a b/c"), Some(Path::new("/mnt/a b")));
        assert_eq!(on("/mnt/a"), Some(Path::new("/")));
        assert_eq!(on("/srvx"), Some(Path::new("/")));
    }

    #[test]
    fn network_and_fuse_are_never_probed() {
        for fstype in ["nfs4", "fuse.sshfs", "9p", "cifs", "fuseblk"] {
            assert!(matches!(kind(fstype), FsKind::Untested(_)), "{fstype}");
        }
    }

    #[test]
    fn a_file_system_is_checked_once_however_often_it_is_mounted() {
        let table: Vec<Mount> = parse_mountinfo(TABLE)
            .into_iter()
            .filter(|m| m.fstype != "xfs")
            .collect();
        let names: Vec<String> = mount_checks(&table).into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["file system /", "file system /net", "sync mounts"]);
    }

    #[test]
    fn a_mount_with_the_option_sync_is_named() {
        let check = sync_option_check(&parse_mountinfo(TABLE));
        assert_eq!(
            (check.status, check.seen.as_str()),
            (Status::Warn, "/mnt/a b")
        );
    }
}
