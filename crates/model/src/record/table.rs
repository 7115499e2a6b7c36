//! A whole recording in memory, in columns: about 45 bytes a request.
//!
//! Texts are numbers here. A process is its pid, user, executable and command line; a file is its
//! path and where it lies. So whatever groups requests compares small numbers.

use super::header::Header;
use super::read::{Stream, Unreadable};
use super::{done, event, kind};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, Float64Type, Int32Type, Int64Type,
    TimestampNanosecondType, UInt32Type, UInt64Type,
};
use arrow_array::{Array, PrimitiveArray, RecordBatch};
use std::collections::HashMap;
use std::hash::Hash;
use std::io::Read;

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
    /// Nanoseconds since 1970 of the end of the recording; `None` where the end is missing.
    pub end_ns: Option<i64>,
    /// Why reading stopped, where it stopped in the middle.
    pub cut: Option<String>,
    /// Whole batches that were read.
    pub batches: u64,
}

/// Gives each different value a number, in the order of their first use.
#[derive(Debug, Default)]
struct Interner<K> {
    ids: HashMap<K, u32>,
    last: Option<(K, u32)>,
}

impl<K: Hash + Eq + Copy> Interner<K> {
    /// The number of `key`, and whether it is new.
    fn id(&mut self, key: K) -> (u32, bool) {
        if let Some((last, id)) = self.last {
            if last == key {
                return (id, false);
            }
        }
        let next = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let id = *self.ids.entry(key).or_insert(next);
        self.last = Some((key, id));
        (id, id == next && self.ids.len() as u32 == next + 1)
    }
}

/// Texts of all batches, by number; 0 is null and the empty text.
#[derive(Debug, Default)]
struct Texts {
    ids: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Texts {
    fn id(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.texts.len() as u32 + 1;
        self.texts.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }

    fn text(&self, id: u32) -> String {
        match id {
            0 => String::new(),
            n => self.texts[n as usize - 1].clone(),
        }
    }
}

/// A dictionary column of one batch as numbers of [`Texts`].
struct TextColumn {
    ids: Vec<u32>,
}

impl TextColumn {
    fn of(batch: &RecordBatch, name: &str, texts: &mut Texts) -> TextColumn {
        let column = { batch.column_by_name(name) }
            .and_then(|c| c.as_dictionary_opt::<Int32Type>().cloned());
        let Some(column) = column else {
            return TextColumn {
                ids: vec![0; batch.num_rows()],
            };
        };
        let values = column.values().as_string::<i32>();
        let known: Vec<u32> = { 0..values.len() }
            .map(|i| {
                if values.is_valid(i) {
                    texts.id(values.value(i))
                } else {
                    0
                }
            })
            .collect();
        let keys = column.keys();
        let look_up = |i: usize| {
            let at = keys
                .is_valid(i)
                .then(|| usize_of::<Int32Type>(keys.value(i)));
            at.and_then(|at| known.get(at)).copied().unwrap_or(0)
        };
        TextColumn {
            ids: (0..keys.len()).map(look_up).collect(),
        }
    }
}

fn usize_of<T: ArrowDictionaryKeyType>(key: i32) -> usize {
    usize::try_from(key).unwrap_or(usize::MAX)
}

/// A column of numbers of one batch, absent where the file has none of that name.
struct Numbers<T: ArrowPrimitiveType>(Option<PrimitiveArray<T>>);

impl<T: ArrowPrimitiveType> Numbers<T> {
    fn of(batch: &RecordBatch, name: &str) -> Numbers<T> {
        let column = batch.column_by_name(name);
        Numbers(column.and_then(|c| c.as_primitive_opt::<T>().cloned()))
    }

    fn get(&self, row: usize) -> Option<T::Native> {
        let column = self.0.as_ref()?;
        column.is_valid(row).then(|| column.value(row))
    }
}

/// The columns of one batch.
struct Columns {
    event: TextColumn,
    kind: TextColumn,
    exe: TextColumn,
    command: TextColumn,
    path: TextColumn,
    fstype: TextColumn,
    mount: TextColumn,
    device: TextColumn,
    parents: TextColumn,
    done: TextColumn,
    reason: TextColumn,
    caller: TextColumn,
    metric: TextColumn,
    time: Numbers<TimestampNanosecondType>,
    duration: Numbers<UInt64Type>,
    pid: Numbers<UInt32Type>,
    tid: Numbers<UInt32Type>,
    uid: Numbers<UInt32Type>,
    errno: Numbers<Int32Type>,
    result: Numbers<Int64Type>,
    debt: Numbers<UInt64Type>,
    bytes: Numbers<UInt64Type>,
    value: Numbers<Float64Type>,
    dirty: Option<arrow_array::BooleanArray>,
}

impl Columns {
    fn of(batch: &RecordBatch, texts: &mut Texts) -> Columns {
        let mut text = |name| TextColumn::of(batch, name, texts);
        Columns {
            event: text("event"),
            kind: text("kind"),
            exe: text("exe"),
            command: text("command"),
            path: text("path"),
            fstype: text("fstype"),
            mount: text("mount"),
            device: text("device"),
            parents: text("parents"),
            done: text("done"),
            reason: text("reason"),
            caller: text("caller"),
            metric: text("metric"),
            time: Numbers::of(batch, "time"),
            duration: Numbers::of(batch, "duration_ns"),
            pid: Numbers::of(batch, "pid"),
            tid: Numbers::of(batch, "tid"),
            uid: Numbers::of(batch, "uid"),
            errno: Numbers::of(batch, "errno"),
            result: Numbers::of(batch, "result"),
            debt: Numbers::of(batch, "debt"),
            bytes: Numbers::of(batch, "bytes"),
            value: Numbers::of(batch, "value"),
            dirty: { batch.column_by_name("dirty") }.and_then(|c| c.as_boolean_opt().cloned()),
        }
    }

