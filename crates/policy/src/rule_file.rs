//! Reads the text of `--rules FILE`: TOML with `[[rule]]` tables.
//!
//! Promise: what is not understood is refused, with line and column, and never skipped: a rule
//! that was misspelt must not let a request go. Time is linear in the text.
//!
//! What it does not do: it opens no file; the caller names it in front of the error.
//!
//! Relies on: the `toml` crate's spans for the positions, and its own messages for the syntax.

use thiserror::Error;
use toml::de::{DeTable, DeValue};
use toml::Spanned;

use super::dial::{Until, UntilError};
use super::glob::GlobError;
use super::rules::{path_globs, GlobFault, GlobKey, Rule, RuleSet, DIALS_MAX, KEYS, RULES_MAX};

/// Why a rules file is refused, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {fault}")]
pub struct RuleError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub fault: RuleFault,
}

/// What is wrong with a rules file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuleFault {
    /// Not TOML; the parser's words.
    #[error("{0}")]
    Syntax(String),
    /// A key in a rule that is none of [`KEYS`].
    #[error("unknown key \"{key}\" (known: {})", KEYS.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// Something beside the `[[rule]]` tables.
    #[error("unknown table or key \"{key}\" outside of a rule (known: [[rule]])")]
    UnknownTable {
        /// The key.
        key: String,
    },
    /// `rule` is there but is not an array of tables.
    #[error("\"rule\" is {found}: write each rule as a table that begins with [[rule]]")]
    NotARule {
        /// The TOML type that was found, with its article.
        found: String,
    },
    /// A key has a value that is not text.
    #[error("\"{key}\" is {found}: write its value in quotes, as in {key} = \"{example}\"")]
    NotText {
        /// The key.
        key: &'static str,
        /// The TOML type that was found, with its article.
        found: String,
        /// A value that would do.
        example: &'static str,
    },
    /// A glob that does not compile.
    #[error("\"{key}\": {error}")]
    Glob {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        error: GlobError,
    },
    /// A glob for full paths that does not begin at the root, and so would never match.
    #[error("\"{key}\" is the relative path \"{glob}\": begin with / or **")]
    Relative {
        /// The key.
        key: &'static str,
        /// The glob.
        glob: String,
    },
    /// A value of `until` that is no dial.
    #[error("\"until\": {0}")]
    Until(UntilError),
    /// More than [`RULES_MAX`] rules; one about a folder counts twice.
    #[error("with this rule there are more than {RULES_MAX} (one about a folder counts twice)")]
    TooManyRules,
    /// More than [`DIALS_MAX`] different values of `until`.
    #[error("\"{until}\" is one different until too many: at most {DIALS_MAX} are taken")]
    TooManyDials {
        /// The value that is one too many.
        until: Until,
    },
}

/// A fault and the byte where it is; positions are counted only for the one that is reported.
type Fault = (usize, RuleFault);

impl RuleSet {
    /// Reads rules from TOML. An empty text has no rules, so that everything stays at `now`.
    ///
    /// # Errors
    /// [`RuleError`] with the position of the first thing that is not understood.
    pub fn from_toml(text: &str) -> Result<RuleSet, RuleError> {
        let set = parse(text).and_then(|table| read_table(table.get_ref()));
        set.map_err(|(at, fault)| {
            let (line, column) = position(text, at);
            RuleError {
                line,
                column,
                fault,
            }
        })
    }
}

fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Fault> {
    DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        // One line, so that the message stays one: the parser puts what it expected on a second.
        (
            at,
            RuleFault::Syntax(error.message().trim().replace('\n', "; ")),
        )
    })
}

fn read_table(table: &DeTable<'_>) -> Result<RuleSet, Fault> {
    let mut set = RuleSet::default();
    for (key, value) in in_text_order(table) {
        if key.get_ref() != "rule" {
            let key_text = key.get_ref().to_string();
            return Err((key.span().start, RuleFault::UnknownTable { key: key_text }));
        }
        let DeValue::Array(rules) = value.get_ref() else {
            return Err((key.span().start, not_a_rule(value.get_ref())));
        };
        set.rules = read_rules(rules.iter())?;
    }
    Ok(set)
}

fn read_rules<'a, 'i: 'a>(
    rules: impl Iterator<Item = &'a Spanned<DeValue<'i>>>,
) -> Result<Vec<Rule>, Fault> {
    let mut read = Vec::new();
    let mut dials = Vec::new();
    let mut count = 0;
    for rule in rules {
        let DeValue::Table(table) = rule.get_ref() else {
            return Err((rule.span().start, not_a_rule(rule.get_ref())));
        };
        let read_rule = read_rule(table, &mut dials)?;
        count += read_rule
            .path
            .as_deref()
            .map_or(1, |glob| path_globs(glob).len());
        if count > RULES_MAX {
            return Err((rule.span().start, RuleFault::TooManyRules));
        }
        read.push(read_rule);
    }
    Ok(read)
}

