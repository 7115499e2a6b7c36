//! Attach: the shim's decisions into a running, unmodified process, and out again byte for byte.
//!
//! Promise: a process is attached whole or left as it was; it stands still only while five bytes at
//! each of its system-call sites are exchanged. Whatever traces it is a process of its own that
//! ends soon: a thread deep inside a system call is let go of then.
//!
//! What is put into a process stays mapped for as long as it lives: a thread may be on its way
//! through it at any time. The next session uses it again.
//!
//! Map: [`target`] says whether it can be done, `owner` whose a process is, [`code`] where,
//! [`tracer`] stops threads and sends them on errands; `filters` reads what forbids calls to it,
//! and `sandbox` judges that; [`class`] is what code it consists of, [`refusal`] why it is left
//! alone; `change` exchanges bytes, `rings` puts back what was put off in rings; `work` is the
//! process that does it for one that runs, `begin` does it for one that has just been executed.

mod alone;
mod begin;
mod change;
pub mod class;
mod code;
mod filters;
mod owner;
pub mod refusal;
mod rings;
mod sandbox;
pub mod target;
pub mod tracer;
mod work;

use crate::reach::program::{self, Incarnation};
use crate::reach::status;
use crate::session::shared::Shared;
use alone::Alone;
pub use begin::{put_in_at_start, put_in_on_arrival, Entry, StartOutcome};
use change::{
    boot_left, call_gate, exchange, exchange_if, fill_places, moved, redirect, spoiled, taken_back,
    unread, Change,
};
use class::Class;
use code::{survey, Library, Remembered, Site, Survey};
use filters::Filters;
pub use owner::SourceSession;
use refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::gate::{Errand, Marks};
use synclater_shim::page::Slots;
use synclater_sys::clock::LeaseClock;
use synclater_sys::process;
use synclater_sys::remote::{self, Memory};
use synclater_sys::sharing::MemorySurvey;
use target::{Open, Target};
use tracer::{Boot, Failure, Still, Tracer};
pub use work::Work;

/// What a session brings into its processes.
pub struct Payload {
    library: File,
    /// The same for i386 programs, where there is one.
    small: Option<File>,
    page: File,
    shared: &'static Shared,
    page_size: u32,
    slots_size: u32,
    /// Seccomp filters that a process of the session has at its start.
    filters: u32,
    /// Whether what the processes execute is reached, too.
    followed: bool,
    /// Device and inode of the page.
    mapped: Option<(u64, u64)>,
    clock: LeaseClock,
    /// Sites of what was executed before.
    remembered: Remembered,
}

/// What became of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum AttachOutcome {
    /// It is attached.
    Attached {
        /// Sites that lead to the gate.
        sites: u64,
        /// Sites that are too far away for a jump, or have an unknown form.
        far: u64,
        /// What it had open already.
        open: Open,
    },
    /// It is not attached any more; its code is what it was, but for what `marked` says.
    Detached {
        /// Sites that were restored.
        sites: u64,
        /// Descriptors that lost their `O_SYNC` meanwhile: while there are some, the sites that
        /// may write to them lead through the gate still, which syncs what is written.
        marked: u64,
    },
    /// Not now; a moment later it may work.
    Busy {
        /// Why.
        why: String,
    },
    /// Not let go of: it is in another session, which lives.
    Others {
        /// Whose, and who can.
        refusal: Refusal,
    },
    /// Which dead session has left it leading through the gate.
    Left {
        /// Its name, if there is one.
        session: Option<String>,
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
    let (image, _) = class::image(Class::Long).ok_or_else(|| code::no_gate(Class::Long))?;
    in_memory(image).map(|_| ())
}

/// A file of memory that may be executed, and has this image.
fn in_memory(image: &[u8]) -> Result<File, Refusal> {
    remote::executable_memory(code::NAME, image).map_err(|e| no_memory(&e))
}

impl Payload {
    /// What `shared` is made of, for processes of which it is said whether what they execute is
    /// reached, too.
    ///
    /// # Errors
    /// Why processes cannot be attached at all: no gate for this machine, no memory to execute.
    pub fn pack(shared: &'static Shared, followed: bool) -> Result<Payload, Refusal> {
        let (image, _) = class::image(Class::Long).ok_or_else(|| code::no_gate(Class::Long))?;
        let library = in_memory(image)?;
        let small = class::image(Class::Small).map(|(image, _)| in_memory(image));
        let small = small.transpose()?;
        let page = File::open(&shared.path)
            .map_err(|e| Refusal::new(e.to_string(), "free a descriptor, and try again"))?;
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
        Ok(Payload {
            library,
            small,
            page,
            shared,
            page_size,
            slots_size,
            filters: shared.page().filters.load(SeqCst),
            followed,
            mapped: owner::mapped_as(shared.page()),
            clock,
            remembered: Remembered::default(),
        })
    }

