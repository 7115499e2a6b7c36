//! `synclater explain`: recordings in, causes out; and what is no recording is told.

use crate::harness::command::{clean, run, Outcome};
use crate::harness::dir::Dir;
use crate::sessions::stage::{has_four_parts, SYNCLATER};
use serde_json::Value;
use std::path::{Path, PathBuf};
use synclater_recording::record::header::Header;
use synclater_recording::record::row::Row;
use synclater_recording::record::write::Writer;
use synclater_recording::record::{done, event, kind};

/// One request of a recording that is made up.
pub struct Request {
    pub time_ns: i64,
    pub took_ns: u64,
    pub pid: u32,
    pub kind: String,
    pub bytes: u64,
    pub path: String,
    pub mount: String,
    pub device: String,
}

/// Writes a recording of these requests; `whole` is one with its end.
pub fn write(file: &Path, requests: &[Request], whole: bool) {
    let out = std::fs::File::create(file).expect("the recording");
    let mut w = Writer::new(out, &Header::default()).expect("its head");
    for r in requests {
        let row = Row {
            event: w.names.name(event::REQUEST),
            time_ns: r.time_ns,
            duration_ns: Some(r.took_ns),
            pid: Some(r.pid),
            tid: Some(r.pid),
            exe: w.names.name("/usr/bin/deliver"),
            kind: w.names.name(&r.kind),
            path: w.names.name(&r.path),
            fstype: w.names.name("ext4"),
            mount: w.names.name(&r.mount),
            device: w.names.name(&r.device),
            result: Some(0),
            done: w.names.name(done::REAL),
            bytes: Some(r.bytes),
            ..Row::default()
        };
        w.push(row).expect("a row");
    }
    w.flush().expect("a batch");
    if whole {
        let end = Row {
            event: w.names.name(event::END),
            time_ns: requests.last().map_or(0, |r| r.time_ns),
            ..Row::default()
        };
        w.push(end).expect("the end");
        w.finish().expect("the end");
    }
}

/// A choice that depends on `k` and on nothing else: below `n`, different for each `what`.
fn choice(k: usize, what: u64, n: u64) -> u64 {
    let mut z = (k as u64 + what * 100_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) % n
}

/// 2000 requests on two devices; of those that `bad` says, a 17th is slow.
fn requests(bad: impl Fn(usize) -> bool) -> Vec<Request> {
    (0..2000)
        .map(|k| {
            let disk = if is_on_b(k) { 'b' } else { 'a' };
            let stuck = bad(k) && choice(k, 1, 17) == 0;
            Request {
                time_ns: 1_700_000_000_000_000_000 + k as i64 * 40_000_000,
                took_ns: 400_000 + choice(k, 2, 100_000) + if stuck { 30_000_000 } else { 0 },
                pid: 4000 + choice(k, 3, 5) as u32,
                kind: if choice(k, 4, 3) == 0 {
                    kind::FSYNC
                } else {
                    kind::FDATASYNC
                }
                .into(),
                bytes: 1 << choice(k, 5, 19),
                path: format!("/spool/{disk}/user{}/file", choice(k, 6, 11)),
                mount: format!("/spool/{disk}"),
                device: format!("/dev/loop-{disk}"),
            }
        })
        .collect()
}

fn is_on_b(k: usize) -> bool {
    choice(k, 7, 13) >= 6
}

pub fn explain(words: &[&str], file: &Path) -> Outcome {
    run(clean(SYNCLATER).arg("explain").args(words).arg(file))
}

pub fn json(words: &[&str], file: &Path) -> Value {
    let outcome = explain(&[words, &["--json"]].concat(), file).must_succeed();
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome}"))
}

fn recorded(dir: &Dir, requests: &[Request]) -> PathBuf {
    let file = dir.join("some.rec");
    write(&file, requests, true);
    file
}

#[test]
fn a_bad_device_is_named_with_its_mount_in_json_and_in_a_sentence() {
    let dir = Dir::new("explain");
    let file = recorded(&dir, &requests(is_on_b));
    let report = json(&[], &file);
    assert_eq!(
        (&report["version"], &report["how"]),
        (&1.into(), &"upper mode".into())
    );
    assert_eq!(report["total"], 2000);
    let cause = &report["causes"][0];
    assert_eq!(cause["dimensions"]["device"], "/dev/loop-b", "{report:#}");
    assert_eq!(cause["dimensions"]["mount"], "/spool/b", "{report:#}");
    assert_eq!(
        report["causes"].as_array().map(Vec::len),
        Some(1),
        "{report:#}"
    );
    let number = |key: &str| cause[key].as_f64().expect("a number");
    assert_eq!(number("coverage"), 1.0);
    assert!((1.8..1.9).contains(&number("lift")), "{report:#}");
    assert!(number("p_value") < 0.01);
    let text = explain(&[], &file).must_succeed().stdout;
    let sentence = "100 % of the slow syncs";
    assert!(
        text.contains(sentence) && text.contains("mounted on"),
        "{text}"
    );
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
}

