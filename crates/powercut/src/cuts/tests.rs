//! Every state is legal, as a brute-force enumeration says it.

use super::super::store::{Content, Store};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SECTORS: u32 = 6;

#[derive(Clone, Debug)]
enum Step {
    Write(u32, Vec<u8>),
    Zero(u32, u32),
    Flush,
    Lie,
    Say,
}

fn step() -> impl Strategy<Value = Step> {
    let write = (0..SECTORS).prop_flat_map(|at| {
        let most = (SECTORS - at).min(3) as usize;
        (Just(at), proptest::collection::vec(1u8..9, 1..=most))
    });
    let zero = (0..SECTORS).prop_flat_map(|at| (Just(at), 1..=(SECTORS - at).min(2)));
    prop_oneof![
        5 => write.prop_map(|(at, bytes)| Step::Write(at, bytes)),
        1 => zero.prop_map(|(at, n)| Step::Zero(at, n)),
        2 => Just(Step::Flush),
        1 => Just(Step::Lie),
        2 => Just(Step::Say),
    ]
}

fn log_of(steps: &[Step]) -> (Store, Log) {
    let mut store = Store::new(512);
    let mut log = Log::new(Image::zeros(SECTORS as usize));
    for step in steps {
        match step {
            Step::Write(at, bytes) => {
                let bytes: Vec<u8> = bytes.iter().flat_map(|b| [*b; 512]).collect();
                log.write(&mut store, *at, &bytes, 0);
            }
            Step::Zero(at, sectors) => log.zero(*at, *sectors, 0),
            Step::Flush => log.flush(false, 0),
            Step::Lie => log.flush(true, 0),
            Step::Say => log.mark(Mark::Line(Voice::Out, vec![b'a']), 0),
        }
    }
    (store, log)
}

/// What each sector may hold after a power cut before operation `at`, found by going through the
/// log once, without any of the code under test.
fn legal(steps: &[Step], at: usize) -> Vec<BTreeSet<u8>> {
    let mut may = vec![BTreeSet::from([0u8]); SECTORS as usize];
    let mut last = vec![0u8; SECTORS as usize];
    for step in &steps[..at] {
        let written: Vec<(u32, u8)> = match step {
            Step::Write(at, bytes) => (*at..).zip(bytes.iter().copied()).collect(),
            Step::Zero(at, n) => (*at..at + n).map(|s| (s, 0)).collect(),
            Step::Flush => {
                for (may, last) in may.iter_mut().zip(&last) {
                    *may = BTreeSet::from([*last]);
                }
                Vec::new()
            }
            Step::Lie | Step::Say => Vec::new(),
        };
        for (sector, value) in written {
            last[sector as usize] = value;
            may[sector as usize].insert(value);
        }
    }
    may
}

fn values(store: &Store, image: &Image) -> Vec<u8> {
    image.0.iter().map(|c: &Content| store.get(*c)[0]).collect()
}