    fn time(&self, row: usize) -> i64 {
        self.time.get(row).unwrap_or(0)
    }

    fn errno(&self, row: usize) -> u16 {
        let errno = self.errno.get(row).unwrap_or(0);
        u16::try_from(errno).unwrap_or(0)
    }
}

/// Builds a [`Table`].
#[derive(Default)]
struct Builder {
    table: Table,
    texts: Texts,
    processes: Interner<(Option<u32>, Option<u32>, u32, u32)>,
    filesystems: Interner<(u32, u32, u32, u32)>,
    files: Interner<(u32, u32)>,
    kinds: Interner<u32>,
    reasons: Interner<u32>,
    callers: Interner<u32>,
}

fn small(id: u32) -> u16 {
    u16::try_from(id).unwrap_or(u16::MAX)
}

impl Builder {
    fn new(header: Header) -> Builder {
        let mut b = Builder::default();
        b.table.header = header;
        // The first of each stands for what is not known.
        b.filesystem((0, 0, 0, 0));
        b.file((0, 0));
        b.reason(0);
        b.caller(0);
        b
    }

    fn process(&mut self, key: (Option<u32>, Option<u32>, u32, u32)) -> u32 {
        let (id, new) = self.processes.id(key);
        if new {
            self.table.processes.push(Process {
                pid: key.0,
                uid: key.1,
                exe: self.texts.text(key.2),
                command: self.texts.text(key.3),
            });
        }
        id
    }

    fn filesystem(&mut self, key: (u32, u32, u32, u32)) -> u32 {
        let (id, new) = self.filesystems.id(key);
        if new {
            self.table.filesystems.push(Filesystem {
                fstype: self.texts.text(key.0),
                mount: self.texts.text(key.1),
                device: self.texts.text(key.2),
                parents: self.texts.text(key.3),
            });
        }
        id
    }

    fn file(&mut self, key: (u32, u32)) -> u32 {
        let (id, new) = self.files.id(key);
        if new {
            self.table.files.push(File {
                path: self.texts.text(key.0),
                filesystem: key.1,
            });
        }
        id
    }

    fn kind(&mut self, text: u32) -> u16 {
        let (id, new) = self.kinds.id(text);
        if new {
            self.table.kinds.push(self.texts.text(text));
        }
        small(id)
    }

    fn reason(&mut self, text: u32) -> u16 {
        let (id, new) = self.reasons.id(text);
        if new {
            self.table.reasons.push(self.texts.text(text));
        }
        small(id)
    }

    fn caller(&mut self, text: u32) -> u32 {
        let (id, new) = self.callers.id(text);
        if new {
            self.table.callers.push(self.texts.text(text));
        }
        id
    }

    fn add(&mut self, batch: &RecordBatch) {
        let c = Columns::of(batch, &mut self.texts);
        self.table.batches += 1;
        let words = [
            event::REQUEST,
            event::IO,
            event::IO_REST,
            event::SAMPLE,
            event::SETTLE,
            event::LOST,
            event::END,
        ];
        let words = words.map(|w| self.texts.id(w));
        for row in 0..batch.num_rows() {
            match words.iter().position(|w| *w == c.event.ids[row]) {
                Some(0) => self.request(&c, row, false),
                Some(1) => self.request(&c, row, true),
                Some(2) => self.io_rest(&c, row),
                Some(3) => self.sample(&c, row),
                Some(4) => self.settle(&c, row),
                Some(5) => {
                    let pid = c.pid.get(row).unwrap_or(0);
                    let count = c.value.get(row).unwrap_or(0.0) as u64;
                    *self.table.lost.entry(pid).or_default() += count;
                }
                Some(6) => self.table.end_ns = Some(c.time(row)),
                // A kind of row that a later program of the same version may write.
                _ => {}
            }
        }
    }

    fn where_it_lies(&mut self, c: &Columns, row: usize) -> u32 {
        self.filesystem((
            c.fstype.ids[row],
            c.mount.ids[row],
            c.device.ids[row],
            c.parents.ids[row],
        ))
    }

