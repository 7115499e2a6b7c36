//! Figures of the machine from the texts under /proc: disks, pressure, memory, processors.
//!
//! Promise: no text panics; a figure that a kernel does not tell is absent, never 0; what was reset
//! or has wrapped around gives no wild figure.
//!
//! What it does not do: it reads no file and no clock. Names and units are those of docs/FORMAT.md.
//!
//! Relies on: the kernel's Documentation/admin-guide/iostats.rst for the fields of diskstats. Times
//! in it are 32 bits wide on every machine; the fields of discards came with Linux 4.18, those of
//! flushes with 5.5.

/// Names of the figures, as they stand in the column `metric`.
pub mod metric {
    /// Reads completed a second.
    pub const READS_PER_S: &str = "reads_per_s";
    /// Writes completed a second.
    pub const WRITES_PER_S: &str = "writes_per_s";
    /// Flushes completed a second.
    pub const FLUSHES_PER_S: &str = "flushes_per_s";
    /// Average size of a read.
    pub const READ_BYTES: &str = "read_bytes";
    /// Average size of a write.
    pub const WRITE_BYTES: &str = "write_bytes";
    /// Average time of a read in queue and disk.
    pub const READ_WAIT_MS: &str = "read_wait_ms";
    /// Average time of a write in queue and disk.
    pub const WRITE_WAIT_MS: &str = "write_wait_ms";
    /// Average time of a flush.
    pub const FLUSH_WAIT_MS: &str = "flush_wait_ms";
    /// Requests in flight at the moment.
    pub const IN_FLIGHT: &str = "in_flight";
    /// Share of the time in which anything was in flight.
    pub const UTILISATION: &str = "utilisation";
    /// Share of the time in which some task waited for I/O.
    pub const PSI_IO_SOME: &str = "psi_io_some";
    /// Share of the time in which all tasks waited for I/O.
    pub const PSI_IO_FULL: &str = "psi_io_full";
    /// Bytes that are not yet written.
    pub const DIRTY_BYTES: &str = "dirty_bytes";
    /// Bytes that are being written.
    pub const WRITEBACK_BYTES: &str = "writeback_bytes";
    /// Share of processor time spent idle with I/O outstanding.
    pub const IOWAIT: &str = "iowait";
}

/// A figure: its name and its value.
pub type Figure = (&'static str, f64);

/// A sector of diskstats, whatever the disk's own are.
const SECTOR: f64 = 512.0;

/// One kind of request of a disk, since it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests completed.
    pub requests: u64,
    /// Sectors of 512 bytes; 0 for flushes.
    pub sectors: u64,
    /// Milliseconds that they took, all together; wraps around at 2^32.
    pub took_ms: u32,
}

/// One line of /proc/diskstats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Major and minor number.
    pub dev: (u32, u32),
    /// Its name, without `/dev/`.
    pub name: String,
    /// Reads.
    pub reads: Done,
    /// Writes.
    pub writes: Done,
    /// Flushes; `None` before Linux 5.5.
    pub flushes: Option<Done>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Milliseconds with a request in flight; wraps around at 2^32.
    pub busy_ms: u32,
}

/// Reads the text of /proc/diskstats; lines that are not of its form are left out.
#[must_use]
pub fn parse_diskstats(text: &str) -> Vec<Disk> {
    text.lines().filter_map(parse_disk).collect()
}

fn parse_disk(line: &str) -> Option<Disk> {
    let mut words = line.split_ascii_whitespace();
    let major = words.next()?.parse().ok()?;
    let minor = words.next()?.parse().ok()?;
    let name = words.next()?.to_owned();
    let n: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
    Some(Disk {
        dev: (major, minor),
        name,
        reads: done(&n, 0, Some(2), 3)?,
        writes: done(&n, 4, Some(6), 7)?,
        flushes: done(&n, 15, None, 16),
        in_flight: *n.get(8)?,
        busy_ms: *n.get(9)? as u32,
    })
}

/// What was done, from the numbers of a line at these places.
fn done(n: &[u64], requests: usize, sectors: Option<usize>, ms: usize) -> Option<Done> {
    Some(Done {
        requests: *n.get(requests)?,
        sectors: sectors.map_or(Some(0), |at| n.get(at).copied())?,
        took_ms: *n.get(ms)? as u32,
    })
}

/// Milliseconds between two looks at a counter that wraps around; 0 where it went back a little.
fn ms_since(old: u32, new: u32) -> u32 {
    let step = new.wrapping_sub(old);
    if step > u32::MAX / 2 {
        0
    } else {
        step
    }
}

