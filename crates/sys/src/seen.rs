//! What the kernel's records say of processes: which are ours, what they execute, and how many
//! syncs of each reached a file system.
//!
//! Promise: what a process made stays its own when its number is given again, and that number is
//! ours only if the next one descends from us, too. Whoever ended is forgotten, but for what
//! reached a file system.

use std::collections::{BTreeMap, BTreeSet};

/// One process, as the kernel told of it.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Syncs of files that reached a file system.
    pub file_syncs: u64,
    /// Syncs of whole file systems.
    pub fs_syncs: u64,
    /// Its short name.
    pub name: String,
    /// The file it executes, by its path below the root of whoever executes it.
    pub exe: String,
    /// The number of that file; 0: not known.
    pub inode: u64,
    /// Whether the watched library was mapped.
    pub has_library: bool,
    /// Whether a dynamic linker was mapped.
    pub has_linker: bool,
    /// Whether it executed a file while we watched, so that the flags above are known.
    pub executed: bool,
    /// Its threads; 0: not known, it ran already.
    pub threads: u32,
    /// Its last thread was said to end. The kernel says so, too, of one that has executed what not
    /// everybody may read, or what gains rights (begin_new_exec, Linux 6.18): it may live.
    pub ended: bool,
}

/// What was seen, by process id.
#[derive(Debug, Default)]
pub struct Seen {
    /// Processes.
    pub by_pid: BTreeMap<u32, Process>,
    /// What had a number before it was given again, or before it executed something else, and made
    /// syncs; those of one kind as one.
    pub before: BTreeMap<u32, Vec<Process>>,
    /// Records that a full ring lost.
    pub lost: u64,
    /// Whether a process that executes another program is nobody of ours any more.
    by_program: bool,
}

pub(crate) enum Record {
    Sync { pid: u32, whole: bool },
    Fork { pid: u32, parent: u32 },
    Thread { pid: u32 },
    End { pid: u32, is_first: bool },
    Name { pid: u32, name: String, exec: bool },
    Map { pid: u32, file: String, inode: u64 },
    Lost(u64),
}

impl Seen {
    /// Of processes that are nobody of ours any more once they execute another program.
    pub(crate) fn of_programs() -> Seen {
        Seen {
            by_program: true,
            ..Seen::default()
        }
    }

    /// Takes one record; those of processes that do not descend from us are left out.
    pub(crate) fn note(&mut self, record: Record, libraries: &[&str]) {
        match record {
            Record::Lost(n) => self.lost += n,
            Record::Fork { pid, parent } => {
                // The number may have been that of another one, and be nobody's of ours now.
                if let Some(ended) = self.by_pid.remove(&pid).filter(Process::has_synced) {
                    self.was_before(pid, ended);
                }
                if let Some(of_parent) = self.by_pid.get(&parent).cloned() {
                    let child = Process {
                        file_syncs: 0,
                        fs_syncs: 0,
                        threads: 1,
                        ended: false,
                        ..of_parent
                    };
                    self.by_pid.insert(pid, child);
                }
            }
            Record::Thread { pid } => {
                if let Some(p) = self.by_pid.get_mut(&pid).filter(|p| p.threads > 0) {
                    p.threads = p.threads.saturating_add(1);
                }
            }
            Record::End { pid, is_first } => self.thread_ends(pid, is_first),
            Record::Sync { pid, whole } => {
                if let Some(p) = self.by_pid.get_mut(&pid) {
                    *(if whole {
                        &mut p.fs_syncs
                    } else {
                        &mut p.file_syncs
                    }) += 1;
                }
            }
            Record::Name {
                pid, exec: true, ..
            } if self.by_program => drop(self.by_pid.remove(&pid)),
            Record::Name { pid, name, exec } => {
                let Some(p) = self.by_pid.get_mut(&pid) else {
                    return;
                };
                if !exec {
                    p.name = name;
                    return;
                }
                let executes = Process {
                    name,
                    executed: true,
                    threads: p.threads,
                    ..Process::default()
                };
                let ended = std::mem::replace(p, executes);
                if ended.has_synced() {
                    self.was_before(pid, ended);
                }
            }
            Record::Map { pid, file, inode } => {
                if let Some(p) = self.by_pid.get_mut(&pid) {
                    p.maps(file, inode, libraries);
                }
            }
        }
    }

