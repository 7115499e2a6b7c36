//! Recordings whose difference is known: whether it is found, and how often one is found that is
//! not there.

use super::*;
use crate::record::kind::{FSYNC, SYNC_FILE_RANGE};
use crate::record::table::{Done, File, Filesystem, Process, Table, UNKNOWN};
use proptest::prelude::*;
use synclater_random::Random;

/// How requests come, and how long they take.
#[derive(Clone, Copy)]
struct Load {
    requests: usize,
    /// Median duration.
    median_s: f64,
    /// How much of the last request's deviation stays in the next one's.
    likeness: f64,
    /// Time from the end of a request to the next one; where `None`, they come at random times
    /// within a minute, and their number is random too.
    pause_s: Option<f64>,
}

const LOAD: Load = Load {
    requests: 1000,
    median_s: 0.002,
    likeness: 0.0,
    pause_s: Some(0.001),
};

fn uniform(random: &mut Random) -> f64 {
    (random.draw() >> 11) as f64 / (1u64 << 53) as f64
}

fn normal(random: &mut Random) -> f64 {
    let r = (-2.0 * (1.0 - uniform(random)).ln()).sqrt();
    r * (std::f64::consts::TAU * uniform(random)).cos()
}

fn bare() -> Table {
    Table {
        kinds: vec![FSYNC.into(), SYNC_FILE_RANGE.into()],
        processes: vec![Process::default()],
        files: vec![File::default()],
        filesystems: vec![Filesystem::default()],
        ..Table::default()
    }
}

fn push(t: &mut Table, time_s: f64, took_s: f64) {
    t.rows.time_ns.push((time_s * 1e9) as i64);
    t.rows.took_ns.push((took_s * 1e9) as u64);
    t.rows.process.push(0);
    t.rows.tid.push(0);
    t.rows.file.push(0);
    t.rows.kind.push(0);
    t.rows.done.push(Done::Real);
    t.rows.reason.push(0);
    t.rows.errno.push(0);
    t.rows.bytes.push(UNKNOWN);
    t.rows.dirty.push(None);
    t.rows.caller.push(0);
}

fn recording(load: Load, seed: u64) -> Table {
    let mut random = Random::new(seed);
    let mut t = bare();
    let minute_s = 60.0;
    let (mut time_s, mut off) = (0.0, normal(&mut random));
    for _ in 0.. {
        let fresh = (1.0 - load.likeness * load.likeness).sqrt() * normal(&mut random);
        off = load.likeness * off + fresh;
        let took_s = load.median_s * (0.8 * off).exp();
        let gap_s = -(1.0 - uniform(&mut random)).ln() * minute_s / load.requests as f64;
        time_s += if load.pause_s.is_some() { 0.0 } else { gap_s };
        let ends = match load.pause_s {
            Some(_) => t.rows.len() == load.requests,
            None => time_s > minute_s,
        };
        if ends {
            break;
        }
        push(&mut t, time_s, took_s);
        time_s += load.pause_s.map_or(0.0, |pause| took_s + pause);
    }
    t.end_ns = Some((time_s.max(minute_s * f64::from(load.pause_s.is_none())) * 1e9) as i64);
    t
}

fn compare(a: &Table, b: &Table) -> Diff {
    let by = By::ALL;
    diff(&Side::of(a, &by), &Side::of(b, &by), &by, None)
}

/// How many of 100 pairs of recordings are told to differ by no more than chance.
fn within_noise(a: Load, b: Load) -> usize {
    let side = |load, seed| Side::of(&recording(load, seed), &[]);
    let is_noise = |seed: &u64| {
        let (a, b) = (side(a, 2 * seed), side(b, 2 * seed + 1));
        diff(&a, &b, &[], None).all.within_noise
    };
    (0..100).filter(is_noise).count()
}

const RANDOM_TIMES: Load = Load {
    pause_s: None,
    ..LOAD
};
const ALIKE: Load = Load {
    requests: 3000,
    likeness: 0.9,
    ..LOAD
};

