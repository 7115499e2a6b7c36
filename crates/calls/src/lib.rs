//! The numbers of system calls, and what synclater does about each call: `calls.def` as types.
//!
//! Promise: a name that the table does not have, or a call that the machine does not have, stops
//! the build where the number is a constant. No number stands anywhere else: not in the library's
//! C, not in the trace programs, not in another table.
//! Source: the kernel's tables (Linux 6.18), `asm/unistd_64.h`, `asm/unistd_32.h`,
//! `asm-generic/unistd.h`; a test compares them with the headers of the machine that it runs on.

#![forbid(unsafe_code)]

use std::fmt::Write;

/// The table's text.
const TEXT: &str = include_str!("../calls.def");

/// A processor, and the kind of program that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// 64-bit programs of x86.
    X86_64,
    /// 32-bit programs of x86.
    I386,
    /// 64-bit programs of ARM.
    Aarch64,
    /// 32-bit programs of ARM.
    Arm,
}

/// How many machines there are.
const MACHINES: usize = 4;

/// What synclater does about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It asks for durability, or may.
    Sync,
    /// It leads to the gate in a process that is attached.
    Gate,
    /// It leads there too, and is looked at while a descriptor has lost its `O_SYNC`.
    Marks,
    /// It may say `EINTR` where the kernel looked for signals in vain.
    Eintr,
}

impl Kind {
    /// All of them, by their words in the table.
    pub const ALL: [(Kind, &'static str); 4] = [
        (Kind::Sync, "sync"),
        (Kind::Gate, "gate"),
        (Kind::Marks, "marks"),
        (Kind::Eintr, "eintr"),
    ];
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    numbers: [Option<u32>; MACHINES],
    kinds: &'static str,
}

impl Row {
    /// Its number on a machine, if it has one there.
    #[must_use]
    pub const fn number(&self, machine: Machine) -> Option<u32> {
        self.numbers[machine as usize]
    }

    /// Whether it is of this kind.
    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        let word = Kind::ALL.iter().find(|(k, _)| *k == kind);
        word.is_some_and(|(_, word)| self.kinds.split_whitespace().any(|k| k == *word))
    }
}

/// How many calls the table has.
const ROWS: usize = rows();

/// The table.
pub static CALLS: [Row; ROWS] = TABLE;

const TABLE: [Row; ROWS] = parse();

const fn is_row(line: &str) -> bool {
    !line.is_empty() && line.as_bytes()[0] != b'#'
}

/// The first line of `text`, and what is behind it.
const fn line_of(text: &str) -> (&str, &str) {
    let mut at = 0;
    while at < text.len() && text.as_bytes()[at] != b'\n' {
        at += 1;
    }
    let (line, rest) = text.split_at(at);
    if rest.is_empty() {
        return (line, rest);
    }
    (line, rest.split_at(1).1)
}

/// The first word of `text`, and what is behind it.
const fn word_of(text: &str) -> (&str, &str) {
    let text = text.trim_ascii_start();
    let mut at = 0;
    while at < text.len() && !text.as_bytes()[at].is_ascii_whitespace() {
        at += 1;
    }
    text.split_at(at)
}

const fn rows() -> usize {
    let (mut count, mut rest) = (0, TEXT);
    while !rest.is_empty() {
        let (line, behind) = line_of(rest);
        count += is_row(line) as usize;
        rest = behind;
    }
    count
}

/// The number that a column holds: `-` is none.
const fn number_in(word: &str) -> Option<u32> {
    let digits = word.as_bytes();
    if digits.len() == 1 && digits[0] == b'-' {
        return None;
    }
    let (mut number, mut at) = (0, 0);
    assert!(!digits.is_empty(), "calls.def: a row has too few columns");
    while at < digits.len() {
        assert!(digits[at].is_ascii_digit(), "calls.def: not a number");
        number = number * 10 + (digits[at] - b'0') as u32;
        at += 1;
    }
    Some(number)
}

const fn row_of(line: &'static str) -> Row {
    let (name, mut rest) = word_of(line);
    let (mut numbers, mut machine) = ([None; MACHINES], 0);
    while machine < MACHINES {
        let (word, behind) = word_of(rest);
        numbers[machine] = number_in(word);
        (machine, rest) = (machine + 1, behind);
    }
    Row {
        name,
        numbers,
        kinds: rest.trim_ascii(),
    }
}