/// What was done between two looks; `None` where the counters went back.
fn step(old: Done, new: Done) -> Option<Done> {
    Some(Done {
        requests: new.requests.checked_sub(old.requests)?,
        sectors: new.sectors.checked_sub(old.sectors)?,
        took_ms: ms_since(old.took_ms, new.took_ms),
    })
}

impl Disk {
    /// The figures of the time from `old` to `self`; empty where nothing was done and nothing is in
    /// flight. `None` where the two are not of the same disk: its counters began anew.
    #[must_use]
    pub fn since(&self, old: &Disk, elapsed_s: f64) -> Option<Vec<Figure>> {
        use metric as m;
        if !(elapsed_s > 0.0 && elapsed_s.is_finite()) || self.dev != old.dev {
            return None;
        }
        let reads = step(old.reads, self.reads)?;
        let writes = step(old.writes, self.writes)?;
        let flushes = match (old.flushes, self.flushes) {
            (Some(old), Some(new)) => Some(step(old, new)?),
            _ => None,
        };
        let busy_ms = ms_since(old.busy_ms, self.busy_ms);
        let all = [Some(reads), Some(writes), flushes];
        let quiet = all.iter().flatten().all(|d| d.requests == 0);
        if quiet && self.in_flight == 0 && busy_ms == 0 {
            return Some(Vec::new());
        }
        let names = [
            (m::READS_PER_S, Some(m::READ_BYTES), m::READ_WAIT_MS),
            (m::WRITES_PER_S, Some(m::WRITE_BYTES), m::WRITE_WAIT_MS),
            (m::FLUSHES_PER_S, None, m::FLUSH_WAIT_MS),
        ];
        let mut figures = Vec::new();
        for (done, (rate, size, wait)) in all.into_iter().zip(names) {
            let Some(done) = done else { continue };
            let requests = done.requests as f64;
            figures.push((rate, requests / elapsed_s));
            if done.requests == 0 {
                continue;
            }
            figures.extend(size.map(|size| (size, done.sectors as f64 * SECTOR / requests)));
            figures.push((wait, f64::from(done.took_ms) / requests));
        }
        figures.push((m::IN_FLIGHT, self.in_flight as f64));
        figures.push((m::UTILISATION, share(f64::from(busy_ms) / 1e3, elapsed_s)));
        Some(figures)
    }

    /// The figures of a disk that does nothing any more: those that are 0 then.
    #[must_use]
    pub fn silence(&self) -> Vec<Figure> {
        use metric as m;
        let flushes = self.flushes.map(|_| m::FLUSHES_PER_S);
        let names = [
            m::READS_PER_S,
            m::WRITES_PER_S,
            m::IN_FLIGHT,
            m::UTILISATION,
        ];
        let names = names.into_iter().chain(flushes);
        names.map(|name| (name, 0.0)).collect()
    }
}

/// A part of a whole, 0 to 1.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 {
        (part / whole).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// Totals of /proc/pressure/io in microseconds since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which some task waited.
    pub some_us: Option<u64>,
    /// Time in which all tasks waited.
    pub full_us: Option<u64>,
}

/// Reads the text of /proc/pressure/io; what is not there is `None`.
#[must_use]
pub fn parse_pressure(text: &str) -> Pressure {
    Pressure {
        some_us: total_us(text, "some"),
        full_us: total_us(text, "full"),
    }
}