    /// Where its page lies.
    #[must_use]
    pub fn page_path(&self) -> &std::path::Path {
        &self.shared.path
    }

    /// The session that this is brought for.
    #[must_use]
    pub fn whose(&self) -> SourceSession {
        SourceSession {
            page: Some(self.mapped),
            clock: self.clock,
        }
    }

    /// Everything that is open.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = [&self.library, &self.page].into_iter().chain(&self.small);
        all.chain(self.shared.slots_files()).map(AsFd::as_fd)
    }

    /// Library, page and the slots of its user for process `pid`, which stands still.
    ///
    /// # Errors
    /// Where the session has too many users.
    fn fds_for(&self, class: Class, pid: u32) -> Result<[BorrowedFd<'_>; 3], Refusal> {
        let small = self.small.as_ref().filter(|_| class == Class::Small);
        let library = small.unwrap_or(&self.library);
        let user = status::user_of(pid, self.shared.user()).ok_or_else(refusal::has_ended)?;
        let room = self.shared.room_of(user).ok_or_else(|| {
            let most = self.shared.others().len();
            let why = format!("{most} other users are in the session, which has no room for more");
            Refusal::new(why, format!("synclater attach --pid {pid}"))
        })?;
        let slots = self.shared.slots_file(room);
        Ok([library.as_fd(), self.page.as_fd(), slots.as_fd()])
    }
}

