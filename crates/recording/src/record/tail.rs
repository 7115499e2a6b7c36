//! The end of a recording that is being written: where to go on reading without all that came
//! before.
//!
//! Promise: what is found can be read by [`super::read::Stream`] as a recording: the head, the
//! dictionaries that are in force, then what will be written next. The work is that of skipping:
//! no batch is unpacked.
//!
//! What it does not do: it does not judge the head; the stream does.

use arrow_ipc::root_as_message;
use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Seek, SeekFrom};
use std::ops::Range;

/// In front of each message.
const MARK: [u8; 4] = [0xff; 4];
/// A schema with its metadata takes a few KiB; a command line can make it longer.
const DESCRIPTION_MAX: u32 = 64 << 20;

/// Places in a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// What of the recording so far is needed to read on, in this order.
    pub needed: Vec<Range<u64>>,
    /// Where the next message begins, or will begin.
    pub next: u64,
}

/// What a message is about.
enum What {
    Head,
    Dictionary(i64),
    Batch,
}

/// Skips the whole messages of a recording, from its beginning.
///
/// # Errors
/// Those of `input`, and `InvalidData` for what is no Arrow stream.
pub fn tail(input: &mut (impl BufRead + Seek)) -> io::Result<Tail> {
    let length = input.seek(SeekFrom::End(0))?;
    let mut at = input.seek(SeekFrom::Start(0))?;
    let mut heads = Vec::new();
    let mut dictionaries = BTreeMap::new();
    while let Some((what, message)) = message(input, length - at)? {
        let end = at + message;
        match what {
            What::Head => heads.push(at..end),
            What::Dictionary(id) => {
                dictionaries.insert(id, at..end);
            }
            What::Batch => {}
        }
        at = end;
    }
    let mut needed: Vec<Range<u64>> = dictionaries.into_values().collect();
    needed.sort_by_key(|range| range.start);
    needed.splice(0..0, heads);
    Ok(Tail { needed, next: at })
}

/// The message at the place where `input` stands, of which `left` bytes are there: what it is and
/// its length. `None` where it is not whole, and at the end of the stream.
fn message(input: &mut (impl BufRead + Seek), left: u64) -> io::Result<Option<(What, u64)>> {
    if left < 8 {
        return Ok(None);
    }
    let mut lead = [0; 8];
    input.read_exact(&mut lead)?;
    let [a, b, c, d, length @ ..] = lead;
    let length = u32::from_le_bytes(length);
    if [a, b, c, d] != MARK || length > DESCRIPTION_MAX {
        return Err(invalid("it is no Arrow stream"));
    }
    let Some(rest) = (left - 8).checked_sub(length.into()) else {
        return Ok(None);
    };
    if length == 0 {
        return Ok(None);
    }
    let mut description = vec![0; length as usize];
    input.read_exact(&mut description)?;
    let message = root_as_message(&description).map_err(|e| invalid(&e.to_string()))?;
    let body = u64::try_from(message.bodyLength()).map_err(|_| invalid("a length below 0"))?;
    let what = match message.header_as_dictionary_batch() {
        Some(dictionary) => What::Dictionary(dictionary.id()),
        None if message.header_as_schema().is_some() => What::Head,
        None => What::Batch,
    };
    if body > rest {
        return Ok(None);
    }
    // Not larger than a file.
    input.seek_relative(i64::try_from(body).unwrap_or(i64::MAX))?;
    Ok(Some((what, 8 + u64::from(length) + body)))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::event;
    use super::super::header::Header;
    use super::super::read::Stream;
    use super::super::row::Row;
    use super::super::table::Table;
    use super::super::write::Writer;
    use super::*;
    use proptest::prelude::*;
    use std::io::{Cursor, Read};

    /// A recording with so many requests in each batch, and the length of it after each.
    fn recording(batches: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let header = Header {
            host: "mail1".into(),
            ..Header::default()
        };
        let mut w = Writer::new(Vec::new(), &header).expect("memory");
        let (request, kind) = (w.names.name(event::REQUEST), w.names.name("fsync"));
        let mut rows = 0;
        for (b, count) in batches.iter().enumerate() {
            // Paths that come back, dictionaries that stay the same, and ones that do not.
            let path = w.names.name(&format!("/spool/{}", b / 3));
            for _ in 0..*count {
                let row = Row {
                    event: request,
                    time_ns: rows,
                    kind,
                    path,
                    ..Row::default()
                };
                rows += 1;
                w.push(row).expect("memory");
            }
            w.flush().expect("memory");
        }
        let whole = w.finish().expect("memory");
        let mut ends = Vec::new();
        let mut cursor = Cursor::new(&whole);
        let mut at = 0;
        while let Some((what, length)) = message(&mut cursor, whole.len() as u64 - at).expect("ok")
        {
            at += length;
            if !matches!(what, What::Dictionary(_)) {
                ends.push(at as usize);
            }
        }
        (whole, ends)
    }

    /// Paths and times of the requests after `cut` bytes, read without those before.
    fn rest(whole: &[u8], cut: usize) -> Vec<(String, i64)> {
        let tail = tail(&mut Cursor::new(&whole[..cut])).expect("a stream");
        let mut bytes = Vec::new();
        for range in tail.needed {
            bytes.extend(&whole[range.start as usize..range.end as usize]);
        }
        bytes.extend(&whole[tail.next as usize..]);
        paths(&bytes[..])
    }

    fn paths(input: impl Read) -> Vec<(String, i64)> {
        let mut stream = Stream::open(input).expect("a recording");
        let mut found = Vec::new();
        let header = stream.header().clone();
        while let Some(batch) = stream.next_batch() {
            let t = Table::of_batch(&header, &batch);
            let path = |i: usize| t.files[t.rows.file[i] as usize].path.clone();
            found.extend((0..t.rows.len()).map(|i| (path(i), t.rows.time_ns[i])));
        }
        assert_eq!(stream.cut(), None);
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_written_after_any_byte_is_read_as_it_is(
            batches in proptest::collection::vec(1u8..9, 1..12), at in 0.0f64..1.0
        ) {
            let (whole, ends) = recording(&batches);
            let head = ends[0];
            let cut = head + ((whole.len() - head) as f64 * at) as usize;
            let all = paths(&whole[..]);
            let passed = ends.iter().filter(|end| **end <= cut).count() - 1;
            let before: usize = batches[..passed].iter().map(|n| usize::from(*n)).sum();
            prop_assert_eq!(rest(&whole, cut), &all[before..]);
        }

        #[test]
        fn what_is_no_recording_is_an_error_or_nothing(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            if let Ok(tail) = tail(&mut Cursor::new(&bytes)) {
                prop_assert!(tail.next <= bytes.len() as u64);
            }
        }
    }

    #[test]
    fn a_length_that_lies_is_no_reason_to_go_beyond_the_end() {
        let (mut whole, ends) = recording(&[3, 3]);
        let at = ends[0];
        whole[at + 4..at + 8].copy_from_slice(&(DESCRIPTION_MAX + 1).to_le_bytes());
        assert!(tail(&mut Cursor::new(&whole)).is_err());
        whole[at + 4..at + 8].copy_from_slice(&DESCRIPTION_MAX.to_le_bytes());
        let found = tail(&mut Cursor::new(&whole)).expect("not whole");
        assert_eq!(found.next, at as u64);
    }
}
