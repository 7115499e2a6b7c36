//! Programs that gain rights (setuid, setgid, capabilities): a program that is traced by anybody
//! but root does not gain them (execve(2)).
//!
//! Promise: such a program is executed once more, untraced, before its first instruction. Nothing
//! of the first time is left: execve(2) has replaced what it replaces already.

use super::begun::FollowOutcome;
use super::program::Program;
use crate::reach::program::exe_of;
use rustix::fs::{getxattr, statvfs, statx, AtFlags, StatVfsMountFlags, StatxFlags, CWD};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synclater_patching::start::aux;
use synclater_sys::process;
use synclater_sys::ptrace::{Stop, Thread};

/// Whether what a process executes gives rights to whoever executes it.
pub fn would_be_gained(pid: u32) -> bool {
    let exe = format!("/proc/{pid}/exe");
    const SETUID_OR_SETGID: u16 = 0o6000;
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let by_mode = statx(CWD, &exe, flags, StatxFlags::MODE)
        .is_ok_and(|seen| seen.stx_mode & SETUID_OR_SETGID != 0);
    let gives = by_mode || getxattr(&exe, "security.capability", &mut [0u8; 64][..]).is_ok();
    gives && !is_forbidden(pid, &exe)
}

/// Whether nobody gains rights by this process, or on this mount.
fn is_forbidden(pid: u32, exe: &str) -> bool {
    let by_process = process::status(pid).is_ok_and(|s| s.number("NoNewPrivs") == Some(1));
    by_process || statvfs(exe).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID))
}

/// Has a program executed again, with nobody tracing it: once it is let go of.
pub fn give_back(mut thread: Thread, program: &Program) -> (Thread, FollowOutcome) {
    let exe = exe_of(program.pid);
    let begun = match again(&mut thread, program) {
        Ok(()) => {
            let why = "it gains rights, which whoever is traced does not: not followed, nor is \
                       what it starts (as root both are)";
            let why = why.into();
            FollowOutcome::Left { exe, why }
        }
        Err(e) => {
            let why = format!("it was to gain rights and does not, being traced ({e})");
            FollowOutcome::Missed { exe, why }
        }
    };
    (thread, begun)
}

fn again(thread: &mut Thread, program: &Program) -> io::Result<()> {
    leave_call(thread)?;
    let registers = thread.registers()?;
    let vdso = program.stack.aux(aux::VDSO);
    let vdso = vdso.ok_or(io::ErrorKind::Unsupported)?;
    let code = program.memory.up_to(vdso, 4096)?;
    let enter = code
        .windows(2)
        .position(|two| two == registers.entry())
        .ok_or(io::ErrorKind::Unsupported)?;
    let (args, env) = program.stack.lists();
    let path = match executed_as(program) {
        Some(path) => path,
        None => own_link(program, registers.sp())?,
    };
    thread.send(&registers.to_execute(vdso + enter as u64, path, args, env))
}

/// Has the thread come out of execve(2), which puts its result where the next number is to be, up
/// to its first instruction.
fn leave_call(thread: &mut Thread) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    thread.interrupt();
    thread.go();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match thread.look() {
            None => std::thread::sleep(Duration::from_micros(20)),
            Some(Stop::Gone) => return Err(io::ErrorKind::NotFound.into()),
            Some(_) => return Ok(()),
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Where the name is that was executed, if it still leads to the program.
fn executed_as(program: &Program) -> Option<u64> {
    let at = program.stack.aux(aux::EXECFN)?;
    let text = program.memory.up_to(at, 4096).ok()?;
    let name = text.split(|b| *b == 0).next()?;
    let seen = program.as_seen(Path::new(OsStr::from_bytes(name)));
    is_it(program, &seen).then_some(at)
}

fn is_it(program: &Program, file: &Path) -> bool {
    let exe = PathBuf::from(format!("/proc/{}/exe", program.pid));
    id_of(file).is_some_and(|found| Some(found) == id_of(&exe))
}

/// The device and the number of a file.
fn id_of(path: &Path) -> Option<(u64, u64)> {
    let seen = std::fs::metadata(path).ok()?;
    Some((seen.dev(), seen.ino()))
}

/// Writes the kernel's own link to the program below the stack, and says where.
fn own_link(program: &Program, sp: u64) -> io::Result<u64> {
    let name = format!("/proc/{}/exe\0", program.pid);
    let seen = program.as_seen(Path::new(name.trim_end_matches('\0')));
    if !is_it(program, &seen) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let at = sp - 512;
    program.memory.write(at, name.as_bytes())?;
    Ok(at)
}
