//! What people and programs read: the summary of a run, `ps`, messages, and how numbers look.
//!
//! Promise: JSON keys are part of the contract with other programs (`"version": 1`); what is not
//! known is absent, never 0. Text fits 80 columns where its words can be broken, and shows no
//! control character that a victim put into a name.
//!
//! What it does not do: it prints nothing, and never reads a text back.

pub mod crash;
pub mod diff;
pub mod distribution;
pub mod escape;
pub mod explain;
pub mod html;
pub mod message;
pub mod number;
pub mod probe;
pub mod ps;
pub mod recording;
pub mod run;
pub mod saving;
pub mod status;
pub mod summary;
pub mod text;
pub mod top;

/// Writes JSON for people and programs alike: indented, with a newline at its end.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> String {
    // Only maps whose keys are not text, and writers that fail, make this an error.
    let plain = serde_json::to_string_pretty(value).expect("all keys of our JSON are text");
    let mut text = String::with_capacity(plain.len() + 1);
    for c in plain.chars() {
        // JSON escapes the first 32 characters by itself; the others that could steer a terminal
        // stand in texts only, where an escape means the same.
        if c != '\n' && text::steers(c) {
            use std::fmt::Write;
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text.push('\n');
    text
}
