//! Attach: the shim's decisions into a running, unmodified process, and out again byte for byte.
//!
//! Promise: a process is attached whole or left as it was; it stands still only while five bytes at
//! each of its system-call sites are exchanged. Whatever traces it is a process of its own that
//! ends soon: a thread deep inside a system call is let go of then.
//!
//! What is put into a process stays mapped for as long as it lives: a thread may be on its way
//! through it at any time. The next session uses it again.
//!
//! Map: [`target`] says whether it can be done, [`code`] where, [`tracer`] stops threads and sends
//! them on errands.

mod code;
pub mod target;
pub mod tracer;

use crate::session::shared::Shared;
use code::{survey, Class, Library, Site, Survey};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use synclater_model::reach::sites;
use synclater_shim::gate::{jump, Errand, Place};
use synclater_shim::page::{Page, Slots};
use synclater_sys::clock::LeaseClock;
use synclater_sys::job::{self, Job};
use synclater_sys::ptrace::Thread;
use synclater_sys::remote::{self, Memory};
use target::{Open, Refusal, Target};
use tracer::{Failure, Tracer};

/// What a session brings into its processes.
pub struct Luggage {
    library: File,
    /// The same for i386 programs, where there is one.
    small: Option<File>,
    page: File,
    slots: File,
    page_size: u32,
    slots_size: u32,
    clock: LeaseClock,
}

/// What became of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum Told {
    /// It is attached.
    Attached {
        /// Sites that lead to the gate.
        sites: u64,
        /// Sites that are too far away for a jump.
        far: u64,
        /// How long it stood still.
        pause_ns: u64,
        /// What it had open already.
        open: Open,
    },
    /// It is not attached any more; its code is what it was.
    Detached {
        /// Sites that were restored.
        sites: u64,
        /// How long it stood still.
        pause_ns: u64,
    },
    /// Not now; a moment later it may work.
    Busy {
        /// Why.
        why: String,
    },
    /// It cannot be attached.
    Refused {
        /// Why not.
        refusal: Refusal,
    },
}

fn no_memory(e: &io::Error) -> Refusal {
    let why = format!("no memory that may be executed ({e})");
    Refusal::new(why, "sysctl vm.memfd_noexec=0")
}

/// Whether there is an image for this machine, and memory that may be executed for it.
///
/// # Errors
/// Why not.
pub fn can_bring_image() -> Result<(), Refusal> {
    let (image, _) = code::image(Class::Long).ok_or_else(code::no_gate)?;
    let file = remote::executable_memory(code::NAME, image);
    file.map(|_| ()).map_err(|e| no_memory(&e))
}

impl Luggage {
    /// What `shared` is made of.
    ///
    /// # Errors
    /// Why processes cannot be attached at all: no gate for this machine, no memory to execute.
    pub fn pack(shared: &Shared) -> Result<Luggage, Refusal> {
        let (image, _) = code::image(Class::Long).ok_or_else(code::no_gate)?;
        let open = |e: &io::Error| Refusal::new(e.to_string(), "free a descriptor, and try again");
        let memory = |image| remote::executable_memory(code::NAME, image);
        let library = memory(image).map_err(|e| no_memory(&e))?;
        let small = code::image(Class::Small).map(|(image, _)| memory(image));
        let small = small.transpose().map_err(|e| no_memory(&e))?;
        let page = File::open(&shared.path).map_err(|e| open(&e))?;
        let slots = shared.slots_file().try_clone().map_err(|e| open(&e))?;
        let page_size = shared.page().size.load(SeqCst);
        if u64::from(page_size) > code::PAGE_ROOM {
            let why = format!(
                "the rules take {page_size} bytes, of at most {}",
                code::PAGE_ROOM
            );
            return Err(Refusal::new(why, "use fewer rules"));
        }
        let slots_size = shared.page().slots_size.load(SeqCst);
        let clock = shared.clock;
        Ok(Luggage {
            library,
            small,
            page,
            slots,
            page_size,
            slots_size,
            clock,
        })
    }

    /// Has every request of the session look where it lies.
    fn look_from_now_on(&self) {
        use std::os::unix::fs::FileExt;
        let at = std::mem::offset_of!(Slots, look) as u64;
        let _ = self.slots.write_all_at(&1u32.to_ne_bytes(), at);
    }

