//! What may be a cause: its names, its requests, its figures.

use super::dimension::Tier;
use super::odds::information;
use super::set::Set;
use super::trial::is_large;

/// Overlap from which two sets are one cause with two names.
pub const SAME: f64 = 0.9;

/// A value of a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The dimension.
    pub key: &'static str,
    /// The value in words.
    pub value: String,
}

/// Something that requests have in common.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// For each part (one, or two of a pair) its names, the most useful first.
    pub parts: Vec<Vec<Name>>,
    /// How far it may go.
    pub tier: Tier,
    /// Whether a part of it is a [`Tier::Time`]: it is compared across time.
    pub is_time: bool,
    /// Logarithm of how many hypotheses count for as much in its dimension.
    pub ln_values: f64,
    /// The requests that have it.
    pub set: Set,
    /// Of all requests, or of those by which it is judged where the others blur it.
    pub figures: Figures,
    /// Whether the figures are of those only.
    pub judged_only: bool,
    /// Whether they are of those only that no stronger cause has.
    pub of_the_rest: bool,
    /// How much it tells.
    pub weight: f64,
    /// Logarithm of the probability of chance, corrected.
    pub ln_p: f64,
    /// The least share of slow requests in it that is as certain, over the share found.
    pub bound: f64,
}

impl Candidate {
    /// Whether a name of it is a value of this dimension.
    pub fn has_key(&self, key: &str) -> bool {
        self.parts.iter().flatten().any(|name| name.key == key)
    }
}

/// How many requests lie inside of how many, and how many are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Requests that have it.
    pub inside: u64,
    /// Slow ones among them.
    pub slow_inside: u64,
    /// Requests.
    pub total: u64,
    /// Slow ones.
    pub slow: u64,
}

impl Figures {
    /// Counts a set within a universe.
    pub fn of(set: &Set, universe: &Set, slow: &Set) -> Figures {
        Figures {
            inside: set.common(universe),
            slow_inside: set.common_of_three(universe, slow),
            total: universe.count(),
            slow: universe.common(slow),
        }
    }

    /// The share of slow ones inside and outside, and inside over overall.
    pub fn shares(&self) -> (f64, f64, f64) {
        let inside = share(self.slow_inside, self.inside);
        let (slow, total) = (self.slow - self.slow_inside, self.total - self.inside);
        let overall = share(self.slow, self.total).max(f64::MIN_POSITIVE);
        (inside, share(slow, total), inside / overall)
    }

    /// Whether that is a difference worth a word.
    pub fn are_large(&self) -> bool {
        let (inside, outside, lift) = self.shares();
        is_large(lift, inside / outside.max(1e-12))
    }

    /// How much it tells about which are slow.
    pub fn tell(&self) -> f64 {
        let [a, i, s, t] = [self.slow_inside, self.inside, self.slow, self.total];
        information(a as f64, i as f64, s as f64, t as f64)
    }
}

/// The share of `part` in `whole`; 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// The order in which names of the same thing are told.
const KEYS: [&str; 28] = [
    "device",
    "mount",
    "server",
    "parent",
    "directory",
    "folder",
    "file",
    "name",
    "fstype",
    "exe",
    "pid",
    "command",
    "user",
    "kind",
    "caller",
    "bytes",
    "dirty",
    "before",
    "second",
    "minute",
    "period",
    "in_flight_on_device",
    "in_flight",
    "device_rest",
    "before_on_device",
    "writes_per_s",
    "reads_per_s",
    "dirty_bytes",
];

/// The place of a name among those of the same thing.
pub fn rank(name: &Name) -> usize {
    let at = KEYS.iter().position(|k| *k == name.key);
    at.unwrap_or(KEYS.len())
}

/// Those that tell most first.
pub fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by(|a, b| b.weight.total_cmp(&a.weight));
}

/// All names of the same requests as those of one, its own first.
pub fn other_names(pool: &[&Candidate], part: &Candidate) -> Vec<Name> {
    let mut names = part.parts[0].clone();
    for c in pool {
        let other = &c.parts[0][0];
        let known = names.iter().any(|n| n.key == other.key);
        let inside = part.figures.inside;
        let near = c.figures.inside.abs_diff(inside) * 5 <= inside;
        if !known && near && c.set.overlap(&part.set) >= SAME {
            names.push(other.clone());
        }
    }
    names
}
