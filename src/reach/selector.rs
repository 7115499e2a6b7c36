//! Which processes are meant: by number, by executable, by unit.
//!
//! Promise: an executable is a file of this machine (`seen_here`), and a base name that root says
//! means programs of root alone. Anybody can call a program of his by the name of another one, or
//! by its path in a namespace of his own; it is left alone, and named, with what would mean it.
//! A number means the program that has it when it is said: numbers are used again.
//! Not promised: what such a process does. Its user may have put code of his into it.

use super::attach::refusal::Refusal;
use super::program::{exe_of, executes, may_be_same, Incarnation};
use super::seen_here::Program;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use synclater_policy::glob::Glob;
use synclater_proc::maps;
use synclater_sys::each::{of_each, Looks};
use synclater_sys::{job, process, sharing};
use synclater_text::layout::{command_line, shown};

/// Processes to be attached.
#[derive(Default)]
pub struct ProcessSelector {
    /// These, and which program they executed when they were named.
    pub pids: Vec<(u32, Incarnation)>,
    /// Those that execute one of these.
    pub exes: Vec<Glob>,
    /// Those of control groups.
    pub groups: Groups,
}

/// Control groups, each with those below it.
#[derive(Default)]
pub struct Groups {
    /// Keeps `folders` what they are.
    pub root: Option<OwnedFd>,
    /// Ways through what is held of `root` (`session::hierarchy`).
    pub folders: Vec<PathBuf>,
}

/// Processes of control groups at one moment.
pub struct Members(BTreeSet<u32>);

impl ProcessSelector {
    /// Whether no process can be added any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.exes.is_empty() && self.groups.folders.is_empty()
    }

    /// Those that are there, but for ours.
    #[must_use]
    pub fn find(&self) -> BTreeSet<u32> {
        let named = self.pids.iter().map(|(pid, _)| *pid);
        let mut all: BTreeSet<u32> = named.filter(|pid| self.names(*pid)).collect();
        if !self.exes.is_empty() {
            all.extend(process::all().filter(|pid| self.executes(*pid)));
        }
        all.extend(self.members().0);
        if !self.is_closed() {
            all.retain(|pid| self.names(*pid) || !is_synclater(*pid));
        }
        all
    }

    /// Who is in the control groups now: a walk through all of them.
    #[must_use]
    pub fn members(&self) -> Members {
        let mut all = BTreeSet::new();
        for group in &self.groups.folders {
            members(group, &mut all);
        }
        Members(all)
    }

    /// Whether a process was named by its number, and still executes what it did then.
    #[must_use]
    pub fn names(&self, pid: u32) -> bool {
        let mut named = self.pids.iter().filter(|(named, _)| *named == pid);
        named.any(|(pid, program)| executes(*pid, *program))
    }

    /// Whether a process has a number that was named.
    #[must_use]
    pub fn has(&self, pid: u32) -> bool {
        self.pids.iter().any(|(named, _)| *named == pid)
    }

    /// Whether this program of a process is one of them. `members` are later than `program`: its
    /// number may have been another's before.
    #[must_use]
    pub fn means(&self, pid: u32, program: Incarnation, members: &Members) -> bool {
        let mut named = self.pids.iter();
        named.any(|(of, then)| *of == pid && may_be_same(program, *then))
            || self.includes(pid, members)
    }

    /// Whether a process that executes a program is one of them.
    #[must_use]
    pub fn includes(&self, pid: u32, members: &Members) -> bool {
        (self.executes(pid) || members.0.contains(&pid)) && !is_synclater(pid)
    }

    fn executes(&self, pid: u32) -> bool {
        fits(&self.exes, pid, |_| true)
    }

    /// Why one of those that are there, or that a program includes, is left alone.
    #[must_use]
    pub fn refusal(&self, pid: u32, members: &Members) -> Option<Refusal> {
        if self.names(pid) || members.0.contains(&pid) {
            return None;
        }
        why_not_meant(&self.exes, pid)
    }
}

