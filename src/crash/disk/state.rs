//! A disk as it was after a power cut.

use super::Disk;
use fuser::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use synclater_powercut::log::Image;
use synclater_powercut::store::Store;
use synclater_sys::lock::{lock, read};

/// What is written to it now goes nowhere else.
pub struct State {
    store: Arc<RwLock<Store>>,
    inner: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    image: Option<Image>,
    generation: u64,
    own: HashMap<u32, Box<[u8]>>,
}

impl State {
    /// No disk yet.
    #[must_use]
    pub fn new(store: Arc<RwLock<Store>>) -> State {
        State {
            store,
            inner: Mutex::default(),
        }
    }

    /// The disk is this from now on.
    pub fn become_image(&self, image: Image) {
        let mut inner = lock(&self.inner);
        inner.image = Some(image);
        inner.own = HashMap::new();
        inner.generation += 1;
    }
}

impl Disk for State {
    fn read(&self, at: u32, to: &mut [u8]) {
        let inner = lock(&self.inner);
        let store = read(&self.store);
        let image = inner.image.as_ref().map_or(&[][..], |i| &i.0);
        for (part, sector) in to.chunks_exact_mut(store.unit()).zip(at..) {
            part.copy_from_slice(match inner.own.get(&sector) {
                Some(own) => own,
                None => store.get(image.get(sector as usize).copied().unwrap_or(0)),
            });
        }
    }

    fn write(&self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let unit = read(&self.store).unit();
        let mut inner = lock(&self.inner);
        for (part, sector) in bytes.chunks_exact(unit).zip(at..) {
            inner.own.insert(sector, part.into());
        }
        Ok(())
    }

    fn zero(&self, at: u32, sectors: u32) -> Result<(), Errno> {
        let zeros = vec![0; read(&self.store).unit()];
        let mut inner = lock(&self.inner);
        for sector in at..at + sectors {
            inner.own.insert(sector, zeros.as_slice().into());
        }
        Ok(())
    }

    fn generation(&self) -> u64 {
        lock(&self.inner).generation
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }
}
