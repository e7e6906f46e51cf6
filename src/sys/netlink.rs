//! Questions to the kernel by netlink(7). Every call opens its own socket, so nothing is shared with a forked child.
use crate::sys::errno::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// A number at the head of `bytes`; 0 where they are too few.
pub fn word(bytes: &[u8]) -> u32 {
    bytes.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// `struct nlattr` after `struct rtattr`: kind and value.
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);
    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.get(..4)?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get((len + 3) & !3..).unwrap_or(&[]);
        Some((kind, value))
    }
}

/// A message to the kernel: its own header of 16 bytes, then what the caller adds.
pub struct Request {
    protocol: i32,
    /// The message so far; a family's header goes behind ours.
    pub bytes: Vec<u8>,
}

impl Request {
    const HEADER: usize = 16;

    /// An empty request of this type to the family `protocol` (`NETLINK_ROUTE`, `NETLINK_RDMA`).
    pub fn new(protocol: i32, kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; Self::HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
        bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
        Self { protocol, bytes }
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Sends the request and hands the body of every answering message to `f`.
    ///
    /// # Errors
    /// What the kernel answers, EAGAIN where it does not within a second, EPROTO for a cut message.
    pub fn ask(mut self, mut f: impl FnMut(&[u8])) -> Result<(), Errno> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let dump = self.bytes[7] as i32 & (libc::NLM_F_DUMP >> 8) != 0;
        let socket = open(self.protocol)?;
        // SAFETY: the buffer has the length given.
        let sent = unsafe { libc::send(socket.as_raw_fd(), self.bytes.as_ptr().cast(), self.bytes.len(), 0) };
        if sent < 0 {
            return Err(Errno::last());
        }
        // Not cleared, which would take longer than all the rest.
        let mut buffer: Vec<u8> = Vec::with_capacity(32 << 10);
        loop {
            buffer.clear();
            let (to, room) = (buffer.as_mut_ptr().cast(), buffer.capacity());
            // SAFETY: the buffer has the length given.
            let n = unsafe { libc::recv(socket.as_raw_fd(), to, room, 0) };
            if n < 0 {
                match Errno::last() {
                    Errno(libc::EINTR) => continue,
                    e => return Err(e),
                }
            }
            // SAFETY: the kernel has filled as many bytes, of those that it was given.
            unsafe { buffer.set_len(n as usize) };
            let mut rest = &buffer[..];
            while let Some(header) = rest.get(..Self::HEADER) {
                let len = word(header) as usize;
                let Some(body) = rest.get(Self::HEADER..len) else { return Err(Errno::EPROTO) };
                match i32::from(u16::from_ne_bytes([header[4], header[5]])) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return error(word(body) as i32),
                    _ => f(body),
                }
                if !dump {
                    return Ok(());
                }
                rest = rest.get((len + 3) & !3..).unwrap_or(&[]);
            }
        }
    }
}

fn error(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(-code)) }
}

fn open(protocol: i32) -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    let socket = super::fd::adopt(fd)?;
    // The kernel answers at once; a second without an answer means that it never will.
    let patience = libc::timeval { tv_sec: 1, tv_usec: 0 };
    // SAFETY: the option's value is a timeval of the length given.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of_val(&patience) as u32,
        );
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_a_cut_message_end_quietly() {
        let bytes = [8, 0, 1, 0, 9, 9, 9, 9, 200, 0, 2, 0, 1];
        assert_eq!(Attributes(&bytes).collect::<Vec<_>>(), [(1, &[9u8, 9, 9, 9][..])]);
    }
}
