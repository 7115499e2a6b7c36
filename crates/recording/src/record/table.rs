//! A whole recording in memory, in columns: about 45 bytes a request.
//!
//! Texts are numbers here. A process is its pid, user, executable and command line; a file is its
//! path and where it lies. So whatever groups requests compares small numbers.

use super::header::Header;
use super::kind;
use std::collections::HashMap;
use synclater_account::escape::Escape;

/// [`Rows::took_ns`] and [`Rows::bytes`] where the value is not known.
pub const UNKNOWN: u64 = u64::MAX;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Done {
    /// Not known: no value, or one that this version does not know.
    Unknown,
    /// Made for real at that moment.
    Real,
    /// Put off, and settled with a debt.
    Owed,
    /// Not carried out.
    Skipped,
    /// Refused with an error.
    Nothing,
}

/// A process that made requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Process {
    /// Its number.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: Option<u32>,
    /// Path of its executable, or empty.
    pub exe: String,
    /// Its command line, or empty.
    pub command: String,
}

/// Where files lie.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Filesystem {
    /// Type, or empty.
    pub fstype: String,
    /// Mount point, or empty.
    pub mount: String,
    /// Device, or server and path, or empty.
    pub device: String,
    /// What the device is made of, nearest first, `" < "` between; or empty.
    pub parents: String,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct File {
    /// Its path, or empty.
    pub path: String,
    /// Index into [`Table::filesystems`].
    pub filesystem: u32,
}

/// Requests, one place in each column for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Nanoseconds since 1970.
    pub time_ns: Vec<i64>,
    /// Duration, or [`UNKNOWN`].
    pub took_ns: Vec<u64>,
    /// Index into [`Table::processes`].
    pub process: Vec<u32>,
    /// Thread, or 0.
    pub tid: Vec<u32>,
    /// Index into [`Table::files`].
    pub file: Vec<u32>,
    /// Index into [`Table::kinds`].
    pub kind: Vec<u16>,
    /// What became of it.
    pub done: Vec<Done>,
    /// Index into [`Table::reasons`]: why it was made for real.
    pub reason: Vec<u16>,
    /// errno, or 0.
    pub errno: Vec<u16>,
    /// Bytes written to the file before it, since its last sync; or [`UNKNOWN`].
    pub bytes: Vec<u64>,
    /// Whether anything was dirty.
    pub dirty: Vec<Option<bool>>,
    /// Index into [`Table::callers`].
    pub caller: Vec<u32>,
}

impl Rows {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.time_ns.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.time_ns.is_empty()
    }
}

/// A figure of the machine at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds since 1970.
    pub time_ns: i64,
    /// The device it is about; empty for the machine.
    pub device: String,
    /// What it is; docs/FORMAT.md lists them.
    pub metric: String,
    /// Its value.
    pub value: f64,
}

/// A settle.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// When it began, nanoseconds since 1970.
    pub time_ns: i64,
    /// How long it took, or [`UNKNOWN`].
    pub took_ns: u64,
    /// Index into [`Table::filesystems`].
    pub filesystem: u32,
    /// Number of the debt that it paid.
    pub debt: Option<u64>,
    /// errno, or 0.
    pub errno: u16,
}

