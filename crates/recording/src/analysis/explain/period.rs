//! Times that come back: the period, of 10 seconds to 10 minutes, and the stretch of it in which
//! the slow requests lie most.
//!
//! Many periods and stretches are looked at, and the best of them becomes one value: it counts as
//! many hypotheses as there were to choose from. Requests of one moment are one witness here
//! ([`Tier::Time`]), whoever waited behind whom: what is certain after how long depends on how
//! often the time came back, and on how short it is.
//!
//! What it does not do: tell a second period beside the first, or one that begins anew at other
//! times.

use super::dimension::{Dimension, Family, Members, Tier, NONE};
use super::odds::information;
use super::set::Set;
use super::slow::Requests;
use synclater_text::number::seconds;

const SHORTEST_S: f64 = 10.0;
const LONGEST_S: f64 = 600.0;
/// A period comes back so often at least, in the recording.
const CYCLES_MIN: f64 = 4.0;
/// Parts of a period that are told apart at first.
const ROUGH: usize = 60;
/// Parts that are told apart of the best of them: stretches of a quarter of the length.
const FINE: usize = 240;
/// Lengths of a stretch that are tried, in parts.
const WIDTHS: [usize; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 120];
/// By how much less than a whole turn two neighbouring periods differ at the end.
const FINENESS: f64 = 12.0;
/// What is looked at closely with a period: it, and what has it as a half, a third or a quarter. At
/// first a stretch may be too short to be told from one of those.
const MULTIPLES: [f64; 4] = [1.0, 2.0, 3.0, 4.0];
/// Requests within so much of each other are looked at as one.
const MOMENT_S: f64 = 0.1;
/// Moments with slow requests that are looked at.
const MOMENTS_MAX: usize = 8192;
/// How much of the recording periods are looked for in at first, in seconds.
const FIRST_S: f64 = 4096.0;
/// Periods that are looked at closely.
const CLOSELY: usize = 16;

/// Moments of requests, in seconds since the first one, in order.
struct Moments {
    slow: Vec<f64>,
    all: Vec<f64>,
}

/// A stretch of a period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    period_s: f64,
    /// Where it begins, of the period, and its share of that.
    from: f64,
    share: f64,
    /// How much it tells about which moments are slow.
    tells: f64,
}

impl Stretch {
    fn has(&self, at_s: f64) -> bool {
        (at_s / self.period_s - self.from).rem_euclid(1.0) < self.share
    }

    /// A time in words, as [`super::words::did`] says it.
    fn label(&self) -> String {
        format!(
            "{} for {}, first after {}",
            self.part(1.0),
            self.part(self.share),
            self.part(self.from),
        )
    }

    /// How long a share of the period is, in words.
    fn part(&self, share: f64) -> String {
        seconds(self.period_s * share)
    }

    /// How many stretches of its share, of any period, can be told apart in a recording: each
    /// length that is tried has the same part of the certainty.
    fn of_its_length(&self, span_s: f64, longest_s: f64) -> f64 {
        let begins = 2.0 / self.share;
        let turns = span_s * (1.0 / SHORTEST_S - 1.0 / longest_s);
        WIDTHS.len() as f64 * begins * (turns / self.share).max(1.0)
    }
}

/// How many moments lie in each part of a period.
fn fold(moments: &[f64], frequency: f64, parts: usize) -> Vec<f64> {
    let mut counts = vec![0u32; parts];
    for at_s in moments {
        let turns = at_s * frequency;
        let part = ((turns - turns.floor()) * parts as f64) as usize;
        counts[part.min(parts - 1)] += 1;
    }
    counts.into_iter().map(f64::from).collect()
}

/// Sums of the first ones, twice around.
fn sums(parts: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0];
    let mut sum = 0.0;
    sums.extend(parts.iter().chain(parts).map(|n| {
        sum += n;
        sum
    }));
    sums
}

