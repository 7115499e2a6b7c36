//! Recordings whose difference is known: whether it is found, and how often one is found that is
//! not there.

use super::*;
use crate::record::kind::{FSYNC, SYNC_FILE_RANGE};
use crate::record::table::{Done, File, Filesystem, Process, Table, UNKNOWN};

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
    requests: 3000,
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

fn compare(a: &Table, b: &Table, per: Option<Per>) -> Diff {
    let by = By::ALL;
    diff(&Side::of(a, &by), &Side::of(b, &by), &by, per)
}

/// How many of 100 pairs of recordings are told to differ by chance only: in cost, in median, and
/// altogether.
fn within_noise(a: Load, b: Load) -> (usize, usize, usize) {
    let (mut cost, mut median, mut both) = (0, 0, 0);
    for seed in 0..100 {
        let found = compare(&recording(a, 2 * seed), &recording(b, 2 * seed + 1), None).all;
        cost += usize::from(!found.change_s.excludes(0.0));
        median += usize::from(!found.p50_ratio.expect("medians").excludes(1.0));
        both += usize::from(found.within_noise);
    }
    (cost, median, both)
}

#[test]
fn sounding() {
    for n in [50, 300, 3000, 20000] {
        for likeness in [0.0, 0.5, 0.9, 0.98] {
            for pause_s in [Some(0.001), None] {
                let l = Load {
                    requests: n,
                    likeness,
                    pause_s,
                    ..LOAD
                };
                let more = Load {
                    median_s: LOAD.median_s * 1.2,
                    ..l
                };
                println!(
                    "{n} {likeness} {pause_s:?}: {:?} {:?}",
                    within_noise(l, l),
                    within_noise(l, more)
                );
            }
        }
    }
}
