//! File systems: for which of them a request may be put off.
//!
//! Promise: only what is on the tested list is ever relaxed; everything else has a reason to show.
//!
//! What it does not do: it reads no file.

use synclater_proc::mountinfo::Mount;

/// What a type of file system means for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsKind {
    /// On the tested list: a request may be put off.
    Tested,
    /// Its files live in memory: nothing survives a power cut, with or without a request.
    Memory,
    /// It stores nothing that a power cut could take.
    Pseudo,
    /// Requests stay real; the text says why, as part of a sentence.
    Untested(&'static str),
}

/// Types that relaxing was tested on.
const TESTED: &[&str] = &["ext4", "xfs", "btrfs", "overlay"];

const MEMORY: &[&str] = &["tmpfs", "ramfs"];

/// The kernel's own views, and images that are never written.
const PSEUDO: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "erofs",
    "fusectl",
    "hugetlbfs",
    "iso9660",
    "mqueue",
    "nsfs",
    "pipefs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sockfs",
    "squashfs",
    "sysfs",
    "tracefs",
];

/// Types whose data is on another machine.
const NETWORK: &[&str] = &[
    "9p",
    "afs",
    "ceph",
    "cifs",
    "gfs2",
    "glusterfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "smb3",
    "smbfs",
];

/// Says what a type of file system means for a request.
pub fn kind(fstype: &str) -> FsKind {
    if TESTED.contains(&fstype) {
        FsKind::Tested
    } else if MEMORY.contains(&fstype) {
        FsKind::Memory
    } else if PSEUDO.contains(&fstype) {
        FsKind::Pseudo
    } else {
        FsKind::Untested(why_untested(fstype))
    }
}

fn why_untested(fstype: &str) -> &'static str {
    if fstype.starts_with("fuse") {
        "a FUSE file system may not pass syncfs on"
    } else if is_network(fstype) {
        "a network file system"
    } else {
        "not on the tested list"
    }
}

/// Types that are served by a program, or by another machine: a look at them may have no end.
const SERVED: &[&str] = &["autofs", "beegfs", "coda", "orangefs", "vboxsf", "virtiofs"];

fn is_network(fstype: &str) -> bool {
    NETWORK.contains(&fstype) || fstype.starts_with("nfs")
}

/// Whether a look at what lies there has an end, whoever else is ill.
#[must_use]
pub fn answers(fstype: &str) -> bool {
    !(fstype.starts_with("fuse") || is_network(fstype) || SERVED.contains(&fstype))
}

/// The server of a network file system, from what is mounted: `nas1` of `nas1:/home`, of
/// `//nas1/home` and of `alice@nas1:/home`. `None` for other file systems, and where no server is
/// named.
#[must_use]
pub fn server_of(mount: &Mount) -> Option<&str> {
    let network = is_network(&mount.fstype);
    let source = mount.source.as_str();
    let host = if let Some(rest) = source.strip_prefix("//") {
        rest.split('/').next()?
    } else if network || mount.fstype.starts_with("fuse.") {
        // Addresses of IPv6 have colons too.
        source.split_once(":/").map(|(host, _)| host)?
    } else {
        return None;
    };
    let host = host.rsplit('@').next()?;
    let plain = !host.is_empty() && !host.contains('/');
    plain.then_some(host)
}

/// The upper folder of an overlay, where what is written to it lies; `None` for other file systems
/// and for an overlay that is read only.
#[must_use]
pub fn upper_of(mount: &Mount) -> Option<Vec<u8>> {
    if mount.fstype != "overlay" {
        return None;
    }
    let at = format!(",{}", mount.super_options);
    let (_, rest) = at.split_once(",upperdir=")?;
    // The kernel writes commas in it behind a backslash.
    let mut path = Vec::new();
    let mut bytes = rest.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' => break,
            b'\\' => path.extend(bytes.next()),
            byte => path.push(byte),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use synclater_proc::mountinfo::parse_mountinfo;

    #[test]
    fn what_a_program_or_another_machine_serves_may_not_answer() {
        for fstype in ["ext4", "ext2", "overlay", "tmpfs", "zfs", "f2fs", "vfat"] {
            assert!(answers(fstype), "{fstype}");
        }
        for fstype in ["fuse.sshfs", "fuseblk", "nfs4", "9p", "virtiofs", "autofs"] {
            assert!(!answers(fstype), "{fstype}");
        }
    }

    #[test]
    fn only_the_tested_list_is_tested() {
        for fstype in ["ext4", "xfs", "btrfs", "overlay"] {
            assert_eq!(kind(fstype), FsKind::Tested);
        }
        for fstype in [
            "ext3", "ext2", "zfs", "bcachefs", "f2fs", "vfat", "", "EXT4",
        ] {
            assert_eq!(
                kind(fstype),
                FsKind::Untested("not on the tested list"),
                "{fstype}"
            );
        }
    }

    #[test]
    fn each_kind_has_its_members() {
        assert_eq!(kind("tmpfs"), FsKind::Memory);
        assert_eq!(kind("cgroup2"), FsKind::Pseudo);
        assert_eq!(kind("fusectl"), FsKind::Pseudo);
        for fstype in ["fuse", "fuseblk", "fuse.sshfs"] {
            assert_eq!(
                kind(fstype),
                FsKind::Untested("a FUSE file system may not pass syncfs on")
            );
        }
        for fstype in ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph"] {
            assert_eq!(
                kind(fstype),
                FsKind::Untested("a network file system"),
                "{fstype}"
            );
        }
    }

    fn mounted(fstype: &str, source: &str, super_options: &str) -> Mount {
        let line = format!("1 2 0:4 / / rw - {fstype} {source} {super_options}\n");
        parse_mountinfo(line.as_bytes()).remove(0)
    }

    #[test]
    fn the_server_of_a_network_file_system_is_found_in_its_source() {
        for (fstype, source, want) in [
            ("nfs4", "nas1:/home", Some("nas1")),
            ("nfs", "[fe80::1]:/home", Some("[fe80::1]")),
            ("cifs", "//nas1/home", Some("nas1")),
            ("smb3", "//nas1", Some("nas1")),
            ("fuse.sshfs", "alice@nas1:/home", Some("nas1")),
            (
                "ceph",
                "10.0.0.1:6789,10.0.0.2:6789:/",
                Some("10.0.0.1:6789,10.0.0.2:6789"),
            ),
            ("ceph", "admin@fsid.fs=/", None),
            ("9p", "share", None),
            ("ext4", "/dev/sda1", None),
            ("zfs", "tank/home", None),
            ("tmpfs", "a:/b", None),
            ("nfs", ":/", None),
        ] {
            assert_eq!(server_of(&mounted(fstype, source, "rw")), want, "{source}");
        }
    }

    #[test]
    fn the_upper_folder_of_an_overlay_is_found_with_its_escapes() {
        let upper = |options| upper_of(&mounted("overlay", "overlay", options));
        let options = r"rw,lowerdir=/l,upperdir=/u\134,x\134\134y,workdir=/w";
        assert_eq!(upper(options).as_deref(), Some(&br"/u,x\y"[..]));
        assert_eq!(upper("rw,upperdir=/u").as_deref(), Some(&b"/u"[..]));
        assert_eq!(upper("ro,lowerdir=/upperdir=/l"), None);
        assert_eq!(upper_of(&mounted("ext4", "x", "rw,upperdir=/u")), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            for mount in parse_mountinfo(&text) {
                let _ = (server_of(&mount), upper_of(&mount));
            }
        }

    }
}
