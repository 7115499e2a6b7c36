//! A program that has just been executed, before its first instruction.

use crate::reach::attach::Entry;
use crate::reach::program::exe_of;
use rustix::fs::{openat2, statx, AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, CWD};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use synclater_patching::notes;
use synclater_patching::start::{aux, Start as Stack, Word};
use synclater_sys::ptrace::Thread;
use synclater_sys::remote::Memory;

/// What was found out about a program.
pub(super) struct Program {
    pub(super) pid: u32,
    pub(super) memory: Memory,
    pub(super) stack: Stack,
    /// Whether it runs 64-bit code.
    pub(super) is_64: bool,
}

/// The kind of a program header.
fn kind_of(header: &[u8]) -> u32 {
    u32::from_le_bytes(header[..4].try_into().unwrap_or_default())
}

/// The word that `bytes` begin with, of a 64-bit program or of a 32-bit one.
fn word_of(bytes: &[u8], is_64: bool) -> u64 {
    let mut word = [0; 8];
    let len = if is_64 { 8 } else { 4 };
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

impl Program {
    /// Where it begins, if it has a dynamic linker.
    pub(super) fn entry(&self) -> Option<Entry> {
        let linker = self.stack.aux(aux::BASE).filter(|at| *at != 0)?;
        let (at, told) = (self.stack.aux(aux::ENTRY)?, self.stack.aux_at(aux::ENTRY)?);
        Some(Entry { linker, at, told })
    }

    pub(super) fn of(thread: &Thread) -> std::io::Result<Program> {
        let pid = thread.tid();
        let registers = thread.registers()?;
        let memory = Memory::open(pid)?;
        let is_64 = registers.is_64();
        let word = if is_64 { Word::Eight } else { Word::Four };
        let stack = stack(&memory, registers.sp(), word)?;
        Ok(Program {
            pid,
            memory,
            stack,
            is_64,
        })
    }

    /// Whether it has a file under the name that we have it by, where its root is not ours.
    pub(super) fn sees(&self, file: &Path) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{}/root", self.pid), flags, Mode::empty());
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let its = root.ok().and_then(|root| id_of(root.as_fd(), file, inside));
        its.is_some() && its == id_of(CWD, file, ResolveFlags::empty())
    }

    /// The value of a variable in its environment.
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.stack.variable(name).map(OsStr::from_bytes)
    }

    /// Where a file is that has this name for it.
    pub(super) fn as_seen(&self, file: &Path) -> PathBuf {
        let own = PathBuf::from(format!("/proc/{}", self.pid));
        match file.strip_prefix("/") {
            Ok(below) => own.join("root").join(below),
            Err(_) => own.join("cwd").join(file),
        }
    }

    /// Whether it has a note of `whose`: Go makes programs with system calls of their own.
    pub(super) fn has_note_of(&self, whose: &[u8]) -> bool {
        const PT_NOTE: u32 = 4;
        const PT_PHDR: u32 = 6;
        // Where a program header has the address and the length of what it is about (elf(5)).
        let (len, address, size) = if self.is_64 {
            (56, 16, 32)
        } else {
            (32, 8, 16)
        };
        let count = self.stack.aux(aux::PHNUM).map(usize::try_from);
        let (Some(at), Some(Ok(count))) = (self.stack.aux(aux::PHDR), count) else {
            return false;
        };
        // The notes lie right behind the headers, mostly.
        const BOTH: usize = 2048;
        let len_of_all = count.min(64) * len;
        let Ok(begin) = self.memory.up_to(at, len_of_all.max(BOTH)) else {
            return false;
        };
        let Some(headers) = begin.get(..len_of_all) else {
            return false;
        };
        let mut all = headers.chunks_exact(len);
        // Where the file says that its headers are, and where they are.
        let own = all.clone().find(|h| kind_of(h) == PT_PHDR);
        let moved = own.map_or(0, |h| at.wrapping_sub(word_of(&h[address..], self.is_64)));
        all.any(|h| {
            let from = word_of(&h[address..], self.is_64).wrapping_add(moved);
            let len = word_of(&h[size..], self.is_64).min(1 << 16);
            let len = usize::try_from(len).unwrap_or(0);
            let behind = usize::try_from(from.wrapping_sub(at)).unwrap_or(usize::MAX);
            if kind_of(h) != PT_NOTE {
                return false;
            }
            match begin.get(behind..behind.saturating_add(len)) {
                Some(bytes) => notes::are_of(whose, bytes),
                None => {
                    let bytes = self.memory.bytes(from, len);
                    bytes.is_ok_and(|bytes| notes::are_of(whose, &bytes))
                }
            }
        })
    }

    /// Whether it is the dynamic linker itself, executed by its name.
    pub(super) fn is_linker(&self) -> bool {
        let exe = exe_of(self.pid);
        let name = exe.rsplit('/').next().unwrap_or_default();
        name.starts_with("ld-") || name.starts_with("ld.so")
    }
}

/// The device and the number of the file at `path`, as it is found from `dir`.
fn id_of(dir: BorrowedFd<'_>, path: &Path, how: ResolveFlags) -> Option<(u32, u32, u64)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat2(dir, path, flags, Mode::empty(), how).ok()?;
    let seen = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
    Some((seen.stx_dev_major, seen.stx_dev_minor, seen.stx_ino))
}

/// What lies on the stack that begins at `sp`.
fn stack(memory: &Memory, sp: u64, word: Word) -> std::io::Result<Stack> {
    /// Twice what arguments and environment may take (a quarter of the stack, 6 MiB at most).
    const MOST: usize = 12 << 20;
    let mut len = 16 << 10;
    loop {
        let bytes = memory.up_to(sp, len)?;
        let is_all = bytes.len() < len || len >= MOST;
        match Stack::read(&bytes, sp, word) {
            Some(stack) => return Ok(stack),
            None if is_all => return Err(std::io::ErrorKind::InvalidData.into()),
            None => len *= 8,
        }
    }
}
