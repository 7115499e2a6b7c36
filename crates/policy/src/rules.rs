//! Rules: which requests of which programs are relaxed, and how far. The first match wins.
//!
//! Promise: in doubt nothing is relaxed. No match means `now`, and so does a rule that cannot be
//! decided because the request's path is not known.
//!
//! What it does not do: it looks up no users; the caller says whether a pattern fits the effective
//! user. Texts are read in [`super::rule_file`] (`--rules`) and [`super::only`] (`--only`).

use super::dial::Until;
use super::glob::{Glob, GlobError, Mode};
use std::fmt;

/// The most rules that a set may have, where one about a folder counts twice ([`path_globs`]); it
/// bounds what a request can cost.
pub const RULES_MAX: usize = 16_384;

/// The most different `until` values that a set may have, beside the session's own.
pub const DIALS_MAX: usize = 15;

/// The keys of a rule, in the order in which messages list them.
pub const KEYS: [&str; 4] = ["exe", "user", "path", "until"];

/// One rule. A key that is absent fits everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Glob for the executable: its base name, or its full path if the glob has a `/`.
    pub exe: Option<String>,
    /// Glob for the effective user at the request, name or number.
    pub user: Option<String>,
    /// Glob for the absolute path of the file; `*` stops at `/`, `**` does not. What it means is
    /// said by [`path_globs`].
    pub path: Option<String>,
    /// The dial for what fits; absent: the session's.
    pub until: Option<Until>,
}

/// Rules in order of precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// The first one that fits decides.
    pub rules: Vec<Rule>,
}

/// A key of a rule that holds a glob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GlobKey {
    Exe,
    User,
    Path,
}

/// How a rule relates to one request.
enum Fit {
    Yes,
    No,
    /// It has a path glob, and the request's path is not known.
    Unknown,
}

impl RuleSet {
    /// Returns the first rule that fits the request; none means `now`.
    ///
    /// `exe` is the full path of the executable, `path` the absolute path of the file. A request
    /// whose path is not known (`sync`, a file without a name) is decided by the rules before the
    /// first one that would have to know it; past that one it is in doubt, and none is returned.
    /// A rule with a glob that does not compile fits nothing: such a rule was not parsed here.
    pub fn first_match(
        &self,
        exe: &[u8],
        user_matches: impl Fn(&str) -> bool,
        path: Option<&[u8]>,
    ) -> Option<&Rule> {
        let at = self.first_match_at(exe, user_matches, path)?;
        self.rules.get(at)
    }

    /// Its place among the rules, as [`RuleSet::first_match`] says.
    pub fn first_match_at(
        &self,
        exe: &[u8],
        user_matches: impl Fn(&str) -> bool,
        path: Option<&[u8]>,
    ) -> Option<usize> {
        for (at, rule) in self.rules.iter().enumerate() {
            match rule.fit(exe, &user_matches, path) {
                Fit::Yes => return Some(at),
                Fit::Unknown => return None,
                Fit::No => {}
            }
        }
        None
    }

    /// True when some rule could relax a request of this executable (full path), whoever runs it
    /// and whatever file it is about. When false, the program need not be reached at all.
    pub fn could_relax_exe(&self, exe: &[u8]) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.until != Some(Until::Now) && rule.fits_exe(exe))
    }

    /// True when a rule asks for the user at each request.
    pub fn asks_for_user(&self) -> bool {
        self.rules.iter().any(|rule| rule.user.is_some())
    }

    /// True when a rule asks for the file's path at each request, which costs microseconds.
    pub fn asks_for_path(&self) -> bool {
        self.rules.iter().any(|rule| rule.path.is_some())
    }

    /// The dials that the rules set, each once, strictest first; without the session's own.
    pub fn dials(&self) -> Vec<Until> {
        let mut dials: Vec<Until> = self.rules.iter().filter_map(|rule| rule.until).collect();
        dials.sort_unstable();
        dials.dedup();
        dials
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.until.map(|until| until.to_string());
        let keys = [&self.exe, &self.user, &self.path, &until];
        let all = KEYS.iter().zip(keys);
        let said = all.filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
        let said: Vec<String> = said.collect();
        if said.is_empty() {
            f.write_str("one about everything")
        } else {
            f.write_str(&said.join(" "))
        }
    }
}

