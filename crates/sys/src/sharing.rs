//! Which processes have one memory without being threads of each other: by clone(2) with
//! `CLONE_VM`, or vfork(2).
//!
//! Promise: whoever has the memory of a process while that is looked for, and whom it makes
//! meanwhile, is found: /proc is listed until a list has nobody that could not be compared.
//! Relies on: numbers of processes that grow, but where they begin anew; a process that runs in
//! another memory never coming to run in this one.
//!
//! None of another user is compared, nor one that has code of another size: kcmp(2), as
//! /proc/PID/stat, waits for one that is just executing something (`exec_update_lock`, Linux 6.18),
//! and that may wait for whom it likes.

use crate::each::{self, STUCK};
use crate::process::{self, effective_user_of};
use crate::{job, threads};
use rustix::pipe::{pipe_with, PipeFlags};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How often /proc is listed, at most, for one that has not made a process that is not compared.
const LISTS: usize = 50;

/// Whether two processes can be compared here: kcmp(2) may be missing, or forbidden.
#[must_use]
pub fn can_compare() -> bool {
    let us = std::process::id();
    share_memory(us, us) == Some(true)
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
    /// It is not known: others come and go too fast.
    Unknown,
}

/// Looks for whoever has the memory of one process.
#[derive(Debug)]
pub struct Search<'a> {
    pid: u32,
    pages: u64,
    user: u32,
    known: &'a Groups,
    seen: HashSet<u32>,
}

impl<'a> Search<'a> {
    /// Of a process; of `known` it is believed which memory they have. `None` where it has no code:
    /// it is of the kernel, or has ended.
    #[must_use]
    pub fn of(pid: u32, known: &'a Groups) -> Option<Search<'a>> {
        let pages = code_pages(&pid.to_string()).filter(|pages| *pages != 0)?;
        let user = effective_user_of(pid)?;
        Some(Search {
            pid,
            pages,
            user,
            known,
            seen: HashSet::from([pid]),
        })
    }

    /// Looks; the next time at those alone that have begun since.
    pub fn look(&mut self) -> Has {
        for _ in 0..LISTS {
            let fresh = process::all().filter(|other| !self.seen.contains(other));
            let fresh: Vec<u32> = fresh.collect();
            let mut has_missed = false;
            for other in fresh {
                self.seen.insert(other);
                match self.compare(other) {
                    Some(true) => return Has::ThatOf(other),
                    Some(false) => {}
                    // It may have had the memory, and have made one that has it, not listed.
                    None => has_missed = true,
                }
            }
            if !has_missed {
                return Has::ItsOwn;
            }
        }
        Has::Unknown
    }

    /// Whether another process has its memory; `None` where that one is gone, or has no code.
    fn compare(&self, other: u32) -> Option<bool> {
        match self.known.have_one_memory(self.pid, other) {
            Some(false) => Some(false),
            _ => match with_code(other)? {
                (_, pages) if pages != self.pages => Some(false),
                _ if effective_user_of(other)? != self.user => Some(false),
                (thread, _) => share_memory(self.pid, thread),
            },
        }
    }
}

/// What is known of all processes at one moment: for those who ask of many, one after the other,
/// each would be compared with each.
#[derive(Debug, Default)]
pub struct Groups {
    /// The first one that was found with the memory of each.
    first: HashMap<u32, u32>,
    as_of: Option<Instant>,
}

impl Groups {
    /// Nobody is known.
    #[must_use]
    pub fn none() -> Groups {
        Groups::default()
    }

    /// As they are now. Of whoever keeps us waiting, and of those behind it, nothing is known.
    #[must_use]
    pub fn now() -> Groups {
        Groups {
            as_of: Some(Instant::now()),
            first: by_a_child().unwrap_or_default(),
        }
    }

    /// Looks anew where that was more than a moment ago: numbers are used again.
    pub fn renew(&mut self) {
        const OLD: Duration = Duration::from_secs(1);
        if self.as_of.is_none_or(|at| at.elapsed() > OLD) {
            *self = Groups::now();
        }
    }

