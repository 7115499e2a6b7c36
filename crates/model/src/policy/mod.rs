//! Policy: the dial, the rules that turn it, and the file systems it may be turned for.
//!
//! Promise: each text a user writes is parsed once, into a type that cannot be wrong; each refusal
//! says what was seen and what to write instead.
//!
//! What it does not do: it resolves no user names and reads no file.

pub mod dial;
pub mod duration;
pub mod filesystem;
pub mod glob;
pub mod only;
pub mod rule_file;
pub mod rules;
