//! The search: all values of all dimensions, then pairs of them, then what remains of each beside
//! the stronger ones.
//!
//! What is tried is chosen by how common a value is, never by how slow: so the correction for the
//! number of hypotheses is an honest one. It is Bonferroni's with weights: half for single values
//! and half for pairs; in each half every dimension (or pair of them) has the same part, which
//! its values share. So one of two devices has not to be as certain as one of a thousand
//! processes. Which of them are looked at closely is chosen by their counts; who fails there
//! would fail the closer look as well, since that only makes probabilities greater.

use super::candidate::{other_names, rank, sort, Candidate, Figures, Name, SAME};
use super::dimension::{Dimension, Family, Tier};
use super::flow::Followers;
use super::odds::{ln_tail, lower_bound};
use super::set::Set;
use super::slow::Requests;
use super::trial::{is_large, trial, trial_of_times, Evidence};
use super::{flow, machine, period, place, what};

/// The greatest probability, after correction, at which something is named.
const P_MAX: f64 = 0.01;
/// A value is tried where it could cover at least this share of the slow requests.
const COVERAGE_MIN: f64 = 0.05;
/// A value is tried with at least this many requests inside, and as many outside.
const REQUESTS_MIN: u64 = 10;
/// Values that are looked at closely, of all dimensions together.
const CLOSELY: usize = 128;
/// Values that can be part of a pair: those that stand out, and the most common of a dimension.
const STANDING_OUT: usize = 48;
const COMMON: usize = 6;
/// Pairs that are looked at closely.
const PAIRS: usize = 24;
/// How much more a pair has to tell than either of its parts.
const PAIR_GAIN: f64 = 1.2;
/// Words of a set that pairs are compared by at first.
const PAIR_WORDS: usize = 4096;
/// What a state of things has to tell more than what was there before: twice as much.
const STATE_WEIGHT: f64 = 0.5;
/// How many times as often followers have to be slow as others, to be followers.
const QUEUE_RATIO: f64 = 2.0;
/// Slow requests that are no followers, without which all have to be witnesses.
const LEADERS_MIN: u64 = 12;
/// Causes, what they explain, and signs, at most.
const CAUSES: usize = 5;
const BESIDE: usize = 3;
/// Values of signs that are looked at closely.
const SIGNS: usize = 24;

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// Causes: those that were known, then the others, the one that tells most first.
    pub causes: Vec<Candidate>,
    /// What looked like a cause, and which cause explains it.
    pub explained: Vec<Candidate>,
    /// What comes with slow requests without being their cause.
    pub signs: Vec<Candidate>,
    /// Dimensions that had a value to try.
    pub dimensions: usize,
    /// Values that were tried.
    pub values: u64,
    /// Times that come back, of which one became a value.
    pub times: u64,
    /// Whether pairs of them were.
    pub paired: bool,
    /// Slow requests that began while another one was in flight on their device.
    pub followers: u64,
}

impl Found {
    /// Pairs that were tried.
    pub fn pairs(&self) -> u64 {
        if !self.paired {
            return 0;
        }
        self.values.saturating_mul(self.values.saturating_sub(1)) / 2
    }
}

/// A search under way.
struct Search<'r, 'a> {
    requests: &'r Requests<'a>,
    all: Set,
    /// Those by which causes are judged: where requests wait behind slow ones, those that do not.
    leaders: Set,
    /// Those by which states are judged: nothing slow was in flight when they began.
    quiet: Set,
    among: Among,
    known: &'r [Candidate],
    slow: u64,
    looks: usize,
    values: u64,
    times: u64,
    dimensions: usize,
    singles: Vec<Candidate>,
    common: Vec<Candidate>,
    signs: Vec<Candidate>,
}

/// A value that is tried: requests and slow ones inside.
struct Tried {
    value: u32,
    inside: u64,
    slow_inside: u64,
}

/// Which of the requests are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All.
    All,
    /// Those that no cause has that is known, nor wait behind one that has: a strong cause hides
    /// what the others have in common.
    TheRest,
}

