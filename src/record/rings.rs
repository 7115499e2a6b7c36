//! The file with the rings of a session, as the supervisor makes it and the recorder reads it.
//!
//! Promise: there is a ring for each of 512 processes. Memory is behind what victims write of
//! them: they see to that themselves, before they write, so that it raises no signal; a ring that
//! is given back keeps it for the next.

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
    mapping: Mapping,
    file: File,
    cells: usize,
}

impl SharedRings {
    /// Makes the file `rings` in `dir`, with rings of `size` bytes, a power of two.
    ///
    /// # Errors
    /// `ENOSPC`, `EACCES` and the like.
    pub fn create(dir: &Path, size: usize) -> io::Result<SharedRings> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(0o600);
        let file = how.open(dir.join("rings"))?;
        let cells = size / CELL;
        let len = RINGS_DATA + RING_MAX * ring_bytes(cells);
        let mapping = Mapping::create_in_part(&file, len, RINGS_DATA)?;
        let rings = SharedRings {
            mapping,
            file,
            cells,
        };
        let head = rings.head();
        head.version.store(page::VERSION, SeqCst);
        head.magic.store(RINGS_MAGIC, SeqCst);
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

    /// The control words.
    #[must_use]
    pub fn head(&self) -> &Rings {
        Rings::view(self.mapping.bytes()).expect("the mapping was made for rings")
    }

    fn count(&self) -> usize {
        let count = self.head().count.load(SeqCst) as usize;
        count.min(RING_MAX)
    }

    /// Every ring that may be in use: its index, control words and cells.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Ring, &[Cell])> {
        let rings = &self.head().ring;
        (0..self.count()).filter_map(move |i| {
            let cells = cells_of(self.mapping.bytes(), i, self.cells)?;
            Some((i, &rings[i], cells))
        })
    }

    /// The histogram of ring `index`; none where there is no memory behind it.
    #[must_use]
    pub fn hist(&self, index: usize) -> Option<&Hist> {
        let ring = self.head().ring.get(index)?;
        let exists = ring.backed.load(SeqCst) == 1;
        hist_of(self.mapping.bytes(), index, self.cells).filter(|_| exists)
    }

    /// The file, for a victim that may not open it by itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}
