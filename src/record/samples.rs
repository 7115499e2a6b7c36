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
use synclater_model::record::event;
use synclater_model::record::machine::{
    parse_diskstats, parse_meminfo, parse_pressure, parse_stat, Disk, Figure, Pressure, Processors,
};
use synclater_model::record::row::{Name, Names, Row};

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
    let name = match disk.starts_with("dm-") {
        true => read(&format!("/sys/block/{disk}/dm/name")),
        false => String::new(),
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
            let same = |seen: &Seen| seen.disk.name == disk.name;
            let known = old.remove(&disk.dev).filter(same);
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
