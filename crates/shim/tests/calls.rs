//! What the C of the image for running processes calls is what `calls.rs` says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use synclater_calls::{Kind, CALLS};
use synclater_shim::calls::{Argument, Made, MADE, OWN};

/// Files of C that the image is not made of.
const ELSEWHERE: [&str; 1] = ["watch/io.c"];

/// Calls that stand in files of the image, in functions that are not in it.
const NOT_IN_IT: [&str; 7] = [
    "raw1(NR_chroot, path)",
    "raw5(NR_prctl, option, a, b, c, d)",
    "raw2(NR_kill, raw0(NR_getpid), 6)",
    "raw3(NR_fcntl, fd, 16, &owner)",
    "raw1(NR_unshare, 0x100)",
    "raw2(NR_eventfd2, 0, 0x80000)",
    "raw3(NR_io_cancel, context, b, event)",
];

/// Files with assembler.
const IN_ASSEMBLER: [&str; 4] = [
    "gate/gate.c",
    "gate/gate_i386.c",
    "gate/boot.c",
    "gate/boot_i386.c",
];

fn read(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    std::fs::read_to_string(dir.join(name)).expect(name)
}

/// The C without comments, each run of blanks one.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        out.push_str(before);
        rest = after.split_once("*/").expect("the comment's end").1;
    }
    out.push_str(rest);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn sources() -> Vec<(String, String)> {
    let rooms = ["base", "core", "watch", "routes", "gate"];
    let names = rooms.iter().flat_map(|room| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(room);
        let entries = std::fs::read_dir(folder).expect(room).flatten();
        entries.map(move |e| format!("{room}/{}", e.file_name().to_string_lossy()))
    });
    let is_ours = |n: &String| n.ends_with(".c") && !ELSEWHERE.contains(&n.as_str());
    let more = ["base/machine.h", "core/core.h", "entry.c"].map(str::to_owned);
    let all = names.filter(is_ours).chain(more);
    all.map(|n| (n.clone(), plain(&read(&n)))).collect()
}

/// The calls of some C, as `rawN(...)`.
fn calls(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("raw") {
        let rest = &text[at..];
        let is_call =
            rest[3..].starts_with(|c: char| c.is_ascii_digit()) && rest[4..].starts_with('(');
        if !is_call
            || text[..at].ends_with(|c: char| {
                c.is_alphanumeric() || c == '_' || c == ' ' && text[..at].ends_with("#define ")
            })
        {
            continue;
        }
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ')' && depth == 0
        });
        found.push(
            rest[..=end.expect("its end")]
                .replace("( ", "(")
                .replace(" )", ")"),
        );
    }
    found
}

/// The arguments of a call, the number being the first.
fn arguments(call: &str) -> Vec<String> {
    let inside = &call[5..call.len() - 1];
    let (mut depth, mut all) = (0, vec![String::new()]);
    for c in inside.chars() {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        if c == ',' && depth == 0 {
            all.push(String::new());
        } else {
            all.last_mut().expect("one").push(c);
        }
    }
    all.iter().map(|a| a.trim().to_owned()).collect()
}

/// Numbers that names stand for, all of them where there are several.
fn macros() -> BTreeMap<String, BTreeSet<i64>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for name in [
        "core/core.h",
        "base/linux.h",
        "core/page.h",
        "watch/rings.h",
        "watch/record.c",
        "watch/address.c",
        "gate/boot.c",
    ] {
        for line in read(name).lines() {
            let mut words = line.split_whitespace();
            if words.next() != Some("#define") {
                continue;
            }
            let (Some(name), Some(value)) = (words.next(), words.next()) else {
                continue;
            };
            if let Some(number) = number(value) {
                all.entry(name.to_owned()).or_default().insert(number);
            }
        }
    }
    all
}

fn number(text: &str) -> Option<i64> {
    let text = text.trim_end_matches(['u', 'l']);
    let text = text.trim_start_matches('(').trim_end_matches(')');
    match text {
        "0" => Some(0),
        "NULL" => Some(0),
        _ => match (text.strip_prefix("0x"), text.strip_prefix('0')) {
            (Some(hex), _) => i64::from_str_radix(hex, 16).ok(),
            (None, Some(octal)) => i64::from_str_radix(octal, 8).ok(),
            (None, None) => text.parse().ok(),
        },
    }
}

/// What an argument may be; `None` where that cannot be told from the text.
fn values(text: &str, macros: &BTreeMap<String, BTreeSet<i64>>) -> Option<BTreeSet<i64>> {
    let mut sums = BTreeSet::from([0]);
    for part in text.split('|') {
        let part = part.trim();
        let parts = match number(part) {
            Some(number) => BTreeSet::from([number]),
            None => macros.get(part)?.clone(),
        };
        sums = sums
            .iter()
            .flat_map(|sum| parts.iter().map(move |part| sum | part))
            .collect();
    }
    Some(sums)
}