const fn parse() -> [Row; ROWS] {
    let none = Row {
        name: "",
        numbers: [None; MACHINES],
        kinds: "",
    };
    let (mut all, mut at, mut rest) = ([none; ROWS], 0, TEXT);
    while !rest.is_empty() {
        let (line, behind) = line_of(rest);
        if is_row(line) {
            all[at] = row_of(line);
            at += 1;
        }
        rest = behind;
    }
    all
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The number of the call `name` on a machine, or `None` where the machine has no such call.
///
/// # Panics
/// If the table does not have the name: in a constant, when it is compiled.
#[must_use]
pub const fn if_any(machine: Machine, name: &str) -> Option<u32> {
    let mut at = 0;
    while at < ROWS {
        if is_same(TABLE[at].name, name) {
            return TABLE[at].number(machine);
        }
        at += 1;
    }
    panic!("calls.def has no call of this name")
}

/// The number of the call `name` on a machine.
///
/// # Panics
/// If the table does not have the name, or the machine no such call: in a constant, when it is
/// compiled.
#[must_use]
pub const fn number(machine: Machine, name: &str) -> u32 {
    match if_any(machine, name) {
        Some(number) => number,
        None => panic!("calls.def has no number of this call on this machine"),
    }
}

/// The numbers of several calls, in this order. Panics as [`number`].
#[must_use]
pub const fn numbers<const N: usize>(machine: Machine, names: [&str; N]) -> [u32; N] {
    let (mut all, mut at) = ([0; N], 0);
    while at < N {
        all[at] = number(machine, names[at]);
        at += 1;
    }
    all
}

/// Whether `number` is a call of this kind on a machine.
#[must_use]
pub fn is_of(kind: Kind, machine: Machine, number: u32) -> bool {
    let mut rows = CALLS.iter();
    rows.any(|row| row.number(machine) == Some(number) && row.is(kind))
}

/// The numbers of a machine as C: `#define NR_fsync 74`, with `prefix` in the place of `NR_`; and
/// for each kind the list of its calls, as a macro that applies another one to each of them and to
/// one more argument: `SL_CALLS_gate(CALL, arg)` is `CALL(fsync, arg) CALL(sync, arg)`.
#[must_use]
pub fn header(machine: Machine, prefix: &str) -> String {
    let mut text = String::from("/* Made of calls.def. */\n");
    for row in &CALLS {
        if let Some(number) = row.number(machine) {
            let _ = writeln!(text, "#define {prefix}{} {number}", row.name);
        }
    }
    if prefix != "NR_" {
        return text;
    }
    for (kind, word) in Kind::ALL {
        let _ = write!(text, "#define SL_CALLS_{word}(CALL, arg)");
        for row in &CALLS {
            if row.number(machine).is_some() && row.is(kind) {
                let _ = write!(text, " CALL({}, arg)", row.name);
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_and_each_number_of_a_machine_stands_once() {
        let names: BTreeSet<_> = CALLS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), CALLS.len());
        for machine in [
            Machine::X86_64,
            Machine::I386,
            Machine::Aarch64,
            Machine::Arm,
        ] {
            let numbers = || CALLS.iter().filter_map(|row| row.number(machine));
            assert_eq!(numbers().collect::<BTreeSet<_>>().len(), numbers().count());
        }
    }

    #[test]
    fn each_kind_is_a_known_word() {
        for row in &CALLS {
            for word in row.kinds.split_whitespace() {
                assert!(Kind::ALL.iter().any(|(_, w)| *w == word), "{}", row.name);
            }
        }
        assert!(is_of(Kind::Sync, Machine::X86_64, 74) && is_of(Kind::Gate, Machine::I386, 118));
        assert!(!is_of(Kind::Marks, Machine::X86_64, 74));
    }

    /// The numbers of a kernel header, or `None` where it is not installed.
    fn of_header(path: &str) -> Option<String> {
        let text = std::fs::read_to_string(path);
        if text.is_err() {
            println!("not compared: {path} is not installed");
        }
        text.ok()
    }

    fn defined(text: &str, name: &str) -> Option<u32> {
        let lines = text.lines();
        let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = words.filter(|w| w.len() >= 3 && w[0] == "#define");
        let of_it = ["__NR_", "__NR3264_"].map(|prefix| format!("{prefix}{name}"));
        let mut of_name = line.filter(|w| of_it.contains(&w[1].to_owned()));
        of_name.find_map(|w| w[2].parse().ok())
    }

    /// What the kernel calls it on i386.
    fn on_i386(name: &str) -> &str {
        match name {
            "mmap" => "mmap2",
            "fcntl" => "fcntl64",
            "fcntl32" => "fcntl",
            "geteuid" => "geteuid32",
            "clock_gettime" => "clock_gettime64",
            name => name,
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_kernel_s_headers() {
        let mut compared = 0;
        for (machine, path) in [
            (
                Machine::X86_64,
                "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
            ),
            (
                Machine::I386,
                "/usr/include/x86_64-linux-gnu/asm/unistd_32.h",
            ),
            (Machine::Aarch64, "/usr/include/asm-generic/unistd.h"),
        ] {
            let Some(text) = of_header(path) else {
                continue;
            };
            for row in &CALLS {
                let name = match machine {
                    Machine::I386 => on_i386(row.name),
                    _ => row.name,
                };
                let Some(number) = row.number(machine) else {
                    continue;
                };
                assert_eq!(defined(&text, name), Some(number), "{machine:?}: {name}");
                compared += 1;
            }
        }
        assert!(compared > 0, "no header of the kernel is installed");
    }

    #[test]
    fn the_header_names_each_number_and_lists_each_kind() {
        let text = header(Machine::I386, "NR_");
        assert!(text.contains("#define NR_fsync 118\n") && text.contains("#define NR_umount 22\n"));
        assert!(text.contains("#define SL_CALLS_sync(CALL, arg) CALL(fsync, arg) CALL(fdatasync"));
        let text = header(Machine::Aarch64, "NR_");
        assert!(!text.contains("NR_open "));
        let text = header(Machine::I386, "NR32_");
        assert!(text.contains("#define NR32_fsync 118\n") && !text.contains("SL_CALLS"));
    }
}
