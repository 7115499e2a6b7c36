//! The recorder: a process of its own that drains the rings of a session into a file.
//!
//! Promise: victims never wait for it, nor does the supervisor before the end. What it could not
//! keep up with is counted by the victims, per process, and told in the recording. When the
//! supervisor dies, the recording is ended in order; when the recorder is killed, the file reads up
//! to its last whole batch.
//!
//! What it does not do: it decides nothing, and settles nothing.

use super::rings::SharedRings;
use super::rows::{Rows, Writer};
use super::sink::{now_ns, Sink};
use crate::session::counts::ours_of;
use crate::session::shared::Shared;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_model::record::event;
use synclater_model::record::header::Header;
use synclater_model::record::row::Row;
use synclater_shim::page;
use synclater_shim::rings::{Cell, Reader, Record, Rest, Ring};
use synclater_sys::clock::Timeline;
use synclater_sys::job::{self, Job};
use synclater_sys::{mount, process, socket, wait};

/// How long the rings are left alone at most.
const ROUND: Duration = Duration::from_millis(100);
/// How long a place that a writer took may stay unfilled: its thread was stopped, or killed.
const UNFILLED: Duration = Duration::from_secs(1);
/// Passes through the rings in a row at most: who writes faster than they are read must not keep
/// the recorder from everything else.
const PASSES_MAX: usize = 16;
/// Events that are taken out of rings before rows are made of them, and those of one more ring.
const EVENTS_MAX: usize = 1 << 16;
/// How long its end may take: it writes to a disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same where it writes to somebody who may not read.
const SHORT_PATIENCE: Duration = Duration::from_millis(50);

/// Messages to it: a letter, the file system, ticks, errno.
const SETTLE: u8 = b'S';
const SETTLED: u8 = b'T';
const END: u8 = b'E';
/// Its answers: a letter and three numbers.
const DONE: u8 = b'D';
const FAILED: u8 = b'F';

/// What a recording came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests in it.
    pub requests: u64,
    /// Requests that were lost.
    pub lost: u64,
    /// 0, or the errno that ended it.
    pub errno: i32,
}

/// How a recording is made.
pub struct Plan {
    /// What it says of itself.
    pub header: Header,
    /// A number that no other recording of the session has; not 0. Victims tell again what their
    /// descriptors are when it changes.
    pub number: u32,
    /// The longest time that a row waits to be written.
    pub every: Duration,
    /// Whether it goes before the victims where there are too few processors for all.
    pub hurries: bool,
}

/// Where things stood before it began, for what was there is not its own.
struct Before {
    ticks: u64,
    /// What each ring, and each slot, had lost.
    rings: Vec<u64>,
    slots: Vec<u64>,
}

impl Before {
    fn now(shared: &Shared, rings: &SharedRings) -> Before {
        let slots = shared.slots().slot.iter();
        Before {
            ticks: shared.clock.now(),
            rings: { rings.head().ring.iter() }
                .map(|r| r.lost.load(SeqCst))
                .collect(),
            slots: slots.map(|s| s.lost.load(SeqCst)).collect(),
        }
    }

    /// Whether a request was made before, and is left over from another recording.
    fn covers(&self, ticks: u64) -> bool {
        // The sign of the difference: what a victim writes is any number.
        ticks.wrapping_sub(self.ticks) > u64::MAX / 2
    }
}

/// The supervisor's end.
pub struct Recorder {
    job: Job,
    socket: OwnedFd,
    outcome: Option<Outcome>,
}

