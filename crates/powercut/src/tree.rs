//! What lies in a folder, small enough to be kept for each acknowledgement, and what differs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use synclater_text::number::{bytes, counted};

/// Bytes of a block, by which contents are compared.
pub const BLOCK: usize = 4096;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file: its length, and a hash of each block.
    File(u64, Vec<u64>),
    /// A symbolic link, and where it leads.
    Link(String),
    /// A socket, a pipe, a device.
    Other,
}

impl Entry {
    /// A file with these contents.
    #[must_use]
    pub fn file(contents: &[u8]) -> Entry {
        let blocks = contents.chunks(BLOCK).map(block).collect();
        Entry::File(contents.len() as u64, blocks)
    }
}

/// A number for the contents of a block. What lies behind the end of a file counts as zeros.
#[must_use]
pub fn block(contents: &[u8]) -> u64 {
    let end = contents
        .iter()
        .rposition(|b| *b != 0)
        .map_or(0, |at| at + 1);
    let mut hasher = DefaultHasher::new();
    hasher.write(&contents[..end]);
    hasher.finish()
}

/// Everything below a folder, by its path from there.
pub type Tree = BTreeMap<String, Entry>;

/// Differences that are told, at most.
const TOLD_MAX: usize = 5;

/// In which way a state differs from what should be there, a few words for each path.
#[must_use]
pub fn differences(state: &Tree, wanted: &Tree) -> Vec<String> {
    let mut told = Vec::new();
    for (path, want) in wanted {
        match (state.get(path), want) {
            (None, _) => told.push(format!("{path} is missing")),
            (Some(is), want) if is == want => {}
            (Some(Entry::File(0, _)), Entry::File(..)) => told.push(format!("{path} is empty")),
            (Some(Entry::File(is, _)), Entry::File(want, _)) if is != want => {
                told.push(format!("{path} has {} of {}", bytes(*is), bytes(*want)));
            }
            (Some(Entry::File(_, is)), Entry::File(_, want)) => {
                let other = is.iter().zip(want).filter(|(is, want)| is != want).count();
                let all = counted(want.len() as u64, "block");
                told.push(format!("{path} differs in {other} of {all}"));
            }
            _ => told.push(format!("{path} is something else")),
        }
    }
    let more = state.keys().filter(|path| !wanted.contains_key(*path));
    told.extend(more.map(|path| format!("{path} is still there")));
    if told.len() > TOLD_MAX {
        let more = told.len() - TOLD_MAX;
        told.truncate(TOLD_MAX);
        told.push(format!("and {} more", counted(more as u64, "difference")));
    }
    told
}

/// The paths in which a state differs from what should be there.
#[must_use]
pub fn differing(state: &Tree, wanted: &Tree) -> Vec<String> {
    let lacks = wanted
        .iter()
        .filter(|(path, want)| state.get(*path) != Some(want));
    let more = state.keys().filter(|path| !wanted.contains_key(*path));
    lacks.map(|(path, _)| path).chain(more).cloned().collect()
}

/// Whether a state is far from both neighbours, the moments between which the power was cut: what
/// both of them have is missing, or holds what neither had there. In a sentence.
///
/// What only one of them has may be there or not, in whatever form: it was under way.
#[must_use]
pub fn far(state: &Tree, before: &Tree, after: &Tree) -> Option<String> {
    before.iter().find_map(|(path, a)| {
        let b = after.get(path)?;
        match (state.get(path), a, b) {
            (None, ..) => Some(format!("lost: {path}, which was there before and after")),
            (Some(is), a, b) if is == a || is == b => None,
            (Some(Entry::File(length, is)), Entry::File(al, a), Entry::File(bl, b)) => {
                if length < al.min(bl) || length > al.max(bl) {
                    let (is, al, bl) = (bytes(*length), bytes(*al), bytes(*bl));
                    return Some(format!(
                        "{path} has {is}; it had {al} before and {bl} after"
                    ));
                }
                let mut blocks = 0..is.len();
                let odd = blocks.find(|&n| !is_near(is[n], a.get(n), b.get(n)))?;
                let offset = odd * BLOCK;
                Some(format!(
                    "{path} holds at byte {offset} what it held neither before nor after"
                ))
            }
            _ => Some(format!("{path} is something else than before and after")),
        }
    })
}

/// Whether a block of a file may be there between two moments: it is the one that stands in its
/// place before, or after.
fn is_near(is: u64, before: Option<&u64>, after: Option<&u64>) -> bool {
    // Where it grew, nothing may have been written yet.
    let grew = before.is_none() && is == block(&[]);
    grew || [before, after].contains(&Some(&is))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &[u8])]) -> Tree {
        let entry = |(path, contents): &(&str, &[u8])| ((*path).into(), Entry::file(contents));
        files.iter().map(entry).collect()
    }

    #[test]
    fn each_difference_is_told_in_words() {
        let wanted = tree(&[("a", b"aaa"), ("b", b"bbb"), ("c", b"ccc"), ("d", b"ddd")]);
        let state = tree(&[("b", b""), ("c", b"c"), ("d", b"xxx"), ("e", b"")]);
        let told = differences(&state, &wanted);
        let want = [
            "a is missing",
            "b is empty",
            "c has 1 B of 3 B",
            "d differs in 1 of 1 block",
        ];
        assert_eq!(told[..4], want);
        assert_eq!(told[4], "e is still there");
        assert!(differences(&wanted, &wanted).is_empty());
        assert_eq!(differing(&state, &wanted), ["a", "b", "c", "d", "e"]);
        assert!(differing(&wanted, &wanted).is_empty());
    }

    #[test]
    fn what_lies_between_two_moments_is_near() {
        let block = |b: u8| [b; BLOCK];
        let (old, new) = ([block(1), block(2)].concat(), [block(3), block(4)].concat());
        let mixed = [block(3), block(2)].concat();
        let (before, after) = (
            tree(&[("f", &old), ("j", b"1")]),
            tree(&[("f", &new), ("k", b"1")]),
        );
        for near in [
            tree(&[("f", &old)]),
            tree(&[("f", &new)]),
            tree(&[("f", &mixed), ("j", b"other"), ("k", b"")]),
        ] {
            assert_eq!(far(&near, &before, &after), None);
        }
    }

    #[test]
    fn what_both_neighbours_have_and_the_state_has_not_is_far() {
        let (before, after) = (tree(&[("f", b"one")]), tree(&[("f", b"one"), ("g", b"")]));
        let said = |state: &[(&str, &[u8])]| far(&tree(state), &before, &after);
        assert!(said(&[]).is_some_and(|s| s.starts_with("lost: f")));
        assert!(said(&[("f", b"")]).is_some_and(|s| s.starts_with("f has 0 B")));
        assert!(said(&[("f", b"two")]).is_some_and(|s| s.contains("at byte 0")));
    }
}
