//! A recording to look at: a mail server beside a database, its mail on a disk of two speeds; and a
//! report in the largest size that there is.
//!
//! Promise: the same every time. Its report is made as that of any recording.

use serde_json::{json, Value};
use synclater_recording::record::header::Header;
use synclater_recording::record::row::{Name, Row};
use synclater_recording::record::table::Table;
use synclater_recording::record::write::Writer;
use synclater_recording::record::{answered, done, event, kind};
use synclater_recording::report::recording::RecordingReport;

const STARTED: &str = "2026-03-14T02:11:09.204518337Z";
const STARTED_NS: i64 = 1_773_454_269_204_518_337;
const SECOND_NS: u64 = 1_000_000_000;

struct Mount {
    mount: &'static str,
    fstype: &'static str,
    device: &'static str,
    parents: &'static str,
    /// What a sync takes at the median.
    median_ns: f64,
    /// How many of a thousand requests meet the slow path.
    slow: u64,
}

const MOUNTS: [Mount; 2] = [
    Mount {
        mount: "/var/mail",
        fstype: "xfs",
        device: "/dev/mapper/spool",
        parents: "spool < sdb",
        median_ns: 210_000.0,
        slow: 80,
    },
    Mount {
        mount: "/srv/db",
        fstype: "ext4",
        device: "/dev/nvme0n1p2",
        parents: "nvme0n1p2 < nvme0n1",
        median_ns: 480_000.0,
        slow: 0,
    },
];

/// What a program does at a time.
#[derive(Clone, Copy)]
enum Work {
    /// Delivers a message: the message, the index, the list of numbers.
    Mail,
    /// Takes a message into the queue.
    Queue,
    /// Commits.
    Commit,
    /// Writes pages back, with a hint before.
    Pages,
    /// Writes a log of another kind.
    Log,
}

struct Program {
    exe: &'static str,
    command: &'static str,
    pid: u32,
    uid: u32,
    caller: &'static str,
    /// Between two pieces of work, on average.
    pause_ns: f64,
    mount: usize,
    work: Work,
    /// How many of a hundred requests are needless.
    needless: u64,
    bytes: u64,
}

const IMAP: Program = Program {
    exe: "/usr/lib/dovecot/imap",
    command: "dovecot/imap",
    pid: 0,
    uid: 5000,
    caller: "/usr/lib/dovecot/libdovecot.so.0+0xfa11c",
    pause_ns: 34e6,
    mount: 0,
    work: Work::Mail,
    needless: 31,
    bytes: 3_800,
};

const POSTGRES: Program = Program {
    exe: "/usr/lib/postgresql/15/bin/postgres",
    command: "",
    pid: 0,
    uid: 112,
    caller: "/usr/lib/postgresql/15/bin/postgres+0x4e8a97",
    pause_ns: 6e6,
    mount: 1,
    work: Work::Commit,
    needless: 2,
    bytes: 16_384,
};

fn programs() -> Vec<Program> {
    let mut all: Vec<Program> = (881..889).map(|pid| Program { pid, ..IMAP }).collect();
    all.push(Program {
        exe: "/usr/lib/postfix/sbin/cleanup",
        command: "cleanup -z -t unix -u -c",
        pid: 912,
        uid: 104,
        caller: "/usr/lib/postfix/libpostfix-util.so+0x2b1d0",
        pause_ns: 24e6,
        work: Work::Queue,
        needless: 0,
        bytes: 11_500,
        ..IMAP
    });
    let roles = [
        ("postgres: 15/main: walwriter", 640, Work::Commit, 9e6),
        ("postgres: 15/main: checkpointer", 638, Work::Pages, 60e6),
        (
            "postgres: 15/main: app app 10.0.3.7(41180) COMMIT",
            655,
            Work::Commit,
            6e6,
        ),
    ];
    all.extend(roles.map(|(command, pid, work, pause_ns)| Program {
        command,
        pid,
        work,
        pause_ns,
        ..POSTGRES
    }));
    all.push(Program {
        exe: "/usr/bin/etcd",
        command: "/usr/bin/etcd --data-dir /srv/db/etcd",
        pid: 702,
        uid: 998,
        caller: "/usr/bin/etcd+0x8711e",
        pause_ns: 45e6,
        work: Work::Log,
        bytes: 2_300,
        ..POSTGRES
    });
    all
}

const USERS: [&str; 13] = [
    "anna", "bo", "chidi", "dora", "emre", "farah", "goran", "hye-jin", "ines", "jan", "kofi",
    "lena", "mihai",
];

