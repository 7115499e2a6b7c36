//! Reads `--only KEY=GLOB`, which may be given more than once.
//!
//! Promise: of the same key one glob has to match, of each different key one has to. The result
//! is a [`RuleSet`] like any other, every rule of it at the session's dial.
//!
//! What it does not do: it knows nothing of `--rules`; that the two exclude each other is the
//! command line's to say.

use thiserror::Error;

use super::glob::GlobError;
use super::rules::{path_globs, GlobFault, GlobKey, Rule, RuleSet, RULES_MAX};

/// Why an `--only` is refused. Each message quotes what was given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OnlyError {
    /// No `=` in it.
    #[error("\"{seen}\" has no =: write KEY=GLOB, as in exe=apt-get (keys: exe, user, path)")]
    NoEquals {
        /// The whole item.
        seen: String,
    },
    /// A key that is not known.
    #[error("unknown key \"{key}\" in \"{seen}\" (known: exe, user, path)")]
    UnknownKey {
        /// The whole item.
        seen: String,
        /// What stands before the `=`.
        key: String,
    },
    /// A glob that does not compile, the empty one among them.
    #[error("\"{seen}\": {error}")]
    Glob {
        /// The whole item.
        seen: String,
        /// What is wrong with it.
        error: GlobError,
    },
    /// A glob for full paths that does not begin at the root, and so would never match.
    #[error("\"{seen}\" has a relative path: begin with / or **, as in {key}=/srv/**")]
    Relative {
        /// The whole item.
        seen: String,
        /// What stands before the `=`.
        key: &'static str,
    },
    /// The combinations come to more than [`RULES_MAX`], where a folder counts twice.
    #[error("these globs make {rules} combinations: at most {RULES_MAX} are taken")]
    TooMany {
        /// How many combinations there are.
        rules: usize,
    },
}

impl RuleSet {
    /// Makes rules of `--only` items. No item at all makes no rule: the caller asks only when
    /// there is one.
    ///
    /// # Errors
    /// [`OnlyError`] for the first item that is not understood, or for too many combinations.
    pub fn from_only(items: &[String]) -> Result<RuleSet, OnlyError> {
        let mut globs = Vec::with_capacity(items.len());
        for item in items {
            globs.push(read_item(item)?);
        }
        check_count(&globs)?;
        let rules = GlobKey::ALL
            .into_iter()
            .fold(vec![Rule::default()], |rules, key| {
                let choices: Vec<&str> = of_key(&globs, key).collect();
                if choices.is_empty() {
                    return rules;
                }
                combine(&rules, key, &choices)
            });
        Ok(RuleSet {
            rules: if globs.is_empty() { Vec::new() } else { rules },
        })
    }
}

fn read_item(item: &str) -> Result<(GlobKey, &str), OnlyError> {
    let seen = item.to_owned();
    let Some((name, glob)) = item.split_once('=') else {
        return Err(OnlyError::NoEquals { seen });
    };
    let Some(key) = GlobKey::from_name(name) else {
        return Err(OnlyError::UnknownKey {
            seen,
            key: name.to_owned(),
        });
    };
    match key.check(glob) {
        Ok(()) => Ok((key, glob)),
        Err(GlobFault::Syntax(error)) => Err(OnlyError::Glob { seen, error }),
        Err(GlobFault::Relative) => Err(OnlyError::Relative {
            seen,
            key: key.name(),
        }),
    }
}

fn of_key<'a>(globs: &'a [(GlobKey, &'a str)], key: GlobKey) -> impl Iterator<Item = &'a str> {
    globs
        .iter()
        .filter(move |(one, _)| *one == key)
        .map(|(_, glob)| *glob)
}

fn check_count(globs: &[(GlobKey, &str)]) -> Result<(), OnlyError> {
    let counts = GlobKey::ALL.map(|key| count_of_key(globs, key).max(1));
    let rules = counts.into_iter().fold(1, usize::saturating_mul);
    if rules > RULES_MAX {
        return Err(OnlyError::TooMany { rules });
    }
    Ok(())
}

/// How many globs of this key a rule set has to hold; one for a folder counts twice.
fn count_of_key(globs: &[(GlobKey, &str)], key: GlobKey) -> usize {
    match key {
        GlobKey::Path => of_key(globs, key).map(|glob| path_globs(glob).len()).sum(),
        GlobKey::Exe | GlobKey::User => of_key(globs, key).count(),
    }
}

fn combine(rules: &[Rule], key: GlobKey, globs: &[&str]) -> Vec<Rule> {
    let mut combined = Vec::with_capacity(rules.len() * globs.len());
    for rule in rules {
        for glob in globs {
            let mut rule = rule.clone();
            rule.set(key, (*glob).to_owned());
            combined.push(rule);
        }
    }
    combined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(items: &[&str]) -> Result<RuleSet, OnlyError> {
        RuleSet::from_only(
            &items
                .iter()
                .map(|item| (*item).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn the_same_key_is_or_and_different_keys_are_and() {
        let set = only(&["exe=apt*", "path=/var/**", "exe=/usr/bin/dpkg"]).unwrap();
        let fits = |exe: &str, path: &str| {
            set.first_match(exe.as_bytes(), |_| false, Some(path.as_bytes()))
                .is_some()
        };
        assert!(fits("/usr/bin/apt-get", "/var/lib/x"));
        assert!(fits("/usr/bin/dpkg", "/var/lib/x"));
        assert!(!fits("/bin/dpkg", "/var/lib/x"));
        assert!(!fits("/usr/bin/apt-get", "/home/x"));
        assert!(fits("/usr/bin/dpkg", "/var"), "the folder itself");
        assert_eq!(set.rules.len(), 2);
        assert!(set.rules.iter().all(|rule| rule.until.is_none()));
    }

    #[test]
    fn a_glob_may_have_an_equals_sign() {
        assert_eq!(
            only(&["path=/a=b"]).unwrap().rules[0].path.as_deref(),
            Some("/a=b")
        );
    }

    #[test]
    fn nothing_makes_no_rule() {
        assert_eq!(only(&[]), Ok(RuleSet::default()));
    }

    #[test]
    fn each_way_to_be_wrong_has_its_own_error() {
        let said = |item: &str| only(&[item]).unwrap_err().to_string();
        assert!(said("apt").starts_with("\"apt\" has no =: write KEY=GLOB"));
        assert_eq!(
            said("exec=a"),
            "unknown key \"exec\" in \"exec=a\" (known: exe, user, path)"
        );
        assert!(said("until=now").starts_with("unknown key \"until\""));
        assert!(said("exe=").contains("the glob is empty"));
        assert!(said("path=var").contains("relative path: begin with / or **"));
        assert!(said("exe=bin/x").contains("as in exe=/srv/**"));
        assert_eq!(only(&["path=*"]).is_err(), only(&["path=**"]).is_ok());
    }

    #[test]
    fn the_number_of_combinations_is_bounded() {
        let items = |count: usize| -> Vec<String> {
            let exes = (0..count).map(|n| format!("exe={n}"));
            exes.chain((0..64).map(|n| format!("path=/{n}"))).collect()
        };
        assert_eq!(
            RuleSet::from_only(&items(128)).unwrap().rules.len(),
            RULES_MAX / 2
        );
        let error = RuleSet::from_only(&items(129)).unwrap_err();
        assert_eq!(error, OnlyError::TooMany { rules: 129 * 128 });
    }
}