    /// With its last thread a process has ended, mostly.
    fn thread_ends(&mut self, pid: u32, is_first: bool) {
        let Some(p) = self.by_pid.get_mut(&pid) else {
            return;
        };
        let has_ended = match p.threads {
            // Others of its threads may go on.
            0 => is_first && self.by_program && !p.has_synced(),
            1 => {
                p.ended = true;
                false
            }
            _ => {
                p.threads -= 1;
                false
            }
        };
        if has_ended {
            self.leaves(pid);
        }
    }

    /// Those that were said to end, and are not there any more, are nobody of ours from now on.
    pub fn sweep(&mut self, is_there: impl Fn(u32) -> bool) {
        let ended = self
            .by_pid
            .iter()
            .filter(|(pid, p)| p.ended && !is_there(**pid));
        let ended: Vec<u32> = ended.map(|(pid, _)| *pid).collect();
        ended.into_iter().for_each(|pid| self.leaves(pid));
    }

    fn leaves(&mut self, pid: u32) {
        // What was forked of us and has executed nothing is ours.
        let ended = self.by_pid.remove(&pid);
        if let Some(ended) = ended.filter(|p| p.has_synced() && p.executed) {
            self.was_before(pid, ended);
        }
    }

    /// Of those that are there still, these alone are ours: records were lost that would have told.
    pub fn keep_only(&mut self, ours: &BTreeSet<u32>) {
        let others = self.by_pid.keys().filter(|pid| !ours.contains(pid));
        for pid in others.copied().collect::<Vec<u32>>() {
            self.leaves(pid);
        }
    }

    /// Forgets what those made that had this number before.
    pub fn forget(&mut self, pid: u32) {
        self.before.remove(&pid);
    }

    fn was_before(&mut self, pid: u32, ended: Process) {
        let those = self.before.entry(pid).or_default();
        match those.iter_mut().find(|p| p.is_like(&ended)) {
            Some(like) => {
                like.file_syncs += ended.file_syncs;
                like.fs_syncs += ended.fs_syncs;
            }
            None => those.push(ended),
        }
    }
}

