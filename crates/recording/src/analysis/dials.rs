//! What each dial would save, and what it would put at stake: from a recording alone.
//!
//! # How it is estimated
//! Only waiting that a dial can take away counts: requests that were made for real, on file systems
//! whose requests may be put off, and not kept real for a reason of their own. What is left of it:
//!
//! - `never`: nothing.
//! - `exit`: one settle for each file system.
//! - `1s`: one settle for each file system in each second in which anything was asked for. They go
//!   on beside the program, so that this is more than it waits; but they use the same disk.
//!
//! A settle is taken to cost what settles of the same file system cost in this recording, on the
//! average; where there was none, the 90th percentile of its requests, since a settle has more to
//! write than most of them.
//!
//! Threads wait at the same time. What they save together is more than the clock shows, so the
//! saved share of their waiting is taken of the time in which at least one of them waited. That is
//! a bound: nothing can save more than it, and a program that has other things to wait for gains
//! less.

use super::groups::sums;
use super::order::{ByTime, Order};
use super::requests::Requests;
use super::stats::{percentile, seconds, share};
use crate::record::table::{Filesystem, Table, UNKNOWN};
use synclater_policy::filesystem::{kind, FsKind};

/// A second.
const SECOND_NS: i64 = 1_000_000_000;

/// What one dial would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Dial {
    /// The dial, as `--until` takes it.
    pub until: &'static str,
    /// Seconds that it would save; `None` where the recording does not tell.
    pub saved_s: Option<f64>,
    /// What a power cut can take then: when, and order.
    pub at_stake: &'static str,
}

/// Waiting on one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Waiting {
    /// Nanoseconds that a dial can take away.
    movable_ns: u64,
    /// What one settle costs.
    settle_ns: u64,
    /// In how many seconds anything was asked for.
    seconds: u64,
}

impl Waiting {
    /// What a dial saves that settles so often.
    fn saved_ns(&self, settles: u64) -> u64 {
        let settling = self.settle_ns.saturating_mul(settles);
        self.movable_ns.saturating_sub(settling)
    }
}

/// What dials can do about a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Savings {
    filesystems: Vec<Waiting>,
    /// All waiting, that of untested file systems too, in nanoseconds.
    all_ns: u64,
}

/// Whether requests on a file system may be put off.
#[must_use]
pub fn may_be_put_off(filesystem: &Filesystem) -> bool {
    // `sync` names no file system, and owes on all.
    let unknown = filesystem.fstype.is_empty();
    unknown || matches!(kind(&filesystem.fstype), FsKind::Tested | FsKind::Memory)
}

impl Savings {
    /// Looks at all requests once.
    #[must_use]
    pub fn of(order: &Order, by_time: &ByTime) -> Savings {
        let (requests, table) = (order.requests, order.requests.table);
        let place = RowPlaces::of(table);
        let n = table.filesystems.len();
        let sums = sums(requests, n, |i| {
            place.of_movable(requests, i).map_or(u32::MAX, |f| f as u32)
        });
        let mut next = vec![i64::MIN; n];
        let mut filesystems = vec![Waiting::default(); n];
        for i in by_time.iter() {
            if let (Some(f), Some(_)) = (place.of_movable(requests, i), requests.waited_ns(i)) {
                let time = requests.rows.time_ns[i];
                if time >= next[f] {
                    filesystems[f].seconds += 1;
                    next[f] = time.saturating_add(SECOND_NS);
                }
            }
        }
        let settles = settles_ns(order, &place);
        for (f, w) in filesystems.iter_mut().enumerate() {
            w.movable_ns = sums[f].sync_ns;
            w.settle_ns = settles[f];
        }
        Savings {
            filesystems,
            all_ns: order.sum_ns,
        }
    }

    /// Nanoseconds of waiting that `never` would take away, all threads together.
    #[must_use]
    pub fn movable_ns(&self) -> u64 {
        self.total(|w| w.movable_ns)
    }

    fn total(&self, of: impl Fn(&Waiting) -> u64) -> u64 {
        self.filesystems
            .iter()
            .fold(0, |sum, w| sum.saturating_add(of(w)))
    }

