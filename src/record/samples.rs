//! Figures of the machine as rows of a recording: disks, pressure, memory, processors.
//!
//! Promise: a figure is the difference since the last take over the time that really passed; the
//! first take gives only what is no difference. A disk that does nothing gives no rows; when it
//! falls silent it gives one more, of zeros, so that a graph comes down.
//!
//! What it does not do: it decides no times, and says nothing that /proc does not say.

use std::collections::HashMap;
use std::io::Read;
use std::time::Instant;
use synclater_recording::record::event;
use synclater_recording::record::machine::{
    parse_diskstats, parse_meminfo, parse_pressure, parse_stat, Disk, Figure, Pressure, Processors,
};
use synclater_recording::record::row::{Name, Names, Row};

/// Bytes of a file under /proc that are read; diskstats has 150 a device.
const BYTES: u64 = 4 << 20;

struct Seen {
    disk: Disk,
    device: String,
    active: bool,
}

/// What the last take saw.
#[derive(Default)]
pub struct Samples {
    taken: Option<Instant>,
    disks: HashMap<(u32, u32), Seen>,
    pressure: Pressure,
    processors: Option<Processors>,
}

fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // PSI refuses to be read where it is switched off.
        let _ = file.take(BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The path that mount tables use: device mapper's has the volume's name.
fn path_of(disk: &str) -> String {
    let name = if disk.starts_with("dm-") {
        read(&format!("/sys/block/{disk}/dm/name"))
    } else {
        String::new()
    };
    match name.trim_end() {
        "" => format!("/dev/{disk}"),
        name => format!("/dev/mapper/{name}"),
    }
}

impl Samples {
    /// Nothing taken yet.
    #[must_use]
    pub fn new() -> Samples {
        Samples::default()
    }

    /// The rows for what happened since the last take, all with the time `now_utc_ns`.
    pub fn take(&mut self, names: &mut Names, now_utc_ns: i64) -> Vec<Row> {
        let now = Instant::now();
        let last = self.taken.replace(now);
        let elapsed_s = last.map(|last| now.saturating_duration_since(last).as_secs_f64());
        let mut rows = Rows::new(names, now_utc_ns);
        self.take_disks(
            parse_diskstats(&read("/proc/diskstats")),
            elapsed_s,
            &mut rows,
        );
        let pressure = parse_pressure(&read("/proc/pressure/io"));
        let old = std::mem::replace(&mut self.pressure, pressure);
        if let Some(elapsed_s) = elapsed_s {
            rows.put(None, &pressure.since(&old, elapsed_s));
        }
        rows.put(None, &parse_meminfo(&read("/proc/meminfo")));
        let processors = parse_stat(&read("/proc/stat"));
        let old = std::mem::replace(&mut self.processors, processors);
        if let (Some(old), Some(new)) = (old, processors) {
            rows.put(None, new.since(&old).as_slice());
        }
        rows.rows
    }

    fn take_disks(&mut self, disks: Vec<Disk>, elapsed_s: Option<f64>, rows: &mut Rows) {
        let mut old = std::mem::take(&mut self.disks);
        for disk in disks {
            let known = old.remove(&disk.dev);
            let known = known.filter(|seen| seen.disk.name == disk.name);
            let mut active = false;
            let device = match known {
                Some(seen) => {
                    let figures = elapsed_s.and_then(|s| disk.since(&seen.disk, s));
                    let figures = figures.unwrap_or_default();
                    active = !figures.is_empty();
                    let zeros = !active && seen.active;
                    let figures = if zeros { disk.silence() } else { figures };
                    rows.put(Some(&seen.device), &figures);
                    seen.device
                }
                None => path_of(&disk.name),
            };
            let seen = Seen {
                active,
                device,
                disk,
            };
            self.disks.insert(seen.disk.dev, seen);
        }
        // A disk that was taken away has fallen silent too.
        let gone = old.values().filter(|seen| seen.active);
        gone.for_each(|seen| rows.put(Some(&seen.device), &seen.disk.silence()));
    }
}

/// Rows that are being put together.
struct Rows<'a> {
    names: &'a mut Names,
    time_ns: i64,
    event: Name,
    rows: Vec<Row>,
}

