//! Fuzzes the reader of recordings, whose bytes anybody may have written: those of a whole one are
//! changed here and there as the input says, and cut.
//!
//! Claims: nothing panics or hangs; what is read is no more than its bytes can hold; every number
//! of a text, a file or a process names one that is there; what was read of a recording that is
//! only cut off is a beginning of the whole.

use std::sync::LazyLock;

use synclater_recording::record::event;
use synclater_recording::record::header::Header;
use synclater_recording::record::row::Row;
use synclater_recording::record::table::{Rows, Table};
use synclater_recording::record::write::Writer;

use crate::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "recording",
    seeds: &[
        b"",
        // Which recording; then changes: what, where (4 bytes), with what (4 bytes).
        b"\x01\x00\x00\x00\x00\x10\xff\xff\xff\xff",
        b"\x02\x01\x00\x00\x20\x00\x00\x00\x00\x80\x02\x00\x00\x10\x00\x01\x00\x00\x00",
        b"\x03\x03\x00\x00\x80\x00\x10\x00\x00\x00\x04\x00\x00\x40\x00\x08\x00\x00\x00",
        b"\x00\x05\x00\x00\x60\x00\x00\x00\x00\x00",
        b"\x02\x06\x00\x00\x60\x00\x00\x00\x00\x20\x06\x00\x00\x30\x00\xff\xff\x00\x00",
    ],
    words: &[
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        b"\x00\x00\x00\x80",
        b"\x00\x00\x01\x00",
        b"\x07\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x08\x00\x00\x00\x00\x00\x00\x00\x00",
    ],
    run,
};

/// Text of a batch whose numbers are spread by `salt`.
fn push_rows(writer: &mut Writer<Vec<u8>>, rows: u64, salt: u64) {
    for i in 0..rows {
        let mut name = |text: &str| writer.names.name(text);
        let row = Row {
            event: name(event::REQUEST),
            time_ns: (salt * 1000 + i).cast_signed(),
            duration_ns: Some(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40),
            pid: Some(7),
            tid: Some(7 + (i % 3) as u32),
            exe: name("/usr/bin/imap"),
            kind: name(["fsync", "fdatasync", "msync"][(i % 3) as usize]),
            path: name(&format!("/spool/{salt}/{}", i % 31)),
            result: Some(if i % 9 == 0 { -1 } else { 0 }),
            errno: (i % 9 == 0).then_some(5),
            dirty: Some(i % 2 == 0),
            ..Row::default()
        };
        writer.push(row).expect("memory");
    }
    for kind in [
        event::LOST,
        event::SAMPLE,
        event::SETTLE,
        event::IO_REST,
        event::IO,
    ] {
        for value in [1.0, 1e19, f64::NAN, 3.0] {
            let row = Row {
                event: writer.names.name(kind),
                metric: writer.names.name("below_ns_1024"),
                value: Some(value),
                pid: Some(7),
                duration_ns: Some(u64::MAX - 1),
                debt: Some(salt),
                ..Row::default()
            };
            writer.push(row).expect("memory");
        }
    }
    writer.flush().expect("memory");
}

/// Recordings of several sizes.
static WHOLE: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let make = |batches: &[u64]| {
        let mut writer = Writer::new(Vec::new(), &Header::default()).expect("memory");
        for (salt, rows) in batches.iter().enumerate() {
            push_rows(&mut writer, *rows, salt as u64);
        }
        let end = Row {
            event: writer.names.name(event::END),
            ..Row::default()
        };
        writer.push(end).expect("memory");
        writer.finish().expect("memory")
    };
    vec![make(&[]), make(&[1]), make(&[40, 3]), make(&[500, 40, 5])]
});

fn word(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_le_bytes)
}

/// One change, of nine bytes.
fn change(bytes: &mut Vec<u8>, how: &[u8]) {
    let (what, at, with) = (how[0] % 9, word(&how[1..5]), word(&how[5..9]));
    if bytes.is_empty() {
        return;
    }
    // Small numbers name places near the beginning, others are spread over all of it.
    let at = ((u64::from(at) * bytes.len() as u64) >> 24) as usize % bytes.len();
    let to = (at + with as usize % 4096).min(bytes.len());
    match what {
        0 => bytes[at] ^= 1 << (with % 8),
        1 => bytes[at] = with as u8,
        2 | 6 => put(bytes, at & !7, &with.to_le_bytes()),
        3 => drop(bytes.drain(at..to)),
        4 => {
            let copied = bytes[at..to].to_vec();
            bytes.splice(at..at, copied);
        }
        5 => bytes.truncate(at),
        7 => put(bytes, at & !3, &u64::from(with).to_le_bytes()),
        _ => put(bytes, at & !7, &i64::from(with.cast_signed()).to_le_bytes()),
    }
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(part) = bytes.get_mut(at..at + what.len()) {
        part.copy_from_slice(what);
    }
}

fn run(input: &[u8]) {
    let (which, changes) = input.split_first().unwrap_or((&0, &[]));
    let whole = &WHOLE[usize::from(*which) % WHOLE.len()];
    let mut bytes = whole.clone();
    let mut only_cut = true;
    for how in changes.chunks_exact(9).take(64) {
        only_cut &= how[0] % 9 == 5;
        change(&mut bytes, how);
    }
    let read = Table::read(&bytes[..]);
    let Ok(table) = read else { return };
    makes_sense(&table, bytes.len());
    if only_cut {
        let expected = Table::read(&whole[..]).expect("a recording");
        let (is, whole) = (&table.rows.time_ns, &expected.rows.time_ns);
        assert_eq!(is[..], whole[..is.len()], "no beginning of the whole");
    }
}

fn makes_sense(table: &Table, bytes: usize) {
    // A time takes 8 bytes, which are compressed at most to a 255th.
    assert!(table.rows.len() / 32 <= bytes, "{} rows", table.rows.len());
    for rows in [&table.rows, &table.io] {
        name_what_is_there(table, rows);
    }
    for file in &table.files {
        assert!((file.filesystem as usize) < table.filesystems.len());
    }
    for rest in &table.io_rest {
        assert!((rest.process as usize) < table.processes.len());
    }
    let _ = table.span_ns();
}

fn name_what_is_there(table: &Table, rows: &Rows) {
    for i in 0..rows.len() {
        assert!((rows.process[i] as usize) < table.processes.len());
        assert!((rows.file[i] as usize) < table.files.len());
        assert!(usize::from(rows.kind[i]) < table.kinds.len());
        assert!(usize::from(rows.reason[i]) < table.reasons.len());
        assert!((rows.caller[i] as usize) < table.callers.len());
    }
}
