//! Seccomp user notification (seccomp(2), seccomp_unotify(2)): a filter in the command that asks
//! about some of its calls, and the answers.
//!
//! Promise: what the kernel hands out lies in memory that several processes share ([`Seats`]), so
//! that a call whose answerer was killed can be answered by another one: the kernel writes there
//! before the process can die.
//! Relies on: Linux 5.19 (`SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`).

use crate::memory::Mapping;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

const NEW_LISTENER: libc::c_ulong = 1 << 3;
/// From the moment that an answerer has a call, only what kills interrupts it.
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;
const CONTINUE: u32 = 1;

/// Bytes of struct seccomp_notif, and of what is kept for one.
const NOTIFICATION: usize = 80;
const SEAT: usize = 128;
/// The word behind the notification: how far its answerer had come.
const STAGE_AT: usize = NOTIFICATION / 8;

/// A filter that the command installs in itself before it is executed.
pub struct Filter {
    program: Vec<libc::sock_filter>,
    door: RawFd,
    holders: usize,
    gives_up_rights: bool,
}

impl Filter {
    /// A filter of these instructions (code, jumps, operand). Its listener is sent `holders` times
    /// to `door`, a socket of sequenced packets that has to stay open until the command is started;
    /// or an errno, as four bytes, as often. `gives_up_rights`: with `PR_SET_NO_NEW_PRIVS`, which
    /// the kernel wants of those without CAP_SYS_ADMIN.
    #[must_use]
    pub fn new(
        program: &[(u16, u8, u8, u32)],
        door: BorrowedFd<'_>,
        holders: usize,
        gives_up_rights: bool,
    ) -> Filter {
        Filter {
            program: program.iter().map(instruction).collect(),
            door: door.as_raw_fd(),
            holders,
            gives_up_rights,
        }
    }

    /// Installs it. For the child of a fork: system calls only, all async-signal-safe.
    pub(crate) fn install(&self) -> io::Result<()> {
        let installed = self.try_to();
        if let Err(e) = &installed {
            let errno = e.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
            for _ in 0..self.holders {
                // SAFETY: four bytes of ours are read.
                unsafe { libc::send(self.door, errno.as_ptr().cast(), 4, libc::MSG_NOSIGNAL) };
            }
        }
        installed
    }

    fn try_to(&self) -> io::Result<()> {
        if self.gives_up_rights {
            // SAFETY: prctl takes numbers here.
            let r = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            if r != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let listener = set(&self.program, NEW_LISTENER | WAIT_KILLABLE_RECV)?;
        for _ in 0..self.holders {
            send_fd(self.door, listener)?;
        }
        // SAFETY: ours, and not used again.
        unsafe { libc::close(listener) };
        Ok(())
    }
}

fn instruction(&(code, jt, jf, k): &(u16, u8, u8, u32)) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Puts a filter on the calling process; with [`NEW_LISTENER`], its listener's number.
fn set(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<RawFd> {
    let of_it = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(0),
        filter: program.as_ptr().cast_mut(),
    };
    let mode = libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER);
    // SAFETY: the kernel reads `len` instructions of a live slice, and checks them.
    let r = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const of_it) };
    match r {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd as RawFd),
    }
}

/// Sends one byte with a descriptor; async-signal-safe.
fn send_fd(socket: RawFd, fd: RawFd) -> io::Result<()> {
    #[repr(C)]
    struct Control {
        head: libc::cmsghdr,
        fd: RawFd,
        padding: u32,
    }
    // SAFETY: zero is a value of each of its fields.
    let mut control: Control = unsafe { std::mem::zeroed() };
    // SAFETY: computes a number.
    control.head.cmsg_len = unsafe { libc::CMSG_LEN(4) } as _;
    control.head.cmsg_level = libc::SOL_SOCKET;
    control.head.cmsg_type = libc::SCM_RIGHTS;
    control.fd = fd;
    let mut byte = 0u8;
    let mut iov = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: every pointer leads to a value that lives through the call.
    match unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this kernel has what a net needs, and lets this process have it: as a trial, for a
/// process that ends afterwards. `gives_up_rights` as in [`Filter::new`].
///
/// # Errors
/// `EINVAL` before Linux 5.19, `EBUSY` where a filter around us has a listener already (a
/// container's), `EACCES` without CAP_SYS_ADMIN and without giving up rights.
pub fn try_out(gives_up_rights: bool) -> io::Result<()> {
    let pass = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    }];
    if gives_up_rights {
        // SAFETY: prctl takes numbers here.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    }
    set(&pass, NEW_LISTENER | WAIT_KILLABLE_RECV).map(|_| ())
}

