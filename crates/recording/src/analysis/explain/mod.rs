//! What the slow requests of a recording have in common.
//!
//! Scope: requests for durability that were made for real. Slow is the upper of two modes, else a
//! few that took several times as long as all others, else what lies above p99; or what took
//! longer than was asked for. What is slow by less, or by more, may have another cause: where
//! there are three modes, or a few far above two, each bound is looked at, and behind those few
//! the slowest hundredth; causes are added to those that are named. In a recording of a few
//! thousand requests a hundredth is too small to find much with: where nothing was found, the
//! slowest twentieth and then the tenth are looked at. All looks together have that one chance in
//! a hundred, and these two name only where, by whom and when: the usual tail has reasons of its
//! own, who waits for whom, and that some calls have more to do than others. Each look is
//! repeated without the requests of the causes that it found, and those that waited behind them:
//! a strong cause hides a weak one.
//!
//! Promise: what is named as a cause has at most one chance in a hundred to be none, whatever
//! else was tried, and even though slow requests come in clusters (`trial` says how); it makes
//! slow requests at least half again as common as overall, or twice as common as elsewhere. Names
//! of the same requests (device, mount, directory) are one cause. What a stronger cause explains
//! is not named again. Figures come from every request. Time and memory: some 40 passes over the
//! requests and 16 bytes for each, plus a bit for each of at most 350 values; only which pairs
//! are looked at closely is decided on a part of the requests, of more than a million.
//!
//! How causes are ranked: by the G statistic, how much knowing the cause tells about which
//! requests are slow. It grows with coverage and with lift: half of the requests with all slow
//! ones in it tells more than a quarter with half of them.
//!
//! What it does not do: prove that a cause is one. Who is beside a cause all the time cannot be
//! told apart from it, and is named together with it. A single stretch of bad luck is no cause;
//! it is told as the time in which the slow ones lie together.

mod candidate;
mod dimension;
mod flow;
mod machine;
mod odds;
mod period;
mod place;
mod search;
mod set;
#[cfg(test)]
mod simulated;
mod slow;
#[cfg(test)]
mod tests;
mod trial;
mod what;
mod words;

pub use slow::How;
pub use words::percent;

use crate::record::table::Table;
use candidate::{Candidate, Name};
use search::{search, Among, Found};
use serde::ser::{Serialize, SerializeMap, Serializer};
use slow::Requests;
use synclater_text::number::{counted, seconds};

/// Slow requests without which nothing can be told.
const SLOW_MIN: u64 = 8;
/// Without two modes and without a time that was asked for, nothing is slow that takes less than
/// this many halves of the median.
const EVEN_HALVES: u64 = 3;
/// The share of slow requests that lie together, of which the time is told.
const TOGETHER: f64 = 0.8;
/// The greatest share of all requests in that time.
const TOGETHER_MAX: f64 = 0.2;

/// Dimensions and values, the most useful first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dimensions(pub Vec<(String, String)>);

impl Dimensions {
    fn of(names: &[Name]) -> Dimensions {
        let pairs = names.iter().map(|n| (n.key.to_owned(), n.value.clone()));
        Dimensions(pairs.collect())
    }
}

impl Serialize for Dimensions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// Something that slow requests have in common.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Cause {
    /// Its names: several of one and the same thing, and the parts of a pair.
    pub dimensions: Dimensions,
    /// Of a pair, what each part is; requests have both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pair: Vec<Dimensions>,
    /// The share of slow requests that have it.
    pub coverage: f64,
    /// The share of slow requests among those that have it, over the share among all.
    pub lift: f64,
    /// The least lift that is certain at one in a hundred, for all hypotheses together.
    pub lift_low: f64,
    /// The probability that chance does as much for any of the hypotheses.
    pub p_value: f64,
    /// What took longer is slow, here.
    pub slow_over_ns: u64,
    /// Requests that have it.
    pub requests: u64,
    /// Slow ones among them.
    pub slow: u64,
    /// Whether the figures are of requests only that began while no slow one was in flight (on
    /// their device): those that waited behind one would hide the cause.
    pub leaders_only: bool,
    /// Whether the figures are of those requests only that none of the causes before it has, which
    /// would hide it.
    pub of_the_rest: bool,
    /// The share of slow ones among them.
    pub slow_share: f64,
    /// The share of slow ones among the others.
    pub elsewhere_share: f64,
    /// It in words.
    pub sentence: String,
}

