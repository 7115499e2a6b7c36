//! `synclater diff`: what changed is found, and what is chance is told as such.

use crate::harness::command::{clean, run, Outcome};
use crate::harness::dir::Dir;
use crate::harness::limits::count;
use crate::harness::recordings::{
    self, header, Chance, Made, MailServer, Request, MARCH_NS, REQUEST, SECOND_NS,
};
use crate::sessions::stage::{has_four_parts, SYNCLATER};
use serde_json::Value;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

fn diff(words: &[&str], a: &Path, b: &Path) -> Outcome {
    run(clean(SYNCLATER).arg("diff").args(words).arg(a).arg(b))
}

fn json(words: &[&str], a: &Path, b: &Path) -> Value {
    let outcome = diff(&[&["--json"], words].concat(), a, b).must_succeed();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// 600 requests on each of three devices by turns, whose medians are given in milliseconds.
fn on_devices(path: &Path, medians_ms: [f64; 3], seed: u64) {
    let places = [
        ("/dev/sda1", "/"),
        ("/dev/sdb1", "/srv"),
        ("/dev/sdc1", "/spool"),
    ];
    let mut chance = Chance(seed);
    let request = |turn: usize| {
        let (device, mount) = places[turn % 3];
        Request {
            time_ns: MARCH_NS + turn as i64 * SECOND_NS / 10,
            took_ns: chance.around(medians_ms[turn % 3] * 1e6),
            device,
            mount,
            ..REQUEST
        }
    };
    let requests: Vec<Request> = (0..1800).map(request).collect();
    recordings::file(path, &header("mail1", "kelp"), &requests);
}

fn of<'a>(report: &'a Value, by: &str) -> Vec<&'a Value> {
    let groups = report["groups"].as_array().expect("groups");
    groups.iter().filter(|g| g["by"] == by).collect()
}

fn before_and_after(dir: &Dir) -> (PathBuf, PathBuf) {
    let (a, b) = (dir.join("before.rec"), dir.join("after.rec"));
    on_devices(&a, [1.0, 2.0, 10.0], 1);
    on_devices(&b, [1.0, 3.0, 10.0], 2);
    (a, b)
}

