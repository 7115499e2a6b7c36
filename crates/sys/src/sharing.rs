//! Which processes have one memory without being threads of each other: by clone(2) with
//! `CLONE_VM`, or vfork(2). And which have one table of descriptors (`CLONE_FILES`).
//!
//! Promise: whoever has the memory of a process while that is looked for, and whom it makes
//! meanwhile, is found: it is looked until nobody was met that could not be compared.
//! Relies on: numbers of processes that are given away in their order (but clone3(2) with
//! `set_tid`), until they begin anew; a process that runs in another memory never coming to run in
//! this one.
//!
//! None of another user is compared, nor one that has code of another size: kcmp(2), as
//! /proc/PID/stat, waits for one that is just executing something (`exec_update_lock`, Linux 6.18),
//! and that may wait for whom it likes.

use crate::process;
use crate::threads;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often /proc is listed, at most, for one that has not made a process that is not compared.
const LISTS: usize = 50;

/// Whether two processes can be compared here: kcmp(2) may be missing, or forbidden.
#[must_use]
pub fn can_compare() -> bool {
    let us = std::process::id();
    compare(us, us) == Both::OneMemory
}

/// Whether a process is not just executing something: then whoever asks for its `stat` or `exe`
/// waits, on Linux 6.18, for as long as that takes. It has no code yet, as the kernel's have.
#[must_use]
pub fn has_code(pid: u32) -> bool {
    code_pages(&pid.to_string()).is_some_and(|pages| pages != 0)
}

/// Whose memory a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    /// Its own.
    ItsOwn,
    /// That of this one.
    ThatOf(u32),
    /// It is not known: this one may not be compared (kcmp(2) wants its group, too).
    NotCompared(u32),
    /// It is not known: others come and go too fast.
    Unknown,
}

/// What two processes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Both {
    OneMemory,
    OneTable,
    TheirOwn,
    /// One is gone, or has no code: it may have made another one.
    Gone,
    /// They may not be compared.
    Hidden,
}

/// Looks for whoever has the memory of one process.
#[derive(Debug)]
pub struct Search<'a> {
    pid: u32,
    program: Program,
    known: &'a MemorySurvey,
    seen: HashSet<u32>,
    /// The number that was given away last before all were looked at.
    last: Option<u32>,
    table_of: Option<u32>,
    /// A thread for each table of descriptors that it has.
    tables: Vec<u32>,
}

impl<'a> Search<'a> {
    /// Of a process, beside those that are `known`. `None` where it has no code (it is of the
    /// kernel, or has ended), or is none that we may look at.
    #[must_use]
    pub fn of(pid: u32, known: &'a MemorySurvey) -> Option<Search<'a>> {
        let program = Program::of(pid).filter(|p| p.thread == pid)?;
        (compare(pid, pid) == Both::OneMemory).then(|| Search {
            pid,
            program,
            known,
            seen: HashSet::from([pid]),
            last: None,
            table_of: None,
            tables: tables_of(pid),
        })
    }

    /// One that was met that has its table of descriptors, and a memory of its own.
    #[must_use]
    pub fn table_of(&self) -> Option<u32> {
        self.table_of
    }

    /// Looks; the next time at those alone that have begun since.
    pub fn look(&mut self) -> Has {
        // One that is being made has its number, and is not listed yet.
        self.last = None;
        for _ in 0..LISTS {
            let Ok(fresh) = self.fresh() else {
                return Has::Unknown;
            };
            let mut has_missed = false;
            for other in fresh {
                self.seen.insert(other);
                match self.compare(other) {
                    Both::OneMemory => return Has::ThatOf(other),
                    Both::Hidden => return Has::NotCompared(other),
                    Both::OneTable => self.table_of = Some(other),
                    Both::TheirOwn => {}
                    // It may have had the memory, and have made one that has it, not listed.
                    Both::Gone => has_missed = true,
                }
            }
            if !has_missed {
                return Has::ItsOwn;
            }
        }
        Has::Unknown
    }

    /// Those that were not looked at: with numbers behind the last one, or all that are listed.
    fn fresh(&mut self) -> io::Result<Vec<u32>> {
        /// More are listed sooner than tried.
        const TRIED: u32 = 1000;
        let last = std::mem::replace(&mut self.last, last_number());
        if let (Some(last), Some(now)) = (last, self.last) {
            if (last..=last.saturating_add(TRIED)).contains(&now) {
                // Those of threads are among them.
                return Ok((last + 1..=now).filter(|n| !self.has_thread(*n)).collect());
            }
        }
        let mut fresh = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let number = entry?.file_name().to_str().and_then(|n| n.parse().ok());
            fresh.extend(number.filter(|n| !self.seen.contains(n)));
        }
        Ok(fresh)
    }