fn slower(load: Load) -> Load {
    Load {
        median_s: load.median_s * 1.2,
        ..load
    }
}

#[test]
fn no_change_is_noise_in_most_of_a_hundred_pairs() {
    for load in [LOAD, RANDOM_TIMES] {
        let noise = within_noise(load, load);
        assert!(noise >= 80, "{noise}");
    }
}

#[test]
fn no_change_is_noise_also_where_neighbours_are_alike() {
    let noise = within_noise(ALIKE, ALIKE);
    assert!(noise >= 75, "{noise}");
}

#[test]
fn a_fifth_more_is_found() {
    for load in [LOAD, RANDOM_TIMES] {
        let missed = within_noise(load, slower(load));
        assert!(missed <= 2, "{missed}");
    }
    // Of likeness 0.9, 3,000 requests tell no more than 160 that are independent.
    let missed = within_noise(ALIKE, slower(ALIKE));
    assert!((20..80).contains(&missed), "{missed}");
}

#[test]
fn the_interval_holds_a_change_that_is_there() {
    let mut held = 0;
    for seed in 0..40 {
        let (a, b) = (
            recording(LOAD, 2 * seed),
            recording(slower(LOAD), 2 * seed + 1),
        );
        let ratio = diff(&Side::of(&a, &[]), &Side::of(&b, &[]), &[], None)
            .all
            .p50_ratio;
        let (low, high) = ratio.expect("medians").interval.expect("an interval");
        held += usize::from((low..high).contains(&1.2));
    }
    assert!(held >= 34, "{held} of 40");
}

#[test]
fn a_recording_does_not_differ_from_itself_and_two_answers_are_one() {
    let t = recording(LOAD, 7);
    let found = compare(&t, &t);
    assert!(found.all.within_noise && found.groups.iter().all(|c| c.within_noise));
    assert_eq!(found.all.change_s.value, 0.0);
    assert_eq!((found.per, found.alike), (Per::Run, Alike::Work));
    assert_eq!(found.groups, compare(&t, &t).groups);
    let by: Vec<_> = found.groups.iter().map(|c| c.by).collect();
    assert_eq!(by, By::ALL.map(Some));
}

/// A recording whose requests lie on devices by turns: name, median, how many.
fn on_devices(devices: &[(&str, f64, usize)], seed: u64) -> Table {
    let mut random = Random::new(seed);
    let mut t = bare();
    let mut time_s = 0.0;
    for (name, _, _) in devices {
        let filesystem = t.filesystems.len() as u32;
        t.filesystems.push(Filesystem {
            device: (*name).to_owned(),
            mount: format!("/mnt{name}"),
            ..Filesystem::default()
        });
        t.files.push(File {
            path: format!("/mnt{name}/log"),
            filesystem,
        });
    }
    let most = devices.iter().map(|d| d.2).max().unwrap_or(0);
    for turn in 0..most {
        for (at, (_, median_s, _)) in devices.iter().enumerate().filter(|(_, d)| turn < d.2) {
            push(&mut t, time_s, median_s * (0.2 * normal(&mut random)).exp());
            *t.rows.file.last_mut().expect("a row") = at as u32 + 1;
            time_s += 0.01;
        }
    }
    t.end_ns = Some((time_s * 1e9) as i64);
    t
}

fn named<'a>(found: &'a Diff, by: By, name: &str) -> &'a Change {
    let is = |c: &&Change| c.by == Some(by) && c.name == name;
    found.groups.iter().find(is).expect("a group")
}

