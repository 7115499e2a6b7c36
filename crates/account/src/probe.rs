//! What syncs cost on one disk: the figures of `synclater probe`, and how even they are.

use super::distribution::{bins, Axis, Bin};
use super::saving::Cost;
use serde::Serialize;
use std::fmt::Write as _;
use synclater_policy::filesystem::{kind, FsKind};
use synclater_text::layout::{columns, wrapped};
use synclater_text::number::{count, counted, seconds, Unit};

/// A sync counts as slow above this many times the median: no disk's own spread is that wide.
const SLOW_FACTOR: f64 = 4.0;
/// Slow syncs are named from this share on: fewer are what every machine has now and then.
const SLOW_SHARE_MIN: f64 = 0.005;

/// The kind that syncs what was written over: it costs least.
pub const IN_PLACE: &str = "fdatasync in place";

/// One kind of sync by a number of threads at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// `fsync`, `fdatasync`, [`IN_PLACE`], `O_DSYNC`, `RWF_DSYNC`, `syncfs`, `rename+fsync(dir)`.
    pub kind: String,
    /// How many threads synced at the same time, each a file of its own.
    pub threads: usize,
    /// How many syncs were timed.
    pub count: u64,
    /// Syncs a second, of all threads together.
    pub per_second: f64,
    /// Shortest, in seconds.
    pub min_s: f64,
    /// 25th percentile, in seconds.
    pub p25_s: f64,
    /// Median, in seconds.
    pub p50_s: f64,
    /// 75th percentile, in seconds.
    pub p75_s: f64,
    /// 90th percentile, in seconds.
    pub p90_s: f64,
    /// 99th percentile, in seconds.
    pub p99_s: f64,
    /// Longest, in seconds.
    pub max_s: f64,
    /// Share of syncs that took over four times the median, where they are more than a few.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_share: Option<f64>,
    /// Their median, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_s: Option<f64>,
    /// How many took how long: bins of equal ratio, ten to a decade, shortest first; those that
    /// hold nothing are left out.
    pub histogram: Vec<Bin>,
    /// What each took in seconds, sorted.
    #[serde(skip)]
    took_s: Vec<f64>,
}

/// Columns of a line's name and number of threads.
const LEAD: usize = 26;
/// The axis at least.
const AXIS_MIN: usize = 30;

/// The value below which `share` of the sorted `values` lie (nearest rank).
fn percentile(values: &[f64], share: f64) -> f64 {
    let rank = (values.len() as f64 * share).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

impl Measured {
    /// From the seconds that each sync took, and the seconds that all took together; `None` without
    /// any.
    #[must_use]
    pub fn new(kind: &str, threads: usize, mut took_s: Vec<f64>, wall_s: f64) -> Option<Measured> {
        took_s.sort_by(f64::total_cmp);
        let (first, last) = (*took_s.first()?, *took_s.last()?);
        let p50_s = percentile(&took_s, 0.5);
        let slow = &took_s[took_s.partition_point(|t| *t <= p50_s * SLOW_FACTOR)..];
        let share = slow.len() as f64 / took_s.len() as f64;
        let erratic = share >= SLOW_SHARE_MIN && slow.len() > 2;
        Some(Measured {
            kind: kind.to_owned(),
            threads,
            count: took_s.len() as u64,
            per_second: took_s.len() as f64 / wall_s,
            min_s: first,
            p25_s: percentile(&took_s, 0.25),
            p50_s,
            p75_s: percentile(&took_s, 0.75),
            p90_s: percentile(&took_s, 0.9),
            p99_s: percentile(&took_s, 0.99),
            max_s: last,
            slow_share: erratic.then_some(share),
            slow_s: erratic.then(|| percentile(slow, 0.5)),
            histogram: bins(&took_s),
            took_s,
        })
    }

    /// Syncs a second, as a table shows them.
    fn rate(&self) -> String {
        count(self.per_second.round() as u64)
    }

    /// Shortest, median, 90th and 99th percentile, longest, in seconds.
    fn times_s(&self) -> [f64; 5] {
        [self.min_s, self.p50_s, self.p90_s, self.p99_s, self.max_s]
    }

    /// How much slow syncs weigh: their share times their median.
    fn slow_weight(&self) -> f64 {
        self.slow_share.unwrap_or(0.0) * self.slow_s.unwrap_or(0.0)
    }
}

/// All that was measured on one file system.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// Of this form: 1.
    pub version: u32,
    /// The folder.
    pub dir: String,
    /// Where its file system is mounted.
    pub mount: String,
    /// Its type.
    pub fstype: String,
    /// Its device.
    pub device: String,
    /// The kernel.
    pub kernel: String,
    /// What was measured, in this order.
    pub syncs: Vec<Measured>,
    /// Kinds that this file system refuses, with the reason.
    pub refused: Vec<(String, String)>,
}