impl Rule {
    fn fit(&self, exe: &[u8], user: impl Fn(&str) -> bool, path: Option<&[u8]>) -> Fit {
        if !self.fits_exe(exe) || !self.user.as_deref().is_none_or(user) {
            return Fit::No;
        }
        match (&self.path, path) {
            (None, _) => Fit::Yes,
            (Some(_), None) => Fit::Unknown,
            (Some(glob), Some(path)) if fits_path(glob, path) => Fit::Yes,
            (Some(_), Some(_)) => Fit::No,
        }
    }

    fn fits_exe(&self, exe: &[u8]) -> bool {
        match &self.exe {
            Some(glob) => Glob::for_exe(glob).is_ok_and(|glob| glob.matches_exe(exe)),
            None => true,
        }
    }
}

fn fits_path(glob: &str, path: &[u8]) -> bool {
    path_globs(glob)
        .iter()
        .filter_map(|glob| Glob::new(glob, Mode::Path).ok())
        .any(|glob| glob.matches(path))
}

/// The globs for what a user means by one for paths: a path without a wildcard in its last part
/// means also all that is below it, and what ends with `/**` also the folder itself. A program that
/// syncs a file it has made syncs its folder, too.
pub fn path_globs(glob: &str) -> Vec<String> {
    let folder = glob.strip_suffix("/**").or_else(|| glob.strip_suffix('/'));
    match folder {
        Some("") => vec!["/".to_owned(), below("")],
        Some(folder) => vec![folder.to_owned(), below(folder)],
        None if is_plain(glob.rsplit('/').next().unwrap_or_default()) => {
            vec![glob.to_owned(), below(glob)]
        }
        None => vec![glob.to_owned()],
    }
}

/// Whether a part of a path is a name without a wildcard.
fn is_plain(part: &str) -> bool {
    !part.is_empty() && !part.contains(['*', '?', '[', '\\'])
}

/// The glob for all that is below a folder.
fn below(folder: &str) -> String {
    format!("{folder}/**")
}

/// Why a glob is refused under its key.
#[derive(Debug)]
pub(super) enum GlobFault {
    Syntax(GlobError),
    /// It could never match: what it is compared with begins with `/`.
    Relative,
}

impl GlobKey {
    pub(super) const ALL: [GlobKey; 3] = [GlobKey::Exe, GlobKey::User, GlobKey::Path];

    pub(super) fn from_name(name: &str) -> Option<GlobKey> {
        GlobKey::ALL.into_iter().find(|key| key.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            GlobKey::Exe => "exe",
            GlobKey::User => "user",
            GlobKey::Path => "path",
        }
    }

    /// Refuses what is no glob, and what can never match because it does not begin at the root.
    pub(super) fn check(self, glob: &str) -> Result<(), GlobFault> {
        Glob::new(glob, Mode::Path).map_err(GlobFault::Syntax)?;
        let at_root = match self {
            GlobKey::User => true,
            GlobKey::Exe => !glob.contains('/') || begins_at_root(glob),
            GlobKey::Path => begins_at_root(glob),
        };
        if at_root {
            Ok(())
        } else {
            Err(GlobFault::Relative)
        }
    }
}

fn begins_at_root(glob: &str) -> bool {
    glob.starts_with('/') || glob.starts_with("**")
}

