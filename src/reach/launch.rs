//! Launch: the library goes in front of what `LD_PRELOAD` holds, and the command inherits the rest
//! of the world as it was.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// `LD_PRELOAD` with `library` in front, once.
#[must_use]
pub fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let rest = before.unwrap_or_default().as_bytes();
    let ours = |entry: &&[u8]| !entry.is_empty() && *entry != library.as_os_str().as_bytes();
    for entry in rest.split(|b| *b == b':' || *b == b' ').filter(ours) {
        value.push(":");
        value.push(OsStr::from_bytes(entry));
    }
    value
}

/// `ASAN_OPTIONS` under which a program built with a dynamic AddressSanitizer starts although its
/// runtime is not the first library (it ends at start otherwise).
#[must_use]
pub fn asan_options(before: Option<&OsStr>) -> OsString {
    const ORDER: &str = "verify_asan_link_order=0";
    match before.filter(|v| !v.is_empty()) {
        None => ORDER.into(),
        Some(v)
            if v.as_bytes()
                .windows(ORDER.len())
                .any(|w| w == ORDER.as_bytes()) =>
        {
            v.to_owned()
        }
        Some(v) => {
            let mut both = v.to_owned();
            both.push(":");
            both.push(ORDER);
            both
        }
    }
}

/// The command with the library in front and `variables` set.
#[must_use]
pub fn command(argv: &[OsString], library: &Path, variables: &[(&str, OsString)]) -> Command {
    let mut c = Command::new(&argv[0]);
    c.args(&argv[1..]);
    c.env(
        "LD_PRELOAD",
        preload(library, std::env::var_os("LD_PRELOAD").as_deref()),
    );
    c.env(
        "ASAN_OPTIONS",
        asan_options(std::env::var_os("ASAN_OPTIONS").as_deref()),
    );
    for (name, value) in variables {
        c.env(name, value);
    }
    c
}

/// The status for a command that could not be started: 127 not found, 126 not executable, 125 ours.
#[must_use]
pub fn failure_status(e: &std::io::Error) -> i32 {
    match e.kind() {
        std::io::ErrorKind::NotFound => 127,
        std::io::ErrorKind::OutOfMemory | std::io::ErrorKind::WouldBlock => 125,
        _ => 126,
    }
}
