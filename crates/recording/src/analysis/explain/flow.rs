//! What went on around a request: what was in flight at its start, and what came before it.
//!
//! Who begins while a slow request is in flight on the same device waits behind it, and is slow
//! for that reason whatever it is itself: a follower. Causes are judged by the others where there
//! are such queues, and the state at a start always by those that began while nothing slow was in
//! flight at all: or each stall would be explained by the queue that it causes, and by what is
//! common in queues (whoever had been thinking for long when the stall came).

use super::dimension::{numbered, Family, Numbered, Tier, NONE};
use super::place::folder_of;
use super::set::Set;
use super::slow::Requests;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Requests of a thread belong together where the next begins this soon after the one before.
const SOON_NS: i64 = 10_000_000;
/// Numbers in flight that are told apart.
const IN_FLIGHT: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Lengths of a rest, in ns, and in words.
const RESTS: [(i64, &str); 5] = [
    (1_000_000, "1 ms"),
    (10_000_000, "10 ms"),
    (100_000_000, "0.1 s"),
    (1_000_000_000, "1 s"),
    (10_000_000_000, "10 s"),
];

/// The device of each request, as a number; none where it is not known.
pub fn devices(requests: &Requests) -> (Vec<u32>, usize) {
    let table = requests.table;
    let names = table.filesystems.iter().map(|f| f.device.as_str());
    let (by_filesystem, devices) = numbered(names);
    let by_request = requests.rows.iter().map(|row| {
        let file = &table.files[table.rows.file[*row as usize] as usize];
        by_filesystem[file.filesystem as usize]
    });
    (by_request.collect(), devices.len())
}

/// Requests that began while a slow one was in flight.
pub struct Followers {
    /// On their device.
    pub same: Set,
    /// On any device.
    pub any: Set,
}

impl Followers {
    /// Finds them.
    pub fn of(requests: &Requests) -> Followers {
        let mut until = i64::MIN;
        let any = Set::of(&requests.layout, |at| {
            follows(requests, &mut until, at, true)
        });
        let same = behind(requests, &Set::all(&requests.layout));
        Followers { same, any }
    }
}

/// Whether a request began before the last slow one ended, which has lasted `until` then; a slow
/// one that `counts`, or that follows one, moves that on.
fn follows(requests: &Requests, until: &mut i64, at: usize, counts: bool) -> bool {
    let follows = requests.began(at) < *until;
    if requests.is_slow(at) && (counts || follows) {
        *until = (*until).max(requests.ended(at));
    }
    follows
}

/// Requests that began while a slow one of this set was in flight on their device, or one that
/// waited behind it: what is slow there is slow because of that one.
pub fn behind(requests: &Requests, set: &Set) -> Set {
    let (devices, count) = devices(requests);
    let mut slow_until = vec![i64::MIN; count];
    let mut members = set.members(&requests.layout).peekable();
    Set::of(&requests.layout, |at| {
        let is_member = members.next_if_eq(&at).is_some();
        let until = slow_until.get_mut(devices[at] as usize);
        until.is_some_and(|until| follows(requests, until, at, is_member))
    })
}

/// How many of the numbers in flight are reached.
fn reached(n: usize) -> u32 {
    IN_FLIGHT.partition_point(|least| *least as usize <= n) as u32
}

/// How many others were in flight at its start: on all devices, and on its own.
pub fn in_flight<'a>(requests: &Requests<'a>) -> [Family<'a>; 2] {
    let (devices, count) = devices(requests);
    // The last queue is for all of them.
    let mut queues: Vec<BinaryHeap<Reverse<i64>>> = vec![BinaryHeap::new(); count + 1];
    let all = requests.rows.len();
    let overall = (0..all)
        .map(|at| enter(&mut queues[count], requests, at))
        .collect();
    let own = (0..all)
        .map(|at| match devices[at] {
            NONE => NONE,
            device => enter(&mut queues[device as usize], requests, at),
        })
        .collect();
    let labels = IN_FLIGHT.map(|n| format!("at least {n}")).to_vec();
    [
        Family::steps("in_flight", Tier::State, overall, labels.clone()),
        Family::steps("in_flight_on_device", Tier::State, own, labels),
    ]
}

/// How many of the numbers in flight a queue of ends has reached when a request begins, which
/// joins it then.
fn enter(ends: &mut BinaryHeap<Reverse<i64>>, requests: &Requests, at: usize) -> u32 {
    while ends.peek().is_some_and(|end| end.0 <= requests.began(at)) {
        ends.pop();
    }
    let n = reached(ends.len());
    ends.push(Reverse(requests.ended(at)));
    n
}

