//! The last moments on made-up batches: what counts when, and what is kept.

use super::*;
use crate::record::table::{File, Filesystem, Process};
use proptest::prelude::*;

const SECOND: i64 = 1_000_000_000;

/// One request of a batch.
#[derive(Clone, Debug)]
struct Request {
    time_ns: i64,
    took_ns: u64,
    file: u32,
    done: Done,
    dirty: Option<bool>,
}

fn request(time_ns: i64, took_ns: u64, file: u32) -> Request {
    Request {
        time_ns,
        took_ns,
        file,
        done: Done::Real,
        dirty: None,
    }
}

fn batch(requests: &[Request]) -> Table {
    let files = requests.iter().map(|r| r.file).max().map_or(0, |n| n + 1);
    let mut table = Table {
        processes: vec![Process {
            pid: Some(7),
            exe: "/bin/mail".into(),
            ..Process::default()
        }],
        filesystems: vec![Filesystem {
            device: "/dev/sda1".into(),
            ..Filesystem::default()
        }],
        files: (0..files)
            .map(|n| File {
                path: format!("/spool/{n}"),
                filesystem: 0,
            })
            .collect(),
        kinds: vec!["fsync".into(), "sync_file_range".into()],
        callers: vec![String::new()],
        ..Table::default()
    };
    for r in requests {
        let rows = &mut table.rows;
        rows.time_ns.push(r.time_ns);
        rows.took_ns.push(r.took_ns);
        rows.done.push(r.done);
        rows.dirty.push(r.dirty);
        rows.file.push(r.file);
        rows.process.push(0);
        rows.kind.push(0);
        rows.caller.push(0);
    }
    table
}

fn live(window: usize) -> Live {
    let setup = Setup {
        interval_ns: SECOND,
        window,
        lag_ns: SECOND / 2,
    };
    Live::new(setup, 100 * SECOND)
}

fn requests(live: &Live) -> u64 {
    live.window(By::File).map_or(0, |w| w.total.requests)
}

#[test]
fn a_request_counts_when_it_was_answered_whenever_its_batch_arrives() {
    let mut live = live(1);
    assert_eq!(live.window(By::File), None);
    let late = request(100 * SECOND + 1, SECOND as u64, 0);
    let early = request(100 * SECOND + 5, 10, 1);
    live.add(&batch(&[late]), 101 * SECOND);
    assert_eq!(live.advance(101 * SECOND + SECOND / 4), 0, "too early");
    live.add(&batch(&[early]), 100 * SECOND + 9);
    assert_eq!(live.advance(101 * SECOND + SECOND / 2), 1);
    let window = live.window(By::File).expect("closed");
    assert_eq!((window.seconds, window.total.requests), (1.0, 1));
    assert_eq!(window.members[0].0.name, "/spool/1");
    assert_eq!(live.advance(102 * SECOND + SECOND / 2), 1);
    let window = live.window(By::File).expect("closed");
    assert_eq!(window.members[0].0.name, "/spool/0");
    assert_eq!(window.total.times.max_ns(), Some(SECOND as u64));
}

#[test]
fn an_interval_stays_open_for_longer_while_batches_come_late() {
    let mut live = live(1);
    live.add(&batch(&[request(100 * SECOND, 5, 0)]), 102 * SECOND);
    assert_eq!(live.advance(103 * SECOND), 0);
    live.add(&batch(&[request(100 * SECOND + 1, 5, 0)]), 103 * SECOND);
    assert_eq!(live.advance(106 * SECOND), 2);
    assert_eq!(live.history().next().map(|p| p.requests), Some(2));
    // A request that comes far too late does not make everybody wait.
    live.add(&batch(&[request(100 * SECOND, 5, 0)]), 109 * SECOND);
    for second in 106..130 {
        live.advance(second * SECOND);
    }
    live.advance(130 * SECOND + SECOND / 2);
    assert_eq!(live.closed_until_ns(), 130 * SECOND);
}