/// Whether one of `exes` fits what a process executes.
fn fits(exes: &[Glob], pid: u32, counts: impl Fn(&Glob) -> bool) -> bool {
    // Where nobody is meant by that, nobody is asked.
    let exe = (!exes.is_empty()).then(|| exe(pid)).flatten();
    let Some(exe) = exe else {
        return false;
    };
    let text = exe.to_string_lossy();
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    let mut exes = exes.iter().filter(|glob| counts(glob));
    exes.any(|glob| glob.matches_exe(text.as_bytes()))
}

/// Whether one of `exes` means the program that a process executes.
#[must_use]
pub fn is_meant(exes: &[Glob], pid: u32) -> bool {
    fits(exes, pid, |_| true) && why_not_meant(exes, pid).is_none()
}

/// Why a program that one of `exes` fits is not meant: it is another mount namespace's, whatever
/// is at its path there. Or only its base name fits, we are root, and somebody else can change it.
fn why_not_meant(exes: &[Glob], pid: u32) -> Option<Refusal> {
    if !fits(exes, pid, |_| true) {
        return None;
    }
    let path = exe_of(pid);
    let exe = shown(&path);
    let program = Program::of(pid);
    let Some(program) = program.filter(|program| program.is_ours()) else {
        let why = format!("what it executes as {exe} is a file of its own mount namespace");
        return Some(Refusal::new(why, format!("--pid {pid}, or its --unit")));
    };
    if process::effective_user() != 0 || fits(exes, pid, Glob::is_of_path) {
        return None;
    }
    let why = program.is_roots().err()?;
    let why = format!("a base name means programs of root; of {exe}, {why}");
    // One with control characters nobody can copy.
    let by_path = (path == exe).then(|| format!("{}, or ", command_line(&["--exe".into(), path])));
    let try_ = format!("{}--pid {pid}", by_path.unwrap_or_default());
    Some(Refusal::new(why, try_))
}

/// Whether a process is a synclater, this one or another copy, which takes that name: what it
/// settles is to be settled then, in whatever session it is. A program that takes the name makes
/// its requests for real.
#[must_use]
pub fn is_synclater(pid: u32) -> bool {
    let name = process::text(format!("/proc/{pid}/comm"));
    is_of_this_program(pid) || name.is_ok_and(|name| name.starts_with("synclater"))
}

/// Whether a process is in a session inside of the one of `supervisor`, from which it descends:
/// one of its ancestors in between is a synclater. That session may have promised more, and neither
/// has to know of the other. So is one whose ancestors are too many, or go faster than we look.
#[must_use]
pub fn is_inside(pid: u32, supervisor: u32) -> bool {
    const TRIES: usize = 100;
    let mut tries = (0..TRIES).map(|_| inside_by_parents(pid, supervisor));
    tries.find_map(|told| told).unwrap_or(true)
}

/// The same; `None` where an ancestor has ended meanwhile: whom it left belongs to another one now,
/// to the supervisor of a session inside, say.
fn inside_by_parents(pid: u32, supervisor: u32) -> Option<bool> {
    // Whoever has many would keep the others waiting that are answered behind.
    const MOST: usize = 64;
    let mut at = pid;
    for _ in 0..MOST {
        match process::parent_of(at)? {
            0 | 1 => return Some(false),
            parent if parent == supervisor => return Some(false),
            parent => at = parent,
        }
        if is_of_this_program(at) || has_its_name(at) {
            return Some(true);
        }
    }
    Some(true)
}

/// Whether a process has the name that each synclater takes: its file may be called anything.
fn has_its_name(pid: u32) -> bool {
    let name = process::text(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == "synclater")
}

/// Whether a thread executes the program that this process executes.
#[must_use]
pub fn is_of_this_program(tid: u32) -> bool {
    id_of_exe(&tid.to_string()).is_some_and(|its| Some(its) == id_of_exe("self"))
}

