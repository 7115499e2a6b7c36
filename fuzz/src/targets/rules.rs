//! Fuzzes what users write: rules files, `--only` items, globs, dials and durations.
//!
//! Claims: nothing panics or hangs; an error names a place in the text; what was taken holds the
//! limits; a dial that was read is written in a form that reads back.

use synclater_policy::dial::Until;
use synclater_policy::glob::{Glob, Mode};
use synclater_policy::rules::{RuleSet, DIALS_MAX, RULES_MAX};

use crate::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "rules",
    seeds: &[
        b"[[rule]]\nexe = \"apt-get\"\nuntil = \"exit\"\n\n[[rule]]\npath = \"/srv/**/*.db\"\n",
        b"[[rule]]\nuser = '10[0-9]?'\nexe = '/usr/**/[!a-c]*'\nuntil = '1min 30s'\n",
        b"rule = [{exe = 'a\\\\*'}, {path = '**'}]\n# comment\n",
        b"exe=apt*\npath=/var/**\nuser=root",
        b"1.5h 30min 2s 250ms 5us",
        b"**/*a*b[]x]?\n/a/b/aab]c",
    ],
    words: &[
        b"[[rule]]\n",
        b"exe = ",
        b"user = ",
        b"path = ",
        b"until = ",
        b"\"now\"",
        b"'never'",
        b"**",
        b"*a",
        b"[!",
        b"\\u0000",
        b"\xc2\xb5s",
        b"99999999999999999999",
        b"\"\"\"",
    ],
    run,
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    read_file(&text);
    read_only(&text);
    read_dial(&text);
    read_glob(&text, input);
}

fn read_file(text: &str) {
    match RuleSet::from_toml(text) {
        Ok(set) => {
            assert!(set.rules.len() <= RULES_MAX && set.dials().len() <= DIALS_MAX);
            ask(&set);
        }
        Err(error) => {
            let lines = text.split('\n').count();
            assert!(
                (1..=lines).contains(&error.line) && error.column >= 1,
                "{error}"
            );
            assert!(!error.to_string().is_empty());
        }
    }
}

fn read_only(text: &str) {
    let items: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Ok(set) = RuleSet::from_only(&items) {
        assert!(set.rules.iter().all(|rule| rule.until.is_none()));
        ask(&set);
    }
}

fn ask(set: &RuleSet) {
    let exe = b"/usr/bin/apt-get";
    let found = set.first_match(exe, |user| user.len() % 2 == 0, Some(b"/srv/a/b.db"));
    if found.is_some_and(|rule| rule.until != Some(Until::Now)) {
        assert!(
            set.could_relax_exe(exe),
            "a rule fits an executable that none could relax"
        );
    }
    set.first_match(exe, |_| true, None);
}

fn read_dial(text: &str) {
    if let Ok(until) = text.parse::<Until>() {
        assert_eq!(until.to_string().parse(), Ok(until));
    }
}

fn read_glob(text: &str, subject: &[u8]) {
    let pattern = text.lines().next().unwrap_or_default();
    let in_mode = |mode| Glob::new(pattern, mode).is_ok_and(|glob| glob.matches(subject));
    if !subject.contains(&b'/') {
        assert_eq!(
            in_mode(Mode::Name),
            in_mode(Mode::Path),
            "modes differ only about /"
        );
    }
    assert!(
        in_mode(Mode::Name) || !in_mode(Mode::Path),
        "a path match is a name match too"
    );
}
