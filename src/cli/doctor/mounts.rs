//! The mounted file systems: which may be relaxed, which can clone, which sync by themselves.
//!
//! Relies on: /proc/self/mountinfo, proc_pid_mountinfo(5). Never touches a network or FUSE mount,
//! which may hang: only file systems that are local by their type are probed.

use super::{Check, Status};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor`, the same for every mount of one file system (except btrfs subvolumes).
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    /// `ext4`, `tmpfs`, …
    pub fstype: String,
    /// What is mounted: a device, a server, a word.
    pub source: String,
}

impl Mount {
    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// Whether programs on it cannot be executed or mapped executable.
    pub fn is_noexec(&self) -> bool {
        self.has("noexec")
    }

    /// Whether what is written there is gone after a reboot.
    pub fn is_memory(&self) -> bool {
        matches!(self.fstype.as_str(), "tmpfs" | "ramfs" | "devtmpfs")
    }
}

/// The mounts of this process; empty where /proc is not mounted.
pub fn read_table() -> Vec<Mount> {
    parse_table(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn parse_table(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_line).collect()
}

/// Fields: id parent major:minor root point options optional... - type source superoptions.
fn parse_line(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let mut right = right.split(' ');
    let (fstype, source) = (right.next()?, right.next()?);
    let both = left
        .get(5)?
        .split(',')
        .chain(right.next().unwrap_or("").split(','));
    Some(Mount {
        device: (*left.get(2)?).to_owned(),
        point: PathBuf::from(unescape(left.get(4)?)),
        options: both.filter(|o| !o.is_empty()).map(str::to_owned).collect(),
        fstype: fstype.to_owned(),
        source: unescape(source),
    })
}

/// Blank, tab, newline and backslash stand as `\ooo`.
fn unescape(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |t, (code, plain)| t.replace(code, plain))
}

/// The mount that `path` lies on: of the longest mount points the one mounted last.
pub fn mount_of<'a>(table: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = table.iter().filter(|m| path.starts_with(&m.point));
    above.max_by_key(|m| m.point.as_os_str().len())
}

/// How synclater treats a file system, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// On the tested list: requests may be answered later.
    Tested,
    /// In memory: nothing to make durable.
    Memory,
    /// Local and writable, but not on the list.
    Untested,
    /// FUSE, network: syncfs is not passed on, or may hang.
    Remote,
    /// Nothing that files are kept on.
    Pseudo,
}

fn kind_of(fstype: &str) -> Kind {
    match fstype {
        "ext4" | "xfs" | "btrfs" | "overlay" => Kind::Tested,
        "tmpfs" | "ramfs" => Kind::Memory,
        "ext2" | "ext3" | "f2fs" | "bcachefs" | "zfs" | "jfs" | "nilfs2" | "reiserfs" | "vfat"
        | "exfat" | "ntfs3" | "ubifs" | "hfsplus" | "udf" => Kind::Untested,
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "virtiofs" | "afs" | "glusterfs"
        | "ocfs2" | "gfs2" | "fuseblk" | "fuse" => Kind::Remote,
        other if other.starts_with("fuse.") => Kind::Remote,
        _ => Kind::Pseudo,
    }
}

/// One check for each file system that files are kept on, one for those in memory, and one for
/// mounts that sync by themselves.
pub fn mount_checks(table: &[Mount]) -> Vec<Check> {
    let mut seen = HashSet::new();
    let on_disk = table
        .iter()
        .filter(|m| !matches!(kind_of(&m.fstype), Kind::Pseudo | Kind::Memory));
    let first = on_disk.filter(|m| seen.insert((m.device.clone(), m.fstype.clone())));
    let mut all: Vec<Check> = first.map(file_system_check).collect();
    all.extend(memory_check(table));
    all.push(sync_option_check(table));
    all
}

fn points<'a>(mounts: impl Iterator<Item = &'a Mount>) -> String {
    let mut points: Vec<String> = mounts.map(|m| m.point.display().to_string()).collect();
    points.sort();
    points.dedup();
    points.join(", ")
}

fn memory_check(table: &[Mount]) -> Option<Check> {
    let found = points(table.iter().filter(|m| kind_of(&m.fstype) == Kind::Memory));
    let means = "Nothing there can be made durable, so nothing is owed.";
    let check = Check::new("file systems in memory", Status::Ok, found, means);
    (!check.seen.is_empty()).then_some(check)
}

fn file_system_check(mount: &Mount) -> Check {
    let name = format!("file system {}", mount.point.display());
    let on = format!("{} on {}", mount.fstype, mount.source);
    match kind_of(&mount.fstype) {
        Kind::Remote => {
            let means =
                "Sync requests stay real here: a network or FUSE file system need not pass \
                         syncfs on.";
            Check::new(&name, Status::Warn, on, means)
        }
        Kind::Untested | Kind::Memory | Kind::Pseudo => {
            let means = "Sync requests stay real here: the type is not on the tested list (ext4, \
                         XFS, btrfs, overlay on these, tmpfs).";
            Check::new(&name, Status::Warn, on, means)
        }
        Kind::Tested => tested_check(&name, &on, mount),
    }
}

fn tested_check(name: &str, on: &str, mount: &Mount) -> Check {
    if mount.has("ro") {
        let means = "Mounted read-only: nothing can be owed here.";
        return Check::new(name, Status::Ok, format!("{on}, read-only"), means);
    }
    let clones = match synclater_sys::clone::supports_clone(&mount.point) {
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
    let syncs = |m: &&Mount| m.has("sync") || m.has("dirsync");
    let found = points(table.iter().filter(syncs));
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

    const TABLE: &str = "\
        22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard\n\
        30 27 254:0 /srv /srv rw,relatime - ext4 /dev/vda rw,discard\n\
        31 27 0:40 / /mnt/a\\040b rw,noexec,nosuid - xfs /dev/loop0 rw,sync\n\
        32 27 0:41 / /net rw - nfs4 host:/export rw\n\
        bad line\n";

    #[test]
    fn optional_fields_and_escapes_are_read() {
        let table = parse_table(TABLE);
        assert_eq!(table.len(), 5);
        assert_eq!(table[1].fstype, "ext4");
        assert_eq!(table[3].point, Path::new("/mnt/a b"));
        assert!(table[3].is_noexec() && table[3].has("sync"));
    }

    #[test]
    fn a_path_lies_on_the_deepest_mount_above_it() {
        let table = parse_table(TABLE);
        let point = |path: &str| mount_of(&table, Path::new(path)).map(|m| m.point.clone());
        assert_eq!(point("/mnt/a b/c"), Some("/mnt/a b".into()));
        assert_eq!(point("/mnt/a"), Some("/".into()));
        assert_eq!(point("/srvx"), Some("/".into()));
    }

    #[test]
    fn network_and_fuse_are_never_probed() {
        for fstype in ["nfs4", "fuse.sshfs", "9p", "cifs", "fuseblk"] {
            assert_eq!(kind_of(fstype), Kind::Remote, "{fstype}");
        }
    }

    #[test]
    fn a_file_system_is_checked_once_however_often_it_is_mounted() {
        let table: Vec<Mount> = parse_table(TABLE)
            .into_iter()
            .filter(|m| m.fstype != "xfs")
            .collect();
        let names: Vec<String> = mount_checks(&table).into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["file system /", "file system /net", "sync mounts"]);
    }

    #[test]
    fn a_mount_with_the_option_sync_is_named() {
        let check = sync_option_check(&parse_table(TABLE));
        assert_eq!(
            (check.status, check.seen.as_str()),
            (Status::Warn, "/mnt/a b")
        );
    }
}
