//! Why a process was not entered, or not let go of.

use super::super::refusal::{self, Refusal};
use super::waits::ENDS_WAITS;
use crate::reach::status::tracer_of;
use std::io;
use synclater_sys::{job, process};

/// Why it did not work.
#[derive(Debug)]
pub enum Failure {
    /// It may work a moment later: why not at this one.
    Busy(String),
    /// It will not work.
    Refused(Refusal),
}

/// Why a process is left alone whose memory another one has.
pub fn shares_memory(other: u32) -> Failure {
    Failure::Busy(format!(
        "process {other} runs in its memory (vfork, or CLONE_VM)"
    ))
}

pub(super) fn gone() -> Failure {
    Failure::Refused(refusal::has_ended())
}

/// Why process `pid` may not be traced, where PTRACE_SEIZE says `e`.
pub fn why_refused(pid: u32, e: &io::Error) -> String {
    match tracer_of(pid) {
        0 => match refused(pid, pid, e) {
            Failure::Refused(refusal) => refusal.why,
            Failure::Busy(why) => why,
        },
        tracer => format!("it is traced by {tracer} already"),
    }
}

/// What a refused PTRACE_SEIZE of thread `tid` of a process means.
pub(super) fn refused(pid: u32, tid: u32, e: &io::Error) -> Failure {
    let tracer = tracer_of(tid);
    if tracer != 0 && tracer != std::process::id() {
        let refusal = traced_by(tracer.into());
        return if traces_for_a_moment(tracer.into()) {
            Failure::Busy(refusal.why)
        } else {
            refusal.into()
        };
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let (why, try_) = match scope.trim() {
        "1" | "2" | "3" if !is_root() => (
            format!(
                "ptrace refused ({e}): kernel.yama.ptrace_scope is {}",
                scope.trim()
            ),
            format!("sudo synclater attach --pid {pid}"),
        ),
        "3" => (
            format!("ptrace refused ({e}): kernel.yama.ptrace_scope is 3"),
            "start it under synclater: synclater run -- COMMAND".to_owned(),
        ),
        _ => (
            format!("ptrace refused ({e})"),
            "end whatever traces it (strace, gdb), or try as root".to_owned(),
        ),
    };
    Failure::Refused(Refusal { why, try_ })
}

fn is_root() -> bool {
    process::effective_user() == 0
}

/// Whether it is one of ours that attaches, lets go or ends a wait: not one that follows.
pub fn traces_for_a_moment(tracer: u64) -> bool {
    let name = process::text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let name = name.trim().as_bytes();
    let ours = [job::WORKS, ENDS_WAITS].map(|name| name.to_bytes());
    ours.contains(&name)
}

/// What is said of a process that is traced by another one.
#[must_use]
pub fn traced_by(tracer: u64) -> Refusal {
    let name = process::text(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let why = format!("it is traced by {tracer} ({})", name.trim());
    Refusal::new(
        why,
        "end that (strace, gdb, another synclater), then try again",
    )
}
