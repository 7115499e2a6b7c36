//! Globs: which executables, users and paths a rule is about.
//!
//! By hand, since the library in C has to match by the same rules, byte by byte, in time that is
//! linear in the text: no crate promises either.
//!
//! # Semantics
//! Subjects and patterns are bytes; no byte has a meaning beyond the ones below, and upper and
//! lower case differ. The whole subject has to match. Two modes:
//!
//! | pattern | [`Mode::Name`] | [`Mode::Path`] |
//! |---|---|---|
//! | `*` | any bytes, also none | any bytes but `/`, also none |
//! | `**`, `***`, … | the same as `*` | any bytes, `/` too, also none; anywhere in the pattern |
//! | `?` | one byte | one byte, not `/` |
//! | `[…]` | one byte of the set | one byte of the set, never `/` |
//! | `\x` | the byte `x` | the byte `x` |
//! | any other byte | itself | itself |
//!
//! - A run of two or more `*` is one `**`. `/a/**` does not match `/a`: the `/` has to be there.
//! - A set begins with `[`; a `!` or `^` right after it negates. A `]` that comes first (after the
//!   negation, if there is one) is a member. The next `]` ends the set. In a set `\x` is `x`, and
//!   `a-z` is the range of bytes from `a` to `z`, ends included; the ends may be escaped. A `-`
//!   that comes first or last is a member. A range whose ends are the wrong way round is empty.
//! - There are no classes: `[[:alpha:]` is a set that ends at its first `]`, as any other.
//! - In path mode no set matches `/`, negated or not, whatever its members are.
//! - A `[` without its `]` is a literal `[`. A backslash at the end is a literal backslash.
//!
//! # Executables
//! A glob for an executable is matched with the full path, in path mode, if it has a `/` anywhere;
//! else with the base name (what follows the last `/`), in name mode.
//!
//! # Cost
//! Every state the pattern can be in is carried along at once, so a match costs at most the
//! subject's length times the pattern's, whatever the pattern is: no recursion, no backtracking.
//!
//! Relies on: the preload library has a matcher of its own with these semantics; [`cases`] is the
//! table that both have to hold.

pub mod cases;
mod pattern;

use thiserror::Error;

use pattern::{compile, Token};

/// The longest pattern, in bytes: no path that the kernel takes is longer (PATH_MAX).
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Whether `/` is a byte like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `/` is a byte like any other: base names and user names.
    Name,
    /// Only `**` and a literal `/` match `/`.
    Path,
}

/// Why a pattern is refused. There is no syntax error: what is not special is literal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GlobError {
    /// An empty pattern would match nothing that exists.
    #[error("the glob is empty: write * to match everything")]
    Empty,
    /// More than [`PATTERN_BYTES_MAX`] bytes.
    #[error("the glob is {bytes} bytes long: write at most {PATTERN_BYTES_MAX}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// A NUL byte, which no name and no path can have.
    #[error("the glob has a NUL byte, which no name can have: leave it out")]
    Nul,
}

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    mode: Mode,
    tokens: Vec<Token>,
}

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`GlobError`] for an empty or over-long pattern, or one with a NUL byte.
    pub fn new(pattern: &str, mode: Mode) -> Result<Glob, GlobError> {
        check(pattern.as_bytes())?;
        Ok(Glob {
            mode,
            tokens: compile(pattern.as_bytes(), mode),
        })
    }

    /// Compiles a pattern for an executable: with a `/` in path mode, else in name mode.
    ///
    /// # Errors
    /// As [`Glob::new`].
    pub fn for_exe(pattern: &str) -> Result<Glob, GlobError> {
        Glob::new(pattern, exe_mode(pattern))
    }

    /// True when all of `subject` matches.
    pub fn matches(&self, subject: &[u8]) -> bool {
        let mut states = States::new(&self.tokens);
        for &byte in subject {
            if !states.step(&self.tokens, byte) {
                return false;
            }
        }
        states.accepts(&self.tokens)
    }

    /// Whether it is one of a full path, not of a base name.
    #[must_use]
    pub fn is_of_path(&self) -> bool {
        matches!(self.mode, Mode::Path)
    }

    /// True when the executable at this full path matches; see the module's header.
    pub fn matches_exe(&self, full_path: &[u8]) -> bool {
        match self.mode {
            Mode::Name => self.matches(base_name(full_path)),
            Mode::Path => self.matches(full_path),
        }
    }
}