/// The stretch of time in which most slow requests lie.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Together {
    /// When the first of them began, nanoseconds since 1970.
    pub from_ns: i64,
    /// When the last of them began.
    pub to_ns: i64,
    /// Seconds from the first request of the recording to the first of them.
    pub after_s: f64,
    /// Seconds between the first and the last of them.
    pub for_s: f64,
    /// How many slow requests lie in it.
    pub slow: u64,
    /// How many requests.
    pub requests: u64,
}

/// What the slow requests of a recording have in common.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Explanation {
    /// Of this form: 1.
    pub version: u32,
    /// A request is slow that took longer.
    pub slow_over_ns: u64,
    /// Why that.
    pub how: How,
    /// Slow requests.
    pub slow: u64,
    /// Requests that were looked at: for durability, made for real, of known duration.
    pub total: u64,
    /// Their median, 0 without any.
    pub median_ns: u64,
    /// Requests of the recording that were not looked at.
    pub left_out: u64,
    /// Requests that rings lost, which the recording does not hold.
    pub lost: u64,
    /// What the recording does not hold besides; absent where it is whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// What they have in common, the strongest first.
    pub causes: Vec<Cause>,
    /// What looked like a cause and is explained by one that is named.
    pub explained: Vec<Cause>,
    /// What comes with slow requests, but rather from them than the other way round.
    pub signs: Vec<Cause>,
    /// Slow requests that began while another slow one was in flight on their device.
    pub behind_another: u64,
    /// The time in which most of them lie, where it is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
    /// Hypotheses that were tried: values, and pairs of them.
    pub tried: u64,
    /// Values among them.
    pub tried_values: u64,
    /// Periods, each with its stretches, of which the best is one of these values.
    pub tried_times: u64,
    /// Dimensions that had values to try.
    pub tried_dimensions: u64,
    /// Why no cause is named; absent where one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nothing: Option<String>,
}

/// Explains; `slower` is the duration in nanoseconds above which requests count as slow.
#[must_use]
pub fn explain(table: &Table, slower: Option<u64>) -> Explanation {
    let mut requests = Requests::of(table, slower);
    let mut all = unexplained(&requests);
    if all.nothing.is_some() {
        return all;
    }
    let more = std::mem::take(&mut requests.more);
    // Each among all, and among the rest.
    let looks = 2 * (1 + more.len());
    let mut known = tell_all(&mut all, &requests, looks, &[]);
    for (over_ns, how) in more {
        let is_enough = how.is_wider() && !known.is_empty();
        if is_enough || is_even(over_ns, requests.median_ns) {
            continue;
        }
        requests.look(over_ns, how);
        let mut look = unexplained(&requests);
        let found = tell_all(&mut look, &requests, looks, &known);
        if known.is_empty() && !found.is_empty() {
            all = look;
        } else {
            all.causes.append(&mut look.causes);
        }
        known = found;
    }
    all
}

/// What is known without a search.
fn unexplained(requests: &Requests) -> Explanation {
    let table = requests.table;
    let slow = requests.slow.count();
    let total = requests.rows.len() as u64;
    Explanation {
        version: 1,
        slow_over_ns: requests.over_ns,
        how: requests.how,
        slow,
        total,
        median_ns: requests.median_ns,
        left_out: (table.rows.len() as u64).saturating_sub(total),
        lost: table.lost.values().fold(0, |sum, n| sum.saturating_add(*n)),
        incomplete: None,
        causes: Vec::new(),
        explained: Vec::new(),
        signs: Vec::new(),
        behind_another: 0,
        together: None,
        tried: 0,
        tried_values: 0,
        tried_times: 0,
        tried_dimensions: 0,
        nothing: too_little(requests, slow),
    }
}

/// Adds what a search finds besides what is `known`; gives both.
fn tell_all(
    all: &mut Explanation,
    requests: &Requests,
    looks: usize,
    known: &[Candidate],
) -> Vec<Candidate> {
    let found = search(requests, looks, known, Among::All);
    all.explained = tell_each(&found.explained, requests.over_ns);
    all.signs = tell_each(&found.signs, requests.over_ns);
    all.behind_another = found.followers;
    all.together = together(requests, all.slow);
    all.tried_values = found.values;
    all.tried_dimensions = found.dimensions as u64;
    all.tried_times = found.times;
    all.tried = found.values.saturating_add(found.pairs());
    all.nothing = nothing(&found, all.slow);
    let mut causes = found.causes;
    if !causes.is_empty() && !requests.how.is_wider() {
        causes = search(requests, looks, &causes, Among::TheRest).causes;
    }
    all.causes = tell_each(&causes[known.len()..], requests.over_ns);
    causes
}

