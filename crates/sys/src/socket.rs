//! Local sockets that carry descriptors and tell who is at the other end.

use rustix::net::{
    recvmsg, sendmsg, socketpair, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage,
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Who is at the other end of a local socket, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Process; 0: it is in a pid namespace that is none of ours, nor below one of ours.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
}

/// Who is at the other end (SO_PEERCRED).
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer(socket: &UnixStream) -> io::Result<Peer> {
    // Not rustix: its number of a process is never 0.
    let (pid, uid, gid) = (0, 0, 0);
    let c = option(socket, libc::SO_PEERCRED, libc::ucred { pid, uid, gid })?;
    let (pid, uid) = (c.pid.unsigned_abs(), c.uid);
    Ok(Peer { pid, uid })
}

/// Whether who connected has ended, so that its number may be another's: a connection waits for as
/// long as it likes, held by whoever got it. Asked by SO_PEERPIDFD (Linux 6.5); false before.
#[must_use]
pub fn peer_has_ended(socket: &UnixStream) -> bool {
    const SO_PEERPIDFD: libc::c_int = 77;
    match option(socket, SO_PEERPIDFD, -1) {
        Ok(fd) => {
            // SAFETY: the call has made this descriptor, and nobody else knows it.
            let end = unsafe { OwnedFd::from_raw_fd(fd) };
            crate::wait::any(&[(end.as_fd(), crate::wait::For::Input)], Duration::ZERO)[0]
        }
        Err(e) => e.raw_os_error() != Some(rustix::io::Errno::NOPROTOOPT.raw_os_error()),
    }
}

/// What getsockopt(2) says of the socket itself, in place of `value`: something of C's that may be
/// of any bits.
fn option<T>(socket: &UnixStream, name: libc::c_int, mut value: T) -> io::Result<T> {
    let whole = size_of::<T>().try_into().map_err(io::Error::other)?;
    let mut size: libc::socklen_t = whole;
    let (level, to, len) = (libc::SOL_SOCKET, (&raw mut value).cast(), &raw mut size);
    // SAFETY: both point to variables of ours, and `size` is that of the one that is written.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, len) } {
        0 if size == whole => Ok(value),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Listens at an abstract name of exactly 32 bytes, without blocking.
///
/// # Errors
/// Those of bind(2).
pub fn listen_abstract(name: &[u8; 32]) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Two that are connected (`SOCK_SEQPACKET`): a message arrives whole, or the end when the other
/// one is closed everywhere.
///
/// # Errors
/// Those of socketpair(2).
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Sends `bytes` (not empty) with descriptors.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(SendFlags::empty(), socket, bytes, fds)
}

/// The same without waiting for room.
///
/// # Errors
/// Those of sendmsg(2); `EAGAIN`: there is none.
pub fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(SendFlags::DONTWAIT, socket, bytes, fds)
}

fn send_with(
    flags: SendFlags,
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        flags | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives up to `buf.len()` bytes and the descriptors that came with them.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(socket: impl AsFd, buf: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, flags)?;
    let fds = control.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((got.bytes, fds.flatten().collect()))
}