    /// The dials; `waiting_ns` is the time in which anyone waited.
    #[must_use]
    pub fn dials(&self, waiting_ns: u64) -> Vec<Dial> {
        // What is settled each second, and what is settled once.
        let each_second = self.total(|w| w.saved_ns(w.seconds));
        let once = self.total(|w| w.saved_ns(1));
        let saved = [
            ("1s", each_second, AT_STAKE_SECOND),
            ("exit", once, AT_STAKE_EXIT),
            ("never", self.movable_ns(), AT_STAKE_NEVER),
        ];
        // Where nothing was made for real, nothing tells what it would have cost.
        let known = self.all_ns > 0;
        let (waiting_s, all_s) = (seconds(waiting_ns), seconds(self.all_ns));
        saved
            .into_iter()
            .map(|(until, saved_ns, at_stake)| Dial {
                until,
                saved_s: known.then(|| waiting_s * share(seconds(saved_ns), all_s)),
                at_stake,
            })
            .collect()
    }
}

/// Where rows lie, and whether their requests may be put off there.
struct RowPlaces {
    filesystem: Vec<u32>,
    movable: Vec<bool>,
}

impl RowPlaces {
    fn of(table: &Table) -> RowPlaces {
        RowPlaces {
            filesystem: table.files.iter().map(|f| f.filesystem).collect(),
            movable: table.filesystems.iter().map(may_be_put_off).collect(),
        }
    }

    fn of_row(&self, requests: &Requests, row: usize) -> Option<usize> {
        let filesystem = *self.filesystem.get(requests.rows.file[row] as usize)? as usize;
        (filesystem < self.movable.len()).then_some(filesystem)
    }

    /// As [`RowPlaces::of_row`], of a request that may be put off and was not kept real.
    fn of_movable(&self, requests: &Requests, row: usize) -> Option<usize> {
        let filesystem = self.of_row(requests, row)?;
        let is_kept = requests.rows.reason[row] != 0;
        (!is_kept && self.movable[filesystem]).then_some(filesystem)
    }
}

/// What a settle of each file system costs: as those in the recording, else as the 90th percentile
/// of its requests.
fn settles_ns(order: &Order, place: &RowPlaces) -> Vec<u64> {
    let n = place.movable.len();
    let mut made = vec![(0u64, 0u64); n];
    let known = order.requests.table.settles.iter();
    for settle in known.filter(|s| s.took_ns != UNKNOWN) {
        if let Some((count, total)) = made.get_mut(settle.filesystem as usize) {
            *count += 1;
            *total = total.saturating_add(settle.took_ns);
        }
    }
    let mut took: Vec<Vec<u64>> = vec![Vec::new(); n];
    for i in order.requests.all().map(|i| i as usize) {
        let here = place.of_row(order.requests, i).filter(|f| made[*f].0 == 0);
        if let (Some(f), Some(ns)) = (here, order.requests.waited_ns(i)) {
            took[f].push(ns);
        }
    }
    made.into_iter()
        .zip(took)
        .map(|((count, total), took)| settle_ns(count, total, took))
        .collect()
}

/// What one settle costs where `count` took so long in `total`, or from what requests `took`.
fn settle_ns(count: u64, total: u64, mut took: Vec<u64>) -> u64 {
    total.checked_div(count).unwrap_or_else(|| {
        took.sort_unstable();
        percentile(&took, 9_000).unwrap_or(0)
    })
}

const AT_STAKE_SECOND: &str = "When: a power cut takes at most the last second and the time that \
    settling takes. Order: not kept; what was settled and not touched since is there, what was \
    being changed may be lost or torn: a mailbox of immutable files loses its last second, a \
    database that updates in place may be corrupt.";

const AT_STAKE_EXIT: &str = "When: a power cut during the run takes what was asked for in the \
    whole run; after it nothing. Order: not kept during the run; what was there before and not \
    touched since is there, what was being changed may be lost or torn: a database that updates in \
    place may be corrupt.";