impl Process {
    /// Whether it has made any.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.file_syncs > 0 || self.fs_syncs > 0
    }

    fn is_like(&self, other: &Process) -> bool {
        self.exe == other.exe
            && self.has_library == other.has_library
            && self.has_linker == other.has_linker
            && self.executed == other.executed
    }

    fn maps(&mut self, file: String, inode: u64, libraries: &[&str]) {
        let base = file.rsplit('/').next().unwrap_or("");
        self.has_library |= libraries.contains(&base);
        self.has_linker |= base.starts_with("ld-") || base.starts_with("ld.");
        if self.exe.is_empty() {
            self.exe = file;
            self.inode = inode;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen of these records, by a session whose own number is 1.
    fn seen(by_program: bool, records: Vec<Record>) -> Seen {
        let mut seen = if by_program {
            Seen::of_programs()
        } else {
            Seen::default()
        };
        seen.by_pid.insert(1, Process::default());
        for record in records {
            seen.note(record, &["lib.so"]);
        }
        seen
    }

    fn fork(parent: u32, pid: u32) -> Record {
        Record::Fork { pid, parent }
    }

    fn executes(pid: u32, file: &str) -> [Record; 2] {
        let name = file.to_owned();
        let map = Record::Map {
            pid,
            file: name.clone(),
            inode: 23,
        };
        let exec = true;
        [Record::Name { pid, name, exec }, map]
    }

    fn syncs(pid: u32) -> Record {
        Record::Sync { pid, whole: false }
    }

    fn ends(pid: u32, is_first: bool) -> Record {
        Record::End { pid, is_first }
    }

    #[test]
    fn a_number_is_nobody_s_once_its_last_thread_has_ended() {
        let mut records = vec![fork(1, 5)];
        records.extend(executes(5, "/a"));
        records.extend([Record::Thread { pid: 5 }, syncs(5), ends(5, true), syncs(5)]);
        let mut all = seen(false, records);
        // One of its threads has not ended: it is not asked whether it is there.
        all.sweep(|_| false);
        assert_eq!(all.by_pid[&5].file_syncs, 2);
        all.note(ends(5, false), &[]);
        all.sweep(|_| false);
        // The fork of the stranger that has the number next is not told.
        all.note(syncs(5), &[]);
        assert_eq!(all.by_pid.keys().collect::<Vec<_>>(), [&1]);
        assert_eq!(all.before[&5][0].file_syncs, 2);
    }

    #[test]
    fn what_gains_rights_is_said_to_end_and_lives() {
        let mut records = vec![fork(1, 5)];
        records.extend(executes(5, "/bin/su"));
        records.extend([ends(5, true), syncs(5), fork(5, 6), syncs(6)]);
        let mut all = seen(false, records);
        all.sweep(|pid| pid == 5 || pid == 6);
        all.note(syncs(5), &[]);
        assert_eq!(all.by_pid[&5].file_syncs, 2);
        assert_eq!(all.by_pid[&6].file_syncs, 1);
    }

    #[test]
    fn who_has_ended_and_made_nothing_is_forgotten() {
        let mut records = Vec::new();
        for pid in 5..500 {
            records.push(fork(1, pid));
            records.extend(executes(pid, "/a"));
            records.push(ends(pid, true));
        }
        // Ours: a process that settles.
        records.extend([fork(1, 500), syncs(500), ends(500, true)]);
        let mut seen = seen(false, records);
        seen.sweep(|_| false);
        assert_eq!((seen.by_pid.len(), seen.before.len()), (1, 0));
    }

    #[test]
    fn where_records_were_lost_only_descendants_are_ours() {
        let mut records = Vec::new();
        for pid in [5, 6] {
            records.push(fork(1, pid));
            records.extend(executes(pid, "/a"));
            records.push(syncs(pid));
        }
        let mut seen = seen(false, records);
        seen.keep_only(&[1, 6].into());
        seen.note(syncs(5), &[]);
        assert_eq!(seen.by_pid.keys().collect::<Vec<_>>(), [&1, &6]);
        assert_eq!(seen.before[&5][0].file_syncs, 1);
    }

    #[test]
    fn a_number_is_nobody_of_ours_once_somebody_else_has_it() {
        for by_program in [false, true] {
            let strangers = [fork(9, 5), syncs(5), fork(5, 6), syncs(6)];
            let records = [fork(1, 5), syncs(5)].into_iter().chain(strangers);
            let seen = seen(by_program, records.collect());
            assert_eq!(seen.by_pid.keys().collect::<Vec<_>>(), [&1]);
            assert_eq!(seen.before[&5][0].file_syncs, 1);
        }
    }

    #[test]
    fn what_had_a_number_before_keeps_what_it_made() {
        let mut records = Vec::new();
        for (file, times) in [("/a", 2), ("/b", 1), ("/a", 3), ("/b", 0), ("/c", 1)] {
            records.push(fork(1, 5));
            records.extend(executes(5, file));
            records.extend((0..times).map(|_| syncs(5)));
        }
        records.extend(executes(5, "/d"));
        records.push(syncs(5));
        let seen = seen(false, records);
        let made = |p: &Process| (p.exe.clone(), p.file_syncs);
        let before: Vec<_> = seen.before[&5].iter().map(made).collect();
        let all = [("/a", 5), ("/b", 1), ("/c", 1)].map(|(exe, n)| (exe.to_owned(), n));
        assert_eq!(before, all);
        assert_eq!(made(&seen.by_pid[&5]), ("/d".to_owned(), 1));
    }
}
