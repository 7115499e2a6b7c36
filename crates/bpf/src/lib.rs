//! Every sync request of the machine, seen through the kernel's trace points.
//!
//! Promise: each request of a process that the [`Filter`] lets through is handed over once,
//! whatever library, language or route made it, and what a full ring lost is counted exactly, by
//! process.
//! Programs need no restart and are never stopped; dropping the [`Engine`] takes everything away.
//! Needs root and a kernel from 5.17 on that describes its own types (BTF).
//!
//! What it does not do: it writes no file, names no mount point and no device; it does not see the
//! caller's code. Process numbers are those of the outermost name space.
//!
//! ```no_run
//! use std::time::Duration;
//! use synclater_bpf::{BootClock, Engine, Filter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut engine = Engine::open(&Filter::default(), 16 << 20)?;
//! for _ in 0..10 {
//!     engine.poll(Duration::from_millis(200))?;
//!     let clock = BootClock::now();
//!     engine.drain(|event| {
//!         let began = clock.utc_ns(event.start_ns);
//!         println!("{began} {} {} {:?}", event.pid, event.kind.name(), event.path);
//!     })?;
//! }
//! for (pid, requests) in engine.lost()? {
//!     println!("{requests} of process {pid} were not recorded: the ring was full");
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[cfg(not(engine))]
mod absent;
mod clock;
#[cfg(engine)]
mod engine;
mod event;
#[cfg_attr(not(engine), allow(dead_code))]
mod filter;
#[cfg(engine)]
mod kernel;
#[cfg(engine)]
mod points;
#[cfg_attr(not(engine), allow(dead_code))]
mod record;

#[cfg(not(engine))]
pub use absent::Engine;
pub use clock::BootClock;
#[cfg(engine)]
pub use engine::Engine;
pub use event::{Event, Kind, Process, Route};
pub use filter::{cgroup_id, Filter};

/// Why trace points cannot be used here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program was built without the engine.
    #[error("{0}")]
    NotBuilt(&'static str),
    /// A privilege is missing.
    #[error("it needs {0}, and to read tracefs, as root usually may")]
    NotPermitted(String),
    /// The kernel does not describe its types.
    #[error("this kernel does not describe its types (no /sys/kernel/btf/vmlinux)")]
    NoTypes,
    /// Trace points that it cannot do without.
    #[error("this kernel lacks the trace points {0}")]
    NoTracePoints(String),
    /// Something to filter by that cannot be filtered by.
    #[error("{0}")]
    Filter(String),
    /// The kernel refused something.
    #[error("{what}: {why}")]
    Kernel {
        /// What was tried.
        what: String,
        /// What the kernel, or the loader, said.
        why: String,
    },
}
