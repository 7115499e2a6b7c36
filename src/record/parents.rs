//! What a block device is made of, from /sys: partitions, loop devices, device mapper, RAID.
//!
//! Promise: bounded work, also where devices name each other in a circle.
//!
//! Relies on: sysfs of the kernel: `partition` in a partition's folder, which lies in its disk's;
//! `loop/backing_file`; `slaves/` of device mapper, md and bcache; `dm/name` and `dm/uuid`, whose
//! prefix `mpath-` multipathd gives; /sys/fs/btrfs for the devices of one file system.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Levels that are told.
const DEPTH: usize = 8;
/// Names on one level that are told.
const WIDTH: usize = 16;
/// Entries of a folder that are looked at.
const ENTRIES: usize = 256;

/// One thing that others lie on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A block device, by its folder below /sys/devices.
    Block(PathBuf),
    /// The file behind a loop device.
    File(PathBuf),
    /// Something without a device: a server, a pool.
    Other(String),
}

/// The block devices of the machine.
#[derive(Debug)]
pub struct Blocks {
    sys: PathBuf,
}

/// A short file of /sys without its last newline; what is longer is cut.
fn line_of(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(4096).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    (!text.is_empty()).then(|| text.to_owned())
}

/// What the entries of a folder lead to, in the order of their names.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = found.take(ENTRIES).map(|e| e.path()).collect();
    found.sort();
    found.iter().filter_map(|p| p.canonicalize().ok()).collect()
}

impl Blocks {
    /// Those below `sys`, which is /sys.
    #[must_use]
    pub fn new(sys: &Path) -> Blocks {
        let sys = sys.to_owned();
        Blocks { sys }
    }

    /// The block device with a number.
    #[must_use]
    pub fn by_number(&self, dev: (u32, u32)) -> Option<Part> {
        let link = self.sys.join(format!("dev/block/{}:{}", dev.0, dev.1));
        link.canonicalize().ok().map(Part::Block)
    }

    /// The block device with a path below /dev.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<Part> {
        let name = path.strip_prefix("/dev/")?;
        if name.split('/').any(|part| part == "..") {
            return None;
        }
        let number = rustix::fs::stat(path).ok().and_then(|s| {
            use rustix::fs::{major, minor, FileType};
            let is_block = FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice;
            is_block.then(|| (major(s.st_rdev), minor(s.st_rdev)))
        });
        let part = number.and_then(|dev| self.by_number(dev));
        part.or_else(|| self.by_name(name))
    }

    /// The block device with a name below /dev.
    fn by_name(&self, name: &str) -> Option<Part> {
        let link = self.sys.join("class/block").join(name.replace('/', "!"));
        link.canonicalize().ok().map(Part::Block)
    }

    /// All devices of the btrfs of which `part` is one.
    #[must_use]
    pub fn btrfs_of(&self, part: &Part) -> Vec<Part> {
        let all = entries(&self.sys.join("fs/btrfs")).into_iter().map(|dir| {
            let devices = entries(&dir.join("devices")).into_iter();
            devices.map(Part::Block).collect::<Vec<Part>>()
        });
        let mut with_it = all.filter(|devices| devices.contains(part));
        with_it.next().unwrap_or_else(|| vec![part.clone()])
    }

    /// The path of a device as people write it: `/dev/sda1`, `/dev/mapper/vg-home`.
    #[must_use]
    pub fn path_of(&self, part: &Part) -> String {
        match part {
            Part::Block(dir) => match line_of(&dir.join("dm/name")) {
                Some(name) => format!("/dev/mapper/{name}"),
                None => format!("/dev/{}", node_of(dir)),
            },
            Part::File(path) => path.to_string_lossy().into_owned(),
            Part::Other(text) => text.clone(),
        }
    }

    /// What `parts` are, then what those are made of, nearest first: `sda1 < sda`. Several on one
    /// level have `+` between. `below` tells what a file lies on.
    #[must_use]
    pub fn chain(&self, parts: Vec<Part>, below: &dyn Fn(&Path) -> Vec<Part>) -> String {
        let mut levels = Vec::new();
        let mut seen: Vec<Part> = Vec::new();
        let mut level = parts;
        while !level.is_empty() && levels.len() < DEPTH {
            let more = if level.len() > WIDTH { "+…" } else { "" };
            level.truncate(WIDTH);
            let names: Vec<String> = level.iter().map(name_of).collect();
            levels.push(names.join("+") + more);
            seen.extend(level.iter().cloned());
            let mut next = Vec::new();
            for part in level.iter().flat_map(|part| made_of(part, below)) {
                if !seen.contains(&part) && !next.contains(&part) {
                    next.push(part);
                }
            }
            level = next;
        }
        levels.join(" < ")
    }
}

