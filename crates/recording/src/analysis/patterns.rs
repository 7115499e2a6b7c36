//! What paths have in common: `/srv/mail/*/tmp/#.M#P#.mail1`.
//!
//! Runs of digits become `#`. Where a folder holds more than [`NAMES_MAX`] different names even so,
//! they become `*`, with their ending where the folder has few of these. So the files of one
//! purpose have one pattern, and the few files of a database keep their names.

use std::collections::HashMap;

/// A folder with more names than this has names of no meaning.
pub const NAMES_MAX: usize = 16;

/// A folder with more endings than this has endings of no meaning.
const ENDINGS_MAX: usize = 4;

/// Patterns of paths, in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns {
    /// For each path, which pattern it has.
    pub of: Vec<u32>,
    /// The patterns.
    pub texts: Vec<String>,
}

/// A name with each run of digits written as `#`.
fn without_digits(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if !c.is_ascii_digit() {
            text.push(c);
        } else if !text.ends_with('#') {
            text.push('#');
        }
    }
    text
}

/// The ending of a name with its dot, or nothing.
fn ending(name: &str) -> &str {
    match name.rfind('.') {
        Some(dot) if dot > 0 => &name[dot..],
        _ => "",
    }
}

/// A folder, or a file, while patterns are made.
struct Node {
    text: String,
    /// Names below it, each with its node.
    below: HashMap<String, u32>,
}

/// A tree of names, made one level after the other.
struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    fn child(&mut self, parent: u32, name: String) -> u32 {
        let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let known = self.nodes[parent as usize].below.get(&name);
        if let Some(known) = known {
            return *known;
        }
        let text = match parent {
            0 => name.clone(),
            _ => format!("{}/{name}", self.nodes[parent as usize].text),
        };
        self.nodes.push(Node {
            text,
            below: HashMap::new(),
        });
        self.nodes[parent as usize].below.insert(name, next);
        next
    }
}

/// What one level of one folder holds, until it is too much.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    endings: Vec<String>,
}

impl Names {
    fn note(&mut self, name: String) {
        if self.are_too_many() || self.names.contains(&name) {
            return;
        }
        let ending = ending(&name);
        if self.endings.len() <= ENDINGS_MAX && !self.endings.iter().any(|e| e == ending) {
            self.endings.push(ending.to_owned());
        }
        self.names.push(name);
    }

    fn are_too_many(&self) -> bool {
        self.names.len() > NAMES_MAX
    }

    /// What a name is written as.
    fn pattern(&self, name: String) -> String {
        if !self.are_too_many() {
            return name;
        }
        let ending = ending(&name);
        if self.endings.len() <= ENDINGS_MAX && self.endings.iter().any(|e| e == ending) {
            format!("*{ending}")
        } else {
            "*".to_owned()
        }
    }
}

impl Patterns {
    /// Of paths; an empty one has the empty pattern.
    #[must_use]
    pub fn of<'a>(paths: impl Iterator<Item = &'a str>) -> Patterns {
        let root = Node {
            text: String::new(),
            below: HashMap::new(),
        };
        let mut tree = Tree { nodes: vec![root] };
        // Where each path has got to, and what is left of it.
        let mut at: Vec<(u32, Option<&str>)> = paths.map(|p| (0, Some(p))).collect();
        loop {
            let mut levels: HashMap<u32, Names> = HashMap::new();
            for (node, rest) in &at {
                if let Some(rest) = rest {
                    let name = rest.split('/').next().unwrap_or("");
                    levels.entry(*node).or_default().note(without_digits(name));
                }
            }
            if levels.is_empty() {
                break;
            }
            for (node, rest) in &mut at {
                let Some(path) = *rest else { continue };
                let (name, below) = match path.split_once('/') {
                    Some((name, below)) => (name, Some(below)),
                    None => (path, None),
                };
                let name = levels[node].pattern(without_digits(name));
                *node = tree.child(*node, name);
                *rest = below;
            }
        }
        Patterns {
            of: at.iter().map(|(node, _)| *node).collect(),
            texts: tree.nodes.into_iter().map(|n| n.text).collect(),
        }
    }

    /// The pattern of path `index`.
    #[must_use]
    pub fn text(&self, index: u32) -> &str {
        let pattern = self.of.get(index as usize);
        pattern.map_or("", |p| self.texts[*p as usize].as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn patterns(paths: &[String]) -> Vec<String> {
        let p = Patterns::of(paths.iter().map(String::as_str));
        (0..paths.len() as u32)
            .map(|k| p.text(k).to_owned())
            .collect()
    }

    #[test]
    fn files_of_a_maildir_have_one_pattern_and_those_of_a_database_their_names() {
        let user = |k: usize| ["anna", "bert", "carl"][k % 3];
        let paths: Vec<String> = (0..60)
            .map(|k| format!("/srv/{}/tmp/17{k}.M{k}P8.mail1", user(k)))
            .chain([
                "/var/lib/x/pg_wal".to_owned(),
                "/var/lib/x/pg_wal/0000A1".to_owned(),
            ])
            .collect();
        let found = patterns(&paths);
        assert_eq!(found[0], "/srv/anna/tmp/#.M#P#.mail#");
        assert_eq!(found[0], found[3]);
        assert_eq!(found[60..], ["/var/lib/x/pg_wal", "/var/lib/x/pg_wal/#A#"]);
    }

    #[test]
    fn a_folder_of_many_names_has_one_pattern_with_their_ending() {
        let letters = |k: u8| format!("{}{}", (b'a' + k / 26) as char, (b'a' + k % 26) as char);
        let same: Vec<String> = (0..40).map(|k| format!("/q/{}.msg", letters(k))).collect();
        assert!(patterns(&same).iter().all(|p| p == "/q/*.msg"));
        let users: Vec<String> = (0..40).map(|k| format!("/q/{}/new", letters(k))).collect();
        assert!(patterns(&users).iter().all(|p| p == "/q/*/new"));
    }

    proptest! {
        #[test]
        fn every_path_has_a_pattern_of_its_own_depth(
            paths in proptest::collection::vec("(/[a-z0-9.]{0,3}){0,4}", 0..60)
        ) {
            for (path, pattern) in paths.iter().zip(patterns(&paths)) {
                prop_assert_eq!(path.matches('/').count(), pattern.matches('/').count());
            }
        }
    }
}
