//! The file with the rings of a session, as the supervisor makes it and the recorder reads it.
//!
//! Promise: every ring that a victim can claim is backed by memory, so that writing it raises no
//! signal; more are made before the last is claimed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{self, Layout};
use synclater_shim::rings::{
    cells_of, hist_of, ring_bytes, Cell, Hist, Ring, Rings, CELL, RINGS_DATA, RINGS_MAGIC, RING_MAX,
};
use synclater_sys::memory::{back, Mapping};

/// Rings that are free when nothing happens, at least; fewer where they are large. A server's
/// processes make their first request at the same moment.
const RESERVE: usize = 8;
const RESERVE_BYTES: usize = 32 << 20;

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
        rings.add()?;
        rings.grow();
        head.magic.store(RINGS_MAGIC, SeqCst);
        Ok(rings)
    }

    /// Cells of one ring.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.cells
    }

    fn reserve(&self) -> usize {
        (RESERVE_BYTES / ring_bytes(self.cells)).clamp(2, RESERVE)
    }

    /// Makes one more ring.
    fn add(&self) -> io::Result<()> {
        let size = ring_bytes(self.cells);
        let count = self.count();
        back(&self.file, RINGS_DATA + count * size, size)?;
        let more = u32::try_from(count + 1).unwrap_or(0);
        self.head().count.store(more, SeqCst);
        Ok(())
    }

    /// Whether more should be there: less than half are free, or too few for what may come at once.
    #[must_use]
    pub fn are_short(&self) -> bool {
        let count = self.count();
        let free = self.all().filter(|(_, r, _)| r.pid.load(SeqCst) == 0);
        let free = free.count();
        free * 2 < count || free < self.reserve()
    }

    /// Makes more rings until they are enough; where there is no memory, or no more can be, it
    /// stays as it is, and who finds none counts what it loses.
    pub fn grow(&self) {
        while self.count() < RING_MAX && self.are_short() {
            if self.add().is_err() {
                return;
            }
        }
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

    /// Every ring that exists: its index, control words and cells.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Ring, &[Cell])> {
        let rings = &self.head().ring;
        (0..self.count()).filter_map(move |i| {
            let cells = cells_of(self.mapping.bytes(), i, self.cells)?;
            Some((i, &rings[i], cells))
        })
    }

    /// The histogram of ring `index`.
    #[must_use]
    pub fn hist(&self, index: usize) -> Option<&Hist> {
        let exists = index < self.count();
        hist_of(self.mapping.bytes(), index, self.cells).filter(|_| exists)
    }

    /// The file, for a victim that may not open it by itself.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}