fn read_rule(table: &DeTable<'_>, dials: &mut Vec<Until>) -> Result<Rule, Fault> {
    let mut rule = Rule::default();
    for (key, value) in in_text_order(table) {
        let at = value.span().start;
        match (key.get_ref().as_ref(), GlobKey::from_name(key.get_ref())) {
            (_, Some(glob_key)) => {
                rule.set(
                    glob_key,
                    read_glob(glob_key, value.get_ref()).map_err(|f| (at, f))?,
                );
            }
            ("until", None) => {
                rule.until = Some(read_until(value.get_ref(), dials).map_err(|f| (at, f))?);
            }
            (unknown, None) => {
                return Err((
                    key.span().start,
                    RuleFault::UnknownKey {
                        key: unknown.to_owned(),
                    },
                ));
            }
        }
    }
    Ok(rule)
}

fn read_glob(key: GlobKey, value: &DeValue<'_>) -> Result<String, RuleFault> {
    let example = match key {
        GlobKey::Exe => "apt-get",
        GlobKey::User => "root",
        GlobKey::Path => "/var/cache/**",
    };
    let glob = read_text(key.name(), value, example)?;
    match key.check(glob) {
        Ok(()) => Ok(glob.to_owned()),
        Err(GlobFault::Syntax(error)) => Err(RuleFault::Glob {
            key: key.name(),
            error,
        }),
        Err(GlobFault::Relative) => Err(RuleFault::Relative {
            key: key.name(),
            glob: glob.to_owned(),
        }),
    }
}

fn read_until(value: &DeValue<'_>, dials: &mut Vec<Until>) -> Result<Until, RuleFault> {
    let until = read_text("until", value, "1s")?
        .parse()
        .map_err(RuleFault::Until)?;
    if !dials.contains(&until) {
        if dials.len() == DIALS_MAX {
            return Err(RuleFault::TooManyDials { until });
        }
        dials.push(until);
    }
    Ok(until)
}

fn read_text<'a>(
    key: &'static str,
    value: &'a DeValue<'_>,
    example: &'static str,
) -> Result<&'a str, RuleFault> {
    value.as_str().ok_or_else(|| RuleFault::NotText {
        key,
        found: type_of(value),
        example,
    })
}

fn not_a_rule(value: &DeValue<'_>) -> RuleFault {
    RuleFault::NotARule {
        found: type_of(value),
    }
}

fn type_of(value: &DeValue<'_>) -> String {
    let name = value.type_str();
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {name}")
}

/// The entries as they stand in the text: the table is sorted by key, but of two faults the first
/// one in the file is the one to report.
fn in_text_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry<'a, 'i>> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

type Entry<'a, 'i> = (
    &'a Spanned<toml::de::DeString<'i>>,
    &'a Spanned<DeValue<'i>>,
);

