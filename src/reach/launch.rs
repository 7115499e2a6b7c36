//! Launch: the library goes in front of what `LD_PRELOAD` holds, and the command inherits the rest
//! of the world as it was.
//!
//! Promise: of our libraries there is one, never two, which would count each call twice. A session
//! inside of one that times other calls too times them as well, for the outer one.

use super::library::Variant;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_sys::mount::forbids_exec;

/// Entries of a value of `LD_PRELOAD`.
fn entries(value: Option<&OsStr>) -> impl Iterator<Item = &[u8]> {
    let value = value.unwrap_or_default().as_bytes();
    let all = value.split(|b| *b == b':' || *b == b' ');
    all.filter(|e| !e.is_empty())
}

/// Which of our libraries an entry is.
fn ours(entry: &[u8]) -> Option<Variant> {
    let name = entry.rsplit(|b| *b == b'/').next()?;
    let mut all = [Variant::Ordinary, Variant::Io].into_iter();
    all.find(|v| v.name().as_bytes() == name)
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
    let has = entries(before).any(|e| match (ours(e), ours(library.as_os_str().as_bytes())) {
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

/// Whether a file begins as programs do; true where it cannot be read.
fn begins_a_program(file: &Path) -> bool {
    let mut head = [0; 4];
    let read = File::open(file).and_then(|mut file| file.read(&mut head));
    read.is_err() || head.starts_with(b"#!") || head == *b"\x7fELF"
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

/// Why a command could not be started, and what to try.
#[must_use]
pub fn why_not(program: &OsStr, e: &std::io::Error) -> (String, String) {
    let file = file_of(program);
    let seen = file
        .as_deref()
        .and_then(|file| std::fs::metadata(file).ok());
    let Some((file, seen)) = file.zip(seen) else {
        let try_ = if program.as_bytes().contains(&b'/') {
            "check the name"
        } else {
            "check the name and PATH"
        };
        return (e.to_string(), try_.into());
    };
    let name = file.display();
    if let Some(what) = no_program(seen.file_type()) {
        return (format!("it is a {what}"), "name a program".into());
    }
    match (e.kind(), interpreter_of(&file)) {
        (std::io::ErrorKind::NotFound, Some(interpreter)) if interpreter.ends_with('\r') => (
            "its first line ends with a carriage return, as on Windows, so its interpreter is \
             not found"
                .into(),
            format!("sed -i 's/\\r$//' {name}"),
        ),
        (std::io::ErrorKind::NotFound, Some(interpreter)) => (
            format!("its first line names {interpreter}, which is not there"),
            "correct that line, or install what it names".into(),
        ),
        (std::io::ErrorKind::NotFound, None) => (
            format!("{name} is there, but the loader that it names is not"),
            "it is of another system: run it in an image of that".into(),
        ),
        (std::io::ErrorKind::PermissionDenied, _) if seen.permissions().mode() & 0o111 == 0 => (
            format!(
                "{name} is not executable (mode {:o})",
                seen.permissions().mode() & 0o7777
            ),
            if begins_a_program(&file) {
                format!("chmod +x {name}")
            } else {
                "name a program: it begins with neither #! nor the mark of ELF".into()
            },
        ),
        (std::io::ErrorKind::PermissionDenied, _) if forbids_exec(&file) == Some(true) => (
            format!("{name} lies on a file system that is mounted noexec"),
            "copy it to another file system, or mount that without noexec".into(),
        ),
        (std::io::ErrorKind::PermissionDenied, Some(interpreter)) => (
            format!("its first line names {interpreter}, which may not be executed"),
            "correct that line, or make what it names executable".into(),
        ),
        _ => (e.to_string(), "check that it is an executable file".into()),
    }
}

/// What it is, where that cannot be executed.
fn no_program(kind: std::fs::FileType) -> Option<&'static str> {
    match () {
        () if kind.is_dir() => Some("folder"),
        () if kind.is_fifo() => Some("named pipe"),
        () if kind.is_socket() => Some("socket"),
        () if kind.is_char_device() || kind.is_block_device() => Some("device"),
        () => None,
    }
}

/// The file that a command means: as execvp(3) looks for it, or the first one of its name.
fn file_of(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') || matches!(program.as_bytes(), b"." | b"..") {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|dir| dir.join(program));
    all.find(|file| file.is_file())
}

/// What a script's first line names.
fn interpreter_of(file: &Path) -> Option<String> {
    let mut first = [0; 256];
    let read = std::fs::File::open(file).ok()?.read(&mut first).ok()?;
    let line = first[..read].split(|b| *b == b'\n').next()?;
    let named = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    // As the kernel reads it: a carriage return belongs to the name.
    let mut words = named.split([' ', '\t']).filter(|word| !word.is_empty());
    words.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(file: &str, text: &[u8], mode: u32, errno: i32) -> String {
        let path = std::env::temp_dir().join(format!("sl-launch-{}-{file}", std::process::id()));
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        let (why, _) = why_not(path.as_os_str(), &std::io::Error::from_raw_os_error(errno));
        std::fs::remove_file(&path).expect("it is there");
        why
    }

    #[test]
    fn what_cannot_be_started_says_what_is_missing() {
        assert!(told("script", b"#! /no/such/sh -e\n", 0o755, 2).contains("names /no/such/sh,"));
        assert!(told("elf", b"\x7fELF", 0o755, 2).contains("the loader that it names is not"));
        assert!(told("text", b"x", 0o644, 13).contains("not executable (mode 644)"));
        assert!(told("dos", b"#!/bin/sh\r\n", 0o755, 2).contains("carriage return"));
        let may_not = told("log", b"#!/etc/passwd\n", 0o755, 13);
        assert!(may_not.contains("names /etc/passwd, which may not be executed"));
        for (name, what) in [("/", "folder"), (".", "folder"), ("/dev/null", "device")] {
            let (why, _) = why_not(name.as_ref(), &std::io::Error::from_raw_os_error(13));
            assert_eq!(why, format!("it is a {what}"), "{name}");
        }
        let (why, try_) = why_not(
            "no-such-name".as_ref(),
            &std::io::Error::from_raw_os_error(2),
        );
        assert!(
            why.contains("No such file") && try_.contains("PATH"),
            "{why}"
        );
    }

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
