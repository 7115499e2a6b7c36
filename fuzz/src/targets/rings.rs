//! Fuzzes the reader of rings, which victims write: cells, heads and counts of any value, changed
//! between calls, in the middle of one, and by another thread all the while.
//!
//! Claims: nothing panics; a drain gives at most as many records as the ring has cells, and ends;
//! no text is longer than its cells; places go forward only; what was written as the library
//! writes it comes out as it went in.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8};

use synclater_shim::page::Layout;
use synclater_shim::rings::{cells_of, ring_bytes, Reader, Record, Rest, Rings, CELL, RINGS_DATA};

use crate::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "rings",
    seeds: &[
        b"",
        // Events in order, then taken.
        b"\0\x02\0\x05\x07\0\x08\0\x20\x06\0\0\0\x02\x09\0\x06",
        // A head that runs ahead; cells that name too many.
        b"\0\x01\xff\x06\x02\xff\xff\xff\xff\xff\xff\xff\xff\x06\x06",
        b"\0\x05\x03\x01\xff\x01\x05\x06\x05\x04\x05\x24\x01\x02\x06",
        b"\0\x04\x01\x01\x40\x06\x07\x06\x04\xff\x01\xff\x06",
        b"\x01\x04\x01\x01\x80\x06\x06\x06\x06\x06\x06",
        b"\xff\x01\x80\x06\x06\x06\x06\x07\x06",
    ],
    words: &[
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x06",
        b"\x06\x07\x06",
        b"\x02\0\0\0\0\0\0\0\x80",
        b"\x05\0\x01\x01",
    ],
    run,
};

const CELLS: usize = 256;

/// A ring in memory as a mapping is.
struct Stage {
    bytes: Vec<AtomicU8>,
    start: usize,
}

impl Stage {
    fn new() -> Stage {
        let size = RINGS_DATA + ring_bytes(CELLS) + 8;
        let bytes: Vec<AtomicU8> = (0..size).map(|_| AtomicU8::new(0)).collect();
        let start = bytes.as_ptr().align_offset(8);
        Stage { bytes, start }
    }

    fn bytes(&self) -> &[AtomicU8] {
        &self.bytes[self.start..]
    }

    fn rings(&self) -> &Rings {
        Rings::view(self.bytes()).expect("large enough and aligned")
    }

    fn put(&self, place: u64, at: usize, what: &[u8]) {
        // Behind the histogram, which comes first.
        let first = RINGS_DATA + ring_bytes(CELLS) - CELLS * CELL;
        let cell = first + place as usize % CELLS * CELL;
        for (k, byte) in what.iter().enumerate().take(CELL - at) {
            self.bytes()[cell + at + k].store(*byte, Relaxed);
        }
    }

    fn state(&self, place: u64, kind: u8, count: u8) {
        let state = u32::from(kind) | u32::from(count) << 8 | (place as u32 & 0xffff) << 16;
        self.put(place, 0, &state.to_le_bytes());
    }

    /// Writes an event with a path as the library does, where there is room.
    fn event(&self, tid: u8, path: u8) -> bool {
        let ring = &self.rings().ring[0];
        let count = 1 + u64::from(path).div_ceil(60);
        let head = ring.head.load(SeqCst);
        if head
            .wrapping_sub(ring.tail.load(SeqCst))
            .wrapping_add(count)
            > CELLS as u64
        {
            return false;
        }
        ring.head.store(head.wrapping_add(count), SeqCst);
        for k in 1..count {
            let place = head.wrapping_add(k);
            self.put(place, 4, &[b'p'; 60]);
            self.state(place, 3, 1);
        }
        self.put(head, 4, &u32::from(tid).to_le_bytes());
        self.put(head, 60, &u16::from(path).to_le_bytes());
        self.put(head, 62, &2u16.to_le_bytes());
        self.state(head, 1, count as u8);
        true
    }
}

/// The rest of the input, byte by byte; zeros at its end.
struct Input<'a>(std::slice::Iter<'a, u8>);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes([0; 8].map(|_: u8| self.byte()))
    }
}

fn run(input: &[u8]) {
    in_order(input);
    let stage = Stage::new();
    let mut input = Input(input.iter());
    let (mode, over) = (input.byte(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // A thread costs more than the rest.
        if mode == 0xff {
            scope.spawn(|| scribble(&stage, &over));
        }
        hostile(&stage, &mut input, mode);
        over.store(true, SeqCst);
    });
}

