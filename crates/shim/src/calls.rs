//! The system calls that are made in a running program that is attached: by the gate, by what its
//! sites lead to, and by the thread that brings it. What forbids calls to the program (seccomp) has
//! to let them pass; tests/calls.rs compares the list with the C.
//!
//! Promise: nothing else is called. [`MADE`] are calls that the program may know nothing of;
//! [`OWN`] are those that it asked for itself, made in its place.

use synclater_calls::{if_any, number, Machine};

/// What is known of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Nothing.
    Any,
    /// It is this number.
    Is(i64),
    /// It is the first on x86-64, the second on i386.
    By(i64, i64),
    /// It is some of these bits.
    Within(u32),
}
use Argument::{Any, By, Is, Within};

/// A call that is made for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its name.
    pub name: &'static str,
    /// Its number on x86-64.
    pub long: u32,
    /// Its number on i386.
    pub small: u32,
    /// Its arguments, the last ones of which are any.
    pub arguments: &'static [Argument],
    /// Whether it may fail: what it is for is then left to the kernel.
    pub may_fail: bool,
}

const fn made(name: &'static str, arguments: &'static [Argument]) -> Made {
    Made {
        name,
        long: number(Machine::X86_64, name),
        small: number(Machine::I386, name),
        arguments,
        may_fail: false,
    }
}

const fn if_possible(made: Made) -> Made {
    Made {
        may_fail: true,
        ..made
    }
}

const O_CREAT: u32 = 0o100;
const O_CLOEXEC: u32 = 0o2_000_000;

/// The calls that are made for us.
pub const MADE: &[Made] = &[
    made("read", &[]),
    made("close", &[]),
    made("mmap", &[Any, Any, Is(0), Is(0x10_4022), Is(-1), Is(0)]),
    made("mmap", &[Any, Any, Is(5), Is(0x12), Any, Is(0)]),
    made("mmap", &[Any, Any, Is(3), Is(0x12), Any]),
    made("mmap", &[Any, Any, Within(3), Is(0x11), Any, Is(0)]),
    made("mmap", &[Is(0), Any, Is(3), Is(1), Any]),
    made("mmap", &[Is(0), Any, Is(3), Is(0x22), Is(-1), Is(0)]),
    made("munmap", &[]),
    made("rt_sigprocmask", &[Is(2), Any, Any, Is(8)]),
    made("rt_sigprocmask", &[Is(1), Any, Any, Is(8)]),
    made("ioctl", &[Any, Is(0xc068_6611)]),
    made("ioctl", &[Any, By(0x8008_7601, 0x8004_7601)]),
    made("sched_yield", &[]),
    made("madvise", &[Any, Any, Is(18)]),
    made("madvise", &[Any, Any, Is(23)]),
    made("getpid", &[]),
    made("clone", &[Is(0x80_4100), Is(0), Is(0), Is(0), Is(0)]),
    made("exit", &[Is(0)]),
    made("wait4", &[Any, Any, Is(0x8000_0001), Any]),
    made("socket", &[Is(1), Is(0x8_0001), Is(0)]),
    made("connect", &[]),
    made("sendto", &[Any, Any, Is(8), Is(0x4040), Is(0), Is(0)]),
    made("recvmsg", &[Any, Any, Is(0x4000_0000)]),
    made("socketpair", &[Is(1), Is(0x8_0005), Is(0)]),
    made("setsockopt", &[Any, Is(1), Is(20)]),
    made("setsockopt", &[Any, Is(1), Is(21)]),
    made("getsockopt", &[Any, Is(1), Is(17)]),
    made("fcntl", &[Any, Is(3)]),
    made("fcntl", &[Any, Is(11)]),
    made("fcntl", &[Any, Is(10)]),
    made("fsync", &[]),
    made("fdatasync", &[]),
    made("geteuid", &[]),
    made("fstatfs", &[]),
    if_possible(made("prctl", &[Is(25)])),
    made("gettid", &[]),
    made("futex", &[Any, Is(0)]),
    made("futex", &[Any, Is(1), Is(1)]),
    made("clock_gettime", &[Is(0)]),
    made("tgkill", &[Any, Any, Is(23)]),
    if_possible(made("tgkill", &[Any, Any, Is(0)])),
    made("openat", &[Any, Any, Within(!O_CREAT), Is(0)]),
    made("readlinkat", &[]),
    made("sync_file_range", &[]),
    made("fallocate", &[Any, Is(0)]),
    made("dup3", &[Any, Any, Within(O_CLOEXEC)]),
    if_possible(made(
        "process_vm_readv",
        &[Any, Any, Is(1), Any, Is(1), Is(0)],
    )),
    if_possible(made("pwritev2", &[])),
    made("statx", &[]),
];

/// A call of the program's own that is made in its place, where it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its name.
    pub name: &'static str,
    /// Its number on x86-64, where it has one.
    pub long: Option<u32>,
    /// Its number on i386.
    pub small: u32,
    /// How many arguments it has.
    pub arguments: usize,
    /// Bits that may not be as the program has them, and of which argument.
    pub changed: &'static [(usize, u32)],
}

const fn own(name: &'static str, arguments: usize, changed: &'static [(usize, u32)]) -> Own {
    Own {
        name,
        long: if_any(Machine::X86_64, name),
        small: number(Machine::I386, name),
        arguments,
        changed,
    }
}

/// `O_SYNC`, of which `O_DSYNC` is a part.
const O_SYNC: u32 = 0o4_010_000;

/// The calls of the program's own.
pub const OWN: &[Own] = &[
    own("write", 3, &[]),
    own("open", 3, &[(1, O_SYNC)]),
    own("pwrite64", 6, &[]),
    own("writev", 3, &[]),
    own("msync", 3, &[(2, u32::MAX)]),
    own("sendfile", 4, &[]),
    own("sendfile64", 4, &[]),
    own("fcntl", 3, &[]),
    own("fcntl32", 3, &[]),
    own("sync", 0, &[]),
    own("umount2", 2, &[]),
    own("umount", 1, &[]),
    own("io_submit", 3, &[(1, u32::MAX), (2, u32::MAX)]),
    own("openat", 4, &[(2, O_SYNC)]),
    own("splice", 6, &[]),
    own("pwritev", 6, &[]),
    own("open_by_handle_at", 3, &[(2, O_SYNC)]),
    own("syncfs", 1, &[]),
    own("copy_file_range", 6, &[]),
    own("pwritev2", 6, &[(4, u32::MAX), (5, u32::MAX)]),
    own("openat2", 4, &[(2, u32::MAX)]),
];
