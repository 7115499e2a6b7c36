//! Rules as the shim reads them: fixed records, then uids and strings, behind the page's fixed
//! part.

use std::collections::BTreeMap;
use std::ops::Range;
use synclater_policy::dial::Until;
use synclater_policy::glob::{Glob, Mode};
use synclater_policy::rules::{self, RuleSet};
use synclater_shim::page::{self, Page, Rule};

/// Rules ready to be laid behind the page.
#[derive(Debug, Default)]
pub struct Compiled {
    /// What follows the fixed part.
    pub bytes: Vec<u8>,
    /// How many rules.
    pub count: u32,
    /// What the rules look at, `NEEDS_*`.
    pub needs: u32,
    /// Bit c: class c is at `now`.
    pub now_mask: u32,
    /// The dial of each class; class 0 is the session's own.
    pub classes: Vec<Until>,
}

/// Users by name and number, to resolve the globs of `user`.
#[derive(Clone, Default)]
pub struct Users(Vec<(String, u32)>);

impl Users {
    /// The users that /etc/passwd names. Others can be given by number.
    #[must_use]
    pub fn of_this_machine() -> Users {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Users(text.lines().filter_map(user_of_line).collect())
    }

    /// The same where these rules ask for users, else none.
    #[must_use]
    pub fn asked_for_by(rules: Option<&RuleSet>) -> Users {
        let asked = rules.is_some_and(RuleSet::asks_for_user);
        if asked {
            Users::of_this_machine()
        } else {
            Users::default()
        }
    }

    /// The name of a user, else the number.
    #[must_use]
    pub fn name(&self, uid: u32) -> String {
        let found = self.0.iter().find(|(_, u)| *u == uid);
        found.map_or_else(|| uid.to_string(), |(name, _)| name.clone())
    }

    /// Whether a glob of `user` is about this user.
    #[must_use]
    pub fn fit(&self, pattern: &str, uid: u32) -> bool {
        self.matching(pattern).contains(&uid)
    }

    /// Whether a glob of `user` is about anybody: a number is.
    #[must_use]
    pub fn have(&self, pattern: &str) -> bool {
        !self.matching(pattern).is_empty()
    }

    fn matching(&self, pattern: &str) -> Vec<u32> {
        let Ok(glob) = Glob::new(pattern, Mode::Name) else {
            return Vec::new();
        };
        let mut uids: Vec<u32> = pattern.parse().into_iter().collect();
        uids.extend(
            self.0
                .iter()
                .filter(|(n, u)| {
                    glob.matches(n.as_bytes()) || glob.matches(u.to_string().as_bytes())
                })
                .map(|(_, u)| *u),
        );
        uids.sort_unstable();
        uids.dedup();
        uids
    }
}

/// The name and the number that a line of /etc/passwd begins with.
fn user_of_line(line: &str) -> Option<(String, u32)> {
    let mut fields = line.split(':');
    Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
}

/// Compiles `rules`; a rule without a dial of its own follows the session's (class 0).
#[must_use]
pub fn compile(rules: &RuleSet, base: Until, users: &Users) -> Compiled {
    let mut c = Compiled {
        classes: classes(rules, base),
        ..Compiled::default()
    };
    c.now_mask = now_mask(&c.classes);
    let all: Vec<(&rules::Rule, Option<String>)> = rules
        .rules
        .iter()
        .flat_map(|rule| {
            for_each_path(rule)
                .into_iter()
                .map(move |path| (rule, path))
        })
        .collect();
    c.count = u32::try_from(all.len()).unwrap_or(0);
    let mut tail = Tail {
        start: size_of::<Page>() + all.len() * size_of::<Rule>(),
        ..Tail::default()
    };
    let mut records = Vec::new();
    for (rule, path) in all {
        let (users_at, user_count) = rule
            .user
            .as_deref()
            .map_or((0, 0), |g| tail.users(&users.matching(g)));
        let exe = rule.exe.as_deref().map_or(0, |g| tail.string(g));
        let path = path.map_or(0, |g| tail.string(&g));
        let class = class_of(&c.classes, rule.until);
        records.extend([
            exe,
            path,
            users_at,
            user_count,
            u32::try_from(class).unwrap_or(0),
            0,
        ]);
        let looks = [
            (exe, page::NEEDS_EXE),
            (users_at, page::NEEDS_USER),
            (path, page::NEEDS_PATH),
        ];
        c.needs |= looks
            .iter()
            .filter(|(at, _)| *at != 0)
            .map(|(_, need)| need)
            .sum::<u32>()
            & !c.needs;
    }
    c.bytes = records
        .iter()
        .flat_map(|w| w.to_ne_bytes())
        .chain(tail.bytes)
        .collect();
    c
}

/// Which of the page's rules each of these is.
#[must_use]
pub fn places(rules: &RuleSet) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut end = 0;
    for rule in &rules.rules {
        let first = end;
        end += for_each_path(rule).len();
        places.push(first..end);
    }
    places
}

/// What a rule is about, path by path: `None` is any.
fn for_each_path(rule: &rules::Rule) -> Vec<Option<String>> {
    match &rule.path {
        None => vec![None],
        Some(glob) => rules::path_globs(glob).into_iter().map(Some).collect(),
    }
}

/// The dial of each class: the session's own, `base`, and those that the rules name.
#[must_use]
pub fn classes(rules: &RuleSet, base: Until) -> Vec<Until> {
    std::iter::once(base).chain(rules.dials()).collect()
}

/// The class of a rule with a dial of its own, or without.
#[must_use]
pub fn class_of(classes: &[Until], until: Option<Until>) -> usize {
    until.map_or(0, |own| {
        classes[1..].iter().position(|u| *u == own).unwrap_or(0) + 1
    })
}

/// Bit c is set where class c is at `now`.
#[must_use]
pub fn now_mask(classes: &[Until]) -> u32 {
    classes
        .iter()
        .enumerate()
        .filter(|(_, u)| **u == Until::Now)
        .map(|(c, _)| 1 << c)
        .sum()
}

#[derive(Default)]
struct Tail {
    start: usize,
    bytes: Vec<u8>,
    known: BTreeMap<String, u32>,
}

impl Tail {
    fn here(&self) -> u32 {
        u32::try_from(self.start + self.bytes.len()).unwrap_or(0)
    }

    fn string(&mut self, text: &str) -> u32 {
        if let Some(at) = self.known.get(text) {
            return *at;
        }
        let at = self.here();
        self.bytes.extend(text.bytes().chain([0]));
        self.known.insert(text.to_owned(), at);
        at
    }

    fn users(&mut self, uids: &[u32]) -> (u32, u32) {
        while !(self.start + self.bytes.len()).is_multiple_of(4) {
            self.bytes.push(0);
        }
        let at = self.here();
        self.bytes.extend(uids.iter().flat_map(|u| u.to_ne_bytes()));
        // A glob that fits nobody still must not match everybody: its offset is not 0.
        (at, u32::try_from(uids.len()).unwrap_or(0))
    }
}
