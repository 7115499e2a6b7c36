//! The recorder's work: out of the rings, into the file.
//!
//! Promise: rings of processes that are gone are given back before anything else is done; every
//! request is a row, or counted as lost.

use super::messages::{number, Before, END, ESCAPED, GO, MESSAGE_MAX, SETTLE, SETTLED};
use super::rings::SharedRings;
use super::rows::{Rows, Writer};
use super::sink::{now_ns, Sink};
use crate::session::pids::Numbers;
use crate::session::shared::Shared;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_account::escape::Escape;
use synclater_recording::record::event;
use synclater_recording::record::row::Row;
use synclater_shim::page;
use synclater_shim::rings::{Cell, Count, Hist, Reader, Record, Rest, Ring};
use synclater_sys::clock::Timeline;
use synclater_sys::{process, socket, wait};

/// How long the rings are left alone at most.
const ROUND: Duration = Duration::from_millis(100);
/// The same where there are bells that are not heard.
const SHORT_ROUND: Duration = Duration::from_millis(10);
/// How long a place that a writer took may stay unfilled: its thread was stopped, or killed.
const UNFILLED: Duration = Duration::from_secs(1);
/// Passes through the rings in a row at most: who writes faster than they are read must not keep
/// the recorder from everything else.
const PASSES_MAX: usize = 16;
/// Events that are taken out of rings before rows are made of them, and those of one more ring.
const EVENTS_MAX: usize = 1 << 16;

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Sleep until there is more.
    GoOn,
    /// Look again at once: there is more.
    Again,
    End,
}

/// Whose the processes are that were met.
#[derive(Default)]
struct Owners(HashMap<u32, Option<u32>>);

impl Owners {
    /// So many are remembered.
    const MOST: usize = 1 << 16;

