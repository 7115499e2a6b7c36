//! Planted causes are found, and none is found where none was planted.

use super::simulated::{recording, Plan, Seen};
use super::*;
use crate::record::table::Done;
use proptest::prelude::*;

/// Seeds of each kind of recording: a few, or many for `make soak`.
pub(super) fn seeds(few: u64, many: u64) -> std::ops::Range<u64> {
    let soak = std::env::var_os("SYNCLATER_SOAK").is_some();
    0..if soak { many } else { few }
}

/// 6000 requests, of which a share is slow where `bad` holds, and next to none elsewhere.
fn planted(seed: u64, share: f64, bad: &dyn Fn(&Seen) -> bool) -> Explanation {
    let slow = |s: &Seen| if bad(s) { share } else { 0.001 };
    let plan = Plan {
        requests: 6000,
        processes: 8,
        ..Plan::new(seed, &slow)
    };
    explain(&recording(&plan), None)
}

/// The names of the first cause.
pub(super) fn first(e: &Explanation) -> Vec<(&str, &str)> {
    let cause = e.causes.first();
    let names = cause.map_or(&[][..], |c| &c.dimensions.0[..]);
    names
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect()
}

/// A dimension, its value, the share of slow requests, and which they are.
type Case = (&'static str, &'static str, f64, fn(&Seen) -> bool);

const CASES: [Case; 17] = [
    ("device", "/dev/loop1", 0.06, |s| s.device == 1),
    ("mount", "/spool/b", 0.06, |s| s.device == 1),
    ("parent", "loop0", 0.06, |s| s.device == 0),
    ("directory", "/spool/a/user5/Maildir", 0.2, |s| {
        s.device == 0 && s.user == 5
    }),
    ("folder", "cur", 0.06, |s| s.folder == 2),
    ("file", "/spool/b/user3/Maildir/new", 0.5, |s| {
        s.device == 1 && s.user == 3 && s.folder == 1
    }),
    ("name", "#.M#", 0.06, |s| s.folder != 1),
    ("exe", "/usr/bin/deliver1", 0.06, |s| s.process % 2 == 1),
    ("pid", "4003", 0.1, |s| s.process == 3),
    ("user", "1002", 0.06, |s| s.process % 3 == 2),
    ("kind", "fdatasync", 0.06, |s| s.kind == 1),
    ("caller", "libstore.so+0x3", 0.1, |s| s.caller == 3),
    ("bytes", "at least 64 KiB", 0.1, |s| s.size >= 65536),
    ("bytes", "4.0 KiB to 8.0 KiB", 0.3, |s| s.size == 4096),
    ("dirty", "no", 0.06, |s| !s.dirty),
    (
        "before",
        "fsync of another file in a folder \"tmp\"",
        0.2,
        |s| s.after_tmp_fsync,
    ),
    ("in_flight_on_device", "at least 2", 0.3, |s| {
        s.in_flight >= 2
    }),
];

#[test]
fn soak_a_cause_in_any_dimension_is_named_first_and_alone() {
    for (key, value, share, bad) in CASES {
        for seed in seeds(2, 20) {
            let e = planted(seed, share, &bad);
            assert!(
                first(&e).contains(&(key, value)),
                "{key}, seed {seed}: {e:#?}"
            );
            assert_eq!(e.causes.len(), 1, "{key}, seed {seed}: {e:#?}");
            let cause = &e.causes[0];
            assert!(
                cause.coverage > 0.1 && cause.lift > 1.4 && cause.p_value < 0.01,
                "{cause:?}"
            );
            assert!(
                cause.lift_low > 1.0 && cause.lift_low <= cause.lift,
                "{cause:?}"
            );
        }
    }
}

/// Ten minutes.
fn long<'a>(seed: u64, slow: &'a dyn Fn(&Seen) -> f64) -> Plan<'a> {
    Plan {
        requests: 8000,
        processes: 8,
        think_ms: 1200.0,
        ..Plan::new(seed, slow)
    }
}

#[test]
fn soak_what_happens_every_minute_is_named() {
    for seed in seeds(2, 20) {
        let slow = |s: &Seen| if s.time_s % 60.0 < 5.0 { 0.4 } else { 0.002 };
        let mut table = recording(&long(seed, &slow));
        // So that seconds of the minute are those of the simulation.
        let begin = 1_700_000_000_000_000_000 % 60_000_000_000;
        table.rows.time_ns.iter_mut().for_each(|t| *t -= begin);
        let e = explain(&table, None);
        assert_eq!(first(&e), [("second", "0 to 4")], "seed {seed}: {e:#?}");
    }
}

#[test]
fn soak_a_device_that_had_rested_is_named() {
    for seed in seeds(2, 20) {
        let slow = |s: &Seen| if s.rested_s >= 1.0 { 0.5 } else { 0.002 };
        let e = explain(&recording(&long(seed, &slow)), None);
        assert_eq!(
            first(&e),
            [("device_rest", "at least 1 s")],
            "seed {seed}: {e:#?}"
        );
    }
}

