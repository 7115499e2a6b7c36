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
use synclater_proc::elf::{address_in, segments, Segment, HEAD};
use synclater_proc::maps::{self, mapping_of, Mapping};
use synclater_proc::mountinfo::parse_mountinfo;
use synclater_sys::mount::through_root;
use synclater_sys::patient::Patient;

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

struct ProcessMaps {
    maps: Vec<Mapping>,
    read: Instant,
}

/// A file by device, inode and path: the same one in many processes.
type File = (u64, u64, String);

/// The code of processes, as far as it was asked for.
#[derive(Default)]
pub struct Modules {
    processes: HashMap<u32, ProcessMaps>,
    segments: HashMap<File, Vec<Segment>>,
    patient: Patient,
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
        Some(format!("{}+{place:#x}", mapping.name_of_file()))
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
        let maps = format!("/proc/{pid}/maps");
        let maps = self
            .patient
            .read(Path::new(&maps), MAPS_BYTES)
            .unwrap_or_default();
        let mut maps = maps::read(&String::from_utf8_lossy(&maps));
        maps.retain(Mapping::is_code_of_file);
        let known = self.processes.get(&pid);
        if maps.is_empty() && known.is_none() {
            // Gone already: nothing is kept of it, numbers of processes are many.
            return None;
        }
        if self.processes.len() >= PROCESSES_MAX {
            self.processes.clear();
        }
        let read = now;
        let known = self.processes.entry(pid).or_insert(ProcessMaps {
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
        let path = mapping.name_of_file().to_owned();
        let file = (mapping.device, mapping.inode, path);
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
    if !is_local(pid, mapping.device) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = through_root(pid, mapping.name_of_file().as_bytes());
    let file = open(&path, flags, Mode::empty()).ok()?;
    let seen = fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(seen.st_mode) == FileType::RegularFile;
    if !is_file || seen.st_ino != mapping.inode {
        return None;
    }
    let mut head = Vec::new();
    let file = std::fs::File::from(file);
    file.take(HEAD as u64).read_to_end(&mut head).ok()?;
    Some(segments(&head))
}

fn is_local(pid: u32, device: u64) -> bool {
    let dev = ((device >> 32) as u32, device as u32);
    dev.0 != 0
        || is_local_to(&pid.to_string(), dev)
            .or_else(|| is_local_to("self", dev))
            .unwrap_or(false)
}

/// Whether the file system of a device is local; `None` where process `who` sees none.
fn is_local_to(who: &str, dev: (u32, u32)) -> Option<bool> {
    let text = read(Path::new(&format!("/proc/{who}/mountinfo")), MAPS_BYTES);
    let mounts = parse_mountinfo(text.as_bytes());
    let mount = mounts.into_iter().find(|m| m.dev == dev)?;
    Some(LOCAL.contains(&mount.fstype.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::stage::{until, Folder, Process, LIMIT};
    use std::process::Command;

    /// An address in the code of this very program.
    fn address_of_ours() -> u64 {
        super::read as fn(&Path, u64) -> String as usize as u64
    }

    fn split(module: &str) -> (String, String) {
        let (path, offset) = module.rsplit_once('+').expect("a plus");
        (path.to_owned(), offset.to_owned())
    }

    #[test]
    fn addr2line_finds_the_function_at_the_offset() {
        let module = Modules::new().module_of(std::process::id(), address_of_ours());
        let (path, offset) = split(&module.expect("our code"));
        let exe = std::env::current_exe().expect("our path");
        assert_eq!(path, exe.to_string_lossy());
        let output = Command::new("addr2line")
            .args(["-C", "-f", "-e", &path, &offset])
            .output();
        let said = String::from_utf8_lossy(&output.expect("addr2line").stdout).into_owned();
        assert!(said.contains("record::resolve::read"), "{said}");
    }

    /// A program linked in one of several ways that prints the address of its `marked_place`.
    fn program(dir: &Folder, name: &str, flags: &[&str]) -> String {
        let source = dir.join("program.c");
        let text = "#include <stdio.h>\n#include <unistd.h>\n\
            __attribute__((noinline)) void marked_place(void) { __asm__ volatile(\"\"); }\n\
            int main(void) { marked_place(); printf(\"%p\\n\", (void *)marked_place);\n\
            fflush(stdout); return (int)read(0, (char[1]){0}, 1); }\n";
        std::fs::write(&source, text).expect("the source");
        let path = dir.join(name);
        let mut command = Command::new("gcc");
        let built = command
            .args(["-g", "-o", &path, &source])
            .args(flags)
            .output();
        let built = built.expect("gcc");
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{said}");
        path
    }

    #[test]
    fn the_offset_is_right_whatever_the_linker_does() {
        let dir = Folder::new();
        for (name, flags) in [
            ("pie", &["-pie", "-fPIE"][..]),
            ("fixed", &["-no-pie", "-fno-PIE"]),
            ("shifted", &["-pie", "-fPIE", "-Wl,-Ttext-segment=0x100000"]),
        ] {
            let path = program(&dir, name, flags);
            let mut process = Process::new(&mut Command::new(&path), None);
            let output = process.0.stdout.as_mut().expect("its output");
            let mut line = String::new();
            use std::io::BufRead;
            std::io::BufReader::new(output)
                .read_line(&mut line)
                .expect("an address");
            let address = line.trim_end().trim_start_matches("0x");
            let address = u64::from_str_radix(address, 16).expect("an address");
            let mut modules = Modules::new();
            let module = modules.module_of(process.id(), address).expect("its code");
            let (seen, offset) = split(&module);
            assert_eq!(seen, path);
            let output = Command::new("addr2line")
                .args(["-f", "-e", &path, &offset])
                .output();
            let said = String::from_utf8_lossy(&output.expect("addr2line").stdout).into_owned();
            assert!(said.starts_with("marked_place\n"), "{name}: {said}");
            // What was known of a process that is gone stays until it is forgotten.
            process.end();
            assert_eq!(modules.module_of(process.id(), address), Some(module));
            modules.forget(process.id());
            assert_eq!(modules.module_of(process.id(), address), None);
        }
    }

    #[test]
    fn a_library_that_is_loaded_later_is_found_soon() {
        let mut command = Command::new("python3");
        let script = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n\
            import ctypes\nm = ctypes.CDLL('libm.so.6')\n\
            print(ctypes.cast(m.cos, ctypes.c_void_p).value, flush=True)\nsys.stdin.readline()";
        let mut process = Process::new(command.args(["-c", script]), Some("ready"));
        let mut modules = Modules::new();
        assert_eq!(modules.module_of(process.id(), 4096), None);
        use std::io::{BufRead, Write};
        let input = process.0.stdin.as_mut().expect("its input");
        input.write_all(b"\n").expect("written");
        let mut line = String::new();
        let output = process.0.stdout.as_mut().expect("its output");
        std::io::BufReader::new(output)
            .read_line(&mut line)
            .expect("an address");
        let address = line.trim_end().parse().expect("an address");
        let found = || {
            modules
                .module_of(process.id(), address)
                .is_some_and(|m| m.contains("/libm.so.6+0x") || m.contains("/libm-"))
        };
        assert!(until(LIMIT, found));
    }

    #[test]
    fn an_address_in_no_file_is_nowhere() {
        let mut modules = Modules::new();
        let on_the_stack = 0u8;
        let address = std::ptr::from_ref(&on_the_stack) as usize as u64;
        assert_eq!(modules.module_of(std::process::id(), address), None);
        assert_eq!(modules.module_of(std::process::id(), 0), None);
        assert_eq!(modules.module_of(u32::MAX, address_of_ours()), None);
    }
}