/// The stretch that tells most, where so many moments are in each part.
fn best_stretch(period_s: f64, slow: &[f64], all: &[f64]) -> Stretch {
    let parts = slow.len();
    let (slow, all) = (sums(slow), sums(all));
    let (slow_total, total) = (slow[parts], all[parts]);
    let mut best = (0, 1, 0.0);
    for width in WIDTHS.into_iter().filter(|width| 2 * width <= parts) {
        for first in 0..parts {
            let inside = all[first + width] - all[first];
            let slow_inside = slow[first + width] - slow[first];
            // What can tell something is rare.
            if slow_inside * total <= 1.2 * inside * slow_total {
                continue;
            }
            let tells = information(slow_inside.min(inside), inside, slow_total, total);
            if tells > best.2 {
                best = (first, width, tells);
            }
        }
    }
    let (first, width, tells) = best;
    Stretch {
        period_s,
        from: first as f64 / parts as f64,
        share: width as f64 / parts as f64,
        tells,
    }
}

impl Moments {
    /// Those of the requests of a set.
    fn of(requests: &Requests, set: &Set) -> Moments {
        let begin = requests.began(0);
        let mut moments = Moments {
            slow: Vec::new(),
            all: Vec::new(),
        };
        for at in set.members(&requests.layout) {
            let at_s = requests.began(at).saturating_sub(begin) as f64 / 1e9;
            if is_new(&moments.all, at_s) {
                moments.all.push(at_s);
            }
            if requests.is_slow(at) && is_new(&moments.slow, at_s) {
                moments.slow.push(at_s);
            }
        }
        let step = moments.slow.len().div_ceil(MOMENTS_MAX).max(1);
        moments.slow = moments.slow.into_iter().step_by(step).collect();
        moments
    }

    /// How long it is from the first to the last.
    fn span_s(&self) -> f64 {
        self.all.last().copied().unwrap_or(0.0)
    }

    /// Those of the part, as long as that, in which most slow ones lie.
    fn richest(&self, length_s: f64) -> Moments {
        let parts = self
            .slow
            .chunk_by(|a, b| (a / length_s).floor() == (b / length_s).floor());
        let richest = parts.max_by_key(|slow| slow.len()).unwrap_or(&[]);
        let part = richest.first().map_or(0.0, |a| (a / length_s).floor());
        let from_s = part * length_s;
        let to_s = from_s + length_s * 1.000_001;
        let first = self.all.partition_point(|t| *t < from_s);
        let end = self.all.partition_point(|t| *t < to_s);
        Moments {
            slow: richest.to_vec(),
            all: self.all[first..end].to_vec(),
        }
    }

    /// The best stretch of a period, as if requests came at all times.
    fn roughly(&self, frequency: f64) -> Stretch {
        let even = self.all.len() as f64 / ROUGH as f64;
        let slow = fold(&self.slow, frequency, ROUGH);
        best_stretch(1.0 / frequency, &slow, &[even; ROUGH])
    }

    /// The same, among requests as they came.
    fn closely(&self, frequency: f64) -> Stretch {
        let slow = fold(&self.slow, frequency, FINE);
        let all = fold(&self.all, frequency, FINE);
        best_stretch(1.0 / frequency, &slow, &all)
    }

    /// The best of those near a period that is known from a recording as long as that: first to
    /// a quarter of the step by which it was found, then to what tells the shortest stretch.
    fn near(&self, period_s: f64, length_s: f64) -> Option<Stretch> {
        let step = 0.25 / (FINENESS * length_s);
        let found = self.around(period_s, step)?;
        self.around(found.period_s, step / 8.0)
    }

    /// The best of those whose frequency is up to four steps from that of a period.
    fn around(&self, period_s: f64, step: f64) -> Option<Stretch> {
        best_of((-4..=4).map(|k| self.closely(1.0 / period_s + f64::from(k) * step)))
    }
}

/// Whether it is another moment than the last of these.
fn is_new(moments: &[f64], at_s: f64) -> bool {
    moments.last().is_none_or(|last| at_s - last >= MOMENT_S)
}

fn best_of(all: impl Iterator<Item = Stretch>) -> Option<Stretch> {
    all.max_by(|a, b| a.tells.total_cmp(&b.tells))
}

