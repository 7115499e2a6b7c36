//! The rooms of the library's C call down only (c/core/core.h), as its objects and its includes
//! say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use synclater_calls::{header, Machine};

/// The rooms, each above those in front of it.
const ROOMS: [&str; 7] = ["base", "core", "watch", "routes", "entry", "join", "gate"];

/// Functions that a lower room calls: where a recording is made, core/ leaves a request to watch/,
/// and where a program syncs before the library was begun, that begins it (join.c, or the gate).
const HOOKS: [&str; 2] = ["sl_sync_noted", "sl_init"];

fn c() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c")
}

/// The files of a room, by their path below c/.
fn files(room: &str, end: &str) -> Vec<String> {
    let alone = format!("{room}.c");
    if c().join(&alone).exists() {
        return vec![alone];
    }
    let entries = std::fs::read_dir(c().join(room)).expect(room).flatten();
    let names = entries.map(|e| format!("{room}/{}", e.file_name().to_string_lossy()));
    let mut all: Vec<_> = names.filter(|n| n.ends_with(end)).collect();
    all.sort();
    assert!(!all.is_empty(), "{room}");
    all
}

/// What a file includes, by the room of it.
fn included(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(c().join(file)).expect(file);
    let lines = text.lines().filter_map(|l| l.strip_prefix("#include \""));
    let names = lines.filter_map(|l| Some(l.split_once('"')?.0.to_owned()));
    names.filter(|name| name.contains('/')).collect()
}

#[test]
fn no_file_includes_a_header_of_a_room_above_it() {
    let mut seen = 0;
    for (layer, room) in ROOMS.iter().enumerate() {
        for file in [files(room, ".c"), files(room, ".h")].concat() {
            for name in included(&file) {
                let of = name.split('/').next().unwrap_or_default();
                let at = ROOMS.iter().position(|r| *r == of);
                assert!(at.is_some_and(|at| at <= layer), "{file} includes {name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 25, "{seen}");
}

/// The symbols of one object: what it defines, and what it asks for.
fn symbols(object: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let out = Command::new("nm").arg(object).output().expect("nm");
    let text = String::from_utf8(out.stdout).expect("text");
    let (mut defined, mut asked) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["U", name] => asked.insert(name.to_owned()),
            [_, kind, name] if kind != "w" => defined.insert(name.to_owned()),
            _ => false,
        };
    }
    (defined, asked)
}

/// Calls from a room into one above it, in the library as it is compiled with `flags`.
fn upward(flags: &[&str], folder: &str) -> Vec<String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&dir).expect("a folder");
    std::fs::write(dir.join("numbers.h"), header(Machine::X86_64, "NR_")).expect("numbers.h");
    let mut all = Vec::new();
    for (layer, room) in ROOMS.iter().enumerate() {
        for file in files(room, ".c") {
            let object = dir.join(file.replace('/', "_")).with_extension("o");
            let made = Command::new("gcc")
                .args(["-std=gnu11", "-O2", "-ffreestanding", "-fPIC", "-c", "-I"])
                .arg(c())
                .arg("-I")
                .arg(&dir)
                .args(flags)
                .arg("-o")
                .arg(&object)
                .arg(c().join(&file))
                .status();
            assert!(made.expect("gcc").success(), "{file}");
            all.push((layer, file, symbols(&object)));
        }
    }
    let mut home: BTreeMap<&str, usize> = BTreeMap::new();
    for (layer, _, (defined, _)) in &all {
        // Of two (a weak one, one that another variant has) the lowest.
        for name in defined {
            let at = home.entry(name).or_insert(*layer);
            *at = (*at).min(*layer);
        }
    }
    let of_file = |(layer, file, (_, asked)): &(usize, String, (BTreeSet<_>, BTreeSet<String>))| {
        let up = asked
            .iter()
            .filter(|n| home.get(n.as_str()).is_some_and(|h| h > layer));
        let told = up.filter(|n| !HOOKS.contains(&n.as_str()));
        told.map(|n| format!("{file} calls {n}"))
            .collect::<Vec<_>>()
    };
    assert!(home.len() > 100, "{}", home.len());
    all.iter().flat_map(of_file).collect()
}

#[test]
fn each_room_calls_down_only() {
    for (flags, folder) in [
        (&[][..], "rooms"),
        (&["-DSL_IO=1"], "rooms-io"),
        (&["-DSL_GATE=1", "-mgeneral-regs-only"], "rooms-gate"),
    ] {
        assert_eq!(upward(flags, folder), Vec::<String>::new(), "{folder}");
    }
}
