//! What stands between the bytes of a recording and Arrow's reader.
//!
//! Promise: a message is handed on only when it is whole, and when every buffer that it names lies
//! within it and unpacks to no more than its packed size allows. Arrow's reader takes such lengths
//! on trust, and ends the program where they are wrong.
//!
//! What it does not do: it looks at no values; Arrow's reader checks these by itself.

use arrow_ipc::{root_as_message, Buffer, Message, RecordBatch};
use std::io::{self, Read};

/// The longest description of a message; what it describes may be longer.
const DESCRIPTION_MAX: usize = 64 << 20;
/// No packer of Arrow's makes less than this share of what it is given.
const RATIO_MAX: u64 = 1 << 10;
/// In front of each message.
const MARK: [u8; 4] = [0xff; 4];

/// A reader that ends before the first message that is not whole, or damaged.
pub(super) struct Gate<R> {
    input: R,
    /// The message that is being handed on.
    message: Vec<u8>,
    handed_on: usize,
    ended: bool,
    stopped: Option<String>,
    /// For each column, whether it refers to a dictionary.
    keys: Vec<bool>,
}

impl<R: Read> Gate<R> {
    /// Hands `input` on. `head`, which was read from it before, is taken as it is.
    pub(super) fn new(head: Vec<u8>, input: R) -> Gate<R> {
        Gate {
            input,
            message: head,
            handed_on: 0,
            ended: false,
            stopped: None,
            keys: Vec::new(),
        }
    }

    /// Says for each column whether it refers to a dictionary. Every column has two buffers: which
    /// values are null, and the values.
    pub(super) fn expect(&mut self, keys: Vec<bool>) {
        self.keys = keys;
    }

    /// Why it ended before its input did.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Appends so many bytes to the message; false where there are no more.
    fn take(&mut self, n: u64) -> io::Result<bool> {
        let input = &mut self.input;
        Ok(input.take(n).read_to_end(&mut self.message)? as u64 == n)
    }

    /// Reads the next message; what is wrong with it, if anything.
    fn next(&mut self) -> io::Result<Result<(), String>> {
        self.message.clear();
        self.handed_on = 0;
        let is_whole = self.take(8)?;
        if !is_whole {
            return Ok(if self.message.is_empty() {
                Ok(())
            } else {
                Err("the file ends within a batch".into())
            });
        }
        let (mark, length) = self.message.split_at(4);
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        if mark != MARK || length > DESCRIPTION_MAX {
            return Ok(Err("a batch is damaged: it does not begin as one".into()));
        }
        if length == 0 {
            // The end of the stream.
            self.ended = true;
            return Ok(Ok(()));
        }
        if !self.take(length as u64)? {
            return Ok(Err("the file ends within a batch".into()));
        }
        let body_length = match root_as_message(&self.message[8..]) {
            Ok(message) => message.bodyLength(),
            Err(e) => return Ok(Err(format!("a batch is damaged: {e}"))),
        };
        let Ok(body_length) = u64::try_from(body_length) else {
            return Ok(Err("a batch is damaged: its length is negative".into()));
        };
        if !self.take(body_length)? {
            return Ok(Err("the file ends within a batch".into()));
        }
        let (description, body) = self.message[8..].split_at(length);
        // It was one before the body came.
        let checked = root_as_message(description).map_err(|e| e.to_string());
        let checked = checked.and_then(|message| check(&message, body, &self.keys));
        Ok(checked.map_err(|why| format!("a batch is damaged: {why}")))
    }
}

impl<R: Read> Read for Gate<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.handed_on == self.message.len() && !self.ended {
            if let Err(why) = self.next()? {
                self.message.clear();
                self.stopped = Some(why);
            }
            self.ended |= self.message.is_empty();
        }
        let n = (&self.message[self.handed_on..]).read(to)?;
        self.handed_on += n;
        Ok(n)
    }
}

/// What is wrong with a message, if anything.
fn check(message: &Message, body: &[u8], keys: &[bool]) -> Result<(), String> {
    if let Some(batch) = message.header_as_record_batch() {
        let buffers = check_batch(&batch, body)?;
        if buffers.len() != 2 * keys.len() {
            return Err("it has too many columns, or too few".into());
        }
        let packed = batch.compression().is_some();
        let mut numbers = buffers.chunks_exact(2).zip(keys).filter(|(_, is)| **is);
        return numbers.try_for_each(|(column, _)| check_numbers(column[1], packed));
    }
    match message.header_as_dictionary_batch() {
        Some(dictionary) => match dictionary.data() {
            Some(batch) => {
                let buffers = check_batch(&batch, body)?;
                // Texts: which are null, where each begins, the characters.
                match buffers[..] {
                    [_, begins, _] => check_numbers(begins, batch.compression().is_some()),
                    _ => Err("a dictionary holds no texts".into()),
                }
            }
            None => Err("a dictionary has no values".into()),
        },
        None => Err("it is neither rows nor a dictionary".into()),
    }
}

/// The buffers of a batch, or what is wrong with one.
fn check_batch<'a>(batch: &RecordBatch, body: &'a [u8]) -> Result<Vec<&'a [u8]>, String> {
    for node in batch.nodes().iter().flatten() {
        let length = node.length();
        if length < 0 || node.null_count() < 0 || node.null_count() > length {
            return Err("a column has an impossible length".into());
        }
    }
    let mut buffers = Vec::new();
    for buffer in batch.buffers().iter().flatten() {
        let bytes = bytes_of(buffer, body).ok_or("a column lies outside of it")?;
        if batch.compression().is_some() && !bytes.is_empty() {
            unpacked(bytes)?;
        }
        buffers.push(bytes);
    }
    Ok(buffers)
}

/// The bytes of a buffer; `None` where they are not within `body`.
fn bytes_of<'a>(buffer: &Buffer, body: &'a [u8]) -> Option<&'a [u8]> {
    let from = usize::try_from(buffer.offset()).ok()?;
    let length = usize::try_from(buffer.length()).ok()?;
    body.get(from..from.checked_add(length)?)
}

/// Checks that a buffer holds whole numbers of 4 bytes. What it unpacks to has to be seen for that:
/// a reader of packed bytes does not mind an end that comes too early.
fn check_numbers(bytes: &[u8], packed: bool) -> Result<(), String> {
    let mut length = bytes.len() as u64;
    if packed && length > 0 {
        length = unpacked(bytes)?;
        let is_packed = bytes[..8] != (-1i64).to_le_bytes();
        if is_packed {
            let decoder = lz4_flex::frame::FrameDecoder::new(&bytes[8..]);
            let seen = io::copy(&mut decoder.take(length), &mut io::sink());
            length = seen.map_err(|e| format!("a column does not unpack: {e}"))?;
        }
    }
    match length % 4 {
        0 => Ok(()),
        _ => Err("a column is uneven".into()),
    }
}

/// In front of packed bytes stands their unpacked length, or -1 where they are not packed.
fn unpacked(bytes: &[u8]) -> Result<u64, String> {
    let Some((length, packed)) = bytes.split_first_chunk::<8>() else {
        return Err("a column is too short".into());
    };
    let length = i64::from_le_bytes(*length);
    if length == -1 {
        return Ok(packed.len() as u64);
    }
    let room = (packed.len() as u64 + 1).saturating_mul(RATIO_MAX);
    let length = u64::try_from(length).ok().filter(|n| *n <= room);
    length.ok_or_else(|| "a column unpacks to more than it can hold".into())
}
