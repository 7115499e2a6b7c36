//! Sessions from outside: what holds when the supervisor, the keeper or a disk fails, when the dial
//! moves, when sessions nest, and what other users can do to their files.

mod census;
pub mod death;
mod dial;
mod duration;
mod errors;
mod files;
mod hammered;
mod hostile;
mod ledger;
mod nested;
mod saved;
pub mod stage;
