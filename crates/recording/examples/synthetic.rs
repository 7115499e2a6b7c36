//! Writes a recording of as many requests as are asked for, as a mail server with its database
//! makes them:
//!
//!     cargo run --release -p synclater-recording --example synthetic -- 1000000 > mail.rec
//!
//! Twelve processes in forty threads, two disks of which one is erratic (8 % of its syncs near
//! 31 ms), maildirs, indexes and a write-ahead log; figures of the machine once a second. The same
//! number of requests gives the same recording.

use std::io::{BufWriter, Write};
use synclater_random::Random;
use synclater_recording::record::header::Header;
use synclater_recording::record::row::{Name, Row};
use synclater_recording::record::write::Writer;
use synclater_recording::record::{answered, done, event, kind};

/// 2026-01-01 in nanoseconds.
const BEGIN_NS: i64 = 1_767_225_600_000_000_000;
const SECOND_NS: i64 = 1_000_000_000;

/// How long something takes, the same at each run.
struct Dice(Random);

impl Dice {
    fn log_normal(&mut self, median_ns: f64, spread: f64) -> u64 {
        let radius = (-2.0 * (1.0 - self.0.part()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.0.part()).cos();
        (median_ns * (spread * normal).exp()) as u64
    }
}

/// One thread: who it is, and what its next request is.
struct Thread {
    pid: u32,
    tid: u32,
    uid: u32,
    exe: Name,
    command: Name,
    is_postgres: bool,
    time_ns: i64,
    step: u64,
}

struct Disk {
    fstype: Name,
    mount: Name,
    device: Name,
    parents: Name,
}

impl Disk {
    fn new<W: Write>(w: &mut Writer<W>, mount: &str, device: &str, parents: &str) -> Disk {
        Disk {
            fstype: w.names.name("ext4"),
            mount: w.names.name(mount),
            device: w.names.name(device),
            parents: w.names.name(parents),
        }
    }
}

struct Scene {
    dice: Dice,
    threads: Vec<Thread>,
    disks: [Disk; 2],
    kinds: [Name; 3],
    request: Name,
    kernel: Name,
    real: Name,
    callers: [Name; 3],
}

impl Scene {
    fn new<W: Write>(w: &mut Writer<W>) -> Scene {
        let threads = (0..40u32).map(|k| {
            let is_postgres = k % 4 == 3;
            let (exe, command) = if is_postgres {
                (
                    "/usr/lib/postgresql/15/bin/postgres",
                    "postgres: mail mail [local] COMMIT",
                )
            } else {
                ("/usr/lib/dovecot/imap", "dovecot/imap")
            };
            Thread {
                pid: 1000 + k / 4 * 2 + u32::from(is_postgres),
                tid: 1000 + k,
                uid: 100 + k / 4 % 7,
                exe: w.names.name(exe),
                command: w.names.name(command),
                is_postgres,
                time_ns: BEGIN_NS + i64::from(k) * 1_000_000,
                step: 0,
            }
        });
        let threads = threads.collect();
        Scene {
            dice: Dice(Random::new(7)),
            threads,
            disks: [
                Disk::new(w, "/srv/a", "/dev/sda1", "sda1 < sda"),
                Disk::new(w, "/srv/b", "/dev/sdb1", "sdb1 < sdb"),
            ],
            kinds: [kind::FSYNC, kind::FDATASYNC, kind::SYNC_FILE_RANGE].map(|k| w.names.name(k)),
            request: w.names.name(event::REQUEST),
            kernel: w.names.name(answered::KERNEL),
            real: w.names.name(done::REAL),
            callers: [
                "libdovecot.so.0+0x1a2b0",
                "imap+0x8c10",
                "postgres+0x3f00d0",
            ]
            .map(|c| w.names.name(c)),
        }
    }