/// The name below /dev of the device with a folder in /sys.
fn node_of(dir: &Path) -> String {
    let uevent = line_of(&dir.join("uevent")).unwrap_or_default();
    let mut lines = uevent.lines();
    if let Some(told) = lines.find_map(|l| l.strip_prefix("DEVNAME=")) {
        return told.to_owned();
    }
    let last = dir.file_name().unwrap_or_default().to_string_lossy();
    last.replace('!', "/")
}

fn name_of(part: &Part) -> String {
    match part {
        Part::Block(dir) => match line_of(&dir.join("dm/name")) {
            Some(name) => {
                let uuid = line_of(&dir.join("dm/uuid")).unwrap_or_default();
                let multipath = uuid.starts_with("mpath-");
                format!("{}{name}", if multipath { "multipath " } else { "" })
            }
            None => node_of(dir),
        },
        Part::File(path) => path.to_string_lossy().into_owned(),
        Part::Other(text) => text.clone(),
    }
}

fn made_of(part: &Part, below: &dyn Fn(&Path) -> Vec<Part>) -> Vec<Part> {
    let dir = match part {
        Part::Block(dir) => dir,
        Part::File(path) => return below(path),
        Part::Other(_) => return Vec::new(),
    };
    if dir.join("partition").exists() {
        return dir
            .parent()
            .map(|disk| Part::Block(disk.to_owned()))
            .into_iter()
            .collect();
    }
    if let Some(file) = line_of(&dir.join("loop/backing_file")) {
        let file = file.strip_suffix(" (deleted)").unwrap_or(&file);
        return vec![Part::File(file.into())];
    }
    let slaves = entries(&dir.join("slaves"));
    if !slaves.is_empty() {
        return slaves.into_iter().map(Part::Block).collect();
    }
    // A bcache device without slaves leads to a folder in its backing device's.
    let backing = dir.join("bcache").canonicalize().ok();
    let backing = backing
        .as_deref()
        .and_then(Path::parent)
        .filter(|b| b != dir);
    backing
        .map(|b| Part::Block(b.to_owned()))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::stage::Folder;
    use std::os::unix::fs::symlink;

    impl Folder {
        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }

        fn device(&self, number: &str, path: &str) {
            let name = path.rsplit('/').next().expect("a name");
            self.put(
                &format!("devices/{path}/uevent"),
                &format!("MAJOR=1\nDEVNAME={name}\n"),
            );
            std::fs::create_dir_all(self.0.join("dev/block")).expect("folders");
            let (to, link) = (format!("devices/{path}"), format!("dev/block/{number}"));
            symlink(self.0.join(to), self.0.join(link)).expect("a link");
        }

        fn slave(&self, of: &str, slave: &str) {
            let dir = self.0.join(format!("devices/{of}/slaves"));
            std::fs::create_dir_all(&dir).expect("folders");
            let name = slave.rsplit('/').next().expect("a name");
            symlink(self.0.join("devices").join(slave), dir.join(name)).expect("a link");
        }
    }

    fn machine() -> Folder {
        let sys = Folder::new();
        sys.device("8:0", "pci/sda");
        sys.device("8:1", "pci/sda/sda1");
        sys.put("devices/pci/sda/sda1/partition", "1\n");
        sys.device("8:16", "pci/sdb");
        sys.device("9:0", "virtual/md0");
        sys.slave("virtual/md0", "pci/sda/sda1");
        sys.slave("virtual/md0", "pci/sdb");
        sys.device("253:0", "virtual/dm-0");
        sys.put("devices/virtual/dm-0/dm/name", "vg-home\n");
        sys.put("devices/virtual/dm-0/dm/uuid", "LVM-x\n");
        sys.slave("virtual/dm-0", "virtual/md0");
        sys.device("253:1", "virtual/dm-1");
        sys.put("devices/virtual/dm-1/dm/name", "mpatha\n");
        sys.put("devices/virtual/dm-1/dm/uuid", "mpath-3600\n");
        sys.slave("virtual/dm-1", "pci/sda");
        sys.slave("virtual/dm-1", "pci/sdb");
        sys.device("7:0", "virtual/loop0");
        sys.put(
            "devices/virtual/loop0/loop/backing_file",
            "/srv/a disk.img\n",
        );
        sys
    }

    fn chain(sys: &Folder, number: (u32, u32)) -> String {
        let blocks = Blocks::new(&sys.0);
        let below = |file: &Path| {
            assert_eq!(file, Path::new("/srv/a disk.img"));
            blocks.by_number((8, 1)).into_iter().collect()
        };
        let part = blocks.by_number(number).expect("the device");
        blocks.chain(vec![part], &below)
    }

    #[test]
    fn a_device_is_told_with_what_it_is_made_of_nearest_first() {
        let sys = machine();
        for (number, want) in [
            ((8, 0), "sda"),
            ((8, 1), "sda1 < sda"),
            ((9, 0), "md0 < sda1+sdb < sda"),
            ((253, 0), "vg-home < md0 < sda1+sdb < sda"),
            ((253, 1), "multipath mpatha < sda+sdb"),
            ((7, 0), "loop0 < /srv/a disk.img < sda1 < sda"),
        ] {
            assert_eq!(chain(&sys, number), want);
        }
    }

    #[test]
    fn a_device_has_the_path_that_people_write() {
        let sys = machine();
        let blocks = Blocks::new(&sys.0);
        let path = |dev| blocks.by_number(dev).map(|part| blocks.path_of(&part));
        assert_eq!(path((8, 1)).as_deref(), Some("/dev/sda1"));
        assert_eq!(path((253, 0)).as_deref(), Some("/dev/mapper/vg-home"));
        assert_eq!(path((1, 1)), None);
    }

    #[test]
    fn a_cached_device_without_slaves_leads_to_its_backing_device() {
        let sys = machine();
        sys.device("252:0", "virtual/bcache0");
        sys.put("devices/pci/sdb/bcache/state", "clean\n");
        let (to, link) = ("devices/pci/sdb/bcache", "devices/virtual/bcache0/bcache");
        symlink(sys.0.join(to), sys.0.join(link)).expect("a link");
        assert_eq!(chain(&sys, (252, 0)), "bcache0 < sdb");
    }

    #[test]
    fn a_btrfs_has_all_its_devices() {
        let sys = machine();
        let dir = sys.0.join("fs/btrfs/uuid/devices");
        std::fs::create_dir_all(&dir).expect("folders");
        for name in ["sda/sda1", "sdb"] {
            let to = sys.0.join("devices/pci").join(name);
            symlink(&to, dir.join(to.file_name().expect("a name"))).expect("a link");
        }
        let blocks = Blocks::new(&sys.0);
        let part = blocks.by_number((8, 16)).expect("sdb");
        let text = blocks.chain(blocks.btrfs_of(&part), &|_| Vec::new());
        assert_eq!(text, "sda1+sdb < sda");
        let other = blocks.by_number((9, 0)).expect("md0");
        assert_eq!(blocks.btrfs_of(&other), std::slice::from_ref(&other));
    }

    #[test]
    fn devices_in_a_circle_and_too_many_of_them_come_to_an_end() {
        let sys = machine();
        sys.slave("pci/sdb", "virtual/dm-1");
        assert_eq!(chain(&sys, (253, 1)), "multipath mpatha < sda+sdb");
        for k in 0..20 {
            sys.device(&format!("8:{}", 100 + k), &format!("pci/sdx{k:02}"));
            sys.slave("pci/sda", &format!("pci/sdx{k:02}"));
        }
        let text = chain(&sys, (8, 0));
        assert!(text.ends_with("sdx15+…"), "{text}");
    }

    #[test]
    fn a_path_out_of_dev_is_no_device() {
        let blocks = Blocks::new(Path::new("/sys"));
        for path in [
            "/dev/../etc/passwd",
            "/etc/passwd",
            "/dev/null",
            "tmpfs",
            "",
        ] {
            assert_eq!(blocks.by_path(path), None, "{path}");
        }
    }
}
