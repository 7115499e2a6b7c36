//! Which mounts the members of a session write to, as far as /proc shows it: what sync() is about.
//!
//! Promise: nothing is opened and no file system is asked, since its server may wait for us: it is
//! read in /proc what a process has open for writing, and where its working directory lies. What
//! cannot be read of one that lives is any file system.
//! Not promised: to see what was closed before anybody looked.

use super::mounts::{dev_of, mounts_of};
use rustix::fs::{memfd_create, MemfdFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use synclater_proc::maps;
use synclater_proc::mountinfo::Mount;
use synclater_sys::mount::{self, MNT_ID};
use synclater_sys::{process, threads};

/// What it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A sync() that was put off: whatever members have written to, or may, counts.
    Sync,
    /// An umount: what they have open to write to counts.
    Umount,
}

/// Device numbers of the superblocks that a process writes to, as mountinfo shows them. `None`
/// where that cannot be told, as where it has more than `most` descriptors; empty for a process
/// that is gone. `ours` are the mounts in our sight, and the numbers of what is held.
#[must_use]
pub fn written_by(
    pid: u32,
    ours: (&[Mount], &BTreeSet<u64>),
    how: (About, usize),
) -> Option<BTreeSet<u64>> {
    let seen = seen_of(pid, ours, how);
    if process::is_ended(pid) && !has_files(pid) {
        Some(seen.unwrap_or_default())
    } else {
        seen
    }
}

fn has_files(pid: u32) -> bool {
    threads::with_files(pid).is_ok_and(|all| !all.is_empty())
}

/// Whether /proc may hide a member from us (`hidepid`, proc(5)): one of our own user that may be
/// executed and not read, say. So it is where it has been taken away meanwhile, or is another pid
/// namespace's.
#[must_use]
pub fn may_be_hidden() -> bool {
    if !process::proc_is_ours() {
        return true;
    }
    let table = mounts_of("self");
    let of_proc = table.iter().rfind(|m| m.path() == Path::new("/proc"));
    process::effective_user() != 0 && of_proc.is_some_and(hides)
}

/// Whether a mount of /proc hides processes.
fn hides(m: &Mount) -> bool {
    let mut options = m.super_options.split(',');
    options.any(|o| o.starts_with("hidepid=") && o != "hidepid=0" && o != "hidepid=off")
}

fn seen_of(
    pid: u32,
    (ours, held): (&[Mount], &BTreeSet<u64>),
    (about, most): (About, usize),
) -> Option<BTreeSet<u64>> {
    // Where it has changed its root, or its namespace, it does not see all that it has open.
    let theirs = mounts_of(&pid.to_string());
    let tables = [&theirs, ours];
    let mut seen = BTreeSet::new();
    let mut looked_at = 0;
    for task in threads::with_files(pid).ok()? {
        let task = format!("/proc/{pid}/task/{task}");
        for file in std::fs::read_dir(format!("{task}/fdinfo")).ok()? {
            let file = file.ok()?;
            looked_at += 1;
            if looked_at > most {
                return None;
            }
            let text = match process::text(file.path()) {
                // It was closed meanwhile.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                text => text.ok()?,
            };
            let Some(id) = mount_written_to(&text) else {
                continue;
            };
            let path = Path::new(&task).join("fd").join(file.file_name());
            // On a mount that neither sees: what shows the number of a superblock lies there. What
            // lies on a btrfs, and some files of an overlay, show one that no superblock has.
            let dev = number(id, tables).or_else(|| {
                let dev = mount::dev_of_path(&path).ok();
                dev.filter(|dev| held.contains(dev) || is_shown(*dev, tables))
            });
            match dev {
                Some(dev) => seen.extend([dev]),
                None if is_no_file(&task, &file.file_name(), id) => {}
                None => return None,
            }
        }
        if about == About::Umount {
            continue;
        }
        let cwd = mount::id_of_path(Path::new(&format!("{task}/cwd")), MNT_ID);
        match cwd {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return None,
            cwd => seen.extend(cwd.ok().and_then(|id| number(id, tables))),
        }
        let maps = process::text(format!("{task}/maps")).ok()?;
        seen.extend(mapped_shared(&maps));
    }
    Some(seen)
}

/// The number of the superblock of mount `id`.
fn number(id: u64, tables: [&[Mount]; 2]) -> Option<u64> {
    let mut all = tables.into_iter().flatten();
    all.find(|m| m.id == id).map(dev_of)
}

/// Whether a superblock with this number is mounted.
fn is_shown(dev: u64, tables: [&[Mount]; 2]) -> bool {
    tables.into_iter().flatten().any(|m| dev_of(m) == dev)
}

/// Whether a descriptor is a socket, a pipe, or something else that lies on no mount, or one that
/// only the kernel sees: `mount` is its number.
fn is_no_file(task: &str, fd: &OsStr, mount: u64) -> bool {
    let link = std::fs::read_link(Path::new(task).join("fd").join(fd));
    // A file on a mount that was unmounted lazily may have the name of any memfd.
    let has_path = link.is_ok_and(|to| to.as_os_str().as_bytes().first() == Some(&b'/'));
    !has_path || mounts_of_memfds().contains(&mount)
}

