//! Reading what the trace programs hand over (c/record.h), field by field.
//!
//! Promise: whatever the bytes, nothing panics; a record that is too short is `None`.

use crate::event::{Event, Kind, Process, Route};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

const HEAD_BYTES: usize = 104;
const TAG_BYTES: usize = 16;

const A_REQUEST: u8 = 1;
const A_PROCESS: u8 = 2;

const HAS_FD: u8 = 1;
const HAS_FILE: u8 = 2;
const HAS_END: u8 = 4;
const HAS_DURATION: u8 = 8;
const PATH_CUT: u8 = 16;
const DELETED: u8 = 32;

/// What one record is about.
#[derive(Debug)]
pub(crate) enum Record {
    Request(Box<Event>),
    Process(Arc<Process>),
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.0.get(at..at.saturating_add(N));
        found.and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn half(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    /// Text up to its first NUL.
    fn tag(&self, at: usize) -> Vec<u8> {
        let tag: [u8; TAG_BYTES] = self.array(at);
        tag.into_iter().take_while(|b| *b != 0).collect()
    }
}

/// A path from its names, the last first, each with a NUL behind it.
fn path_of(names: &[u8], cut: bool) -> Option<PathBuf> {
    let names = names.strip_suffix(b"\0")?;
    let mut path = Vec::with_capacity(names.len() + 1);
    for name in names.rsplit(|b| *b == 0) {
        if !(cut && path.is_empty()) {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    Some(OsString::from_vec(path).into())
}

/// Reads one record.
pub(crate) fn read(data: &[u8]) -> Option<Record> {
    let b = Bytes(data);
    let rest = data.get(HEAD_BYTES..)?;
    let (path, rest) = rest.split_at_checked(b.half(40) as usize)?;
    let path = path_of(path, b.byte(35) & PATH_CUT != 0);
    match b.byte(32) {
        A_REQUEST => Some(Record::Request(Box::new(request(&b, path)))),
        A_PROCESS => Some(Record::Process(Arc::new(Process {
            pid: b.half(44),
            exe: path,
            args: arguments(rest.get(..usize::try_from(b.word(24)).ok()?)?),
        }))),
        _ => None,
    }
}

/// Arguments, each with a NUL behind it; the NULs that a changed title leaves are no arguments.
fn arguments(bytes: &[u8]) -> Vec<OsString> {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    if end == 0 {
        return Vec::new();
    }
    let each = bytes[..end].split(|b| *b == 0);
    each.map(|a| OsString::from_vec(a.to_vec())).collect()
}

fn request(b: &Bytes<'_>, path: Option<PathBuf>) -> Event {
    let marks = b.byte(35);
    let device = b.half(64);
    Event {
        start_ns: b.word(0),
        duration_ns: has(marks, HAS_DURATION).then(|| b.word(8)),
        pid: b.half(44),
        tid: b.half(48),
        uid: b.half(52),
        comm: OsString::from_vec(b.tag(72)),
        process: None,
        kind: Kind::of_number(b.byte(33)),
        route: match b.byte(36) {
            1 => Route::Call,
            2 => Route::IoUring,
            3 => Route::Aio,
            _ => Route::FileSystem,
        },
        fd: has(marks, HAS_FD).then(|| b.half(56).cast_signed()),
        flags: b.half(60),
        result: has(marks, HAS_END).then(|| b.word(24).cast_signed()),
        device: has(marks, HAS_FILE).then_some((device >> 20, device & 0xf_ffff)),
        mount_id: Some(b.half(68)).filter(|id| *id != 0),
        fstype: has(marks, HAS_FILE).then(|| String::from_utf8_lossy(&b.tag(88)).into_owned()),
        inode: has(marks, HAS_FILE).then(|| b.word(16)),
        path,
        path_cut: has(marks, PATH_CUT),
        deleted: has(marks, DELETED),
        dirty: match b.byte(34) {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        },
    }
}

fn has(marks: u8, mark: u8) -> bool {
    marks & mark != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_a_path_from_the_root_on() {
        let path = |names: &[u8], cut| path_of(names, cut).map(PathBuf::into_os_string);
        assert_eq!(path(b"c\0b\0a\0", false), Some("/a/b/c".into()));
        assert_eq!(path(b"c\0b\0", true), Some("b/c".into()));
        assert_eq!(path(b"", false), None);
        let hostile = path(b"\x1b[2J\n\xff\0", false).expect("a path");
        assert_eq!(hostile.into_vec(), b"/\x1b[2J\n\xff");
    }

    #[test]
    fn arguments_end_where_their_bytes_do() {
        assert_eq!(arguments(b"a\0b c\0"), ["a", "b c"]);
        assert_eq!(arguments(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(arguments(b"postgres: writer\0\0\0\0"), ["postgres: writer"]);
        assert!(arguments(b"\0\0").is_empty());
        assert!(arguments(b"").is_empty());
    }

    #[test]
    fn no_bytes_whatever_make_the_reader_panic() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for length in 0..600 {
            let mut bytes: Vec<u8> = (0..length)
                .map(|_| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed.to_ne_bytes()[0]
                })
                .collect();
            for kind in [A_REQUEST, A_PROCESS, 3] {
                for fits in [true, false] {
                    if length > HEAD_BYTES {
                        bytes[32] = kind;
                    }
                    if fits && length > HEAD_BYTES {
                        bytes[40..44].copy_from_slice(&[0; 4]);
                    }
                    let _ = read(&bytes);
                }
            }
        }
    }
}
