//! What the kernel's text in /proc says, and the head of an ELF file, as types.
//!
//! Promise: no text makes a parser panic, or do work that is not bounded by its length.
//!
//! What it does not do: it reads no file. Callers do, and hand in what was there.
//!
//! Map: [`mountinfo`] lists mounts, [`maps`] what a process has mapped, [`status`] what it is,
//! [`stat`] what it is about; [`elf`] what is loaded of its file.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod elf;
pub mod maps;
pub mod mountinfo;
pub mod stat;
pub mod status;
