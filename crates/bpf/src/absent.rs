//! The engine of a program that was built without it: it says what was missing.

use crate::{Error, Event, Filter};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The trace programs in the kernel and the ring that they write to.
#[derive(Debug)]
pub struct Engine(Infallible);

impl Engine {
    /// Says what was missing when this program was built.
    ///
    /// # Errors
    /// [`Error::NotBuilt`], always.
    pub fn open(_: &Filter, _: usize) -> Result<Engine, Error> {
        Err(Error::NotBuilt(env!("SYNCLATER_BPF_MISSING")))
    }

    /// A descriptor that becomes readable when the ring fills.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }

    /// Waits until the ring fills.
    ///
    /// # Errors
    /// None: there is no such engine.
    pub fn poll(&self, _: Duration) -> Result<bool, Error> {
        match self.0 {}
    }

    /// Hands over what is in the ring.
    ///
    /// # Errors
    /// None: there is no such engine.
    pub fn drain(&mut self, _: impl FnMut(Event)) -> Result<usize, Error> {
        match self.0 {}
    }

    /// What a full ring lost.
    ///
    /// # Errors
    /// None: there is no such engine.
    pub fn lost(&self) -> Result<BTreeMap<u32, u64>, Error> {
        match self.0 {}
    }

    /// Trace points that this kernel lacks.
    #[must_use]
    pub fn absent(&self) -> &[&'static str] {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_engine_says_what_was_missing_at_build() {
        let e = Engine::open(&Filter::default(), 4096).expect_err("there is none");
        assert!(e.to_string().contains("when it was built"), "{e}");
    }
}
