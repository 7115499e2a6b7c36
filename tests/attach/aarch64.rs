//! The finder of sites for aarch64, on Debian's libc for it.

use crate::harness::command::{clean, run};
use crate::harness::limits::skip;
use synclater_patching::sites::{self, Call};

const LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";

/// What is asked for durability by, and the numbers of their calls (asm-generic/unistd.h).
const FUNCTIONS: [(&str, u32); 8] = [
    ("fsync", 82),
    ("fdatasync", 83),
    ("sync", 81),
    ("syncfs", 267),
    ("msync", 227),
    ("sync_file_range", 84),
    ("openat", 56),
    ("pwritev2", 287),
];

/// Where a function is in the file, and how long it is; code and file offsets are the same there.
fn function(name: &str) -> (usize, usize) {
    let outcome = run(clean("aarch64-linux-gnu-nm").args(["-D", "-S", LIBC])).must_succeed();
    let line = outcome
        .stdout
        .lines()
        .find(|l| l.contains(&format!(" {name}@@")))
        .unwrap_or_else(|| panic!("no {name}"));
    let hex = |word: Option<&str>| usize::from_str_radix(word.expect("a number"), 16).expect("hex");
    let mut words = line.split(' ');
    (hex(words.next()), hex(words.next()))
}

#[test]
fn every_call_of_debians_libc_for_aarch64_is_a_site() {
    let Ok(file) = std::fs::read(LIBC) else {
        let what = "no libc for aarch64 is installed (libc6-arm64-cross)";
        return skip("every_call_of_debians_libc_for_aarch64_is_a_site", what);
    };
    let all: Vec<_> = sites::aarch64(&file).collect();
    for (name, number) in FUNCTIONS {
        let (from, len) = function(name);
        let code = &file[from..from + len];
        let enters = code
            .chunks_exact(4)
            .filter(|w| **w == [0x01, 0, 0, 0xd4])
            .count();
        let range = from..from + len;
        let found: Vec<_> = all.iter().filter(|s| range.contains(&s.at)).collect();
        assert!(enters > 0, "{name}");
        assert_eq!(found.len(), enters, "{name}: {found:x?}");
        for site in found {
            assert_eq!(site.call, Call::Number(number), "{name} at {:x}", site.at);
            let behind = &file[site.at + 4..site.at + 8];
            assert_eq!(behind, [0x01, 0, 0, 0xd4], "{name} at {:x}", site.at);
        }
    }
    let (from, len) = function("syscall");
    let any = all.iter().find(|s| (from..from + len).contains(&s.at));
    assert_eq!(any.map(|s| s.call), Some(Call::Any));
}