/// Searches for what the causes that are `known` do not explain; `looks` is how often this is done
/// for one recording.
pub fn search<'r>(
    requests: &'r Requests<'r>,
    looks: usize,
    known: &'r [Candidate],
    among: Among,
) -> Found {
    let all = match among {
        Among::All => Set::all(&requests.layout),
        Among::TheRest => the_rest(requests, known),
    };
    let followers = Followers::of(requests);
    let mut search = Search {
        requests,
        leaders: leaders(requests, &all, &followers.same),
        quiet: all.without(&followers.any),
        slow: all.common(&requests.slow),
        all,
        among,
        known,
        looks,
        values: 0,
        times: 0,
        dimensions: 0,
        singles: Vec::new(),
        common: Vec::new(),
        signs: Vec::new(),
    };
    search.families();
    let mut found = Found {
        causes: known.to_vec(),
        explained: Vec::new(),
        signs: Vec::new(),
        dimensions: search.dimensions,
        values: search.values,
        times: search.times,
        paired: false,
        followers: followers.same.common(&requests.slow),
    };
    let mut pairs = Vec::new();
    found.paired = !requests.how.is_wider();
    if found.paired {
        pairs = search.pairs();
    }
    search.judge();
    let singles = std::mem::take(&mut search.singles);
    let certain = singles.iter().filter(|c| is_certain(c));
    let mut candidates: Vec<Candidate> = certain.cloned().collect();
    let signs = std::mem::take(&mut search.signs);
    for sign in signs.into_iter().filter(is_certain) {
        let key = sign.parts[0][0].key;
        let known = found.signs.iter().any(|s| s.parts[0][0].key == key);
        if !known && found.signs.len() < BESIDE {
            found.signs.push(sign);
        }
    }
    candidates.extend(pairs);
    sort(&mut candidates);
    search.choose(candidates, &mut found);
    let singles: Vec<&Candidate> = singles.iter().collect();
    for cause in found.causes.iter_mut().skip(known.len()) {
        // Other names need not be certain by themselves.
        if cause.parts.len() == 1 {
            cause.parts[0] = other_names(&singles, cause);
        }
        for names in &mut cause.parts {
            names.sort_by_key(rank);
        }
    }
    found
}

/// Those that no cause has that is known, nor wait behind one that has.
fn the_rest(requests: &Requests, known: &[Candidate]) -> Set {
    let mut rest = Set::all(&requests.layout);
    for cause in known {
        rest = rest.without(&cause.set);
        rest = rest.without(&flow::behind(requests, &cause.set));
    }
    rest
}

/// Whether a dimension is what the usual tail is made of: who waits for whom, and what has more
/// to do.
fn is_usual(d: &Dimension) -> bool {
    const WHAT: [&str; 7] = [
        "folder", "name", "kind", "caller", "bytes", "dirty", "before",
    ];
    d.tier == Tier::State || WHAT.contains(&d.key)
}

/// Whether a value of this dimension may be the edge of a cause that is known: a stretch of time,
/// or of sizes, does not end just where it is cut.
fn begins_where_one_ends(d: &Dimension, known: &[Candidate]) -> bool {
    let is_cut = d.tier != Tier::Cause || d.key == "bytes";
    is_cut
        && known.iter().any(|c| match d.tier {
            Tier::Time => c.is_time,
            _ => c.has_key(d.key),
        })
}

/// Requests that are witnesses. Where those that begin while a slow one is in flight on their
/// device are much oftener slow than others, they wait behind it, and witness nothing else.
fn leaders(requests: &Requests, all: &Set, followers: &Set) -> Set {
    let leaders = all.without(followers);
    let slow = &requests.slow;
    let queues = slow_share(followers, slow) > QUEUE_RATIO * slow_share(&leaders, slow);
    if queues && leaders.common(slow) >= LEADERS_MIN {
        leaders
    } else {
        all.clone()
    }
}

/// The share of a set that is slow; 0 of an empty one.
fn slow_share(set: &Set, slow: &Set) -> f64 {
    set.common(slow) as f64 / set.count().max(1) as f64
}

fn is_certain(c: &Candidate) -> bool {
    c.ln_p < P_MAX.ln()
}

impl Search<'_, '_> {
    /// Counts all families, one after the other: their numbers take much room.
    fn families(&mut self) {
        let r = self.requests;
        self.family(&place::family(r));
        self.family(&what::processes(r));
        self.family(&what::kinds(r));
        self.family(&what::callers(r));
        self.family(&what::sizes(r));
        self.family(&what::dirty(r));
        self.family(&what::errors(r));
        what::seconds(r).iter().for_each(|f| self.family(f));
        what::minutes(r).iter().for_each(|f| self.family(f));
        period::period(r, &self.all)
            .iter()
            .for_each(|f| self.family(f));
        self.family(&flow::before(r));
        self.family(&flow::before_on_device(r));
        flow::in_flight(r).iter().for_each(|f| self.family(f));
        self.family(&flow::device_rest(r));
        for which in 0..machine::FAMILIES {
            machine::family(r, which)
                .iter()
                .for_each(|f| self.family(f));
        }
    }

