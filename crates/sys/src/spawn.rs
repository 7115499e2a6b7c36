//! posix_spawnp(3): no copy of our page tables, half of the time that fork takes. It can make
//! signals default but not ignored, and takes no script without `#!`.

use crate::signal::{add, empty_set};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, NulError, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Command;
use std::ptr::{null, null_mut};

/// Starts `command` with this signal mask, and the signals `default` as they are by default.
pub(crate) fn beside(
    command: &Command,
    mask: &libc::sigset_t,
    default: impl Iterator<Item = i32>,
) -> io::Result<u32> {
    let program = CString::new(command.get_program().as_bytes())?;
    let args = command.get_args().map(|a| CString::new(a.as_bytes()));
    let argv: Vec<CString> = std::iter::once(Ok(program.clone()))
        .chain(args)
        .collect::<Result<_, _>>()?;
    let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(name.to_owned(), value.to_owned()),
            None => variables.remove(name),
        };
    }
    let envp: Vec<CString> = variables
        .into_iter()
        .map(|(name, value)| variable(name, value))
        .collect::<Result<_, _>>()?;
    let mut set = empty_set();
    default.for_each(|s| add(&mut set, s));
    add_internal(&mut set);
    spawn(&program, &argv, &envp, mask, &set)
}

/// `NAME=VALUE`.
fn variable(mut name: OsString, value: OsString) -> Result<CString, NulError> {
    name.push("=");
    name.push(value);
    CString::new(name.into_vec())
}

/// glibc's own signals, 32 and 33, which its posix_spawn would leave ignored in the command, and
/// which its sigaddset(3) and sigaction(2) do not take: added unless we were started with them
/// ignored.
fn add_internal(set: &mut libc::sigset_t) {
    for signal in [32, 33] {
        // struct sigaction of the kernel: the handler comes first.
        let mut old = [0usize; 8];
        let (call, none, size) = (libc::SYS_rt_sigaction, null::<u8>(), size_of::<u64>());
        // SAFETY: nothing is changed, and `old` has room for the kernel's structure.
        let r = unsafe { libc::syscall(call, signal, none, old.as_mut_ptr(), size) };
        if r == 0 && old[0] != libc::SIG_IGN {
            // SAFETY: the set begins with the 64 bits that the kernel has of it.
            unsafe { *std::ptr::from_mut(set).cast::<u64>() |= 1 << (signal - 1) };
        }
    }
}

fn spawn(
    program: &CStr,
    argv: &[CString],
    envp: &[CString],
    mask: &libc::sigset_t,
    default: &libc::sigset_t,
) -> io::Result<u32> {
    let (argv, envp) = (pointers(argv), pointers(envp));
    let mut attributes = MaybeUninit::uninit();
    let a: *mut libc::posix_spawnattr_t = attributes.as_mut_ptr();
    let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
    let flags = libc::c_short::try_from(flags).unwrap_or(0);
    let mut pid = 0;
    // SAFETY: `a` has room for the attributes.
    let mut r = unsafe { libc::posix_spawnattr_init(a) };
    if r == 0 {
        // SAFETY: `a` is initialised by the call above, here and below; both sets are.
        unsafe { libc::posix_spawnattr_setsigmask(a, mask) };
        // SAFETY: as above.
        unsafe { libc::posix_spawnattr_setsigdefault(a, default) };
        // SAFETY: as above.
        unsafe { libc::posix_spawnattr_setflags(a, flags) };
        let (file, argv, envp) = (program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        // SAFETY: both arrays end with a null and point to strings that live through the call.
        r = unsafe { libc::posix_spawnp(&raw mut pid, file, null(), a, argv, envp) };
        // SAFETY: initialised above, and not used again.
        unsafe { libc::posix_spawnattr_destroy(a) };
    }
    match r {
        0 => Ok(pid.cast_unsigned()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Pointers to strings, and a null behind them.
fn pointers(list: &[CString]) -> Vec<*mut libc::c_char> {
    let all = list.iter().map(|s| s.as_ptr().cast_mut());
    all.chain([null_mut()]).collect()
}