#[test]
fn soak_much_dirty_memory_is_named() {
    for seed in seeds(2, 20) {
        let slow = |s: &Seen| {
            if s.dirty_bytes >= (1u64 << 27) as f64 {
                0.3
            } else {
                0.002
            }
        };
        let e = explain(&recording(&long(seed, &slow)), None);
        assert_eq!(
            first(&e),
            [("dirty_bytes", "at least 128 MiB")],
            "seed {seed}: {e:#?}"
        );
    }
}

#[test]
fn soak_a_pair_is_named_where_each_part_matters_only_with_the_other() {
    for seed in seeds(2, 20) {
        let e = planted(seed, 0.15, &|s| s.device == 1 && s.kind == 1);
        let cause = &e.causes[0];
        assert_eq!(cause.pair.len(), 2, "seed {seed}: {e:#?}");
        let names = first(&e);
        assert!(
            names.contains(&("device", "/dev/loop1")),
            "seed {seed}: {e:#?}"
        );
        assert!(
            names.contains(&("kind", "fdatasync")),
            "seed {seed}: {e:#?}"
        );
        assert!(cause.sentence.contains(" and "), "{}", cause.sentence);
        assert_eq!(e.causes.len(), 1, "seed {seed}: {e:#?}");
    }
}

#[test]
fn soak_two_causes_are_both_named() {
    for seed in seeds(2, 20) {
        let e = planted(seed, 0.1, &|s| s.device == 1 || s.process == 2);
        let named = |key: &str, value: &str| {
            let of = |c: &Cause| c.dimensions.0.contains(&(key.into(), value.into()));
            e.causes.iter().any(of)
        };
        assert!(named("device", "/dev/loop1"), "seed {seed}: {e:#?}");
        assert!(named("pid", "4002"), "seed {seed}: {e:#?}");
    }
}

#[test]
fn names_of_the_same_requests_are_one_cause_with_the_most_useful_first() {
    let e = planted(7, 0.06, &|s| s.device == 1);
    let keys: Vec<&str> = first(&e).iter().map(|n| n.0).collect();
    assert_eq!(keys, ["device", "mount", "parent", "directory"]);
    let sentence = &e.causes[0].sentence;
    assert!(
        sentence.contains("went to /dev/loop1 (mounted on /spool/b): there"),
        "{sentence}"
    );
    assert_eq!(e.nothing, None);
}

/// Recordings without a cause: even ones, two modes, heavy tails, bursts of all or of one device.
fn without_cause<'a>(seed: u64, rules: &'a Rules) -> [Plan<'a>; 10] {
    let bursts = |slow: &'a dyn Fn(&Seen) -> f64, every: f64, long: f64, by_device: bool| Plan {
        bad_every_s: every,
        bad_for_s: long,
        bad_by_device: by_device,
        ..Plan::new(seed, slow)
    };
    let modes = &rules.modes;
    let never = &rules.never;
    let bad = &rules.bad;
    [
        Plan::new(seed, never),
        Plan::new(seed, modes),
        Plan {
            processes: 16,
            ..Plan::new(seed, modes)
        },
        Plan {
            think_ms: 100.0,
            ..Plan::new(seed, modes)
        },
        Plan {
            requests: 400,
            ..Plan::new(seed, modes)
        },
        Plan {
            heavy: true,
            devices: 4,
            processes: 20,
            ..Plan::new(seed, never)
        },
        bursts(bad, 0.5, 0.1, false),
        bursts(bad, 0.3, 0.1, true),
        Plan {
            think_ms: 30.0,
            ..bursts(bad, 2.0, 1.0, true)
        },
        Plan {
            devices: 4,
            think_ms: 100.0,
            ..bursts(bad, 10.0, 2.0, true)
        },
    ]
}

/// Rules of recordings without a cause.
struct Rules {
    never: fn(&Seen) -> f64,
    modes: fn(&Seen) -> f64,
    bad: fn(&Seen) -> f64,
}

const RULES: Rules = Rules {
    never: |_| 0.0,
    modes: |_| 0.03,
    bad: |s| if s.bad_time { 0.6 } else { 0.002 },
};

#[test]
fn soak_nothing_is_named_where_there_is_no_cause() {
    let mut alarms = Vec::new();
    let mut recordings = 0;
    for seed in seeds(11, 200) {
        for (kind, plan) in without_cause(seed, &RULES).iter().enumerate() {
            let e = explain(&recording(plan), None);
            recordings += 1;
            if e.causes.is_empty() {
                assert!(e.nothing.is_some());
            } else {
                alarms.push(format!("kind {kind}, seed {seed}: {:?}", first(&e)));
            }
        }
    }
    println!("{recordings} recordings, false alarms: {alarms:?}");
    assert!(
        alarms.len() * 100 <= recordings,
        "of {recordings}: {alarms:#?}"
    );
}

