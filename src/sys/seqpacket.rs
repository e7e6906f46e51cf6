//! Abstract SEQPACKET unix sockets: messages keep their bounds, may carry descriptors, and a dead peer hangs up.
use super::fork::ParentFd;
use super::{errno::Errno, fd, uncancelled};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Descriptors that one message may carry here.
pub const MAX_FDS: usize = 4;

const SO_PEERPIDFD: i32 = 77;

/// Who is at the other end, as the kernel saw it at connect(2) or listen(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cred {
    /// Process id in our PID namespace; 0 where it has none there.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
}

/// Binds the abstract name and listens. EADDRINUSE where somebody holds it.
pub fn listen(name: &str) -> Result<ParentFd, Errno> {
    let sock = socket()?;
    let (addr, len) = address(name)?;
    // SAFETY: `addr` is ours and `len` bytes of it are valid.
    check(unsafe { libc::bind(sock.as_raw_fd(), (&raw const addr).cast(), len) })?;
    // SAFETY: listen takes integers.
    check(unsafe { libc::listen(sock.as_raw_fd(), 4096) })?;
    Ok(ParentFd::new(sock))
}

/// Connects to the abstract name without waiting. ECONNREFUSED where nobody listens, EAGAIN where too many are queued.
pub fn connect(name: &str) -> Result<ParentFd, Errno> {
    let sock = socket()?;
    let (addr, len) = address(name)?;
    // SAFETY: `addr` is ours and `len` bytes of it are valid.
    check(unsafe { uncancelled::connect(sock.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(ParentFd::new(sock))
}

/// A datagram socket that can only be seen, or be used for [`is_marked`].
///
/// # Errors
/// Those of socket(2).
pub fn probe() -> Result<ParentFd, Errno> {
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    Ok(ParentFd::new(fd::adopt(fd)?))
}

/// Marks the abstract name as taken while the descriptor is open. Names of different types of sockets do not collide.
/// EADDRINUSE where somebody else has marked it.
pub fn mark(name: &str) -> Result<ParentFd, Errno> {
    let sock = probe()?;
    let (addr, len) = address(name)?;
    // SAFETY: `addr` is ours and `len` bytes of it are valid.
    check(unsafe { libc::bind(sock.as_fd().as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(sock)
}

/// Whether somebody has marked the abstract name.
pub fn is_marked(probe: BorrowedFd<'_>, name: &str) -> bool {
    let Ok((addr, len)) = address(name) else { return false };
    // SAFETY: `addr` is ours and `len` bytes of it are valid.
    let rc = unsafe { uncancelled::connect(probe.as_raw_fd(), (&raw const addr).cast(), len) };
    rc == 0
}

/// A datagram socket that only bears a name, and may be inherited by a child. Errors are those of socket(2) and bind(2).
pub fn named(name: &str) -> Result<OwnedFd, Errno> {
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    let sock = fd::adopt(fd)?;
    let (addr, len) = address(name)?;
    // SAFETY: `addr` is ours and `len` bytes of it are valid; shutdown takes integers.
    unsafe {
        check(libc::bind(sock.as_raw_fd(), (&raw const addr).cast(), len))?;
        // Nobody has anything to say to it.
        libc::shutdown(sock.as_raw_fd(), libc::SHUT_WR);
    }
    Ok(sock)
}

/// The abstract name that a socket bears; none for any other descriptor.
pub fn name_of(fd: BorrowedFd<'_>) -> Option<String> {
    // SAFETY: sockaddr_un is plain data for which zero is valid.
    let mut addr: libc::sockaddr_un = unsafe { zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: room for an address and its length.
    if unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut addr).cast(), &mut len) } < 0 {
        return None;
    }
    let path = (len as usize).checked_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path))?;
    let is_abstract =
        addr.sun_family == libc::AF_UNIX as libc::sa_family_t && path > 1 && addr.sun_path[0] == 0;
    let bytes = addr.sun_path.get(1..path)?.iter().map(|c| *c as u8).collect();
    is_abstract.then(|| String::from_utf8(bytes).ok()).flatten()
}

/// The next connection of a listener. EAGAIN when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> Result<ParentFd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    Ok(ParentFd::new(fd::adopt(uncancelled::accept(listener.as_raw_fd(), flags))?))
}

/// Sends one message with descriptors; never waits, never raises SIGPIPE.
pub fn send(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut raw = [0 as RawFd; MAX_FDS];
    let raw = raw.get_mut(..fds.len()).ok_or(Errno::EINVAL)?;
    raw.iter_mut().zip(fds).for_each(|(to, from)| *to = from.as_raw_fd());
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control::new();
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if !raw.is_empty() {
        let data = size_of_val(raw);
        msg.msg_control = (&raw mut control).cast();
        // SAFETY: the buffer has room for MAX_FDS descriptors, checked above, and is aligned for cmsghdr.
        unsafe {
            msg.msg_controllen = libc::CMSG_SPACE(data as u32) as _;
            let cmsg = libc::CMSG_FIRSTHDR(&msg);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(data as u32) as _;
            std::ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(cmsg), data);
        }
    }
    // SAFETY: every pointer in `msg` is to a local that lives through the call.
    let n = unsafe { uncancelled::sendmsg(sock.as_raw_fd(), &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// A message: its true length (which may exceed the buffer) and what descriptors came with it.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message; 0 also when the peer has hung up.
    pub len: usize,
    /// The descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// More descriptors came than there is room for here, or than this process may have; those are closed already.
    pub truncated: bool,
}

/// Takes one message without waiting. EAGAIN when there is none.
pub fn recv(sock: BorrowedFd<'_>, buf: &mut [u8]) -> Result<Received, Errno> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = Control::new();
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC;
    // SAFETY: every pointer in `msg` is to a buffer of the length given.
    let mut n = unsafe { uncancelled::recvmsg(sock.as_raw_fd(), &mut msg, flags) };
    if n < 0 && Errno::last().0 == libc::ECONNRESET {
        // The peer left without reading everything. That is told once, before what it had sent.
        msg.msg_controllen = size_of::<Control>() as _;
        // SAFETY: as above.
        n = unsafe { uncancelled::recvmsg(sock.as_raw_fd(), &mut msg, flags) };
    }
    let len = usize::try_from(n).map_err(|_| Errno::last())?;
    let mut fds = Vec::new();
    let mut truncated = msg.msg_flags & libc::MSG_CTRUNC != 0;
    // SAFETY: the kernel filled msg_control; CMSG_* walk within msg_controllen; SCM_RIGHTS data are descriptors now ours.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(&msg);
        while !cmsg.is_null() {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let data = ((*cmsg).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                for i in 0..data / size_of::<RawFd>() {
                    match fd::adopt(first.add(i).read_unaligned()) {
                        Ok(fd) => fds.push(fd),
                        Err(_) => truncated = true,
                    }
                }
            }
            cmsg = libc::CMSG_NXTHDR(&msg, cmsg);
        }
    }
    Ok(Received { len, fds, truncated })
}

/// The other end's credentials (SO_PEERCRED).
pub fn peer_cred(sock: BorrowedFd<'_>) -> Result<Cred, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `cred` and `len` are ours and match.
    check(unsafe {
        libc::getsockopt(
            sock.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &mut len,
        )
    })?;
    Ok(Cred { pid: cred.pid, uid: cred.uid })
}

/// The other end's process: SO_PEERPIDFD (Linux 6.5), else pidfd_open of its pid. None where neither works.
pub fn peer_pidfd(sock: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut fd: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: `fd` and `len` are ours and match.
    let ok = unsafe {
        libc::getsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &mut len)
    };
    if ok == 0 && fd >= 0 {
        return fd::adopt(fd).ok();
    }
    if Errno::last().0 != libc::ENOPROTOOPT {
        return None;
    }
    let pid = peer_cred(sock).ok()?.pid;
    if pid > 0 { super::pidfd::open(pid).ok() } else { None }
}

