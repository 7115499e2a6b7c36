//! The library's matcher (crates/shim/c/base/glob.c) and the model's give the same answers.
//!
//! Method: patterns and subjects over a small alphabet, half of the subjects grown from the pattern
//! so that many match. The library's side is a small program that reads one case a line.

use crate::harness::command::{clean, run};
use crate::harness::dir::Dir;
use crate::harness::limits::{count, seed};
use crate::harness::victims::tool;
use synclater_policy::glob::{Glob, Mode};

const LETTERS: &[u8] = b"aab/.-]x";
const PIECES: [&str; 26] = [
    "a", "b", "x", "/", "-", ".", "]", "*", "*", "**", "**", "***", "?", "[ab]", "[!a]", "[^/]",
    "[a-x]", "[]a]", "[a-]", "[x-a]", "[\\]a]", "[/]", "\\*", "\\a", "[", "\\",
];

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn subject(&mut self, length: usize) -> String {
        (0..length)
            .map(|_| char::from(LETTERS[self.below(LETTERS.len())]))
            .collect()
    }
}

struct Case {
    path_mode: bool,
    pattern: String,
    subject: String,
}

fn case(random: &mut Random) -> Case {
    let pieces: Vec<&str> = (0..1 + random.below(8))
        .map(|_| PIECES[random.below(PIECES.len())])
        .collect();
    let subject = if random.below(2) == 0 {
        let length = random.below(9);
        random.subject(length)
    } else {
        pieces
            .iter()
            .map(|piece| grown_from(piece, random))
            .collect()
    };
    Case {
        path_mode: random.below(2) == 0,
        pattern: pieces.concat(),
        subject,
    }
}

/// Something that this piece of a pattern is likely to match.
fn grown_from(piece: &str, random: &mut Random) -> String {
    match piece.as_bytes() {
        [b'*', ..] => {
            let length = random.below(4);
            random.subject(length)
        }
        [b'?'] | [b'[', _, ..] => random.subject(1),
        [b'\\', escaped] => char::from(*escaped).into(),
        _ => piece.to_owned(),
    }
}

/// The library's answers, in order.
fn ask_library(dir: &Dir, cases: &[Case]) -> Vec<bool> {
    let lines = dir.join("cases");
    let line = |c: &Case| format!("{}\t{}\t{}\n", u8::from(c.path_mode), c.pattern, c.subject);
    std::fs::write(&lines, cases.iter().map(line).collect::<String>()).expect("cases");
    let outcome = run(clean(tool("glob_lines")).arg(&lines)).must_succeed();
    outcome.stdout.lines().map(|answer| answer == "1").collect()
}

#[test]
fn soak_both_matchers_give_the_same_answers() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random(seed);
    let cases: Vec<Case> = (0..count(20_011, 2_000_003))
        .map(|_| case(&mut random))
        .collect();
    let answers = ask_library(&Dir::new("globs"), &cases);
    assert_eq!(
        answers.len(),
        cases.len(),
        "an answer for each case; seed {seed}"
    );
    let mut matched = 0;
    for (case, answer) in cases.iter().zip(answers) {
        let Case {
            path_mode,
            pattern,
            subject,
        } = case;
        let mode = if *path_mode { Mode::Path } else { Mode::Name };
        let glob = Glob::new(pattern, mode).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        assert_eq!(
            glob.matches(subject.as_bytes()),
            answer,
            "the model and the library (right) on pattern {pattern:?}, subject {subject:?}, \
             {mode:?}; SYNCLATER_SEED={seed}"
        );
        matched += usize::from(answer);
    }
    let share = matched * 100 / cases.len();
    assert!(
        (10..90).contains(&share),
        "{share} % match: the cases show little; seed {seed}"
    );
}
