//! Who made a request, what it asked for, and when.

use super::dimension::{numbered, Dimension, Family, Members, Numbered, Tier, NONE};
use super::slow::Requests;
use crate::record::table::{Process, UNKNOWN};
use synclater_text::number::bytes;

const SECOND: i64 = 1_000_000_000;
/// The least length of a recording in which seconds of the minute repeat, in seconds.
const MINUTES_MIN: i64 = 180;
/// The least length of a recording in which minutes of the hour repeat, in seconds.
const HOURS_MIN: i64 = 3 * 3600;

/// exe, pid, user, command.
pub fn processes<'a>(requests: &Requests<'a>) -> Family<'a> {
    let table = requests.table;
    let all = &table.processes;
    let rows = requests.rows.iter();
    let numbers = rows.map(|row| table.rows.process[*row as usize]).collect();
    Family {
        numbers,
        count: all.len(),
        dimensions: vec![
            text("exe", all, |p| &p.exe),
            number("pid", all, |p| p.pid),
            number("user", all, |p| p.uid),
            text("command", all, |p| &p.command),
        ],
    }
}

/// A dimension of processes whose values are texts.
fn text<'a>(key: &'static str, all: &'a [Process], get: fn(&Process) -> &str) -> Dimension<'a> {
    let (ids, labels) = numbered(all.iter().map(get));
    Dimension::new(key, Tier::Cause, Members::One(ids), labels)
}

/// A dimension of processes whose values are numbers.
fn number<'a>(
    key: &'static str,
    all: &[Process],
    get: fn(&Process) -> Option<u32>,
) -> Dimension<'a> {
    let mut known = Numbered::new();
    let ids = all
        .iter()
        .map(|p| get(p).map_or(NONE, |n| known.id(n)))
        .collect();
    let labels: Vec<String> = known.keys.iter().map(u32::to_string).collect();
    Dimension::new(key, Tier::Cause, Members::One(ids), labels)
}

/// The call or flag by which durability was asked for.
pub fn kinds<'a>(requests: &Requests<'a>) -> Family<'a> {
    let rows = requests.rows.iter();
    let kinds = rows.map(|row| u32::from(requests.table.rows.kind[*row as usize]));
    let labels: Vec<&String> = requests.table.kinds.iter().collect();
    Family::simple("kind", Tier::Cause, kinds.collect(), labels)
}

/// The code that asked.
pub fn callers<'a>(requests: &Requests<'a>) -> Family<'a> {
    let rows = requests.rows.iter();
    let callers = rows.map(|row| match requests.table.rows.caller[*row as usize] {
        0 => NONE,
        known => known,
    });
    let labels: Vec<&String> = requests.table.callers.iter().collect();
    Family::simple("caller", Tier::Cause, callers.collect(), labels)
}

/// Bytes since the last sync: from one power of two to the next, and at least that.
pub fn sizes<'a>(requests: &Requests<'a>) -> Family<'a> {
    let rows = requests.rows.iter();
    let classes = rows.map(|row| class(requests.table.rows.bytes[*row as usize]));
    let mut labels = vec!["none".to_owned()];
    labels.extend((0..64u32).map(|k| match 1u64 << k {
        1 => "1 B".to_owned(),
        least => format!("{} to {}", bytes(least), bytes(least.saturating_mul(2) - 1)),
    }));
    labels.extend((0..64u32).map(|k| format!("at least {}", bytes(1 << k))));
    Family {
        numbers: classes.collect(),
        count: 65,
        dimensions: vec![Dimension::new(
            "bytes",
            Tier::Cause,
            Members::Many((0..65).map(reached).collect()),
            labels,
        )],
    }
}

/// Class 0 is nothing; class k + 1 begins with 2^k.
fn class(bytes: u64) -> u32 {
    match bytes {
        UNKNOWN => NONE,
        n => 64 - n.leading_zeros(),
    }
}

/// The values of a class: it has reached all steps up to its own.
fn reached(class: u32) -> Vec<u32> {
    let mut values = vec![class];
    values.extend((0..class).map(|k| 65 + k));
    values
}

/// Whether anything was dirty.
pub fn dirty<'a>(requests: &Requests<'a>) -> Family<'a> {
    let rows = requests.rows.iter();
    let values = rows.map(|row| requests.table.rows.dirty[*row as usize].map_or(NONE, u32::from));
    let labels = vec!["no", "yes"];
    Family::simple("dirty", Tier::Cause, values.collect(), labels)
}

/// The error that it ended with.
pub fn errors<'a>(requests: &Requests<'a>) -> Family<'a> {
    let mut known = Numbered::new();
    let rows = requests.rows.iter();
    let numbers = rows
        .map(|row| match requests.table.rows.errno[*row as usize] {
            0 => NONE,
            errno => known.id(errno),
        })
        .collect();
    let labels: Vec<String> = known.keys.iter().map(u16::to_string).collect();
    Family::simple("errno", Tier::Sign, numbers, labels)
}

/// Whole seconds between the first request and the last.
fn span_s(requests: &Requests) -> i64 {
    let Some(last) = requests.rows.len().checked_sub(1) else {
        return 0;
    };
    requests.began(last).saturating_sub(requests.began(0)) / SECOND
}

/// One of sixty and the stretches that it lies in.
fn of_sixty<'a>(key: &'static str, numbers: Vec<u32>) -> Family<'a> {
    const WIDTHS: [u32; 5] = [1, 5, 10, 15, 30];
    let mut labels = Vec::new();
    let mut first = Vec::new();
    for width in WIDTHS {
        first.push(labels.len() as u32);
        labels.extend((0..60 / width).map(|k| match width {
            1 => k.to_string(),
            _ => format!("{} to {}", k * width, k * width + width - 1),
        }));
    }
    let of_each = (0..60).map(|n| {
        let stretches = first.iter().zip(WIDTHS);
        stretches.map(|(f, width)| f + n / width).collect()
    });
    let members = Members::Many(of_each.collect());
    Family {
        numbers,
        count: 60,
        dimensions: vec![Dimension::new(key, Tier::Time, members, labels)],
    }
}

fn sixtieth(requests: &Requests, unit: i64) -> Vec<u32> {
    (0..requests.rows.len())
        .map(|k| requests.began(k).div_euclid(unit).rem_euclid(60) as u32)
        .collect()
}

/// The second of the minute in which it began, where minutes repeat.
pub fn seconds<'a>(requests: &Requests<'a>) -> Option<Family<'a>> {
    let enough = span_s(requests) >= MINUTES_MIN;
    enough.then(|| of_sixty("second", sixtieth(requests, SECOND)))
}

/// The minute of the hour in which it began, where hours repeat.
pub fn minutes<'a>(requests: &Requests<'a>) -> Option<Family<'a>> {
    let enough = span_s(requests) >= HOURS_MIN;
    enough.then(|| of_sixty("minute", sixtieth(requests, 60 * SECOND)))
}