#[test]
fn the_device_that_became_slower_comes_first_and_the_others_are_noise() {
    let a = [("/a", 0.001, 500), ("/b", 0.001, 500), ("/c", 0.020, 500)];
    let b = [("/a", 0.001, 500), ("/b", 0.003, 500), ("/c", 0.020, 500)];
    let found = compare(&on_devices(&a, 1), &on_devices(&b, 2));
    let of_devices = found.groups.iter().filter(|c| c.by == Some(By::Device));
    let of_devices: Vec<_> = of_devices.collect();
    assert_eq!(of_devices[0].name, "/b");
    let b = of_devices[0];
    assert!((0.9..1.1).contains(&b.change_s.value), "{b:?}");
    assert!(!b.within_noise && b.change_s.excludes(0.0));
    assert!((2.8..3.2).contains(&b.p50_ratio.expect("medians").value));
    assert!(
        of_devices[1..].iter().all(|c| c.within_noise),
        "{of_devices:?}"
    );
    assert!(!named(&found, By::File, "/mnt/b/log").within_noise);
    assert!(!named(&found, By::Filesystem, "/mnt/b").within_noise);
}

#[test]
fn a_group_that_only_one_has_and_one_that_is_too_small_are_told_as_such() {
    let a = [("/a", 0.001, 500), ("/old", 0.002, 400), ("/few", 0.001, 5)];
    let b = [("/a", 0.001, 500), ("/new", 0.002, 400), ("/few", 9.0, 5)];
    let found = compare(&on_devices(&a, 1), &on_devices(&b, 2));
    let old = named(&found, By::Device, "/old");
    assert!(!old.is_in_both() && !old.within_noise && old.p50_ratio.is_none());
    assert!(old.change_s.value < -0.7, "{old:?}");
    let new = named(&found, By::Device, "/new");
    assert!(!new.within_noise && new.change_s.value > 0.7, "{new:?}");
    let few = named(&found, By::Device, "/few");
    assert!(few.is_few() && few.within_noise, "{few:?}");
}

#[test]
fn what_was_not_made_for_real_and_hints_are_not_compared() {
    let mut t = recording(LOAD, 1);
    for row in 0..300 {
        match row % 3 {
            0 => t.rows.done[row] = Done::Owed,
            1 => t.rows.done[row] = Done::Skipped,
            _ => t.rows.kind[row] = 1,
        }
    }
    let side = Side::of(&t, &By::ALL);
    assert_eq!((side.requests, side.others), (700, 200));
    let kinds: Vec<_> = side.groups(By::Kind).expect("kinds").named.keys().collect();
    assert_eq!(kinds, [FSYNC]);
}

#[test]
fn recordings_of_other_length_and_load_are_compared_by_the_second() {
    let short = Load {
        requests: 500,
        ..RANDOM_TIMES
    };
    let (a, mut b) = (recording(LOAD, 1), recording(short, 2));
    assert_eq!(compare(&recording(RANDOM_TIMES, 3), &b).alike, Alike::Time);
    b.end_ns = Some(600_000_000_000);
    let found = compare(&a, &b);
    assert_eq!((found.per, found.alike), (Per::Second, Alike::Nothing));
    let rate = |t: &Table| {
        let (from, to) = t.span_ns().expect("a span");
        t.rows.took_ns.iter().sum::<u64>() as f64 / (to - from) as f64
    };
    let want = rate(&b) - rate(&a);
    assert!((found.all.change_s.value - want).abs() < 1e-9, "{found:?}");
}

#[test]
fn nothing_is_compared_with_nothing_and_with_something() {
    let (nothing, something) = (bare(), recording(LOAD, 1));
    let found = compare(&nothing, &nothing);
    assert!(found.all.within_noise && found.groups.is_empty());
    for found in [compare(&nothing, &something), compare(&something, &nothing)] {
        assert!(found.all.change_s.value.is_finite());
        assert!(!found.all.is_in_both() && found.groups.len() == By::ALL.len());
    }
}