impl From<Failure> for AttachOutcome {
    fn from(failure: Failure) -> AttachOutcome {
        match failure {
            Failure::Busy(why) => AttachOutcome::Busy { why },
            Failure::Refused(refusal) => AttachOutcome::Refused { refusal },
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

/// The dead session that has left a process leading through the gate, with more than what
/// descriptors need that lost their `O_SYNC`; `None` also where we may not look.
fn left_by(pid: u32, clock: LeaseClock) -> Option<String> {
    let memory = Memory::open(pid).ok()?;
    let class = class::class_of(pid)?;
    let found = survey(pid, class, &memory).ok()?;
    let id = owner::led_to(&found)?;
    let library = found.library.as_ref()?;
    owner::is_free(library, &found, &memory, clock).ok()?;
    // One that has ended between the two may have let go of it before; and another one may attach
    // to it while it is looked at.
    let found = survey(pid, class, &memory).ok()?;
    let still = owner::led_to(&found)?;
    (still == id && owner::is_as_it_was(pid, &found)).then_some(id)
}

fn memory_of(pid: u32) -> Result<Memory, Refusal> {
    Memory::open(pid).map_err(|e| {
        let why = format!("its memory may not be written ({e})");
        Refusal::new(why, format!("sudo synclater attach --pid {pid}"))
    })
}

/// Why a process that was attached is out of reach.
fn cannot_see(pid: u32, e: &io::Error) -> Refusal {
    if process::is_alive(pid) && e.kind() == io::ErrorKind::PermissionDenied {
        let why = format!("it hides its memory by now (PR_SET_DUMPABLE): {e}");
        return Refusal::new(why, "become root (sudo)");
    }
    Refusal::new(format!("its memory: {e}"), "look whether it is still there")
}

/// Its memory cannot be reached.
fn lost(e: io::Error) -> Failure {
    Failure::Busy(format!("its memory: {e}"))
}

fn put_in(
    pid: u32,
    program: Incarnation,
    is_new: bool,
    payload: &Payload,
    known: &MemorySurvey,
    still: &Still,
) -> Result<AttachOutcome, Failure> {
    let tracer = status::tracer_of(pid);
    let comm = (tracer != 0).then(|| process::text(format!("/proc/{tracer}/comm")));
    if comm.is_some_and(|name| name.is_ok_and(|name| name.starts_with("synclater"))) {
        // A piece of work like this one, at the program before, say.
        return Err(Failure::Busy(format!("it is traced by {tracer}")));
    }
    let alone = Alone::found(pid, known)?;
    let target = target::look(pid)?;
    let memory = memory_of(pid)?;
    let found = survey(pid, target.class, &memory)?;
    if let Some(library) = &found.library {
        if let Some(sites) = owner::is_ours(library, &found, payload.mapped) {
            // Forked by one that is attached.
            return Ok(AttachOutcome::Attached {
                sites,
                far: 0,
                open: target::open(pid),
            });
        }
        owner::is_free(library, &found, &memory, payload.clock)?;
    }
    alone.has_its_own_table()?;
    if !found.is_ready() && (is_new || program::is_young(pid)) {
        return Err(Failure::Busy("its libc is not there yet".into()));
    }
    let unseen = found.unseen(pid, &memory);
    let is_filtered = target.is_filtered;
    let mut plan = Plan::make(pid, target, found, payload, &memory)?;
    plan.far += unseen;
    plan.alone = alone;
    let mut tracer = Tracer::new(pid, plan.found.class, still);
    tracer.hold()?;
    // From here on its number is nobody else's.
    if !program::executes(pid, program) {
        return Err(refusal::has_ended().into());
    }
    if !plan.found.still_holds(pid, &memory) || !owner::is_as_it_was(pid, &plan.found) {
        return Err(Failure::Busy("another session attaches to it".into()));
    }
    if is_filtered {
        plan.filters.check(&mut tracer)?;
    }
    plan.carry_out(&mut tracer, payload, &memory)
}

/// What is to be done to a process.
struct Plan<'a> {
    pid: u32,
    found: Survey,
    sites: Vec<Site>,
    /// Sites that cannot be.
    far: u64,
    open: Open,
    errand: Errand,
    /// The filters that its threads had.
    filters: Filters,
    alone: Alone<'a>,
}

impl Plan<'_> {
    fn make(
        pid: u32,
        target: Target,
        found: Survey,
        payload: &Payload,
        memory: &Memory,
    ) -> Result<Self, Refusal> {
        let heap = code::heap(pid, &found.mappings);
        let (image, sites) = found.place_library(heap)?;
        let mut open = target::open(pid);
        if sites.iter().any(|s| s.function.is_some()) {
            // What liburing submits comes by.
            open.rings = 0;
        }
        let errand = errand(&target, open, &found, image, payload, memory)?;
        let far = (found.sites.len() - sites.len()) as u64;
        Ok(Plan {
            pid,
            filters: Filters::new(found.class),
            far,
            found,
            sites,
            open,
            errand,
            alone: Alone::begins(),
        })
    }

    fn carry_out(
        mut self,
        tracer: &mut Tracer,
        payload: &Payload,
        memory: &Memory,
    ) -> Result<AttachOutcome, Failure> {
        let (pid, found) = (self.pid, &self.found);
        let begins = tracer.is_at_start();
        let was_left = boot_left(pid, found, memory, true).is_some();
        let brought = bring(tracer, found, &self.errand, payload, memory);
        if brought.is_err() {
            let left = boot_left(pid, found, memory, was_left);
            let left: Vec<Change> = left.into_iter().collect();
            let _ = left.is_empty() || exchange(tracer, memory, &left).is_ok();
        }
        let library = brought?;
        let mut changes = fill_places(&library, found.class, &self.sites, memory)?;
        if found.library.is_some() {
            changes.extend(spoiled(&library, memory));
            changes.extend(unread(found));
        }
        if !begins {
            // One that begins is still in it.
            changes.extend(boot_left(pid, found, memory, was_left));
        }
        if begins {
            // It has stood still since they were read.
            exchange(tracer, memory, &changes)?;
        } else {
            let (filters, alone) = (&mut self.filters, &mut self.alone);
            exchange_if(tracer, memory, &changes, |tracer| {
                recheck(tracer, filters, alone)
            })?;
        }
        Ok(AttachOutcome::Attached {
            sites: self.sites.len() as u64,
            far: self.far,
            open: self.open,
        })
    }
}

/// Whether a process may be changed still, whose threads stand still.
///
/// # Errors
/// Why not.
fn recheck(tracer: &Tracer, filters: &mut Filters, alone: &mut Alone<'_>) -> Result<(), Failure> {
    alone.still()?;
    alone.has_its_own_table()?;
    tracer.standing().try_for_each(sandbox::check_dispatch)?;
    let mut standing = tracer.standing();
    standing.try_for_each(filters::restricts_nothing)?;
    filters.recheck(tracer)
}

/// What a thread of the process is to do.
fn errand(
    target: &Target,
    open: Open,
    found: &Survey,
    image: u64,
    payload: &Payload,
    memory: &Memory,
) -> Result<Errand, Refusal> {
    let (_, head) = class::image(found.class).ok_or_else(|| code::no_gate(found.class))?;
    let (slots, page) = code::shared(image, &head);
    let marks = found.library.as_ref().map(|library| marks(library, memory));
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
        page_size: payload.page_size,
        slots_size: payload.slots_size,
        pid: target.own_pid,
        pid_ns: target.pid_ns,
        // An earlier session left some sites as they were, or marked what is open still.
        marked: found.redirected().next().is_some() || marks.unwrap_or_default().here,
        followed: payload.followed,
        rings: open.rings > 0,
        exe: target.exe.clone().into_bytes(),
    })
}

