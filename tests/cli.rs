//! The command line: exit statuses, messages, signals, terminals, and what is generated from it.

mod command;
mod diff;
pub mod explain;
mod export;
mod folders;
mod html;
mod messages;
mod odd;
mod probe;
mod report;
mod texts;
mod top;