#[test]
fn what_was_not_made_for_real_does_not_count() {
    let slow = |s: &Seen| if s.device == 1 { 0.06 } else { 0.001 };
    let mut table = recording(&Plan::new(3, &slow));
    let all = table.rows.len() as u64;
    table.rows.done[..1000].fill(Done::Skipped);
    table.rows.took_ns[1000..1100].fill(crate::record::table::UNKNOWN);
    table.kinds.push("sync_file_range".into());
    table.rows.kind[1100..1200].fill(3);
    let e = explain(&table, None);
    assert_eq!((e.total, e.left_out), (all - 1200, 1200));
    assert_eq!(first(&e)[0], ("device", "/dev/loop1"));
}

#[test]
fn slower_moves_the_bound() {
    let table = recording(&Plan::new(3, &|_| 0.03));
    let e = explain(&table, Some(1_000_000_000_000));
    assert_eq!((e.slow, e.how), (0, How::OverTheGivenTime));
    assert!(
        e.nothing
            .is_some_and(|n| n.contains("took over 16 min 40 s")),
        "it says so"
    );
    let e = explain(&table, Some(0));
    assert_eq!(e.slow, e.total);
    assert!(
        e.nothing
            .is_some_and(|n| n.contains("nothing to compare with")),
        "it says so"
    );
}

#[test]
fn slow_requests_of_one_moment_are_told_as_that() {
    let slow = |s: &Seen| {
        if (0.5..0.7).contains(&s.time_s) {
            0.5
        } else {
            0.0
        }
    };
    let e = explain(&recording(&Plan::new(5, &slow)), None);
    assert!(e.causes.is_empty(), "{e:#?}");
    let together = e.together.expect("they lie together");
    assert!((0.4..0.6).contains(&together.after_s), "{together:?}");
    assert!(together.for_s < 0.5, "{together:?}");
}

#[test]
fn a_further_look_may_find_nothing_slow() {
    const ROWS: [(i64, u64); 9] = [
        (0, 539_049_278_502_359_233),
        (3_241_276_912_827_917_078, 11_445_795_430_537_429_612),
        (-5_186_932_929_696_927_982, 8_769_617_269_526_949_125),
        (-5_683_681_345_328_589_600, 179_625_285_838_304_167),
        (3_950_081_772_714_202_204, 14_861_008_152_296_930_452),
        (1_709_749_365_527_492_041, 8_586_692_000_936_815_978),
        (6_241_612_175_506_014_804, 11_831_137_484_228_997_994),
        (-5_032_728_037_523_067_799, 2_014_467_474_168_024_290),
        (-6_912_404_426_370_409_947, 6_509_235_071_157_254_880),
    ];
    let few = Plan {
        requests: ROWS.len(),
        ..Plan::new(1, &|_| 0.1)
    };
    let mut table = recording(&few);
    for (at, (time_ns, took_ns)) in ROWS.into_iter().enumerate() {
        (table.rows.time_ns[at], table.rows.took_ns[at]) = (time_ns, took_ns);
    }
    assert_eq!(explain(&table, None).causes.len(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_times_and_durations_are_explained(
        rows in proptest::collection::vec((any::<i64>(), any::<u64>(), any::<u64>()), 0..400),
        slower in proptest::option::of(any::<u64>())
    ) {
        let mut table = recording(&Plan { requests: rows.len(), ..Plan::new(1, &|_| 0.1) });
        for (at, row) in rows.iter().enumerate() {
            table.rows.time_ns[at] = row.0;
            table.rows.took_ns[at] = row.1;
            table.rows.bytes[at] = row.2;
        }
        table.rows.kind.iter_mut().step_by(7).for_each(|k| *k = u16::MAX);
        let e = explain(&table, slower);
        prop_assert!(e.slow <= e.total);
        prop_assert!(e.to_json().len() > 100);
        prop_assert!(!e.render().contains('\x1b'));
        for c in &e.causes {
            prop_assert!(c.p_value <= 0.01 && c.coverage <= 1.0);
        }
    }

    #[test]
    fn the_same_recording_gives_the_same_answer_whatever_the_order_of_its_rows(seed in 0u64..50) {
        let slow = |s: &Seen| if s.device == 1 { 0.06 } else { 0.001 };
        let mut table = recording(&Plan::new(seed, &slow));
        let before = explain(&table, None).to_json();
        // Rows are drained a ring after the other.
        let mut order: Vec<usize> = (0..table.rows.len()).collect();
        order.sort_by_key(|row| (row / 50, table.rows.process[*row]));
        let old = table.rows.clone();
        for (to, from) in order.into_iter().enumerate() {
            table.rows.time_ns[to] = old.time_ns[from];
            table.rows.took_ns[to] = old.took_ns[from];
            table.rows.process[to] = old.process[from];
            table.rows.file[to] = old.file[from];
            table.rows.kind[to] = old.kind[from];
            table.rows.bytes[to] = old.bytes[from];
            table.rows.dirty[to] = old.dirty[from];
            table.rows.caller[to] = old.caller[from];
        }
        prop_assert_eq!(before, explain(&table, None).to_json());
    }
}
