//! Addresses in a process: which file holds the code, and where `addr2line -e` finds it there.
//!
//! Promise: no bytes panic; an address in no file is `None`.
//!
//! What it does not do: it reads no file, and knows no names of functions.
//!
//! Relies on: proc_pid_maps(5); elf(5). addr2line takes addresses as they stand in the file's own
//! program headers, which are file offsets only where the linker kept the two alike; lld does not.

/// Code of a file in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset in the file of the first.
    pub offset: u64,
    /// Major and minor number of the file system.
    pub dev: (u32, u32),
    /// The file's inode number.
    pub inode: u64,
    /// The file's path, without the mark of a deleted one.
    pub path: String,
}

/// Reads the text of /proc/PID/maps: the executable mappings of files, in order.
#[must_use]
pub fn parse_maps(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_mapping).collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let small = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    let (start, end) = word().split_once('-')?;
    let runs = word().as_bytes().get(2) == Some(&b'x');
    let offset = hex(word())?;
    let (major, minor) = word().split_once(':')?;
    let inode = word().parse().ok()?;
    let path = rest.trim_start_matches(' ');
    let mapping = Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset,
        dev: (small(major)?, small(minor)?),
        inode,
        path: path.strip_suffix(" (deleted)").unwrap_or(path).to_owned(),
    };
    (runs && mapping.path.starts_with('/')).then_some(mapping)
}

impl Mapping {
    /// The offset in the file of an address; `None` where it lies outside.
    #[must_use]
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let inside = (self.start..self.end).contains(&address);
        inside.then(|| (address - self.start).checked_add(self.offset))?
    }
}

/// The mapping of an address among those of [`parse_maps`].
#[must_use]
pub fn mapping_of(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = maps.partition_point(|m| m.start <= address);
    maps[..after].last().filter(|m| address < m.end)
}

/// A part of an ELF file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its offset in the file.
    pub offset: u64,
    /// Its length in the file.
    pub length: u64,
    /// The address that the file gives it.
    pub address: u64,
}

/// Bytes at the beginning of an ELF file that hold its program headers, as linkers write them.
pub const HEAD: usize = 4096;

/// The segments that are loaded, from the beginning of an ELF file of this machine's byte order;
/// empty for anything else.
#[must_use]
pub fn parse_elf(head: &[u8]) -> Vec<Segment> {
    let wide = match head.get(..6) {
        Some([0x7f, b'E', b'L', b'F', 1, data]) if *data == DATA => false,
        Some([0x7f, b'E', b'L', b'F', 2, data]) if *data == DATA => true,
        _ => return Vec::new(),
    };
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at.checked_add(size)?)?;
        let digit = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(match cfg!(target_endian = "big") {
            true => bytes.iter().fold(0, digit),
            false => bytes.iter().rev().fold(0, digit),
        })
    };
    let table = || -> Option<(usize, usize, usize)> {
        let (at, size, count) = match wide {
            true => (number(32, 8)?, number(54, 2)?, number(56, 2)?),
            false => (number(28, 4)?, number(42, 2)?, number(44, 2)?),
        };
        Some((usize::try_from(at).ok()?, size as usize, count as usize))
    };
    let segment = |at: usize| {
        let is_loaded = number(at, 4)? == 1;
        let field = |wide_at: usize, narrow_at: usize| match wide {
            true => number(at.checked_add(wide_at)?, 8),
            false => number(at.checked_add(narrow_at)?, 4),
        };
        Some((
            is_loaded,
            Segment {
                offset: field(8, 4)?,
                address: field(16, 8)?,
                length: field(32, 16)?,
            },
        ))
    };
    let Some((first, size, count)) = table() else {
        return Vec::new();
    };
    let places = (0..count).map_while(|k| first.checked_add(k.checked_mul(size)?));
    let all = places.map_while(segment);
    all.filter(|(is_loaded, _)| *is_loaded)
        .map(|(_, s)| s)
        .collect()
}

