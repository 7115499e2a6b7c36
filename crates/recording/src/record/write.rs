//! Writing a recording: rows in, an Arrow IPC stream out, one batch at a time.
//!
//! Promise: a batch reaches the output in one write; what was written before stays readable
//! whatever happens to the next.

use super::header::Header;
use super::row::{Name, Names, Row};
use super::schema::{fields, Type, COLUMNS, VERSION};
use arrow_array::builder::{BooleanBuilder, PrimitiveBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Float64Type, Int32Type, Int64Type, TimestampNanosecondType, UInt32Type,
    UInt64Type,
};
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray};
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_ipc::CompressionType;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use std::io::{self, Write};
use std::sync::Arc;

/// Rows of one batch at most.
pub const BATCH_ROWS: usize = 65_536;

/// Collects what one batch is made of, so that it is written at once.
#[derive(Debug, Default)]
struct Parcel(Vec<u8>);

impl Write for Parcel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a recording to `W`.
pub struct Writer<W: Write> {
    stream: StreamWriter<Parcel>,
    out: W,
    schema: SchemaRef,
    rows: Vec<Row>,
    /// Texts that rows refer to.
    pub names: Names,
    /// For each name, its place in the dictionary that is being made, and for which column.
    places: Vec<(u64, i32)>,
    round: u64,
}

fn io_error(e: ArrowError) -> io::Error {
    match e {
        ArrowError::IoError(_, e) => e,
        other => io::Error::other(other.to_string()),
    }
}

impl<W: Write> Writer<W> {
    /// Begins a recording: the schema is written.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, header: &Header) -> io::Result<Writer<W>> {
        let header = Header {
            version: VERSION,
            ..header.clone()
        };
        let schema = Schema::new_with_metadata(fields().fields, header.to_metadata());
        let options = IpcWriteOptions::default()
            .try_with_compression(Some(CompressionType::LZ4_FRAME))
            .map_err(io_error)?;
        let schema = Arc::new(schema);
        let stream = StreamWriter::try_new_with_options(Parcel::default(), &schema, options)
            .map_err(io_error)?;
        let mut writer = Writer {
            stream,
            out,
            schema,
            rows: Vec::with_capacity(1024),
            names: Names::default(),
            places: Vec::new(),
            round: 0,
        };
        writer.send()?;
        Ok(writer)
    }

    fn send(&mut self) -> io::Result<()> {
        let parcel = std::mem::take(&mut self.stream.get_mut().0);
        self.out.write_all(&parcel)?;
        self.out.flush()
    }

    /// Adds a row; every [`BATCH_ROWS`] a batch is written.
    ///
    /// # Errors
    /// Those of the output; the row is lost then.
    pub fn push(&mut self, row: Row) -> io::Result<()> {
        self.rows.push(row);
        if self.rows.len() >= BATCH_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    /// The output.
    pub fn out_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Rows that are not written yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.rows.len()
    }

    /// Writes what is pending as a batch.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let batch = self.batch().map_err(io_error)?;
        self.rows.clear();
        self.stream.write(&batch).map_err(io_error)?;
        self.send()
    }

    /// Forgets the names where they are more than `most`, and nothing is pending: the old ones are
    /// given back, and whoever holds a name has to ask for it again.
    pub fn renew_names(&mut self, most: usize) -> Option<Names> {
        if !self.rows.is_empty() || self.names.len() <= most {
            return None;
        }
        self.places.clear();
        Some(std::mem::take(&mut self.names))
    }

    /// Writes what is pending and the end of the stream; gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        self.stream.finish().map_err(io_error)?;
        self.send()?;
        Ok(self.out)
    }

    fn batch(&mut self) -> Result<RecordBatch, ArrowError> {
        let columns = COLUMNS
            .iter()
            .map(|c| self.column(c.name, c.holds))
            .collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_new(self.schema.clone(), columns)
    }

    fn column(&mut self, name: &str, holds: Type) -> Result<ArrayRef, ArrowError> {
        Ok(match holds {
            Type::Text => Arc::new(self.text(text_of(name))?),
            Type::Bool => {
                let mut column = BooleanBuilder::with_capacity(self.rows.len());
                self.rows.iter().for_each(|r| column.append_option(r.dirty));
                Arc::new(column.finish())
            }
            Type::Time => {
                let mut column = self.numbers::<TimestampNanosecondType>(|r| Some(r.time_ns));
                Arc::new(column.finish().with_timezone("UTC"))
            }
            Type::Count => Arc::new(self.numbers::<UInt64Type>(count_of(name)).finish()),
            Type::Id => Arc::new(self.numbers::<UInt32Type>(id_of(name)).finish()),
            Type::Signed => Arc::new(self.numbers::<Int64Type>(|r| r.result).finish()),
            Type::Small => Arc::new(self.numbers::<Int32Type>(small_of(name)).finish()),
            Type::Float => Arc::new(self.numbers::<Float64Type>(|r| r.value).finish()),
        })
    }

    fn numbers<T: ArrowPrimitiveType>(
        &self,
        get: fn(&Row) -> Option<T::Native>,
    ) -> PrimitiveBuilder<T> {
        let mut column = PrimitiveBuilder::<T>::with_capacity(self.rows.len());
        self.rows.iter().for_each(|r| column.append_option(get(r)));
        column
    }

    fn text(&mut self, get: fn(&Row) -> Name) -> Result<DictionaryArray<Int32Type>, ArrowError> {
        self.round += 1;
        self.places.resize(self.names.len(), (0, 0));
        let mut values: Vec<&str> = Vec::new();
        let mut keys: Vec<Option<i32>> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let name = get(row);
            if name == Name::NONE {
                keys.push(None);
                continue;
            }
            let place = &mut self.places[name.0 as usize];
            if place.0 != self.round {
                *place = (self.round, i32::try_from(values.len()).unwrap_or(i32::MAX));
                values.push(self.names.text(name));
            }
            keys.push(Some(place.1));
        }
        let values = Arc::new(StringArray::from_iter_values(values));
        DictionaryArray::try_new(Int32Array::from(keys), values)
    }
}

fn text_of(column: &str) -> fn(&Row) -> Name {
    match column {
        "event" => |r| r.event,
        "exe" => |r| r.exe,
        "command" => |r| r.command,
        "kind" => |r| r.kind,
        "path" => |r| r.path,
        "fstype" => |r| r.fstype,
        "mount" => |r| r.mount,
        "device" => |r| r.device,
        "parents" => |r| r.parents,
        "answered" => |r| r.answered,
        "done" => |r| r.done,
        "reason" => |r| r.reason,
        "caller" => |r| r.caller,
        "metric" => |r| r.metric,
        other => unreachable!("no such column of text: {other}"),
    }
}

fn count_of(column: &str) -> fn(&Row) -> Option<u64> {
    match column {
        "duration_ns" => |r| r.duration_ns,
        "inode" => |r| r.inode,
        "debt" => |r| r.debt,
        "bytes" => |r| r.bytes,
        other => unreachable!("no such column of counts: {other}"),
    }
}

fn id_of(column: &str) -> fn(&Row) -> Option<u32> {
    match column {
        "pid" => |r| r.pid,
        "tid" => |r| r.tid,
        "uid" => |r| r.uid,
        "flags" => |r| r.flags,
        other => unreachable!("no such column of ids: {other}"),
    }
}

fn small_of(column: &str) -> fn(&Row) -> Option<i32> {
    match column {
        "fd" => |r| r.fd,
        "errno" => |r| r.errno,
        other => unreachable!("no such column of small numbers: {other}"),
    }
}
