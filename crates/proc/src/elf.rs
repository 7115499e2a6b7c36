//! The head of an ELF file: which parts of the file are loaded, and where its code ends.
//!
//! Promise: no bytes panic; what is no ELF file has no segments.
//!
//! What it does not do: it reads no file, and no sections: a stripped program has none.
//!
//! Relies on: elf(5). addr2line takes addresses as they stand in the file's own program headers.
//! These are file offsets only where the linker kept the two alike; lld does not.

use object::elf::{FileHeader32, FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::Endianness;
use std::ops::Range;

/// A part of an ELF file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its offset in the file.
    pub offset: u64,
    /// Its length in the file.
    pub length: u64,
    /// The address that the file gives it.
    pub address: u64,
    /// Whether it is mapped so that it can be executed.
    pub is_code: bool,
}

/// Bytes at the beginning of an ELF file that hold its program headers, as linkers write them.
pub const HEAD: usize = 4096;

/// The segments that are loaded, from the beginning of an ELF file; empty for anything else, and
/// where the program headers lie behind what was read.
#[must_use]
pub fn segments(head: &[u8]) -> Vec<Segment> {
    segments_of::<FileHeader64<Endianness>>(head)
        .or_else(|| segments_of::<FileHeader32<Endianness>>(head))
        .unwrap_or_default()
}

fn segments_of<H: FileHeader<Endian = Endianness>>(head: &[u8]) -> Option<Vec<Segment>> {
    let header = H::parse(head).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, head).ok()?;
    let loaded = headers.iter().filter(|h| h.p_type(endian) == PT_LOAD);
    Some(loaded.map(|h| segment_of(h, endian)).collect())
}

fn segment_of<P: ProgramHeader<Endian = Endianness>>(header: &P, endian: Endianness) -> Segment {
    let (offset, length) = header.file_range(endian);
    Segment {
        offset,
        length,
        address: header.p_vaddr(endian).into(),
        is_code: header.p_flags(endian).contains(PF_X),
    }
}

/// What addr2line takes for an offset in the file: the address in the segment that holds it, or the
/// offset itself where there is none.
#[must_use]
pub fn address_in(segments: &[Segment], offset: u64) -> u64 {
    segments
        .iter()
        .find(|s| offset >= s.offset && offset - s.offset < s.length)
        .map_or(offset, |s| s.address.wrapping_add(offset - s.offset))
}

/// The offset after the last byte of the code that begins in the page-aligned part `mapped` of the
/// file; `None` where none does.
#[must_use]
pub fn end_of_code(segments: &[Segment], mapped: &Range<u64>) -> Option<u64> {
    const PAGE: u64 = 4096;
    segments
        .iter()
        .filter(|s| s.is_code && mapped.contains(&(s.offset & !(PAGE - 1))))
        .find_map(|s| s.offset.checked_add(s.length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(offset: u64, length: u64, address: u64, is_code: bool) -> Segment {
        Segment {
            offset,
            length,
            address,
            is_code,
        }
    }

    #[test]
    fn an_offset_becomes_the_address_that_the_file_gives_it() {
        let segments = [
            segment(0, 0x500, 0, false),
            segment(0x500, 0x100, 0x1500, true),
        ];
        assert_eq!(address_in(&segments, 0x510), 0x1510);
        assert_eq!(address_in(&segments, 0x4ff), 0x4ff);
        assert_eq!(address_in(&segments, 0x9000), 0x9000);
    }

    #[test]
    fn code_ends_where_its_segment_does() {
        let segments = [
            segment(0, 0x500, 0, false),
            segment(0x1040, 0x100, 0x2040, true),
            segment(0x3000, u64::MAX, 0x4000, true),
        ];
        assert_eq!(end_of_code(&segments, &(0x1000..0x2000)), Some(0x1140));
        assert_eq!(end_of_code(&segments, &(0..0x1000)), None);
        assert_eq!(end_of_code(&segments, &(0x3000..0x4000)), None);
    }

    /// An ELF head of 64 bits with one segment of code behind a part that is not loaded.
    fn long_head() -> Vec<u8> {
        let mut head = vec![0; 64 + 2 * 56];
        head[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(32, &64u64.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &2u16.to_le_bytes());
        put(64, &6u32.to_le_bytes());
        put(120, &1u32.to_le_bytes());
        put(124, &5u32.to_le_bytes());
        put(128, &0x500u64.to_le_bytes());
        put(136, &0x1500u64.to_le_bytes());
        put(152, &0x100u64.to_le_bytes());
        head
    }

    /// The same with 32 bits, the other way round.
    fn small_head() -> Vec<u8> {
        let mut head = vec![0; 52 + 32];
        head[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1, 2, 1]);
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(28, &52u32.to_be_bytes());
        put(42, &32u16.to_be_bytes());
        put(44, &1u16.to_be_bytes());
        put(52, &1u32.to_be_bytes());
        put(56, &0x500u32.to_be_bytes());
        put(60, &0x1500u32.to_be_bytes());
        put(68, &0x100u32.to_be_bytes());
        put(76, &5u32.to_be_bytes());
        head
    }

    #[test]
    fn segments_are_read_from_the_head_of_a_file() {
        let want = segment(0x500, 0x100, 0x1500, true);
        assert_eq!(segments(&long_head()), [want]);
        assert_eq!(segments(&small_head()), [want]);
        // A head that does not lie where its numbers would be aligned.
        let moved = [&[0][..], &long_head()].concat();
        assert_eq!(segments(&moved[1..]), [want]);
        assert_eq!(segments(&long_head()[..130]), []);
        assert_eq!(segments(b"#!/bin/sh"), []);
    }

    #[test]
    fn the_segments_of_this_program_hold_its_code() {
        let program = std::fs::read("/proc/self/exe").expect("this program");
        let all = segments(&program[..HEAD.min(program.len())]);
        let code: Vec<&Segment> = all.iter().filter(|s| s.is_code).collect();
        assert!(!code.is_empty(), "{all:?}");
        let length = program.len() as u64;
        for s in all {
            assert!(s.offset + s.length <= length, "{s:?} of {length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            noise in proptest::collection::vec((0usize..176, any::<u8>()), 0..40),
            is_long in any::<bool>(),
            at in any::<u64>(),
        ) {
            let mut head = if is_long { long_head() } else { small_head() };
            for (at, byte) in noise {
                if let Some(old) = head.get_mut(at) {
                    *old = byte;
                }
            }
            let all = segments(&head);
            let _ = address_in(&all, at);
            let _ = end_of_code(&all, &(at & !4095..at));
        }
    }
}
