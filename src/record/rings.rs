//! The rings of a session, as the supervisor makes them and the recorder reads them: a file for the
//! session's own user, and memory for each other user that may become a member.
//!
//! Promise: there is a ring for each of 512 processes of a user. Memory is behind what victims
//! write of them: they see to that themselves, before they write, so that it raises no signal; a
//! ring that is given back keeps it for the next. No process gets a ring that one of another user
//! can read.

use crate::session::shared::Room;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{self, Layout};
use synclater_shim::rings::{
    cells_of, hist_of, ring_bytes, Cell, Hist, Ring, Rings, CELL, RINGS_DATA, RINGS_MAGIC, RING_MAX,
};
use synclater_sys::memory::Mapping;

/// The rings.
pub struct SharedRings {
    /// Those of the session's own user, then those of others, in the order of their rooms.
    parts: Vec<(File, Mapping)>,
    cells: usize,
}

impl SharedRings {
    /// Makes the file `rings` in `dir`, with rings of `size` bytes, a power of two, and the same
    /// for `others` other users. Where there is no room for theirs, what they do is lost.
    ///
    /// # Errors
    /// `ENOSPC`, `EACCES` and the like.
    pub fn create(dir: &Path, size: usize, others: usize) -> io::Result<SharedRings> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(0o600);
        let file = how.open(dir.join("rings"))?;
        let cells = size / CELL;
        let len = RINGS_DATA + RING_MAX * ring_bytes(cells);
        let mapping = Mapping::create_in_part(&file, len, RINGS_DATA)?;
        let theirs = (0..others).map_while(|_| Mapping::create_sealed(c"rings", len).ok());
        let parts = std::iter::once((file, mapping)).chain(theirs).collect();
        let rings = SharedRings { parts, cells };
        for part in 0..rings.parts.len() {
            let head = rings.head_of(part);
            head.version.store(page::VERSION, SeqCst);
            head.magic.store(RINGS_MAGIC, SeqCst);
        }
        Ok(rings)
    }

    /// Cells of one ring.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Whether many rings are claimed: those of processes that are gone should be given back.
    #[must_use]
    pub fn are_few(&self) -> bool {
        let claimed = self.all().filter(|(_, r, _)| r.pid.load(SeqCst) != 0);
        claimed.count() > RING_MAX / 8
    }

    /// The control words of the session's own user, whose bell wakes the recorder.
    #[must_use]
    pub fn head(&self) -> &Rings {
        self.head_of(0)
    }

    fn head_of(&self, part: usize) -> &Rings {
        Rings::view(self.parts[part].1.bytes()).expect("the mapping was made for rings")
    }

    fn count(&self, part: usize) -> usize {
        let count = self.head_of(part).count.load(SeqCst) as usize;
        count.min(RING_MAX)
    }

    /// More than the index of any ring.
    #[must_use]
    pub fn end(&self) -> usize {
        self.parts.len() * RING_MAX
    }

    /// Whether other users have rings, whose bells nobody hears.
    #[must_use]
    pub fn are_of_several(&self) -> bool {
        (1..self.parts.len()).any(|part| self.count(part) > 0)
    }

    /// The room of the other user whose ring `index` is; `None` for the session's own user.
    #[must_use]
    pub fn room_of(&self, index: usize) -> Option<usize> {
        (index / RING_MAX).checked_sub(1)
    }

    /// Every ring that may be in use: its index, control words and cells.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Ring, &[Cell])> {
        (0..self.parts.len()).flat_map(move |part| {
            let (rings, bytes) = (&self.head_of(part).ring, self.parts[part].1.bytes());
            (0..self.count(part)).filter_map(move |i| {
                let cells = cells_of(bytes, i, self.cells)?;
                Some((part * RING_MAX + i, &rings[i], cells))
            })
        })
    }

    /// The histogram of ring `index`; none where there is no memory behind it.
    #[must_use]
    pub fn hist(&self, index: usize) -> Option<&Hist> {
        let (part, i) = (index / RING_MAX, index % RING_MAX);
        let (_, mapping) = self.parts.get(part)?;
        let exists = self.head_of(part).ring[i].backed.load(SeqCst) == 1;
        hist_of(mapping.bytes(), i, self.cells).filter(|_| exists)
    }

    /// The file or memory, for a member that may not open it by itself; none where there was no
    /// room for his.
    #[must_use]
    pub fn file(&self, room: Room) -> Option<&File> {
        let part = match room {
            Room::Own => 0,
            Room::Other(room) => 1 + room,
        };
        self.parts.get(part).map(|(file, _)| file)
    }
}
