//! What people hear of us: the one place that prints.
//!
//! Promise: where nobody can hear it, nothing is lost but the words; stdout says when it could not
//! be written.
//!
//! What it does not do: it chooses no words, but for its own failure.

use std::io::{self, ErrorKind, Write};
use synclater_sys::command;
use synclater_text::message::Trouble;

/// Prints a text to stdout; a reader that has gone away is no error.
///
/// # Errors
/// A [`Trouble`] where it cannot be written, as on a full disk.
pub fn print(text: &str) -> Result<(), Trouble> {
    print_to_reader(text).map(|_| ())
}

/// The same; whether somebody reads on.
///
/// # Errors
/// As [`print()`].
pub fn print_to_reader(text: &str) -> Result<bool, Trouble> {
    let mut out = std::io::stdout().lock();
    match write_to(&mut out, text) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Trouble::new(
            "cannot write to standard output",
            e.to_string(),
            if command::output_was_closed() {
                "leave it open, as with >/dev/null"
            } else {
                "free space there, or write elsewhere"
            },
            "what there was to print is not there as a whole; nothing else was changed by that",
        )),
    }
}

/// Writes to what is standard output, which may have been closed (`>&-`).
///
/// # Errors
/// Those of write(2); where it was closed, that.
pub fn write_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    if command::output_was_closed() {
        return Err(io::Error::other("it was closed (>&-)"));
    }
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Says something on stderr; where nobody can hear it, that is no error.
pub fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