fn exe_mode(pattern: &str) -> Mode {
    if pattern.contains('/') {
        Mode::Path
    } else {
        Mode::Name
    }
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

fn check(pattern: &[u8]) -> Result<(), GlobError> {
    match pattern.len() {
        0 => Err(GlobError::Empty),
        bytes if bytes > PATTERN_BYTES_MAX => Err(GlobError::TooLong { bytes }),
        _ if pattern.contains(&0) => Err(GlobError::Nul),
        _ => Ok(()),
    }
}

/// The places in a pattern that the bytes read so far can lead to, in ascending order.
struct States {
    live: Vec<usize>,
    next: Vec<usize>,
}

impl States {
    fn new(tokens: &[Token]) -> States {
        let mut states = States {
            live: Vec::new(),
            next: Vec::new(),
        };
        enter(&mut states.live, tokens, 0);
        states
    }

    /// Reads one byte; false when no match is possible any more.
    fn step(&mut self, tokens: &[Token], byte: u8) -> bool {
        self.next.clear();
        for &place in &self.live {
            match tokens.get(place) {
                Some(Token::Stretch) => enter(&mut self.next, tokens, place),
                Some(Token::Segment) if byte != b'/' => enter(&mut self.next, tokens, place),
                Some(Token::Byte(want)) if *want == byte => {
                    enter(&mut self.next, tokens, place + 1)
                }
                Some(Token::Set(set)) if set.has(byte) => enter(&mut self.next, tokens, place + 1),
                _ => {}
            }
        }
        std::mem::swap(&mut self.live, &mut self.next);
        !self.live.is_empty()
    }

    fn accepts(&self, tokens: &[Token]) -> bool {
        self.live.last() == Some(&tokens.len())
    }
}

/// Adds a place, and those behind it that are reached without a byte (past stars).
fn enter(places: &mut Vec<usize>, tokens: &[Token], mut place: usize) {
    loop {
        // Places come in ascending order, so one that is there already is at the end or before
        // it, with all that follows from it.
        if places.last().is_some_and(|&last| last >= place) {
            return;
        }
        places.push(place);
        if !matches!(tokens.get(place), Some(Token::Stretch | Token::Segment)) {
            return;
        }
        place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::cases::CASES;
    use super::*;
    use proptest::prelude::*;

    fn fits(mode: Mode, pattern: &str, subject: &str) -> bool {
        Glob::new(pattern, mode)
            .unwrap()
            .matches(subject.as_bytes())
    }

    #[test]
    fn the_table_of_cases_holds_in_both_modes() {
        for &(pattern, subject, as_name, as_path) in CASES {
            assert_eq!(
                fits(Mode::Name, pattern, subject),
                as_name,
                "{pattern} {subject} name"
            );
            assert_eq!(
                fits(Mode::Path, pattern, subject),
                as_path,
                "{pattern} {subject} path"
            );
        }
    }

    #[test]
    fn bytes_that_are_no_text_match() {
        let glob = Glob::new("/a/?*", Mode::Path).unwrap();
        assert!(glob.matches(b"/a/\xff\xfe"));
    }

    #[test]
    fn an_executable_is_matched_by_base_name_unless_the_glob_has_a_slash() {
        let fits = |glob: &str, exe: &str| Glob::for_exe(glob).unwrap().matches_exe(exe.as_bytes());
        assert!(fits("apt*", "/usr/bin/apt-get"));
        assert!(!fits("bin*", "/usr/bin/apt-get"));
        assert!(fits("/usr/bin/*", "/usr/bin/apt-get"));
        assert!(!fits("/usr/*", "/usr/bin/apt-get"));
        assert!(fits("**/apt-get", "/usr/bin/apt-get"));
        assert!(fits("make", "make"));
    }

    #[test]
    fn what_is_no_glob_is_refused() {
        let refused = |pattern: &str| Glob::new(pattern, Mode::Name).unwrap_err();
        assert_eq!(refused(""), GlobError::Empty);
        assert_eq!(refused("a\0"), GlobError::Nul);
        assert_eq!(
            refused(&"x".repeat(4097)),
            GlobError::TooLong { bytes: 4097 }
        );
    }

    #[test]
    fn the_worst_pattern_costs_no_more_than_the_product_of_the_lengths() {
        // Backtracking would take longer than the universe has been there.
        let (stars, subject) = ("*a".repeat(500), "a".repeat(4000));
        assert!(!fits(Mode::Path, &format!("**{stars}b"), &subject));
        assert!(!fits(
            Mode::Path,
            &format!("{}b", "**a".repeat(500)),
            &subject
        ));
        assert!(!fits(Mode::Name, &"[".repeat(4096), &subject));
        assert!(!fits(Mode::Name, &"[\\]".repeat(1365), &subject));
    }

    /// The rules of the header once more, by recursion, for short patterns only.
    fn oracle(tokens: &[Token], subject: &[u8]) -> bool {
        let Some((token, rest)) = tokens.split_first() else {
            return subject.is_empty();
        };
        let may_eat = subject.first().is_some_and(|&byte| match token {
            Token::Stretch => true,
            Token::Segment => byte != b'/',
            Token::Byte(want) => *want == byte,
            Token::Set(set) => set.has(byte),
        });
        match token {
            Token::Stretch | Token::Segment => {
                oracle(rest, subject) || (may_eat && oracle(tokens, &subject[1..]))
            }
            Token::Byte(_) | Token::Set(_) => may_eat && oracle(rest, &subject[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn all_states_at_once_answer_as_trying_each_way_does(
            pattern in "(\\*{1,2}|[ab/?]|\\[[!ab/-]{1,3}\\]){1,7}",
            subject in "[ab/]{0,9}",
        ) {
            for mode in [Mode::Name, Mode::Path] {
                let tokens = compile(pattern.as_bytes(), mode);
                let want = oracle(&tokens, subject.as_bytes());
                prop_assert_eq!(fits(mode, &pattern, &subject), want);
            }
        }

        #[test]
        fn a_text_with_its_special_bytes_escaped_matches_itself(text in "[ -~]{1,30}") {
            let escaped: String = text.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert!(fits(Mode::Path, &escaped, &text));
        }

        #[test]
        fn no_pattern_panics(pattern in "[^\\x00]{1,40}", subject: Vec<u8>) {
            for mode in [Mode::Name, Mode::Path] {
                Glob::new(&pattern, mode).unwrap().matches(&subject);
            }
        }
    }
}
