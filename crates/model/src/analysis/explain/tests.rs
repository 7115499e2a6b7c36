//! Planted causes are found, and none is found where none was planted.

use super::simulated::{recording, Plan, Seen};
use super::*;
use crate::record::table::Done;

/// Explains a recording with 6 % slow requests where `bad` holds, and next to none elsewhere.
fn planted(seed: u64, bad: &dyn Fn(&Seen) -> bool) -> Explanation {
    let slow = |s: &Seen| if bad(s) { 0.06 } else { 0.001 };
    explain(
        &recording(&Plan {
            requests: 6000,
            processes: 8,
            ..Plan::new(seed, &slow)
        }),
        None,
    )
}

/// The names of the first cause.
fn first(e: &Explanation) -> Vec<(&str, &str)> {
    let cause = e.causes.first();
    let names = cause.map_or(&[][..], |c| &c.dimensions.0[..]);
    names
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect()
}

fn has(e: &Explanation, key: &str, value: &str) -> bool {
    first(e).contains(&(key, value))
}

/// A rule for slow requests, and a name that the first cause then has.
type Case = (&'static str, &'static str, fn(&Seen) -> bool);

const CASES: [Case; 17] = [
    ("device", "/dev/loop1", |s| s.device == 1),
    ("mount", "/spool/b", |s| s.device == 1),
    ("parent", "loop0", |s| s.device == 0),
    ("directory", "/spool/a/user5", |s| {
        s.device == 0 && s.user == 5
    }),
    ("folder", "cur", |s| s.folder == 2),
    ("file", "/spool/b/user3/Maildir/new", |s| {
        s.device == 1 && s.user == 3 && s.folder == 1
    }),
    ("name", "#.M#", |s| s.folder != 1),
    ("exe", "/usr/bin/deliver1", |s| s.process % 2 == 1),
    ("pid", "4003", |s| s.process == 3),
    ("user", "1002", |s| s.process % 3 == 2),
    ("kind", "fdatasync", |s| s.kind == 1),
    ("caller", "libstore.so+0x3", |s| s.caller == 3),
    ("bytes", "at least 64 KiB", |s| s.size >= 65536),
    ("bytes", "4.0 KiB to 8.0 KiB", |s| s.size == 4096),
    ("dirty", "no", |s| !s.dirty),
    ("before", "fsync of another file in a folder \"tmp\"", |s| {
        s.second && s.before_tmp_fsync
    }),
    ("in_flight_on_device", "at least 4", |s| s.in_flight >= 4),
];

#[test]
fn try_cases() {
    for (key, value, bad) in CASES {
        let n = 10;
        let mut ok = 0;
        for seed in 0..n {
            let e = planted(seed, &bad);
            if has(&e, key, value) {
                ok += 1
            } else {
                println!("   {seed} {:?} {:?}", e.nothing, first(&e));
            }
            if e.causes.len() > 1 {
                println!(
                    "   {seed} more {:?}",
                    e.causes[1..]
                        .iter()
                        .map(|c| &c.sentence)
                        .collect::<Vec<_>>()
                );
            }
        }
        println!("{key} {value} {ok}/{n}");
    }
}

#[test]
fn survey() {
    let none = |_: &Seen| 0.03;
    let bad = |s: &Seen| if s.bad_time { 0.6 } else { 0.002 };
    let never = |_: &Seen| 0.0;
    let mut worst = std::collections::BTreeMap::new();
    let n: u64 = std::env::var("N").map_or(20, |n| n.parse().unwrap());
    for seed in 0..n {
        let plans: Vec<(&str, Plan)> = vec![
            ("even", Plan::new(seed, &never)),
            ("modes", Plan::new(seed, &none)),
            (
                "modes-8000",
                Plan {
                    requests: 8000,
                    processes: 16,
                    ..Plan::new(seed, &none)
                },
            ),
            (
                "modes-slow-think",
                Plan {
                    think_ms: 100.0,
                    ..Plan::new(seed, &none)
                },
            ),
            (
                "small",
                Plan {
                    requests: 400,
                    ..Plan::new(seed, &none)
                },
            ),
            (
                "heavy",
                Plan {
                    heavy: true,
                    ..Plan::new(seed, &never)
                },
            ),
            (
                "heavy-4dev",
                Plan {
                    heavy: true,
                    devices: 4,
                    requests: 10000,
                    processes: 20,
                    ..Plan::new(seed, &never)
                },
            ),
            (
                "bursts",
                Plan {
                    bad_every_s: 0.5,
                    bad_for_s: 0.1,
                    ..Plan::new(seed, &bad)
                },
            ),
            (
                "bursts-dev",
                Plan {
                    bad_every_s: 0.3,
                    bad_for_s: 0.1,
                    bad_by_device: true,
                    ..Plan::new(seed, &bad)
                },
            ),
            (
                "bursts-dev-long",
                Plan {
                    requests: 10000,
                    think_ms: 30.0,
                    bad_every_s: 2.0,
                    bad_for_s: 1.0,
                    bad_by_device: true,
                    ..Plan::new(seed, &bad)
                },
            ),
            (
                "bursts-dev4",
                Plan {
                    requests: 10000,
                    devices: 4,
                    think_ms: 100.0,
                    bad_every_s: 10.0,
                    bad_for_s: 2.0,
                    bad_by_device: true,
                    ..Plan::new(seed, &bad)
                },
            ),
            (
                "one-burst",
                Plan {
                    bad_every_s: 4.0,
                    bad_for_s: 0.5,
                    ..Plan::new(seed, &bad)
                },
            ),
        ];
        for (name, plan) in plans {
            let begin = std::time::Instant::now();
            let _ = begin;
            let e = explain(&recording(&plan), None);
            let w = worst.entry(name).or_insert((0, String::new()));
            if !e.causes.is_empty() {
                w.0 += 1;
                let c = &e.causes[0];
                w.1 += &format!(
                    "\n     {seed} {:?}/{}/{} {:?} {:.2} {:.2} {:.2} {:.1e}",
                    e.how,
                    e.slow,
                    e.total,
                    c.dimensions.0,
                    c.coverage,
                    c.lift,
                    c.lift_low,
                    c.p_value
                );
            }
        }
    }
    for requests in [300, 600, 1200] {
        for p in [0.02, 0.06] {
            let slow = |s: &Seen| if s.device == 1 { p } else { 0.001 };
            let found = (0..n)
                .filter(|seed| {
                    has(
                        &explain(
                            &recording(&Plan {
                                requests,
                                ..Plan::new(*seed, &slow)
                            }),
                            None,
                        ),
                        "device",
                        "/dev/loop1",
                    )
                })
                .count();
            println!("power {requests} {p}: {found}/{n}");
        }
    }
    for (name, (n, list)) in worst {
        println!(
            "{name}: {n}{}",
            list.lines().take(12).collect::<Vec<_>>().join("\n")
        );
    }
}
