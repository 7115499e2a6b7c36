//! The program that asks: its descriptors, its numbers, its slot.
//!
//! A thread is known by a pidfd of its own (PIDFD_THREAD, Linux 6.9), which never comes to mean
//! another one; before that it is looked up at each request.
//! That it is still there is not asked again: an answer to one that is gone goes nowhere, and what
//! was synced or owed instead, of a process with the same number, is synced or owed once more.

use crate::reach::selector;
use rustix::io::Errno;
use rustix::process::{pidfd_getfd, pidfd_open, Pid, PidfdFlags, PidfdGetfdFlags};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use synclater_shim::page::{Slot, Slots, SLOT_MAX};
use synclater_sys::mount;
use synclater_sys::process::{self, effective_user_of};
use synclater_sys::threads::share_descriptors;

/// One thread that asks.
pub struct Visitor {
    /// As we number it.
    pub tid: u32,
    pidfd: OwnedFd,
    /// Its process as that numbers itself, and where.
    pid: u32,
    pid_ns: u64,
    uid: u32,
    slot: usize,
    /// Whether it is a synclater inside of this session, whose calls are made for real.
    pub is_one_of_us: bool,
    is_inside: OnceCell<bool>,
    stays: bool,
}

/// Those that have asked before, each with a descriptor, and how many may be remembered.
pub struct Visitors(HashMap<u32, Visitor>, usize);

impl Visitors {
    /// Nobody yet, of at most `most`.
    #[must_use]
    pub fn new(most: usize) -> Visitors {
        Visitors(HashMap::new(), most.max(1))
    }

    /// The thread with this number, and what it has open as `fd`.
    ///
    /// # Errors
    /// `EBADF`; `EPERM` where it may not be looked at, `ESRCH` where it is gone.
    pub fn file_of(&mut self, tid: u32, fd: i32, slots: &Slots) -> io::Result<(&Visitor, OwnedFd)> {
        let known = self.0.get(&tid).filter(|v| v.stays).map(|v| v.file(fd));
        let file = match known {
            Some(Ok(file)) => file,
            // Another one has its number now.
            Some(Err(e)) if Errno::from_io_error(&e) != Some(Errno::SRCH) => return Err(e),
            _ => self.meet(tid, slots)?.file(fd)?,
        };
        Ok((&self.0[&tid], file))
    }

    /// The thread with this number, as it is now.
    ///
    /// # Errors
    /// `ESRCH` where it is gone; those of pidfd_open(2).
    pub fn meet(&mut self, tid: u32, slots: &Slots) -> io::Result<&Visitor> {
        make_room(&mut self.0, self.1, tid);
        let mut met = Visitor::look_at(tid, slots);
        let failed = met.as_ref().err().and_then(Errno::from_io_error);
        if failed == Some(Errno::MFILE) {
            // What is remembered is what can be done without.
            self.0.clear();
            met = Visitor::look_at(tid, slots);
        }
        Ok(self.0.entry(tid).insert_entry(met?).into_mut())
    }

    /// The one that was met last under this number.
    #[must_use]
    pub fn known(&self, tid: u32) -> Option<&Visitor> {
        self.0.get(&tid)
    }
}

/// Forgets one where `most` are known, and `tid` is not: any one, so that most are known still
/// where more ask in turn than there is room for.
fn make_room<T>(known: &mut HashMap<u32, T>, most: usize, tid: u32) {
    if known.len() >= most && !known.contains_key(&tid) {
        let one = known.keys().next().copied();
        one.and_then(|one| known.remove(&one));
    }
}

/// Not yet in rustix: the value of `O_EXCL`.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0x80);

impl Visitor {
    fn look_at(tid: u32, slots: &Slots) -> io::Result<Visitor> {
        let thread = pidfd_open(number(tid)?, PIDFD_THREAD);
        let status = process::status(tid)?;
        let (pidfd, stays) = match thread {
            Ok(fd) => (fd, true),
            Err(Errno::INVAL) => {
                let process = status.process().ok_or_else(gone)?;
                if process != tid && !share_descriptors(tid, process) {
                    return Err(Errno::PERM.into());
                }
                (pidfd_open(number(process)?, PidfdFlags::empty())?, false)
            }
            Err(e) => return Err(e.into()),
        };
        let mut visitor = Visitor {
            tid,
            pidfd,
            pid: status.own_process().ok_or_else(gone)?,
            pid_ns: mount::namespace_number(std::path::Path::new(&format!("/proc/{tid}/ns/pid"))),
            uid: status.users().get(1).copied().unwrap_or(0),
            slot: 0,
            is_one_of_us: selector::is_synclater(tid),
            is_inside: OnceCell::new(),
            stays,
        };
        visitor.slot = visitor.claim(slots);
        Ok(visitor)
    }