    /// Whether two had one memory then.
    fn have_one_memory(&self, a: u32, b: u32) -> Option<bool> {
        Some(self.first.get(&a)? == self.first.get(&b)?)
    }
}

fn by_a_child() -> io::Result<HashMap<u32, u32>> {
    /// In all.
    const PATIENCE: Duration = Duration::from_millis(500);
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let job = job::beside_us(c"synclater-look", &[theirs.as_fd()], |kept| {
        let tell = |pid: u32, first: u32| {
            let pair = [pid.to_ne_bytes(), first.to_ne_bytes()].concat();
            rustix::io::write(&kept[0], &pair).is_ok()
        };
        i32::from(tell_of_all(&tell).is_none())
    })?;
    drop(theirs);
    let told = each::hear(&ours, Instant::now() + PATIENCE, STUCK, usize::MAX);
    job.end();
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let pairs = { told.chunks_exact(8) }.map(|pair| (number(&pair[..4]), number(&pair[4..])));
    Ok(pairs.filter(|(pid, _)| *pid != 0).collect())
}

/// Tells of each process, and of nobody (0) now and then: that it goes on. `None` where nobody
/// listens any more.
fn tell_of_all(tell: &impl Fn(u32, u32) -> bool) -> Option<()> {
    let mut programs: HashMap<u64, Vec<(u32, u32)>> = HashMap::new();
    for pid in process::all() {
        match with_code(pid) {
            Some((thread, pages)) => programs.entry(pages).or_default().push((pid, thread)),
            // It has ended, or is the kernel's: nor will it have any.
            None => tell(pid, pid).then_some(())?,
        }
        tell(0, 0).then_some(())?;
    }
    for program in programs.into_values() {
        let mut users: HashMap<u32, Ordered> = HashMap::new();
        if let [(pid, _)] = program[..] {
            tell(pid, pid).then_some(())?;
            continue;
        }
        for (pid, thread) in program {
            let user = effective_user_of(pid);
            let first = user.and_then(|u| users.entry(u).or_default().put(pid, thread));
            let (pid, first) = first.map_or((0, 0), |first| (pid, first));
            tell(pid, first).then_some(())?;
        }
    }
    Some(())
}

/// Memories, in the kernel's order (kcmp(2)): the first process that had each, and a thread of each
/// one that has.
#[derive(Default)]
struct Ordered(Vec<(u32, Vec<u32>)>);

impl Ordered {
    /// The first process that had the memory of this one; `None` where it is gone.
    fn put(&mut self, pid: u32, thread: u32) -> Option<u32> {
        let (mut from, mut to) = (0, self.0.len());
        while from < to {
            let middle = usize::midpoint(from, to);
            let (first, threads) = &mut self.0[middle];
            match compare(thread, *threads.last()?) {
                Some(Ordering::Equal) => {
                    threads.push(thread);
                    return Some(*first);
                }
                Some(Ordering::Less) => to = middle,
                Some(Ordering::Greater) => from = middle + 1,
                None => {
                    compare(thread, thread)?;
                    // That one is gone.
                    threads.pop();
                    if threads.is_empty() {
                        self.0.remove(middle);
                    }
                    (from, to) = (0, self.0.len());
                }
            }
        }
        self.0.insert(from, (pid, vec![thread]));
        Some(pid)
    }
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

/// Whether two threads have one memory; `None` where one is gone.
fn share_memory(a: u32, b: u32) -> Option<bool> {
    compare(a, b).map(|order| order == Ordering::Equal)
}

/// The order of the memories of two threads, which the kernel keeps for as long as they live.
fn compare(a: u32, b: u32) -> Option<Ordering> {
    const KCMP_VM: libc::c_int = 1;
    match threads::compare(a, b, KCMP_VM) {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn waiting() -> Child {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).spawn().expect("it starts")
    }

    /// Processes of one program that have been executed.
    fn some() -> Vec<Child> {
        let all: Vec<Child> = (0..20).map(|_| waiting()).collect();
        let us = code_pages("self");
        let has_begun = |child: &Child| {
            let pages = code_pages(&child.id().to_string());
            pages.is_some_and(|p| p != 0) && pages != us
        };
        let begun = Instant::now();
        while !all.iter().all(has_begun) {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        all
    }

    #[test]
    fn each_of_many_has_its_own_memory_and_what_is_known_of_them_is_right() {
        let mut all = some();
        let known = Groups::now();
        for a in &all {
            for b in &all {
                let is_one = known.have_one_memory(a.id(), b.id());
                assert_eq!(is_one, Some(a.id() == b.id()), "{a:?} {b:?}");
            }
            for known in [&known, &Groups::none()] {
                let mut search = Search::of(a.id(), known).expect("it has code");
                assert_eq!(search.look(), Has::ItsOwn);
                assert_eq!(search.look(), Has::ItsOwn);
            }
        }
        for child in &mut all {
            child.kill().expect("it ends");
            child.wait().expect("it has ended");
        }
        assert!(Search::of(all[0].id(), &known).is_none(), "it has ended");
    }

    #[test]
    fn memories_are_told_apart_although_some_of_their_processes_have_ended() {
        let mut all = some();
        let mut ordered = Ordered::default();
        let (mut early, late) = { all.drain(..) }.partition::<Vec<Child>, _>(|c| c.id() % 3 > 0);
        for child in &early {
            assert_eq!(ordered.put(child.id(), child.id()), Some(child.id()));
            assert_eq!(
                ordered.put(child.id(), child.id()),
                Some(child.id()),
                "again"
            );
        }
        for child in early.iter_mut().skip(1) {
            child.kill().expect("it ends");
            child.wait().expect("it has ended");
        }
        for child in &late {
            assert_eq!(ordered.put(child.id(), child.id()), Some(child.id()));
        }
        let first = early[0].id();
        assert_eq!(ordered.put(first, first), Some(first));
        assert_eq!(
            ordered.put(early[1].id(), early[1].id()),
            None,
            "it has ended"
        );
        for child in late.iter().chain(&early[..1]) {
            let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a number");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        early
            .into_iter()
            .chain(late)
            .for_each(|mut child| drop(child.wait()));
    }
}
