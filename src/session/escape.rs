//! Processes whose requests reached the kernel without the shim, as seen in the kernel.
//!
//! Promise: with perf events permitted, a process is named because its syncs were counted at the
//! file system and were not made by the shim, never because of what its file looks like.
//! Without the permission the report says that it cannot know, and names the processes of the
//! session in which the library is not mapped.

use super::counts::{Census, Process};
use super::mapped::{mapped_in, Mapped};
use super::mounts::mounts_of;
use super::opening::known_at;
use rustix::fs::{OFlags, Stat};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use synclater_account::escape::{
    Escape, CLEARED_ENVIRONMENT, FOLLOW, GAINED_RIGHTS, LOST_SOMEHOW, NET, OTHER_ROOT, OWN_CALLS,
    OWN_CALLS_OR_HIDDEN, OWN_RING, RESTRICTED, STATIC_PROGRAM,
};
use synclater_policy::rules::RuleSet;
use synclater_shim::page::{SLOT_MARK_LOST, SLOT_OSYNC_KEPT, SLOT_RESTRICTED, SLOT_URING};
use synclater_shim::NAMES;
use synclater_sys::attendant::Held;
use synclater_sys::patient::Patient;
use synclater_sys::perf::{self, Seen, Syncs};
use synclater_sys::{mount, process};
use synclater_text::number::counted;

const NOT_KNOWN: &str = "the library is not mapped; whether it syncs cannot be seen";

/// In a process that was attached.
const AROUND_THE_GATE: &str = "makes system calls of its own (io_uring, inline, a Go library's)";

/// What watches the kernel for one session.
pub struct Escapes {
    syncs: Option<Syncs>,
    /// Whether they are processes that ran already.
    are_attached: bool,
    /// Whether a tracer tells of every program that it does not reach.
    are_followed: bool,
    /// Whether one ever did.
    has_followed: bool,
    /// Whether the net sees what programs without the library ask for.
    are_netted: bool,
    /// What was found when everybody was about to be let go of.
    last: Option<Vec<Escape>>,
    /// Why there is nothing that watches, where that is so.
    error: Option<std::io::Error>,
    /// Without the permission to see: processes that were found without the library.
    unmapped: BTreeMap<u32, Escape>,
}

impl Escapes {
    /// Starts watching this process's descendants; before the command is started.
    #[must_use]
    pub fn watch() -> Escapes {
        Escapes::of(Syncs::count_descendants(&NAMES))
    }

    /// Starts watching processes that run already; which ones [`Escapes::include`] says.
    #[must_use]
    pub fn watch_chosen() -> Escapes {
        let mut escapes = Escapes::of(Syncs::count_chosen());
        escapes.are_attached = true;
        escapes
    }

    fn of(syncs: std::io::Result<Syncs>) -> Escapes {
        let (syncs, error) = match syncs {
            Ok(syncs) => (Some(syncs), None),
            Err(e) => (None, Some(e)),
        };
        Escapes {
            syncs,
            are_attached: false,
            are_followed: false,
            has_followed: false,
            are_netted: false,
            last: None,
            error,
            unmapped: BTreeMap::new(),
        }
    }

    /// Watches a process that has been attached.
    pub fn include(&mut self, pid: u32, exe: &str) {
        if let Some(syncs) = &mut self.syncs {
            syncs.include(pid, exe.to_owned());
        }
    }

    /// Finds for the last time: what is let go of is not to be counted any more.
    pub fn find_at_last(&mut self, counted: &BTreeMap<u32, Process>, rules: Option<&RuleSet>) {
        if self.last.is_none() {
            self.last = Some(self.find(counted, rules));
        }
    }