fn total_us(text: &str, kind: &str) -> Option<u64> {
    let mut rests = text
        .lines()
        .filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    let mut words = rests.next()?.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

impl Pressure {
    /// The shares of the time from `old` to `self`.
    #[must_use]
    pub fn since(&self, old: &Pressure, elapsed_s: f64) -> Vec<Figure> {
        let some = us_since(old.some_us, self.some_us).map(|us| (metric::PSI_IO_SOME, us));
        let full = us_since(old.full_us, self.full_us).map(|us| (metric::PSI_IO_FULL, us));
        let both = some.into_iter().chain(full);
        both.map(|(name, us)| (name, share(us as f64 / 1e6, elapsed_s)))
            .collect()
    }
}

/// Microseconds between two looks at a total.
fn us_since(old: Option<u64>, new: Option<u64>) -> Option<u64> {
    Some(new?.saturating_sub(old?))
}

/// A figure of /proc/meminfo, in KiB.
fn meminfo_kib(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?.strip_prefix(':')?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// Bytes that programs can still have without swapping, from the text of /proc/meminfo
/// (proc_meminfo(5), since Linux 3.14).
#[must_use]
pub fn available_memory(text: &str) -> Option<u64> {
    Some(meminfo_kib(text, "MemAvailable")?.saturating_mul(1024))
}

/// Dirty and written-back bytes, from the text of /proc/meminfo.
#[must_use]
pub fn parse_meminfo(text: &str) -> Vec<Figure> {
    let wanted = [
        (metric::DIRTY_BYTES, "Dirty"),
        (metric::WRITEBACK_BYTES, "Writeback"),
    ];
    wanted
        .into_iter()
        .filter_map(|(name, key)| Some((name, meminfo_kib(text, key)? as f64 * 1024.0)))
        .collect()
}

/// Time of all processors since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// All of it.
    pub total: u64,
    /// Idle with I/O outstanding.
    pub iowait: u64,
}

/// Reads the first line of /proc/stat.
#[must_use]
pub fn parse_stat(text: &str) -> Option<Processors> {
    let rest = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // The guests' time, after the eighth, is part of the first two.
    let ticks = rest.split_ascii_whitespace().take(8);
    let ticks: Vec<u64> = ticks.map_while(|w| w.parse().ok()).collect();
    Some(Processors {
        iowait: *ticks.get(4)?,
        total: ticks.iter().fold(0, |sum, t| sum.saturating_add(*t)),
    })
}

impl Processors {
    /// The share of the time from `old` to `self`; `None` where no tick has passed.
    #[must_use]
    pub fn since(&self, old: &Processors) -> Option<Figure> {
        let total = self.total.checked_sub(old.total).filter(|t| *t > 0)?;
        // The kernel lets this one go back now and then.
        let iowait = self.iowait.saturating_sub(old.iowait);
        Some((metric::IOWAIT, share(iowait as f64, total as f64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: &str = "   8       0 sda 100 5 2000 300 200 7 8000 4000 0 500 4300\n";
    const NEW: &str = " 254       0 vda 10 0 80 20 40 0 320 160 3 100 180 5 0 640 1 25 50\n\
        garbage\n 8 0\n   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    fn figure(figures: &[Figure], name: &str) -> Option<f64> {
        figures.iter().find(|f| f.0 == name).map(|f| f.1)
    }

    fn one(text: &str) -> Disk {
        parse_diskstats(text).remove(0)
    }

    #[test]
    fn every_field_of_a_disk_is_read_and_lines_without_sense_are_left_out() {
        let disks = parse_diskstats(NEW);
        assert_eq!(disks.len(), 2);
        let done = |requests, sectors, took_ms| Done {
            requests,
            sectors,
            took_ms,
        };
        let want = Disk {
            dev: (254, 0),
            name: "vda".into(),
            reads: done(10, 80, 20),
            writes: done(40, 320, 160),
            flushes: Some(done(25, 0, 50)),
            in_flight: 3,
            busy_ms: 100,
        };
        assert_eq!(disks[0], want);
    }

    #[test]
    fn the_figures_of_a_disk_are_differences_over_the_time_that_passed() {
        let new = "254 0 vda 30 0 240 120 140 0 1920 460 1 1600 0 5 0 640 1 75 300\n";
        let figures = one(new).since(&one(NEW), 2.0).expect("the same disk");
        let want = [
            (metric::READS_PER_S, 10.0),
            (metric::READ_BYTES, 4096.0),
            (metric::READ_WAIT_MS, 5.0),
            (metric::WRITES_PER_S, 50.0),
            (metric::WRITE_BYTES, 8192.0),
            (metric::WRITE_WAIT_MS, 3.0),
            (metric::FLUSHES_PER_S, 25.0),
            (metric::FLUSH_WAIT_MS, 5.0),
            (metric::IN_FLIGHT, 1.0),
            (metric::UTILISATION, 0.75),
        ];
        assert_eq!(figures, want);
    }

    #[test]
    fn a_kernel_without_flush_columns_gives_no_flushes() {
        let new = "8 0 sda 100 5 2000 300 201 7 8008 4002 0 501 4300\n";
        let figures = one(new).since(&one(OLD), 1.0).expect("the same disk");
        assert_eq!(one(OLD).flushes, None);
        assert_eq!(figure(&figures, metric::FLUSHES_PER_S), None);
        assert_eq!(figure(&figures, metric::WRITES_PER_S), Some(1.0));
        // There is no average of nothing.
        assert_eq!(figure(&figures, metric::READS_PER_S), Some(0.0));
        assert_eq!(figure(&figures, metric::READ_WAIT_MS), None);
        assert_eq!(figure(&one(OLD).silence(), metric::FLUSHES_PER_S), None);
    }

    #[test]
    fn a_disk_that_does_nothing_has_no_figures_and_a_stuck_one_has() {
        assert_eq!(one(OLD).since(&one(OLD), 1.0), Some(Vec::new()));
        let stuck = "8 0 sda 100 5 2000 300 200 7 8000 4000 2 1500 4300\n";
        let figures = one(stuck).since(&one(OLD), 1.0).expect("the same disk");
        assert_eq!(figure(&figures, metric::IN_FLIGHT), Some(2.0));
        assert_eq!(figure(&figures, metric::UTILISATION), Some(1.0));
    }

    #[test]
    fn counters_that_began_anew_give_nothing_and_times_that_wrapped_are_right() {
        let anew = "8 0 sda 1 0 8 1 1 0 8 1 0 1 2\n";
        assert_eq!(one(anew).since(&one(OLD), 1.0), None);
        let before = "8 0 sda 1 0 8 4294967290 1 0 8 1 0 4294967000 2\n";
        let after = "8 0 sda 2 0 16 4 1 0 8 1 0 204 2\n";
        let figures = one(after).since(&one(before), 1.0).expect("the same disk");
        assert_eq!(figure(&figures, metric::READ_WAIT_MS), Some(10.0));
        assert_eq!(figure(&figures, metric::UTILISATION), Some(0.5));
    }

    #[test]
    fn pressure_is_the_share_of_the_time_and_absent_where_the_kernel_has_none() {
        let text = "some avg10=0.00 avg60=0.05 avg300=0.53 total=2500000\n\
            full avg10=0.00 avg60=0.05 avg300=0.41 total=1250000\n";
        let old = Pressure {
            some_us: Some(2_000_000),
            full_us: Some(1_000_000),
        };
        let figures = parse_pressure(text).since(&old, 1.0);
        let want = [(metric::PSI_IO_SOME, 0.5), (metric::PSI_IO_FULL, 0.25)];
        assert_eq!(figures, want);
        assert_eq!(parse_pressure("").since(&old, 1.0), []);
    }

    #[test]
    fn dirty_pages_are_bytes_and_not_taken_for_their_neighbours() {
        let text = "DirtyX: 1 kB\nDirty:  4 kB\nWritebackTmp: 9 kB\nWriteback:  2 kB\n";
        let want = [
            (metric::DIRTY_BYTES, 4096.0),
            (metric::WRITEBACK_BYTES, 2048.0),
        ];
        assert_eq!(parse_meminfo(text), want);
        assert_eq!(parse_meminfo("Dirty: x\n"), []);
    }

    #[test]
    fn iowait_is_a_share_of_all_time_and_never_below_zero() {
        let old = parse_stat("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 2 3 4 5\n").expect("a line");
        let new = parse_stat("cpu  20 0 20 90 70 0 0 0 9 9\n").expect("a line");
        assert_eq!(
            old,
            Processors {
                total: 100,
                iowait: 10
            }
        );
        assert_eq!(new.since(&old), Some((metric::IOWAIT, 0.6)));
        let back = parse_stat("cpu  20 0 20 190 5 0 0 0\n").expect("a line");
        assert_eq!(back.since(&old), Some((metric::IOWAIT, 0.0)));
        assert_eq!(old.since(&old), None);
        assert_eq!(parse_stat("cpu  1 2 3\n"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_every_share_is_one(
            text in "([a-z=:]{0,6}|[0-9]{1,20}| |\n|cpu |some total=|Dirty:){0,120}",
            elapsed_s in any::<f64>(),
        ) {
            let pressure = parse_pressure(&text);
            let mut figures = pressure.since(&Pressure::default(), elapsed_s);
            figures.extend(parse_meminfo(&text));
            figures.extend(parse_stat(&text).and_then(|p| p.since(&Processors::default())));
            for disk in parse_diskstats(&text) {
                figures.extend(disk.since(&disk, elapsed_s).into_iter().flatten());
            }
            let shares = ["psi_io_some", "psi_io_full", "iowait", "utilisation"];
            let of_share = figures.iter().filter(|f| shares.contains(&f.0));
            for (_, value) in of_share {
                prop_assert!((0.0..=1.0).contains(value));
            }
        }

        #[test]
        fn no_pair_of_disks_gives_a_figure_below_zero_or_none_at_all(
            a in proptest::collection::vec(any::<u64>(), 11..18),
            b in proptest::collection::vec(any::<u64>(), 11..18),
            elapsed_s in 1e-9f64..1e9,
        ) {
            let line = |n: &[u64]| {
                let words: Vec<String> = n.iter().map(u64::to_string).collect();
                format!("8 0 sda {}\n", words.join(" "))
            };
            let figures = one(&line(&b)).since(&one(&line(&a)), elapsed_s);
            for (name, value) in figures.into_iter().flatten() {
                prop_assert!(value.is_finite() && value >= 0.0, "{name} {value}");
            }
        }
    }
}
