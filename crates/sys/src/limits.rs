//! How long those system calls may wait that begin their time limit anew when they are disturbed.
//!
//! What the kernel goes on with by itself (poll, nanosleep, futex...) is not among them.

#[cfg(target_arch = "x86_64")]
use synclater_calls::{self as calls, Machine};

/// How long a call may wait, as its arguments have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Milliseconds.
    Milliseconds(u32),
    /// What lies at this address: seconds and nanoseconds, of so many bytes each.
    At(u64, usize),
    /// What `struct io_uring_getevents_arg` says, which lies at this address.
    OfRing(u64),
    /// As long as this socket may receive (SO_RCVTIMEO).
    Receiving(i32),
    /// As long as it may send (SO_SNDTIMEO) so many bytes; as many as there are where that is not
    /// known.
    Sending(i32, u64),
    /// The same, where it connects.
    Connecting(i32),
    /// What the call of socketcall(2) with this number says, whose arguments lie at this address.
    OfSocketCall(u64, u64),
}

/// A call with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// How long it may wait.
    pub limit: Limit,
    /// What it returns when that is over.
    pub result: i64,
}

/// Where a call has its limit; arguments are counted from 0.
#[derive(Clone, Copy)]
enum How {
    Milliseconds(usize),
    /// The argument, the bytes of a word of it, and the result.
    At(usize, usize, i64),
    OfRing,
    Receives,
    /// The argument that says how many bytes, if one does.
    Sends(Option<usize>),
    /// One message of several: each may take so long.
    ReceivesSome,
    SendsSome,
    Connects,
    SocketCall,
    Ipc,
}

/// What calls return: resource temporarily unavailable; timer expired; operation now in progress.
pub const EAGAIN: i64 = -11;
const ETIME: i64 = -62;
const EINPROGRESS: i64 = -115;

/// A call of x86-64, and one of i386.
#[cfg(target_arch = "x86_64")]
const fn long(name: &str) -> u32 {
    calls::number(Machine::X86_64, name)
}
#[cfg(target_arch = "x86_64")]
const fn small(name: &str) -> u32 {
    calls::number(Machine::I386, name)
}

/// Not sendfile and splice: each piece may take as long.
#[cfg(target_arch = "x86_64")]
const LIMITED: [(u32, How); 23] = [
    (long("read"), How::Receives),
    (long("write"), How::Sends(Some(2))),
    (long("readv"), How::Receives),
    (long("writev"), How::Sends(None)),
    (long("connect"), How::Connects),
    (long("accept"), How::Receives),
    (long("sendto"), How::Sends(Some(2))),
    (long("recvfrom"), How::Receives),
    (long("sendmsg"), How::Sends(None)),
    (long("recvmsg"), How::Receives),
    (long("rt_sigtimedwait"), How::At(2, 8, EAGAIN)),
    (long("io_getevents"), How::At(4, 8, 0)),
    (long("semtimedop"), How::At(3, 8, EAGAIN)),
    (long("epoll_wait"), How::Milliseconds(3)),
    (long("epoll_pwait"), How::Milliseconds(3)),
    (long("accept4"), How::Receives),
    (long("recvmmsg"), How::ReceivesSome),
    (long("sendmmsg"), How::SendsSome),
    (long("preadv2"), How::Receives),
    (long("pwritev2"), How::Sends(None)),
    (long("io_pgetevents"), How::At(4, 8, 0)),
    (long("io_uring_enter"), How::OfRing),
    (long("epoll_pwait2"), How::At(3, 8, 0)),
];
/// The same on i386, with the forms that take times of 64 bits.
#[cfg(target_arch = "x86_64")]
const LIMITED_32: [(u32, How); 27] = [
    (small("read"), How::Receives),
    (small("write"), How::Sends(Some(2))),
    (small("socketcall"), How::SocketCall),
    (small("ipc"), How::Ipc),
    (small("readv"), How::Receives),
    (small("writev"), How::Sends(None)),
    (small("rt_sigtimedwait"), How::At(2, 4, EAGAIN)),
    (small("io_getevents"), How::At(4, 4, 0)),
    (small("epoll_wait"), How::Milliseconds(3)),
    (small("epoll_pwait"), How::Milliseconds(3)),
    (small("recvmmsg"), How::ReceivesSome),
    (small("sendmmsg"), How::SendsSome),
    (small("connect"), How::Connects),
    (small("accept4"), How::Receives),
    (small("sendto"), How::Sends(Some(2))),
    (small("sendmsg"), How::Sends(None)),
    (small("recvfrom"), How::Receives),
    (small("recvmsg"), How::Receives),
    (small("preadv2"), How::Receives),
    (small("pwritev2"), How::Sends(None)),
    (small("io_pgetevents"), How::At(4, 4, 0)),
    (small("io_pgetevents_time64"), How::At(4, 8, 0)),
    (small("recvmmsg_time64"), How::ReceivesSome),
    (small("semtimedop_time64"), How::At(3, 8, EAGAIN)),
    (small("rt_sigtimedwait_time64"), How::At(2, 8, EAGAIN)),
    (small("io_uring_enter"), How::OfRing),
    (small("epoll_pwait2"), How::At(3, 8, 0)),
];
#[cfg(not(target_arch = "x86_64"))]
const LIMITED: [(u32, How); 0] = [];
#[cfg(not(target_arch = "x86_64"))]
const LIMITED_32: [(u32, How); 0] = [];