    /// What an attendant holds for the watch: the kernel takes long to switch trace points off, and
    /// that is not for our end to wait for.
    #[must_use]
    pub fn held(&self) -> Held<'_> {
        self.syncs.as_ref().map(Syncs::held).unwrap_or_default()
    }

    /// Whether it is known who reached the kernel.
    #[must_use]
    pub fn knows(&self) -> bool {
        self.syncs.is_some()
    }

    /// Reads what the rings hold up to now, so that they do not fill.
    pub fn drain(&mut self) {
        let Some(syncs) = &mut self.syncs else {
            return;
        };
        let lost = syncs.so_far().lost;
        if syncs.seen().lost > lost && !self.are_attached {
            let own = std::process::id();
            syncs.keep_only(&descendants(own).into_iter().chain([own]).collect());
        }
    }

    /// Forgets who has ended and made nothing that the shim has not counted; behind a
    /// [`Escapes::drain`].
    pub fn forget_ended(&mut self, census: &mut Census) {
        const TELLS: u32 = SLOT_OSYNC_KEPT | SLOT_MARK_LOST | SLOT_RESTRICTED;
        let syncs = &mut self.syncs;
        syncs.iter_mut().for_each(Syncs::sweep);
        census.forget_ended(|pid, counted| {
            let Some(syncs) = syncs.as_mut().filter(|_| counted.counts.flags & TELLS == 0) else {
                return syncs.is_none();
            };
            let seen = syncs.so_far();
            let before = seen.before.get(&pid).into_iter().flatten();
            let is_over = !seen.by_pid.contains_key(&pid);
            let forgets = is_over && passed(before, counted) == 0;
            if forgets {
                syncs.forget(pid);
            }
            forgets
        });
    }

    /// Notes whether a tracer tells of every program that it does not reach: then nobody has to be
    /// suspected for want of the library.
    pub fn are_followed(&mut self, yes: bool) {
        self.are_followed = yes;
        self.has_followed |= yes;
    }

    /// The net sees what programs without the library ask for: nobody is suspected for want of it.
    pub fn are_netted(&mut self) {
        self.are_netted = true;
    }

    /// The ways into programs that the session has besides the library.
    #[must_use]
    pub fn ways(&self) -> Vec<String> {
        let ways = [(self.has_followed, FOLLOW), (self.are_netted, NET)];
        let used = ways.into_iter().filter(|(is_used, _)| *is_used);
        used.map(|(_, way)| way.to_owned()).collect()
    }

    /// Looks for processors that have come back; where there are no rings, for processes without
    /// the library.
    pub fn look_around(&mut self, rules: Option<&RuleSet>) {
        if let Some(syncs) = &mut self.syncs {
            syncs.look_for_processors();
        }
        let are_reached = self.are_attached || self.are_followed || self.are_netted;
        if self.syncs.is_none() && !are_reached {
            let found = unmapped(rules);
            self.unmapped.extend(found.into_iter().map(|e| (e.pid, e)));
        }
    }

    /// Why it cannot be told what escaped, where it cannot.
    #[must_use]
    pub fn unknown_because(&self) -> Option<String> {
        let lost = self.syncs.as_ref().map_or(0, |syncs| syncs.so_far().lost);
        if lost > 0 {
            let n = counted(lost, "record");
            return Some(format!("{n} of the kernel found no room in its buffers"));
        }
        let error = self.error.as_ref()?;
        if !process::proc_is_ours() {
            return Some("/proc is not there, or that of another pid namespace".to_owned());
        }
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return Some(format!("no trace point of a file system here ({error})"));
        }
        let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
        Some(format!(
            "perf events are not permitted (user {}, kernel.perf_event_paranoid {})",
            process::effective_user(),
            level.unwrap_or_default().trim()
        ))
    }

    /// Descriptors that become readable when a ring is half full.
    #[must_use]
    pub fn fds(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.syncs.as_ref().map(Syncs::fds).unwrap_or_default()
    }

    /// Who escaped by what was drained before the shim's counts were taken, given these and whom
    /// the rules are about.
    pub fn find(
        &mut self,
        counted: &BTreeMap<u32, Process>,
        rules: Option<&RuleSet>,
    ) -> Vec<Escape> {
        if let Some(last) = &self.last {
            return last.clone();
        }
        if self.syncs.is_none() {
            self.look_around(rules);
            return self.unmapped.values().cloned().collect();
        }
        let Some(syncs) = &self.syncs else {
            return Vec::new();
        };
        let seen = syncs.so_far();
        // Processes of other pid namespaces that ended before anybody asked who they are: what they
        // made is counted, and not whose it was. What another user says of them excuses nobody.
        let nobody = counted.get(&0);
        let mut nobodys = nobody.map_or(0, |p| p.counts.real.saturating_sub(p.unvouched));
        let mut found = Vec::new();
        for (pid, mut those) in with_number(seen) {
            if !counted.contains_key(&pid) {
                those.retain(|p| {
                    let ours = p.has_library && p.file_syncs <= nobodys;
                    nobodys -= if ours { p.file_syncs } else { 0 };
                    !ours
                });
            }
            found.extend(escaped(pid, those, counted.get(&pid), rules));
        }
        if self.are_attached {
            for e in &mut found {
                AROUND_THE_GATE.clone_into(&mut e.why);
            }
        }
        for e in &mut found {
            let flags = counted.get(&e.pid).map_or(0, |p| p.counts.flags);
            if flags & SLOT_RESTRICTED != 0 {
                RESTRICTED.clone_into(&mut e.why);
            }
        }
        found
    }
}

