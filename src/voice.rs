//! What people hear of us: the one place that prints.
//!
//! Promise: where nobody can hear it, nothing is lost but the words; stdout says when it could not
//! be written.
//!
//! What it does not do: it chooses no words, but for its own failure.

use std::io::{ErrorKind, Write};
use synclater_text::message::Trouble;

/// Prints a text to stdout; a reader that has gone away is no error.
///
/// # Errors
/// A [`Trouble`] where it cannot be written, as on a full disk.
pub fn print(text: &str) -> Result<(), Trouble> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Trouble::new(
            "cannot write to standard output",
            e.to_string(),
            "free space there, or write elsewhere",
            "what was printed is not whole; nothing else was changed by that",
        )),
        _ => Ok(()),
    }
}

/// Says something on stderr; where nobody can hear it, that is no error.
pub fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