fn message(letter: u8, fs: u8, ticks: u64, errno: i32) -> [u8; 16] {
    let mut m = [0; 16];
    (m[0], m[1]) = (letter, fs);
    m[4..8].copy_from_slice(&errno.to_le_bytes());
    m[8..].copy_from_slice(&ticks.to_le_bytes());
    m
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

impl Recorder {
    /// Starts it. From now on victims write events.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn start(
        shared: &'static Shared,
        rings: &'static SharedRings,
        file: File,
        plan: Plan,
    ) -> io::Result<Recorder> {
        use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        rustix::io::ioctl_fionbio(&theirs, true)?;
        let before = Before::now(shared, rings);
        let number = plan.number;
        let job = Job::start(move || {
            let mut kept = job::keep_only(&[theirs.as_fd(), file.as_fd(), rings.file().as_fd()]);
            // `kept` owns the first two now; the third is used by its number, until the end.
            std::mem::forget((theirs, file, kept.pop()));
            let (file, socket) = (kept.pop(), kept.pop());
            let (Some(file), Some(socket)) = (file, socket) else {
                return 0;
            };
            process::leave_session();
            process::set_name(c"synclater-rec");
            if plan.hurries {
                // It has to keep up with victims that use every processor.
                let _ = rustix::process::setpriority_process(None, -10);
            }
            record(shared, rings, socket, File::from(file), &plan, before)
        })?;
        let page = shared.page();
        page.ring_cells
            .store(u32::try_from(rings.cells()).unwrap_or(0), SeqCst);
        page.record.store(number, SeqCst);
        Ok(Recorder {
            job,
            socket: ours,
            outcome: None,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.job.pid()
    }

    fn tell(&self, message: &[u8; 16]) {
        let _ = socket::send(&self.socket, message, &[]);
    }

    /// A settle of row `fs` of the debts begins at `ticks`.
    pub fn settle_begins(&self, fs: usize, ticks: u64) {
        let fs = u8::try_from(fs).unwrap_or(u8::MAX);
        self.tell(&message(SETTLE, fs, ticks, 0));
    }

    /// A settle of row `fs` ended at `ticks`.
    pub fn settle_ended(&self, fs: usize, ticks: u64, errno: i32) {
        let fs = u8::try_from(fs).unwrap_or(u8::MAX);
        self.tell(&message(SETTLED, fs, ticks, errno));
    }

    /// Whether the recording has ended before it was told to; tells so once.
    pub fn failure(&mut self) -> Option<Outcome> {
        if self.outcome.is_some() {
            return None;
        }
        self.listen();
        if self.outcome.is_none() && self.job.finished().is_some() {
            self.listen();
            self.outcome = self.outcome.or(Some(Outcome {
                errno: rustix::io::Errno::OWNERDEAD.raw_os_error(),
                ..Outcome::default()
            }));
        }
        self.outcome
    }

    fn listen(&mut self) {
        let mut m = [0; 24];
        while let Ok((24, _)) = socket::receive(&self.socket, &mut m) {
            let failed = m[0] == FAILED;
            self.outcome = Some(Outcome {
                requests: number(&m[8..16]),
                lost: number(&m[16..24]),
                errno: if failed {
                    i32::from_le_bytes([m[4], m[5], m[6], m[7]])
                } else {
                    0
                },
            });
        }
    }

    /// Ends the recording and waits until it is written.
    pub fn end(&mut self, shared: &Shared, rings: &SharedRings) -> Outcome {
        self.tell_end(shared, rings, PATIENCE);
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        self.failure().unwrap_or(Outcome {
            errno: rustix::io::Errno::TIMEDOUT.raw_os_error(),
            ..Outcome::default()
        })
    }

    /// Ends a recording that somebody reads, whether he does or not.
    pub fn stop(self, shared: &Shared, rings: &SharedRings) {
        self.tell_end(shared, rings, SHORT_PATIENCE);
        // Where it writes to somebody who does not read: it does nothing else then, so no ring is
        // left half read.
        self.job.end();
    }

    /// Switches recording off and gives the recorder so much time to end by itself.
    fn tell_end(&self, shared: &Shared, rings: &SharedRings, patience: Duration) {
        shared.page().record.store(0, SeqCst);
        if self.outcome.is_some() {
            return;
        }
        self.tell(&message(END, 0, 0, 0));
        rings.head().bell.fetch_add(1, SeqCst);
        wait::wake(&rings.head().bell);
        let _ = wait::any(&[(self.job.as_fd(), wait::For::Input)], patience);
    }
}

impl AsFd for Recorder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.job.as_fd()
    }
}

/// One ring that is, or was, a process's.
struct Source {
    reader: Reader,
    writer: Writer,
    /// As the process sees itself.
    number: (u32, u64),
    lost: u64,
    unfilled: Option<Unfilled>,
}

/// A place that was taken and not filled.
struct Unfilled {
    place: u64,
    since: Instant,
    /// Places up to here were taken by then.
    taken: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Sleep until there is more.
    GoOn,
    /// Look again at once: there is more.
    Again,
    End,
}