/// The limit of a call that is made with these arguments, by 64-bit code or by other; `None` where
/// it has none, or keeps it when it is disturbed.
#[must_use]
pub fn limited(call: u64, arguments: &[u64; 6], is_64: bool) -> Option<Limited> {
    let all: &[(u32, How)] = if is_64 { &LIMITED } else { &LIMITED_32 };
    let (_, how) = all.iter().find(|(number, _)| u64::from(*number) == call)?;
    let (limit, result) = match *how {
        How::Milliseconds(k) => (
            Limit::Milliseconds(u32::try_from(int(arguments[k])).ok()?),
            0,
        ),
        How::At(k, word, result) => (at(arguments[k], word)?, result),
        How::OfRing => {
            // IORING_ENTER_EXT_ARG; with ABS_TIMER the limit is a moment, with EXT_ARG_REG the
            // argument lies elsewhere.
            const KIND: u64 = 1 << 3 | 1 << 5 | 1 << 6;
            let is_such = arguments[3] & KIND == 1 << 3 && arguments[5] == 24;
            (
                Limit::OfRing(Some(arguments[4]).filter(|_| is_such)?),
                ETIME,
            )
        }
        How::Receives => (Limit::Receiving(int(arguments[0])), EAGAIN),
        How::Sends(bytes) => {
            let bytes = bytes.map_or(u64::MAX, |k| arguments[k]);
            (Limit::Sending(int(arguments[0]), bytes), EAGAIN)
        }
        How::ReceivesSome if int(arguments[2]) == 1 => {
            (Limit::Receiving(int(arguments[0])), EAGAIN)
        }
        How::SendsSome if int(arguments[2]) == 1 => {
            (Limit::Sending(int(arguments[0]), u64::MAX), EAGAIN)
        }
        How::ReceivesSome | How::SendsSome => return None,
        How::Connects => (Limit::Connecting(int(arguments[0])), EINPROGRESS),
        How::SocketCall => (Limit::OfSocketCall(arguments[0], arguments[1]), EAGAIN),
        How::Ipc => {
            const SEMTIMEDOP: u64 = 4;
            // The upper half is a version.
            let is_such = arguments[0] & 0xffff == SEMTIMEDOP;
            (at(Some(arguments[5]).filter(|_| is_such)?, 4)?, EAGAIN)
        }
    };
    Some(Limited { limit, result })
}

/// The lower half of an argument, as an `int` of C.
fn int(argument: u64) -> i32 {
    (argument as u32).cast_signed()
}

fn at(address: u64, word: usize) -> Option<Limit> {
    (address != 0).then_some(Limit::At(address, word))
}

/// The limit of a call of socketcall(2) with these first arguments.
#[must_use]
pub fn limited_socket_call(call: u64, arguments: [u32; 3]) -> Option<Limited> {
    let (socket, bytes) = (arguments[0].cast_signed(), arguments[2].into());
    let (limit, result) = match call {
        // connect
        3 => (Limit::Connecting(socket), EINPROGRESS),
        // accept, recv, recvfrom, recvmsg, accept4
        5 | 10 | 12 | 17 | 18 => (Limit::Receiving(socket), EAGAIN),
        // send, sendto; sendmsg
        9 | 11 => (Limit::Sending(socket, bytes), EAGAIN),
        16 => (Limit::Sending(socket, u64::MAX), EAGAIN),
        _ => return None,
    };
    Some(Limited { limit, result })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_where_the_call_has_it() {
        let never = u64::from(u32::MAX);
        let forever = u64::MAX;
        for (call, arguments, is_64, limit, result) in [
            (232, [3, 1, 1, 250, 0, 0], true, Limit::Milliseconds(250), 0),
            (
                256,
                [3, 1, 1, 250, 0, 0],
                false,
                Limit::Milliseconds(250),
                0,
            ),
            (220, [1, 2, 1, 64, 0, 0], true, Limit::At(64, 8), EAGAIN),
            (117, [4, 1, 1, 0, 2, 64], false, Limit::At(64, 4), EAGAIN),
            (426, [3, 0, 1, 9, 64, 24], true, Limit::OfRing(64), ETIME),
            (45, [3, 1, 1, 0, 0, 0], true, Limit::Receiving(3), EAGAIN),
            (1, [3, 1, 9, 0, 0, 0], true, Limit::Sending(3, 9), EAGAIN),
            (299, [3, 1, 1, 0, 0, 0], true, Limit::Receiving(3), EAGAIN),
        ] {
            let expected = Some(Limited { limit, result });
            assert_eq!(limited(call, &arguments, is_64), expected, "{call}");
        }
        for (call, arguments, is_64) in [
            (232, [3, 1, 1, never, 0, 0], true),
            (232, [3, 1, 1, forever, 0, 0], true),
            (220, [1, 2, 1, 0, 0, 0], true),
            (117, [3, 1, 1, 0, 2, 64], false),
            (426, [3, 0, 1, 1, 64, 8], true),
            (426, [3, 0, 1, 9 | 1 << 5, 64, 24], true),
            (7, [1, 1, 250, 0, 0, 0], true),
            (299, [3, 1, 2, 0, 0, 0], true),
            (275, [3, 0, 5, 0, 1, 0], true),
        ] {
            assert_eq!(limited(call, &arguments, is_64), None, "{call}");
        }
        let connects = Limited {
            limit: Limit::Connecting(3),
            result: EINPROGRESS,
        };
        assert_eq!(limited_socket_call(3, [3, 64, 16]), Some(connects));
        assert_eq!(limited_socket_call(1, [3, 64, 16]), None);
    }
}
