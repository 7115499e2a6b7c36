//! Making a recording: the rings that victims write, the process that drains them, the rows that
//! it makes of them, and the file.
//!
//! Promise: whatever victims, /proc and /sys say, nothing here panics or works without bound; of a
//! process that is gone the last that was known stays. No path that a victim chose is opened.
//!
//! Map: [`recorder`] is the process, `messages` what it is told, [`drain`] its work; [`rings`] what
//! it reads, [`rows`] what it makes of that with [`people`], [`places`] and [`resolve`], [`sink`]
//! where it goes, with [`samples`] of the machine. [`kernel`] is another source: the kernel's trace
//! points.

pub mod drain;
pub mod kernel;
mod messages;
pub mod out;
pub mod parents;
pub mod people;
pub mod places;
pub mod recorder;
pub mod resolve;
pub mod rings;
pub mod rows;
pub mod samples;
pub mod sink;
#[cfg(test)]
mod stage;