struct Drain {
    shared: &'static Shared,
    rings: &'static SharedRings,
    socket: OwnedFd,
    sink: Sink,
    rows: Rows,
    sources: HashMap<usize, Source>,
    /// Events of processes that found no ring, as counted in their slots so far.
    ringless: HashMap<usize, u64>,
    before: Before,
    /// Settles under way: their number and begin.
    settles: HashMap<u8, (u64, u64)>,
}

/// The recorder's life; its exit status.
fn record(
    shared: &'static Shared,
    rings: &'static SharedRings,
    socket: OwnedFd,
    file: File,
    plan: &Plan,
    before: Before,
) -> i32 {
    let tell = |letter: u8, errno: i32, requests: u64, lost: u64| {
        let mut m = [0; 24];
        m[0] = letter;
        m[4..8].copy_from_slice(&errno.to_le_bytes());
        m[8..16].copy_from_slice(&requests.to_le_bytes());
        m[16..].copy_from_slice(&lost.to_le_bytes());
        m
    };
    let errno = |e: &io::Error| e.raw_os_error().unwrap_or(5);
    let mut sink = match Sink::begin(file, &plan.header, plan.every) {
        Ok(sink) => sink,
        Err(e) => {
            let _ = socket::send(&socket, &tell(FAILED, errno(&e), 0, 0), &[]);
            return 0;
        }
    };
    let never = plan.header.until == "never";
    let rows = Rows::new(Timeline::new(shared.clock), never, sink.names());
    let mut drain = Drain {
        shared,
        rings,
        socket,
        sink,
        rows,
        sources: HashMap::new(),
        ringless: before.slots.iter().copied().enumerate().collect(),
        before,
        settles: HashMap::new(),
    };
    let ended = drain.run();
    let (requests, lost) = (drain.sink.requests, drain.sink.lost);
    let ended = ended.and_then(|()| drain.sink.end());
    let m = match ended {
        Ok(()) => tell(DONE, 0, requests, lost),
        Err(e) => {
            shared.page().record.store(0, SeqCst);
            tell(FAILED, errno(&e), requests, lost)
        }
    };
    let _ = socket::send(&drain.socket, &m, &[]);
    0
}

impl Drain {
    fn run(&mut self) -> io::Result<()> {
        let mut swept = Instant::now();
        loop {
            let bell = &self.rings.head().bell;
            let rung = bell.load(SeqCst);
            let then = self.round()?;
            if then == Then::End {
                self.count_losses()?;
                return self.count_others();
            }
            if swept.elapsed() >= ROUND || self.rings.are_short() {
                swept = Instant::now();
                self.sweep()?;
                self.rings.grow();
            }
            if self.sink.is_time() {
                self.count_others()?;
                self.count_losses()?;
                self.sink.tick()?;
            }
            if then == Then::GoOn {
                wait::sleep_on(bell, rung, ROUND);
            }
        }
    }

    /// Takes what is in the rings, then hears of settles, then makes rows: so an event is never
    /// older than the settles that it is compared with. Victims that are faster than we do not keep
    /// us here.
    fn round(&mut self) -> io::Result<Then> {
        let mut then = Then::GoOn;
        for _ in 0..PASSES_MAX {
            self.rows.refresh();
            // What was told before the rings are read last is all that was ever told.
            let told = self.listen()?;
            self.meet();
            let (more, heard) = self.pass()?;
            if told == Then::End || heard == Then::End {
                then = Then::End;
            }
            if !more && then == told {
                return Ok(then);
            }
        }
        Ok(if then == Then::End { then } else { Then::Again })
    }

    /// Once through all rings. Whether there is more in any, and what was heard meanwhile.
    fn pass(&mut self) -> io::Result<(bool, Then)> {
        let (mut more, mut then) = (false, Then::GoOn);
        let mut events: Vec<(usize, Record)> = Vec::new();
        for (index, ring, cells) in self.rings.all() {
            if let Some(source) = self.sources.get_mut(&index) {
                let rest = source.take(ring, cells, |r| events.push((index, r)));
                more |= rest == Rest::More;
            }
            if events.len() > EVENTS_MAX {
                then = self.hear_and_write(&mut events, then)?;
            }
        }
        then = self.hear_and_write(&mut events, then)?;
        Ok((more, then))
    }

    fn hear_and_write(
        &mut self,
        events: &mut Vec<(usize, Record)>,
        then: Then,
    ) -> io::Result<Then> {
        let heard = self.listen()?;
        self.write(events)?;
        Ok(if heard == Then::End { heard } else { then })
    }

