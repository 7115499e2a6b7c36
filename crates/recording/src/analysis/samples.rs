//! Figures of the machine, once a second, thinned out for a picture.
//!
//! Several seconds that share a point are averaged. A point without a figure is null.

use crate::record::table::{Filesystem, Table};
use serde::Serialize;
use std::collections::BTreeMap;

/// The most points.
pub const POINTS_MAX: u64 = 300;
/// The most devices; those that requests went to come first, then those that were at work most.
const DEVICES_MAX: usize = 20;

/// A line of figures.
pub type Line = Vec<Option<f64>>;

/// One device's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceSamples {
    /// The device.
    pub device: String,
    /// Requests of the recording that went to it.
    pub requests: u64,
    /// Share of the time in which it was at work, 0 to 1.
    pub utilisation: Line,
    /// Flushes completed a second.
    pub flushes_per_s: Line,
    /// Average time of a write in queue and disk.
    pub write_wait_ms: Line,
    /// Average time of a flush.
    pub flush_wait_ms: Line,
}

impl DeviceSamples {
    /// How busy it was in all.
    fn busy(&self) -> f64 {
        self.utilisation.iter().flatten().sum()
    }
}

/// The machine's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MachineSamples {
    /// Share of the time in which some task waited for I/O.
    pub psi_io_some: Line,
    /// Bytes not yet written.
    pub dirty_bytes: Line,
    /// Share of processor time spent idle with I/O outstanding.
    pub iowait: Line,
}

/// All of them; every line has as many points as `seconds`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Samples {
    /// Seconds since the beginning of the recording.
    pub seconds: Vec<f64>,
    /// By device.
    pub devices: Vec<DeviceSamples>,
    /// Of the machine.
    pub machine: MachineSamples,
}

/// Sums and counts by point.
#[derive(Clone, Debug)]
struct Means(Vec<(f64, u32)>);

impl Means {
    fn line(&self) -> Line {
        let sums = self.0.iter();
        sums.map(|(sum, n)| (*n > 0).then(|| sum / f64::from(*n)))
            .collect()
    }
}

/// What there is of each device (empty: of the machine) and metric, in so many points.
struct Lines<'a> {
    means: BTreeMap<(&'a str, &'a str), Means>,
    points: usize,
}

impl Lines<'_> {
    /// The line of a metric; one without figures where there is none.
    fn line(&self, device: &str, metric: &str) -> Line {
        match self.means.get(&(device, metric)) {
            Some(means) => means.line(),
            None => vec![None; self.points],
        }
    }

    fn device(&self, device: &str) -> DeviceSamples {
        DeviceSamples {
            device: device.to_owned(),
            requests: 0,
            utilisation: self.line(device, "utilisation"),
            flushes_per_s: self.line(device, "flushes_per_s"),
            write_wait_ms: self.line(device, "write_wait_ms"),
            flush_wait_ms: self.line(device, "flush_wait_ms"),
        }
    }
}

impl Samples {
    /// Of a recording that lasted `span`. Figures that are no numbers are left out.
    #[must_use]
    pub fn of(table: &Table, span: (i64, i64)) -> Samples {
        const SECOND_NS: u64 = 1_000_000_000;
        let seconds = span.1.abs_diff(span.0) / SECOND_NS + 1;
        let each_s = seconds.div_ceil(POINTS_MAX);
        let points = seconds.div_ceil(each_s) as usize;
        let mut means: BTreeMap<(&str, &str), Means> = BTreeMap::new();
        let known = table.samples.iter().filter(|s| s.value.is_finite());
        for s in known {
            let after_s = s.time_ns.max(span.0).abs_diff(span.0) / SECOND_NS;
            let point = ((after_s / each_s) as usize).min(points - 1);
            let line = means.entry((&s.device, &s.metric));
            let line = line.or_insert_with(|| Means(vec![(0.0, 0); points]));
            let (sum, n) = &mut line.0[point];
            *sum += s.value;
            *n = n.saturating_add(1);
        }
        if means.is_empty() {
            return Samples::default();
        }
        let mut names: Vec<&str> = means.keys().map(|(d, _)| *d).collect();
        names.dedup();
        names.retain(|d| !d.is_empty());
        let lines = Lines { means, points };
        let mut devices: Vec<DeviceSamples> = names.iter().map(|d| lines.device(d)).collect();
        devices.sort_by(|a, b| b.busy().total_cmp(&a.busy()));
        let requests = requests_of(table);
        for d in &mut devices {
            let its = table.filesystems.iter().zip(&requests);
            d.requests = its
                .filter(|(fs, _)| lies_on(fs, &d.device))
                .map(|(_, n)| n)
                .sum();
        }
        devices.sort_by_key(|d| std::cmp::Reverse(d.requests));
        devices.truncate(DEVICES_MAX);
        Samples {
            seconds: (0..points as u64).map(|p| (p * each_s) as f64).collect(),
            devices,
            machine: MachineSamples {
                psi_io_some: lines.line("", "psi_io_some"),
                dirty_bytes: lines.line("", "dirty_bytes"),
                iowait: lines.line("", "iowait"),
            },
        }
    }
}