/// The stretch that the slow ones lie in most, and how many there were to choose from.
fn best(moments: &Moments) -> Option<(Stretch, f64)> {
    let span_s = moments.span_s();
    let mut length_s = span_s.min(FIRST_S);
    let longest_s = LONGEST_S.min(length_s / CYCLES_MIN);
    if longest_s <= SHORTEST_S {
        return None;
    }
    let part = moments.richest(length_s);
    let step = 1.0 / (FINENESS * length_s);
    let steps = ((1.0 / SHORTEST_S - 1.0 / longest_s) / step).ceil() as usize;
    let mut rough: Vec<Stretch> = (0..=steps)
        .map(|k| part.roughly(1.0 / longest_s + k as f64 * step))
        .collect();
    rough.sort_by(|a, b| b.tells.total_cmp(&a.tells));
    rough.truncate(CLOSELY);
    let periods = rough.iter().flat_map(|s| MULTIPLES.map(|m| m * s.period_s));
    let periods = periods.filter(|period_s| *period_s <= longest_s * 1.1);
    let mut best = best_of(periods.filter_map(|p| part.near(p, length_s)))?;
    // The longer the recording, the better is it known.
    while length_s < span_s {
        length_s = (2.0 * length_s).min(span_s);
        best = moments.richest(length_s).near(best.period_s, length_s)?;
    }
    let chosen_from = best.of_its_length(span_s, longest_s);
    (best.tells > 0.0).then_some((best, chosen_from))
}

/// The stretch of a period that fits best among the requests of `set`, where the recording is long
/// enough for one.
pub fn period<'a>(requests: &Requests<'a>, set: &Set) -> Option<Family<'a>> {
    if requests.rows.is_empty() {
        return None;
    }
    let (stretch, chosen_from) = best(&Moments::of(requests, set))?;
    let begin = requests.began(0);
    let numbers = (0..requests.rows.len()).map(|at| {
        let at_s = requests.began(at).saturating_sub(begin) as f64 / 1e9;
        if stretch.has(at_s) {
            0
        } else {
            NONE
        }
    });
    let labels = vec![stretch.label()];
    let mut dimension = Dimension::new("period", Tier::Time, Members::Same, labels);
    dimension.chosen_from = chosen_from;
    Some(Family {
        numbers: numbers.collect(),
        count: 1,
        dimensions: vec![dimension],
    })
}

#[cfg(test)]
mod tests {
    use super::super::simulated::{recording, Plan, Random, Seen, Stretches};
    use super::super::tests::seeds;
    use super::super::{explain, Explanation};
    use crate::record::table::Table;

    /// How slow times come back, and who writes: by chance.
    #[derive(Clone)]
    struct Drawn {
        times: Stretches,
        writers: u64,
        requests: usize,
        think_ms: f64,
    }

    fn drawn(seed: u64, least: u64) -> Drawn {
        let mut random = Random::new(seed.wrapping_add(77));
        let every_s = 10.0 * 60f64.powf(random.part());
        let for_s = if every_s < 25.0 {
            every_s * (0.08 + 0.07 * random.part())
        } else {
            3.0 + 2.0 * random.part()
        };
        let writers = (1 + random.below(8)).max(least);
        let span_s = (12.0 * every_s).max(360.0);
        let requests = 6000 + random.below(6000) as usize;
        Drawn {
            times: Stretches {
                every_s,
                for_s,
                first_s: every_s * random.part(),
            },
            writers,
            requests,
            // Each delivery is of two requests.
            think_ms: 2.0 * 1e3 * span_s * writers as f64 / requests as f64,
        }
    }

