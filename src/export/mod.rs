//! A recording as Parquet: batch in, row groups out.
//!
//! Promise: every row is in exactly one file, all columns of docs/FORMAT.md with their names and
//! types are in every file; what the recording says of itself is in the file's key-value metadata,
//! under the same keys. Memory is bounded by a row group for each date that is being written.
//!
//! What it does not do: a column that this version does not know is left out, so that all files of
//! a fleet have the same schema. Rows stay in the order of the recording.

pub mod part;
pub mod place;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampNanosecondType};
use arrow_array::{new_null_array, ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::take::take_record_batch;
use parquet::arrow::arrow_writer::{ArrowWriter, ArrowWriterOptions};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use part::{Part, Unfinished};
use place::Destination;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use synclater_recording::record::event;
use synclater_recording::record::header::Header;
use synclater_recording::record::read::Stream;
use synclater_recording::record::schema::{fields, Column, COLUMNS};

/// Rows of a row group: large enough for its dictionaries to pay, small enough to be held.
const GROUP_ROWS: usize = 1 << 20;

/// Bytes of a row group, for recordings whose rows are long.
const GROUP_BYTES: usize = 128 << 20;

/// Dates of one recording at most: each is an open file.
const DATES_MAX: usize = 400;

/// Why an export came to nothing.
#[derive(Debug)]
pub enum Failed {
    /// A file or folder, and what happened to it.
    Io(PathBuf, io::Error),
    /// A row, or the encoder.
    Row(String),
    /// Rows of so many dates.
    Dates,
    /// There is not one row.
    NoRow,
}

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// Files with their rows and bytes, in the order of dates.
    pub files: Vec<(PathBuf, u64, u64)>,
    /// Rows that are requests.
    pub requests: u64,
    /// Whether the last row says that the recording ended in order.
    pub ended: bool,
}

/// The Parquet file of one date, or of all.
struct Output {
    part: Part,
    writer: ArrowWriter<Box<dyn Write + Send>>,
    rows: u64,
}

/// An export at work.
struct Export<'a> {
    place: &'a Destination,
    header: &'a Header,
    unfinished: &'a Unfinished,
    schema: SchemaRef,
    /// By day; one file has day 0.
    outputs: BTreeMap<i64, Output>,
    name: Option<String>,
    written: Written,
}

/// Writes all batches of a recording.
///
/// # Errors
/// Why it came to nothing; what was begun is in `unfinished`.
pub fn export<R: Read>(
    stream: &mut Stream<R>,
    place: &Destination,
    unfinished: &Unfinished,
) -> Result<Written, Failed> {
    let header = stream.header().clone();
    let mut export = Export {
        place,
        header: &header,
        unfinished,
        schema: Arc::new(fields()),
        outputs: BTreeMap::new(),
        name: None,
        written: Written::default(),
    };
    while let Some(batch) = stream.next_batch() {
        export.add(&batch)?;
    }
    export.finish()
}