/// The device and the number of the file that a process executes.
fn id_of_exe(of: &str) -> Option<(u32, u32, u64)> {
    use rustix::fs::{statx, AtFlags, StatxFlags, CWD};
    let exe = format!("/proc/{of}/exe");
    // A file system in user space is not asked: its server may wait for us.
    let file = statx(CWD, exe, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((file.stx_dev_major, file.stx_dev_minor, file.stx_ino))
}

/// Whether a process is one of this program that does something for a session, or for us: a job.
#[must_use]
pub fn is_job(pid: u32) -> bool {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let has_name = comm.starts_with(job::NAME.as_bytes());
    // A session's own supervisor may be of a file that is called so.
    has_name && is_fork_of_ours(pid)
}

/// Whether a process executes what this one does, and was forked by one that does: a job, or what
/// is about to be one, or to execute a command.
#[must_use]
pub fn is_fork_of_ours(pid: u32) -> bool {
    is_of_this_program(pid) && process::is_forked(pid)
}

/// What a process executes; `None` also of one that is just executing something else.
fn exe(pid: u32) -> Option<PathBuf> {
    if !sharing::has_code(pid) {
        return None;
    }
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Adds the processes of a control group and of those below it.
fn members(group: &Path, all: &mut BTreeSet<u32>) {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    all.extend(
        list.lines()
            .filter_map(|l| l.parse::<u32>().ok())
            .filter(|pid| *pid != 0),
    );
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    for folder in below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        members(&folder.path(), all);
    }
}

/// What a look at the memory of all processes of the machine has told.
#[derive(Debug, Default)]
pub struct Seen {
    /// Those that were looked for.
    pub found: Vec<u32>,
    /// Those that kept whoever looked waiting, or had no time left.
    pub silent: Vec<u32>,
    /// Those that may not be looked at.
    pub closed: Vec<u32>,
}

/// Processes that have a page mapped that lies, or lay, in a folder called like that of `page`: its
/// name is a random one, while its way may be another one in their view, or by a symbolic link.
#[must_use]
pub fn in_session(page: &Path) -> Seen {
    let folder = page.parent().and_then(Path::file_name);
    with_page(Duration::from_secs(1), Looks::Two, |name| {
        folder.is_some() && folder_of(name) == folder
    })
}

/// What the folder of a page is called.
fn folder_of(page: &str) -> Option<&OsStr> {
    let folder = page.strip_suffix("/page").map(Path::new);
    folder.filter(|f| f.is_absolute()).and_then(Path::file_name)
}

/// How long a command looks for what was left: it has no heartbeat.
const PATIENCE: Duration = Duration::from_secs(30);

/// Processes that have the page of a session mapped that was called `id`.
#[must_use]
pub fn left_by(id: &str) -> Seen {
    with_page(PATIENCE, Looks::Two, |name| {
        let folder = folder_of(name).map(OsStr::to_string_lossy);
        folder.is_some_and(|f| f == id || f.split('.').next() == Some(id))
    })
}

/// Processes that have a page mapped that lies, or lay, in none of these folders, by their names.
#[must_use]
pub fn outside(folders: &[PathBuf]) -> Vec<u32> {
    let seen = with_page(PATIENCE, Looks::One, |name| {
        let folder = folder_of(name);
        folder.is_some() && !folders.iter().any(|known| known.file_name() == folder)
    });
    seen.found
}

/// What a look at one process has told.
const NOT: u8 = 0;
const FOUND: u8 = 1;
const CLOSED: u8 = 2;

/// Of the whole machine.
fn with_page(patience: Duration, looks: Looks, is_it: impl Fn(&str) -> bool) -> Seen {
    let me = std::process::id();
    let all: Vec<u32> = process::all().filter(|pid| *pid != me).collect();
    let told = of_each(&all, patience, looks, |pid| look_at(pid, &is_it));
    let mut seen = Seen::default();
    for (pid, told) in all.into_iter().zip(told) {
        match told {
            Some(FOUND) => seen.found.push(pid),
            Some(CLOSED) => seen.closed.push(pid),
            Some(_) => {}
            None => seen.silent.push(pid),
        }
    }
    seen
}

/// Whether a process has a page mapped that is meant.
fn look_at(pid: u32, is_it: impl Fn(&str) -> bool) -> u8 {
    let Ok(maps) = process::text(format!("/proc/{pid}/maps")) else {
        // One that has ended has nothing any more.
        return if process::began(pid).is_some() {
            CLOSED
        } else {
            NOT
        };
    };
    // Mapped by the gate: otherwise the process was started with the library.
    let has = maps.contains("/memfd:synclater")
        && maps::read(&maps).iter().any(|m| is_it(m.name_of_file()));
    if has {
        FOUND
    } else {
        NOT
    }
}
