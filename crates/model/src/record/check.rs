//! Looks at each message of an Arrow stream before the reader of Arrow does.
//!
//! Promise: what is passed on names no byte outside of its message, and asks for no more memory than
//! 255 times its own bytes, which is what LZ4 can make of them. Arrow's reader allocates what a
//! buffer claims to be before it looks at it: a wrong number would end the program.
//!
//! What it does not do: it passes on what is cut off, or no message at all, as it is: for that the
//! reader has words of its own.

use arrow_ipc::{root_as_message, BodyCompressionMethod, MessageHeader, RecordBatch};
use std::io::{self, Read};

/// A message's description is a few KiB: it has a word for each column.
const DESCRIPTION_MAX: usize = 64 << 20;
/// A batch of ours has a few MiB.
const BODY_MAX: u64 = 2 << 30;
/// The most that one byte of LZ4 stands for.
const RATIO_MAX: u64 = 255;
/// More than the head of an LZ4 frame can hide.
const FRAME: u64 = 64 << 10;

/// Reads messages from `R`.
#[derive(Debug)]
pub struct Checked<R> {
    from: R,
    message: Vec<u8>,
    at: usize,
    over: bool,
}

impl<R: Read> Checked<R> {
    /// The messages of `from`.
    pub fn new(from: R) -> Checked<R> {
        Checked {
            from,
            message: Vec::new(),
            at: 0,
            over: false,
        }
    }

    /// Adds `more` bytes to the message; false where there are not so many.
    fn take(&mut self, more: u64) -> io::Result<bool> {
        let read = (&mut self.from).take(more).read_to_end(&mut self.message)?;
        Ok(read as u64 == more)
    }

    /// Reads the next message. What is not whole, or the end, is the last one.
    fn next(&mut self) -> io::Result<()> {
        self.message.clear();
        self.at = 0;
        self.over = true;
        if !self.take(4)? || (self.message == [0xff; 4] && !self.take(4)?) {
            return Ok(());
        }
        let head = self.message.len();
        let length = self.message[head - 4..]
            .try_into()
            .map_or(0, i32::from_le_bytes);
        let length = usize::try_from(length).unwrap_or(0);
        if length > DESCRIPTION_MAX {
            return Err(senseless("its description is longer than any"));
        }
        if length == 0 || !self.take(length as u64)? {
            return Ok(());
        }
        let Ok(message) = root_as_message(&self.message[head..]) else {
            return Ok(());
        };
        let body = u64::try_from(message.bodyLength()).unwrap_or(u64::MAX);
        if body > BODY_MAX {
            return Err(senseless("it is longer than any"));
        }
        if !self.take(body)? {
            return Ok(());
        }
        check(&self.message[head..], length)?;
        self.over = false;
        Ok(())
    }
}

fn senseless(what: &str) -> io::Error {
    let text = format!("a message in it makes no sense: {what}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Checks a message whose first `length` bytes are its description; the others its body.
fn check(message: &[u8], length: usize) -> io::Result<()> {
    let (description, body) = message.split_at(length);
    let Ok(message) = root_as_message(description) else {
        return Ok(());
    };
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => {
            let batch = message.header_as_dictionary_batch();
            batch.and_then(|b| b.data())
        }
        MessageHeader::Schema => return Ok(()),
        _ => return Err(senseless("its kind is another")),
    };
    batch.map_or(Ok(()), |batch| check_batch(&batch, body))
}

fn check_batch(batch: &RecordBatch<'_>, body: &[u8]) -> io::Result<()> {
    if batch.length() < 0 {
        return Err(senseless("it has less than no rows"));
    }
    for node in batch.nodes().into_iter().flatten() {
        if node.length() < 0 || node.null_count() < 0 || node.null_count() > node.length() {
            return Err(senseless("a column has less than no values"));
        }
    }
    let compression = batch.compression();
    if compression.is_some_and(|c| {
        c.codec() != arrow_ipc::CompressionType::LZ4_FRAME
            || c.method() != BodyCompressionMethod::BUFFER
    }) {
        return Err(senseless("it is compressed in a way that is not LZ4"));
    }
    for buffer in batch.buffers().into_iter().flatten() {
        let from = usize::try_from(buffer.offset()).ok();
        let length = usize::try_from(buffer.length()).ok();
        let part = from
            .zip(length)
            .and_then(|(from, length)| body.get(from..from.checked_add(length)?));
        let Some(part) = part else {
            return Err(senseless("a column lies outside of it"));
        };
        if compression.is_some() && !part.is_empty() {
            check_compressed(part)?;
        }
    }
    Ok(())
}

/// Eight bytes that tell how long it was (-1: it is not compressed), then an LZ4 frame.
fn check_compressed(part: &[u8]) -> io::Result<()> {
    let Some((length, frame)) = part.split_first_chunk::<8>() else {
        return Err(senseless("a column is too short for its length"));
    };
    let length = i64::from_le_bytes(*length);
    let most = (frame.len() as u64) * RATIO_MAX + FRAME;
    if length != -1 && u64::try_from(length).map_or(true, |length| length > most) {
        return Err(senseless("a column is longer than its bytes can hold"));
    }
    Ok(())
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.message.len() && !self.over {
            self.next()?;
        }
        let rest = &self.message[self.at..];
        let n = rest.len().min(to.len());
        to[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(n)
    }
}