    fn file(&self, fd: i32) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(Errno::BADF.into());
        }
        pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty()).map_err(|e| match e {
            // Of a process whose first thread has ended, other threads may have descriptors.
            Errno::BADF if !self.stays => Errno::PERM.into(),
            e => e.into(),
        })
    }

    /// What `path` is for it, without following a last link where `stays_on_link`; as far as the
    /// kernel knows without asking a file system, whose server may wait for us. It knows the way to
    /// every mount point.
    ///
    /// # Errors
    /// Those of openat2(2); `EAGAIN` where it would have to ask.
    pub fn open(&self, path: &[u8], stays_on_link: bool) -> io::Result<OwnedFd> {
        use rustix::fs::{open, openat2, Mode, OFlags, ResolveFlags};
        let (from, resolve) = if path.starts_with(b"/") {
            ("root", ResolveFlags::IN_ROOT | ResolveFlags::CACHED)
        } else {
            ("cwd", ResolveFlags::CACHED)
        };
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        let dir = open(format!("/proc/{}/{from}", self.tid), flags, Mode::empty())?;
        flags.set(OFlags::NOFOLLOW, stays_on_link);
        Ok(openat2(dir, path, flags, Mode::empty(), resolve)?)
    }

    /// Takes a slot, the one that the library or an earlier call of ours has taken for this process
    /// if there is one; as the library does.
    fn claim(&self, slots: &Slots) -> usize {
        for k in 0..SLOT_MAX - 1 {
            let place = 1 + (self.pid as usize + k) % (SLOT_MAX - 1);
            let slot = &slots.slot[place];
            let free = slot.pid.compare_exchange(0, self.pid, SeqCst, SeqCst);
            match free {
                Ok(_) => {
                    slot.pid_ns.store(self.pid_ns, SeqCst);
                    slot.uid.store(self.uid, SeqCst);
                    return place;
                }
                Err(pid) if pid == self.pid && slot.pid_ns.load(SeqCst) == self.pid_ns => {
                    return place;
                }
                Err(_) => {}
            }
        }
        0
    }

    /// Which slot its requests are counted in.
    #[must_use]
    pub fn place(&self, slots: &Slots) -> usize {
        let slot = &slots.slot[self.slot];
        let is_its = slot.pid.load(SeqCst) == self.pid && slot.pid_ns.load(SeqCst) == self.pid_ns;
        if self.slot == 0 || is_its {
            self.slot
        } else {
            self.claim(slots)
        }
    }

    /// That slot.
    pub fn slot<'a>(&self, slots: &'a Slots) -> &'a Slot {
        &slots.slot[self.place(slots)]
    }

    /// Whether it is in a session inside of the one of `supervisor`, as it was when that was asked
    /// first: who starts a program is not changed by what that executes.
    #[must_use]
    pub fn is_inside(&self, supervisor: u32) -> bool {
        *self
            .is_inside
            .get_or_init(|| selector::is_inside(self.tid, supervisor))
    }

    /// Its executable, as it is now.
    #[must_use]
    pub fn exe(&self) -> Option<std::path::PathBuf> {
        std::fs::read_link(format!("/proc/{}/exe", self.tid)).ok()
    }

    /// Its effective user, as it is now.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        effective_user_of(self.tid)
    }
}

fn number(n: u32) -> io::Result<Pid> {
    Pid::from_raw(n.cast_signed()).ok_or_else(gone)
}

fn gone() -> io::Error {
    Errno::SRCH.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_are_known_where_more_ask_in_turn_than_there_is_room_for() {
        let mut known = HashMap::new();
        let mut met_again = 0;
        for _ in 0..10 {
            for tid in 0..300 {
                met_again += u32::from(known.contains_key(&tid));
                make_room(&mut known, 256, tid);
                known.insert(tid, ());
                assert!(known.len() <= 256);
            }
        }
        assert!(met_again > 1500, "{met_again} of 2,700");
    }
}