/// Ends the connection for both sides, whoever else holds a copy of the descriptor.
pub fn shutdown(sock: BorrowedFd<'_>) {
    // SAFETY: shutdown takes integers.
    unsafe { libc::shutdown(sock.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Room for MAX_FDS descriptors, aligned for cmsghdr.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl Control {
    fn new() -> Self {
        Self([0; 64])
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    fd::adopt(fd)
}

fn address(name: &str) -> Result<(libc::sockaddr_un, libc::socklen_t), Errno> {
    // SAFETY: sockaddr_un is plain data for which zero is valid.
    let mut addr: libc::sockaddr_un = unsafe { zeroed() };
    addr.sun_family = libc::AF_UNIX as _;
    let room = addr.sun_path.get_mut(1..=name.len()).ok_or(Errno::EINVAL)?;
    room.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as _);
    let path = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    Ok((addr, (path + 1 + name.len()) as libc::socklen_t))
}

fn check(result: i32) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{epoll, eventfd::EventFd, random};

    fn pair() -> (ParentFd, ParentFd) {
        let name = format!("anyverbs-test-{:016x}", random::u64());
        let listener = listen(&name).unwrap();
        assert_eq!(listen(&name).unwrap_err(), Errno::EADDRINUSE);
        let a = connect(&name).unwrap();
        let b = accept(listener.as_fd()).unwrap();
        assert_eq!(accept(listener.as_fd()).unwrap_err(), Errno::EAGAIN);
        (a, b)
    }

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (a, b) = pair();
        let event = EventFd::new().unwrap();
        send(a.as_fd(), b"hello", &[event.as_fd(), event.as_fd()]).unwrap();
        send(a.as_fd(), b"x", &[]).unwrap();
        let mut buf = [0; 3];
        let got = recv(b.as_fd(), &mut buf).unwrap();
        assert_eq!((got.len, &buf, got.fds.len(), got.truncated), (5, b"hel", 2, false));
        assert_eq!(recv(b.as_fd(), &mut buf).unwrap().len, 1);
        assert_eq!(recv(b.as_fd(), &mut buf).unwrap_err(), Errno::EAGAIN);
        event.signal();
        assert!(epoll::is_ready(got.fds[1].as_fd(), epoll::IN, 0));
    }

    #[test]
    fn credentials_are_those_of_the_other_end() {
        let (a, b) = pair();
        // SAFETY: getpid and geteuid only ask.
        let me = unsafe { Cred { pid: libc::getpid(), uid: libc::geteuid() } };
        assert_eq!(peer_cred(a.as_fd()), Ok(me));
        assert_eq!(peer_cred(b.as_fd()), Ok(me));
        assert!(peer_pidfd(a.as_fd()).is_some());
    }

    #[test]
    fn nobody_listening_is_refused_and_a_dropped_end_hangs_up() {
        assert_eq!(
            connect(&format!("anyverbs-test-{:016x}", random::u64())).unwrap_err(),
            Errno::ECONNREFUSED
        );
        let (a, b) = pair();
        drop(a);
        assert!(epoll::is_ready(b.as_fd(), epoll::HUP, 10_000));
    }
}