impl Rule {
    pub(super) fn set(&mut self, key: GlobKey, glob: String) {
        match key {
            GlobKey::Exe => self.exe = Some(glob),
            GlobKey::User => self.user = Some(glob),
            GlobKey::Path => self.path = Some(glob),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [[rule]]
        path = "/srv/db/**"
        exe = "postgres"
        until = "now"

        [[rule]]
        user = "build*"

        [[rule]]
        exe = "/usr/**/apt-*"
        until = "exit"

        [[rule]]
        path = "/tmp/**"
        until = "never"
    "#;

    fn set() -> RuleSet {
        RuleSet::from_toml(TEXT).unwrap()
    }

    fn decide(exe: &str, user: &str, path: Option<&str>) -> Option<usize> {
        let set = set();
        let fits_user = |glob: &str| {
            Glob::new(glob, Mode::Name)
                .unwrap()
                .matches(user.as_bytes())
        };
        let rule = set.first_match(exe.as_bytes(), fits_user, path.map(str::as_bytes))?;
        set.rules.iter().position(|one| std::ptr::eq(one, rule))
    }

    #[test]
    fn the_first_match_wins() {
        assert_eq!(
            decide("/usr/bin/postgres", "builder", Some("/srv/db/x")),
            Some(0)
        );
        assert_eq!(
            decide("/usr/bin/postgres", "builder", Some("/srv/x")),
            Some(1)
        );
        assert_eq!(decide("/usr/lib/apt/apt-get", "root", Some("/x")), Some(2));
        assert_eq!(decide("/bin/cp", "root", Some("/tmp/a/b")), Some(3));
    }

    #[test]
    fn no_match_is_none() {
        assert_eq!(decide("/bin/cp", "root", Some("/var/x")), None);
        assert_eq!(
            RuleSet::default().first_match(b"/bin/cp", |_| true, None),
            None
        );
    }

    #[test]
    fn a_path_that_is_not_known_is_in_doubt_where_a_rule_would_ask_for_it() {
        assert_eq!(decide("/usr/bin/postgres", "builder", None), None);
        assert_eq!(decide("/bin/cp", "builder", None), Some(1));
        assert_eq!(decide("/bin/cp", "root", None), None);
    }

    #[test]
    fn a_path_means_the_folder_and_what_is_below_it() {
        let is_about = |glob: &str, path: &str| fits_path(glob, path.as_bytes());
        for folder in ["/srv/db", "/srv/db/", "/srv/db/**", "/s*/db", "**/db"] {
            for (path, is_meant) in [
                ("/srv/db", true),
                ("/srv/db/x", true),
                ("/srv/db/x/y", true),
                ("/srv/db2", false),
                ("/srv", false),
            ] {
                assert_eq!(is_about(folder, path), is_meant, "{folder}, {path}");
            }
        }
        for all in ["/", "/**", "**"] {
            assert!(is_about(all, "/") && is_about(all, "/srv/x"), "{all}");
        }
        // A wildcard in the last part means what it says.
        assert!(is_about("/srv/*", "/srv/db") && !is_about("/srv/*", "/srv/db/x"));
        assert_eq!(path_globs("/srv/*.db"), ["/srv/*.db"]);
    }

    #[test]
    fn an_executable_that_no_rule_can_relax_is_known_beforehand() {
        let text =
            "[[rule]]\nexe='a*'\nuntil='now'\n[[rule]]\nexe='ab'\nuntil='1s'\n[[rule]]\nexe='/x/c'";
        let set = RuleSet::from_toml(text).unwrap();
        assert!(!set.could_relax_exe(b"/bin/a"));
        assert!(set.could_relax_exe(b"/bin/ab"));
        assert!(set.could_relax_exe(b"/x/c"));
        assert!(!set.could_relax_exe(b"/y/c"));
    }

    #[test]
    fn what_the_rules_ask_for_is_told() {
        assert!(set().asks_for_user() && set().asks_for_path());
        assert!(!RuleSet::default().asks_for_user() && !RuleSet::default().asks_for_path());
        assert_eq!(set().dials(), [Until::Now, Until::Exit, Until::Never]);
    }
}
