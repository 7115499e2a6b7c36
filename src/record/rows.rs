//! From what a victim wrote into its ring to a row: who, which file, where it lies, when.
//!
//! Promise: nothing that a victim wrote makes this panic, grow without bound, or name a file of
//! another process.

use super::people::{People, Person};
use super::places::{Location, Places};
use super::resolve::Modules;
use super::sink::now_ns;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use synclater_recording::record::row::{Name, Names, Row};
use synclater_recording::record::{answered, done, event, kind};
use synclater_shim::page::KEPT_WORDS;
use synclater_shim::rings::{self, Count, Event, Record, Stat, KIND_READ, KIND_WORDS};
use synclater_sys::clock::Timeline;

/// Files whose last sync is remembered; beyond it everything is forgotten at once.
const SEEN_MAX: usize = 1 << 20;
/// Descriptors and callers of one process that are remembered.
const KNOWN_MAX: usize = 1 << 16;

/// A place as names.
#[derive(Clone, Copy, Debug, Default)]
struct Where {
    fstype: Name,
    mount: Name,
    device: Name,
    parents: Name,
}

impl Where {
    fn of(place: &Location, names: &mut Names) -> Where {
        Where {
            fstype: name_of_text(&place.fstype, names),
            mount: name_of_text(&place.mount, names),
            device: name_of_text(&place.device, names),
            parents: name_of_text(&place.parents, names),
        }
    }
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, Default)]
struct OpenFile {
    path: Name,
    inode: Option<u64>,
    place: Where,
}

/// One process, as its ring told.
#[derive(Debug, Default)]
pub struct Writer {
    /// Its number as we see it; 0 where that is not known.
    pub pid: u32,
    /// Its ring's.
    index: usize,
    /// Whose the ring is; `None` for the session's own user, who is believed.
    pub user: Option<u32>,
    files: HashMap<i32, OpenFile>,
    callers: HashMap<u64, Name>,
    /// Who it is, with the names of executable and command.
    person: Option<(Arc<Person>, Name, Name)>,
}

impl Writer {
    /// One of which nothing is known yet, with its ring's number, and whose that is.
    #[must_use]
    pub fn new(index: usize, user: Option<u32>) -> Writer {
        Writer {
            index,
            user,
            ..Writer::default()
        }
    }

    /// A number that no other process has meanwhile.
    #[must_use]
    pub fn key(&self) -> u32 {
        match self.pid {
            0 => NUMBERLESS | u32::try_from(self.index).unwrap_or(0),
            pid => pid,
        }
    }
}

/// Numbers from here on no process has.
const NUMBERLESS: u32 = 1 << 31;

/// Numbers of debts: how many settles of each file system have begun, and when.
#[derive(Debug, Default)]
pub struct Debts {
    begun: HashMap<u8, Vec<u64>>,
}

impl Debts {
    /// A settle of file system `fs` began at `tick`; returns its number.
    pub fn begin(&mut self, fs: u8, tick: u64) -> u64 {
        let list = self.begun.entry(fs).or_default();
        list.push(tick);
        list.len() as u64
    }

    /// Number of the settle that pays a request which was owed at `tick`.
    fn of(&self, fs: u8, tick: u64) -> u64 {
        let list = self.begun.get(&fs).map_or(&[][..], Vec::as_slice);
        1 + list.partition_point(|begun| *begun <= tick) as u64
    }
}

/// Names that most rows have.
struct Words {
    request: Name,
    io: Name,
    io_rest: Name,
    kinds: Vec<Name>,
    reasons: Vec<Name>,
    kernel: Name,
    at_once: Name,
    queued: Name,
    real: Name,
    owed: Name,
    skipped: Name,
    nothing: Name,
}

impl Words {
    fn new(names: &mut Names) -> Words {
        Words {
            request: names.name(event::REQUEST),
            io: names.name(event::IO),
            io_rest: names.name(event::IO_REST),
            kinds: KIND_WORDS.iter().map(|k| names.name(k)).collect(),
            reasons: KEPT_WORDS.iter().map(|k| names.name(k)).collect(),
            kernel: names.name(answered::KERNEL),
            at_once: names.name(answered::AT_ONCE),
            queued: names.name(answered::QUEUED),
            real: names.name(done::REAL),
            owed: names.name(done::OWED),
            skipped: names.name(done::SKIPPED),
            nothing: names.name(done::NOTHING),
        }
    }
}