    fn plan<'a>(seed: u64, drawn: &Drawn, slow: &'a dyn Fn(&Seen) -> f64) -> Plan<'a> {
        Plan {
            requests: drawn.requests,
            processes: drawn.writers,
            think_ms: drawn.think_ms,
            ..Plan::new(seed, slow)
        }
    }

    fn named<'e>(e: &'e Explanation, key: &str) -> Option<&'e str> {
        let names = e.causes.iter().flat_map(|c| &c.dimensions.0);
        names
            .filter(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
            .next()
    }

    /// The period in a label, in seconds; a minute's seconds are one of a minute.
    fn period_of(e: &Explanation) -> Option<f64> {
        let label = named(e, "period")?;
        let text = label.split(" for ").next()?;
        let mut sum = 0.0;
        for pair in text.split(' ').collect::<Vec<_>>().chunks(2) {
            let n: f64 = pair[0].parse().ok()?;
            sum += n * if pair[1] == "min" { 60.0 } else { 1.0 };
        }
        Some(sum)
    }

    fn is_found(e: &Explanation, every_s: f64) -> bool {
        period_of(e).is_some_and(|p| (p - every_s).abs() < 0.06 * every_s)
    }

    /// Nine in ten slow, or standing still: in those times.
    fn both_kinds(seed: u64, least: u64, with: &dyn Fn(&Seen) -> f64) -> [(Drawn, Table); 2] {
        let drawn = drawn(seed, least);
        let times = drawn.times;
        let slow = move |s: &Seen| match times.since(s.time_s) {
            Some(_) => 0.9,
            None => with(s),
        };
        let by_chance = recording(&plan(seed, &drawn, &slow));
        let still = Plan {
            stands_still: Some(times),
            ..plan(seed, &drawn, with)
        };
        [(drawn.clone(), by_chance), (drawn, recording(&still))]
    }

    /// Bad times that come back at no time in particular, as many as those that do.
    #[test]
    fn soak_bad_times_by_chance_have_no_period() {
        let (mut alarms, mut all) = (Vec::new(), 0);
        for seed in seeds(4, 300) {
            let drawn = drawn(seed, 1);
            let slow = |s: &Seen| if s.bad_time { 0.9 } else { 0.001 };
            let plan = Plan {
                bad_every_s: drawn.times.every_s,
                bad_for_s: drawn.times.for_s,
                ..plan(seed, &drawn, &slow)
            };
            let e = explain(&recording(&plan), None);
            all += 1;
            if let Some(label) = named(&e, "period") {
                alarms.push(format!("{seed}: {label}"));
            }
        }
        println!("{} alarms of {all}: {alarms:#?}", alarms.len());
        assert!(alarms.len() * 100 <= all, "{alarms:#?}");
    }

    /// Those that were missed, where some of the requests are slow by another rule, too.
    fn missed(
        seeds: std::ops::Range<u64>,
        with: &dyn Fn(&Seen) -> f64,
        other: &str,
    ) -> (Vec<String>, usize) {
        let (mut missed, mut all) = (Vec::new(), 0);
        // One process of each user.
        let least = if other == "user" { 3 } else { 1 };
        for seed in seeds {
            for (kind, (drawn, table)) in both_kinds(seed, least, with).into_iter().enumerate() {
                let e = explain(&table, None);
                all += 1;
                let is_other_named = other.is_empty() || named(&e, other).is_some();
                if !is_found(&e, drawn.times.every_s) || !is_other_named {
                    let causes: Vec<_> = e.causes.iter().map(|c| &c.sentence).collect();
                    let (writers, times) = (drawn.writers, drawn.times);
                    let of = format!("kind {kind}, seed {seed}, {writers} writers, {times:?}");
                    missed.push(format!("{of}: {causes:#?}"));
                }
            }
        }
        println!("{other}: missed {} of {all}: {missed:#?}", missed.len());
        (missed, all)
    }

    #[test]
    fn soak_a_period_is_found_whatever_it_is_and_however_many_write() {
        let (missed, all) = missed(seeds(2, 100), &|_| 0.001, "");
        assert!(missed.len() * 20 <= all, "{missed:#?}");
    }

    /// What a second cause is called, and where it is one.
    type Other = (&'static str, fn(&Seen) -> f64);

    #[test]
    fn soak_a_period_and_a_second_cause_are_both_named() {
        const OTHERS: [Other; 3] = [
            ("directory", |s| {
                if s.device == 0 && s.user == 5 {
                    0.4
                } else {
                    0.001
                }
            }),
            ("user", |s| if s.process % 3 == 2 { 0.08 } else { 0.001 }),
            ("bytes", |s| if s.size >= 65536 { 0.1 } else { 0.001 }),
        ];
        for (key, with) in OTHERS {
            let (missed, all) = missed(seeds(2, 40), &with, key);
            assert!(missed.len() * 20 <= all, "{missed:#?}");
        }
    }
}