    /// Everything that is open.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let small = self.small.iter().map(AsFd::as_fd);
        self.fds_for(Class::Long).into_iter().chain(small)
    }

    /// Library, page and slots.
    fn fds_for(&self, class: Class) -> [BorrowedFd<'_>; 3] {
        let small = self.small.as_ref().filter(|_| class == Class::Small);
        let library = small.unwrap_or(&self.library);
        [library.as_fd(), self.page.as_fd(), self.slots.as_fd()]
    }
}

/// One process being attached or detached, by a process of ours.
pub struct Work {
    job: Job,
    answer: File,
    begun: Instant,
}

/// No work takes longer: whatever it waits for does not come.
const LIMIT: Duration = Duration::from_secs(10);

impl Work {
    /// Begins to attach process `pid`.
    ///
    /// # Errors
    /// `EAGAIN` where no process can be had.
    pub fn attach(pid: u32, luggage: &Luggage) -> io::Result<Work> {
        Work::begin(luggage.fds().collect(), || attach(pid, luggage))
    }

    /// Begins to detach process `pid`.
    ///
    /// # Errors
    /// As [`Work::attach`].
    pub fn detach(pid: u32) -> io::Result<Work> {
        Work::begin(Vec::new(), || detach(pid))
    }

    fn begin(fds: Vec<BorrowedFd<'_>>, work: impl FnOnce() -> Told) -> io::Result<Work> {
        let (answer, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let job = Job::start(|| {
            let all: Vec<_> = fds.into_iter().chain([theirs.as_fd()]).collect();
            let kept = job::keep_only(&all);
            let told = serde_json::to_vec(&work()).unwrap_or_default();
            let to = all.last().map(|fd| fd.as_fd());
            let done = to.is_some_and(|fd| rustix::io::write(fd, &told).is_ok());
            std::mem::forget(kept);
            i32::from(!done)
        })?;
        let answer = answer.into();
        let begun = Instant::now();
        Ok(Work { job, answer, begun })
    }

    /// The number of the process that does it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.job.pid()
    }

    /// What became of it, once that is known; the process that did it is gone then.
    pub fn finished(&mut self) -> Option<Told> {
        if self.begun.elapsed() > LIMIT {
            // It may wait for a dead disk, and not die of that at once.
            self.job.kill();
            let why = format!("it could not be looked at for {} s", LIMIT.as_secs());
            let refusal = Refusal::new(why, "look for a dead FUSE or NFS below it");
            return Some(Told::Refused { refusal });
        }
        let status = self.job.status()?;
        let mut text = Vec::new();
        let _ = self.answer.read_to_end(&mut text);
        let told = serde_json::from_slice(&text);
        Some(told.unwrap_or_else(|_| Told::Busy {
            why: format!("what traced it ended early (status {status})"),
        }))
    }
}

impl AsFd for Work {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.job.as_fd()
    }
}