/// Whether what lies above this is not worth a search.
fn is_even(over_ns: u64, median_ns: u64) -> bool {
    over_ns < (median_ns / 2).saturating_mul(EVEN_HALVES)
}

/// Why there is nothing to look for.
fn too_little(requests: &Requests, slow: u64) -> Option<String> {
    let total = requests.rows.len() as u64;
    let over = seconds(requests.over_ns as f64 / 1e9);
    if total == 0 {
        return Some("nothing to explain: it has no request that was made for real".into());
    }
    if slow == 0 && requests.how == How::OverTheGivenTime {
        let of = counted(total, "request");
        return Some(format!("nothing to explain: none of {of} took over {over}"));
    }
    let even = is_even(requests.over_ns, requests.median_ns);
    if requests.how == How::AboveP99 && even {
        let median = seconds(requests.median_ns as f64 / 1e9);
        return Some(format!(
            "nothing to explain: the requests are even; 99 of 100 took {over} or less, where the \
             median is {median}"
        ));
    }
    if slow == total {
        return Some(format!("nothing to compare with: all took over {over}"));
    }
    (slow < SLOW_MIN).then(|| {
        let slow = counted(slow, "slow request");
        format!("too few to tell: {slow}; a longer recording, or a smaller `--slower`, has more")
    })
}

fn nothing(found: &Found, slow: u64) -> Option<String> {
    found.causes.is_empty().then(|| {
        let slow = counted(slow, "slow request");
        format!(
            "nothing in common: the {slow} are spread over files, devices, processes and time as \
             all others are"
        )
    })
}

fn tell_each(candidates: &[Candidate], over_ns: u64) -> Vec<Cause> {
    candidates.iter().map(|c| tell(c, over_ns)).collect()
}

fn tell(c: &Candidate, over_ns: u64) -> Cause {
    let f = &c.figures;
    let coverage = f.slow_inside as f64 / f.slow.max(1) as f64;
    let (slow_share, elsewhere_share, lift) = f.shares();
    let sentence = format!(
        "{} of the {}slow syncs (over {}){} {}: there {} are slow, elsewhere {}.{}",
        percent(coverage),
        if c.of_the_rest { "other " } else { "" },
        seconds(over_ns as f64 / 1e9),
        if c.judged_only {
            " that began while no other slow one was in flight"
        } else {
            ""
        },
        words::all_did(&c.parts),
        percent(slow_share),
        percent(elsewhere_share),
        words::not_told_apart(&c.parts),
    );
    Cause {
        dimensions: Dimensions::of(&c.parts.concat()),
        pair: match &c.parts[..] {
            [a, b] => vec![Dimensions::of(a), Dimensions::of(b)],
            _ => Vec::new(),
        },
        coverage,
        lift,
        lift_low: lift * c.bound,
        p_value: c.ln_p.exp().max(f64::MIN_POSITIVE),
        slow_over_ns: over_ns,
        requests: f.inside,
        slow: f.slow_inside,
        leaders_only: c.judged_only,
        of_the_rest: c.of_the_rest,
        slow_share,
        elsewhere_share,
        sentence,
    }
}

/// The shortest run of requests with most slow ones in it, where it is short.
fn together(requests: &Requests, slow: u64) -> Option<Together> {
    let total = requests.rows.len();
    let places: Vec<usize> = (0..total).filter(|at| requests.is_slow(*at)).collect();
    if places.is_empty() {
        return None;
    }
    let most = ((slow as f64 * TOGETHER).ceil() as usize).clamp(1, places.len());
    let run = places.windows(most).min_by_key(|w| w[most - 1] - w[0])?;
    let (first, last) = (run[0], run[most - 1]);
    let length = last - first + 1;
    let short = length as f64 <= total as f64 * TOGETHER_MAX;
    let (from_ns, to_ns) = (requests.began(first), requests.began(last));
    short.then(|| Together {
        from_ns,
        to_ns,
        after_s: from_ns.saturating_sub(requests.began(0)) as f64 / 1e9,
        for_s: to_ns.saturating_sub(from_ns) as f64 / 1e9,
        slow: most as u64,
        requests: length as u64,
    })
}