    /// Whether process `pid` is one of `user`'s, who says so; the session's own is believed. One
    /// that has ended is whose it was when it was met, or of the first who says so.
    fn is_of(&mut self, user: Option<u32>, pid: u32) -> bool {
        let is_his = user.is_none_or(|user| match &process::users_of(pid)[..] {
            [] => self.0.get(&pid).is_none_or(|owner| *owner == Some(user)),
            users => users.contains(&user),
        });
        if is_his {
            if self.0.len() >= Owners::MOST {
                self.0.clear();
            }
            self.0.insert(pid, user);
        }
        is_his
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

/// What was left in the ring of a process that is gone.
struct Past {
    source: Source,
    records: Vec<Record>,
    counts: Vec<Count>,
    lost: u64,
}

/// Rows are made here, and written.
struct Out {
    sink: Sink,
    rows: Rows,
    before: Before,
}

/// The rings of a session on their way into a file.
pub struct Drain {
    shared: &'static Shared,
    rings: &'static SharedRings,
    socket: OwnedFd,
    out: Out,
    sources: HashMap<usize, Source>,
    owners: Owners,
    /// Events of processes that found no ring, as counted in their slots so far.
    ringless: HashMap<usize, u64>,
    /// Settles under way: their number and begin.
    settles: HashMap<u8, (u64, u64)>,
    /// Whether it was told to end.
    told: Then,
    /// Whether the supervisor is gone without a word.
    was_left: bool,
}

impl Drain {
    /// Begins with what is in the rings now; what was made before `before` is left out.
    pub fn new(
        shared: &'static Shared,
        rings: &'static SharedRings,
        socket: OwnedFd,
        mut sink: Sink,
        until_is_never: bool,
        before: Before,
    ) -> Drain {
        let timeline = Timeline::new(shared.clock);
        let rows = Rows::new(timeline, until_is_never, sink.names());
        Drain {
            shared,
            rings,
            socket,
            sources: HashMap::new(),
            owners: Owners::default(),
            ringless: before.slots.iter().copied().enumerate().collect(),
            out: Out { sink, rows, before },
            settles: HashMap::new(),
            told: Then::GoOn,
            was_left: false,
        }
    }

    /// Whether the supervisor is gone without a word.
    pub fn was_left(&self) -> bool {
        self.was_left
    }

    /// Where it wrote to, and where it heard from the supervisor.
    pub fn into_parts(self) -> (Sink, OwnedFd) {
        (self.out.sink, self.socket)
    }

    /// Goes on until it is told to end, or the supervisor is gone.
    ///
    /// # Errors
    /// Those of writing the file.
    pub fn run(&mut self) -> io::Result<()> {
        let mut swept = Instant::now();
        loop {
            let bell = &self.rings.head().bell;
            let rung = bell.load(SeqCst);
            if swept.elapsed() >= ROUND || self.rings.are_few() {
                swept = Instant::now();
                self.meet();
                self.sweep()?;
            }
            let then = self.round()?;
            if then == Then::End {
                while self.sweep()? {}
                self.count_losses()?;
                return self.count_others();
            }
            if self.out.sink.is_time() {
                self.count_others()?;
                self.count_losses()?;
                self.out.sink.tick()?;
                self.renew_names();
            }
            if then == Then::GoOn {
                let several = self.rings.are_of_several();
                wait::sleep_on(bell, rung, if several { SHORT_ROUND } else { ROUND });
            }
        }
    }

    fn renew_names(&mut self) {
        let Out { sink, rows, .. } = &mut self.out;
        if let Some(old) = sink.renew_names() {
            let writers = self.sources.values_mut().map(|s| &mut s.writer);
            rows.renew(&old, sink.names(), writers);
            sink.names_are_new();
        }
    }

    /// Takes what is in the rings, then hears of settles, then makes rows: so an event is never
    /// older than the settles that it is compared with. Victims that are faster than we do not keep
    /// us here.
    fn round(&mut self) -> io::Result<Then> {
        for _ in 0..PASSES_MAX {
            if self.out.rows.refresh() {
                // Everything comes after the begin then.
                self.out.before.ticks = 0;
            }
            // What was told before the rings are read last is all that was ever told.
            let told = self.listen()?;
            self.meet();
            let more = self.pass()?;
            if !more && self.told == told {
                return Ok(told);
            }
        }
        Ok(if self.told == Then::End {
            Then::End
        } else {
            Then::Again
        })
    }

    /// Once through all rings. Whether there is more in any.
    fn pass(&mut self) -> io::Result<bool> {
        let mut more = false;
        let mut events: Vec<(usize, Record)> = Vec::new();
        for (index, ring, cells) in self.rings.all() {
            if let Some(source) = self.sources.get_mut(&index) {
                let rest = source.take(ring, cells, |r| events.push((index, r)));
                more |= rest == Rest::More;
            }
            if events.len() > EVENTS_MAX {
                self.hear_and_write(&mut events)?;
            }
        }
        self.hear_and_write(&mut events)?;
        Ok(more)
    }

    fn hear_and_write(&mut self, events: &mut Vec<(usize, Record)>) -> io::Result<()> {
        self.listen()?;
        for (index, record) in events.drain(..) {
            if let Some(source) = self.sources.get_mut(&index) {
                self.out.record(&mut source.writer, record)?;
            }
        }
        Ok(())
    }

    /// Notes rings that were claimed, and what they lost under another owner.
    fn meet(&mut self) {
        let mut numbers = Numbers::now();
        for (index, ring, _) in self.rings.all() {
            let number = (ring.pid.load(SeqCst), ring.pid_ns.load(SeqCst));
            // Without a namespace: its owner is between two stores.
            let whole = number.0 != 0 && number.1 != 0;
            if !whole || self.sources.get(&index).is_some_and(|s| s.number == number) {
                continue;
            }
            let mut source = Source {
                reader: Reader::new(ring),
                writer: Writer::new(index, self.user_of(index)),
                number,
                // Of the ring's next owner nothing was lost before.
                lost: std::mem::take(&mut self.out.before.rings[index]),
                unfilled: None,
            };
            source.look_for(&mut numbers, &mut self.owners);
            self.sources.insert(index, source);
        }
    }

    /// Whose a ring is; `None` for the session's own user.
    fn user_of(&self, index: usize) -> Option<u32> {
        let room = self.rings.room_of(index)?;
        let mut others = self.shared.rooms().skip(1 + room);
        // One that nobody has: of no user.
        Some(others.next().and_then(|(user, _)| user).unwrap_or(u32::MAX))
    }

    /// Gives the rings of processes that are gone back: first of all, since others may wait for
    /// one; then makes rows of what was in them. Whether some are left for another time.
    fn sweep(&mut self) -> io::Result<bool> {
        let mut held = 0;
        let mut numbers = Numbers::now();
        let mut past: Vec<Past> = Vec::new();
        for (index, ring, cells) in self.rings.all() {
            if held > EVENTS_MAX {
                break;
            }
            let source = self.sources.get_mut(&index);
            if !source.is_some_and(|s| s.is_gone(&mut numbers, &mut self.owners)) {
                continue;
            }
            let Some(mut source) = self.sources.remove(&index) else {
                continue;
            };
            let records = source.take_all(ring, cells);
            let counts = self.rings.hist(index).map_or(Vec::new(), counts_of);
            let lost = ring.lost.swap(0, SeqCst).saturating_sub(source.lost);
            ring.pid_ns.store(0, SeqCst);
            ring.pid.store(0, SeqCst);
            held += records.len();
            past.push(Past {
                source,
                records,
                counts,
                lost,
            });
        }
        self.listen()?;
        past.into_iter().try_for_each(|p| self.out.past(p))?;
        self.count_ringless()?;
        Ok(held > EVENTS_MAX)
    }

    /// Rows for the calls that were counted since the last time.
    fn count_others(&mut self) -> io::Result<()> {
        if self.shared.page().slow.load(SeqCst) == 0 {
            return Ok(());
        }
        for (index, source) in &mut self.sources {
            if let Some(hist) = self.rings.hist(*index) {
                self.out.counts(&mut source.writer, counts_of(hist))?;
            }
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
                self.out.lost(Some(source.writer.pid), more)?;
            }
        }
        self.count_ringless()
    }

    /// The same for processes that found no ring. Slots keep what they counted when they pass to
    /// another process.
    fn count_ringless(&mut self) -> io::Result<()> {
        let mut numbers = Numbers::now();
        let rooms = self.shared.rooms();
        let slots = rooms.flat_map(|(user, s)| s.slot.iter().map(move |slot| (user, slot)));
        for (index, (user, slot)) in slots.enumerate() {
            let lost = slot.lost.load(SeqCst);
            let before = self.ringless.entry(index).or_default();
            let more = lost.saturating_sub(*before);
            *before = lost;
            if more > 0 {
                let pid = numbers.of(slot.pid.load(SeqCst), slot.pid_ns.load(SeqCst));
                self.out
                    .lost(pid.filter(|pid| self.owners.is_of(user, *pid)), more)?;
            }
        }
        Ok(())
    }

    fn listen(&mut self) -> io::Result<Then> {
        let mut message = [0; MESSAGE_MAX];
        while self.told == Then::GoOn {
            let received = socket::receive(&self.socket, &mut message);
            let m: &[u8; 16] = message.first_chunk().unwrap_or(&[0; 16]);
            match received {
                Ok((len, _)) if m[0] == ESCAPED => self.escaped(&message[1..len])?,
                Ok((16, _)) if m[0] == END => self.told = Then::End,
                Ok((16, _)) if m[0] == GO => self.out.sink.go()?,
                Ok((16, _)) => self.settle(m)?,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The supervisor is gone; its processes may go on.
                _ => (self.told, self.was_left) = (Then::End, true),
            }
        }
        Ok(self.told)
    }

    fn escaped(&mut self, json: &[u8]) -> io::Result<()> {
        let Ok(escape) = serde_json::from_slice::<Escape>(json) else {
            return Ok(());
        };
        let sink = &mut self.out.sink;
        let names = sink.names();
        let row = Row {
            event: names.name(event::ESCAPED),
            time_ns: now_ns(),
            pid: Some(escape.pid).filter(|pid| *pid != 0),
            exe: names.name(&escape.exe),
            reason: names.name(&escape.why),
            value: escape.requests.map(|n| n as f64),
            ..Row::default()
        };
        sink.other(row)
    }

    fn settle(&mut self, m: &[u8; 16]) -> io::Result<()> {
        let (fs, ticks) = (m[1], number(&m[8..]));
        let Out { sink, rows, .. } = &mut self.out;
        if m[0] == SETTLE {
            let debt = rows.debts.begin(fs, ticks);
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
            row = rows.place_row(dev, sink.names());
        }
        let row = Row {
            event: sink.names().name(event::SETTLE),
            time_ns: rows.utc_ns(begun),
            duration_ns: Some(rows.span_ns(ticks.saturating_sub(begun))),
            debt: Some(debt),
            result: Some(if errno == 0 { 0 } else { -1 }),
            errno: Some(errno).filter(|e| *e != 0),
            ..row
        };
        sink.other(row)
    }
}

fn counts_of(hist: &Hist) -> Vec<Count> {
    let mut counts = Vec::new();
    hist.take(|count| counts.push(count));
    counts
}

impl Out {
    /// A row of one record, or none where it tells of another, or is from before.
    fn record(&mut self, writer: &mut Writer, record: Record) -> io::Result<()> {
        let is_older = matches!(
            &record,
            Record::Request { event, .. } if self.before.covers(event.start)
        );
        let row = self.rows.take(writer, record, self.sink.names());
        match row.filter(|_| !is_older) {
            Some(row) if self.rows.is_request(&row) => self.sink.request(row),
            Some(row) => self.sink.other(row),
            None => Ok(()),
        }
    }

