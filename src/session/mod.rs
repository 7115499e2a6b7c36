//! A session: the memory that it shares with its victims, its files, and what it owes.
//!
//! Map: `dirs` where its files lie, `folder` whose maker lives; `belongings` which of them are one
//! session's; `shared` the page and the slots; `compile` rules into the page; `find` which
//! superblock a descriptor lies on; `filesystems` which are held and owe, `names` as the page has
//! them; `durable` what makes each type durable; `ledger` what a power cut leaves to be read, in
//! the files of `filing`, `alive` the proof beside it that the session lives, `told` what the
//! kernel tells once; `settle` carrying debt out, `underway` what is left of one that was killed;
//! `keeper` who does so when the supervisor cannot, in a `hierarchy` of its own; `counts` and
//! `escape` what was seen; `usage` and `look` who writes where, `mapped` who has the library;
//! `control` how other commands speak to it; `stale` what dead ones left, `orphans` what of that
//! has no folder; `sequence` and `probed` what it has saved; a `shelf` keeps small files that
//! commands leave each other.
//!
//! What it does not do: it reaches no program and records nothing (`reach`, `record`); the loop
//! that owns a session is the `supervisor`.

mod again;
pub mod alive;
pub mod belongings;
pub mod closing;
pub mod compile;
pub mod control;
pub mod counts;
pub mod device;
pub mod dirs;
pub mod durable;
pub mod escape;
pub mod filesystems;
pub mod filing;
pub mod find;
pub mod folder;
pub mod health;
pub mod hierarchy;
pub mod keeper;
pub mod ledger;
pub mod look;
pub mod mapped;
pub mod members;
pub mod names;
pub mod opening;
pub mod orphans;
pub mod others;
pub mod probed;
pub mod sequence;
pub mod settle;
pub mod shared;
pub mod shelf;
pub mod stale;
pub mod told;
pub mod underway;
pub mod usage;