impl From<Failure> for Told {
    fn from(failure: Failure) -> Told {
        match failure {
            Failure::Busy(why) => Told::Busy { why },
            Failure::Refused(refusal) => Told::Refused { refusal },
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

fn attach(pid: u32, luggage: &Luggage) -> Told {
    put_in(pid, luggage).unwrap_or_else(Into::into)
}

fn detach(pid: u32) -> Told {
    take_out(pid).unwrap_or_else(Into::into)
}

fn memory_of(pid: u32) -> Result<Memory, Refusal> {
    Memory::open(pid).map_err(|e| {
        let why = format!("its memory may not be written ({e})");
        Refusal::new(why, format!("sudo synclater attach --pid {pid}"))
    })
}

/// Its memory cannot be reached.
fn lost(e: io::Error) -> Failure {
    Failure::Busy(format!("its memory: {e}"))
}

/// What some bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Part of an instruction in front of a system call: a thread is before or behind it.
    Site,
    /// A far jump, between two functions: a thread may be about to make it.
    Hole,
    /// The boot code: a thread of a stopped process may be in it.
    Boot,
}

/// Bytes of the process's code, before and after.
struct Change {
    what: What,
    at: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Change {
    fn range(&self) -> Range<u64> {
        self.at..self.at + self.before.len() as u64
    }
}

fn put_in(pid: u32, luggage: &Luggage) -> Result<Told, Failure> {
    let target = target::look(pid)?;
    let memory = memory_of(pid)?;
    let found = survey(pid, target.class, &memory)?;
    if let Some(library) = &found.library {
        if let Some(sites) = is_ours(library, &found, luggage) {
            // Forked by one that is attached.
            return Ok(Told::Attached {
                sites,
                far: 0,
                pause_ns: 0,
                open: target::open(pid),
            });
        }
        is_free(library, &found, &memory, &luggage.clock)?;
    }
    if !found.is_ready() && target::is_young(pid) {
        return Err(Failure::Busy("its libc is not there yet".into()));
    }
    let plan = Plan::make(pid, target, found, luggage)?;
    let mut tracer = Tracer::new(pid, plan.found.class);
    tracer.hold()?;
    if !plan.found.still_holds(pid, &memory) {
        return Err(Failure::Busy("another session attaches to it".into()));
    }
    plan.carry_out(&mut tracer, luggage, &memory)
}

/// Where a program that has just been executed will begin.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Where its dynamic linker lies.
    pub linker: u64,
    /// Its entry.
    pub at: u64,
    /// Where its auxiliary vector names the entry.
    pub told: u64,
}

/// What became of a program that has just been executed.
pub enum Begun {
    /// This.
    Done(Told),
    /// Its libraries are not there yet: it will stop for SIGURG in this range, when they are.
    Ahead(Range<u64>),
}

/// Attaches a process that has just executed a program, as its first instruction comes next.
/// `thread`, its only one, is traced by this process and stands still; it goes on, traced. `entry`
/// tells of a program that has a dynamic linker.
pub fn put_in_at_start(
    thread: Thread,
    entry: Option<Entry>,
    luggage: &Luggage,
) -> (Option<Thread>, Begun) {
    let pid = thread.tid();
    let mut tracer = Tracer::with(thread);
    let begun = put_in_first(pid, &mut tracer, entry, luggage);
    let begun = begun.unwrap_or_else(|failure| Begun::Done(failure.into()));
    (tracer.thread_of(pid), begun)
}

/// Goes on with a program that was prepared, and has its libraries now.
/// Returns its other threads that have ended meanwhile, too.
pub fn put_in_on_arrival(thread: Thread, luggage: &Luggage) -> (Option<Thread>, Told, Vec<u32>) {
    let pid = thread.tid();
    let mut tracer = Tracer::with(thread);
    let told = put_in_late(pid, &mut tracer, luggage).unwrap_or_else(Into::into);
    let gone = tracer.gone();
    (tracer.thread_of(pid), told, gone)
}

fn put_in_first(
    pid: u32,
    tracer: &mut Tracer,
    entry: Option<Entry>,
    luggage: &Luggage,
) -> Result<Begun, Failure> {
    let target = target::at_start(pid)?;
    let memory = memory_of(pid)?;
    let found = survey(pid, target.class, &memory)?;
    if found.makes_requests() {
        let plan = Plan::make(pid, target, found, luggage)?;
        return plan.carry_out(tracer, luggage, &memory).map(Begun::Done);
    }
    let Some(entry) = entry else {
        // Nothing in it could be answered, so nothing is missed.
        return Ok(Begun::Done(Told::Attached {
            sites: 0,
            far: 0,
            pause_ns: 0,
            open: Open::default(),
        }));
    };
    let image = found.place_ahead(entry.linker, code::heap(pid, &found.mappings))?;
    let open = target::open(pid);
    let errand = errand(&target, open, &found, image, luggage)?;
    let library = bring(tracer, &found, &errand, luggage, &memory)?;
    let at = |offset: u32| image + u64::from(offset);
    let arrival = synclater_shim::gate::arrival(entry.at, entry.told);
    memory
        .write(at(library.head.arrival), &arrival)
        .map_err(lost)?;
    let arrive = at(library.head.arrive);
    memory
        .write(entry.told, &arrive.to_le_bytes())
        .map_err(lost)?;
    exchange(tracer, &memory, &[])?;
    const LONGEST: u64 = 256;
    Ok(Begun::Ahead(arrive..arrive + LONGEST))
}

fn put_in_late(pid: u32, tracer: &mut Tracer, luggage: &Luggage) -> Result<Told, Failure> {
    let memory = memory_of(pid)?;
    let found = survey(pid, Class::Long, &memory)?;
    let library = { found.library.clone() }
        .ok_or_else(|| Refusal::new("the library is gone from its memory", "start it anew"))?;
    let (_, sites) = found.place_library(code::heap(pid, &found.mappings))?;
    let changes = fill_places(&library, found.class, &sites, &memory)?;
    let pause = exchange(tracer, &memory, &changes)?;
    let open = target::open(pid);
    if open.devices > 0 {
        luggage.look_from_now_on();
    }
    Ok(Told::Attached {
        sites: sites.len() as u64,
        far: (found.sites.len() - sites.len()) as u64,
        pause_ns: nanoseconds(pause),
        open,
    })
}

/// What is to be done to a process.
struct Plan {
    pid: u32,
    found: Survey,
    sites: Vec<Site>,
    open: Open,
    errand: Errand,
}

impl Plan {
    fn make(pid: u32, target: Target, found: Survey, luggage: &Luggage) -> Result<Plan, Refusal> {
        let heap = code::heap(pid, &found.mappings);
        let (image, sites) = found.place_library(heap)?;
        let open = target::open(pid);
        let errand = errand(&target, open, &found, image, luggage)?;
        Ok(Plan {
            pid,
            found,
            sites,
            open,
            errand,
        })
    }

    fn carry_out(
        self,
        tracer: &mut Tracer,
        luggage: &Luggage,
        memory: &Memory,
    ) -> Result<Told, Failure> {
        let Plan { pid, found, .. } = &self;
        let begins = tracer.is_at_start();
        let brought = bring(tracer, found, &self.errand, luggage, memory);
        if brought.is_err() {
            let left: Vec<Change> = boot_left(*pid, found, memory).into_iter().collect();
            let _ = left.is_empty() || exchange(tracer, memory, &left).is_ok();
        }
        let library = brought?;
        let mut changes = fill_places(&library, found.class, &self.sites, memory)?;
        if !begins {
            // One that begins is still in it.
            changes.extend(boot_left(*pid, found, memory));
        }
        let pause = exchange(tracer, memory, &changes)?;
        // One that begins has stood still since it was looked at.
        if !begins && !self.errand.devices && target::open(*pid).devices > 0 {
            // Opened before its opens went through the gate.
            luggage.look_from_now_on();
        }
        Ok(Told::Attached {
            sites: self.sites.len() as u64,
            far: (found.sites.len() - self.sites.len()) as u64,
            pause_ns: nanoseconds(pause),
            open: self.open,
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How many sites lead into this very session already; `None` where none does.
fn is_ours(library: &Library, found: &Survey, luggage: &Luggage) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let (_, page) = library.shared();
    let inode = luggage.page.metadata().ok()?.ino();
    let mapped = found.mappings.iter().find(|m| m.range.start == page)?;
    let sites = found.redirected().count() as u64;
    (mapped.inode == inode && sites > 0).then_some(sites)
}

/// Whether the session that a process was in before is over.
fn is_free(
    library: &Library,
    found: &Survey,
    memory: &Memory,
    clock: &LeaseClock,
) -> Result<(), Refusal> {
    let (_, page) = library.shared();
    let long = |at: usize| -> Option<u64> {
        let bytes = memory.bytes(page + at as u64, 8).ok()?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let lease = long(std::mem::offset_of!(Page, lease_until));
    let span = long(std::mem::offset_of!(Page, lease_span));
    let runs = lease
        .zip(span)
        .is_some_and(|(lease, span)| lease.wrapping_sub(clock.now()) <= span);
    if !runs || found.redirected().next().is_none() {
        return Ok(());
    }
    let name = found
        .mappings
        .iter()
        .find(|m| m.range.start == page)
        .map(|m| target::without_mark(&m.name));
    let folder = { name.as_deref() }.and_then(|n| n.strip_suffix("/page")?.rsplit('/').next());
    let id = folder.and_then(|f| f.split('.').next()).unwrap_or("?");
    let why = format!("it is attached to session {id}");
    Err(Refusal::new(
        why,
        format!("synclater set {id} ..., or synclater detach {id}"),
    ))
}

/// What a thread of the process is to do.
fn errand(
    target: &Target,
    open: Open,
    found: &Survey,
    image: u64,
    luggage: &Luggage,
) -> Result<Errand, Refusal> {
    let (_, head) = code::image(found.class).ok_or_else(code::no_gate)?;
    let (slots, page) = code::shared(image, &head);
    Ok(Errand {
        image,
        room: if found.library.is_some() {
            0
        } else {
            code::whole_room(&head)
        },
        there: image + u64::from(head.there),
        page,
        slots,
        page_size: luggage.page_size,
        slots_size: luggage.slots_size,
        pid: target.own_pid,
        pid_ns: target.pid_ns,
        other_ns: target.other_ns,
        devices: open.devices > 0,
        exe: target.exe.clone().into_bytes(),
    })
}

/// Brings the library where it is not there yet, and has it join the session.
fn bring(
    tracer: &mut Tracer,
    found: &Survey,
    errand: &Errand,
    luggage: &Luggage,
    memory: &Memory,
) -> Result<Library, Failure> {
    let (bytes, head) = code::image(found.class).ok_or_else(code::no_gate)?;
    // A program that has just begun has the whole of its stack.
    let begins = tracer.is_at_start();
    let room = |sp, waits| begins || found.has_stack_at(sp, waits);
    let fds = luggage.fds_for(found.class);
    let (library, boot) = match &found.library {
        Some(library) => (library.clone(), library.image + u64::from(head.boot)),
        None => {
            let library = Library {
                image: errand.image,
                head,
                places: vec![None; head.places()],
            };
            (library, lend_room(found, head.boot_code(bytes), memory)?)
        }
    };
    tracer.run(memory, boot, &head, errand, fds, room)?;
    Ok(library)
}

/// Puts the boot code where there is room for it; says where.
fn lend_room(found: &Survey, code: &[u8], memory: &Memory) -> Result<u64, Failure> {
    let boot = found.slack(memory, code).ok_or_else(|| {
        let why = "there is no room behind any of its code for the first instructions";
        Refusal::new(why, "start it under synclater: synclater run -- COMMAND")
    })?;
    memory.write(boot, code).map_err(lost)?;
    Ok(boot)
}

/// Makes the places that the sites are to lead to; returns what has to be changed at the sites.
fn fill_places(
    library: &Library,
    class: Class,
    sites: &[Site],
    memory: &Memory,
) -> Result<Vec<Change>, Failure> {
    let mut places = library.places.clone();
    let mut changes = Vec::new();
    for site in sites.iter().filter(|s| s.leads_to.is_none()) {
        if class == Class::Small {
            changes.push(call_gate(
                site,
                library.image + u64::from(library.head.gate),
            ));
            continue;
        }
        let place = Place {
            was: site.was.clone(),
            entry: site.entry(),
        };
        let k = { places.iter().position(|p| p.as_ref() == Some(&place)) }
            .or_else(|| places.iter().position(Option::is_none));
        let k = k.ok_or_else(|| Refusal::new("it has too many system-call sites", "name them"))?;
        let gate = match site.hole {
            Some(_) => library.head.gate_go,
            None => library.head.gate,
        };
        let at = library.place(k);
        let gate = library.image + u64::from(gate);
        let to_gate = || place.bytes(at, gate).zip(redirect(site, at));
        let (bytes, redirected) =
            to_gate().ok_or_else(|| Refusal::new("a site is out of reach", "start it anew"))?;
        memory.write(at, &bytes).map_err(lost)?;
        places[k] = Some(place);
        changes.extend(redirected);
    }
    Ok(changes)
}

/// What makes a site of i386 code call the gate.
fn call_gate(site: &Site, gate: u64) -> Change {
    Change {
        what: What::Site,
        at: site.at,
        before: site.was.clone(),
        after: sites::i386_call(site.at, gate).to_vec(),
    }
}

/// What makes a site lead to the place at `to`; `None` where that is too far away.
fn redirect(site: &Site, to: u64) -> Option<Vec<Change>> {
    let Some(hole) = site.hole else {
        return Some(vec![Change {
            what: What::Site,
            at: site.at,
            before: site.was.clone(),
            after: jump(site.at, to)?.to_vec(),
        }]);
    };
    let first = hole.step.unwrap_or(hole.far);
    let by = first.checked_sub(site.at + 2)?;
    let by = u8::try_from(by).ok().filter(|by| *by < 0x80)?;
    let fill = |at, after: Vec<u8>| Change {
        what: What::Hole,
        at,
        before: vec![0xcc; after.len()],
        after,
    };
    let mut all = vec![fill(hole.far, code::far_jump(to))];
    if let Some(step) = hole.step {
        all.push(fill(step, jump(step, hole.far)?.to_vec()));
    }
    all.push(Change {
        what: What::Site,
        at: site.at,
        before: site.was[..2].to_vec(),
        after: vec![0xeb, by],
    });
    Some(all)
}

/// What was where the boot code is, of this errand or of one whose tracer was killed.
fn boot_left(pid: u32, found: &Survey, memory: &Memory) -> Option<Change> {
    let (bytes, head) = code::image(found.class)?;
    let before = head.boot_code(bytes).to_vec();
    let at = found.slack(memory, &before)?;
    let is_there = memory.bytes(at, before.len()).ok()? == before;
    let after = is_there.then(|| found.in_file(pid, at, before.len()))?;
    let what = What::Boot;
    Some(Change {
        what,
        at,
        before,
        after,
    })
}

/// Exchanges the bytes of all sites while nothing of the process runs. Returns how long it stood
/// still.
fn exchange(tracer: &mut Tracer, memory: &Memory, changes: &[Change]) -> Result<Duration, Failure> {
    let begun = tracer.stop_all()?;
    let mut done = 0;
    let mut failed = None;
    let is_in_use = |c: &&Change| c.what != What::Site && tracer.is_anyone_in(&c.range());
    let in_use: Vec<&Change> = changes.iter().filter(is_in_use).collect();
    if in_use.iter().any(|c| c.what == What::Hole) {
        tracer.release();
        return Err(Failure::Busy("a thread is on its way to the gate".into()));
    }
    // What is left of the boot code goes at the next opportunity.
    let is_left = |c: &&Change| !in_use.iter().any(|used| used.at == c.at);
    let changes: Vec<&Change> = changes.iter().filter(is_left).collect();
    for change in &changes {
        let written = memory
            .bytes(change.at, change.before.len())
            .and_then(|there| {
                if there != change.before {
                    return Err(io::Error::other("its code has changed meanwhile"));
                }
                memory.write(change.at, &change.after)
            });
        if let Err(e) = written {
            failed = Some(e);
            break;
        }
        done += 1;
    }
    if failed.is_some() {
        for change in &changes[..done] {
            let _ = memory.write(change.at, &change.before);
        }
    }
    tracer.release();
    match failed {
        None => Ok(begun.elapsed()),
        Some(e) => Err(Failure::Busy(e.to_string())),
    }
}

fn take_out(pid: u32) -> Result<Told, Failure> {
    let memory = memory_of(pid)?;
    let found = survey(pid, target::class_of(pid).unwrap_or(Class::Long), &memory)?;
    let back = |s: &Site| {
        let there = match found.class {
            Class::Long => redirect(s, s.leads_to?)?,
            Class::Small => vec![call_gate(s, s.leads_to?)],
        };
        let swap = |c: Change| Change {
            before: c.after,
            after: c.before,
            ..c
        };
        Some(there.into_iter().rev().map(swap))
    };
    let sites = found.redirected().count() as u64;
    let mut changes: Vec<Change> = found.redirected().filter_map(back).flatten().collect();
    changes.extend(boot_left(pid, &found, &memory));
    let mut tracer = Tracer::new(pid, found.class);
    let pause = if changes.is_empty() {
        Duration::ZERO
    } else {
        exchange(&mut tracer, &memory, &changes)?
    };
    let pause_ns = nanoseconds(pause);
    Ok(Told::Detached { sites, pause_ns })
}