/// Room for notifications, which the processes that answer share, also after a fork: in blocks,
/// each of one process.
pub struct Seats {
    memory: Mapping,
    blocks: usize,
    in_each: usize,
}

/// Seats of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(usize);

impl Seats {
    /// Room for `in_each` notifications of as many processes.
    ///
    /// # Errors
    /// Those of memfd_create(2), `ENOMEM`.
    pub fn new(blocks: usize, in_each: usize) -> io::Result<Seats> {
        use rustix::fs::{memfd_create, MemfdFlags};
        let file = File::from(memfd_create("net-seats", MemfdFlags::CLOEXEC)?);
        // One more for each block, where its owner stands, and one for all.
        let memory = Mapping::create(&file, (blocks * (in_each + 1) + 1) * SEAT)?;
        // Present from now on: the kernel writes here also for a process that is being killed.
        memory.bytes().iter().for_each(|b| b.store(0, SeqCst));
        Ok(Seats {
            memory,
            blocks,
            in_each,
        })
    }

    /// Seats of each block.
    #[must_use]
    pub fn in_each(&self) -> usize {
        self.in_each
    }

    /// A block that nobody has, for process `owner`.
    #[must_use]
    pub fn take(&self, owner: u32) -> Option<Block> {
        let mut blocks = (0..self.blocks).map(Block);
        blocks.find(|b| self.pass_on(*b, 0, owner))
    }

    /// Every block that somebody has, and who.
    pub fn taken(&self) -> impl Iterator<Item = (Block, u32)> + '_ {
        let all = (0..self.blocks).map(|b| (Block(b), self.owner(Block(b)).load(SeqCst) as u32));
        all.filter(|(_, owner)| *owner != 0)
    }

    /// Passes a block on from one owner to another; 0 is nobody. False where it was not the first
    /// one's.
    pub fn pass_on(&self, block: Block, from: u32, to: u32) -> bool {
        let (owner, from, to) = (self.owner(block), from.into(), to.into());
        owner.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    fn owner(&self, block: Block) -> &AtomicU64 {
        &self.at(block.0 * (self.in_each + 1)).0[0]
    }

    /// One seat of a block.
    #[must_use]
    pub fn seat(&self, block: Block, number: usize) -> Seat<'_> {
        self.at(block.0 * (self.in_each + 1) + 1 + number)
    }

    /// All seats of a block.
    pub fn seats(&self, block: Block) -> impl Iterator<Item = Seat<'_>> + '_ {
        (0..self.in_each).map(move |number| self.seat(block, number))
    }

    fn at(&self, index: usize) -> Seat<'_> {
        let bytes = &self.memory.bytes()[index * SEAT..(index + 1) * SEAT];
        // SAFETY: a mapping begins on a page, so each seat is aligned to 8; any bytes are valid.
        let (_, words, _) = unsafe { bytes.align_to::<AtomicU64>() };
        Seat(words)
    }

    /// Notes that a call was received.
    pub fn has_received(&self) {
        let all = self.at(self.blocks * (self.in_each + 1));
        all.0[0].fetch_add(1, SeqCst);
    }

    /// How many calls were received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.at(self.blocks * (self.in_each + 1)).word(0)
    }
}

/// Room for one notification: used by one thread at a time.
#[derive(Clone, Copy)]
pub struct Seat<'a>(&'a [AtomicU64]);

impl Seat<'_> {
    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Acquire)
    }

    /// The two halves of a word, in the order in which they lie.
    fn halves(&self, at: usize) -> (u32, u32) {
        let [a, b, c, d, e, f, g, h] = self.word(at).to_ne_bytes();
        let (first, second) = ([a, b, c, d], [e, f, g, h]);
        (u32::from_ne_bytes(first), u32::from_ne_bytes(second))
    }

    /// The call that was received here and not answered yet, if any.
    #[must_use]
    pub fn call(&self) -> Option<Call> {
        let (tid, _) = self.halves(1);
        let (number, arch) = self.halves(2);
        let id = self.word(0);
        (id != 0).then(|| Call {
            id,
            tid,
            number,
            arch,
            arguments: std::array::from_fn(|i| self.word(4 + i)),
        })
    }

    /// Forgets the call.
    pub fn clear(&self) {
        for word in self.0.iter().take(STAGE_AT + 1) {
            word.store(0, Release);
        }
    }

    /// How far its answerer has come: any number, 0 at first.
    #[must_use]
    pub fn stage(&self) -> u64 {
        self.word(STAGE_AT)
    }

    /// Notes how far it has come.
    pub fn set_stage(&self, stage: u64) {
        self.0[STAGE_AT].store(stage, Release);
    }
}

