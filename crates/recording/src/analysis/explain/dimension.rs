//! What requests can have in common: dimensions and their values.
//!
//! A family is a number for each request (its file, its process, how many were in flight); all that
//! follows from that number (directory, device, executable) is a dimension of it. So requests are
//! counted once a family, and a dimension is counted from its numbers.
//!
//! A request can have several values of one dimension: it lies in all directories above its file,
//! and with 9 requests in flight there are at least 4 and at least 8.

use std::collections::HashMap;
use std::hash::Hash;

/// No value.
pub const NONE: u32 = u32::MAX;

/// How far a dimension may go in an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Where, who, what, when: it was there before the request was slow.
    Cause,
    /// When, for all requests of a moment alike: those that wait behind a slow one are at that
    /// time, too, and what counts is how often the time has come.
    Time,
    /// The state of things at its start, to which slow requests contribute themselves: told apart
    /// from what merely waits behind a slow one, and named only where it explains much more.
    State,
    /// What slow requests bring about: shown beside, never as a cause.
    Sign,
}

/// Which values a number of a family has.
pub enum Members {
    /// The number itself.
    Same,
    /// One at most.
    One(Vec<u32>),
    /// Several.
    Many(Vec<Vec<u32>>),
    /// A node of a tree, and all those above it.
    Tree {
        /// The node of each number.
        node: Vec<u32>,
        /// The node above each node.
        above: Vec<u32>,
        /// Nodes that are no value: the same set as another one.
        hidden: Vec<bool>,
    },
}

/// A dimension.
pub struct Dimension<'a> {
    /// Its name, as in the JSON.
    pub key: &'static str,
    /// How far it may go.
    pub tier: Tier,
    /// How many values it has.
    pub values: usize,
    /// Which numbers have which.
    pub members: Members,
    /// How many values there were to choose from for each that is one.
    pub chosen_from: f64,
    /// A value in words.
    pub label: Box<dyn Fn(u32) -> String + 'a>,
}

impl<'a> Dimension<'a> {
    /// One with one value at most for each number.
    pub fn new(
        key: &'static str,
        tier: Tier,
        members: Members,
        labels: Vec<impl AsRef<str> + 'a>,
    ) -> Dimension<'a> {
        Dimension {
            key,
            tier,
            values: labels.len(),
            members,
            chosen_from: 1.0,
            label: Box::new(move |v| {
                let label = labels.get(v as usize);
                label.map_or(String::new(), |l| l.as_ref().to_owned())
            }),
        }
    }

    /// Gives each value of a number to `take`.
    pub fn each(&self, number: u32, mut take: impl FnMut(u32)) {
        match &self.members {
            Members::Same => take(number),
            Members::One(values) => {
                let value = values[number as usize];
                if value != NONE {
                    take(value);
                }
            }
            Members::Many(values) => values[number as usize].iter().for_each(|v| take(*v)),
            Members::Tree {
                node,
                above,
                hidden,
            } => {
                let mut at = node[number as usize];
                while at != NONE {
                    if !hidden[at as usize] {
                        take(at);
                    }
                    at = above[at as usize];
                }
            }
        }
    }

    /// Adds up for each value what there is for each number.
    pub fn add_up(&self, numbers: &[u32]) -> Vec<u32> {
        let mut sums = vec![0u32; self.values];
        for (number, n) in (0u32..).zip(numbers) {
            if *n > 0 {
                self.each(number, |v| sums[v as usize] += n);
            }
        }
        sums
    }

    /// For each of `count` numbers, whether it has this value.
    pub fn having(&self, value: u32, count: usize) -> Vec<bool> {
        let mut has = vec![false; count];
        for (number, has) in (0u32..).zip(&mut has) {
            self.each(number, |v| *has |= v == value);
        }
        has
    }
}

/// Dimensions that follow from one number of each request.
pub struct Family<'a> {
    /// For each request its number, or [`NONE`].
    pub numbers: Vec<u32>,
    /// How many numbers there are.
    pub count: usize,
    /// What follows from them.
    pub dimensions: Vec<Dimension<'a>>,
}

impl<'a> Family<'a> {
    /// A family whose numbers are the values.
    pub fn simple(
        key: &'static str,
        tier: Tier,
        numbers: Vec<u32>,
        labels: Vec<impl AsRef<str> + 'a>,
    ) -> Family<'a> {
        Family {
            numbers,
            count: labels.len(),
            dimensions: vec![Dimension::new(key, tier, Members::Same, labels)],
        }
    }

    /// A family of steps: a number says how many of the steps are reached; a value is a step and
    /// what lies above it.
    pub fn steps(
        key: &'static str,
        tier: Tier,
        numbers: Vec<u32>,
        labels: Vec<String>,
    ) -> Family<'a> {
        let count = labels.len() + 1;
        let reached = (0..count as u32).map(|n| (0..n).collect()).collect();
        Family {
            numbers,
            count,
            dimensions: vec![Dimension::new(key, tier, Members::Many(reached), labels)],
        }
    }
}

/// Gives each different key a number; the empty text and the like have none.
pub struct Numbered<K> {
    ids: HashMap<K, u32>,
    /// The keys by number.
    pub keys: Vec<K>,
}

impl<K: Hash + Eq + Clone> Numbered<K> {
    /// Without any.
    pub fn new() -> Numbered<K> {
        Numbered {
            ids: HashMap::new(),
            keys: Vec::new(),
        }
    }

    /// The number of a key.
    pub fn id(&mut self, key: K) -> u32 {
        let next = self.keys.len() as u32;
        let keys = &mut self.keys;
        *self.ids.entry(key).or_insert_with_key(|key| {
            keys.push(key.clone());
            next
        })
    }

    /// The number of a key that has one.
    pub fn known(&self, key: &K) -> Option<u32> {
        self.ids.get(key).copied()
    }
}

/// Numbers for texts; none for an empty one.
pub fn numbered<'a>(texts: impl Iterator<Item = &'a str>) -> (Vec<u32>, Vec<&'a str>) {
    let mut known = Numbered::new();
    let numbers = texts
        .map(|text| match text {
            "" => NONE,
            some => known.id(some),
        })
        .collect();
    (numbers, known.keys)
}