    /// A row for each count.
    fn counts(&mut self, writer: &mut Writer, counts: Vec<Count>) -> io::Result<()> {
        for count in counts {
            let row = self
                .rows
                .counted(writer, count, now_ns(), self.sink.names());
            self.sink.other(row)?;
        }
        Ok(())
    }

    /// A row for what `pid` lost; 0 where it is not known whose it was.
    fn lost(&mut self, pid: Option<u32>, count: u64) -> io::Result<()> {
        self.sink.lost(pid.filter(|pid| *pid != 0), count)
    }

    fn past(&mut self, past: Past) -> io::Result<()> {
        let Past {
            mut source,
            records,
            counts,
            lost,
        } = past;
        for record in records {
            self.record(&mut source.writer, record)?;
        }
        self.counts(&mut source.writer, counts)?;
        if lost > 0 {
            self.lost(Some(source.writer.pid), lost)?;
        }
        self.rows.forget(source.writer.key());
        Ok(())
    }
}

impl Source {
    /// Whether the process is there no more. Where /proc does not tell who is who, it is not known
    /// of one in another pid namespace: its ring stays its own.
    fn is_gone(&mut self, numbers: &mut Numbers, owners: &mut Owners) -> bool {
        if self.writer.pid == 0 {
            if !numbers.are_known() {
                return false;
            }
            self.look_for(numbers, owners);
        }
        self.writer.pid == 0 || !process::is_alive(self.writer.pid)
    }

    /// Whose number that is, as we number it.
    fn look_for(&mut self, numbers: &mut Numbers, owners: &mut Owners) {
        let found = numbers.of(self.number.0, self.number.1);
        let user = self.writer.user;
        self.writer.pid = found.filter(|pid| owners.is_of(user, *pid)).unwrap_or(0);
    }

    /// Takes all that is left in the ring of a process that is gone: nobody fills what it left
    /// unfilled.
    fn take_all(&mut self, ring: &Ring, cells: &[Cell]) -> Vec<Record> {
        let mut records = Vec::new();
        for _ in 0..=cells.len() {
            match self.reader.drain(ring, cells, |r| records.push(r)) {
                Rest::Empty => break,
                Rest::Unfilled => self.reader.skip(ring, cells),
                Rest::More => {}
            }
        }
        records
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