#[test]
fn many_files_are_summed_up_and_nothing_is_lost() {
    let names: Vec<String> = (0..500).map(|n| format!("/{n}")).collect();
    let devices = |median_s: f64| -> Vec<(&str, f64, usize)> {
        let scaled = |n: usize| median_s * (n + 1) as f64;
        let numbered = names.iter().enumerate();
        numbered
            .map(|(n, name)| (name.as_str(), scaled(n), 2))
            .collect()
    };
    let (a, b) = (on_devices(&devices(1e-4), 1), on_devices(&devices(2e-4), 2));
    let found = compare(&a, &b);
    let left = found
        .left_out
        .iter()
        .find(|l| l.by == By::Device)
        .expect("some");
    assert_eq!(left.groups, 300);
    let of_devices = found.groups.iter().filter(|c| c.by == Some(By::Device));
    let numbers = of_devices.map(|c| c.name[1..].parse::<usize>().expect("a number"));
    assert!(numbers.min().is_some_and(|n| n > 100));
    // About 0.2 ms more for each step, of the 300 that have the fewest.
    let all = found.all.change_s.value;
    assert!(
        (all - 25.0).abs() < 2.0 && (left.change_s - 9.0).abs() < 2.0,
        "{all} {left:?}"
    );
}

#[test]
fn a_file_among_thousands_that_became_costly_is_compared_with_itself() {
    // Each file has two requests, too few to keep its name; one is many times as slow in B.
    let names: Vec<String> = (0..3000).map(|n| format!("/{n}")).collect();
    let devices = |slow: f64| -> Vec<(&str, f64, usize)> {
        let median_s = |n: usize| if n == 7 { slow } else { 1e-3 };
        let numbered = names.iter().enumerate();
        numbered
            .map(|(n, name)| (name.as_str(), median_s(n), 2))
            .collect()
    };
    let (a, b) = (on_devices(&devices(1e-6), 1), on_devices(&devices(5.0), 2));
    for (one, other) in [(&a, &b), (&b, &a)] {
        let found = compare(one, other);
        let first = found.groups.iter().find(|c| c.by == Some(By::File));
        let first = first.expect("files");
        assert_eq!(first.name, "/mnt/7/log");
        assert_eq!((first.a.requests, first.b.requests), (2, 2));
        assert!(
            (6.0..14.0).contains(&first.change_s.value.abs()),
            "{first:?}"
        );
        assert!(first.is_few() && first.within_noise);
        let left = found.left_out.iter().find(|l| l.by == By::File);
        assert_eq!(left.map(|l| l.groups), Some(2800));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn figures_of_any_recording_are_those_of_its_sorted_durations(
        rows in proptest::collection::vec((any::<i64>(), any::<u64>(), 0u32..3, 0u16..2), 0..400),
        end in proptest::option::of(any::<i64>()),
    ) {
        let mut t = on_devices(&[("/a", 1.0, 0), ("/b", 1.0, 0)], 1);
        t.end_ns = end;
        for (time_ns, took_ns, file, kind) in &rows {
            push(&mut t, 0.0, 0.0);
            let last = t.rows.len() - 1;
            t.rows.time_ns[last] = *time_ns;
            t.rows.took_ns[last] = *took_ns;
            t.rows.file[last] = *file;
            t.rows.kind[last] = *kind;
        }
        let found = compare(&t, &t);
        let timed = rows.iter().filter(|r| r.3 == 0 && r.1 != UNKNOWN);
        let mut took: Vec<u64> = timed.map(|r| r.1).collect();
        took.sort_unstable();
        let rank = |share: f64| took.get(((took.len() as f64 * share).ceil() as usize).max(1) - 1);
        prop_assert_eq!(found.all.a.p50_ns, rank(0.5).copied());
        prop_assert_eq!(found.all.a.p99_ns, rank(0.99).copied());
        for by in By::ALL {
            let of = found.groups.iter().filter(|c| c.by == Some(by));
            let requests: u64 = of.clone().map(|c| c.b.requests).sum();
            prop_assert_eq!(requests, found.all.b.requests);
            prop_assert!(of.clone().all(|c| c.within_noise), "{:?}", found);
        }
        let json = serde_json::to_string(&found.all.change_s.value);
        prop_assert!(json.expect("a number") != "null");
    }
}