impl Probe {
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        synclater_text::json(self)
    }

    /// What a sync costs, by threads at once, fewest first: an fsync of what was appended, or less
    /// where a file is written over.
    #[must_use]
    pub fn costs(&self) -> Vec<(usize, Cost)> {
        let appended = self.syncs.iter().filter(|m| m.kind == "fsync");
        appended.map(|m| (m.threads, self.cost(m))).collect()
    }

    /// What one kind costs, or less where a file is written over by as many threads.
    fn cost(&self, m: &Measured) -> Cost {
        let mut in_place = self.syncs.iter().filter(|other| other.kind == IN_PLACE);
        let least = in_place.find(|other| other.threads == m.threads);
        Cost {
            count: m.count,
            low_s: least.map_or(m.p25_s, |least| least.p25_s.min(m.p25_s)),
            p50_s: m.p50_s,
            high_s: m.p75_s,
        }
    }

    /// As a table for a terminal.
    #[must_use]
    pub fn render(&self) -> String {
        let head = format!(
            "{} on {} ({}), each after 4 KiB appended to a file, or written over (in place):",
            self.fstype, self.device, self.mount
        );
        let units: [Unit; 5] =
            std::array::from_fn(|k| Unit::of(self.syncs.iter().map(|m| m.times_s()[k])));
        let mut out = wrapped("", &head);
        let widths = self.syncs.iter().map(|m| m.rate().len());
        let wide = 2 + widths.fold(7, usize::max);
        let _ = write!(out, "\n{:<18}{:>8}{:>wide$}", "", "threads", "syncs/s");
        for (name, unit) in ["min", "p50", "p90", "p99", "max"].iter().zip(units) {
            let _ = write!(out, "{:>9}", format!("{name} {}", unit.name));
        }
        for m in &self.syncs {
            let _ = write!(out, "\n{:<18}{:>8}{:>wide$}", m.kind, m.threads, m.rate());
            for (time_s, unit) in m.times_s().into_iter().zip(units) {
                let _ = write!(out, "{:>9}", unit.show(time_s));
            }
        }
        out.push('\n');
        for (name, why) in &self.refused {
            let _ = writeln!(out, "{name:<18}not here: {why}");
        }
        out.push('\n');
        out.push_str(&self.distributions());
        out.push_str(&self.verdict());
        out
    }

    /// A line of blocks for each kind, by one thread and by the most that were measured, over one
    /// axis; empty where nothing was measured.
    fn distributions(&self) -> String {
        let shortest = self.syncs.iter().map(|m| m.min_s).reduce(f64::min);
        let longest = self.syncs.iter().map(|m| m.max_s).reduce(f64::max);
        let (Some(shortest), Some(longest)) = (shortest, longest) else {
            return String::new();
        };
        let axis = Axis::over(shortest, longest, (columns() - 1 - LEAD).max(AXIS_MIN));
        let fewest = self.syncs.iter().map(|m| m.threads).min();
        let most = self.syncs.iter().map(|m| m.threads).max();
        let mut out = String::from("How many took how long:\n");
        for m in &self.syncs {
            if ![fewest, most].contains(&Some(m.threads)) {
                continue;
            }
            let line = format!("{:<18}{:>7} {}", m.kind, m.threads, axis.line(&m.took_s));
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out + &axis.scale(LEAD) + "\n"
    }

    fn verdict(&self) -> String {
        if kind(&self.fstype) == FsKind::Memory {
            return "In memory: there is nothing to make durable.\n".into();
        }
        let erratic = self.syncs.iter().filter(|m| m.slow_share.is_some());
        let worst = erratic.max_by(|a, b| a.slow_weight().total_cmp(&b.slow_weight()));
        match worst {
            None => "Even: next to no sync took over four times the median of its kind.\n".into(),
            Some(m) => format!(
                "Erratic: of {} by {}, {:.1} % took about {}, the others about {}.\n",
                m.kind,
                counted(m.threads as u64, "thread"),
                m.slow_share.unwrap_or(0.0) * 100.0,
                seconds(m.slow_s.unwrap_or(0.0)),
                seconds(m.p50_s)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_disk_with_two_speeds_is_erratic() {
        let took = (0..100).map(|k| if k % 12 == 0 { 0.031 } else { 0.0002 });
        let m = Measured::new("fsync", 1, took.collect(), 1.0).expect("some");
        assert_eq!((m.slow_share, m.slow_s), (Some(0.09), Some(0.031)));
        assert_eq!((m.p50_s, m.p99_s, m.count), (0.0002, 0.031, 100));
    }

    #[test]
    fn one_slow_sync_does_not_make_a_disk_erratic() {
        let mut took = vec![0.001; 150];
        took[7] = 1.0;
        let m = Measured::new("fsync", 1, took, 1.0).expect("some");
        assert_eq!((m.slow_share, m.max_s), (None, 1.0));
    }

    #[test]
    fn nothing_measured_is_nothing_to_show() {
        assert_eq!(Measured::new("fsync", 1, Vec::new(), 1.0), None);
        let probe = of(Vec::new());
        assert!(!probe.render().contains("How many"), "{}", probe.render());
    }

    fn of(syncs: Vec<Measured>) -> Probe {
        Probe {
            version: 1,
            dir: "/srv".into(),
            mount: "/srv".into(),
            fstype: "ext4".into(),
            device: "/dev/sda1".into(),
            kernel: "6.18".into(),
            syncs,
            refused: Vec::new(),
        }
    }

    #[test]
    fn the_distribution_of_each_kind_is_a_line_over_one_axis() {
        let times = |slow_s: f64| (0..100).map(move |k| if k % 12 == 0 { slow_s } else { 0.0002 });
        let measured = |kind, threads, slow_s| {
            Measured::new(kind, threads, times(slow_s).collect(), 1.0).expect("some")
        };
        let probe = of(vec![
            measured("fsync", 1, 0.031),
            measured("fsync", 2, 0.031),
            measured("fsync", 4, 0.0031),
        ]);
        let text = probe.render();
        let (_, lines) = text
            .split_once("How many took how long:\n")
            .expect("its head");
        let lines: Vec<&str> = lines.lines().take(4).collect();
        // 17 columns a decade: 0.2 ms is in the sixth, 31 ms in the 43rd, 3.1 ms in the 26th.
        let line = |threads, gap| format!("fsync{threads:>20}      █{:gap$}▁", "");
        let (one, four) = (line(1, 36), line(4, 19));
        let want = [
            one.as_str(),
            four.as_str(),
            "                          ├────────────────┼────────────────┼────────────────┤",
            "                          100 µs           1.0 ms           10 ms       0.10 s",
        ];
        assert_eq!(lines, want, "\n{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&probe.to_json()).expect("JSON");
        let bins = json["syncs"][0]["histogram"].as_array().expect("bins");
        assert_eq!(
            (&bins[0]["n"], &bins[1]["n"], bins.len()),
            (&91.into(), &9.into(), 2)
        );
        assert_eq!(json["syncs"][0]["took_s"], serde_json::Value::Null);
    }

    proptest! {
        #[test]
        fn percentiles_are_values_of_the_sorted_list_in_order(
            took in proptest::collection::vec(1e-6f64..10.0, 1..300)
        ) {
            let m = Measured::new("fsync", 2, took.clone(), 1.0).expect("some");
            let marks = [m.min_s, m.p50_s, m.p90_s, m.p99_s, m.max_s];
            prop_assert!(marks.windows(2).all(|w| w[0] <= w[1]));
            prop_assert!(marks.iter().all(|v| took.contains(v)));
            let below = took.iter().filter(|t| **t <= m.p90_s).count();
            prop_assert!(below as f64 >= 0.9 * took.len() as f64);
        }
    }
}