/// A supervisor of a session inside this one: its ledger and its settles are made for real. Another
/// file may be called by our path, in another root.
fn is_another_of_us(p: &perf::Process) -> bool {
    std::env::current_exe().is_ok_and(|exe| exe.as_os_str() == p.exe.as_str())
        && [0, own_inode()].contains(&p.inode)
}

/// The inode of what we execute; 0 where it is not shown.
fn own_inode() -> u64 {
    std::fs::metadata("/proc/self/exe").map_or(0, |seen| seen.ino())
}

/// Whoever has a number and made syncs, and those that had it before.
fn with_number(seen: &Seen) -> BTreeMap<u32, Vec<&perf::Process>> {
    let mut all: BTreeMap<u32, Vec<&perf::Process>> = BTreeMap::new();
    let before = seen.before.iter();
    let before = before.flat_map(|(pid, those)| those.iter().map(|p| (*pid, p)));
    let now = seen.by_pid.iter().map(|(pid, p)| (*pid, p));
    for (pid, process) in before.chain(now).filter(|(_, p)| is_meant(p)) {
        all.entry(pid).or_default().push(process);
    }
    all
}

/// Whether a process is one that may have escaped.
fn is_meant(p: &perf::Process) -> bool {
    // What was forked of us and has executed nothing is ours.
    p.has_synced() && p.executed && !is_another_of_us(p)
}

/// How many syncs of those that had a number the shim has not counted.
fn passed<'a>(those: impl Iterator<Item = &'a perf::Process>, counted: &Process) -> u64 {
    let c = &counted.counts;
    // What the shim made for real is no escape; whole-file-system calls touch several.
    if c.flags & (SLOT_OSYNC_KEPT | SLOT_MARK_LOST) != 0 {
        return 0;
    }
    let seen: u64 = those.map(|p| p.file_syncs).sum();
    seen.saturating_sub(c.real.saturating_sub(c.elsewhere))
}

/// Those of a number that have escaped, of whom the shim has counted all together.
fn escaped(
    pid: u32,
    mut those: Vec<&perf::Process>,
    counted: Option<&Process>,
    rules: Option<&RuleSet>,
) -> Vec<Escape> {
    let mut left = counted.map_or(u64::MAX, |p| passed(those.iter().copied(), p));
    // Whoever is without the library has not been counted.
    those.sort_by_key(|p| p.has_library);
    let mut found = Vec::new();
    for p in those {
        let made = match counted {
            // The kernel syncs a whole file system inside mount and umount too: no request by
            // itself.
            None if !p.has_library => p.file_syncs.max(p.fs_syncs.min(1)),
            _ => p.file_syncs,
        };
        let requests = made.min(left);
        left -= requests;
        let exe = if p.exe.is_empty() { &p.name } else { &p.exe }.clone();
        if requests > 0 && rules.is_none_or(|r| r.could_relax_exe(exe.as_bytes())) {
            found.push(Escape {
                pid,
                why: why(p, counted, &exe).to_owned(),
                exe,
                requests: Some(requests),
            });
        }
    }
    found
}

fn why(seen: &perf::Process, counted: Option<&Process>, exe: &str) -> &'static str {
    if seen.has_library && counted.is_some_and(|p| p.counts.flags & SLOT_URING != 0) {
        OWN_RING
    } else if seen.has_library && counted.is_some() {
        OWN_CALLS
    } else if seen.has_library {
        OWN_CALLS_OR_HIDDEN
    } else if !seen.has_linker && seen.executed {
        STATIC_PROGRAM
    } else if gains_rights(exe) {
        GAINED_RIGHTS
    } else {
        match is_elsewhere(seen) {
            Some(true) => OTHER_ROOT,
            Some(false) => CLEARED_ENVIRONMENT,
            None => LOST_SOMEHOW,
        }
    }
}

/// Whether what a process executes is not what its path leads to here; `None` where that may have
/// been removed or replaced since: what is there, or its folder, has changed today.
fn is_elsewhere(seen: &perf::Process) -> Option<bool> {
    let path = Path::new(&seen.exe);
    if seen.inode == 0 || !path.is_absolute() || seen.exe.ends_with(" (deleted)") {
        return Some(false);
    }
    let here = stat_at(path);
    if here.as_ref().is_some_and(|here| here.st_ino == seen.inode) {
        return Some(false);
    }
    let changed = here
        .or_else(|| stat_at(path.parent()?))
        .map(|seen| seen.st_ctime);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let is_fresh = changed.is_none_or(|at| now.saturating_sub(at) < SECONDS_OF_A_DAY);
    (!is_fresh).then_some(true)
}

