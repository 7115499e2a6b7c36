//! Policy: the dial, the rules that turn it, the file systems it may be turned for, and the form in
//! which what is owed is written down.
//!
//! Promise: each text a user writes is parsed once, into a type that cannot be wrong; each refusal
//! says what was seen and what to write instead.
//!
//! What it does not do: it resolves no user names and reads no file.
//!
//! Map: [`dial`] and [`duration`] say when requests are kept, [`rules`], [`rule_file`], [`only`]
//! and [`glob`] for whom; [`filesystem`] says where they may be late; [`ledger`] is an entry's
//! form.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod dial;
pub mod duration;
pub mod filesystem;
pub mod glob;
pub mod ledger;
pub mod only;
pub mod rule_file;
pub mod rules;
