//! What a program needs before its first instruction, and how it is brought there.
//!
//! Promise: until the last step of a change nothing of it is in force, and that step is one store.

use super::begun::FollowOutcome;
use super::program::Program;
use super::{rights, Environment, FollowPlan, How, Manner};
use crate::reach::attach::{self, put_in_at_start, put_in_on_arrival, AttachOutcome};
use crate::reach::{launch, selector};
use rustix::fs::{statx, AtFlags, StatxFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use synclater_account::escape::{GAINED_RIGHTS, OF_ANOTHER};
use synclater_patching::notes;
use synclater_patching::start::aux;
use synclater_sys::process;
use synclater_sys::ptrace::Thread;

/// What programs are to begin with.
pub struct Start {
    plan: FollowPlan,
    /// Whoever is traced by root gains its rights all the same.
    is_root: bool,
    root: Option<Root>,
}

/// A root folder and the mounts below it. Ours stays what it is: nobody else can change either, but
/// by pivot_root(2), which leaves us where we were.
type Root = (PathBuf, (u32, u32, u64, u64));

impl Start {
    /// With this.
    pub fn new(plan: FollowPlan) -> Start {
        let is_root = process::effective_user() == 0;
        let root = root_of("self");
        Start {
            plan,
            is_root,
            root,
        }
    }

    /// Whether a program is meant that a process executes which is only watched.
    pub fn is_meant(&self, pid: u32) -> bool {
        let Manner::Sites(exes) = &self.plan.manner else {
            return true;
        };
        selector::is_meant(exes, pid)
    }

    /// Gives a program what it needs; its only thread stands still. Returns that.
    pub fn begin(&self, thread: Thread) -> (Option<Thread>, FollowOutcome) {
        let is_named = selector::is_synclater(thread.tid());
        match Program::of(&thread) {
            // It is to settle at once what it is told to.
            Ok(program) if is_named || program.has_note_of(notes::SYNCLATER) => {
                (Some(thread), FollowOutcome::Reached(How::Launch))
            }
            Ok(program) => self.reach(thread, &program),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                let why = "it may not be read: rights that it gives, it does not give to one that \
                           is traced (as root it does)";
                let begun = FollowOutcome::missed(thread.tid(), why);
                (Some(thread), begun)
            }
            Err(e) => {
                let begun = FollowOutcome::missed(thread.tid(), format!("its stack: {e}"));
                (Some(thread), begun)
            }
        }
    }

    fn reach(&self, thread: Thread, program: &Program) -> (Option<Thread>, FollowOutcome) {
        if !self.is_root && rights::would_be_gained(program.pid) {
            let (thread, begun) = rights::give_back(thread, program);
            return (Some(thread), begun);
        }
        let has_linker = program.stack.aux(aux::BASE).unwrap_or(0) != 0;
        let library = match &self.plan.manner {
            Manner::Environment(wanted) => self.give_library(&thread, program, wanted),
            Manner::Sites(_) => self.join_library(&thread, program),
        };
        let is_of_go = program.has_note_of(notes::GO);
        match library {
            Ok(how) if has_linker && !is_of_go => (Some(thread), FollowOutcome::Reached(how)),
            _ if self.is_inside(program) => {
                (Some(thread), FollowOutcome::missed(program.pid, OF_ANOTHER))
            }
            library => self.patch(thread, program, is_of_go, library),
        }
    }

    /// Whether a session inside of this one takes for real what its program asks for by itself: the
    /// gate would ask this session alone.
    fn is_inside(&self, program: &Program) -> bool {
        let supervisor = match &self.plan.manner {
            Manner::Environment(wanted) => wanted.supervisor,
            // None of what is attached descends from it.
            Manner::Sites(_) => 0,
        };
        selector::is_inside(program.pid, supervisor)
    }

    /// Has the sites of a program lead to the gate.
    fn patch(
        &self,
        thread: Thread,
        program: &Program,
        is_of_go: bool,
        library: Result<How, String>,
    ) -> (Option<Thread>, FollowOutcome) {
        let payload = match &self.plan.payload {
            Ok(payload) => payload,
            Err(why) => return (Some(thread), FollowOutcome::missed(program.pid, why)),
        };
        // What loads the library needs it at no other sites than Go's own.
        let entry = program.entry().filter(|_| library.is_err());
        let (thread, begun) = put_in_at_start(thread, entry, payload, &program.memory);
        let begun = match begun {
            attach::StartOutcome::Ahead(range) => FollowOutcome::Ahead(range),
            attach::StartOutcome::Done(AttachOutcome::Attached { sites: 0, .. }) if is_of_go => {
                FollowOutcome::missed(
                    program.pid,
                    "no system call of Go's was found (before 1.18? 32-bit?)",
                )
            }
            // ld.so, executed by its name, loads the library as ever, if it may.
            attach::StartOutcome::Done(AttachOutcome::Attached { sites: 0, .. })
                if program.is_linker() =>
            {
                library.map_or_else(
                    |why| FollowOutcome::missed(program.pid, why),
                    FollowOutcome::Reached,
                )
            }
            // Nothing in it could be answered.
            attach::StartOutcome::Done(AttachOutcome::Attached { sites: 0, .. }) => {
                FollowOutcome::Reached(library.unwrap_or(How::Launch))
            }
            attach::StartOutcome::Done(told) => FollowOutcome::of(program.pid, told),
        };
        (thread, begun)
    }

    /// Has the program find the library and the session in its environment.
    fn give_library(
        &self,
        thread: &Thread,
        program: &Program,
        wanted: &Environment,
    ) -> Result<How, String> {
        if program.stack.aux(aux::SECURE).unwrap_or(0) != 0 {
            return Err(GAINED_RIGHTS.into());
        }
        // Behind `$LIB` there are as many folders as classes of libraries.
        let library = wanted.library.ancestors().find(|p| p.ends_with("$LIB"));
        let library = library.and_then(Path::parent).unwrap_or(&wanted.library);
        let sees_both =
            self.is_our_root(program) || program.sees(&wanted.page) && program.sees(library);
        if !sees_both {
            return Err("its root folder hides the library".into());
        }
        write(thread, program, &variables(program, wanted))
    }

    /// Has a program that loads the library for a session inside of this one join this one, too:
    /// the library answers, and asks no gate. It stays joined when it is let go of: then all of it
    /// is real.
    fn join_library(&self, thread: &Thread, program: &Program) -> Result<How, String> {
        let payload = self.plan.payload.as_ref()?;
        let is_inside = launch::has_one_of_ours(program.variable("LD_PRELOAD"));
        let pages = program.variable("SYNCLATER_PAGE");
        let Some(pages) = pages.filter(|p| is_inside && !p.is_empty()) else {
            return Err("it is to be let go of again".into());
        };
        if program.stack.aux(aux::SECURE).unwrap_or(0) != 0 {
            return Err(GAINED_RIGHTS.into());
        }
        let page = payload.page_path();
        if !self.is_our_root(program) && !program.sees(page) {
            return Err("its root folder hides the session's memory".into());
        }
        let all = with_ours(pages, page.as_os_str());
        if all == pages {
            return Ok(How::Launch);
        }
        write(thread, program, &[("SYNCLATER_PAGE", all.into_vec())])
    }

    /// Whether its root folder and its mounts are ours.
    fn is_our_root(&self, program: &Program) -> bool {
        self.root.is_some() && root_of(&program.pid.to_string()) == self.root
    }

    /// Goes on with a program whose libraries are there.
    /// Returns its other threads that have ended meanwhile, too.
    pub fn arrive(&self, thread: Thread) -> (Option<Thread>, FollowOutcome, Vec<u32>) {
        let pid = thread.tid();
        match self.plan.payload.as_ref() {
            Ok(payload) => {
                let (thread, told, gone) = put_in_on_arrival(thread, payload);
                (thread, FollowOutcome::of(pid, told), gone)
            }
            Err(why) => (Some(thread), FollowOutcome::missed(pid, why), Vec::new()),
        }
    }
}