/// The kernel's own mounts that memfds lie on: they last.
fn mounts_of_memfds() -> &'static [u64] {
    static MOUNTS: OnceLock<Vec<u64>> = OnceLock::new();
    MOUNTS.get_or_init(|| {
        let plain = MemfdFlags::CLOEXEC;
        let huge = huge_pages().map(|size| plain | MemfdFlags::HUGETLB | size);
        let kinds = std::iter::once(plain).chain(huge);
        let ours = kinds.filter_map(new_memfd);
        ours.filter_map(|fd| mount::id_of_fd(&fd, MNT_ID).ok())
            .collect()
    })
}

fn new_memfd(how: MemfdFlags) -> Option<OwnedFd> {
    // Without, it may be forbidden (vm.memfd_noexec); with, it is unknown before Linux 6.3.
    let strict = memfd_create(c"synclater", how | MemfdFlags::NOEXEC_SEAL);
    strict.or_else(|_| memfd_create(c"synclater", how)).ok()
}

/// The sizes of huge pages that there are, as memfd_create(2) takes them: each has a mount.
fn huge_pages() -> impl Iterator<Item = MemfdFlags> {
    let all = std::fs::read_dir("/sys/kernel/mm/hugepages");
    all.into_iter().flatten().filter_map(size_of_pages)
}

/// The size that a folder of /sys/kernel/mm/hugepages is about.
fn size_of_pages(entry: io::Result<std::fs::DirEntry>) -> Option<MemfdFlags> {
    const SHIFT: u32 = 26; // MFD_HUGE_SHIFT
    let name = entry.ok()?.file_name().into_string().ok()?;
    let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let bytes = kib.parse::<u64>().ok()?.checked_mul(1024)?;
    let flag = bytes.checked_ilog2()? << SHIFT;
    Some(MemfdFlags::from_bits_retain(flag))
}

/// The superblocks of the files that a process maps shared, from its maps (proc(5)). They may have
/// been written to whatever may be done there now: mprotect(2) takes that back.
fn mapped_shared(maps: &str) -> Vec<u64> {
    let all = maps::read(maps);
    all.iter().filter(|m| m.shared).map(|m| m.device).collect()
}

/// The mount of a descriptor that is open for writing, from its fdinfo (proc(5)).
fn mount_written_to(fdinfo: &str) -> Option<u64> {
    let flags = u32::from_str_radix(field(fdinfo, "flags:")?, 8).ok()?;
    const ACCESS: u32 = 3;
    (flags & ACCESS != 0)
        .then(|| field(fdinfo, "mnt_id:")?.parse().ok())
        .flatten()
}

/// What a line of fdinfo says that begins with this name.
fn field<'a>(fdinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = fdinfo.lines().find_map(|l| l.strip_prefix(name));
    line.map(str::trim)
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
    fn a_mapping_counts_where_it_is_shared() {
        let of = |permissions| format!("7f0-7f1 {permissions} 00000000 fe:01 17   /srv/a file");
        for permissions in ["rw-s", "-w-s", "r--s"] {
            assert_eq!(mapped_shared(&of(permissions)), [0xfe << 32 | 1]);
        }
        assert!(mapped_shared(&of("rw-p")).is_empty());
        assert!(mapped_shared("").is_empty());
    }

    #[test]
    fn a_memfd_lies_on_no_mount_that_is_seen() {
        let sizes = huge_pages().map(|size| MemfdFlags::HUGETLB | size);
        for kind in std::iter::once(MemfdFlags::empty()).chain(sizes) {
            let memfd = memfd_create(c"synclater", MemfdFlags::CLOEXEC | kind).expect("a memfd");
            let mount = mount::id_of_fd(&memfd, MNT_ID).expect("its mount");
            assert!(mounts_of_memfds().contains(&mount));
        }
        let seen = mounts_of("self");
        assert!(!seen.iter().any(|m| mounts_of_memfds().contains(&m.id)));
    }

    #[test]
    fn a_process_writes_where_it_has_a_file_open() {
        let dir = std::env::temp_dir().join(format!("usage-{}", std::process::id()));
        let file = std::fs::File::create(&dir).expect("a file");
        // Not ourselves: other tests open and close here meanwhile.
        let mut cat = std::process::Command::new("cat");
        cat.stdin(std::process::Stdio::piped()).stdout(file);
        let mut cat = cat.spawn().expect("cat");
        let dev = mounts_of("self")
            .iter()
            .find(|m| mount::id_of_path(&dir, MNT_ID).is_ok_and(|id| id == m.id))
            .map(dev_of);
        let ours = mounts_of("self");
        let written = written_by(cat.id(), (&ours, &BTreeSet::new()), (About::Sync, 1024));
        let _ = std::fs::remove_file(dir);
        cat.kill().and_then(|()| cat.wait()).expect("its end");
        let written = written.expect("few descriptors");
        assert!(dev.is_some_and(|dev| written.contains(&dev)));
    }
}
