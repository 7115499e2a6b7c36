//! Recordings made up for tests, with what they are to show planted in them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use synclater_recording::record::header::Header;
use synclater_recording::record::row::{Name, Row};
use synclater_recording::record::write::Writer;
use synclater_recording::record::{answered, done, event, kind};

/// 2026-03-01T00:00:00Z, nanoseconds since 1970.
pub const MARCH_NS: i64 = 1_772_323_200_000_000_000;
pub const SECOND_NS: i64 = 1_000_000_000;
pub const DAY_NS: i64 = 86_400 * SECOND_NS;

/// Numbers that follow from a seed.
pub struct Chance(pub u64);

impl Chance {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// A bell around 0, of width 1.
    pub fn bell(&mut self) -> f64 {
        let sum: u64 = (0..12).map(|_| self.below(1 << 20)).sum();
        sum as f64 / f64::from(1 << 20) - 6.0
    }

    /// A duration around a median, as disks have it.
    pub fn around(&mut self, median_ns: f64) -> u64 {
        (median_ns * (0.3 * self.bell()).exp()) as u64
    }
}

/// A request in words; what is empty is null.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub time_ns: i64,
    pub took_ns: u64,
    pub pid: u32,
    pub exe: &'a str,
    pub kind: &'a str,
    pub path: &'a str,
    pub mount: &'a str,
    pub device: &'a str,
    pub parents: &'a str,
    pub done: &'a str,
    pub dirty: Option<bool>,
}

pub const REQUEST: Request = Request {
    time_ns: MARCH_NS,
    took_ns: 1_000_000,
    pid: 7,
    exe: "/usr/lib/dovecot/imap",
    kind: kind::FSYNC,
    path: "/srv/mail/index.log",
    mount: "/srv",
    device: "/dev/sda1",
    parents: "",
    done: done::REAL,
    dirty: Some(true),
};

/// A recording that is being made up.
pub struct Made<W: Write> {
    pub writer: Writer<W>,
}

pub fn header(host: &str, session: &str) -> Header {
    Header {
        tool: "0.1.0".into(),
        host: host.into(),
        kernel: "6.1.0".into(),
        started: "2026-03-01T00:00:00Z".into(),
        session: session.into(),
        command: vec!["dovecot".into(), "-F".into()],
        until: "now".into(),
        engine: "library".into(),
        processors: 4,
        ..Header::default()
    }
}

/// Makes a recording in a file, with its end one second after the last request.
pub fn file(path: &Path, header: &Header, requests: &[Request]) {
    let out = BufWriter::new(File::create(path).expect("a file"));
    let mut made = Made::new(out, header);
    requests.iter().for_each(|r| made.push(r));
    let last = requests.iter().map(|r| r.time_ns).max();
    made.end(last.unwrap_or(MARCH_NS) + SECOND_NS);
}

impl<W: Write> Made<W> {
    pub fn new(out: W, header: &Header) -> Made<W> {
        let writer = Writer::new(out, header).expect("a recording");
        Made { writer }
    }

    fn name(&mut self, text: &str) -> Name {
        match text {
            "" => Name::NONE,
            text => self.writer.names.name(text),
        }
    }

    pub fn push(&mut self, r: &Request) {
        let row = Row {
            event: self.name(event::REQUEST),
            time_ns: r.time_ns,
            duration_ns: Some(r.took_ns),
            pid: Some(r.pid),
            tid: Some(r.pid),
            uid: Some(1000),
            exe: self.name(r.exe),
            command: self.name(r.exe),
            kind: self.name(r.kind),
            fd: Some(9),
            path: self.name(r.path),
            fstype: self.name("ext4"),
            mount: self.name(r.mount),
            device: self.name(r.device),
            parents: self.name(r.parents),
            result: Some(0),
            answered: self.name(answered::KERNEL),
            done: self.name(r.done),
            dirty: r.dirty,
            ..Row::default()
        };
        self.writer.push(row).expect("a row");
    }

    /// A process lost so many requests.
    pub fn lost(&mut self, pid: u32, count: u64, time_ns: i64) {
        let row = Row {
            event: self.name(event::LOST),
            time_ns,
            pid: Some(pid),
            value: Some(count as f64),
            ..Row::default()
        };
        self.writer.push(row).expect("a row");
    }

    pub fn end(mut self, time_ns: i64) -> W {
        let row = Row {
            event: self.name(event::END),
            time_ns,
            ..Row::default()
        };
        self.writer.push(row).expect("the end");
        self.writer.finish().expect("the end of the stream")
    }
}

/// A mail server as it works: each message is a new file in the queue and a new one in a mailbox,
/// and is noted in files of its user; beside it a database. Two requests of five have a path that
/// no other has. One in a hundred samples of the machine.
pub struct MailServer {
    pub users: u64,
    pub chance: Chance,
    pub time_ns: i64,
    inode: u64,
}