/// Writes nonsense until it is over.
fn scribble(stage: &Stage, over: &AtomicBool) {
    let mut random = synclater_random::Random::new(1);
    let ring = &stage.rings().ring[0];
    while !over.load(Relaxed) {
        let place = random.draw();
        stage.state(
            place,
            (random.draw() >> 56) as u8 % 6,
            (random.draw() >> 56) as u8,
        );
        stage.put(place, 56, &random.draw().to_le_bytes());
        if random.below(4) == 0 {
            let near = ring
                .tail
                .load(Relaxed)
                .wrapping_add(random.below(2 * CELLS as u64));
            let any = [near, random.draw()][random.below(2) as usize];
            ring.head.store(any, Relaxed);
        }
    }
}

fn hostile(stage: &Stage, input: &mut Input, mode: u8) {
    let ring = &stage.rings().ring[0];
    let cells = cells_of(stage.bytes(), 0, CELLS).expect("they are there");
    let mut reader = Reader::new(ring);
    while input.0.len() > 0 {
        match input.byte() % 8 {
            0 => drop(stage.event(input.byte(), input.byte())),
            1 => {
                let ahead = reader.place().wrapping_add(input.byte().into());
                ring.head.store(ahead, SeqCst);
            }
            2 => ring.head.store(input.long(), SeqCst),
            3 => {
                let (place, at) = (input.byte(), usize::from(input.byte()) % CELL);
                stage.put(place.into(), at, &input.long().to_le_bytes());
            }
            4 => {
                let (kind, count) = (input.byte(), input.byte());
                for k in 0..CELLS as u64 {
                    stage.state(reader.place().wrapping_add(k), kind, count);
                    stage.put(reader.place().wrapping_add(k), 60, &[count; 4]);
                }
            }
            5 => {
                let place = reader.place().wrapping_add(input.byte().into());
                stage.state(place, input.byte(), input.byte());
            }
            6 => drain(stage, &mut reader, input, mode),
            _ => reader.skip(ring, cells),
        }
    }
    drain(stage, &mut reader, input, mode);
    // Whatever is there: one who passes over what is unfilled comes to an end.
    for _ in 0..=CELLS {
        drain(stage, &mut reader, input, mode & 0xfe);
        reader.skip(ring, cells);
    }
    if mode != 0xff {
        assert_eq!(reader.drain(ring, cells, drop), Rest::Empty);
    }
}

/// Drains; with mode 1 the ring changes while it is drained.
fn drain(stage: &Stage, reader: &mut Reader, input: &mut Input, mode: u8) {
    let ring = &stage.rings().ring[0];
    let cells = cells_of(stage.bytes(), 0, CELLS).expect("they are there");
    let (before, mut records) = (reader.place(), 0);
    let changes = mode == 1;
    reader.drain(ring, cells, |record| {
        records += 1;
        let longest = CELLS * CELL;
        match record {
            Record::Request { path, .. } => assert!(path.is_none_or(|p| p.len() <= longest)),
            Record::Caller { file, .. } => assert!(file.len() <= longest),
            Record::Process { exe, command, .. } => assert!(exe.len() + command.len() <= longest),
            Record::Counted(_) => {}
        }
        if changes {
            let head = ring.head.load(SeqCst);
            ring.head
                .store(head.wrapping_add(input.byte().into()), SeqCst);
            stage.state(head.wrapping_add(1), input.byte(), input.byte());
        }
    });
    assert!(records <= CELLS, "{records} records of {CELLS} cells");
    let passed = reader.place().wrapping_sub(before);
    assert!(passed <= (CELLS * 256) as u64, "{passed} places");
    if mode == 0 {
        assert!(passed <= CELLS as u64, "{passed} places");
        let left = ring.head.load(SeqCst).wrapping_sub(reader.place());
        assert!(left <= CELLS as u64, "a head that cannot be was left");
    }
}

/// What the library writes comes out as it went in, wherever in the numbers the ring stands.
fn in_order(input: &[u8]) {
    let stage = Stage::new();
    let mut input = Input(input.iter());
    let ring = &stage.rings().ring[0];
    let cells = cells_of(stage.bytes(), 0, CELLS).expect("they are there");
    let start = input.long();
    ring.head.store(start, SeqCst);
    ring.tail.store(start, SeqCst);
    let mut reader = Reader::new(ring);
    let mut written = Vec::new();
    for _ in 0..input.0.len() / 2 {
        let (tid, path) = (input.byte(), input.byte());
        if stage.event(tid, path) {
            written.push((u32::from(tid), vec![b'p'; path.into()]));
        } else {
            let mut read = Vec::new();
            let rest = reader.drain(ring, cells, |record| match record {
                Record::Request { event, path, .. } => {
                    read.push((event.tid, path.unwrap_or_default()));
                }
                other => panic!("{other:?} was not written"),
            });
            assert_ne!(rest, Rest::Unfilled);
            assert_eq!(read, written);
            written.clear();
        }
    }
}