/// What all rows of a recording have in common.
pub struct Rows {
    people: People,
    places: Places,
    modules: Modules,
    words: Words,
    /// As of the last [`Rows::refresh`].
    now: Instant,
    timeline: Timeline,
    /// Whether the dial is `never`: nothing is owed then.
    pub never: bool,
    /// Modification and change time at the last real sync, by device and inode.
    seen: HashMap<((u32, u32), u64), (u64, u64)>,
    fine_times: bool,
    /// Numbers of debts.
    pub debts: Debts,
}

fn name_of(bytes: &[u8], names: &mut Names) -> Name {
    name_of_text(&String::from_utf8_lossy(bytes), names)
}

fn name_of_text(text: &str, names: &mut Names) -> Name {
    if text.is_empty() {
        return Name::NONE;
    }
    names.name(text)
}

/// Whether time stamps of files tell two changes apart that follow each other at once: since Linux
/// 6.13 (multigrain time stamps).
fn has_fine_times() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(13))
}

impl Rows {
    /// For a recording that begins now.
    #[must_use]
    pub fn new(timeline: Timeline, never: bool, names: &mut Names) -> Rows {
        Rows {
            people: People::new(),
            places: Places::new(),
            modules: Modules::new(),
            words: Words::new(names),
            now: Instant::now(),
            timeline,
            never,
            seen: HashMap::new(),
            fine_times: has_fine_times(),
            debts: Debts::default(),
        }
    }