    fn has_thread(&self, tid: u32) -> bool {
        Path::new(&format!("/proc/{}/task/{tid}", self.pid)).exists()
    }

    /// Whether another process has its memory.
    fn compare(&self, other: u32) -> Both {
        let known = self.known.programs.get(&other).copied();
        let Some(program) = known.or_else(|| Program::of(other)) else {
            return Both::Gone;
        };
        if program.pages != self.program.pages {
            return Both::TheirOwn;
        }
        let of_memory = if program.may_have_memory_of(&self.program) {
            compare(self.pid, program.thread)
        } else {
            // Another user: it may have become that, and kept its descriptors.
            Both::TheirOwn
        };
        match of_memory {
            Both::TheirOwn if self.has_a_table_of(other) => Both::OneTable,
            both => both,
        }
    }

    /// Whether a thread of each has one table of descriptors: a thread may have one of its own.
    fn has_a_table_of(&self, other: u32) -> bool {
        let theirs = threads::of(other);
        self.tables.iter().any(|ours| {
            let mut theirs = theirs.iter();
            theirs.any(|other| threads::share_descriptors(*ours, *other))
        })
    }
}

/// What a process executes, and for whom. Two that differ in that have not one memory, and whoever
/// has another one does not come to have it.
#[derive(Clone, Copy, Debug)]
struct Program {
    /// A thread that has not ended.
    thread: u32,
    /// Pages of code; 0 where it has none: it has ended, is just executing something, or is the
    /// kernel's.
    pages: u64,
    /// Those that it is, acts as, was, and opens files as.
    users: [u32; 4],
}

impl Program {
    /// As it is now; `None` where it is gone, or has no code.
    fn of(pid: u32) -> Option<Program> {
        let (thread, pages) = with_code(pid)?;
        let users = process::users_of(pid).try_into().ok()?;
        Some(Program {
            thread,
            pages,
            users,
        })
    }

    /// As it is now, or without code: such a one has its own memory, or none, and one that is gone
    /// is met by nobody.
    fn of_any(pid: u32) -> Program {
        Program::of(pid).unwrap_or(Program {
            thread: pid,
            pages: 0,
            users: [0; 4],
        })
    }

    /// Whether two are to be compared. A server acts as one user and the other, in turn.
    fn may_have_memory_of(&self, other: &Program) -> bool {
        self.pages == other.pages && self.users.iter().any(|u| other.users.contains(u))
    }
}

/// What is known of all processes at one moment: for those who ask of many, one after the other.
#[derive(Debug, Default)]
pub struct MemorySurvey {
    programs: HashMap<u32, Program>,
    as_of: Option<Instant>,
}

impl MemorySurvey {
    /// Nobody is.
    #[must_use]
    pub fn nobody() -> MemorySurvey {
        MemorySurvey::default()
    }

    /// As they are now.
    #[must_use]
    pub fn now() -> MemorySurvey {
        MemorySurvey {
            as_of: Some(Instant::now()),
            programs: process::all()
                .map(|pid| (pid, Program::of_any(pid)))
                .collect(),
        }
    }

    /// Looks anew where that was more than a moment ago: numbers are used again.
    pub fn renew(&mut self) {
        const OLD: Duration = Duration::from_secs(1);
        if self.as_of.is_none_or(|at| at.elapsed() > OLD) {
            *self = MemorySurvey::now();
        }
    }
}

/// A thread for each table of descriptors that threads of a process have: most have one.
fn tables_of(pid: u32) -> Vec<u32> {
    let mut tables: Vec<u32> = Vec::new();
    for tid in threads::of(pid) {
        if !tables
            .iter()
            .any(|one| threads::share_descriptors(*one, tid))
        {
            tables.push(tid);
        }
    }
    tables
}

/// The number that a process or thread was given last in our pid namespace (proc_loadavg(5)).
fn last_number() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.trim_end().rsplit(' ').next()?.parse().ok()
}