/// Has a program find these in its environment.
fn write(thread: &Thread, program: &Program, variables: &[Variable]) -> Result<How, String> {
    if variables.is_empty() {
        return Ok(How::Launch);
    }
    let (sp, bytes) = program.stack.with(variables);
    program.memory.write(sp, &bytes).map_err(cannot_write)?;
    let registers = thread.registers().map_err(cannot_write)?;
    thread
        .send(&registers.with_stack(sp))
        .map_err(cannot_write)?;
    Ok(How::Follow)
}

fn cannot_write(e: std::io::Error) -> String {
    format!("its stack cannot be written: {e}")
}

/// Name and value.
type Variable = (&'static str, Vec<u8>);

/// Variables that the program lacks, or that have other values.
fn variables(program: &Program, wanted: &Environment) -> Vec<Variable> {
    let before = program.variable("LD_PRELOAD");
    let preload = launch::with_one_of_ours(&wanted.library, before);
    let asan_options = launch::asan_options(program.variable("ASAN_OPTIONS"));
    let pages = program.variable("SYNCLATER_PAGE").unwrap_or_default();
    let all = [
        ("LD_PRELOAD", preload),
        ("ASAN_OPTIONS", asan_options),
        ("SYNCLATER_PAGE", with_ours(pages, &wanted.pages)),
    ];
    all.into_iter()
        .filter(|(name, value)| program.variable(name) != Some(value))
        .map(|(name, value)| (name, value.into_vec()))
        .collect()
}

/// The pages that a program names, and behind them those of ours that it does not: a session inside
/// of this one has some, and does not know of it where its environment was cleared.
fn with_ours(pages: &OsStr, ours: &OsStr) -> OsString {
    let mut all: Vec<&[u8]> = Vec::new();
    if !pages.is_empty() {
        all.push(pages.as_bytes());
    }
    let ours = ours.as_bytes().split(is_colon);
    all.extend(ours.filter(|page| !names(pages, page)));
    OsString::from_vec(all.join(&b':'))
}

/// Whether a page is one of these.
fn names(pages: &OsStr, page: &[u8]) -> bool {
    pages.as_bytes().split(is_colon).any(|p| p == page)
}

fn is_colon(byte: &u8) -> bool {
    *byte == b':'
}

/// The root folder and the mounts of a process. Nobody is asked who serves a file system.
fn root_of(pid: &str) -> Option<Root> {
    let mounts = std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let what = StatxFlags::INO | StatxFlags::MNT_ID;
    let seen = statx(CWD, format!("/proc/{pid}/root"), flags, what).ok()?;
    let device = (seen.stx_dev_major, seen.stx_dev_minor);
    Some((mounts, (device.0, device.1, seen.stx_ino, seen.stx_mnt_id)))
}
