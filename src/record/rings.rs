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

/// Rings made at a time, at most; fewer where they are large.
const BATCH: usize = 16;
const BATCH_BYTES: usize = 32 << 20;

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
        head.cells.store(u32::try_from(cells).unwrap_or(0), SeqCst);
        head.version.store(page::VERSION, SeqCst);
        rings.grow()?;
        head.magic.store(RINGS_MAGIC, SeqCst);
        Ok(rings)
    }

    /// Makes more rings.
    fn grow(&self) -> io::Result<()> {
        let size = ring_bytes(self.cells);
        let count = self.count();
        let more = (BATCH_BYTES / size).clamp(2, BATCH).min(RING_MAX - count);
        back(&self.file, RINGS_DATA + count * size, more * size)?;
        let count = u32::try_from(count + more).unwrap_or(0);
        self.head().count.store(count, SeqCst);
        Ok(())
    }

    /// Makes more rings where most are claimed; where there is no memory it stays as it is, and who
    /// finds none counts what it loses.
    pub fn grow_where_needed(&self) {
        let claimed = self.all().filter(|(_, r, _)| r.pid.load(SeqCst) != 0);
        if claimed.count() * 2 > self.count() && self.count() < RING_MAX {
            let _ = self.grow();
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