/// What lies at a path, where that can be had.
fn stat_at(path: &Path) -> Option<Stat> {
    rustix::fs::fstat(known_at(path, OFlags::empty())?).ok()
}

const SECONDS_OF_A_DAY: i64 = 24 * 60 * 60;

/// Whether a program gains rights by its file, as far as that is known without asking its file
/// system: the path is the program's, and may lead to where another program answers.
fn gains_rights(exe: &str) -> bool {
    let Some(file) = known_at(Path::new(exe), OFlags::empty()) else {
        return false;
    };
    has_capabilities(&file) || mount::mode_of_fd(file).is_ok_and(|mode| mode & 0o6000 != 0)
}

/// Whether a file has capabilities. Only where the kernel answers: on a file system of a program's
/// the question would wait for that.
fn has_capabilities(file: &OwnedFd) -> bool {
    let id = mount::id_of_fd(file, mount::MNT_ID).ok();
    let mounts = mounts_of("self");
    let at = mounts.iter().find(|m| Some(m.id) == id);
    if !at.is_some_and(|m| ["ext4", "xfs", "btrfs", "tmpfs"].contains(&m.fstype.as_str())) {
        return false;
    }
    // What is open by its path alone is asked through /proc.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::getxattr(link, "security.capability", &mut [0u8; 64]).is_ok()
}

/// Descendants in which the library is not mapped.
fn unmapped(rules: Option<&RuleSet>) -> Vec<Escape> {
    let below = descendants(std::process::id());
    let mapped = mapped_in(&below);
    let mut patient = Patient::default();
    let all = below.into_iter().zip(mapped);
    all.filter(|(_, mapped)| matches!(mapped, Mapped::Gate | Mapped::Nothing))
        .filter_map(|(pid, _)| not_known_of(pid, rules, &mut patient))
        .collect()
}

/// What is to be told of a process in which the library is not mapped.
fn not_known_of(pid: u32, rules: Option<&RuleSet>, patient: &mut Patient) -> Option<Escape> {
    let exe = patient.exe(pid)?;
    let exe = exe.to_string_lossy().into_owned();
    if std::env::current_exe().is_ok_and(|own| own.as_os_str() == exe.as_str()) {
        return None; // ours, or on its way from fork to exec
    }
    let about = rules.is_none_or(|r| r.could_relax_exe(exe.as_bytes()));
    about.then(|| Escape {
        pid,
        exe,
        why: NOT_KNOWN.into(),
        requests: None,
    })
}

/// All living descendants of `root`.
#[must_use]
pub fn descendants(root: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut todo = vec![root];
    while let Some(pid) = todo.pop() {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        for task in tasks {
            let children =
                std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children: Vec<u32> = children
                .split_whitespace()
                .filter_map(|c| c.parse().ok())
                .collect();
            todo.extend(&children);
            all.extend(children);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::counts::Counts;
    use super::*;

    fn made(exe: &str, has_library: bool, file_syncs: u64) -> perf::Process {
        perf::Process {
            file_syncs,
            exe: exe.to_owned(),
            has_library,
            has_linker: true,
            executed: true,
            ..perf::Process::default()
        }
    }

    #[test]
    fn of_those_that_had_one_number_the_one_without_the_library_has_escaped() {
        let [kept, lost, other] = [("/a", true, 3), ("/b", false, 2), ("/c", true, 1)]
            .map(|(exe, has_library, syncs)| made(exe, has_library, syncs));
        let counted = |real| Process {
            counts: Counts {
                real,
                ..Counts::default()
            },
            ..Process::default()
        };
        let found = |real| {
            let all = escaped(5, vec![&kept, &lost, &other], Some(&counted(real)), None);
            let told = all.into_iter().map(|e| (e.exe, e.requests, e.why));
            told.collect::<Vec<_>>()
        };
        let of = |exe: &str, n, why: &str| (exe.to_owned(), Some(n), why.to_owned());
        assert_eq!(found(4), [of("/b", 2, CLEARED_ENVIRONMENT)]);
        let two = [of("/b", 2, CLEARED_ENVIRONMENT), of("/a", 1, OWN_CALLS)];
        assert_eq!(found(3), two);
        assert_eq!(found(6), []);
    }
}
