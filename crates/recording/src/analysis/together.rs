//! Requests that always come together: a message, its folder's index, the general index.
//!
//! A group is a row of requests by one thread, each shortly after the one before ([`GAP_NS`]), each
//! named by its kind and the pattern of its file. It is found in two ways: as a row that repeats
//! itself at once (a program that delivers one message after the other), and as a burst of its own,
//! with a pause before and after. One kind on one pattern of file alone is no group: that is one
//! request an answer.
//!
//! What a group would save: all of its time but that of its longest request, since one sync of the
//! file system keeps what the others ask for.

use super::order::ByTime;
use super::patterns::Patterns;
use super::requests::Requests;
use super::roles;
use std::collections::HashMap;

/// Requests with a longer pause between them do not belong together.
pub const GAP_NS: u64 = 50_000_000;
/// The longest group.
pub const LENGTH_MAX: usize = 8;
/// A group that came less often is chance.
pub const TIMES_MIN: u64 = 3;
/// A thread's requests are looked at when there are so many.
const BUFFER: usize = 4096;

/// A group of requests, and how often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Together {
    /// The program whose thread made them.
    pub program: String,
    /// Kind and pattern of each, in order.
    pub parts: Vec<(String, String)>,
    /// How often.
    pub times: u64,
    /// How often with all durations known.
    pub timed: u64,
    /// Nanoseconds that these took.
    pub took_ns: u64,
    /// Nanoseconds of it that one sync each would save.
    pub saves_ns: u64,
}

impl Together {
    /// What groups are compared by: what they would save, then how many requests they are.
    fn weight(&self) -> (u64, u64) {
        (self.saves_ns, self.times * self.parts.len() as u64)
    }
}

#[derive(Default)]
struct Tally {
    times: u64,
    timed: u64,
    took_ns: u64,
    saves_ns: u64,
}

/// What a thread has asked for lately.
#[derive(Default)]
struct Thread {
    until: i64,
    program: u32,
    /// What was asked for: indexes into the tokens.
    tokens: Vec<u32>,
    /// How long it took; `None` where it was put off.
    took: Vec<Option<u64>>,
}

type Tallies = HashMap<(u32, Vec<u32>), Tally>;

/// The groups of all threads, those that would save most first.
#[must_use]
pub fn find(requests: &Requests, by_time: &ByTime) -> Vec<Together> {
    let table = requests.table;
    let patterns = Patterns::of(table.files.iter().map(|f| f.path.as_str()));
    let mut programs = Programs::of(requests);
    let mut tokens: HashMap<(u16, u32), u32> = HashMap::new();
    let mut parts: Vec<(u16, u32)> = Vec::new();
    let mut threads: HashMap<(u32, u32), Thread> = HashMap::new();
    let mut tallies = Tallies::new();
    let rows = requests.rows;
    for i in by_time.iter().filter(|i| requests.has(*i)) {
        let file = rows.file[i];
        let part = (
            rows.kind[i],
            patterns.of.get(file as usize).copied().unwrap_or(0),
        );
        let token = *tokens.entry(part).or_insert_with(|| {
            parts.push(part);
            u32::try_from(parts.len() - 1).unwrap_or(u32::MAX)
        });
        let process = rows.process[i];
        let thread = threads.entry((process, rows.tid[i])).or_default();
        let time = rows.time_ns[i];
        if time.saturating_sub(thread.until) > GAP_NS as i64 {
            look_at(thread, true, &mut tallies);
        } else if thread.tokens.len() >= BUFFER {
            look_at(thread, false, &mut tallies);
        }
        thread.program = programs.of_process(process);
        thread.tokens.push(token);
        thread.took.push(requests.waited_ns(i));
        let took = requests.waited_ns(i).unwrap_or(0);
        thread.until = super::waiting::end_of(time, took).max(thread.until);
    }
    for thread in threads.values_mut() {
        look_at(thread, true, &mut tallies);
    }
    let mut found: Vec<Together> = tallies
        .into_iter()
        .filter(|(_, tally)| tally.times >= TIMES_MIN)
        .map(|((program, tokens), tally)| Together {
            program: programs.names[program as usize].clone(),
            parts: tokens
                .iter()
                .map(|token| in_words(&table.kinds, &patterns, parts[*token as usize]))
                .collect(),
            times: tally.times,
            timed: tally.timed,
            took_ns: tally.took_ns,
            saves_ns: tally.saves_ns,
        })
        .collect();
    found.sort_by(|a, b| {
        let weightier = b.weight().cmp(&a.weight());
        weightier.then_with(|| (&a.program, &a.parts).cmp(&(&b.program, &b.parts)))
    });
    found
}

