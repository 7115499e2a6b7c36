//! Processes that begin or execute another program, as the kernel tells it (the process events of
//! netlink's connector). It takes CAP_NET_ADMIN in the first namespaces.
//!
//! Not promised: that every event arrives; where they come faster than they are read, some are
//! lost.

use rustix::net::netlink::{SocketAddrNetlink, CONNECTOR};
use rustix::net::{
    bind, recv, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Numbers of linux/connector.h and linux/cn_proc.h.
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_EXEC: u32 = 2;

/// Headers in front of an event: of netlink, and of the connector.
const HEADERS: usize = 16 + 20;
const NLMSG_DONE: u16 = 3;

/// Tells which processes have executed a program.
pub struct Births(OwnedFd);

impl Births {
    /// From now on.
    ///
    /// # Errors
    /// `EPERM` without the right; `EPROTONOSUPPORT` on a kernel without it.
    pub fn listen() -> io::Result<Births> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::DGRAM;
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(CONNECTOR))?;
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC))?;
        let mut message = Vec::new();
        words(&[(HEADERS + 4) as u32], &mut message);
        message.extend(NLMSG_DONE.to_ne_bytes());
        message.extend([0; 2]);
        words(&[0, 0, CN_IDX_PROC, CN_VAL_PROC, 0, 0, 4], &mut message);
        words(&[PROC_CN_MCAST_LISTEN], &mut message);
        send(&socket, &message, SendFlags::empty())?;
        Ok(Births(socket))
    }

    /// Processes that have executed a program since the last call.
    #[must_use]
    pub fn next(&self) -> BTreeSet<u32> {
        let mut all = BTreeSet::new();
        let mut buf = [0u8; 512];
        while let Ok((n, _)) = recv(&self.0, &mut buf[..], RecvFlags::empty()) {
            all.extend(executed(&buf[..n]));
        }
        all
    }
}

impl AsFd for Births {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn words(list: &[u32], message: &mut Vec<u8>) {
    list.iter().for_each(|w| message.extend(w.to_ne_bytes()));
}

/// The process of an event, where it has executed a program.
fn executed(message: &[u8]) -> Option<u32> {
    // what, cpu, timestamp (8 bytes), process, thread group.
    (word(message, 0)? == PROC_EVENT_EXEC).then(|| word(message, 20))?
}

/// The word at `at` of an event.
fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(HEADERS + at..HEADERS + at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_executes_is_heard_of() {
        let Ok(births) = Births::listen() else {
            eprintln!("skipped: process events take CAP_NET_ADMIN in the first namespaces");
            return;
        };
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let pid = child.id();
        let _ = child.wait();
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            seen.extend(births.next());
            if seen.contains(&pid) {
                return;
            }
            let fds = [(births.as_fd(), crate::wait::For::Input)];
            let _ = crate::wait::any(&fds, std::time::Duration::from_millis(50));
        }
        panic!("{pid} is not among {seen:?}");
    }

    #[test]
    fn what_is_no_event_is_none() {
        for n in [0, HEADERS, HEADERS + 8, HEADERS + 23] {
            assert_eq!(executed(&vec![2; n]), None, "{n}");
        }
    }
}