proptest! {
    #[test]
    fn every_state_is_legal_and_none_comes_twice(
        steps in proptest::collection::vec(step(), 0..14),
        seed in any::<u64>(),
    ) {
        let (store, log) = log_of(&steps);
        let mut seen = BTreeSet::new();
        for (cut, image) in Cuts::new(&log, Voice::Out, seed).take(2000) {
            let values = values(&store, &image);
            let may = legal(&steps, cut.at);
            for (value, may) in values.iter().zip(&may) {
                prop_assert!(may.contains(value), "{cut:?}: {values:?} of {may:?}");
            }
            let said = steps[..cut.at].iter().filter(|s| matches!(s, Step::Say)).count();
            prop_assert!(seen.insert((values, said)));
            prop_assert_eq!(log.state(&cut), image);
        }
    }

    /// Small logs are searched until nothing is left: every state that is legal at a moment where
    /// all writes have one sector is found. Of those that tear a write some are left to chance.
    #[test]
    fn of_a_small_log_every_legal_state_is_tried_that_tears_no_write(
        steps in proptest::collection::vec(step(), 0..6),
        seed in any::<u64>(),
    ) {
        let (store, log) = log_of(&steps);
        let found: BTreeSet<Vec<u8>> =
            Cuts::new(&log, Voice::Out, seed).map(|(_, image)| values(&store, &image)).collect();
        let may = legal(&steps, steps.len());
        // All of them at the end of the log, where they are few.
        let all = may.iter().fold(vec![Vec::new()], |all: Vec<Vec<u8>>, may| {
            let longer = |a: &Vec<u8>| {
                let a = a.clone();
                may.iter().map(move |v| [a.clone(), vec![*v]].concat())
            };
            all.iter().flat_map(longer).collect()
        });
        let whole = log.pending(log.ops.len()).iter().all(|op| log.sectors(*op) == 1);
        if whole && all.len() <= 4 {
            let missing: Vec<_> = all.iter().filter(|s| !found.contains(*s)).collect();
            prop_assert!(missing.is_empty(), "{missing:?}");
        }
        let everything = log.image(log.ops.len());
        prop_assert!(found.contains(&values(&store, &everything)));
    }

    #[test]
    fn the_same_seed_gives_the_same_cuts(
        steps in proptest::collection::vec(step(), 0..10),
        seed in any::<u64>(),
    ) {
        let (_, log) = log_of(&steps);
        let cuts = || -> Vec<Cut> {
            Cuts::new(&log, Voice::Out, seed).map(|(cut, _)| cut).take(300).collect()
        };
        prop_assert_eq!(cuts(), cuts());
    }

    #[test]
    fn cuts_that_are_not_asked_for_are_left_out_and_all_others_are_there(
        steps in proptest::collection::vec(step(), 0..10),
        seed in any::<u64>(),
    ) {
        let (_, log) = log_of(&steps);
        let is_plain = |cut: &Cut| matches!(cut.reached, Reached::Nothing | Reached::Everything);
        let only: Vec<Cut> = Cuts::new(&log, Voice::Out, seed)
            .only(|cut| matches!(cut.reached, Reached::Nothing | Reached::Everything))
            .map(|(cut, _)| cut)
            .collect();
        prop_assert!(only.iter().all(is_plain));
        for (cut, _) in Cuts::new(&log, Voice::Out, seed).filter(|(cut, _)| is_plain(cut)) {
            prop_assert!(only.contains(&cut), "{cut:?}");
        }
    }
}

#[test]
fn right_behind_what_was_said_comes_first() {
    let write = |b| Step::Write(0, vec![b]);
    let steps = [
        write(1),
        Step::Flush,
        write(2),
        Step::Say,
        write(3),
        Step::Flush,
    ];
    let (store, log) = log_of(&steps);
    let first: Vec<(usize, u8)> = Cuts::new(&log, Voice::Out, 1)
        .take(2)
        .map(|(cut, image)| (cut.at, values(&store, &image)[0]))
        .collect();
    // Acknowledged, and only the first write is sure to be there; then the disk before any flush.
    assert_eq!(first, [(4, 1), (1, 0)]);
}

#[test]
fn a_search_that_is_cut_short_has_looked_everywhere() {
    assert_eq!(spread((0..8).collect()), [0, 4, 2, 6, 1, 5, 3, 7]);
    assert_eq!(spread(vec![7]), [7]);
    assert!(spread(Vec::<u8>::new()).is_empty());
    let mut all: Vec<u32> = spread((0..100).collect());
    let early = all[..10].to_vec();
    assert!(
        (0..5).all(|fifth| early.iter().any(|n| n / 20 == fifth)),
        "{early:?}"
    );
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
}

/// Without a sync the disk stays as it is, and each promise more makes another state of it.
#[test]
fn the_same_disk_is_another_state_where_more_was_promised() {
    let (_, log) = log_of(&[Step::Say, Step::Say, Step::Say]);
    let cuts: Vec<usize> = Cuts::new(&log, Voice::Out, 1)
        .map(|(cut, _)| cut.at)
        .collect();
    assert_eq!(cuts, [3, 1, 2]);
}

#[test]
fn what_was_said_before_a_cut_is_known() {
    let mut log = Log::new(Image::zeros(1));
    log.mark(Mark::Line(Voice::Out, b"one".to_vec()), 0);
    log.mark(Mark::Line(Voice::Err, b"two".to_vec()), 0);
    log.mark(Mark::Line(Voice::Out, b"three".to_vec()), 0);
    assert_eq!(log.said(Voice::Out, 2), b"one\n");
    assert_eq!(log.said(Voice::Out, 3), b"one\nthree\n");
}