    /// Asks again for every name that it and `writers` hold: `old` has the texts.
    pub fn renew<'a>(
        &mut self,
        old: &Names,
        names: &mut Names,
        writers: impl Iterator<Item = &'a mut Writer>,
    ) {
        self.words = Words::new(names);
        for writer in writers {
            writer.person = None;
            for caller in writer.callers.values_mut() {
                ask_again(caller, old, names);
            }
            for known in writer.files.values_mut() {
                let place = &mut known.place;
                ask_again(&mut place.fstype, old, names);
                ask_again(&mut place.mount, old, names);
                ask_again(&mut place.device, old, names);
                ask_again(&mut place.parents, old, names);
                ask_again(&mut known.path, old, names);
            }
        }
    }

    /// Reads the clocks again; now and then. Returns whether earlier ticks say nothing any more.
    pub fn refresh(&mut self) -> bool {
        self.now = Instant::now();
        self.timeline.refresh()
    }

    /// Nanoseconds since 1970 at `tick`.
    #[must_use]
    pub fn utc_ns(&self, tick: u64) -> i64 {
        self.timeline.utc_ns(tick)
    }

    /// Nanoseconds in a span of ticks.
    #[must_use]
    pub fn span_ns(&self, ticks: u64) -> u64 {
        self.timeline.span_ns(ticks)
    }

    /// Forgets a process that is gone.
    pub fn forget(&mut self, pid: u32) {
        self.people.forget(pid);
        self.modules.forget(pid);
    }

    /// A row of where the file system with device number `dev` lies.
    pub fn place_row(&mut self, dev: (u32, u32), names: &mut Names) -> Row {
        let place = self.places.of_dev(dev);
        let w = Where::of(&place, names);
        Row {
            fstype: w.fstype,
            mount: w.mount,
            device: w.device,
            parents: w.parents,
            ..Row::default()
        }
    }

    /// Whether a row is that of a request.
    #[must_use]
    pub fn is_request(&self, row: &Row) -> bool {
        row.event == self.words.request
    }

    /// A row of calls that were counted.
    pub fn counted(&mut self, from: &mut Writer, c: Count, at_ns: i64, names: &mut Names) -> Row {
        let (exe, _) = self.who(from, names);
        let kind = usize::from(c.kind).wrapping_sub(1);
        let below = 1_u64.checked_shl(c.place).unwrap_or(u64::MAX);
        Row {
            event: self.words.io_rest,
            time_ns: at_ns,
            pid: Some(from.pid).filter(|p| *p != 0),
            exe,
            kind: self.words.kinds.get(kind).copied().unwrap_or_default(),
            metric: names.name(&format!("below_ns_{below}")),
            value: Some(c.count as f64),
            ..Row::default()
        }
    }

    /// Takes a record; returns a row where it was a call, or a count of calls.
    pub fn take(&mut self, from: &mut Writer, record: Record, names: &mut Names) -> Option<Row> {
        match record {
            Record::Process { exe, command, uid } => {
                let command: Vec<String> = command
                    .split(|b| *b == 0)
                    .filter(|w| !w.is_empty())
                    .map(|w| String::from_utf8_lossy(w).into_owned())
                    .collect();
                let person = Person {
                    exe: String::from_utf8_lossy(&exe).into_owned(),
                    command: command.join(" "),
                    uid: from.user.unwrap_or(uid),
                };
                self.people.tell(from.key(), person, self.now);
                self.modules.forget(from.pid);
                from.callers.clear();
                None
            }
            Record::Caller {
                address,
                offset,
                file,
            } => {
                if from.callers.len() >= KNOWN_MAX {
                    from.callers.clear();
                }
                let caller = self.caller(from.pid, address, offset, &file);
                let caller = caller.map_or(Name::NONE, |text| names.name(&text));
                from.callers.insert(address, caller);
                None
            }
            Record::Counted(count) => Some(self.counted(from, count, now_ns(), names)),
            Record::Request { event, stat, path } => {
                let known = self.file(from, &event, stat.as_ref(), path.as_deref(), names);
                Some(self.row(from, &event, stat.as_ref(), known, names))
            }
        }
    }

    fn caller(&mut self, pid: u32, address: u64, offset: u64, file: &[u8]) -> Option<String> {
        // It is where the call returns to; the byte before is the call's last: its line, where the
        // next may be another.
        let (address, offset) = (address.wrapping_sub(1), offset.wrapping_sub(1));
        // While it lives its file tells the address; what it told itself is an offset in the file,
        // the same but for unusual linkers.
        let seen = self.modules.module_of(pid, address);
        if seen.is_some() || file.is_empty() {
            return seen;
        }
        Some(format!("{}+{offset:#x}", String::from_utf8_lossy(file)))
    }

    /// What the event's descriptor is.
    fn file(
        &mut self,
        from: &mut Writer,
        e: &Event,
        stat: Option<&Stat>,
        path: Option<&[u8]>,
        names: &mut Names,
    ) -> OpenFile {
        if e.no_file {
            from.files.remove(&e.fd);
            return OpenFile::default();
        }
        let Some(path) = path else {
            return from.files.get(&e.fd).copied().unwrap_or_default();
        };
        let place = stat.map_or_else(
            || Arc::new(Location::default()),
            |s| self.places.of_mount(from.pid, s.mount, s.dev),
        );
        let known = OpenFile {
            path: name_of(path, names),
            inode: stat.map(|s| s.inode),
            place: Where::of(&place, names),
        };
        if e.fd >= 0 {
            if from.files.len() >= KNOWN_MAX {
                from.files.clear();
            }
            from.files.insert(e.fd, known);
        }
        known
    }

    /// Whether the file had changed since its last real sync; see docs/FORMAT.md.
    fn dirty(&mut self, e: &Event, stat: Option<&Stat>) -> Option<bool> {
        let asked = e.done == rings::DONE_REAL && e.kind < KIND_READ;
        let s = stat.filter(|s| asked && s.mtime_ns != 0)?;
        let file = (s.dev, s.inode);
        match KIND_WORDS.get(usize::from(e.kind).wrapping_sub(1)) {
            Some(&("fsync" | "fdatasync" | "msync")) if e.result >= 0 => {}
            // It makes nothing durable.
            Some(&"sync_file_range") => return None,
            // A write that syncs was looked at before it changed the file, and who knows what is
            // left of one that failed.
            _ => {
                self.seen.remove(&file);
                return None;
            }
        }
        if self.seen.len() >= SEEN_MAX {
            self.seen.clear();
        }
        let now = (s.mtime_ns, s.ctime_ns);
        let before = self.seen.insert(file, now)?;
        if before != now {
            return Some(true);
        }
        let began = u64::try_from(self.utc_ns(e.start)).unwrap_or(0);
        let age = began.saturating_sub(s.mtime_ns.max(s.ctime_ns));
        (self.fine_times || age > 10_000_000).then_some(false)
    }

    fn row(
        &mut self,
        from: &mut Writer,
        e: &Event,
        stat: Option<&Stat>,
        known: OpenFile,
        names: &mut Names,
    ) -> Row {
        let (exe, command) = self.who(from, names);
        let (answered, done, debt) = self.answer(e);
        let kind = usize::from(e.kind).wrapping_sub(1);
        let real = e.done == rings::DONE_REAL && e.why != 0;
        let reason = self.words.reasons.get(usize::from(e.why));
        let word = KIND_WORDS.get(kind);
        Row {
            event: if e.kind < KIND_READ {
                self.words.request
            } else {
                self.words.io
            },
            time_ns: self.utc_ns(e.start),
            duration_ns: (!is_queued(word)).then(|| self.span_ns(e.took)),
            pid: Some(from.pid).filter(|p| *p != 0),
            tid: Some(e.tid).filter(|_| from.user.is_none() || from.pid != 0),
            uid: Some(from.user.unwrap_or(e.uid)),
            exe,
            command,
            kind: self.words.kinds.get(kind).copied().unwrap_or_default(),
            fd: Some(e.fd).filter(|fd| *fd >= 0),
            path: known.path,
            inode: known.inode,
            fstype: known.place.fstype,
            mount: known.place.mount,
            device: known.place.device,
            parents: known.place.parents,
            flags: Some(e.flags).filter(|f| *f != 0),
            result: Some(if e.result < 0 { -1 } else { e.result.into() }),
            errno: (e.result < 0).then(|| e.result.saturating_neg()),
            answered,
            done,
            reason: reason.filter(|_| real).copied().unwrap_or_default(),
            debt,
            bytes: e.bytes,
            dirty: self.dirty(e, stat),
            caller: from.callers.get(&e.caller).copied().unwrap_or_default(),
            ..Row::default()
        }
    }

    /// Names of the executable and the command.
    fn who(&mut self, from: &mut Writer, names: &mut Names) -> (Name, Name) {
        let person = self.people.of(from.key(), self.now);
        if let Some((known, exe, command)) = &from.person {
            if Arc::ptr_eq(known, &person) {
                return (*exe, *command);
            }
        }
        let exe = name_of(person.exe.as_bytes(), names);
        let command = name_of(person.command.as_bytes(), names);
        from.person = Some((person, exe, command));
        (exe, command)
    }

    fn answer(&self, e: &Event) -> (Name, Name, Option<u64>) {
        let w = &self.words;
        match e.done {
            rings::DONE_REAL => (w.kernel, w.real, None),
            rings::DONE_OWED if self.never => (w.at_once, w.skipped, None),
            rings::DONE_OWED => {
                let debt = self.debts.of(e.fs, e.start.wrapping_add(e.took));
                (w.at_once, w.owed, Some(debt))
            }
            rings::DONE_QUEUED => (w.queued, w.real, None),
            _ => (w.kernel, w.nothing, None),
        }
    }
}

/// Asks `names` for a name that `old` gave.
fn ask_again(name: &mut Name, old: &Names, names: &mut Names) {
    if *name != Name::NONE {
        *name = names.name(old.text(*name));
    }
}

fn is_queued(kind_word: Option<&&str>) -> bool {
    kind_word.is_some_and(|k| {
        [
            kind::AIO_FSYNC,
            kind::LIBAIO,
            kind::IO_URING,
            kind::IO_URING_RANGE,
        ]
        .contains(k)
    })
}