#[test]
fn each_grouping_has_all_requests_and_hints_are_none() {
    let mut live = live(1);
    let mut table = batch(&[
        request(100 * SECOND, 10, 0),
        request(100 * SECOND, 20, 1),
        request(100 * SECOND, 30, 1),
    ]);
    table.rows.kind[0] = 1;
    live.add(&table, 100 * SECOND);
    live.advance(102 * SECOND);
    for by in By::ALL {
        let window = live.window(by).expect("closed");
        assert_eq!(window.total.requests, 2);
        let sum: u64 = window.members.iter().map(|(_, s)| s.requests).sum();
        assert_eq!(sum, 2, "{by:?}");
        assert_eq!(window.members.len(), 1, "{by:?}");
    }
    let process = &live.window(By::Process).expect("closed").members[0].0;
    assert_eq!((process.pid, &*process.name), (Some(7), "/bin/mail"));
    let device = &live.window(By::Device).expect("closed").members[0].0;
    assert_eq!(device.name, "/dev/sda1");
}

#[test]
fn what_became_of_a_request_is_told_apart() {
    let mut live = live(1);
    let with = |done, dirty, took_ns| Request {
        done,
        dirty,
        ..request(100 * SECOND, took_ns, 0)
    };
    live.add(
        &batch(&[
            with(Done::Real, Some(false), 50),
            with(Done::Real, Some(true), UNKNOWN),
            with(Done::Owed, None, 5),
            with(Done::Skipped, None, 5),
            with(Done::Nothing, None, 5),
        ]),
        100 * SECOND,
    );
    live.advance(102 * SECOND);
    let total = live.window(By::Kind).expect("closed").total;
    assert_eq!((total.requests, total.real, total.skipped), (5, 2, 2));
    assert_eq!((total.known, total.needless, total.took_ns), (2, 1, 65));
    assert_eq!(total.times.percentile_ns(0.99), Some(50));
}

#[test]
fn only_the_last_intervals_are_in_a_window_and_history_says_how_it_went() {
    let mut live = live(3);
    for second in 0..10 {
        let at = (100 + second) * SECOND;
        let some = vec![request(at, 1000, 0); second as usize + 1];
        live.add(&batch(&some), at);
        live.advance(at + 2 * SECOND);
    }
    live.advance(111 * SECOND);
    assert_eq!(requests(&live), 8 + 9 + 10);
    assert_eq!(live.window(By::File).expect("closed").seconds, 3.0);
    let history: Vec<u64> = live.history().map(|p| p.requests).collect();
    assert_eq!(history, (1..=10).collect::<Vec<_>>());
    assert!(live.history().all(|p| p.p99_ns == Some(1000)));
}

#[test]
fn history_from_before_the_beginning_is_not_counted_and_a_little_late_is() {
    let mut live = live(1);
    live.add(
        &batch(&[
            request(SECOND, 5, 0),
            request(100 * SECOND - LATE_NS - 6, 5, 0),
            request(99 * SECOND, 5, 1),
        ]),
        100 * SECOND,
    );
    live.advance(103 * SECOND);
    let told: u64 = live.history().map(|p| p.requests).sum();
    assert_eq!(told, 1);
}

#[test]
fn losses_are_told_with_the_requests_beside_them() {
    let mut live = live(2);
    let mut table = batch(&[request(101 * SECOND + 7, 5, 0)]);
    table.lost.insert(7, 30);
    table.lost.insert(8, 3);
    live.add(&table, 100 * SECOND);
    live.advance(103 * SECOND);
    let window = live.window(By::File).expect("closed");
    assert_eq!((window.lost, window.total.requests), (33, 1));
    let history: Vec<u64> = live.history().map(|p| p.requests).collect();
    assert_eq!(history, [0, 34]);
}

