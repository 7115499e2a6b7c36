//! A session: the memory that it shares with its victims, its files, and what it owes.
//!
//! Map: `dirs` where its files lie, `folder` whose maker lives; `belongings` which of them are one
//! session's; `shared` the page and the slots; `compile` rules into the page; `find` which
//! superblock a descriptor lies on, `mounts` what /proc shows of that; `filesystems` which are held
//! and owe, `names` as the page has them; `durable` what makes each type durable, `ext4` what that
//! one counts; `ledger` what a power cut leaves to be read, in the files of `filing`, `alive` the
//! proof beside it that the session lives, `life` whether it does, `debtor` whose it is; `losses`
//! the errors of a lost write, `told` who is told of them, which the kernel does once; `settle`
//! carrying debt out, `marks` that one is under way, `underway` what is left of one that was
//! killed; `keeper` who does so when the supervisor cannot, in a `hierarchy` of its own; `counts`
//! and `escape` what was seen, `members` and `pids` of whom; `usage` and `look` who writes where,
//! `mapped` who has the library; `control` how other commands speak to it; `stale` what dead ones
//! left, `orphans` what of that has no folder; `sequence` and `probed` what it has saved; a `shelf`
//! keeps small files that commands leave each other.
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
pub mod debtor;
pub mod device;
pub mod dirs;
pub mod durable;
pub mod escape;
pub mod ext4;
pub mod filesystems;
pub mod filing;
pub mod find;
pub mod folder;
pub mod health;
pub mod hierarchy;
pub mod keeper;
pub mod ledger;
pub mod life;
pub mod look;
pub mod losses;
pub mod mapped;
pub mod marks;
pub mod members;
pub mod mounts;
pub mod names;
pub mod opening;
pub mod orphans;
pub mod others;
pub mod pids;
pub mod probed;
pub mod sequence;
pub mod settle;
pub mod shared;
pub mod shelf;
pub mod stale;
pub mod told;
pub mod underway;
pub mod usage;