/// The requests that one piece of work makes, one after the other.
fn requests_of(work: Work, pid: u32, number: u64, dice: &mut Dice) -> Vec<(&'static str, String)> {
    // The first users get more mail than the last.
    let user = USERS[(dice.share().powf(1.7) * USERS.len() as f64) as usize];
    let data = "/srv/db/15/main";
    match work {
        Work::Mail => vec![
            (
                kind::FSYNC,
                format!("/var/mail/{user}/new/{number}.M{pid}P.mx1"),
            ),
            (
                kind::FDATASYNC,
                format!("/var/mail/{user}/dovecot.index.log"),
            ),
            (kind::FDATASYNC, format!("/var/mail/{user}/dovecot-uidlist")),
        ],
        Work::Queue => {
            let folder = dice.below(16);
            vec![(
                kind::FSYNC,
                format!("/var/mail/.queue/active/{folder:X}/{number:08X}"),
            )]
        }
        Work::Commit => {
            let segment = 0x4e + number / 2_000;
            vec![(
                kind::FDATASYNC,
                format!("{data}/pg_wal/00000001000000A3{segment:08X}"),
            )]
        }
        Work::Pages => {
            let page = format!("{data}/base/16384/{}", 24_601 + dice.below(23));
            vec![(kind::SYNC_FILE_RANGE, page.clone()), (kind::FSYNC, page)]
        }
        Work::Log => {
            let log = "/srv/db/etcd/member/wal/0000000000000007-00000000000a2f31.wal";
            vec![(kind::FDATASYNC, log.to_owned())]
        }
    }
}

