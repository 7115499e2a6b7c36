//! Both halves of the contract with the program under control: the preload library (C, in `c/`),
//! embedded as bytes, and the mirror of the memory it shares with the supervisor.
//!
//! Promise: [`page`] has the layout of `c/core/page.h`; a witness compiled from that header is
//! compared with it in the tests. What this crate does not do: no file, no mapping, no system call.
#![deny(unsafe_code)]

pub mod calls;
pub mod counts;
pub mod entry;
pub mod gate;
#[allow(unsafe_code)]
pub mod page;
#[allow(unsafe_code)]
pub mod rings;

/// The preload library for this machine's own class (x86-64: glibc and musl alike).
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/native.so"));

const SMALL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/small.so"));

/// The preload library for i386 programs, where the compiler that built us could make one.
pub const LIBRARY_32: Option<&[u8]> = if SMALL.is_empty() { None } else { Some(SMALL) };

/// The library that times other calls too, for `--io`.
pub const LIBRARY_IO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/native-io.so"));

const SMALL_IO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/small-io.so"));

/// The same for i386 programs.
pub const LIBRARY_IO_32: Option<&[u8]> = if SMALL_IO.is_empty() {
    None
} else {
    Some(SMALL_IO)
};

const GATE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gate.bin"));

/// The image for running processes; none on machines for which there is no gate.
pub const IMAGE: Option<&[u8]> = if GATE.is_empty() { None } else { Some(GATE) };

const GATE_32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gate32.bin"));

/// The same for running i386 processes.
pub const IMAGE_32: Option<&[u8]> = if GATE_32.is_empty() {
    None
} else {
    Some(GATE_32)
};

/// File names of the libraries: the ordinary one, and the one that times other calls too.
pub const NAMES: [&str; 2] = ["libsynclater.so", "libsynclater-io.so"];

/// A name that no other version of the libraries has (a hash of their bytes), for the folder
/// that they are unpacked to.
pub const CONTENT_NAME: &str = env!("SYNCLATER_SHIM_NAME");