    /// The requests by which a tier is judged.
    fn universe(&self, tier: Tier) -> &Set {
        match tier {
            Tier::Cause => &self.leaders,
            Tier::State => &self.quiet,
            Tier::Time | Tier::Sign => &self.all,
        }
    }

    fn family(&mut self, family: &Family) {
        for tier in [Tier::Cause, Tier::Time, Tier::State, Tier::Sign] {
            if !family.dimensions.iter().any(|d| self.tries(d, tier)) {
                continue;
            }
            let (requests, slow) = self.count(family, tier);
            for d in &family.dimensions {
                if self.tries(d, tier) {
                    self.dimension(family, d, &requests, &slow);
                }
            }
        }
        keep(&mut self.singles, CLOSELY);
        keep(&mut self.signs, SIGNS);
    }

    /// Whether a dimension is of this tier, and its values are tried.
    fn tries(&self, d: &Dimension, tier: Tier) -> bool {
        let wider = self.requests.how.is_wider();
        let is_edge = self.among == Among::TheRest && begins_where_one_ends(d, self.known);
        d.tier == tier && !(wider && is_usual(d)) && !is_edge
    }

    /// Requests and slow ones for each number.
    fn count(&self, family: &Family, tier: Tier) -> (Vec<u32>, Vec<u32>) {
        let r = self.requests;
        let (mut requests, mut slow) = (vec![0u32; family.count], vec![0u32; family.count]);
        let universe = self.universe(tier);
        for block in 0..r.layout.blocks() {
            let words = universe.words(&r.layout, block);
            let slows = r.slow.words(&r.layout, block);
            let first = r.layout.first(block);
            for at in first..r.layout.first(block + 1) {
                let (word, bit) = ((at - first) / 64, (at - first) % 64);
                let number = family.numbers[at] as usize;
                if number < family.count && words[word] >> bit & 1 == 1 {
                    requests[number] += 1;
                    slow[number] += (slows[word] >> bit & 1) as u32;
                }
            }
        }
        (requests, slow)
    }

    fn dimension(&mut self, family: &Family, d: &Dimension, requests: &[u32], slow: &[u32]) {
        let universe = self.universe(d.tier);
        let (total, slow_total) = (universe.count(), universe.common(&self.requests.slow));
        let least = ((slow_total as f64 * COVERAGE_MIN) as u64).max(REQUESTS_MIN);
        let (requests, slow) = (d.add_up(requests), d.add_up(slow));
        let counts = (0u32..).zip(requests.into_iter().zip(slow));
        let tried: Vec<Tried> = counts
            .map(|(value, (inside, slow_inside))| Tried {
                value,
                inside: inside.into(),
                slow_inside: slow_inside.into(),
            })
            .filter(|t| t.inside >= least && total - t.inside >= REQUESTS_MIN)
            .collect();
        self.values += tried.len() as u64;
        self.dimensions += usize::from(!tried.is_empty());
        let ln_values = (tried.len().max(1) as f64 * d.chosen_from).ln();
        if d.chosen_from > 1.0 {
            self.times += (tried.len() as f64 * d.chosen_from) as u64;
        }
        for t in tried.iter().filter(|t| stands_out(t, slow_total, total)) {
            let mut candidate = self.candidate(family, d, t.value);
            candidate.ln_values = ln_values;
            match d.tier {
                Tier::Sign => self.signs.push(candidate),
                _ => self.singles.push(candidate),
            }
        }
        if d.tier == Tier::Sign {
            return;
        }
        let mut usual: Vec<&Tried> = tried.iter().filter(|t| t.inside < total * 9 / 10).collect();
        usual.sort_by_key(|t| std::cmp::Reverse(t.inside));
        for t in usual.iter().take(COMMON) {
            let mut candidate = self.candidate(family, d, t.value);
            candidate.ln_values = ln_values;
            self.common.push(candidate);
        }
    }

    fn candidate(&self, family: &Family, d: &Dimension, value: u32) -> Candidate {
        let has = d.having(value, family.count);
        let set = Set::of(&self.requests.layout, |at| {
            let number = family.numbers[at] as usize;
            has.get(number).copied().unwrap_or(false)
        });
        let name = Name {
            key: d.key,
            value: (d.label)(value),
        };
        self.of_set(vec![vec![name]], d.tier, set)
    }