#[test]
fn the_disk_that_became_slower_comes_first_and_the_others_are_noise() {
    let dir = Dir::new("diff");
    let (a, b) = before_and_after(&dir);
    let report = json(&[], &a, &b);
    assert_eq!(
        (&report["version"], &report["per"]),
        (&1.into(), &"run".into())
    );
    assert_eq!(report["a"]["host"], "mail1");
    assert_eq!(report["b"]["requests"], 1800);
    assert!(report["a"]["wall_s"]
        .as_f64()
        .is_some_and(|s| (180.0..182.0).contains(&s)));
    let devices = of(&report, "device");
    let first = devices[0];
    assert_eq!(first["name"], "/dev/sdb1", "{report:#}");
    let number = |key: &str| first[key].as_f64().expect("a number");
    let (low, high) = (number("change_low_s"), number("change_high_s"));
    let known = number("change_s");
    let sides = first["b"]["sync_s"]
        .as_f64()
        .zip(first["a"]["sync_s"].as_f64());
    assert!(
        sides.is_some_and(|(b, a)| (b - a - known).abs() < 1e-9),
        "{first:#}"
    );
    assert!(0.0 < low && low < known && known < high, "{first:#}");
    assert!((1.4..1.6).contains(&number("p50_ratio")), "{first:#}");
    assert!(
        number("p50_ratio_low") > 1.3 && number("p50_ratio_high") < 1.7,
        "{first:#}"
    );
    let noise: Vec<_> = devices.iter().map(|d| &d["within_noise"]).collect();
    assert_eq!(noise, [false, true, true]);
    let sentence = devices[1]["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains("within noise"), "{sentence}");
    for by in ["kind", "process", "file", "filesystem"] {
        assert!(!of(&report, by).is_empty(), "{by}");
    }
    assert_eq!(of(&report, "filesystem")[0]["name"], "/srv");
    assert_eq!(report, json(&[], &a, &b));
}

#[test]
fn only_what_was_asked_for_is_shown_in_the_order_in_which_it_was() {
    let dir = Dir::new("by");
    let (a, b) = before_and_after(&dir);
    let text = diff(&["--by", "kind", "--by", "device"], &a, &b)
        .must_succeed()
        .stdout;
    let headings: Vec<_> = text.lines().filter(|l| l.starts_with("By ")).collect();
    assert_eq!(headings, ["By kind", "By device"]);
    let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word}: {text}"));
    assert!(at("/dev/sdb1") < at("/dev/sda1"), "{text}");
    assert!(text.contains("  noise  /dev/sda1\n"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let per = json(&["--by", "kind", "--per", "request"], &a, &b);
    assert_eq!(per["per"], "request");
    for wrong in [["--by", "colour"], ["--per", "day"]] {
        let outcome = diff(&wrong, &a, &b);
        assert_eq!(outcome.status.code(), Some(125), "{outcome}");
    }
}

#[test]
fn a_group_of_one_recording_only_is_shown_as_such_and_steers_no_terminal() {
    let dir = Dir::new("only");
    let (a, b) = (dir.join("a.rec"), dir.join("b.rec"));
    let on = |path: &'static str| -> Vec<Request> {
        let request = |turn| Request {
            time_ns: MARCH_NS + turn * SECOND_NS,
            path,
            ..REQUEST
        };
        (0..100).map(request).collect()
    };
    recordings::file(&a, &header("mail1\x1b[2J", "kelp"), &on("/old\x1b[2J"));
    recordings::file(&b, &header("mail2", "fern"), &on("/new"));
    let text = diff(&[], &a, &b).must_succeed().stdout;
    assert!(text.contains("only in A, 100 requests"), "{text}");
    assert!(text.contains("only in B, 100 requests"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let report = json(&["--by", "file"], &a, &b);
    let only: Vec<_> = of(&report, "file")
        .iter()
        .map(|g| g["only_in"].clone())
        .collect();
    assert_eq!(only, ["b", "a"]);
    assert!(
        of(&report, "file")[0]["a"].get("p50_ns").is_none(),
        "{report:#}"
    );
}

#[test]
fn recordings_without_requests_or_without_an_end_are_compared_as_far_as_they_go() {
    let dir = Dir::new("part");
    let (a, b) = before_and_after(&dir);
    let none = dir.join("none.rec");
    recordings::file(&none, &header("mail1", "kelp"), &[]);
    for (one, other) in [(&none, &b), (&b, &none), (&none, &none)] {
        let outcome = diff(&[], one, other).must_succeed();
        assert!(outcome.stdout.contains("nothing to compare"), "{outcome}");
        json(&[], one, other);
    }
    let mut bytes = fs::read(&a).expect("a recording");
    bytes.extend_from_slice(&bytes.clone()[..50]);
    let mut made = Made::new(
        BufWriter::new(File::create(&a).expect("a file")),
        &header("x", "y"),
    );
    made.push(&REQUEST);
    made.writer.finish().expect("a file");
    let outcome = diff(&[], &a, &b).must_succeed();
    assert!(outcome.stdout.contains("not ended in order"), "{outcome}");
    let missing = &json(&[], &a, &b)["a"]["missing"];
    assert!(
        missing.as_str().is_some_and(|m| m.contains("killed")),
        "{missing}"
    );
}

#[test]
fn what_is_no_recording_is_refused_on_either_side() {
    let dir = Dir::new("bad");
    let (a, _) = before_and_after(&dir);
    let bytes = fs::read(&a).expect("a recording");
    let bad = dir.join("bad.rec");
    let newer = recordings::newer(&bytes);
    for (content, why) in [
        (&b""[..], "it is empty"),
        (b"hello", "does not begin as an Arrow stream"),
        (&bytes[..200], "cut off in its head"),
        (&newer, "version 9"),
    ] {
        fs::write(&bad, content).expect("a file");
        for (one, other) in [(&a, &bad), (&bad, &a)] {
            let outcome = diff(&[], one, other);
            assert_eq!(outcome.status.code(), Some(125), "{outcome}");
            assert!(has_four_parts(&outcome.stderr), "{outcome}");
            assert!(outcome.stderr.contains(why), "{why}: {outcome}");
        }
    }
    let outcome = diff(&[], &a, dir.path());
    assert!(outcome.stderr.contains("it is a folder"), "{outcome}");
}

#[test]
fn soak_ten_million_requests_are_compared() {
    let requests = count(100_000, 10_000_000);
    let dir = Dir::new("large");
    let paths = [dir.join("a.rec"), dir.join("b.rec")];
    for (seed, path) in paths.iter().enumerate() {
        let out = BufWriter::new(File::create(path).expect("a file"));
        let mut made = Made::new(out, &header("mail1", "kelp"));
        let mut server = MailServer::new(seed as u64);
        server.work(&mut made, requests);
        made.end(server.time_ns);
    }
    let mut timed = clean("/usr/bin/env");
    timed.args([
        "bash",
        "-c",
        "time \"$@\"",
        "bash",
        SYNCLATER,
        "diff",
        "--json",
    ]);
    let outcome = run(timed.args(&paths)).must_succeed();
    println!("{requests} requests each: {}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(report["a"]["requests"], requests);
    let noise = |by: &str| of(&report, by).iter().all(|g| g["within_noise"] == true);
    let all = &report["all"];
    assert!(
        noise("kind") && noise("device") || all["within_noise"] == true,
        "{all:#}"
    );
}
