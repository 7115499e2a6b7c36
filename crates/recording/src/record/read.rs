//! Reading a recording batch by batch.
//!
//! Promise: whole batches are read, whatever follows them; what is no recording is told apart from
//! one that was cut off, and both from one that is newer than this program.

use super::gate::Gate;
use super::header::Header;
use super::schema::{Type, COLUMNS, VERSION};
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, Schema};
use std::io::{self, Read};

/// Why a file cannot be read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Nothing in it.
    #[error("it is empty")]
    Empty,
    /// Another kind of file.
    #[error("it is no recording: {0}")]
    Another(&'static str),
    /// An Arrow stream that something else wrote.
    #[error("it is an Arrow stream, but no recording: {0}")]
    Foreign(String),
    /// Of a version to come.
    #[error("it has version {0} of the form; this program reads up to version {VERSION}")]
    Newer(u32),
    /// Of a machine of the other byte order.
    #[error("its numbers are big-endian; recordings are little-endian")]
    BigEndian,
    /// Not even its head is whole.
    #[error("it is cut off in its head, which takes more than its {0} bytes")]
    NoHead(u64),
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Batches of a recording, in order.
pub struct Stream<R: Read> {
    reader: StreamReader<Gate<R>>,
    header: Header,
    absent: Vec<&'static str>,
    cut: Option<String>,
}

/// The first bytes of `input`; fewer than 8 where there are no more.
fn first_bytes(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut first = Vec::new();
    input.take(8).read_to_end(&mut first)?;
    Ok(first)
}

fn recognize(first: &[u8]) -> Result<(), Unreadable> {
    match first {
        [] => Err(Unreadable::Empty),
        [b'P', b'A', b'R', b'1', ..] => Err(Unreadable::Another(
            "it is a Parquet file, as `export` writes it; read it with DuckDB or pandas",
        )),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => {
            Err(Unreadable::Another("it is an Arrow file, not a stream"))
        }
        [0xff, 0xff, 0xff, 0xff, ..] => Ok(()),
        short if [0xff; 4].starts_with(short) => Err(Unreadable::NoHead(short.len() as u64)),
        _ => Err(Unreadable::Another("it does not begin as an Arrow stream")),
    }
}

fn head_error(e: ArrowError, read: u64) -> Unreadable {
    match e {
        ArrowError::IoError(_, e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            Unreadable::NoHead(read)
        }
        ArrowError::IoError(_, e) => Unreadable::Io(e),
        other => Unreadable::Foreign(other.to_string()),
    }
}

fn check(schema: &Schema) -> Result<Header, Unreadable> {
    let header = Header::from_metadata(schema.metadata()).ok_or_else(|| {
        Unreadable::Foreign("its schema does not name a version of synclater's form".into())
    })?;
    if header.version > VERSION {
        return Err(Unreadable::Newer(header.version));
    }
    for field in schema.fields() {
        // A column that is not known is passed over, but Arrow's reader unpacks it.
        if !Type::ALL.iter().any(|t| t.arrow() == *field.data_type()) {
            let (name, is) = (field.name(), field.data_type());
            let what = format!("its column {name} holds {is}, which no recording has");
            return Err(Unreadable::Foreign(what));
        }
    }
    for column in &COLUMNS {
        match schema.field_with_name(column.name) {
            Ok(field) if *field.data_type() != column.holds.arrow() => {
                let is = field.data_type();
                let what = format!("its column {} holds {is}", column.name);
                return Err(Unreadable::Foreign(what));
            }
            Err(_) if column.required => {
                let what = format!("it has no column {}", column.name);
                return Err(Unreadable::Foreign(what));
            }
            _ => {}
        }
    }
    Ok(header)
}

/// Counts the bytes that went through.
struct Counted<'a, R>(&'a mut R, u64);

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(to)?;
        self.1 += n as u64;
        Ok(n)
    }
}

/// The length that the head of a stream claims, or why it cannot be one.
fn head(input: &mut impl Read) -> Result<Vec<u8>, Unreadable> {
    /// A schema with its metadata takes a few KiB; a command line can make it longer.
    const HEAD_MAX: u32 = 64 << 20;
    let mut bytes = first_bytes(input)?;
    recognize(&bytes)?;
    let Some(length) = bytes.get(4..8) else {
        return Err(Unreadable::NoHead(bytes.len() as u64));
    };
    let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
    if length > HEAD_MAX {
        return Err(Unreadable::Another(
            "its first message is longer than any schema",
        ));
    }
    let mut rest = Counted(input, 0);
    rest.by_ref().take(length.into()).read_to_end(&mut bytes)?;
    if rest.1 < length.into() {
        return Err(Unreadable::NoHead(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Refuses what the reader would take for little-endian numbers.
fn check_byte_order(head: &[u8]) -> Result<(), Unreadable> {
    let message = head.get(8..).unwrap_or_default();
    let message = arrow_ipc::root_as_message(message)
        .map_err(|_| Unreadable::Another("its first message is none of Arrow's"))?;
    match message.header_as_schema() {
        Some(schema) if schema.endianness() == arrow_ipc::Endianness::Big => {
            Err(Unreadable::BigEndian)
        }
        _ => Ok(()),
    }
}

impl<R: Read> Stream<R> {
    /// Reads the head of a recording.
    ///
    /// # Errors
    /// Why it is none.
    pub fn open(mut input: R) -> Result<Stream<R>, Unreadable> {
        let head = head(&mut input)?;
        check_byte_order(&head)?;
        let length = head.len() as u64;
        let mut reader = StreamReader::try_new(Gate::new(head, input), None)
            .map_err(|e| head_error(e, length))?;
        let schema = reader.schema();
        let header = check(&schema)?;
        let fields = schema.fields().iter();
        let are_keys = fields.map(|field| *field.data_type() == Type::Text.arrow());
        reader.get_mut().expect(are_keys.collect());
        let names = COLUMNS.iter().map(|c| c.name);
        let absent = names.filter(|name| schema.field_with_name(name).is_err());
        Ok(Stream {
            reader,
            header,
            absent: absent.collect(),
            cut: None,
        })
    }

    /// What the recording says of itself.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Columns that it does not have: what they would tell is unknown.
    #[must_use]
    pub fn absent(&self) -> &[&'static str] {
        &self.absent
    }

    /// The next batch; `None` at the end, and where the rest is cut off ([`Stream::cut`]).
    pub fn next_batch(&mut self) -> Option<RecordBatch> {
        if self.cut.is_some() {
            return None;
        }
        match self.reader.next() {
            Some(Ok(batch)) => return Some(batch),
            Some(Err(e)) => self.cut = Some(e.to_string()),
            None => self.cut = self.reader.get_ref().stopped().map(str::to_owned),
        }
        None
    }

    /// Why reading stopped before the end of the input, where it did.
    #[must_use]
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }
}
