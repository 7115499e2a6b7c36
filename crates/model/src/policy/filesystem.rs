//! File systems: what is mounted where, and for which of them a request may be put off.
//!
//! Promise: only what is on the tested list is ever relaxed; everything else has a reason to show.
//! A mount table with lines that make no sense still gives the others.
//!
//! What it does not do: it reads no file. Whether a path is on a mount is asked of the kernel.
//!
//! Relies on: proc_pid_mountinfo(5) for the fields; mangle() in the kernel's fs/seq_file.c writes
//! space, tab, newline and backslash as three octal digits behind a backslash.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// One line of `/proc/PID/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Mount id; reused by the kernel after an unmount.
    pub id: u64,
    /// Mount id of the parent.
    pub parent: u64,
    /// Major and minor number of the device, as `st_dev` shows them.
    pub dev: (u32, u32),
    /// The directory of the file system that is mounted here.
    pub root: Vec<u8>,
    /// Where it is mounted, seen from the root of the process that was asked.
    pub point: Vec<u8>,
    /// Type, with a subtype if it has one: `fuse.sshfs`.
    pub fstype: String,
    /// What is mounted: a device, or whatever the file system calls itself.
    pub source: String,
    /// Options of this mount, as the kernel wrote them.
    pub options: String,
    /// False when the mount or the file system below it is read-only.
    pub writable: bool,
    /// Options of the file system, as the kernel wrote them.
    pub super_options: String,
    /// Whether what is mounted on it, or unmounted there, is so in other places, too (a shared
    /// mount, mount_namespaces(7)).
    pub is_shared: bool,
}

impl Mount {
    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.point))
    }

    /// Whether this mount or its file system has the option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        let mut both = self.options.split(',').chain(self.super_options.split(','));
        both.any(|o| o == option)
    }
}

/// The mount that `path` lies on: of the longest mount points the one mounted last.
#[must_use]
pub fn mount_of<'a>(table: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = table.iter().filter(|m| path.starts_with(m.path()));
    above.max_by_key(|m| m.point.len())
}

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
    let one_of = |list: &[&str]| list.contains(&fstype);
    if one_of(TESTED) {
        FsKind::Tested
    } else if one_of(MEMORY) {
        FsKind::Memory
    } else if one_of(PSEUDO) {
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

/// Reads the text of `/proc/PID/mountinfo`; lines that are not of its form are left out.
pub fn parse_mountinfo(text: &[u8]) -> Vec<Mount> {
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// The fields are: id, parent, major:minor, root, mount point, options, any number of optional
/// fields, `-`, type, source, options of the file system. The source may be empty.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let dev = device(fields.next()?)?;
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    let options = text(fields.next()?);
    let mut is_shared = false;
    fields.find(|&field| {
        is_shared |= field.starts_with(b"shared:");
        field == b"-"
    })?;
    let fstype = text(fields.next()?);
    let source = text(fields.next()?);
    let super_options = text(fields.next()?);
    let mut mount = Mount {
        id,
        parent,
        dev,
        root,
        point,
        fstype,
        source,
        options,
        writable: true,
        super_options,
        is_shared,
    };
    mount.writable = !mount.has("ro");
    Some(mount)
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<(u32, u32)> {
    let colon = field.iter().position(|&byte| byte == b':')?;
    Some((number(&field[..colon])?, number(&field[colon + 1..])?))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// Turns `\040` and the like into the bytes they stand for; anything else is left as it is.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, left) = match octal(rest) {
            Some(byte) => (byte, &rest[4..]),
            None => (first, after),
        };
        plain.push(byte);
        rest = left;
    }
    plain
}

fn octal(rest: &[u8]) -> Option<u8> {
    match rest {
        [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ..] => {
            Some((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"\
24 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
25 24 0:23 / /proc rw,nosuid shared:5 master:2 - proc proc rw
26 24 0:40 /@home /home rw shared:7 - btrfs /dev/mapper/a\\040b rw,subvol=/@home
27 24 8:17 / /media/my\\040disk\\134x ro,nosuid - xfs /dev/sdb1 rw
28 24 7:0 / /snap/x ro - squashfs /dev/loop0 ro
29 24 0:50 / /empty rw - tmpfs  rw,size=8k
";

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
    fn every_field_is_read() {
        let mounts = parse_mountinfo(TABLE);
        assert_eq!(mounts.len(), 6);
        let want = Mount {
            id: 26,
            parent: 24,
            dev: (0, 40),
            root: b"/@home".to_vec(),
            point: b"/home".to_vec(),
            fstype: "btrfs".into(),
            source: "/dev/mapper/a b".into(),
            options: "rw".into(),
            writable: true,
            super_options: "rw,subvol=/@home".into(),
            is_shared: true,
        };
        assert_eq!(mounts[2], want);
        let shared: Vec<bool> = mounts.iter().map(|m| m.is_shared).collect();
        assert_eq!(shared, [true, true, true, false, false, false]);
    }

    #[test]
    fn octal_escapes_are_decoded() {
        assert_eq!(parse_mountinfo(TABLE)[3].point, b"/media/my disk\\x");
        assert_eq!(unescape(b"\\011\\012\\134\\400\\04"), b"\t\n\\\\400\\04");
    }

    #[test]
    fn a_mount_is_writable_when_neither_it_nor_its_file_system_is_read_only() {
        let writable: Vec<bool> = parse_mountinfo(TABLE).iter().map(|m| m.writable).collect();
        assert_eq!(writable, [true, true, true, false, false, true]);
    }

    #[test]
    fn an_empty_source_keeps_the_fields_apart() {
        let mount = &parse_mountinfo(TABLE)[5];
        assert_eq!(
            (mount.source.as_str(), mount.super_options.as_str()),
            ("", "rw,size=8k")
        );
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        let text =
            b"x\n1 2 3 / / rw - a b c\n1 2 3:4 / / rw a b c\n1 2 3:4 / / rw - a b c\n1 2 3:4";
        assert_eq!(parse_mountinfo(text).len(), 1);
        assert_eq!(parse_mountinfo(b""), []);
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

        #[test]
        fn any_path_survives_the_kernel_s_escapes(path in "[ -~\\t\\n]{1,40}") {
            let mangled: String = path.chars().map(|c| match c {
                ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", c as u32),
                c => c.to_string(),
            }).collect();
            let line = format!("1 2 3:4 / {mangled} rw - ext4 /dev/x rw\n");
            prop_assert_eq!(&parse_mountinfo(line.as_bytes())[0].point, path.as_bytes());
        }
    }
}
