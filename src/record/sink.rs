//! Where rows go: the recording on disk, with the machine's figures once a second.
//!
//! Promise: a row is on its way at most so long after it came as the caller said. The first error
//! ends the recording; what was written before it stays readable.

use super::out::Out;
use super::samples::Samples;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use synclater_recording::record::event;
use synclater_recording::record::header::Header;
use synclater_recording::record::row::{Names, Row};
use synclater_recording::record::write::Writer;

/// How often the machine's figures are taken.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Names, of some hundred bytes each, that are no reason to look which of them are needed.
const NAMES_MAX: usize = 1 << 20;

/// A recording that is being written.
pub struct Sink {
    writer: Writer<Out>,
    samples: Samples,
    next_sample: Instant,
    /// The longest time that a row waits to be written.
    every: Duration,
    next: Instant,
    /// Names that may be there before those that nobody needs are forgotten.
    names_max: usize,
    /// Requests written so far.
    pub requests: u64,
    /// Requests that were lost so far.
    pub lost: u64,
}

/// What a recording says of this machine and this moment.
#[must_use]
pub fn header(session: &str, command: &[String], until: &str, engine: &str) -> Header {
    let processors = std::thread::available_parallelism().map_or(0, |n| n.get());
    Header {
        version: 0, // the writer knows
        tool: env!("CARGO_PKG_VERSION").into(),
        host: read("/proc/sys/kernel/hostname"),
        kernel: read("/proc/sys/kernel/osrelease"),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        started: humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
        session: session.into(),
        command: command.to_vec(),
        until: until.into(),
        engine: engine.into(),
        processors: u32::try_from(processors).unwrap_or(0),
        whose: String::new(),
        slower_ns: None,
    }
}

/// What a file in /proc says, without blanks around it; nothing where it cannot be read.
fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// Now, in nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

impl Sink {
    /// Begins a recording in `file`, with a batch `every` so long at least.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn begin(file: File, header: &Header, every: Duration) -> io::Result<Sink> {
        let now = Instant::now();
        Ok(Sink {
            writer: Writer::new(Out::new(file), header)?,
            samples: Samples::new(),
            next_sample: now + SAMPLE_EVERY,
            every,
            next: now + every,
            names_max: NAMES_MAX,
            requests: 0,
            lost: 0,
        })
    }

    /// What was in the file before goes now, where there was anything; see [`Out`].
    ///
    /// # Errors
    /// Those of write(2).
    pub fn go(&mut self) -> io::Result<()> {
        self.writer.out_mut().go()
    }

    /// The texts that rows refer to.
    pub fn names(&mut self) -> &mut Names {
        &mut self.writer.names
    }

    /// Adds a request.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn request(&mut self, row: Row) -> io::Result<()> {
        self.requests += 1;
        self.writer.push(row)
    }

    /// Adds a row that is no request.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn other(&mut self, row: Row) -> io::Result<()> {
        self.writer.push(row)
    }

    /// Notes that process `pid` lost `count` more requests.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn lost(&mut self, pid: Option<u32>, count: u64) -> io::Result<()> {
        self.lost = self.lost.saturating_add(count);
        let row = Row {
            event: self.writer.names.name(event::LOST),
            time_ns: now_ns(),
            pid,
            value: Some(count as f64),
            ..Row::default()
        };
        self.writer.push(row)
    }

    /// Forgets the names where there are many more than were in use, as [`Writer::renew_names`]: a
    /// recording may go on for months, and files come and go.
    pub fn renew_names(&mut self) -> Option<Names> {
        self.writer.renew_names(self.names_max)
    }

    /// Names were asked for again: there may be as many more before they are forgotten.
    pub fn names_are_new(&mut self) {
        self.names_max = NAMES_MAX.max(2 * self.writer.names.len());
    }

    /// Whether it is time for a [`Sink::tick`].
    #[must_use]
    pub fn is_time(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Takes the machine's figures once a second, and writes what is pending when it is time.
    /// Returns whether it was.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn tick(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        if now < self.next {
            return Ok(false);
        }
        self.next = now + self.every;
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_EVERY;
            self.sample()?;
        }
        self.writer.flush()?;
        Ok(true)
    }

    fn sample(&mut self) -> io::Result<()> {
        for row in self.samples.take(&mut self.writer.names, now_ns()) {
            self.writer.push(row)?;
        }
        Ok(())
    }

    /// Ends the recording in order, where it has begun.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn end(mut self) -> io::Result<()> {
        if self.writer.out_mut().waits() {
            return Ok(());
        }
        self.sample()?;
        let row = Row {
            event: self.writer.names.name(event::END),
            time_ns: now_ns(),
            ..Row::default()
        };
        self.writer.push(row)?;
        self.writer.finish().map(drop)
    }

    /// Writes what there is and does not say that this is the end: what comes is not recorded.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn break_off(mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
