//! Mounts, as /proc/PID/mountinfo lists them.
//!
//! Promise: a table with lines that make no sense still gives the others.
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

/// Reads the text of `/proc/PID/mountinfo`; lines that are not of its form are left out.
#[must_use]
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

    proptest! {
        #[test]
        fn no_bytes_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_mountinfo(&text);
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