/// A call that waits for an answer (struct seccomp_notif).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number among the calls of this listener; never 0.
    pub id: u64,
    /// The thread that makes it, as we number it; 0 outside of our pid namespace.
    pub tid: u32,
    /// The kind of program (<linux/audit.h>).
    pub arch: u32,
    /// Which call.
    pub number: u32,
    /// Its arguments, as the registers hold them.
    pub arguments: [u64; 6],
}

impl Call {
    /// Whether it is one of an x32 program: 64-bit calls with 32-bit pointers.
    #[must_use]
    pub fn is_x32(&self) -> bool {
        self.arch == AUDIT_ARCH_X86_64 && self.number & X32 != 0
    }
}

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const X32: u32 = 0x4000_0000;

/// Whether this kernel runs x32 programs.
#[must_use]
pub fn has_x32() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    cfg!(target_arch = "x86_64") && *HAS.get_or_init(answers_x32)
}

fn answers_x32() -> bool {
    // SAFETY: getpid, under x32's number where there is one.
    unsafe { libc::syscall((X32 | 39).into()) > 0 }
}

/// What a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success, with this value.
    Value(i64),
    /// This errno.
    Errno(i32),
    /// It is made, by the program itself.
    Itself,
}

/// The end of a filter where its questions arrive.
pub struct Listener(OwnedFd);

impl Listener {
    /// From its descriptor. Asks the kernel to wake on the processor of who asks and of who
    /// answers, since one of both waits always (Linux 6.6).
    #[must_use]
    pub fn new(fd: OwnedFd) -> Listener {
        // SAFETY: the third argument is a number here.
        unsafe { libc::ioctl(fd.as_raw_fd(), SET_FLAGS as _, SYNC_WAKE_UP) };
        Listener(fd)
    }

    /// Waits for the next call, which then stands in `seat`.
    ///
    /// # Errors
    /// `EINTR`; `ENOENT` where who asked is gone, or nobody is left who could ask.
    pub fn receive(&self, seat: Seat<'_>) -> io::Result<Call> {
        seat.clear();
        let room = seat.0.as_ptr().cast_mut();
        // SAFETY: there is room for a notification, in memory that others may write at any time
        // and that is only read as atomics.
        let r = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE as _, room) };
        if r != 0 {
            return Err(io::Error::last_os_error());
        }
        seat.call().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Answers a call.
    ///
    /// # Errors
    /// `ENOENT` where it waits no longer, or was answered before.
    pub fn answer(&self, id: u64, answer: Answer) -> io::Result<()> {
        #[repr(C)]
        struct Response {
            id: u64,
            value: i64,
            error: i32,
            flags: u32,
        }
        let (value, error, flags) = match answer {
            Answer::Value(value) => (value, 0, 0),
            Answer::Errno(errno) => (0, -errno, 0),
            Answer::Itself => (0, 0, CONTINUE),
        };
        let mut response = Response {
            id,
            value,
            error,
            flags,
        };
        // SAFETY: struct seccomp_notif_resp, which the kernel reads.
        let r = unsafe { libc::ioctl(self.0.as_raw_fd(), SEND as _, &raw mut response) };
        if r == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Whether nobody is left who could ask.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.events() & libc::POLLHUP != 0
    }

    /// Whether a call waits that nobody has received.
    #[must_use]
    pub fn has_call(&self) -> bool {
        self.events() & libc::POLLIN != 0
    }

    fn events(&self) -> libc::c_short {
        let mut one = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which lives through the call.
        let n = unsafe { libc::poll(&raw mut one, 1, 0) };
        if n == 1 {
            one.revents
        } else {
            0
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What fsync(2) and fdatasync(2) say of a descriptor, without writing anything: by a
/// sync_file_range(2) of nothing, which says `ESPIPE` where they say `EINVAL`.
///
/// # Errors
/// `EBADF`, `EINVAL`.
pub fn check_fsync(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: numbers.
    if unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 1, 0) } == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() == Some(libc::ESPIPE) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Err(e)
}

/// sync_file_range(2).
///
/// # Errors
/// Its own.
pub fn sync_range(fd: BorrowedFd<'_>, at: i64, n: i64, flags: u32) -> io::Result<()> {
    // SAFETY: numbers.
    if unsafe { libc::sync_file_range(fd.as_raw_fd(), at, n, flags) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}
