//! The system calls that are made in a running program that is attached: by the gate, by what its
//! sites lead to, and by the thread that brings it. What forbids calls to the program (seccomp) has
//! to let them pass; tests/calls.rs compares the list with the C.
//!
//! Promise: nothing else is called. [`MADE`] are calls that the program may know nothing of;
//! [`OWN`] are those that it asked for itself, made in its place.

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

const fn made(name: &'static str, long: u32, small: u32, arguments: &'static [Argument]) -> Made {
    Made {
        name,
        long,
        small,
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
    made("read", 0, 3, &[]),
    made("close", 3, 6, &[]),
    made(
        "mmap",
        9,
        192,
        &[Any, Any, Is(0), Is(0x10_4022), Is(-1), Is(0)],
    ),
    made("mmap", 9, 192, &[Any, Any, Is(5), Is(0x12), Any, Is(0)]),
    made("mmap", 9, 192, &[Any, Any, Is(3), Is(0x12), Any]),
    made("mmap", 9, 192, &[Any, Any, Within(3), Is(0x11), Any, Is(0)]),
    made("mmap", 9, 192, &[Is(0), Any, Is(3), Is(1), Any]),
    made(
        "mmap",
        9,
        192,
        &[Is(0), Any, Is(3), Is(0x22), Is(-1), Is(0)],
    ),
    made("munmap", 11, 91, &[]),
    made("rt_sigprocmask", 14, 175, &[Is(2), Any, Any, Is(8)]),
    made("rt_sigprocmask", 14, 175, &[Is(1), Any, Any, Is(8)]),
    made("ioctl", 16, 54, &[Any, Is(0xc068_6611)]),
    made("ioctl", 16, 54, &[Any, By(0x8008_7601, 0x8004_7601)]),
    made("sched_yield", 24, 158, &[]),
    made("madvise", 28, 219, &[Any, Any, Is(18)]),
    made("madvise", 28, 219, &[Any, Any, Is(23)]),
    made("getpid", 39, 20, &[]),
    made(
        "clone",
        56,
        120,
        &[Is(0x80_4100), Is(0), Is(0), Is(0), Is(0)],
    ),
    made("exit", 60, 1, &[Is(0)]),
    made("wait4", 61, 114, &[Any, Any, Is(0x8000_0001), Any]),
    made("socket", 41, 359, &[Is(1), Is(0x8_0001), Is(0)]),
    made("connect", 42, 362, &[]),
    made(
        "sendto",
        44,
        369,
        &[Any, Any, Is(8), Is(0x4040), Is(0), Is(0)],
    ),
    made("recvmsg", 47, 372, &[Any, Any, Is(0x4000_0000)]),
    made("socketpair", 53, 360, &[Is(1), Is(0x8_0005), Is(0)]),
    made("setsockopt", 54, 366, &[Any, Is(1), Is(20)]),
    made("setsockopt", 54, 366, &[Any, Is(1), Is(21)]),
    made("getsockopt", 55, 365, &[Any, Is(1), Is(17)]),
    made("fcntl", 72, 221, &[Any, Is(3)]),
    made("fcntl", 72, 221, &[Any, Is(11)]),
    made("fcntl", 72, 221, &[Any, Is(10)]),
    made("fsync", 74, 118, &[]),
    made("fdatasync", 75, 148, &[]),
    made("geteuid", 107, 201, &[]),
    made("fstatfs", 138, 100, &[]),
    if_possible(made("prctl", 157, 172, &[Is(25)])),
    made("gettid", 186, 224, &[]),
    made("futex", 202, 240, &[Any, Is(0)]),
    made("futex", 202, 240, &[Any, Is(1), Is(1)]),
    made("clock_gettime", 228, 403, &[Is(0)]),
    made("tgkill", 234, 270, &[Any, Any, Is(23)]),
    if_possible(made("tgkill", 234, 270, &[Any, Any, Is(0)])),
    made("openat", 257, 295, &[Any, Any, Within(!O_CREAT), Is(0)]),
    made("readlinkat", 267, 305, &[]),
    made("sync_file_range", 277, 314, &[]),
    made("fallocate", 285, 324, &[Any, Is(0)]),
    made("dup3", 292, 330, &[Any, Any, Within(O_CLOEXEC)]),
    if_possible(made(
        "process_vm_readv",
        310,
        347,
        &[Any, Any, Is(1), Any, Is(1), Is(0)],
    )),
    if_possible(made("pwritev2", 328, 379, &[])),
    made("statx", 332, 383, &[]),
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

const fn own(
    name: &'static str,
    long: Option<u32>,
    small: u32,
    arguments: usize,
    changed: &'static [(usize, u32)],
) -> Own {
    Own {
        name,
        long,
        small,
        arguments,
        changed,
    }
}

/// `O_SYNC`, of which `O_DSYNC` is a part.
const O_SYNC: u32 = 0o4_010_000;

/// The calls of the program's own.
pub const OWN: &[Own] = &[
    own("write", Some(1), 4, 3, &[]),
    own("open", Some(2), 5, 3, &[(1, O_SYNC)]),
    own("pwrite64", Some(18), 181, 6, &[]),
    own("writev", Some(20), 146, 3, &[]),
    own("msync", Some(26), 144, 3, &[(2, u32::MAX)]),
    own("sendfile", Some(40), 187, 4, &[]),
    own("sendfile64", None, 239, 4, &[]),
    own("fcntl", Some(72), 221, 3, &[]),
    own("fcntl32", None, 55, 3, &[]),
    own("sync", Some(162), 36, 0, &[]),
    own("umount2", Some(166), 52, 2, &[]),
    own("umount", None, 22, 1, &[]),
    own(
        "io_submit",
        Some(209),
        248,
        3,
        &[(1, u32::MAX), (2, u32::MAX)],
    ),
    own("openat", Some(257), 295, 4, &[(2, O_SYNC)]),
    own("splice", Some(275), 313, 6, &[]),
    own("pwritev", Some(296), 334, 6, &[]),
    own("open_by_handle_at", Some(304), 342, 3, &[(2, O_SYNC)]),
    own("syncfs", Some(306), 344, 1, &[]),
    own("copy_file_range", Some(326), 377, 6, &[]),
    own(
        "pwritev2",
        Some(328),
        379,
        6,
        &[(4, u32::MAX), (5, u32::MAX)],
    ),
    own("openat2", Some(437), 437, 4, &[(2, u32::MAX)]),
];