/// Requests by file system.
fn requests_of(table: &Table) -> Vec<u64> {
    let mut requests = vec![0u64; table.filesystems.len()];
    for file in &table.rows.file {
        let at = table
            .files
            .get(*file as usize)
            .map(|f| f.filesystem as usize);
        if let Some(n) = at.and_then(|at| requests.get_mut(at)) {
            *n += 1;
        }
    }
    requests
}

/// Whether a device is that of a file system, or what that is made of.
fn lies_on(fs: &Filesystem, device: &str) -> bool {
    let is_it = fs.device.rsplit('/').next() == Some(device);
    is_it || fs.parents.split([' ', '<', '+']).any(|part| part == device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::table::Sample;

    fn sample(second: i64, device: &str, metric: &str, value: f64) -> Sample {
        Sample {
            time_ns: second * 1_000_000_000,
            device: device.into(),
            metric: metric.into(),
            value,
        }
    }

    #[test]
    fn the_disk_of_the_requests_comes_before_the_busiest_one() {
        use crate::record::table::{File, Filesystem};
        let fs = |device: &str, parents: &str| Filesystem {
            device: device.into(),
            parents: parents.into(),
            ..Filesystem::default()
        };
        let file = |filesystem| File {
            filesystem,
            ..File::default()
        };
        let mut table = Table {
            samples: vec![
                sample(0, "sda", "utilisation", 0.9),
                sample(0, "sdb", "utilisation", 0.1),
                sample(0, "sdb1", "utilisation", 0.1),
            ],
            filesystems: vec![Filesystem::default(), fs("/dev/sdb1", "sdb1 < sdb")],
            files: vec![File::default(), file(1)],
            ..Table::default()
        };
        let named = |table: &Table| {
            let devices = Samples::of(table, (0, 0)).devices;
            let named = devices.into_iter().map(|d| (d.device, d.requests));
            named.collect::<Vec<_>>()
        };
        assert_eq!(named(&table)[0], ("sda".to_owned(), 0));
        table.rows.file = vec![1, 1, 0];
        let all = [("sdb", 2), ("sdb1", 2), ("sda", 0)].map(|(d, n)| (d.to_owned(), n));
        assert_eq!(named(&table), all);
    }

    #[test]
    fn a_long_recording_is_thinned_to_means_and_gaps_stay_gaps() {
        let mut t = Table::default();
        for second in (0..3000).filter(|s| *s < 1000 || *s >= 1010) {
            t.samples
                .push(sample(second, "sda", "utilisation", (second % 10) as f64));
        }
        t.samples.push(sample(7, "", "iowait", 0.5));
        t.samples.push(sample(7, "", "iowait", f64::NAN));
        let s = Samples::of(&t, (0, 2_999_000_000_000));
        assert_eq!((s.seconds.len(), s.seconds[1]), (300, 10.0));
        let line = &s.devices[0].utilisation;
        assert_eq!((line.len(), line[0], line[100]), (300, Some(4.5), None));
        assert_eq!(s.machine.iowait[0], Some(0.5));
        assert_eq!(s.machine.dirty_bytes[0], None);
    }

    #[test]
    fn a_recording_without_samples_has_no_points() {
        assert_eq!(Samples::of(&Table::default(), (0, 5)), Samples::default());
    }
}