/// How many calls of a kind were faster than the threshold, by duration.
#[derive(Clone, Debug, PartialEq)]
pub struct IoRest {
    /// Index into [`Table::processes`].
    pub process: u32,
    /// Index into [`Table::kinds`].
    pub kind: u16,
    /// They took less than this many nanoseconds, and at least half of it.
    pub below_ns: u64,
    /// How many.
    pub count: u64,
}

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What it says of itself.
    pub header: Header,
    /// Sync requests, in the order in which they were drained: nearly, not exactly that of time.
    pub rows: Rows,
    /// Slow calls that are no sync requests.
    pub io: Rows,
    /// The faster ones, counted.
    pub io_rest: Vec<IoRest>,
    /// Processes.
    pub processes: Vec<Process>,
    /// Files; the first is "no file".
    pub files: Vec<File>,
    /// File systems; the first is "not known".
    pub filesystems: Vec<Filesystem>,
    /// Kinds of calls.
    pub kinds: Vec<String>,
    /// Reasons; the first is empty.
    pub reasons: Vec<String>,
    /// Callers; the first is empty.
    pub callers: Vec<String>,
    /// Figures of the machine.
    pub samples: Vec<Sample>,
    /// Settles.
    pub settles: Vec<Settle>,
    /// Requests that rings lost, by process number.
    pub lost: HashMap<u32, u64>,
    /// Processes whose requests are not in it, because the session did not reach them.
    pub escaped: Vec<Escape>,
    /// Why it is not known who else escaped.
    pub escapes_unknown: Option<String>,
    /// Nanoseconds since 1970 of the end of the recording; `None` where the end is missing.
    pub end_ns: Option<i64>,
    /// Why reading stopped, where it stopped in the middle.
    pub cut: Option<String>,
    /// Columns that the recording does not have.
    pub absent: Vec<String>,
    /// Whole batches that were read.
    pub batches: u64,
}