#[test]
fn the_heaviest_files_are_kept_and_all_others_are_one() {
    let mut live = live(1);
    let count = 5 * KEPT as u32;
    for first in 0..5u32 {
        let chunk = (0..count / 5).map(|n| n * 5 + first);
        let some: Vec<Request> = chunk
            .map(|n| request(100 * SECOND, u64::from(n) + 1, n))
            .collect();
        live.add(&batch(&some), 100 * SECOND);
    }
    live.advance(102 * SECOND);
    let window = live.window(By::File).expect("closed");
    assert_eq!(window.members.len(), KEPT);
    let lightest = window.members.iter().map(|(_, s)| s.took_ns).min();
    assert!(lightest > Some(u64::from(count) / 2), "{lightest:?}");
    assert_eq!(window.others.requests, u64::from(count) - KEPT as u64);
    assert!(live
        .closed
        .iter()
        .all(|i| i.groups[1].members.len() <= KEPT));
}

#[test]
fn a_clock_that_is_set_begins_anew_and_a_batch_of_the_future_is_no_burden() {
    for now in [10 * SECOND, 100_000 * SECOND] {
        let mut live = live(3);
        live.add(&batch(&[request(i64::MAX, u64::MAX - 1, 0)]), now);
        live.add(&batch(&[request(i64::MIN, 0, 0)]), now);
        assert!(live.open.len() <= OPEN_MAX);
        assert_eq!(live.advance(now), 0);
        live.add(&batch(&[request(now, 1, 0)]), now);
        assert_eq!(live.advance(now + 2 * SECOND), 1);
        assert_eq!(requests(&live), 1);
    }
}

#[test]
fn a_grouping_is_named_as_it_is_called() {
    for by in By::ALL {
        assert_eq!(by.name().parse(), Ok(by));
        assert_eq!(By::ALL[by.place()], by);
    }
    assert!("disk".parse::<By>().is_err());
}

fn any_request() -> impl Strategy<Value = Request> {
    let done = prop_oneof![
        Just(Done::Real),
        Just(Done::Owed),
        Just(Done::Skipped),
        Just(Done::Nothing),
        Just(Done::Unknown),
    ];
    let dirty = proptest::option::of(any::<bool>());
    (
        99 * SECOND..106 * SECOND,
        any::<u64>(),
        0u32..50,
        done,
        dirty,
    )
        .prop_map(|(time_ns, took_ns, file, done, dirty)| Request {
            time_ns,
            // Some without an end, some that took ages, most that did not.
            took_ns: match took_ns % 5 {
                0 => UNKNOWN,
                1 => took_ns,
                _ => took_ns % (SECOND as u64 * 3),
            },
            file,
            done,
            dirty,
        })
}

proptest! {
    #[test]
    fn a_percentile_is_right_to_a_sixteenth(
        times in proptest::collection::vec(any::<u64>().prop_map(|n| n >> (n % 60)), 1..200),
        share in 0.0f64..1.0
    ) {
        let mut sums = Times::default();
        times.iter().for_each(|t| sums.add(*t));
        let mut sorted = times.clone();
        sorted.sort_unstable();
        let rank = ((times.len() as f64 * share).ceil() as usize).max(1);
        let exact = sorted[rank - 1] as f64;
        let told = sums.percentile_ns(share).expect("some") as f64;
        prop_assert!((told - exact).abs() <= exact / 16.0 + 1.0, "{told} {exact}");
        prop_assert_eq!(sums.max_ns(), sorted.last().copied());
    }

    #[test]
    fn every_request_is_in_one_interval_and_in_one_member_of_each_grouping(
        batches in proptest::collection::vec(proptest::collection::vec(any_request(), 0..30), 1..8)
    ) {
        let mut live = live(usize::MAX);
        let mut now = 100 * SECOND;
        let mut given = 0u64;
        for requests in &batches {
            live.add(&batch(requests), now);
            given += requests.len() as u64;
            now += SECOND / 3;
            live.advance(now);
        }
        for _ in 0..OPEN_MAX {
            live.close();
        }
        for by in By::ALL {
            let window = live.window(by).expect("closed");
            let mut sum = window.others.clone();
            window.members.iter().for_each(|(_, s)| sum.merge(s));
            prop_assert_eq!(&sum, &window.total);
            prop_assert_eq!(window.total.requests, given);
            prop_assert!(sum.real + sum.skipped <= sum.requests && sum.needless <= sum.known);
        }
    }
}