impl Export<'_> {
    fn add(&mut self, batch: &RecordBatch) -> Result<(), Failed> {
        self.count(batch);
        let batch = with_columns(batch, &self.schema).map_err(of_row)?;
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let first = times.value(0);
        if let Destination::File(_) = self.place {
            return self.write(0, first, &batch);
        }
        let mut days: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (at, time) in times.values().iter().enumerate() {
            let rows = days.entry(place::day_of(*time)).or_default();
            rows.push(u32::try_from(at).unwrap_or(u32::MAX));
        }
        let (oldest, many) = (days.keys().next().copied(), days.len() > 1);
        for (day, rows) in days {
            let part = if many {
                take_record_batch(&batch, &UInt32Array::from(rows)).map_err(of_row)?
            } else {
                batch.clone()
            };
            self.write(day, first, &part)?;
        }
        // Rows come nearly in the order of time: a date that lies two days back is over.
        let over = self
            .outputs
            .range_mut(..oldest.unwrap_or(0).saturating_sub(1));
        for (_, output) in over.filter(|(_, o)| o.writer.in_progress_rows() > 0) {
            let flushed = output.writer.flush();
            flushed.map_err(|e| of_parquet(&output.part.path, e))?;
        }
        Ok(())
    }

    fn count(&mut self, batch: &RecordBatch) {
        let column = batch.column_by_name("event");
        let Some(column) = column.and_then(|c| c.as_dictionary_opt::<Int32Type>()) else {
            return;
        };
        let Some(texts) = column.downcast_dict::<arrow_array::StringArray>() else {
            return;
        };
        for text in texts.into_iter().flatten() {
            self.written.requests += u64::from(text == event::REQUEST);
            self.written.ended |= text == event::END;
        }
    }

    fn write(&mut self, day: i64, first_ns: i64, batch: &RecordBatch) -> Result<(), Failed> {
        if !self.outputs.contains_key(&day) {
            if self.outputs.len() >= DATES_MAX {
                return Err(Failed::Dates);
            }
            let path = self.path(day, first_ns);
            let output = self.open(&path).map_err(|e| Failed::Io(path, e))?;
            self.outputs.insert(day, output);
        }
        let Some(output) = self.outputs.get_mut(&day) else {
            return Ok(());
        };
        output.rows += batch.num_rows() as u64;
        let wrote = output.writer.write(batch);
        wrote.map_err(|e| of_parquet(&output.part.path, e))
    }

    fn path(&mut self, day: i64, first_ns: i64) -> PathBuf {
        match self.place {
            Destination::File(path) => path.clone(),
            Destination::Folder(dir) => {
                let host = format!("host={}", place::escaped(&self.header.host));
                let date = format!("date={}", place::date(day));
                let header = self.header;
                let name = self
                    .name
                    .get_or_insert_with(|| place::name(header, first_ns));
                dir.join(host).join(date).join(name)
            }
        }
    }

    fn open(&self, path: &Path) -> io::Result<Output> {
        if let (Destination::Folder(_), Some(dir)) = (self.place, path.parent()) {
            self.unfinished.make_dir(dir)?;
        }
        let part = self.unfinished.make(path.to_owned())?;
        let to: Box<dyn Write + Send> = Box::new(part.writer()?);
        let options = ArrowWriterOptions::new()
            .with_properties(properties(self.header))
            // Plain text in Parquet's terms, for every reader; dictionaries are its own matter.
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(to, self.schema.clone(), options);
        Ok(Output {
            part,
            writer: writer.map_err(io::Error::other)?,
            rows: 0,
        })
    }

    fn finish(mut self) -> Result<Written, Failed> {
        if self.outputs.is_empty() {
            return Err(Failed::NoRow);
        }
        let mut parts = Vec::new();
        let mut rows = Vec::new();
        for output in std::mem::take(&mut self.outputs).into_values() {
            let path = output.part.path.clone();
            let flushed = output
                .writer
                .into_inner()
                .and_then(|mut to| Ok(to.flush()?));
            flushed.map_err(|e| of_parquet(&path, e))?;
            parts.push(output.part);
            rows.push(output.rows);
        }
        let sizes = self.unfinished.publish(&parts);
        let sizes = sizes.map_err(|(path, e)| Failed::Io(path, e))?;
        let files = parts.into_iter().zip(rows).zip(sizes);
        self.written.files = files
            .map(|((p, rows), size)| (p.path, rows, size))
            .collect();
        Ok(self.written)
    }
}

/// What the encoder says: an error of the file below it, or of a row.
fn of_parquet(path: &Path, e: ParquetError) -> Failed {
    match e {
        ParquetError::External(e) => match e.downcast::<io::Error>() {
            Ok(e) => Failed::Io(path.to_owned(), *e),
            Err(e) => Failed::Row(e.to_string()),
        },
        other => Failed::Row(other.to_string()),
    }
}

fn of_row(e: ArrowError) -> Failed {
    Failed::Row(e.to_string())
}

/// The columns that this version knows, in their order; one that the recording lacks is null.
fn with_columns(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = COLUMNS.iter().map(|column| values_of(column, batch));
    RecordBatch::try_new(schema.clone(), columns.collect())
}

fn values_of(column: &Column, batch: &RecordBatch) -> ArrayRef {
    let found = batch.column_by_name(column.name).cloned();
    found.unwrap_or_else(|| new_null_array(&column.holds.arrow(), batch.num_rows()))
}

/// How columns are encoded: small, and such that every reader of these years knows it.
fn properties(header: &Header) -> WriterProperties {
    const DELTA: [&str; 3] = ["time", "duration_ns", "debt"];
    let mut facts: Vec<(String, String)> = header.to_metadata().into_iter().collect();
    facts.retain(|(_, value)| !value.is_empty());
    facts.sort();
    let facts = facts
        .into_iter()
        .map(|(key, value)| KeyValue::new(key, value));
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("synclater ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(facts.collect()))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_max_row_group_bytes(Some(GROUP_BYTES))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_compression(Compression::ZSTD(ZstdLevel::default()));
    for column in DELTA {
        let column = ColumnPath::from(column);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}