    fn write(&mut self, events: &mut Vec<(usize, Record)>) -> io::Result<()> {
        for (index, record) in events.drain(..) {
            let Some(source) = self.sources.get_mut(&index) else {
                continue;
            };
            let is_older = matches!(
                &record,
                Record::Request { event, .. } if self.before.covers(event.start)
            );
            let row = self
                .rows
                .take(&mut source.writer, record, self.sink.names());
            match row.filter(|_| !is_older) {
                Some(row) if self.rows.is_request(&row) => self.sink.request(row)?,
                Some(row) => self.sink.other(row)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Notes rings that were claimed, and what they lost under another owner.
    fn meet(&mut self) {
        for (index, ring, _) in self.rings.all() {
            let number = (ring.pid.load(SeqCst), ring.pid_ns.load(SeqCst));
            // Without a namespace: its owner is between two stores.
            let whole = number.0 != 0 && number.1 != 0;
            if !whole || self.sources.get(&index).is_some_and(|s| s.number == number) {
                continue;
            }
            let pid = ours_of(number.0, number.1).unwrap_or(0);
            let source = Source {
                reader: Reader::new(ring),
                writer: Writer::new(pid),
                number,
                // Of the ring's next owner nothing was lost before.
                lost: std::mem::take(&mut self.before.rings[index]),
                unfilled: None,
            };
            self.sources.insert(index, source);
        }
    }

    /// Gives the rings of processes that are gone back, once they are empty.
    fn sweep(&mut self) -> io::Result<()> {
        let mut gone = Vec::new();
        for (index, source) in &mut self.sources {
            if source.is_gone() {
                gone.push(*index);
            }
        }
        for index in gone {
            self.round_of(index)?;
            self.count_others_of(index)?;
            let Some((_, ring, _)) = self.rings.all().nth(index) else {
                continue;
            };
            let Some(source) = self.sources.remove(&index) else {
                continue;
            };
            let lost = ring.lost.swap(0, SeqCst).saturating_sub(source.lost);
            if lost > 0 {
                let pid = Some(source.writer.pid).filter(|pid| *pid != 0);
                self.sink.lost(pid, lost)?;
            }
            self.rows.forget(source.writer.pid);
            ring.pid_ns.store(0, SeqCst);
            ring.pid.store(0, SeqCst);
        }
        Ok(())
    }

    /// Takes all that is left in the ring of a process that is gone.
    fn round_of(&mut self, index: usize) -> io::Result<()> {
        let mut events = Vec::new();
        if let Some((_, ring, cells)) = self.rings.all().nth(index) {
            if let Some(source) = self.sources.get_mut(&index) {
                // Nobody fills what it left unfilled.
                for _ in 0..cells.len() {
                    let rest = source
                        .reader
                        .drain(ring, cells, |r| events.push((index, r)));
                    if rest != Rest::Unfilled {
                        break;
                    }
                    source.reader.skip(ring, cells);
                }
            }
        }
        self.write(&mut events)
    }

    /// Rows for the calls that were counted since the last time.
    fn count_others(&mut self) -> io::Result<()> {
        if self.shared.page().slow.load(SeqCst) == 0 {
            return Ok(());
        }
        let indices: Vec<usize> = self.sources.keys().copied().collect();
        indices
            .into_iter()
            .try_for_each(|index| self.count_others_of(index))
    }

    fn count_others_of(&mut self, index: usize) -> io::Result<()> {
        let mut counts = Vec::new();
        if let Some(hist) = self.rings.hist(index) {
            hist.take(|count| counts.push(count));
        }
        let Some(source) = self.sources.get_mut(&index) else {
            return Ok(());
        };
        for count in counts {
            let (writer, names) = (&mut source.writer, self.sink.names());
            let row = self.rows.counted(writer, count, now_ns(), names);
            self.sink.other(row)?;
        }
        Ok(())
    }

    /// Rows for what was lost since the last time.
    fn count_losses(&mut self) -> io::Result<()> {
        for (index, ring, _) in self.rings.all() {
            let Some(source) = self.sources.get_mut(&index) else {
                continue;
            };
            let lost = ring.lost.load(SeqCst);
            let more = lost.saturating_sub(source.lost);
            if more > 0 {
                source.lost = lost;
                let pid = Some(source.writer.pid).filter(|pid| *pid != 0);
                self.sink.lost(pid, more)?;
            }
        }
        for (index, slot) in self.shared.slots().slot.iter().enumerate() {
            let lost = slot.lost.load(SeqCst);
            let before = self.ringless.entry(index).or_default();
            // Less than before: the slot is another process's now.
            let more = if lost < *before { lost } else { lost - *before };
            *before = lost;
            if more > 0 {
                let pid = ours_of(slot.pid.load(SeqCst), slot.pid_ns.load(SeqCst));
                self.sink.lost(pid, more)?;
            }
        }
        Ok(())
    }

    fn listen(&mut self) -> io::Result<Then> {
        let mut m = [0; 16];
        loop {
            match socket::receive(&self.socket, &mut m) {
                Ok((16, _)) if m[0] == END => return Ok(Then::End),
                Ok((16, _)) => self.settle(&m)?,
                // The supervisor is gone.
                Ok(_) => return Ok(Then::End),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Then::GoOn),
                Err(_) => return Ok(Then::End),
            }
        }
    }

    fn settle(&mut self, m: &[u8; 16]) -> io::Result<()> {
        let (fs, ticks) = (m[1], number(&m[8..]));
        if m[0] == SETTLE {
            let debt = self.rows.debts.begin(fs, ticks);
            self.settles.insert(fs, (debt, ticks));
            return Ok(());
        }
        let Some((debt, begun)) = self.settles.remove(&fs).filter(|_| m[0] == SETTLED) else {
            return Ok(());
        };
        let errno = i32::from_le_bytes([m[4], m[5], m[6], m[7]]);
        let dev = self.shared.page().fs.get(usize::from(fs));
        let dev = dev.map_or(0, |f| f.dev.load(SeqCst));
        let mut row = Row::default();
        if usize::from(fs) < page::FS_MAX {
            let dev = ((dev >> 32) as u32, dev as u32);
            row = self.rows.place_row(dev, self.sink.names());
        }
        let row = Row {
            event: self.sink.names().name(event::SETTLE),
            time_ns: self.rows.utc_ns(begun),
            duration_ns: Some(self.rows.span_ns(ticks.saturating_sub(begun))),
            debt: Some(debt),
            result: Some(if errno == 0 { 0 } else { -1 }),
            errno: Some(errno).filter(|e| *e != 0),
            ..row
        };
        self.sink.other(row)
    }
}

impl Source {
    /// Whether the process is there no more. Where /proc does not tell who is who, it is not known
    /// of one in another pid namespace: its ring stays its own.
    fn is_gone(&mut self) -> bool {
        if self.writer.pid == 0 {
            if mount::namespace_number(Path::new("/proc/self/ns/pid")) == 0 {
                return false;
            }
            self.writer.pid = ours_of(self.number.0, self.number.1).unwrap_or(0);
        }
        self.writer.pid == 0 || !process::is_alive(self.writer.pid)
    }

    /// Takes what is in the ring; passes over what stays unfilled, and counts it as lost.
    fn take(&mut self, ring: &Ring, cells: &[Cell], mut to: impl FnMut(Record)) -> Rest {
        let rest = self.reader.drain(ring, cells, &mut to);
        if rest != Rest::Unfilled {
            self.unfilled = None;
            return rest;
        }
        let place = self.reader.place();
        match self.unfilled.take().filter(|u| u.place == place) {
            Some(u) if u.since.elapsed() > UNFILLED => self.pass(&u, ring, cells, to),
            Some(u) => {
                self.unfilled = Some(u);
                rest
            }
            None => {
                self.unfilled = Some(Unfilled {
                    place,
                    since: Instant::now(),
                    taken: ring.head.load(SeqCst),
                });
                rest
            }
        }
    }

    /// Passes over every unfilled place that was taken when the first of them was.
    fn pass(
        &mut self,
        u: &Unfilled,
        ring: &Ring,
        cells: &[Cell],
        mut to: impl FnMut(Record),
    ) -> Rest {
        for _ in 0..cells.len() {
            let old = u.taken.wrapping_sub(self.reader.place());
            if old == 0 || old > cells.len() as u64 {
                return Rest::More;
            }
            self.reader.skip(ring, cells);
            ring.lost.fetch_add(1, SeqCst);
            let rest = self.reader.drain(ring, cells, &mut to);
            if rest != Rest::Unfilled {
                return rest;
            }
        }
        Rest::More
    }
}
