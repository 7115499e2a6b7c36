//! Which program is attached to which trace point.

use crate::kernel::{refused, Kernel};
use crate::{Error, Filter};
use libbpf_rs::{Link, Object, PerfEventOpts, ProgramMut};
use std::os::fd::{AsRawFd, IntoRawFd};
use synclater_sys::perf::event_for_program;
use synclater_sys::tracefs::Tracefs;

/// When a trace point is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// With [`Filter::writes`].
    Writes,
    /// Where io_uring's requests can be followed.
    Uring,
    /// With [`Filter::descendants`].
    Descendants,
}

/// Name, program, cookie (the kind, in c/record.h), and when.
type Enter = (&'static str, &'static str, u64, When);

/// Beginnings of system calls.
const ENTERS: [Enter; 12] = [
    ("fsync", "enter_fd", 1, When::Always),
    ("fdatasync", "enter_fd", 2, When::Always),
    ("sync", "enter_sync", 3, When::Always),
    ("syncfs", "enter_fd", 4, When::Always),
    ("msync", "enter_msync", 5, When::Always),
    ("sync_file_range", "enter_range", 6, When::Always),
    ("io_submit", "enter_io_submit", 0, When::Always),
    ("write", "enter_write", 0, When::Writes),
    ("pwrite64", "enter_write", 0, When::Writes),
    ("writev", "enter_write", 0, When::Writes),
    ("pwritev", "enter_write", 0, When::Writes),
    ("pwritev2", "enter_pwritev2", 0, When::Writes),
];

/// Trace points inside the kernel: name, program. One that is not there is told of.
const INSIDE: [(&str, &str, When); 9] = [
    ("sched_process_exit", "process_ends", When::Descendants),
    ("sched_process_fork", "process_forks", When::Descendants),
    ("io_uring_complete", "uring_complete", When::Uring),
    ("io_uring_submit_req", "uring_submit", When::Uring),
    ("ext4_sync_file_exit", "ext4_leave", When::Always),
    ("ext4_sync_file_enter", "ext4_enter", When::Always),
    ("btrfs_sync_file", "btrfs_sync", When::Always),
    ("xfs_file_fsync", "xfs_sync", When::Always),
    ("xfs_dir_fsync", "xfs_sync", When::Always),
];

fn applies(when: When, filter: &Filter, kernel: &Kernel) -> bool {
    match when {
        When::Always => true,
        When::Writes => filter.writes,
        When::Uring => kernel.follows_uring(),
        When::Descendants => filter.descendants,
    }
}

/// Whether a program of this name has anything to do.
pub(crate) fn is_used(program: &str, filter: &Filter, kernel: &Kernel) -> bool {
    let enters = ENTERS.iter().map(|e| (e.1, e.3));
    let inside = INSIDE.iter().map(|i| (i.1, i.2));
    let uses = enters.chain(inside).filter(|(name, _)| *name == program);
    let mut uses = uses.map(|(_, when)| when).peekable();
    // The programs for the ends of calls are in neither table.
    uses.peek().is_none() || uses.any(|when| applies(when, filter, kernel))
}

/// What is attached.
pub(crate) struct Attached {
    pub(crate) links: Vec<Link>,
    pub(crate) absent: Vec<&'static str>,
}

/// Attaches everything: ends before beginnings, so that no beginning waits for an end in vain.
pub(crate) fn attach(object: &Object, filter: &Filter, kernel: &Kernel) -> Result<Attached, Error> {
    let mut to = Attached {
        links: Vec::new(),
        absent: Vec::new(),
    };
    let tracefs = Tracefs::open().map_err(|e| refused("opening tracefs", &e))?;
    let calls: Vec<_> = ENTERS
        .iter()
        .filter(|e| applies(e.3, filter, kernel))
        .collect();
    let enters = ids(&tracefs, "enter", &calls);
    let exits = ids(&tracefs, "exit", &calls);
    let lacks: Vec<&str> = enters
        .iter()
        .chain(&exits)
        .filter_map(|id| id.as_ref().err())
        .map(String::as_str)
        .collect();
    if !lacks.is_empty() {
        return Err(Error::NoTracePoints(lacks.join(", ")));
    }
    for (call, id) in calls.iter().zip(exits.into_iter().flatten()) {
        let program = match call.0 {
            "io_submit" => "leave_io_submit",
            _ => "leave",
        };
        to.links.push(to_call(object, program, id, 0)?);
    }
    attach_inside(object, filter, kernel, &mut to)?;
    for (call, id) in calls.iter().zip(enters.into_iter().flatten()) {
        to.links.push(to_call(object, call.1, id, call.2)?);
    }
    Ok(to)
}

/// The numbers of the trace points at one side of calls, or the names of those that lack.
fn ids(tracefs: &Tracefs, side: &str, calls: &[&Enter]) -> Vec<Result<u64, String>> {
    let names = calls.iter().map(|c| format!("syscalls/sys_{side}_{}", c.0));
    names
        .map(|name| tracefs.id(&name).map_err(|_| name))
        .collect()
}

fn attach_inside(
    object: &Object,
    filter: &Filter,
    kernel: &Kernel,
    to: &mut Attached,
) -> Result<(), Error> {
    for (point, name, when) in INSIDE {
        if !applies(when, filter, kernel) {
            if when == When::Uring {
                to.absent.push(point);
            }
            continue;
        }
        match program(object, name)?.attach_raw_tracepoint(point) {
            Ok(link) => to.links.push(link),
            // Its file system is not there, or not yet.
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => to.absent.push(point),
            Err(e) => return Err(refused(&format!("attaching to {point}"), &e)),
        }
    }
    Ok(())
}

fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>, Error> {
    let found = object.progs_mut().find(|p| p.name() == name);
    found.ok_or_else(|| refused("the trace programs", &format!("there is no {name}")))
}

fn to_call(object: &Object, name: &str, id: u64, cookie: u64) -> Result<Link, Error> {
    let program = program(object, name)?;
    let event = event_for_program(id).map_err(|e| not_attached(name, &e))?;
    let options = PerfEventOpts {
        cookie,
        ..PerfEventOpts::default()
    };
    let link = program
        .attach_perf_event_with_opts(event.as_raw_fd(), options)
        .map_err(|e| not_attached(name, &e))?;
    // The link closes it.
    let _ = event.into_raw_fd();
    Ok(link)
}

fn not_attached(name: &str, e: &dyn std::fmt::Display) -> Error {
    refused(&format!("attaching {name}"), e)
}
