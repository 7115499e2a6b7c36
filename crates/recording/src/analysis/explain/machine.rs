//! The state of the machine in the second in which a request began, from the recording's samples.
//!
//! Figures that slow requests bring about themselves (how long tasks waited, how busy a device was)
//! are signs. Figures of which slow requests make less (reads and writes a second) or that are not
//! theirs (dirty memory) can be causes.

use super::dimension::{Family, Tier, NONE};
use super::slow::Requests;
use std::collections::HashMap;
use synclater_text::number::{bytes, count};

/// A sample is about this long before it, and a little more where it was late, in ns.
const COVERS_NS: i64 = 1_500_000_000;

/// Steps of a metric and what they are called.
struct Metric {
    name: &'static str,
    tier: Tier,
    of_device: bool,
    steps: fn() -> Vec<(f64, String)>,
}

fn powers(from: u32, to: u32, name: fn(u64) -> String) -> Vec<(f64, String)> {
    (from..to)
        .map(|k| ((1u64 << k) as f64, format!("at least {}", name(1 << k))))
        .collect()
}

fn shares() -> Vec<(f64, String)> {
    [0.05, 0.1, 0.25, 0.5, 0.8, 0.95]
        .map(|share: f64| (share, format!("at least {:.0} %", share * 100.0)))
        .to_vec()
}

const METRICS: [Metric; 8] = [
    Metric {
        name: "dirty_bytes",
        tier: Tier::State,
        of_device: false,
        steps: || powers(20, 42, bytes),
    },
    Metric {
        name: "writeback_bytes",
        tier: Tier::State,
        of_device: false,
        steps: || powers(20, 42, bytes),
    },
    Metric {
        name: "reads_per_s",
        tier: Tier::State,
        of_device: true,
        steps: || powers(3, 24, count),
    },
    Metric {
        name: "writes_per_s",
        tier: Tier::State,
        of_device: true,
        steps: || powers(3, 24, count),
    },
    Metric {
        name: "utilisation",
        tier: Tier::Sign,
        of_device: true,
        steps: shares,
    },
    Metric {
        name: "psi_io_some",
        tier: Tier::Sign,
        of_device: false,
        steps: shares,
    },
    Metric {
        name: "psi_io_full",
        tier: Tier::Sign,
        of_device: false,
        steps: shares,
    },
    Metric {
        name: "iowait",
        tier: Tier::Sign,
        of_device: false,
        steps: shares,
    },
];

/// How many families [`family`] knows.
pub const FAMILIES: usize = METRICS.len();

/// A device as diskstats names it.
fn short(device: &str) -> &str {
    device.rsplit('/').next().unwrap_or(device)
}

/// A metric's figures, by time, for each device or for the machine.
fn series<'a>(requests: &Requests<'a>, metric: &Metric) -> HashMap<&'a str, Vec<(i64, f64)>> {
    let mut all: HashMap<&str, Vec<(i64, f64)>> = HashMap::new();
    for s in requests
        .table
        .samples
        .iter()
        .filter(|s| s.metric == metric.name)
    {
        let figures = all.entry(short(&s.device)).or_default();
        figures.push((s.time_ns, s.value));
    }
    all.values_mut().for_each(|s| s.sort_by_key(|f| f.0));
    all
}

/// The family of one metric; none where the recording does not have it.
pub fn family<'a>(requests: &Requests<'a>, which: usize) -> Option<Family<'a>> {
    let metric = METRICS.get(which)?;
    let table = requests.table;
    let (names, series): (Vec<&str>, Vec<_>) = series(requests, metric).into_iter().unzip();
    if series.is_empty() {
        return None;
    }
    let devices = table.filesystems.iter().map(|f| f.device.as_str());
    let by_filesystem: Vec<Option<usize>> = devices.map(|d| place(metric, d, &names)).collect();
    let steps = (metric.steps)();
    let mut cursors = vec![0usize; series.len()];
    let mut numbers = Vec::with_capacity(requests.rows.len());
    for (at, row) in requests.rows.iter().enumerate() {
        let file = table.rows.file[*row as usize];
        let filesystem = table.files[file as usize].filesystem;
        let Some(s) = by_filesystem[filesystem as usize] else {
            numbers.push(NONE);
            continue;
        };
        // Requests come in the order of time.
        let (figures, began) = (&series[s], requests.began(at));
        while figures.get(cursors[s]).is_some_and(|f| f.0 < began) {
            cursors[s] += 1;
        }
        numbers.push(match figures.get(cursors[s]) {
            Some((time, value)) if time.saturating_sub(began) <= COVERS_NS => {
                steps.partition_point(|step| step.0 <= *value) as u32
            }
            _ => NONE,
        });
    }
    let labels = steps.iter().map(|s| s.1.clone()).collect();
    Some(Family::steps(metric.name, metric.tier, numbers, labels))
}

/// Which of the `names` has a metric's figures for what lies on a device.
fn place(metric: &Metric, device: &str, names: &[&str]) -> Option<usize> {
    if metric.of_device && device.is_empty() {
        return None;
    }
    let wanted = if metric.of_device { short(device) } else { "" };
    names.iter().position(|n| *n == wanted)
}
