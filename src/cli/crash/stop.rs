//! Whether the search for bad states is to end early.

use std::cell::Cell;
use std::path::Path;
use synclater_sys::signal::Signals;

/// The file by which the outer process says that it is to end.
const STOP: &str = "stop";

/// Says that it is to end.
pub fn stop(dir: &Path) {
    let _ = std::fs::write(dir.join(STOP), "");
}

/// Whether somebody wants an end.
pub struct Stop<'a> {
    signals: Signals,
    dir: &'a Path,
    wanted: Cell<bool>,
}

impl<'a> Stop<'a> {
    /// Asked for by a signal, or by the outer process, whose folder is `dir`.
    pub fn new(signals: Signals, dir: &'a Path) -> Stop<'a> {
        let wanted = Cell::new(false);
        Stop {
            signals,
            dir,
            wanted,
        }
    }

    /// Whether it was, when it was asked last.
    pub fn was_wanted(&self) -> bool {
        self.wanted.get()
    }

    /// Asks.
    pub fn is_wanted(&self) -> bool {
        while let Some(signal) = self.signals.next() {
            self.wanted.set(self.wanted.get() || signal.ends());
        }
        let asked = self.wanted.get() || self.dir.join(STOP).exists();
        self.wanted.set(asked);
        asked
    }
}
