//! The one message that each side sends on a new connection: who it is, and the descriptors of what it shares.
use super::layout::{self, MAGIC, VERSION};
use super::own::Own;
use super::remote::Remote;
use super::ring::Ring;
use crate::sys::{errno::Errno, log::explain, seqpacket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Bytes of the message: magic u64, version u32, length u32, nonce u64, pid u32, ring bytes u32; native byte order.
const BYTES: usize = 32;

/// Tells the peer who we are. Descriptors: our sending ring, our presence, and to a peer of our user our publication.
pub fn send(
    sock: BorrowedFd<'_>,
    own: &Own,
    ring: BorrowedFd<'_>,
    ring_bytes: usize,
    same_user: bool,
) -> Result<(), Errno> {
    let mut m = [0u8; BYTES];
    m[0..8].copy_from_slice(&MAGIC.to_ne_bytes());
    m[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    m[12..16].copy_from_slice(&(BYTES as u32).to_ne_bytes());
    m[16..24].copy_from_slice(&own.nonce().to_ne_bytes());
    m[24..28].copy_from_slice(&std::process::id().to_ne_bytes());
    m[28..32].copy_from_slice(&(ring_bytes as u32).to_ne_bytes());
    let fds = [ring, own.presence_fd(), own.publication_fd()];
    seqpacket::send(sock, &m, if same_user { &fds } else { &fds[..2] })
}

/// Takes the peer's message. Ok(None) when it has not come yet; EPROTO for anything that is not exactly what [`send`]
/// makes; EMFILE when this process can have no more descriptors; ENOTCONN when the peer hung up without a word.
pub fn receive(sock: BorrowedFd<'_>, same_user: bool) -> Result<Option<(Remote, Arc<Ring>)>, Errno> {
    let mut m = [0u8; BYTES];
    let got = match seqpacket::recv(sock, &mut m) {
        Err(Errno::EAGAIN) => return Ok(None),
        other => other?,
    };
    if got.len == 0 && got.fds.is_empty() {
        return Err(Errno(libc::ENOTCONN));
    }
    let wanted = if same_user { 3 } else { 2 };
    if got.truncated && got.fds.len() < wanted {
        explain(format_args!(
            "shm: no descriptors are left for what a peer shares; its connection is dropped: raise RLIMIT_NOFILE"
        ));
        return Err(Errno::EMFILE);
    }
    let u32_at = |i: usize| u32::from_ne_bytes([m[i], m[i + 1], m[i + 2], m[i + 3]]);
    let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| m[at + i]));
    let nonce = u64_at(16);
    let is_ours = got.len == BYTES
        && !got.truncated
        && got.fds.len() == wanted
        && u64_at(0) == MAGIC
        && u32_at(8) == VERSION
        && u32_at(12) == BYTES as u32
        && nonce & layout::NONCE_BIT != 0;
    if !is_ours {
        return Err(Errno::EPROTO);
    }
    let ring = Ring::attach(got.fds[0].as_fd(), u32_at(28) as usize)?;
    let publication = got.fds.get(2).map(|fd| fd.as_fd());
    let remote = Remote::attach(nonce, u32_at(24), got.fds[1].as_fd(), publication)?;
    Ok(Some((remote, ring)))
}
