//! Builds a [`Table`], batch by batch.

use super::header::Header;
use super::read::{Stream, Unreadable};
use super::table::{Done, File, Filesystem, IoRest, Process, Sample, Settle, Table, UNKNOWN};
use super::{done, event};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float64Type, Int32Type, Int64Type, TimestampNanosecondType, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, PrimitiveArray, RecordBatch};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::sync::mpsc::sync_channel;
use std::sync::Arc;
use std::thread::scope;
use synclater_account::escape::Escape;

/// Gives each different value a number, in the order of their first use.
///
/// Before the map is asked, a small table that remembers values which came lately: nearly all rows
/// name what a row shortly before them named.
#[derive(Debug)]
struct Interner<K> {
    ids: HashMap<K, u32>,
    lately: Vec<Option<(K, u32)>>,
}

/// Places of the small table.
const LATELY: usize = 4096;

impl<K> Default for Interner<K> {
    fn default() -> Interner<K> {
        Interner {
            ids: HashMap::new(),
            lately: std::iter::repeat_with(|| None).take(LATELY).collect(),
        }
    }
}

/// Mixes a few numbers, well enough for a place in a small table. A value that is driven out of it
/// by another costs a look into the map, so there is nothing to be gained by choosing values.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64((*b).into()));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl<K: Hash + Eq + Copy> Interner<K> {
    /// The number of `key`, and whether it is new.
    fn id(&mut self, key: K) -> (u32, bool) {
        let mut mix = Mix::default();
        key.hash(&mut mix);
        let place = mix.finish() as usize % LATELY;
        if let Some((known, id)) = self.lately[place] {
            if known == key {
                return (id, false);
            }
        }
        let next = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let id = *self.ids.entry(key).or_insert(next);
        self.lately[place] = Some((key, id));
        (
            id,
            id == next && self.ids.len() as u32 == next.wrapping_add(1),
        )
    }
}

/// Gives texts, which are small numbers here, numbers of their own, in the order of first use.
#[derive(Debug, Default)]
struct Dense {
    ids: Vec<Option<u32>>,
    used: u32,
}

impl Dense {
    /// The number of `text`, and whether it is new.
    fn id(&mut self, text: u32) -> (u32, bool) {
        let text = text as usize;
        if self.ids.len() <= text {
            self.ids.resize(text + 1, None);
        }
        match self.ids[text] {
            Some(id) => (id, false),
            None => {
                let id = self.used;
                self.ids[text] = Some(id);
                self.used += 1;
                (id, true)
            }
        }
    }
}

/// Texts of all batches, by number; 0 is null and the empty text.
#[derive(Debug, Default)]
struct Texts {
    ids: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
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
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.ids.insert(text, id);
        id
    }

    fn text(&self, id: u32) -> String {
        match id {
            0 => String::new(),
            n => self.texts[n as usize - 1].to_string(),
        }
    }
}

/// A dictionary column of one batch as numbers of [`Texts`].
struct TextColumn {
    ids: Vec<u32>,
}

impl TextColumn {
    fn of(batch: &RecordBatch, name: &str, texts: &mut Texts) -> TextColumn {
        let column = batch.column_by_name(name);
        let column = column.and_then(|c| c.as_dictionary_opt::<Int32Type>().cloned());
        let Some(column) = column else {
            return TextColumn {
                ids: vec![0; batch.num_rows()],
            };
        };
        let values = column.values().as_string::<i32>();
        let known: Vec<u32> = values
            .iter()
            .map(|text| text.map_or(0, |text| texts.id(text)))
            .collect();
        let keys = column.keys();
        let ids = (0..keys.len()).map(|i| {
            let at = keys.is_valid(i).then(|| usize_of(keys.value(i)));
            at.and_then(|at| known.get(at)).copied().unwrap_or(0)
        });
        TextColumn { ids: ids.collect() }
    }
}

fn usize_of(key: i32) -> usize {
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
        let dirty = batch.column_by_name("dirty");
        Columns {
            event: TextColumn::of(batch, "event", texts),
            kind: TextColumn::of(batch, "kind", texts),
            exe: TextColumn::of(batch, "exe", texts),
            command: TextColumn::of(batch, "command", texts),
            path: TextColumn::of(batch, "path", texts),
            fstype: TextColumn::of(batch, "fstype", texts),
            mount: TextColumn::of(batch, "mount", texts),
            device: TextColumn::of(batch, "device", texts),
            parents: TextColumn::of(batch, "parents", texts),
            done: TextColumn::of(batch, "done", texts),
            reason: TextColumn::of(batch, "reason", texts),
            caller: TextColumn::of(batch, "caller", texts),
            metric: TextColumn::of(batch, "metric", texts),
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
            dirty: dirty.and_then(|c| c.as_boolean_opt().cloned()),
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
pub(super) struct Builder {
    pub(super) table: Table,
    texts: Texts,
    processes: Interner<(Option<u32>, Option<u32>, u32, u32)>,
    filesystems: Interner<(u32, u32, u32, u32)>,
    files: Interner<(u32, u32)>,
    kinds: Dense,
    reasons: Dense,
    callers: Dense,
}

fn small(id: u32) -> u16 {
    u16::try_from(id).unwrap_or(u16::MAX)
}

impl Table {
    /// Reads a whole recording. One that is cut off gives its whole batches and says so
    /// ([`Table::is_whole`]). Batches are unpacked by this thread and taken in by another.
    ///
    /// # Errors
    /// Why it is no recording.
    pub fn read(input: impl Read) -> Result<Table, Unreadable> {
        let mut stream = Stream::open(input)?;
        let mut builder = Builder::new(stream.header().clone());
        let (send, receive) = sync_channel(2);
        let mut table = scope(|s| {
            let taken_in = s.spawn(move || {
                receive.iter().for_each(|batch| builder.add(&batch));
                builder.table
            });
            while let Some(batch) = stream.next_batch() {
                if send.send(batch).is_err() {
                    break;
                }
            }
            drop(send);
            taken_in.join().expect("taking a batch in does not panic")
        });
        let absent = stream.absent().iter();
        table.absent = absent.map(|name| (*name).to_owned()).collect();
        table.cut = stream.cut().map(str::to_owned);
        Ok(table)
    }

    /// One batch of a recording, as a table of its own.
    #[must_use]
    pub fn of_batch(header: &Header, batch: &arrow_array::RecordBatch) -> Table {
        let mut builder = Builder::new(header.clone());
        builder.add(batch);
        builder.table
    }
}

impl Builder {
    pub(super) fn new(header: Header) -> Builder {
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

    /// Takes a batch in.
    pub(super) fn add(&mut self, batch: &RecordBatch) {
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
            event::ESCAPED,
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
                    let lost = self.table.lost.entry(pid).or_default();
                    *lost = lost.saturating_add(count);
                }
                Some(6) => self.table.end_ns = Some(c.time(row)),
                Some(7) => self.escaped(&c, row),
                // A kind of row that a later program of the same version may write.
                _ => {}
            }
        }
    }

    fn escaped(&mut self, c: &Columns, row: usize) {
        let why = self.texts.text(c.reason.ids[row]);
        let Some(pid) = c.pid.get(row) else {
            self.table.escapes_unknown = Some(why);
            return;
        };
        self.table.escaped.push(Escape {
            pid,
            exe: self.texts.text(c.exe.ids[row]),
            why,
            requests: c.value.get(row).map(|n| n as u64),
        });
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
        match &*self.texts.texts[text as usize - 1] {
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