#[test]
fn where_there_is_nothing_in_common_it_says_so() {
    let dir = Dir::new("explain");
    let file = recorded(&dir, &requests(|_| true));
    let report = json(&[], &file);
    assert_eq!(report["causes"], Value::Array(Vec::new()), "{report:#}");
    let nothing = report["nothing"].as_str().expect("a sentence");
    assert!(nothing.starts_with("nothing in common"), "{nothing}");
    let text = explain(&[], &file).must_succeed().stdout;
    assert!(text.contains("Nothing in common"), "{text}");
}

#[test]
fn slower_says_what_is_slow() {
    let dir = Dir::new("explain");
    let file = recorded(&dir, &requests(is_on_b));
    let report = json(&["--slower", "20ms"], &file);
    assert_eq!(report["slow_over_ns"], 20_000_000);
    assert_eq!(report["how"], "over the given time");
    let none = json(&["--slower", "1min"], &file);
    assert_eq!((&none["slow"], &none["total"]), (&0.into(), &2000.into()));
    for wrong in ["20", "fast", "0s", "-1s"] {
        let outcome = explain(&[&format!("--slower={wrong}")], &file);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    }
}

#[test]
fn a_recording_without_requests_and_one_that_is_cut_off_are_told() {
    let dir = Dir::new("explain");
    let file = recorded(&dir, &[]);
    let report = json(&[], &file);
    assert_eq!((&report["total"], &report["slow"]), (&0.into(), &0.into()));
    let text = explain(&[], &file).must_succeed().stdout;
    assert!(text.contains("Nothing to explain"), "{text}");
    write(&file, &requests(is_on_b), false);
    let report = json(&[], &file);
    assert!(report["incomplete"].is_string(), "{report:#}");
    assert_eq!(report["causes"][0]["dimensions"]["device"], "/dev/loop-b");
}

/// A recording that says that its form has version 9.
fn newer(file: &Path) {
    write(file, &requests(is_on_b), true);
    let mut bytes = std::fs::read(file).expect("the recording");
    let version = [1, 0, 0, 0, b'1', 0];
    let ones = bytes
        .windows(6)
        .take(4000)
        .enumerate()
        .filter(|(_, w)| **w == version);
    let places: Vec<usize> = ones.map(|(at, _)| at + 4).collect();
    assert_eq!(places.len(), 1, "one value of the metadata is 1");
    bytes[places[0]] = b'9';
    std::fs::write(file, bytes).expect("the recording");
}

#[test]
fn what_is_no_recording_is_told_with_what_to_try() {
    let dir = Dir::new("explain");
    let path = |name: &str| dir.join(name);
    std::fs::write(path("empty"), "").expect("a file");
    std::fs::write(path("text"), "2024-01-01 fsync 12 ms\n").expect("a file");
    std::fs::write(path("short"), [0xff, 0xff, 0xff, 0xff, 0, 1, 0, 0]).expect("a file");
    newer(&path("newer"));
    for (name, want) in [
        ("missing", "No such file"),
        ("", "it is a folder"),
        ("empty", "it is empty"),
        ("text", "it is no recording"),
        ("short", "it is cut off in its head"),
        ("newer", "it has version 9"),
    ] {
        let outcome = explain(&[], &path(name));
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
        assert!(has_four_parts(&outcome.stderr), "{outcome}");
        assert!(outcome.stderr.contains(want), "{want}: {outcome}");
        assert!(outcome.stdout.is_empty(), "{outcome}");
    }
}

#[test]
fn a_name_in_a_recording_cannot_steer_the_terminal() {
    let dir = Dir::new("explain");
    let mut all = requests(is_on_b);
    for r in &mut all {
        r.device = r.device.replace("loop", "\x1b[2J\u{202e}\n");
        r.mount = r.mount.replace("spool", "\x07");
    }
    let text = explain(&[], &recorded(&dir, &all)).must_succeed().stdout;
    assert!(text.contains("\\u{1b}[2J"), "{text}");
    let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(steers), "{text:?}");
}

#[test]
fn its_help_has_examples_and_fits_a_terminal() {
    let help = run(clean(SYNCLATER).args(["explain", "--help"])).must_succeed();
    assert!(
        help.stdout.contains("EXAMPLES\n  synclater explain"),
        "{help}"
    );
    assert!(
        help.stdout.lines().all(|l| l.chars().count() <= 80),
        "{help}"
    );
}