    /// The next request of thread `k`, and its path.
    fn request(&mut self, k: usize) -> (Row, String) {
        let t = &mut self.threads[k];
        let step = t.step;
        t.step += 1;
        let disk = usize::from(k % 5 > 2);
        let folder = ["/srv/a", "/srv/b"][disk];
        let user = (k as u64 * 31 + step / 3 / 50) % 500;
        let (path, which, caller) = match (t.is_postgres, step % 3) {
            (true, 2) => (format!("{folder}/pg/base/5/{}", 16_384 + step % 97), 2, 2),
            (true, _) => (format!("{folder}/pg/pg_wal/{:024X}", step / 4_000), 1, 2),
            (false, 0) => (
                format!("{folder}/mail/u{user}/tmp/{}.M{k}", step / 300),
                0,
                0,
            ),
            (false, 1) => (format!("{folder}/mail/u{user}/dovecot.index.log"), 1, 1),
            (false, _) => (format!("{folder}/mail/u{user}/dovecot-uidlist"), 1, 1),
        };
        let slow = disk == 1 && self.dice.0.part() < 0.08;
        let median = if slow { 31e6 } else { 0.2e6 };
        let took = self.dice.log_normal(median, 0.3);
        let d = &self.disks[disk];
        let row = Row {
            event: self.request,
            time_ns: t.time_ns,
            duration_ns: Some(took),
            pid: Some(t.pid),
            tid: Some(t.tid),
            uid: Some(t.uid),
            exe: t.exe,
            command: t.command,
            kind: self.kinds[which],
            fd: Some(7 + (step % 20) as i32),
            inode: Some(1_000_000 + user * 3 + step % 3),
            fstype: d.fstype,
            mount: d.mount,
            device: d.device,
            parents: d.parents,
            result: Some(0),
            answered: self.kernel,
            done: self.real,
            bytes: Some(4096 + self.dice.0.draw() % 8192),
            dirty: Some(self.dice.0.part() > 0.03),
            caller: self.callers[caller],
            ..Row::default()
        };
        let pause = if step % 3 == 2 { 3_000_000 } else { 20_000 };
        t.time_ns += took as i64 + pause;
        (row, path)
    }
}

fn sample<W: Write>(w: &mut Writer<W>, time_ns: i64, dice: &mut Dice) -> std::io::Result<()> {
    let event = w.names.name(event::SAMPLE);
    let figures = [
        ("/dev/sda1", "utilisation", 0.4),
        ("/dev/sdb1", "utilisation", 0.7),
        ("/dev/sdb1", "flush_wait_ms", 2.6),
        ("", "psi_io_some", 0.3),
        ("", "iowait", 0.1),
        ("", "dirty_bytes", 3e7),
    ];
    for (device, metric, around) in figures {
        let row = Row {
            event,
            time_ns,
            device: match device {
                "" => Name::NONE,
                device => w.names.name(device),
            },
            metric: w.names.name(metric),
            value: Some(around * (0.8 + 0.4 * dice.0.part())),
            ..Row::default()
        };
        w.push(row)?;
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let rows = std::env::args().nth(1).and_then(|n| n.parse::<u64>().ok());
    let Some(rows) = rows else {
        eprintln!("usage: synthetic ROWS > FILE");
        std::process::exit(2);
    };
    let header = Header {
        host: "mail1".into(),
        kernel: "6.18.0".into(),
        started: "2026-01-01T00:00:00Z".into(),
        session: "kelp".into(),
        command: vec!["dovecot".into(), "-F".into()],
        until: "now".into(),
        engine: "library".into(),
        processors: 8,
        ..Header::default()
    };
    let mut w = Writer::new(BufWriter::new(std::io::stdout()), &header)?;
    let mut scene = Scene::new(&mut w);
    let mut next_sample = BEGIN_NS;
    let mut k = 0;
    for row in 0..rows {
        // The thread that is furthest behind goes on for a while: rows are drained from one ring
        // after the other, and so nearly, but not quite, in order.
        if row % 24 == 0 {
            let threads = scene.threads.iter().enumerate();
            let least = threads.min_by_key(|(_, t)| t.time_ns);
            k = least.map_or(0, |(k, _)| k);
        }
        let (mut row, path) = scene.request(k);
        row.path = w.names.name(&path);
        if row.time_ns >= next_sample {
            sample(&mut w, next_sample, &mut scene.dice)?;
            next_sample += SECOND_NS;
        }
        w.push(row)?;
    }
    let last = scene.threads.iter().map(|t| t.time_ns).max();
    let end = Row {
        event: w.names.name(event::END),
        time_ns: last.unwrap_or(BEGIN_NS),
        ..Row::default()
    };
    w.push(end)?;
    w.finish()?.flush()
}