    /// Counts a set and weighs what it tells.
    fn of_set(&self, parts: Vec<Vec<Name>>, tier: Tier, set: Set) -> Candidate {
        let slow = &self.requests.slow;
        let all = Figures::of(&set, &self.all, slow);
        let judged = Figures::of(&set, self.universe(tier), slow);
        let judged_only = !all.are_large() && judged.are_large();
        // As if all slow requests were like those that are judged.
        let scale = self.slow as f64 / judged.slow.max(1) as f64;
        let scale = match tier {
            Tier::State => STATE_WEIGHT * scale,
            _ => scale,
        };
        Candidate {
            parts,
            tier,
            is_time: tier == Tier::Time,
            ln_values: 0.0,
            set,
            figures: if judged_only { judged } else { all },
            judged_only,
            of_the_rest: self.among == Among::TheRest,
            weight: judged.tell() * scale,
            ln_p: 0.0,
            bound: 0.0,
        }
    }

    fn trial(&self, cells: &[Set], set: &Set, is_time: bool) -> Evidence {
        let r = self.requests;
        let trial = if is_time { trial_of_times } else { trial };
        trial(&r.layout, cells, set, &r.slow)
    }

    /// Tries what stands out among all requests of its universe.
    fn judge(&mut self) {
        let ln_count = self.ln_count(1);
        let mut singles = std::mem::take(&mut self.singles);
        let mut signs = std::mem::take(&mut self.signs);
        for c in singles.iter_mut().chain(&mut signs) {
            let cells = [self.universe(c.tier).clone()];
            let found = self.trial(&cells, &c.set, c.is_time);
            convince(c, &found, ln_count);
        }
        sort(&mut signs);
        (self.singles, self.signs) = (singles, signs);
    }

    /// Logarithm of how many dimensions share the certainty, for values and for pairs; each has
    /// half. Looks with other bounds share it as well.
    fn ln_count(&self, parts: usize) -> f64 {
        let n = self.dimensions.max(2) as f64;
        let looks = self.looks as f64;
        if self.requests.how.is_wider() {
            return (n * looks).ln();
        }
        match parts {
            1 => (2.0 * n * looks).ln(),
            _ => (n * (n - 1.0) * looks).ln(),
        }
    }