impl<'a> Rows<'a> {
    fn new(names: &'a mut Names, time_ns: i64) -> Rows<'a> {
        let event = names.name(event::SAMPLE);
        Rows {
            names,
            time_ns,
            event,
            rows: Vec::new(),
        }
    }

    fn put(&mut self, device: Option<&str>, figures: &[Figure]) {
        for (metric, value) in figures {
            let row = Row {
                event: self.event,
                time_ns: self.time_ns,
                device: device.map_or(Name::NONE, |device| self.names.name(device)),
                metric: self.names.name(metric),
                value: Some(*value),
                ..Row::default()
            };
            self.rows.push(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::stage::{until, LIMIT};

    fn disk(writes: u64) -> Disk {
        let text = format!("254 0 vda 1 0 8 1 {writes} 0 {} 9 0 50 9\n", writes * 8);
        parse_diskstats(&text).remove(0)
    }

    /// Device, metric and value of each row.
    fn told(rows: &[Row], names: &Names) -> Vec<(String, String, f64)> {
        let text = |name| names.text(name).to_owned();
        let one = |r: &Row| (text(r.device), text(r.metric), r.value.expect("a value"));
        rows.iter().map(one).collect()
    }

    #[test]
    fn a_disk_that_falls_silent_gives_zeros_once() {
        let (mut samples, mut names) = (Samples::new(), Names::default());
        let mut take = |writes: u64| {
            let mut rows = Rows::new(&mut names, 7);
            samples.take_disks(vec![disk(writes)], Some(2.0), &mut rows);
            let rows = rows.rows;
            told(&rows, &names)
        };
        assert_eq!(take(10), []);
        let busy = take(30);
        assert!(busy.contains(&("/dev/vda".into(), "writes_per_s".into(), 10.0)));
        let silent = take(30);
        assert!(silent.contains(&("/dev/vda".into(), "writes_per_s".into(), 0.0)));
        assert!(silent.iter().all(|row| row.2 == 0.0));
        assert_eq!(take(30), []);
    }

    #[test]
    fn a_disk_that_was_taken_away_falls_silent_too() {
        let (mut samples, mut names) = (Samples::new(), Names::default());
        for (disks, rows_expected) in [
            (vec![disk(1)], false),
            (vec![disk(2)], true),
            (vec![], true),
            (vec![], false),
        ] {
            let mut rows = Rows::new(&mut names, 7);
            samples.take_disks(disks, Some(1.0), &mut rows);
            assert_eq!(!rows.rows.is_empty(), rows_expected);
        }
    }

    #[test]
    fn this_machine_has_figures_and_a_disk_that_is_written_to_shows_it() {
        let (mut samples, mut names) = (Samples::new(), Names::default());
        let first = samples.take(&mut names, 1);
        let metrics: Vec<String> = told(&first, &names).into_iter().map(|r| r.1).collect();
        assert_eq!(metrics, ["dirty_bytes", "writeback_bytes"]);
        // Whoever writes to a disk of this machine meanwhile is as good as we are.
        let dir = crate::record::stage::Folder::new();
        let file = std::fs::File::create(dir.join("file")).expect("a file");
        let mut all = Vec::new();
        let seen = until(LIMIT, || {
            rustix::io::pwrite(&file, &[7; 4096], 0).expect("written");
            file.sync_all().expect("synced");
            let rows = samples.take(&mut names, 2);
            all.extend(told(&rows, &names));
            all.iter().any(|r| r.1 == "writes_per_s" && r.2 > 0.0)
                && all.iter().any(|r| r.1 == "iowait")
        });
        assert!(seen || rustix::fs::statfs(&dir.0).expect("statfs").f_type == 0x0102_1994);
        let shares = ["iowait", "psi_io_some", "psi_io_full", "utilisation"];
        for (device, metric, value) in &all {
            assert!(
                value.is_finite() && *value >= 0.0,
                "{device} {metric} {value}"
            );
            assert!(
                !shares.contains(&metric.as_str()) || *value <= 1.0,
                "{metric} {value}"
            );
        }
        if std::path::Path::new("/proc/pressure/io").exists() {
            assert!(all.iter().any(|r| r.1 == "psi_io_some" && r.0.is_empty()));
        }
    }
}