const AT_STAKE_NEVER: &str = "When: a power cut takes what was written during the run and after \
    it, without a bound. Order: not kept; what was being changed may be lost or torn. For data \
    that can be thrown away.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::table::{Done, File, Settle};
    use proptest::prelude::*;

    /// A request: file system, when, how long.
    fn table(requests: &[(u32, i64, u64)]) -> Table {
        let fs = |fstype: &str| Filesystem {
            fstype: fstype.into(),
            ..Filesystem::default()
        };
        let file = |filesystem| File {
            filesystem,
            ..File::default()
        };
        let mut t = Table {
            kinds: vec!["fsync".into()],
            filesystems: vec![fs(""), fs("ext4"), fs("nfs")],
            files: vec![file(0), file(1), file(2)],
            ..Table::default()
        };
        for (filesystem, time, took) in requests {
            let r = &mut t.rows;
            r.file.push(*filesystem);
            r.time_ns.push(*time);
            r.took_ns.push(*took);
            r.kind.push(0);
            r.reason.push(0);
            r.bytes.push(UNKNOWN);
            r.dirty.push(None);
            r.done.push(Done::Real);
        }
        t
    }

    fn saved(t: &Table, waiting_ns: u64) -> Vec<f64> {
        let requests = Requests::durability(t);
        let order = Order::of(&requests);
        let savings = Savings::of(&order, &ByTime::of(&requests));
        let dials = savings.dials(waiting_ns);
        let round = |d: &Dial| (d.saved_s.expect("known") * 1e6).round() / 1e6;
        dials.iter().map(round).collect()
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn a_settle_a_second_and_one_at_the_end_stay_to_be_paid() {
        let rows: Vec<_> = (0..1000).map(|k| (1, k * 4_000_000, 2 * MS)).collect();
        let t = table(&rows);
        assert_eq!(saved(&t, 2000 * MS), [1.992, 1.998, 2.0]);
    }

    #[test]
    fn settles_that_were_seen_tell_what_one_costs() {
        let rows: Vec<_> = (0..100).map(|k| (1, k * 4_000_000, 2 * MS)).collect();
        let mut t = table(&rows);
        t.settles.push(Settle {
            time_ns: 0,
            took_ns: 50 * MS,
            filesystem: 1,
            debt: None,
            errno: 0,
        });
        assert_eq!(saved(&t, 200 * MS), [0.15, 0.15, 0.2]);
    }

    #[test]
    fn what_stays_real_saves_nothing() {
        let mut t = table(&[(2, 0, 80 * MS), (1, 0, 10 * MS), (1, 5, 10 * MS)]);
        t.rows.reason[2] = 1;
        assert_eq!(saved(&t, 100 * MS)[2], 0.01);
    }

    #[test]
    fn threads_that_wait_at_once_save_no_more_than_the_clock_shows() {
        let rows: Vec<_> = (0..800).map(|k| (1, k / 8 * 4_000_000, 2 * MS)).collect();
        assert_eq!(saved(&table(&rows), 200 * MS)[2], 0.2);
    }

    #[test]
    fn nothing_made_for_real_tells_nothing() {
        let mut t = table(&[(1, 0, 20)]);
        t.rows.done[0] = Done::Owed;
        let requests = Requests::durability(&t);
        let order = Order::of(&requests);
        let savings = Savings::of(&order, &ByTime::of(&requests));
        assert!(savings.dials(0).iter().all(|d| d.saved_s.is_none()));
    }

    proptest! {
        #[test]
        fn a_looser_dial_never_saves_less_and_all_say_when_and_order(
            rows in proptest::collection::vec(
                (0u32..3, 0i64..9_000_000_000, 0u64..50_000_000), 1..80)
        ) {
            let t = table(&rows);
            let requests = Requests::durability(&t);
            let order = Order::of(&requests);
            prop_assume!(order.sum_ns > 0);
            let savings = Savings::of(&order, &ByTime::of(&requests));
            let dials = savings.dials(order.sum_ns);
            let s: Vec<f64> = dials.iter().map(|d| d.saved_s.expect("known")).collect();
            prop_assert!(s.windows(2).all(|w| w[0] <= w[1]), "{:?}", s);
            for d in &dials {
                prop_assert!(d.at_stake.contains("When: ") && d.at_stake.contains("Order: "));
            }
        }
    }
}