/// Line and column, both from 1, of a byte of the text; a place past the end is the end.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let line_start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |newline| newline + 1);
    (
        line,
        String::from_utf8_lossy(&before[line_start..])
            .chars()
            .count()
            + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        match RuleSet::from_toml(text) {
            Ok(set) => panic!("{text:?} was taken as {set:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn all_four_keys_are_read() {
        let text = "[[rule]]\nexe = 'apt*'\nuser = '1000'\npath = '**/x'\nuntil = '1min 30s'\n";
        let rule = Rule {
            exe: Some("apt*".into()),
            user: Some("1000".into()),
            path: Some("**/x".into()),
            until: Some("90s".parse().unwrap()),
        };
        assert_eq!(RuleSet::from_toml(text).unwrap().rules, [rule]);
    }

    #[test]
    fn a_rule_without_globs_is_a_catch_all() {
        let set = RuleSet::from_toml("[[rule]]\nuntil = \"now\"\n[[rule]]\n").unwrap();
        assert_eq!(set.rules.len(), 2);
        assert_eq!(
            set.first_match(b"/bin/x", |_| false, None),
            set.rules.first()
        );
    }

    #[test]
    fn an_empty_text_has_no_rules() {
        assert_eq!(
            RuleSet::from_toml("# nothing\n").unwrap(),
            RuleSet::default()
        );
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_place_and_the_known_ones() {
        assert_eq!(
            refused("# a comment\n[[rule]]\nexec = \"apt\"\n"),
            "line 3, column 1: unknown key \"exec\" (known: exe, user, path, until)"
        );
    }

    #[test]
    fn a_misspelt_table_is_an_error() {
        for text in [
            "[[rules]]\nexe = 'x'\n",
            "[[Rule]]\n",
            "exe = 'x'\n",
            "[other]\n",
        ] {
            let error = refused(text);
            assert!(error.contains("(known: [[rule]])"), "{error}");
        }
        assert!(refused("[[rule]]\n[[ruel]]\n").starts_with("line 2, column "));
    }

    #[test]
    fn a_rule_that_is_not_an_array_of_tables_is_an_error() {
        assert!(refused("[rule]\nexe = 'x'\n").contains("\"rule\" is a table: write each rule"));
        assert!(refused("rule = 'x'\n").contains("\"rule\" is a string"));
        assert!(refused("rule = ['x']\n").starts_with("line 1, column 9: \"rule\" is a string"));
    }

    #[test]
    fn a_wrong_type_is_an_error() {
        assert_eq!(
            refused("[[rule]]\nuntil = 1\n"),
            "line 2, column 9: \"until\" is an integer: write its value in quotes, \
             as in until = \"1s\""
        );
        assert!(refused("[[rule]]\nexe = ['a', 'b']\n").contains("\"exe\" is an array"));
        assert!(refused("[[rule]]\nuser = 0\n").contains("user = \"root\""));
        assert!(refused("[[rule]]\nexe.x = 'a'\n").contains("\"exe\" is a table"));
    }

    #[test]
    fn a_bad_value_is_an_error_where_it_stands() {
        assert!(refused("[[rule]]\nuntil = 'reply'\n").starts_with(
            "line 2, column 9: \"until\": unknown value \"reply\": write now, a duration"
        ));
        assert!(
            refused("[[rule]]\nuntil = '5'").ends_with("\"5\" has no unit: write 1s, 250ms or 2h")
        );
        assert!(refused("[[rule]]\nuntil = ''").contains("unknown value \"\""));
        assert!(refused("[[rule]]\nexe = ''").contains("\"exe\": the glob is empty"));
        assert!(refused("[[rule]]\nexe = \"a\\u0000\"").contains("NUL"));
        let long = "x".repeat(4097);
        assert!(refused(&format!("[[rule]]\nexe = '{long}'")).contains("4097 bytes long"));
    }

    #[test]
    fn a_glob_that_could_never_match_is_an_error() {
        for text in [
            "path = 'var/x'",
            "path = '*'",
            "path = '*.db'",
            "exe = 'bin/apt'",
        ] {
            let error = refused(&format!("[[rule]]\n{text}"));
            assert!(error.contains("begin with / or **"), "{error}");
        }
    }

    #[test]
    fn the_first_fault_in_the_text_is_the_one_reported() {
        let error = refused("[[rule]]\nuntil = 'x'\nexe = ''\n");
        assert!(error.starts_with("line 2, column 9"), "{error}");
    }

    #[test]
    fn columns_are_counted_in_characters() {
        let error = refused("rule = [{exe = 'äöü', exec = 'x'}]");
        assert!(
            error.starts_with("line 1, column 23: unknown key \"exec\""),
            "{error}"
        );
    }

    #[test]
    fn broken_toml_is_told_on_one_line_with_its_place() {
        let error = refused("[[rule]]\nexe = apt\n");
        assert!(error.starts_with("line 2, column 7: "), "{error}");
        assert!(!error.contains('\n'));
        assert!(refused("[[rule]]\nexe = 'a'\nexe = 'b'\n").starts_with("line 3, column 1: "));
    }

    #[test]
    fn the_number_of_rules_is_bounded() {
        let text = "[[rule]]\n".repeat(RULES_MAX);
        assert_eq!(RuleSet::from_toml(&text).unwrap().rules.len(), RULES_MAX);
        let error = refused(&format!("{text}[[rule]]\n"));
        assert!(
            error.starts_with("line 16385, column 1: with this rule there are more than 16384"),
            "{error}"
        );
    }

    #[test]
    fn the_number_of_dials_is_bounded() {
        let rules = |count: usize| -> String {
            (0..count)
                .map(|n| format!("[[rule]]\nuntil = '{}s'\n", n + 1))
                .collect()
        };
        let twice = format!("{}{}", rules(DIALS_MAX), rules(DIALS_MAX));
        assert_eq!(RuleSet::from_toml(&twice).unwrap().dials().len(), DIALS_MAX);
        let error = refused(&rules(DIALS_MAX + 1));
        assert!(
            error.starts_with("line 32, column 9: \"16s\" is one different until too"),
            "{error}"
        );
    }

    #[test]
    fn ten_thousand_rules_are_read_in_well_under_a_second() {
        let text: String = (0..10_000)
            .map(|n| {
                format!("[[rule]]\nexe = \"/opt/{n}/**\"\npath = \"/srv/{n}/*\"\nuntil = \"1s\"\n")
            })
            .collect();
        let started = std::time::Instant::now();
        assert_eq!(RuleSet::from_toml(&text).unwrap().rules.len(), 10_000);
        // Unoptimised and on a busy machine it may take its time; what must not pass is a
        // quadratic reader, which takes minutes.
        assert!(
            started.elapsed().as_secs() < 10,
            "took {:?}",
            started.elapsed()
        );
    }

    #[test]
    fn deep_nesting_is_refused_without_exhausting_the_stack() {
        refused(&format!("rule = {}", "[".repeat(100_000)));
        refused(&format!("rule = {}", "{a=".repeat(100_000)));
        refused(&format!("[[rule]]\nexe{} = 1", ".a".repeat(10_000)));
    }

    proptest! {
        #[test]
        fn no_text_panics(
            text in "(\\[\\[rule\\]\\]\n|exe|until|path| = |'|\"|\n|1s|now|\\PC){0,40}",
        ) {
            if let Err(error) = RuleSet::from_toml(&text) {
                prop_assert!(error.line >= 1 && error.column >= 1);
            }
        }
    }
}
