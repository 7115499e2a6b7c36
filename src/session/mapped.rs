//! Which processes have the library, or the gate, in their memory.
//!
//! Promise: whoever looks is kept waiting for 0.4 s at a time, and for a tenth of the time in all,
//! whatever the processes do ([`synclater_sys::each`]).

use std::sync::Mutex;
use std::time::{Duration, Instant};
use synclater_shim::NAMES;
use synclater_sys::each::{of_each, Looks};
use synclater_sys::lock::lock;
use synclater_sys::process;

/// What a process has mapped of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The library.
    Library,
    /// The gate.
    Gate,
    /// Neither.
    Nothing,
    /// Not known: it has ended, or keeps who looks waiting.
    NotKnown,
}

const PATIENCE: Duration = Duration::from_millis(400);
/// How much longer than a look that was kept waiting the pause behind it is.
const SHARE: u32 = 10;

/// When it may be looked again.
static NOT_BEFORE: Mutex<Option<Instant>> = Mutex::new(None);

/// What each of these has.
#[must_use]
pub fn mapped_in(pids: &[u32]) -> Vec<Mapped> {
    let mut not_before = lock(&NOT_BEFORE);
    let begun = Instant::now();
    if not_before.is_some_and(|at| begun < at) {
        return vec![Mapped::NotKnown; pids.len()];
    }
    let told = of_each(pids, PATIENCE, Looks::One, |pid| look(pid) as u8);
    if told.contains(&None) {
        *not_before = Some(Instant::now() + begun.elapsed() * SHARE);
    }
    told.into_iter().map(meant_by).collect()
}

/// What a look means by the byte that it told, if it told one.
fn meant_by(told: Option<u8>) -> Mapped {
    let said = [Mapped::Library, Mapped::Gate, Mapped::Nothing];
    let meant = said.into_iter().find(|m| Some(*m as u8) == told);
    meant.unwrap_or(Mapped::NotKnown)
}

fn look(pid: u32) -> Mapped {
    let maps = process::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    if NAMES.iter().any(|name| maps.contains(name)) {
        Mapped::Library
    } else if maps.contains("/memfd:synclater") {
        Mapped::Gate
    } else if maps.is_empty() {
        Mapped::NotKnown
    } else {
        Mapped::Nothing
    }
}
