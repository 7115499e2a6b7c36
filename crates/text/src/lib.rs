//! What people read, whoever says it: numbers, lines for a terminal, messages, JSON.
//!
//! Promise: no text shows a control character that a program put into a name.
//!
//! What it does not do: it prints nothing, and never reads a text back.
//!
//! Map: [`number`] writes numbers, [`layout`] fits lines to a terminal, [`message`] is the four
//! lines that say what went wrong.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod layout;
pub mod message;
pub mod number;

/// How our pages look, in CSS.
pub const STYLE: &str = include_str!("style.css");

/// Writes JSON for people and programs alike: indented, with a newline at its end.
#[must_use]
pub fn json<T: serde::Serialize>(value: &T) -> String {
    // Only maps whose keys are not text, and writers that fail, make this an error.
    let plain = serde_json::to_string_pretty(value).expect("all keys of our JSON are text");
    let mut text = String::with_capacity(plain.len() + 1);
    for c in plain.chars() {
        // JSON escapes the first 32 characters by itself; the others that could steer a terminal
        // stand in texts only, where an escape means the same.
        if c != '\n' && layout::steers(c) {
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