    fn who(&mut self, c: &Columns, row: usize) -> u32 {
        let (exe, command) = (c.exe.ids[row], c.command.ids[row]);
        self.process((c.pid.get(row), c.uid.get(row), exe, command))
    }

    fn request(&mut self, c: &Columns, row: usize, io: bool) {
        let process = self.who(c, row);
        let filesystem = self.where_it_lies(c, row);
        let file = self.file((c.path.ids[row], filesystem));
        let kind = self.kind(c.kind.ids[row]);
        let reason = self.reason(c.reason.ids[row]);
        let caller = self.caller(c.caller.ids[row]);
        let done = self.done(c.done.ids[row]);
        let failed = c.result.get(row).is_some_and(|r| r < 0);
        let rows = if io {
            &mut self.table.io
        } else {
            &mut self.table.rows
        };
        rows.time_ns.push(c.time(row));
        rows.took_ns.push(c.duration.get(row).unwrap_or(UNKNOWN));
        rows.process.push(process);
        rows.tid.push(c.tid.get(row).unwrap_or(0));
        rows.file.push(file);
        rows.kind.push(kind);
        rows.done.push(done);
        rows.reason.push(reason);
        rows.errno.push(if failed {
            c.errno(row).max(1)
        } else {
            c.errno(row)
        });
        rows.bytes.push(c.bytes.get(row).unwrap_or(UNKNOWN));
        let dirty = c.dirty.as_ref().filter(|d| d.is_valid(row));
        rows.dirty.push(dirty.map(|d| d.value(row)));
        rows.caller.push(caller);
    }

    fn done(&self, text: u32) -> Done {
        if text == 0 {
            return Done::Unknown;
        }
        match self.texts.texts[text as usize - 1].as_str() {
            done::REAL => Done::Real,
            done::OWED => Done::Owed,
            done::SKIPPED => Done::Skipped,
            done::NOTHING => Done::Nothing,
            _ => Done::Unknown,
        }
    }

    fn io_rest(&mut self, c: &Columns, row: usize) {
        let metric = self.texts.text(c.metric.ids[row]);
        let below_ns = metric
            .strip_prefix("below_ns_")
            .and_then(|n| n.parse().ok());
        let rest = IoRest {
            process: self.who(c, row),
            kind: self.kind(c.kind.ids[row]),
            below_ns: below_ns.unwrap_or(0),
            count: c.value.get(row).unwrap_or(0.0) as u64,
        };
        self.table.io_rest.push(rest);
    }

    fn sample(&mut self, c: &Columns, row: usize) {
        self.table.samples.push(Sample {
            time_ns: c.time(row),
            device: self.texts.text(c.device.ids[row]),
            metric: self.texts.text(c.metric.ids[row]),
            value: c.value.get(row).unwrap_or(f64::NAN),
        });
    }

    fn settle(&mut self, c: &Columns, row: usize) {
        let settle = Settle {
            time_ns: c.time(row),
            took_ns: c.duration.get(row).unwrap_or(UNKNOWN),
            filesystem: self.where_it_lies(c, row),
            debt: c.debt.get(row),
            errno: c.errno(row),
        };
        self.table.settles.push(settle);
    }
}

impl Table {
    /// Reads a whole recording. One that is cut off gives its whole batches and says so
    /// ([`Table::is_whole`]).
    ///
    /// # Errors
    /// Why it is no recording.
    pub fn read(input: impl Read) -> Result<Table, Unreadable> {
        let mut stream = Stream::open(input)?;
        let mut builder = Builder::new(stream.header().clone());
        while let Some(batch) = stream.next_batch() {
            builder.add(&batch);
        }
        builder.table.cut = stream.cut().map(str::to_owned);
        Ok(builder.table)
    }

    /// One batch of a recording, as a table of its own.
    #[must_use]
    pub fn of_batch(header: &Header, batch: &RecordBatch) -> Table {
        let mut builder = Builder::new(header.clone());
        builder.add(batch);
        builder.table
    }

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

    /// First and last moment of the recording, nanoseconds since 1970: from its requests and
    /// samples, and its end where it has one. `None` for one without any.
    #[must_use]
    pub fn span_ns(&self) -> Option<(i64, i64)> {
        let rows = &self.rows;
        let ends = { rows.time_ns.iter().zip(&rows.took_ns) }.map(|(time, took)| {
            let took = if *took == UNKNOWN { 0 } else { *took };
            time.saturating_add(i64::try_from(took).unwrap_or(i64::MAX))
        });
        let others = self.samples.iter().map(|s| s.time_ns).chain(self.end_ns);
        let first = { rows.time_ns.iter().copied() }
            .chain(others.clone())
            .min()?;
        let last = ends.chain(others).max()?;
        Some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::Header;
    use super::super::row::Row;
    use super::super::write::Writer;
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
    }
}