/// The names of a part: its kind, and the pattern of its file.
fn in_words(kinds: &[String], patterns: &Patterns, part: (u16, u32)) -> (String, String) {
    let (kind, pattern) = part;
    let kind = kinds.get(usize::from(kind)).cloned();
    let pattern = patterns.texts[pattern as usize].clone();
    (kind.unwrap_or_default(), pattern)
}

/// Programs by number: processes of one name are the same program here.
struct Programs {
    of: Vec<u32>,
    names: Vec<String>,
}

impl Programs {
    fn of(requests: &Requests) -> Programs {
        let mut ids: HashMap<String, u32> = HashMap::new();
        let mut names = Vec::new();
        let processes = &requests.table.processes;
        let mut of = Vec::with_capacity(processes.len());
        for process in processes {
            let id = ids.entry(roles::name(process)).or_insert_with_key(|name| {
                names.push(name.clone());
                u32::try_from(names.len() - 1).unwrap_or(u32::MAX)
            });
            of.push(*id);
        }
        Programs { of, names }
    }

    /// The program of a process; one that the table lacks is added without a name.
    fn of_process(&mut self, process: u32) -> u32 {
        if let Some(id) = self.of.get(process as usize) {
            return *id;
        }
        let id = self.names.len() as u32;
        self.names.push(String::new());
        self.of.resize(process as usize + 1, id);
        id
    }
}

/// Counts the groups in what a thread has asked for. Where it `ended` a burst, all of it is looked
/// at; else what may go on stays.
fn look_at(thread: &mut Thread, ended: bool, tallies: &mut Tallies) {
    let n = thread.tokens.len();
    let mut at = 0;
    if ended && is_group(&thread.tokens) && period(&thread.tokens).is_none() {
        count(thread, 0..n, tallies);
        at = n;
    }
    let mut left_from = 0;
    while at < n {
        let Some((length, times)) = period(&thread.tokens[at..]) else {
            at += 1;
            continue;
        };
        let end = at + length * times;
        if is_group(&thread.tokens[at..at + length]) {
            for k in 0..times {
                count(thread, at + k * length..at + (k + 1) * length, tallies);
            }
        }
        left_from = end;
        at = end;
    }
    let keep_from = if ended {
        n
    } else {
        left_from.max(n.saturating_sub(LENGTH_MAX))
    };
    thread.tokens.drain(..keep_from);
    thread.took.drain(..keep_from);
}

/// Whether these are more than one thing, and few enough to be one answer's.
fn is_group(tokens: &[u32]) -> bool {
    tokens.len() <= LENGTH_MAX && tokens.iter().any(|t| *t != tokens[0])
}

/// The length of what repeats itself from the first token on, and how often it stands there, at
/// least twice. Of several, that which explains most tokens, then the shortest.
fn period(tokens: &[u32]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for length in 1..=LENGTH_MAX.min(tokens.len() / 2) {
        let pairs = tokens[length..].iter().zip(tokens);
        let same = pairs.take_while(|(a, b)| a == b).count();
        let times = 1 + same / length;
        let explains = length * times;
        if times > 1 && best.is_none_or(|(l, t)| explains > l * t) {
            best = Some((length, times));
        }
    }
    best
}

fn count(thread: &Thread, range: std::ops::Range<usize>, tallies: &mut Tallies) {
    let key = (
        thread.program,
        least_rotation(&thread.tokens[range.clone()]),
    );
    let tally = tallies.entry(key).or_default();
    tally.times += 1;
    let took: Option<Vec<u64>> = thread.took[range].iter().copied().collect();
    if let Some(took) = took {
        let sum = took.iter().fold(0u64, |sum, t| sum.saturating_add(*t));
        let longest = took.iter().copied().max().unwrap_or(0);
        tally.timed += 1;
        tally.took_ns = tally.took_ns.saturating_add(sum);
        tally.saves_ns = tally.saves_ns.saturating_add(sum - longest);
    }
}

