//! The command line: exit statuses, messages, signals, terminals, and what is generated from it.

mod command;
mod folders;
mod messages;
mod probe;
mod texts;
mod top;