/// A thread of a process that has code, and how many pages; `None` where none has: it has ended, is
/// just executing something, or is the kernel's.
fn with_code(pid: u32) -> Option<(u32, u64)> {
    match code_pages(&pid.to_string())? {
        // One whose first thread has ended has none by its own number.
        0 => threads::of(pid).into_iter().find_map(|tid| {
            let pages = code_pages(&format!("{pid}/task/{tid}"))?;
            (pages != 0).then_some((tid, pages))
        }),
        pages => Some((pid, pages)),
    }
}

/// How many pages of code a process or thread has (`text` of statm, proc(5)); nobody waits for it.
fn code_pages(name: &str) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{name}/statm")).ok()?;
    statm.split(' ').nth(3)?.parse().ok()
}

/// What two threads have, of which the first one's memory can be read.
fn compare(a: u32, b: u32) -> Both {
    const KCMP_VM: libc::c_int = 1;
    match threads::compare(a, b, KCMP_VM) {
        Ok(0) => Both::OneMemory,
        Ok(_) => Both::TheirOwn,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            // That is so of a memory, and the first one's is not.
            if is_hidden(b) || differ_in_size(a, b) {
                Both::TheirOwn
            } else {
                Both::Hidden
            }
        }
        Err(_) => Both::Gone,
    }
}

/// Whether two differ in the size of their memory, of which anybody is told: then it is not one.
fn differ_in_size(a: u32, b: u32) -> bool {
    /// One that is used meanwhile has another size from look to look.
    const LOOKS: usize = 20;
    (0..LOOKS).all(|_| {
        let (Some(before), Some(other), Some(after)) = (size(a), size(b), size(a)) else {
            return false;
        };
        before == after && before != other
    })
}

/// The sizes of a process's memory, and of its parts (proc_pid_status(5)).
fn size(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let lines = text.lines();
    let sizes = lines.filter(|line| line.starts_with("Vm") || line.starts_with("Rss"));
    Some(sizes.map(str::to_owned).collect())
}

/// Whether a process hides its memory (PR_SET_DUMPABLE): its files in /proc are root's then.
fn is_hidden(pid: u32) -> bool {
    let about = rustix::fs::stat(format!("/proc/{pid}/status"));
    process::effective_user() != 0 && about.is_ok_and(|s| s.st_uid == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn waiting() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).spawn().expect("it starts")
    }

    /// It has been executed.
    fn begun(child: Child) -> Child {
        let us = code_pages("self");
        let has_begun = || {
            let pages = code_pages(&child.id().to_string());
            pages.is_some_and(|p| p != 0) && pages != us
        };
        let begun = Instant::now();
        while !has_begun() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        child
    }

    /// Processes of one program.
    fn some() -> Vec<Child> {
        (0..20).map(|_| begun(waiting())).collect()
    }

    fn end(all: Vec<Child>) {
        for mut child in all {
            child.kill().expect("it ends");
            child.wait().expect("it has ended");
        }
    }

    #[test]
    fn two_of_one_memory_never_differ_in_size() {
        let us = std::process::id();
        let grows = || vec![1u8; 1 << 20].len();
        assert!((0..1000).all(|_| grows() != 0 && !differ_in_size(us, us)));
        let mut all = some();
        let mut bash = Command::new("bash");
        bash.args(["-c", "read end"]).stdin(Stdio::piped());
        all.push(begun(bash.spawn().expect("it starts")));
        let [cat, bash] = [0, all.len() - 1].map(|k: usize| all[k].id());
        assert!(!differ_in_size(cat, cat));
        let begun = Instant::now();
        while !differ_in_size(cat, bash) {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        end(all);
    }

    #[test]
    fn each_of_many_has_its_own_memory_whatever_is_known_of_them() {
        let all = some();
        let known = MemorySurvey::now();
        for a in &all {
            for known in [&known, &MemorySurvey::nobody()] {
                let mut search = Search::of(a.id(), known).expect("it has code");
                assert_eq!(search.look(), Has::ItsOwn);
                assert_eq!(search.look(), Has::ItsOwn);
            }
        }
        let first = all[0].id();
        end(all);
        assert!(Search::of(first, &known).is_none(), "it has ended");
    }
}