    /// Pairs of which each part matters within the other.
    fn pairs(&mut self) -> Vec<Candidate> {
        sort(&mut self.singles);
        let common = std::mem::take(&mut self.common);
        let mut pool: Vec<&Candidate> = self.singles.iter().take(STANDING_OUT).collect();
        for c in &common {
            if !pool.iter().any(|p| p.parts == c.parts) {
                pool.push(c);
            }
        }
        let mut best = self.telling_pairs(&pool);
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut pairs: Vec<Candidate> = Vec::new();
        for (_, i, j) in best.into_iter().take(PAIRS) {
            let (a, b) = (pool[i], pool[j]);
            let set = a.set.and(&b.set);
            if pairs.iter().any(|p| p.set.overlap(&set) >= SAME) {
                continue;
            }
            let mut parts = [a, b].map(|c| other_names(&pool, c)).to_vec();
            // A name tells one thing: the part whose own it is has it.
            let own = [a.parts[0][0].key, b.parts[0][0].key];
            parts[0].retain(|n| n.key != own[1]);
            let first = parts[0].clone();
            parts[1].retain(|n| !first.iter().any(|f| f.key == n.key));
            let mut pair = self.of_set(parts, a.tier.max(b.tier), set);
            pair.ln_values = a.ln_values + b.ln_values;
            pair.is_time = a.is_time || b.is_time;
            let universe = self.universe(pair.tier);
            let tests = [
                (universe.clone(), &pair.set, pair.is_time),
                (universe.and(&a.set), &b.set, b.is_time),
                (universe.and(&b.set), &a.set, a.is_time),
            ];
            let found = tests.map(|(cell, set, is_time)| self.trial(&[cell], set, is_time));
            let weakest = found.iter().max_by(|a, b| a.ln_p.total_cmp(&b.ln_p));
            let weakest = weakest.unwrap_or(&Evidence::NONE);
            convince(&mut pair, weakest, self.ln_count(2));
            let gains = pair.weight >= PAIR_GAIN * a.weight.max(b.weight);
            if gains && is_certain(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// Pairs that tell clearly more than their parts, by what they tell; on a part of the words
    /// where there are many.
    fn telling_pairs(&self, pool: &[&Candidate]) -> Vec<(f64, usize, usize)> {
        let slow = &self.requests.slow;
        let step = self.requests.rows.len().div_ceil(64).div_ceil(PAIR_WORDS);
        let universe = &self.leaders;
        let slow = &slow.and(universe);
        let all = universe.common_of_some(universe, slow, step);
        let least = ((all.1 as f64 * COVERAGE_MIN) as u64).max(REQUESTS_MIN / step as u64);
        let judged: Vec<Set> = pool.iter().map(|c| c.set.and(universe)).collect();
        let alone = judged.iter().map(|set| {
            let inside = set.common_of_some(universe, slow, step);
            (inside.0, tells(inside, all))
        });
        let alone: Vec<(u64, f64)> = alone.collect();
        let mut best = Vec::new();
        for (i, a) in pool.iter().enumerate() {
            for (j, b) in pool.iter().enumerate().skip(i + 1) {
                if a.parts[0][0].key == b.parts[0][0].key {
                    continue;
                }
                let inside = judged[i].common_of_some(&judged[j], slow, step);
                let part = inside.0 < alone[i].0.min(alone[j].0);
                let more = PAIR_GAIN * alone[i].1.max(alone[j].1);
                let told = tells(inside, all);
                if part && inside.0 >= least && told > more.max(5.0) {
                    best.push((told, i, j));
                }
            }
        }
        best
    }

    /// Takes the strongest, and of the others what the stronger ones do not explain.
    fn choose(&self, candidates: Vec<Candidate>, found: &mut Found) {
        for c in candidates {
            let single = c.parts.len() == 1;
            // Another name of the same requests.
            let mut others = found.causes.iter().filter(|k| k.parts.len() == 1);
            if single && others.any(|k| k.set.overlap(&c.set) >= SAME) {
                continue;
            }
            if !found.causes.is_empty() {
                let cells = self.cells(c.tier, &found.causes);
                let left = self.trial(&cells, &c.set, c.is_time);
                if left.ln_p + self.ln_count(c.parts.len()) + c.ln_values >= P_MAX.ln() {
                    if single && found.explained.len() < BESIDE && is_new(&c, found) {
                        found.explained.push(c);
                    }
                    continue;
                }
            }
            if found.causes.len() < CAUSES {
                found.causes.push(c);
            }
        }
    }

    /// The universe of a tier, divided by what is in which cause.
    fn cells(&self, tier: Tier, causes: &[Candidate]) -> Vec<Set> {
        let mut cells = vec![self.universe(tier).clone()];
        for cause in causes {
            let divided = cells
                .iter()
                .flat_map(|cell| [cell.and(&cause.set), cell.without(&cause.set)])
                .filter(|cell| cell.count() > 0);
            cells = divided.collect();
        }
        cells
    }
}

/// How much a set tells, where it has so many requests and slow ones `inside` out of `all`.
fn tells(inside: (u64, u64), all: (u64, u64)) -> f64 {
    let figures = Figures {
        inside: inside.0,
        slow_inside: inside.1,
        total: all.0,
        slow: all.1,
    };
    figures.tell()
}

/// Whether a set has more slow ones than chance puts there, if each were a witness of its own.
fn stands_out(t: &Tried, slow: u64, total: u64) -> bool {
    let (a, n) = (t.slow_inside as f64, t.inside as f64);
    let (s, all) = (slow as f64, total as f64);
    let lift = a * all / (n * s);
    let ratio = (a / n) / ((s - a) / (all - n)).max(1e-12);
    is_large(lift * 1.2, ratio * 1.5) && ln_tail(a, s, n / all) < 1e-3f64.ln()
}

fn convince(c: &mut Candidate, found: &Evidence, ln_count: f64) {
    let ln_count = ln_count + c.ln_values;
    c.ln_p = (found.ln_p + ln_count).min(0.0);
    let level = P_MAX.ln() - ln_count - 2f64.ln();
    let share = (found.hits / found.draws).max(1e-300);
    c.bound = (lower_bound(found.hits, found.draws, level) / share).min(1.0);
}

/// Keeps those that tell most.
fn keep(candidates: &mut Vec<Candidate>, most: usize) {
    sort(candidates);
    candidates.truncate(most);
}

/// Whether nothing of the same dimension is told already.
fn is_new(c: &Candidate, found: &Found) -> bool {
    let key = c.parts[0][0].key;
    let mut told = found.causes.iter().chain(&found.explained);
    !told.any(|k| k.has_key(key))
}