/// How long its device had had nothing to do.
pub fn device_rest<'a>(requests: &Requests<'a>) -> Family<'a> {
    let (devices, count) = devices(requests);
    let mut ended: Vec<Option<i64>> = vec![None; count];
    let mut numbers = Vec::with_capacity(devices.len());
    for (at, device) in devices.iter().enumerate() {
        let Some(last) = ended.get_mut(*device as usize) else {
            numbers.push(NONE);
            continue;
        };
        numbers.push(last.map_or(NONE, |last| {
            let gap = requests.began(at).saturating_sub(last);
            RESTS.partition_point(|r| r.0 <= gap) as u32
        }));
        *last = (*last).max(Some(requests.ended(at)));
    }
    let labels = RESTS.map(|r| format!("at least {}", r.1)).to_vec();
    Family::steps("device_rest", Tier::State, numbers, labels)
}

/// What came before it on its device: kind, and whether another process made it.
pub fn before_on_device<'a>(requests: &Requests<'a>) -> Family<'a> {
    let table = requests.table;
    let (devices, count) = devices(requests);
    let mut last: Vec<Option<u32>> = vec![None; count];
    let mut known = Numbered::new();
    let mut numbers = Vec::with_capacity(requests.rows.len());
    for (at, row) in requests.rows.iter().enumerate() {
        let Some(last) = last.get_mut(devices[at] as usize) else {
            numbers.push(NONE);
            continue;
        };
        numbers.push(last.map_or(NONE, |before| {
            let kind = table.rows.kind[before as usize];
            known.id((kind, pid(requests, before) == pid(requests, *row)))
        }));
        *last = Some(*row);
    }
    let labels = known.keys.iter().map(|(kind, same)| {
        let who = if *same { "the same" } else { "another" };
        format!("{} of {who} process", kind_name(requests, *kind))
    });
    let labels: Vec<String> = labels.collect();
    Family::simple("before_on_device", Tier::State, numbers, labels)
}

/// The process that made the request of a row.
fn pid(requests: &Requests, row: u32) -> Option<u32> {
    let table = requests.table;
    table.processes[table.rows.process[row as usize] as usize].pid
}

/// What a kind is called; empty where it is not known.
fn kind_name<'a>(requests: &Requests<'a>, kind: u16) -> &'a str {
    let name = requests.table.kinds.get(usize::from(kind));
    name.map_or("", |k| k.as_str())
}

/// The folder of a request of the same file.
const SAME: u32 = NONE;

/// What its thread asked for just before: kind, and of which file.
pub fn before<'a>(requests: &Requests<'a>) -> Family<'a> {
    let rows = &requests.table.rows;
    let mut folders: Numbered<&str> = Numbered::new();
    let files = requests.table.files.iter();
    let folder: Vec<u32> = files.map(|f| folders.id(folder_of(f))).collect();
    let mut known: Numbered<Option<(u16, u32)>> = Numbered::new();
    let mut last: HashMap<(u32, u32), usize> = HashMap::new();
    let mut numbers = Vec::with_capacity(requests.rows.len());
    for (at, row) in requests.rows.iter().enumerate() {
        let row = *row as usize;
        let before = last.insert((rows.process[row], rows.tid[row]), at);
        let Some(before) = before else {
            numbers.push(NONE);
            continue;
        };
        let gap = requests.began(at).saturating_sub(requests.ended(before));
        let soon = (0..=SOON_NS).contains(&gap).then(|| {
            let before = requests.rows[before] as usize;
            let file = rows.file[before];
            let same = file == rows.file[row];
            let folder = if same { SAME } else { folder[file as usize] };
            (rows.kind[before], folder)
        });
        numbers.push(known.id(soon));
    }
    let labels = known.keys.iter().map(|key| match key {
        Some((kind, folder)) => before_in_words(kind_name(requests, *kind), *folder, &folders.keys),
        None => "nothing for 10 ms".to_owned(),
    });
    let labels: Vec<String> = labels.collect();
    Family::simple("before", Tier::Cause, numbers, labels)
}

/// A request of this kind, of a file in this one of the `folders`, in words.
fn before_in_words(kind: &str, folder: u32, folders: &[&str]) -> String {
    match folders.get(folder as usize) {
        _ if folder == SAME => format!("{kind} of the same file"),
        Some(&"") | None => format!("{kind} of another file"),
        Some(name) => format!("{kind} of another file in a folder \"{name}\""),
    }
}