const DATA: u8 = if cfg!(target_endian = "big") { 2 } else { 1 };

/// What addr2line takes for an offset in the file: the address in the segment that holds it, or the
/// offset itself where there is none.
#[must_use]
pub fn address_in(segments: &[Segment], offset: u64) -> u64 {
    let holds = |s: &&Segment| offset >= s.offset && offset - s.offset < s.length;
    let moved = |s: &Segment| s.address.wrapping_add(offset - s.offset);
    segments.iter().find(holds).map_or(offset, moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAPS: &str = "\
55cd728d4000-55cd728d6000 r--p 00000000 fe:00 247026                     /usr/bin/cat
55cd728d6000-55cd728db000 r-xp 00002000 fe:00 247026                     /usr/bin/cat
7f0000000000-7f0000001000 r-xp 00001000 00:2a 77                         /a b/c d (deleted)
7f0000002000-7f0000003000 rwxp 00000000 00:00 0
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]
nonsense
";

    #[test]
    fn only_code_of_files_is_kept() {
        let maps = parse_maps(MAPS);
        let paths: Vec<&str> = maps.iter().map(|m| m.path.as_str()).collect();
        assert_eq!(paths, ["/usr/bin/cat", "/a b/c d"]);
        assert_eq!((maps[0].dev, maps[0].inode), ((0xfe, 0), 247_026));
    }

    #[test]
    fn an_address_is_found_in_its_mapping_and_nowhere_else() {
        let maps = parse_maps(MAPS);
        let found = mapping_of(&maps, 0x55cd_728d_6010).expect("it is there");
        assert_eq!(found.offset_of(0x55cd_728d_6010), Some(0x2010));
        for address in [
            0,
            0x55cd_728d_4000,
            0x55cd_728d_b000,
            0x7f00_0000_2000,
            u64::MAX,
        ] {
            assert_eq!(mapping_of(&maps, address), None);
        }
    }

    #[test]
    fn an_offset_becomes_the_address_that_the_file_gives_it() {
        let segment = |offset, length, address| Segment {
            offset,
            length,
            address,
        };
        let segments = [segment(0, 0x500, 0), segment(0x500, 0x100, 0x1500)];
        assert_eq!(address_in(&segments, 0x510), 0x1510);
        assert_eq!(address_in(&segments, 0x4ff), 0x4ff);
        assert_eq!(address_in(&segments, 0x9000), 0x9000);
    }

    /// An ELF head of 64 bits with one segment to load behind one that is not.
    fn head() -> Vec<u8> {
        let mut head = vec![0; 64 + 2 * 56];
        head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, DATA]);
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(32, &64u64.to_ne_bytes());
        put(54, &56u16.to_ne_bytes());
        put(56, &2u16.to_ne_bytes());
        put(64, &6u32.to_ne_bytes());
        put(120, &1u32.to_ne_bytes());
        put(128, &0x500u64.to_ne_bytes());
        put(136, &0x1500u64.to_ne_bytes());
        put(152, &0x100u64.to_ne_bytes());
        head
    }

    #[test]
    fn segments_are_read_from_the_head_of_a_file() {
        let want = Segment {
            offset: 0x500,
            length: 0x100,
            address: 0x1500,
        };
        assert_eq!(parse_elf(&head()), [want]);
        assert_eq!(parse_elf(&head()[..130]), []);
        assert_eq!(parse_elf(b"#!/bin/sh"), []);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            noise in proptest::collection::vec((0usize..176, any::<u8>()), 0..40),
            text in "([0-9a-f]{1,17}|[-: x/]|\n){0,80}",
            address in any::<u64>(),
        ) {
            let mut head = head();
            for (at, byte) in noise {
                head[at] = byte;
            }
            let _ = address_in(&parse_elf(&head), address);
            let maps = parse_maps(&text);
            let _ = mapping_of(&maps, address).and_then(|m| m.offset_of(address));
        }
    }
}