/// Whether a call of the C is one of those that an entry tells of.
fn fits(made: &Made, arguments: &[String], macros: &BTreeMap<String, BTreeSet<i64>>) -> bool {
    (0..).zip(made.arguments).all(|(k, told): (usize, _)| {
        let Some(text) = arguments.get(k) else {
            // What is not given is any number.
            return *told == Argument::Any;
        };
        match (told, values(text, macros)) {
            (Argument::Any, _) => true,
            (Argument::Is(number), Some(values)) => values == BTreeSet::from([*number]),
            (Argument::By(long, small), Some(values)) => values == BTreeSet::from([*long, *small]),
            (Argument::Within(mask), Some(values)) => {
                values.iter().all(|v| v & !i64::from(*mask) == 0)
            }
            // A variable: `Within` is what its function makes of it.
            (Argument::Within(_), None) => true,
            (Argument::Is(_) | Argument::By(..), None) => false,
        }
    })
}

#[test]
fn every_call_of_the_c_is_listed_with_its_arguments() {
    let macros = macros();
    let (mut used, mut unlisted, mut seen) = (BTreeSet::new(), Vec::new(), 0);
    for (file, text) in sources() {
        for call in calls(&text) {
            seen += 1;
            let all = arguments(&call);
            let Some(name) = all[0].strip_prefix("NR_") else {
                continue; // `nr`: a call of the program's own
            };
            if NOT_IN_IT.contains(&call.as_str()) {
                continue;
            }
            let is_own = OWN.iter().any(|o| o.name == name);
            let entry = MADE
                .iter()
                .position(|m| m.name == name && fits(m, &all[1..], &macros));
            used.extend(entry);
            if entry.is_none() && !is_own {
                unlisted.push(format!("{file}: {call}"));
            }
        }
    }
    assert_eq!(unlisted, Vec::<String>::new());
    assert!(seen > 80, "{seen}");
    for name in IN_ASSEMBLER.iter().flat_map(|file| made_in_assembler(file)) {
        let entries: Vec<_> = (0..MADE.len()).filter(|k| MADE[*k].name == name).collect();
        assert!(!entries.is_empty(), "{name}");
        used.extend(entries);
    }
    let unused: Vec<_> = (0..MADE.len())
        .filter(|k| !used.contains(k) && !["fsync", "fdatasync"].contains(&MADE[*k].name))
        .map(|k| &MADE[k])
        .collect();
    assert_eq!(unused, Vec::<&Made>::new());
}

#[test]
fn a_call_that_is_not_listed_is_found() {
    let macros = macros();
    let text = plain("r = raw3(NR_fcntl, fd, F_SETSIG_ /* (mark) */,\n\t0) + raw1(nr, a);");
    assert_eq!(
        calls(&text),
        ["raw3(NR_fcntl, fd, F_SETSIG_ , 0)", "raw1(nr, a)"]
    );
    let all = arguments(&calls(&text)[0]);
    let fcntls = || MADE.iter().filter(|m| m.name == "fcntl");
    assert_eq!(fcntls().filter(|m| fits(m, &all[1..], &macros)).count(), 1);
    let other = ["fd", "F_SETFL", "0"].map(String::from);
    assert!(!fcntls().any(|m| fits(m, &other, &macros)));
}

/// The calls whose number assembler puts where the kernel expects it.
fn made_in_assembler(file: &str) -> Vec<String> {
    let text = read(file);
    let into_eax = text.lines().filter(|l| !l.contains("cmp"));
    let named = into_eax.flat_map(|line| line.split("SL_TEXT(NR_").skip(1));
    let of_operands = text
        .match_indices("\"0\"(NR_")
        .map(|(at, _)| &text[at + 7..]);
    named
        .chain(of_operands)
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

#[test]
fn assembler_names_the_calls_that_it_makes() {
    assert!(IN_ASSEMBLER
        .iter()
        .all(|file| made_in_assembler(file).len() >= 2));
    for file in IN_ASSEMBLER {
        for line in read(file).lines() {
            let (_, rest) = line.split_once("mov $").unwrap_or_default();
            let is_number = rest.starts_with(|c: char| c.is_ascii_digit());
            assert!(!is_number || !rest.contains("%eax"), "{file}: {line}");
        }
    }
}

/// What the gate lets in is what the switches behind it know.
#[test]
fn each_call_that_leads_to_the_gate_is_known_there() {
    let text = ["gate/gate.c", "routes/restrict.c"].map(read).concat();
    for row in &CALLS {
        if row.is(Kind::Gate) || row.is(Kind::Marks) {
            let case = format!("NR_{}", row.name);
            let is_known = text
                .split(&case)
                .skip(1)
                .any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
            assert!(is_known, "{case}");
        }
    }
}

/// A number that leads to the gate in an attached process is answered for `syscall(3)`, too.
#[test]
fn each_call_of_the_gate_is_one_of_the_library_by_its_number() {
    let entry = read("entry.c");
    for row in CALLS {
        if !row.is(Kind::Gate) && !row.is(Kind::Marks) {
            continue;
        }
        let case = format!("case NR_{}:", row.name);
        assert!(entry.contains(&case), "entry.c has no `{case}`");
    }
}