impl MailServer {
    pub fn new(seed: u64) -> MailServer {
        MailServer {
            users: 5_000,
            chance: Chance(seed),
            time_ns: MARCH_NS + 8 * 3600 * SECOND_NS,
            inode: 1_000_000,
        }
    }

    /// Pushes `requests` of them.
    pub fn work<W: Write>(&mut self, made: &mut Made<W>, requests: usize) {
        let mut pushed = 0;
        while pushed < requests {
            for row in self.message(made) {
                if pushed < requests {
                    made.writer.push(row).expect("a row");
                    pushed += 1;
                }
            }
        }
    }

    fn message<W: Write>(&mut self, made: &mut Made<W>) -> Vec<Row> {
        let user = self.chance.below(self.users);
        let domain = user % 40;
        let home = format!("/var/vmail/d{domain}.example.org/u{user}/Maildir");
        let clock = self.time_ns / SECOND_NS;
        let micros = self.time_ns % SECOND_NS / 1000;
        let lmtp = 4_000 + self.chance.below(60) as u32;
        let cleanup = 2_000 + self.chance.below(20) as u32;
        let queue = format!("{:X}{:05X}", clock & 0xfff, self.chance.below(1 << 20));
        let spool = format!("/var/spool/postfix/incoming/{}/{queue}", &queue[..1]);
        let letter = format!("{home}/tmp/{clock}.M{micros:06}P{lmtp}.mail1");
        let log = format!("{home}/dovecot.index.log");
        let uids = format!("{home}/dovecot-uidlist");
        let wal = format!(
            "/var/lib/postgresql/15/main/pg_wal/0000000100000A{:02X}",
            self.inode / 5_000 % 256
        );
        let size = 2_000 + self.chance.below(60_000);
        let own = 20_000_000 + user * 3;
        self.inode += 2;
        let fresh = self.inode;
        let (dovecot, postfix) = ("/usr/lib/dovecot/lmtp", "/usr/lib/postfix/sbin/cleanup");
        let postgres = "/usr/lib/postgresql/15/bin/postgres";
        let role = "postgres: 15/main: walwriter";
        vec![
            self.row(
                made,
                cleanup,
                [postfix, "cleanup -z -t unix -u", kind::FSYNC, &spool],
                fresh,
                size,
            ),
            self.row(
                made,
                lmtp,
                [dovecot, "dovecot/lmtp", kind::FSYNC, &letter],
                fresh + 1,
                size,
            ),
            self.row(
                made,
                lmtp,
                [dovecot, "dovecot/lmtp", kind::FDATASYNC, &log],
                own,
                180,
            ),
            self.row(
                made,
                lmtp,
                [dovecot, "dovecot/lmtp", kind::FDATASYNC, &uids],
                own + 1,
                44,
            ),
            self.row(
                made,
                900,
                [postgres, role, kind::FDATASYNC, &wal],
                700 + fresh / 5_000 % 256,
                8192,
            ),
        ]
    }

    fn row<W: Write>(
        &mut self,
        made: &mut Made<W>,
        pid: u32,
        [exe, command, kind, path]: [&str; 4],
        inode: u64,
        bytes: u64,
    ) -> Row {
        self.time_ns += 200_000 + self.chance.below(400_000) as i64;
        // Two speeds, as where every twelfth flush takes the other path.
        let median_ns = match self.chance.below(12) {
            0 => 31e6,
            _ => 0.4e6,
        };
        let vmail = path.starts_with("/var/vmail");
        let (mount, device) = if vmail {
            ("/var/vmail", "/dev/mapper/vg0-vmail")
        } else {
            ("/", "/dev/sda2")
        };
        let dirty = (self.chance.below(9) > 0).then_some(true);
        let caller = format!("libc.so.6+0x11{:03x}", pid / 100 * 16);
        Row {
            event: made.name(event::REQUEST),
            time_ns: self.time_ns,
            duration_ns: Some(self.chance.around(median_ns)),
            pid: Some(pid),
            tid: Some(pid),
            uid: Some(if vmail { 5000 } else { 113 }),
            exe: made.name(exe),
            command: made.name(command),
            kind: made.name(kind),
            fd: Some(8 + self.chance.below(9) as i32),
            path: made.name(path),
            inode: Some(inode),
            fstype: made.name("ext4"),
            mount: made.name(mount),
            device: made.name(device),
            parents: made.name(if vmail { "sdb1 < sdb" } else { "sda" }),
            result: Some(0),
            answered: made.name(answered::KERNEL),
            done: made.name(done::REAL),
            bytes: Some(bytes),
            dirty,
            caller: made.name(&caller),
            ..Row::default()
        }
    }
}

/// The same recording, of a version to come.
pub fn newer(recording: &[u8]) -> Vec<u8> {
    let mut bytes = recording.to_vec();
    // The only text of one byte in the head that is "1", its length in front.
    let one = b"\x01\0\0\x001\0";
    let at = bytes.windows(one.len()).position(|w| w == one);
    bytes[at.expect("a version") + 4] = b'9';
    bytes
}
