//! The disk of the laboratory: a file of FUSE, below a loop device.
//!
//! Promise: one thread answers, so that the log's order is the order in which the disk completed
//! what it was asked. What the program says goes through files beside the disk, whose writes are
//! answered once they stand in the log: nothing that was written after a line stands before it.
//!
//! What it does not do: it never touches a file of the machine; all is kept in memory.

pub mod recorded;
pub mod served;
pub mod state;

use fuser::{Errno, ReplyWrite};
use std::sync::Arc;
use synclater_powercut::log::Voice;

/// What the program says, and waits for an answer.
pub struct Said {
    /// Where.
    pub voice: Voice,
    bytes: Vec<u8>,
    reply: ReplyWrite,
}

impl Said {
    /// Lets the program go on.
    fn answer(self) {
        let written = u32::try_from(self.bytes.len()).unwrap_or(0);
        self.reply.written(written);
    }

    /// Lines that end in it.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.bytes.iter().filter(|b| **b == b'\n').count()
    }
}

/// What answers for a disk.
pub trait Disk: Send + Sync + Sized + 'static {
    /// Reads whole sectors.
    fn read(&self, at: u32, to: &mut [u8]);
    /// Writes whole sectors.
    ///
    /// # Errors
    /// Where the disk does it wrong on purpose.
    fn write(&self, at: u32, bytes: &[u8]) -> Result<(), Errno>;
    /// Makes sectors zeros.
    ///
    /// # Errors
    /// Where the disk does it wrong on purpose.
    fn zero(&self, at: u32, sectors: u32) -> Result<(), Errno>;
    /// How often it has become another one: whoever has opened an earlier one gets errors.
    fn generation(&self) -> u64 {
        0
    }
    /// Makes everything durable that was answered.
    ///
    /// # Errors
    /// Where the disk does it wrong on purpose.
    fn flush(&self) -> Result<(), Errno>;
    /// Is called in the thread that serves it: only threads that this one starts can answer.
    fn begin_to_serve(self: &Arc<Self>) {}
    /// Hears what the program says.
    fn hear(&self, said: Said) {
        said.answer();
    }
}