impl Table {
    /// Whether the recording has its end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.end_ns.is_some() && self.cut.is_none()
    }

    /// Whether kind `index` asks for durability, and not only for write-back.
    #[must_use]
    pub fn is_durability(&self, index: u16) -> bool {
        let name = self.kinds.get(usize::from(index));
        !name.is_some_and(|n| kind::is_hint(n))
    }

    /// For tests: of one kind, one executable and one file, without rows.
    #[cfg(test)]
    pub(crate) fn of_one(kind: &str, exe: &str, path: &str) -> Table {
        Table {
            kinds: vec![kind.into()],
            processes: vec![Process {
                exe: exe.into(),
                ..Process::default()
            }],
            files: vec![File {
                path: path.into(),
                filesystem: 0,
            }],
            ..Table::default()
        }
    }

    /// First and last moment of the recording, nanoseconds since 1970: from its begin, requests and
    /// samples, and its end where it has one. `None` for one without any.
    #[must_use]
    pub fn span_ns(&self) -> Option<(i64, i64)> {
        let rows = &self.rows;
        let timed = rows.time_ns.iter().zip(&rows.took_ns);
        let ends = timed.map(|(time, took)| {
            let took = if *took == UNKNOWN { 0 } else { *took };
            time.saturating_add(i64::try_from(took).unwrap_or(i64::MAX))
        });
        let others = self.samples.iter().map(|s| s.time_ns).chain(self.end_ns);
        let begins = rows.time_ns.iter().copied();
        let first = begins.chain(others.clone()).min()?;
        let last = ends.chain(others).max()?;
        // There is a sample each second: a begin that lies further back is of another clock.
        let began = self.header.started_ns().filter(|began| {
            let idle = first.saturating_sub(*began);
            (0..=60_000_000_000).contains(&idle)
        });
        Some((began.unwrap_or(first), last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::Header;
    use super::super::read::Unreadable;
    use super::super::row::Row;
    use super::super::write::Writer;
    use super::super::{done, event, kind};
    use super::*;
    use proptest::prelude::*;

    /// A recording with a batch for each of `batches`: so many requests.
    fn recording(batches: &[usize]) -> Vec<u8> {
        let header = Header {
            host: "mail1".into(),
            command: vec!["a b".into(), "\n".into()],
            ..Header::default()
        };
        let mut w = Writer::new(Vec::new(), &header).expect("memory");
        let (request, fsync) = (w.names.name(event::REQUEST), w.names.name(kind::FSYNC));
        let real = w.names.name(done::REAL);
        for (b, rows) in batches.iter().enumerate() {
            for i in 0..*rows {
                let path = w.names.name(&format!("/spool/{}", i % 7));
                let row = Row {
                    event: request,
                    time_ns: (b * 1000 + i) as i64,
                    duration_ns: Some(i as u64 * 10),
                    pid: Some(7),
                    kind: fsync,
                    path,
                    done: real,
                    result: Some(0),
                    dirty: Some(i % 2 == 0),
                    ..Row::default()
                };
                w.push(row).expect("memory");
            }
            w.flush().expect("memory");
        }
        let end = Row {
            event: w.names.name(event::END),
            time_ns: 99_999,
            ..Row::default()
        };
        w.push(end).expect("memory");
        w.finish().expect("memory")
    }

    #[test]
    fn what_was_written_is_read() {
        let t = Table::read(&recording(&[10, 5])[..]).expect("a recording");
        assert!(t.is_whole());
        assert_eq!(t.header.host, "mail1");
        assert_eq!(t.header.command, ["a b", "\n"]);
        assert_eq!(t.rows.len(), 15);
        assert_eq!(
            t.processes,
            [Process {
                pid: Some(7),
                ..Process::default()
            }]
        );
        assert_eq!(t.files.len(), 8, "no file, and seven");
        assert_eq!(t.files[t.rows.file[11] as usize].path, "/spool/1");
        assert_eq!(t.rows.took_ns[11], 10);
        assert_eq!(t.rows.dirty[10..12], [Some(true), Some(false)]);
        assert_eq!(t.rows.done[0], Done::Real);
        assert_eq!(t.span_ns(), Some((0, 99_999)));
    }

    #[test]
    fn what_is_no_recording_is_told_apart() {
        let whole = recording(&[3]);
        let tell = |bytes: &[u8]| Table::read(bytes).map(|_| ()).expect_err("no recording");
        assert!(matches!(tell(b""), Unreadable::Empty));
        assert!(matches!(tell(b"PAR1xxxxxxx"), Unreadable::Another(_)));
        assert!(matches!(tell(b"hello"), Unreadable::Another(_)));
        assert!(matches!(
            tell(b"\xff\xff\xff\xff\xff\xff\xff\xff"),
            Unreadable::Another(_)
        ));
        assert!(matches!(tell(&whole[..100]), Unreadable::NoHead(100)));
    }

    #[test]
    fn a_recording_of_no_request_is_one() {
        let t = Table::read(&recording(&[])[..]).expect("a recording");
        assert!(t.is_whole() && t.rows.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_recording_cut_at_any_byte_gives_its_whole_batches(
            batches in proptest::collection::vec(1usize..400, 1..6), at in 0.0f64..1.0
        ) {
            let whole = recording(&batches);
            let at = (whole.len() as f64 * at) as usize;
            match Table::read(&whole[..at]) {
                Err(e) => prop_assert!(matches!(e, Unreadable::Empty | Unreadable::NoHead(_))),
                Ok(t) => {
                    let read = t.batches as usize;
                    let want: usize = batches.iter().take(read).sum();
                    prop_assert_eq!(t.rows.len(), want);
                    // The bytes of the end of the stream may be missing without any loss.
                    prop_assert!(!t.is_whole() || read == batches.len() + 1);
                }
            }
        }

        #[test]
        fn a_damaged_recording_is_refused_or_read_but_nothing_breaks(
            batches in proptest::collection::vec(1usize..60, 1..4),
            damage in proptest::collection::vec((0.0f64..1.0, any::<u8>()), 1..6)
        ) {
            let mut bytes = recording(&batches);
            for (at, byte) in damage {
                let at = (bytes.len() as f64 * at) as usize;
                bytes[at] = byte;
            }
            if let Ok(t) = Table::read(&bytes[..]) {
                let rows = &t.rows;
                prop_assert!(rows.file.iter().all(|f| (*f as usize) < t.files.len()));
                prop_assert!(rows.process.iter().all(|p| (*p as usize) < t.processes.len()));
            }
        }
    }
}
