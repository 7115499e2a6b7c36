//! Launch: the library goes in front of what `LD_PRELOAD` holds, and the command inherits the rest
//! of the world as it was.
//!
//! Promise: of our libraries there is one, never two, which would count each call twice. A session
//! inside of one that times other calls too times them as well, for the outer one.

use super::library::Variant;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Entries of a value of `LD_PRELOAD`.
fn entries(value: Option<&OsStr>) -> impl Iterator<Item = &[u8]> {
    let value = value.unwrap_or_default().as_bytes();
    { value.split(|b| *b == b':' || *b == b' ') }.filter(|e| !e.is_empty())
}

/// Which of our libraries an entry is.
fn ours(entry: &[u8]) -> Option<Variant> {
    let name = entry.rsplit(|b| *b == b'/').next()?;
    { [Variant::Ordinary, Variant::Io].into_iter() }.find(|v| v.name().as_bytes() == name)
}

/// Whether `LD_PRELOAD` has a library of ours.
#[must_use]
pub fn has_one_of_ours(preload: Option<&OsStr>) -> bool {
    entries(preload).any(|entry| ours(entry).is_some())
}

/// Which library a command needs, where `LD_PRELOAD` is `before` and its own session wants `asked`:
/// an outer session may want more.
#[must_use]
pub fn needed(asked: Variant, before: Option<&OsStr>) -> Variant {
    if entries(before).any(|e| ours(e) == Some(Variant::Io)) {
        Variant::Io
    } else {
        asked
    }
}

/// As [`needed`], for this process's own `LD_PRELOAD`.
#[must_use]
pub fn needed_here(asked: Variant) -> Variant {
    needed(asked, std::env::var_os("LD_PRELOAD").as_deref())
}

/// `LD_PRELOAD` with `library` in front, and no other of ours behind it.
#[must_use]
pub fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let rest = entries(before).filter(|e| *e != library.as_os_str().as_bytes());
    for entry in rest.filter(|e| ours(e).is_none()) {
        value.push(":");
        value.push(OsStr::from_bytes(entry));
    }
    value
}

/// As [`preload`], but for a library of ours that is there already and has the greater reach: that
/// of a session around this one, or within.
#[must_use]
pub fn with_one_of_ours(library: &Path, before: Option<&OsStr>) -> OsString {
    let has = { entries(before) }.any(|e| match (ours(e), ours(library.as_os_str().as_bytes())) {
        (Some(Variant::Io), _) => true,
        (Some(Variant::Ordinary), asked) => asked == Some(Variant::Ordinary),
        (None, _) => false,
    });
    match before {
        Some(before) if has => before.to_owned(),
        _ => preload(library, before),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: &str = "/c/$LIB/libsynclater.so";
    const IO: &str = "/c/$LIB/libsynclater-io.so";

    fn behind(library: &str, before: &str) -> String {
        let value = preload(Path::new(library), Some(before.as_ref()));
        value.into_string().expect("text")
    }

    #[test]
    fn of_our_libraries_there_is_one() {
        let other = "libjemalloc.so";
        for (library, outer) in [
            (ORDINARY, ORDINARY),
            (ORDINARY, IO),
            (IO, ORDINARY),
            (IO, IO),
        ] {
            assert_eq!(behind(library, ""), library);
            assert_eq!(behind(library, outer), library);
            let before = format!("/old/$LIB/libsynclater.so {other}:{outer}");
            assert_eq!(behind(library, &before), format!("{library}:{other}"));
        }
    }

    #[test]
    fn what_is_named_like_ours_is_kept() {
        for other in [
            "/x/notlibsynclater.so",
            "/libsynclater.so/a.so",
            "libsynclater.so.1",
        ] {
            assert_eq!(behind(IO, other), format!("{IO}:{other}"));
        }
    }

    #[test]
    fn a_session_inside_of_one_that_times_other_calls_does_so_too() {
        let table = [
            (Variant::Ordinary, "", Variant::Ordinary),
            (Variant::Ordinary, ORDINARY, Variant::Ordinary),
            (Variant::Ordinary, IO, Variant::Io),
            (Variant::Io, ORDINARY, Variant::Io),
        ];
        for (asked, before, expected) in table {
            assert_eq!(needed(asked, Some(before.as_ref())), expected, "{before}");
        }
        assert_eq!(needed(Variant::Io, None), Variant::Io);
    }
}
