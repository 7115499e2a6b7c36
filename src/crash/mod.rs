//! The power-cut laboratory: a disk that remembers, a file system of the kernel's on it, and any
//! program on that; then the states that a power cut could have left, each mounted and judged.
//!
//! Promise: nothing outlives it. Everything is mounted and started in namespaces that end with it;
//! no device or folder is touched that it did not make.
//!
//! Map: [`disk`] remembers, [`station`] puts a file system on it, [`victim`] is the program and
//! [`mod@bench`] runs it, [`judge`] looks at a state, [`builtin`] are the checks that are brought
//! along, [`search`] goes through the states, [`closing`] is the sync that was missing, [`tree`]
//! what lies in a folder, [`kept`] are states that failed, for a look.

pub mod bench;
pub mod builtin;
pub mod closing;
mod damage;
pub mod disk;
pub mod fs;
pub mod judge;
pub mod kept;
pub mod search;
pub mod station;
pub mod tree;
pub mod victim;
