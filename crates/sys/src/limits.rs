//! How long those system calls may wait that begin their time limit anew when they are disturbed.
//!
//! What the kernel goes on with by itself (poll, nanosleep, futex...) is not among them.

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

/// read, write, readv, writev, connect, accept, sendto, recvfrom, sendmsg, recvmsg,
/// rt_sigtimedwait, io_getevents, semtimedop, epoll_wait, epoll_pwait, accept4, recvmmsg, sendmmsg,
/// preadv2, pwritev2, io_pgetevents, io_uring_enter, epoll_pwait2. Not sendfile and splice: each
/// piece may take as long.
#[cfg(target_arch = "x86_64")]
const LIMITED: [(u64, How); 23] = [
    (0, How::Receives),
    (1, How::Sends(Some(2))),
    (19, How::Receives),
    (20, How::Sends(None)),
    (42, How::Connects),
    (43, How::Receives),
    (44, How::Sends(Some(2))),
    (45, How::Receives),
    (46, How::Sends(None)),
    (47, How::Receives),
    (128, How::At(2, 8, EAGAIN)),
    (208, How::At(4, 8, 0)),
    (220, How::At(3, 8, EAGAIN)),
    (232, How::Milliseconds(3)),
    (281, How::Milliseconds(3)),
    (288, How::Receives),
    (299, How::ReceivesSome),
    (307, How::SendsSome),
    (327, How::Receives),
    (328, How::Sends(None)),
    (333, How::At(4, 8, 0)),
    (426, How::OfRing),
    (441, How::At(3, 8, 0)),
];
/// The same on i386: read, write, socketcall, ipc, readv, writev, rt_sigtimedwait, io_getevents,
/// epoll_wait, epoll_pwait, recvmmsg, sendmmsg, connect, accept4, sendto, sendmsg, recvfrom,
/// recvmsg, preadv2, pwritev2, io_pgetevents; with times of 64 bits io_pgetevents, recvmmsg,
/// semtimedop, rt_sigtimedwait, io_uring_enter, epoll_pwait2.
#[cfg(target_arch = "x86_64")]
const LIMITED_32: [(u64, How); 27] = [
    (3, How::Receives),
    (4, How::Sends(Some(2))),
    (102, How::SocketCall),
    (117, How::Ipc),
    (145, How::Receives),
    (146, How::Sends(None)),
    (177, How::At(2, 4, EAGAIN)),
    (247, How::At(4, 4, 0)),
    (256, How::Milliseconds(3)),
    (319, How::Milliseconds(3)),
    (337, How::ReceivesSome),
    (345, How::SendsSome),
    (362, How::Connects),
    (364, How::Receives),
    (369, How::Sends(Some(2))),
    (370, How::Sends(None)),
    (371, How::Receives),
    (372, How::Receives),
    (378, How::Receives),
    (379, How::Sends(None)),
    (385, How::At(4, 4, 0)),
    (416, How::At(4, 8, 0)),
    (417, How::ReceivesSome),
    (420, How::At(3, 8, EAGAIN)),
    (421, How::At(2, 8, EAGAIN)),
    (426, How::OfRing),
    (441, How::At(3, 8, 0)),
];
#[cfg(not(target_arch = "x86_64"))]
const LIMITED: [(u64, How); 0] = [];
#[cfg(not(target_arch = "x86_64"))]
const LIMITED_32: [(u64, How); 0] = [];

/// The limit of a call that is made with these arguments, by 64-bit code or by other; `None` where
/// it has none, or keeps it when it is disturbed.
#[must_use]
pub fn limited(call: u64, arguments: &[u64; 6], is_64: bool) -> Option<Limited> {
    let all: &[(u64, How)] = if is_64 { &LIMITED } else { &LIMITED_32 };
    let (_, how) = all.iter().find(|(number, _)| *number == call)?;
    let number = |k: usize| (arguments[k] as u32).cast_signed();
    let (limit, result) = match *how {
        How::Milliseconds(k) => (Limit::Milliseconds(u32::try_from(number(k)).ok()?), 0),
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
        How::Receives => (Limit::Receiving(number(0)), EAGAIN),
        How::Sends(bytes) => {
            let bytes = bytes.map_or(u64::MAX, |k| arguments[k]);
            (Limit::Sending(number(0), bytes), EAGAIN)
        }
        How::ReceivesSome if number(2) == 1 => (Limit::Receiving(number(0)), EAGAIN),
        How::SendsSome if number(2) == 1 => (Limit::Sending(number(0), u64::MAX), EAGAIN),
        How::ReceivesSome | How::SendsSome => return None,
        How::Connects => (Limit::Connecting(number(0)), EINPROGRESS),
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