/// Brings the library where it is not there yet, and has it join the session.
fn bring(
    tracer: &mut Tracer,
    found: &Survey,
    errand: &Errand,
    payload: &Payload,
    memory: &Memory,
) -> Result<Library, Failure> {
    let (bytes, head) = class::image(found.class).ok_or_else(|| code::no_gate(found.class))?;
    // A program that has just begun has the whole of its stack.
    let begins = tracer.is_at_start();
    let fds = payload.fds_for(found.class, tracer.pid())?;
    let code = head.boot_code(bytes);
    let (library, at, to_be_written) = match &found.library {
        Some(library) => (library.clone(), library.image + u64::from(head.boot), None),
        None => {
            let library = Library {
                image: errand.image,
                head,
                places: vec![None; head.places()],
            };
            (library, room_for(found, code, memory)?, Some(code))
        }
    };
    let also = found.slack(memory, code);
    let boot = Boot {
        at,
        to_be_written,
        also,
    };
    tracer.run(memory, &boot, &head, errand, fds, |stack| {
        begins || found.has_room_on(stack)
    })?;
    Ok(library)
}

/// Where there is room for the boot code.
fn room_for(found: &Survey, code: &[u8], memory: &Memory) -> Result<u64, Refusal> {
    found.slack(memory, code).ok_or_else(|| {
        let why = "there is no room behind any of its code for the first instructions";
        Refusal::new(why, "start it under synclater: synclater run -- COMMAND")
    })
}

fn take_out(
    pid: u32,
    whose: SourceSession,
    known: &MemorySurvey,
    still: &Still,
) -> Result<AttachOutcome, Failure> {
    let memory = Memory::open(pid).map_err(|e| cannot_see(pid, &e))?;
    let mut alone = Alone::found(pid, known)?;
    let found = survey(pid, class::class_of(pid).unwrap_or(Class::Long), &memory)?;
    if let Some(library) = &found.library {
        let is_its = matches!(whose.page, Some(page) if owner::has_page(library, &found, page));
        // Whose supervisor is dead may be taken out by anybody.
        if !is_its {
            match owner::is_free(library, &found, &memory, whose.clock) {
                Err(Failure::Refused(refusal)) => return Ok(AttachOutcome::Others { refusal }),
                free => free?,
            }
        }
    }
    let mut tracer = Tracer::new(pid, found.class, still);
    let mut marked = 0;
    if let Some(library) = found.library.as_ref().filter(|l| may_be_marked(l, &memory)) {
        // The relaxation is over: who opens from now on leaves the flag, and who has just marked
        // what it has opened brings it back.
        tracer.stop_all()?;
        marked = target::marked(pid) + u64::from(marks(library, &memory).lost);
    }
    let sites = found.given_back(marked).count() as u64;
    let of_sites = found.given_back(marked).filter_map(|s| {
        Some(taken_back(match found.class {
            Class::Long => redirect(s, s.leads_to?)?,
            Class::Small => vec![call_gate(s, s.leads_to?)],
        }))
    });
    let mut changes: Vec<Change> = of_sites.flatten().collect();
    if let Some(library) = &found.library {
        changes.extend(spoiled(library, &memory));
        changes.extend(unread(&found));
        if marked == 0 {
            changes.extend(moved(pid, library, &found, &memory)?);
        }
    }
    changes.extend(boot_left(pid, &found, &memory, true));
    if changes.is_empty() {
        tracer.release();
    } else {
        exchange_if(&mut tracer, &memory, &changes, |_| {
            let_go_of_rings(pid, &found, &mut alone, &memory)
        })?;
    }
    Ok(AttachOutcome::Detached { sites, marked })
}

/// Puts back what was put off in the rings of a process that stands still.
///
/// # Errors
/// Why nothing of it may be changed any more.
fn let_go_of_rings(
    pid: u32,
    found: &Survey,
    alone: &mut Alone<'_>,
    memory: &Memory,
) -> Result<(), Failure> {
    if !owner::is_as_it_was(pid, found) {
        return Err(Failure::Busy("another session attaches to it".into()));
    }
    alone.still()?;
    if let Some(library) = &found.library {
        rings::put_back(pid, memory, library)?;
    }
    Ok(())
}

/// Whether any process of the session has taken `O_SYNC` off, as far as that can be told.
fn may_be_marked(library: &Library, memory: &Memory) -> bool {
    let (slots, _) = library.shared();
    let at = slots + std::mem::offset_of!(Slots, stripped) as u64;
    let any = memory.bytes(at, 4).map_or(true, |bytes| bytes != [0; 4]);
    any || marks(library, memory).here
}

/// Where they lie in the process.
fn marks_at(library: &Library) -> u64 {
    library.image + u64::from(library.head.marks)
}

/// What the process notes of that by itself; where that cannot be read, it may be all of it.
fn marks(library: &Library, memory: &Memory) -> Marks {
    const IN_DOUBT: Marks = Marks {
        here: true,
        lost: true,
    };
    memory
        .bytes(marks_at(library), Marks::SIZE)
        .map_or(IN_DOUBT, |b| Marks::read(&b))
}