/// xorshift64*, seeded by hand.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn share(&mut self) -> f64 {
        self.roll() as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    /// About normal, mean 0 and deviation 1.
    fn bell(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

struct Request {
    begin_ns: u64,
    took_ns: u64,
    program: usize,
    kind: &'static str,
    path: String,
    dirty: bool,
    bytes: u64,
}

/// A copy runs for six of each 36 seconds and makes everything slower.
fn load_at(begin_ns: u64) -> f64 {
    match begin_ns as f64 / 1e9 % 36.0 {
        t if (14.0..20.0).contains(&t) => {
            1.0 + 2.2 * ((t - 14.0) / 6.0 * std::f64::consts::PI).sin()
        }
        _ => 1.0,
    }
}

fn requests(programs: &[Program], wall_ns: u64) -> Vec<Request> {
    let mut dice = Dice(0x5eed_0023);
    let mut all = Vec::new();
    for (number, program) in programs.iter().enumerate() {
        let mount = &MOUNTS[program.mount];
        let mut now = dice.below(50_000_000);
        for turn in 0.. {
            now += (program.pause_ns * (0.05 - dice.share().max(1e-9).ln())) as u64;
            for (kind, path) in requests_of(program.work, program.pid, turn, &mut dice) {
                let slow = dice.below(1_000) < mount.slow;
                let typical = if slow {
                    31e6
                } else {
                    mount.median_ns * load_at(now)
                };
                let spread = if slow { 0.12 } else { 0.38 };
                let took_ns = (typical * (spread * dice.bell()).exp()) as u64;
                all.push(Request {
                    begin_ns: now,
                    took_ns,
                    program: number,
                    kind,
                    path,
                    dirty: dice.below(100) >= program.needless,
                    bytes: program.bytes / 2 + dice.below(program.bytes),
                });
                now += took_ns + 40_000;
            }
            if now >= wall_ns {
                break;
            }
        }
    }
    all.retain(|r| r.begin_ns + r.took_ns < wall_ns);
    all.sort_by_key(|r| r.begin_ns);
    all
}

/// A recording of so many seconds, with about 770 requests in each.
pub fn recording(wall_s: u64) -> Vec<u8> {
    let header = Header {
        host: "mx1.example.org".into(),
        kernel: "6.12.63+deb13-amd64".into(),
        started: STARTED.into(),
        command: ["mail-and-database", "--for", "36s"]
            .map(str::to_owned)
            .into(),
        until: "now".into(),
        engine: "library".into(),
        processors: 8,
        ..Header::default()
    };
    let mut writer = Writer::new(Vec::new(), &header).expect("memory");
    let programs = programs();
    let mut dice = Dice(0x0dd_ba11);
    let mut next_s = 0;
    for request in requests(&programs, wall_s * SECOND_NS) {
        while next_s * SECOND_NS < request.begin_ns {
            sample(&mut writer, next_s, &mut dice);
            next_s += 1;
        }
        let row = row_of(&mut writer, &request, &programs[request.program]);
        writer.push(row).expect("memory");
    }
    let end = Row {
        event: writer.names.name(event::END),
        time_ns: STARTED_NS + (wall_s * SECOND_NS) as i64,
        ..Row::default()
    };
    writer.push(end).expect("memory");
    writer.finish().expect("memory")
}

fn row_of(writer: &mut Writer<Vec<u8>>, request: &Request, program: &Program) -> Row {
    let mount = &MOUNTS[program.mount];
    let mut name = |text: &str| writer.names.name(text);
    Row {
        event: name(event::REQUEST),
        time_ns: STARTED_NS + request.begin_ns as i64,
        duration_ns: Some(request.took_ns),
        pid: Some(program.pid),
        tid: Some(program.pid),
        uid: Some(program.uid),
        exe: name(program.exe),
        command: name(program.command),
        kind: name(request.kind),
        fd: Some(11),
        path: name(&request.path),
        fstype: name(mount.fstype),
        mount: name(mount.mount),
        device: name(mount.device),
        parents: name(mount.parents),
        result: Some(0),
        answered: name(answered::KERNEL),
        done: name(done::REAL),
        bytes: Some(request.bytes),
        dirty: Some(request.dirty),
        caller: name(program.caller),
        ..Row::default()
    }
}

/// The machine's figures of one second, a bit uneven.
fn sample(writer: &mut Writer<Vec<u8>>, second: u64, dice: &mut Dice) {
    let load = load_at(second * SECOND_NS);
    let figures = [
        ("sdb", "utilisation", (0.27 * load).min(0.87)),
        ("sdb", "flushes_per_s", 940.0 / load),
        ("sdb", "write_wait_ms", 1.1 * load),
        ("sdb", "flush_wait_ms", 2.6 * load),
        ("nvme0n1", "utilisation", (0.12 * load).min(0.87)),
        ("nvme0n1", "flushes_per_s", 410.0 / load),
        ("nvme0n1", "write_wait_ms", 0.2 * load),
        ("nvme0n1", "flush_wait_ms", 0.4 * load),
        ("", "psi_io_some", (0.11 * load * load).min(0.85)),
        ("", "dirty_bytes", 38e6 * load * load),
        ("", "iowait", 0.06 * load),
    ];
    for (device, metric, value) in figures {
        let row = Row {
            event: writer.names.name(event::SAMPLE),
            time_ns: STARTED_NS + (second * SECOND_NS) as i64,
            device: match device {
                "" => Name::NONE,
                device => writer.names.name(device),
            },
            metric: writer.names.name(metric),
            value: Some(value * (0.86 + 0.28 * dice.share())),
            ..Row::default()
        };
        writer.push(row).expect("memory");
    }
}

/// The report of 36 seconds.
pub fn report() -> Value {
    static MADE: std::sync::OnceLock<Value> = std::sync::OnceLock::new();
    let make = || {
        let table = Table::read(&recording(36)[..]).expect("a recording");
        let report = RecordingReport::of(&table, "mx1-friday.rec");
        serde_json::from_str(&report.to_json()).expect("JSON")
    };
    MADE.get_or_init(make).clone()
}

/// What requests are grouped by.
pub const TABLES: [&str; 7] = [
    "file",
    "process",
    "program",
    "kind",
    "filesystem",
    "device",
    "caller",
];

/// As large as a report can be: 100 rows in each table, each with a histogram of 60 cells, a full
/// heat map, 300 samples of eight devices.
pub fn largest() -> Value {
    let mut report = report();
    let edge = |cell: usize| 2f64.powf(cell as f64 / 2.0).round() as u64;
    for table in TABLES {
        let rows = report[format!("by_{table}")]
            .as_array()
            .expect("rows")
            .clone();
        let one = |k: usize| {
            let mut row = rows[k % rows.len()].clone();
            let long = "a-folder-with-a-long-name/".repeat(4);
            let name = row["name"].as_str().expect("a name");
            row["name"] = json!(format!("/srv/{long}{k}/{name}"));
            let cells = (0..60usize).map(
                |c| json!({ "from_ns": edge(c + 10), "to_ns": edge(c + 11), "n": 10_007 + c * k }),
            );
            row["histogram"] = cells.collect();
            row
        };
        report[format!("by_{table}")] = (0..100).map(one).collect();
        report[format!("by_{table}_total")] = json!(100_003);
    }
    let cells = (0..120).flat_map(|c| (0..40).map(move |r| json!([c, r, 1 + c * r])));
    report["heatmap"]["cells"] = cells.collect();
    report["heatmap"]["edges_ns"] = (20..=60).map(edge).collect();
    let line = |k: usize| {
        (0..300)
            .map(|s| json!((s * k) as f64 / 7_000.0))
            .collect::<Value>()
    };
    let device = |k: usize| {
        json!({
            "device": format!("disk{k}"), "utilisation": line(k), "flushes_per_s": line(k),
            "write_wait_ms": line(k), "flush_wait_ms": line(k),
        })
    };
    report["samples"] = json!({
        "seconds": (0..300).map(|s| f64::from(s) * 0.12).collect::<Vec<_>>(),
        "devices": (1..9).map(device).collect::<Vec<_>>(),
        "machine": { "psi_io_some": line(3), "dirty_bytes": line(5), "iowait": line(2) },
    });
    report
}
