//! Contents of sectors, each kept once.

use foldhash::fast::RandomState;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::BuildHasher;

/// A content: the same number is the same bytes. 0 is nothing but zeros.
pub type Content = u32;

/// Bytes of a slab: contents do not move when more come.
const SLAB: usize = 1 << 20;

/// Contents of one size.
pub struct Store {
    bytes: usize,
    slabs: Vec<Vec<u8>>,
    next: Content,
    /// By a hash, the first with it.
    first: HashMap<u64, Content>,
    /// The next with the same hash, for those few that have one.
    same: HashMap<Content, Content>,
    hasher: RandomState,
}

impl Store {
    /// An empty one, of contents of `bytes` each: a power of two, at most a mebibyte.
    ///
    /// # Panics
    /// If `bytes` is another number.
    #[must_use]
    pub fn new(bytes: usize) -> Store {
        assert!(bytes.is_power_of_two() && bytes <= SLAB, "{bytes}");
        let mut store = Store {
            bytes,
            slabs: Vec::new(),
            next: 0,
            first: HashMap::new(),
            same: HashMap::new(),
            hasher: RandomState::default(),
        };
        store.put(&vec![0; bytes]);
        store
    }

    /// Bytes of each.
    #[must_use]
    pub fn unit(&self) -> usize {
        self.bytes
    }

    /// Contents that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.next as usize
    }

    /// Never: zeros are always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// The bytes of a content.
    ///
    /// # Panics
    /// If it is not of this store.
    #[must_use]
    pub fn get(&self, content: Content) -> &[u8] {
        let (slab, at) = self.place(content);
        &self.slabs[slab][at..at + self.bytes]
    }

    fn place(&self, content: Content) -> (usize, usize) {
        let in_slab = SLAB / self.bytes;
        let content = content as usize;
        (content / in_slab, content % in_slab * self.bytes)
    }

    /// Keeps `bytes`, unless they are kept already.
    ///
    /// # Panics
    /// If they are not as many as in [`Store::unit`], or there are four billion already.
    pub fn put(&mut self, bytes: &[u8]) -> Content {
        assert_eq!(bytes.len(), self.bytes);
        let hash = self.hasher.hash_one(bytes);
        let mut last = match self.first.entry(hash) {
            Entry::Vacant(place) => {
                place.insert(self.next);
                return self.add(bytes);
            }
            Entry::Occupied(place) => *place.get(),
        };
        loop {
            if self.get(last) == bytes {
                return last;
            }
            match self.same.get(&last) {
                Some(next) => last = *next,
                None => break,
            }
        }
        self.same.insert(last, self.next);
        self.add(bytes)
    }

    fn add(&mut self, bytes: &[u8]) -> Content {
        let content = self.next;
        let (slab, _) = self.place(content);
        if slab == self.slabs.len() {
            self.slabs.push(Vec::with_capacity(SLAB));
        }
        self.slabs[slab].extend_from_slice(bytes);
        self.next = content.checked_add(1).expect("fewer than four billion");
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_are_the_first_content() {
        let mut store = Store::new(512);
        assert_eq!(store.put(&[0; 512]), 0);
        assert_eq!(store.put(&[1; 512]), 1);
        assert_eq!((store.len(), store.get(1)), (2, &[1u8; 512][..]));
    }

    proptest! {
        #[test]
        fn the_same_bytes_have_one_number_and_others_another(
            all in proptest::collection::vec(0u16..900, 1..3000)
        ) {
            let mut store = Store::new(512);
            let bytes = |n: u16| [n.to_le_bytes(); 256].concat();
            let contents: Vec<Content> = all.iter().map(|n| store.put(&bytes(*n))).collect();
            for (n, content) in all.iter().zip(&contents) {
                prop_assert_eq!(store.get(*content), &bytes(*n)[..]);
            }
            let different: std::collections::HashSet<u16> = all.iter().copied().collect();
            prop_assert_eq!(store.len(), different.len() + usize::from(!different.contains(&0)));
        }
    }
}
