//! Entries of io_uring's rings in a process that is let go of: what was put off in them, and may be
//! handed in again as it is, is what it was.

use super::code::{self, Library};
use super::marks_at;
use super::refusal::Refusal;
use synclater_proc::maps::Mapping;
use synclater_shim::entry::{as_before, OFFSET, SIZE};
use synclater_shim::gate::{Detour, Marks};
use synclater_sys::remote::Memory;

/// Has all of them be what they were. Nothing of the process runs; a thread that is about to put
/// more off finds what is noted in its library's marks, and undoes that. One whose liburing does
/// not come by has none that were put off.
///
/// What cannot be read stays: entries that lie in memory of the program's own
/// (`IORING_SETUP_NO_MMAP`), and all of them before the kernel lets others see its mappings.
///
/// # Errors
/// Where its mappings cannot be read: it has ended.
pub(super) fn put_back(pid: u32, memory: &Memory, library: &Library) -> Result<(), Refusal> {
    let mut places = library.places.iter().flatten();
    if !places.any(|place| matches!(place, Detour::Function { .. })) {
        return Ok(());
    }
    let _ = memory.write(marks_at(library) + Marks::LET_GO, &1u32.to_le_bytes());
    for ring in code::mappings(pid)?.into_iter().filter(is_ring) {
        let len = usize::try_from(ring.range.end - ring.range.start).unwrap_or(0);
        let bytes = memory.bytes(ring.range.start, len).unwrap_or_default();
        let entries = bytes.as_chunks::<SIZE>().0.iter().enumerate();
        for (k, _) in entries.filter(|(_, entry)| !as_before(entry).is_empty()) {
            let at = ring.range.start + (k * SIZE) as u64;
            // Another process may have the ring, too (fork), and have made it another one since.
            let is = memory.bytes(at, SIZE).ok().and_then(|b| b.try_into().ok());
            for (offset, bytes) in is.map_or(Vec::new(), |is| as_before(&is)) {
                let _ = memory.write(at + offset, &bytes);
            }
        }
    }
    Ok(())
}

/// Whether a mapping has the entries of a ring.
fn is_ring(m: &Mapping) -> bool {
    m.shared && m.offset == OFFSET && m.name == "anon_inode:[io_uring]"
}