/// The rotation that begins with what was seen first: where a repetition begins is chance.
fn least_rotation(tokens: &[u32]) -> Vec<u32> {
    let rotations = (0..tokens.len()).map(|k| [&tokens[k..], &tokens[..k]].concat());
    rotations.min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::table::{Done, File, Process, Table};

    /// Requests of one thread: the file's name, when each begins, how long it takes.
    fn table(requests: &[(&str, i64, u64)]) -> Table {
        let mut t = Table {
            kinds: vec!["fsync".into()],
            processes: vec![Process {
                exe: "/usr/bin/imap".into(),
                ..Process::default()
            }],
            ..Table::default()
        };
        for (name, time, took) in requests {
            let file = t.files.iter().position(|f| f.path == *name);
            let file = file.unwrap_or_else(|| {
                let path = (*name).to_owned();
                t.files.push(File {
                    path,
                    filesystem: 0,
                });
                t.files.len() - 1
            });
            let r = &mut t.rows;
            r.file.push(file as u32);
            r.time_ns.push(*time);
            r.took_ns.push(*took);
            r.process.push(0);
            r.tid.push(1);
            r.kind.push(0);
            r.done.push(Done::Real);
        }
        t
    }

    fn found(requests: &[(&str, i64, u64)]) -> Vec<(String, u64, u64)> {
        let t = table(requests);
        let requests = Requests::durability(&t);
        let groups = find(&requests, &ByTime::of(&requests));
        let row = |g: &Together| {
            let names: Vec<&str> = g.parts.iter().map(|p| p.1.as_str()).collect();
            (names.join(" "), g.times, g.saves_ns)
        };
        groups.iter().map(row).collect()
    }

    const THREE: [&str; 3] = ["/m/1", "/m/index", "/m/list"];

    #[test]
    fn what_repeats_itself_without_a_pause_is_a_group() {
        for n in [3, 1000, 20_000] {
            let one = |k: i64| (THREE[k as usize % 3], k * 1000, 10 + k as u64 % 3);
            let requests: Vec<_> = (0..3 * n).map(one).collect();
            let want = ("/m/# /m/index /m/list".to_owned(), n as u64, 21 * n as u64);
            assert_eq!(found(&requests), [want]);
        }
    }

    #[test]
    fn bursts_with_pauses_between_them_are_groups() {
        let pause = 10 * GAP_NS as i64;
        let one = |k: i64| (THREE[k as usize % 3], k / 3 * pause + k % 3 * 1000, 100);
        let requests: Vec<_> = (0..30).map(one).collect();
        assert_eq!(
            found(&requests),
            [("/m/# /m/index /m/list".to_owned(), 10, 2000)]
        );
    }

    #[test]
    fn one_file_again_and_again_is_no_group() {
        let requests: Vec<_> = (0..100).map(|k| ("/m/log", k * 1000, 5)).collect();
        assert!(found(&requests).is_empty());
    }

    #[test]
    fn requests_in_no_order_are_no_group() {
        let names = ["/a", "/b", "/c", "/d", "/e"];
        let mut state = 1u64;
        let mut next = |k: i64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let name = names[(state >> 40) as usize % 5];
            (name, k * 1000, 5)
        };
        let requests: Vec<_> = (0..1000).map(&mut next).collect();
        let often = found(&requests).iter().map(|g| g.1).max().unwrap_or(0);
        assert!(often < 60, "{often} of 1000");
    }

    #[test]
    fn where_a_repetition_begins_is_the_same_group() {
        let first: Vec<_> = (0..30)
            .map(|k| (THREE[k as usize % 3], k * 1000, 7))
            .collect();
        let begin = 100 * GAP_NS as i64;
        let second = (0..30).map(|k| (THREE[(k as usize + 1) % 3], begin + k * 1000, 7));
        let all: Vec<_> = first.into_iter().chain(second).collect();
        let groups = found(&all);
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!(groups[0].1, 20);
    }
}
