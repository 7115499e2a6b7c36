//! Which code asked: return addresses as file and offset.
//!
//! Promise: a process's mappings are read at most every 50 ms, and at most as many files are opened
//! as have code in it. Only files are opened that the process runs, and only where they lie on a
//! file system of this machine: one over the network or in a program could keep us waiting.
//!
//! What it does not do: it finds no names; `addr2line -e FILE OFFSET` does.
//!
//! Relies on: /proc/PID/maps, /proc/PID/root, /proc/PID/mountinfo.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};
use synclater_model::policy::filesystem::parse_mountinfo;
use synclater_model::record::module::{
    address_in, mapping_of, parse_elf, parse_maps, Mapping, Segment, HEAD,
};
use synclater_sys::mount::through_root;

/// Mappings that lack an address are read again when they are this old.
const AGE: Duration = Duration::from_millis(50);
const PROCESSES_MAX: usize = 1 << 12;
const FILES_MAX: usize = 1 << 12;
/// Bytes of a process's mappings that are read.
const MAPS_BYTES: u64 = 16 << 20;

/// File systems without a device whose files can be opened without waiting for anybody.
const LOCAL: &[&str] = &[
    "bcachefs", "btrfs", "overlay", "ramfs", "squashfs", "tmpfs", "zfs",
];

struct Known {
    maps: Vec<Mapping>,
    read: Instant,
}

/// A file by device, inode and path: the same one in many processes.
type File = ((u32, u32), u64, String);

/// The code of processes, as far as it was asked for.
#[derive(Default)]
pub struct Modules {
    processes: HashMap<u32, Known>,
    segments: HashMap<File, Vec<Segment>>,
}

impl Modules {
    /// Nothing known yet.
    #[must_use]
    pub fn new() -> Modules {
        Modules::default()
    }

    /// The code at `address` in process `pid`, as `FILE+0xOFFSET`; `None` where it is in no file.
    pub fn module_of(&mut self, pid: u32, address: u64) -> Option<String> {
        let now = Instant::now();
        let mapping = self.mapping(pid, address, now)?;
        let offset = mapping.offset_of(address)?;
        let place = address_in(self.segments_of(pid, &mapping), offset);
        Some(format!("{}+{place:#x}", mapping.path))
    }

    /// The process is gone, or runs another program now.
    pub fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    fn mapping(&mut self, pid: u32, address: u64, now: Instant) -> Option<Mapping> {
        if let Some(known) = self.processes.get(&pid) {
            let found = mapping_of(&known.maps, address);
            if found.is_some() || now.saturating_duration_since(known.read) < AGE {
                return found.cloned();
            }
        }
        let maps = parse_maps(&read(Path::new(&format!("/proc/{pid}/maps")), MAPS_BYTES));
        let known = self.processes.get(&pid);
        if maps.is_empty() && known.is_none() {
            // Gone already: nothing is kept of it, numbers of processes are many.
            return None;
        }
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let read = now;
        let known = { self.processes.entry(pid) }.or_insert(Known {
            maps: Vec::new(),
            read,
        });
        known.read = now;
        if !maps.is_empty() {
            known.maps = maps;
        }
        mapping_of(&known.maps, address).cloned()
    }

    fn segments_of(&mut self, pid: u32, mapping: &Mapping) -> &[Segment] {
        let file = (mapping.dev, mapping.inode, mapping.path.clone());
        if !self.segments.contains_key(&file) {
            if self.segments.len() >= FILES_MAX {
                self.segments.clear();
            }
            let segments = read_segments(pid, mapping).unwrap_or_default();
            self.segments.insert(file.clone(), segments);
        }
        self.segments.get(&file).map_or(&[], Vec::as_slice)
    }
}

fn read(path: &Path, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The segments of a file that a process runs; `None` where it cannot be opened or is another one
/// by now.
fn read_segments(pid: u32, mapping: &Mapping) -> Option<Vec<Segment>> {
    use rustix::fs::{fstat, open, FileType, Mode, OFlags};
    if !is_local(pid, mapping.dev) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = through_root(pid, mapping.path.as_bytes());
    let file = open(&path, flags, Mode::empty()).ok()?;
    let seen = fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(seen.st_mode) == FileType::RegularFile;
    if !is_file || seen.st_ino != mapping.inode {
        return None;
    }
    let mut head = Vec::new();
    let file = std::fs::File::from(file);
    file.take(HEAD as u64).read_to_end(&mut head).ok()?;
    Some(parse_elf(&head))
}

fn is_local(pid: u32, dev: (u32, u32)) -> bool {
    let local = |who: &str| {
        let text = read(Path::new(&format!("/proc/{who}/mountinfo")), MAPS_BYTES);
        let mounts = parse_mountinfo(text.as_bytes());
        let of_it = |m: &synclater_model::policy::filesystem::Mount| m.dev == dev;
        let mount = mounts.into_iter().find(of_it)?;
        Some(LOCAL.contains(&mount.fstype.as_str()))
    };
    dev.0 != 0
        || local(&pid.to_string())
            .or_else(|| local("self"))
            .unwrap_or(false)
}
