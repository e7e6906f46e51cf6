//! Where other processes of this user ask for what lies here: an XRC receiver to be opened, device memory to be imported.
//!
//! A desk listens at abstract unix sockets. Their names hold the slot of the QPs that can be opened, or the number that
//! names the process. Who opens a QP keeps the connection: requests go over it, events and changes come over it, and its
//! end is the handle's. `guest` serves those who ask, `opened` is the other side.
mod guest;
pub mod message;
mod opened;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use guest::Guest;
use message::{BYTES, Kind, Message};
pub use opened::{Opened, Shared};

use crate::soft::channel::AsyncQueue;
use crate::soft::node::Node;
use crate::soft::types::Qpn;
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::{clock, epoll, seqpacket};

/// Tokens from here on are a desk's.
pub const FIRST_TOKEN: u64 = 1 << 48;
/// Handles that processes may have of QPs of this one.
const GUESTS: usize = 4096;
/// Messages that one event of a connection handles.
const ROUND: usize = 64;
/// How long a request waits for its answer.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The desk of a process, and the QPs that it has open at others'.
#[derive(Debug, Default)]
pub struct Desk {
    places: Lock<Vec<(String, u64, ParentFd)>>,
    guests: Lock<HashMap<u64, Arc<Guest>>>,
    opened: Lock<HashMap<u64, Weak<Opened>>>,
    last_token: AtomicU64,
    /// Held while a QP of a process that is gone is made anew for another one.
    restoring: Lock<()>,
    /// Where events of QPs go that no handle of this process stands for.
    silence: OnceLock<Arc<AsyncQueue>>,
}

fn name_of_slot(slot: u16) -> String {
    format!("anyverbs/open/{slot}")
}

fn name_of_process(nonce: u64) -> String {
    format!("anyverbs/desk/{nonce:016x}")
}

impl Desk {
    /// Lets other processes open the shared QPs of a slot.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn attend_slot(&self, node: &Node, slot: u16) -> Result<(), Errno> {
        self.attend(node, name_of_slot(slot))
    }

    /// Lets other processes import what this one exports. Errors as `attend_slot`.
    pub fn attend_process(&self, node: &Node) -> Result<(), Errno> {
        self.attend(node, name_of_process(node.wires.own().nonce()))
    }

    fn attend(&self, node: &Node, name: String) -> Result<(), Errno> {
        let mut places = self.places.lock();
        if places.iter().any(|(known, ..)| *known == name) {
            return Ok(());
        }
        let listener = seqpacket::listen(&name)?;
        let token = self.new_token();
        node.engine.add(listener.as_fd(), token)?;
        places.push((name, token, listener));
        Ok(())
    }

    fn new_token(&self) -> u64 {
        FIRST_TOKEN + self.last_token.fetch_add(1, Ordering::Relaxed)
    }

    /// A descriptor of the desk's is ready.
    pub fn event(&self, node: &'static Node, token: u64) {
        let guest = self.guests.lock().get(&token).cloned();
        if let Some(guest) = guest {
            if !guest.serve(node) {
                self.guests.lock().remove(&token);
                node.engine.remove(guest.socket());
                guest.leave(node);
            }
            return;
        }
        let opened = self.opened.lock().get(&token).and_then(Weak::upgrade);
        match opened {
            Some(opened) => opened.hear(),
            None => self.accept(node, token),
        }
    }

    /// Handles what guests have said by now: those that are gone no longer count.
    pub fn catch_up(&self, node: &'static Node) {
        let tokens: Vec<u64> = self.guests.lock().keys().copied().collect();
        tokens.into_iter().for_each(|token| self.event(node, token));
    }

    fn accept(&self, node: &Node, token: u64) {
        let places = self.places.lock();
        let Some((.., listener)) = places.iter().find(|(_, known, _)| *known == token) else { return };
        while let Ok(sock) = seqpacket::accept(listener.as_fd()) {
            let mut guests = self.guests.lock();
            if !is_same_user(&sock) || guests.len() >= GUESTS {
                continue;
            }
            let guest = self.new_token();
            if node.engine.add(sock.as_fd(), guest).is_ok() {
                guests.insert(guest, Guest::new(sock));
            }
        }
    }

    /// Device memory of the process `nonce`, by its handle: its memory file, and its length.
    ///
    /// # Errors
    /// EINVAL: there is none of this handle, or the process is not there. EPERM: it is another user's. ETIMEDOUT: it does
    /// not answer. EPROTO: it says something else. EMFILE.
    pub fn fetch_dm(&self, nonce: u64, handle: u32) -> Result<(OwnedFd, u64), Errno> {
        let sock = connect(&name_of_process(nonce))?;
        let request = Message { number: handle, ..Message::new(Kind::ImportDm) };
        seqpacket::send(sock.as_fd(), &request.encode(), &[])?;
        let end = clock::now_ns() + PATIENCE_NS;
        loop {
            match receive(&sock) {
                Ok((answer, mut fds)) if answer.kind == Kind::Answer => {
                    return match (answer.result, fds.pop()) {
                        (0, Some(fd)) => Ok((fd, answer.value)),
                        (0, None) => Err(Errno::EMFILE),
                        (e, _) => Err(Errno(e)),
                    };
                }
                Ok(_) => return Err(Errno::EPROTO),
                Err(Errno::EAGAIN) => wait(&sock, end)?,
                Err(e) => return Err(e),
            }
        }
    }

    /// The handle of this process for a QP of another, if it has one.
    pub fn find(&self, num: Qpn, domain: u64) -> Option<Arc<Opened>> {
        self.opened.lock().values().filter_map(Weak::upgrade).find(|opened| opened.is(num, domain))
    }

    fn silence(&self) -> Result<Arc<AsyncQueue>, Errno> {
        if self.silence.get().is_none() {
            // Another thread may have been first; its queue serves.
            let _ = self.silence.set(Arc::new(AsyncQueue::new()?));
        }
        self.silence.get().cloned().ok_or(Errno::ENOMEM)
    }
}

/// EINVAL where nobody listens, EPERM where another user does.
fn connect(name: &str) -> Result<ParentFd, Errno> {
    let sock = seqpacket::connect(name).map_err(|e| match e {
        Errno(libc::ECONNREFUSED) => Errno::EINVAL,
        e => e,
    })?;
    if is_same_user(&sock) { Ok(sock) } else { Err(Errno(libc::EPERM)) }
}

fn is_same_user(sock: &ParentFd) -> bool {
    // SAFETY: geteuid only asks.
    let user = unsafe { libc::geteuid() };
    seqpacket::peer_cred(sock.as_fd()).is_ok_and(|cred| cred.uid == user)
}

/// The next message. EAGAIN: there is none yet. ENOTCONN: the other side is gone, or no desk.
fn receive(sock: &ParentFd) -> Result<(Message, Vec<OwnedFd>), Errno> {
    let mut bytes = [0u8; BYTES];
    let got = seqpacket::recv(sock.as_fd(), &mut bytes)?;
    if got.len != BYTES {
        return Err(Errno(libc::ENOTCONN));
    }
    Message::decode(&bytes).map(|message| (message, got.fds)).ok_or(Errno(libc::ENOTCONN))
}

/// Waits until the socket has something; ETIMEDOUT after `end`.
fn wait(sock: &ParentFd, end: u64) -> Result<(), Errno> {
    let left = end.saturating_sub(clock::now_ns());
    if left == 0 {
        explain(format_args!("a process that shares an object does not answer"));
        return Err(Errno(libc::ETIMEDOUT));
    }
    epoll::poll(sock.as_fd(), epoll::IN | epoll::RDHUP, 1 + (left / 1_000_000) as i32);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::node;

    fn ask(sock: &ParentFd, request: Message) -> Result<Message, Errno> {
        seqpacket::send(sock.as_fd(), &request.encode(), &[]).unwrap();
        let end = clock::now_ns() + PATIENCE_NS;
        loop {
            match receive(sock) {
                Err(Errno::EAGAIN) => wait(sock, end)?,
                got => return got.map(|(answer, _)| answer),
            }
        }
    }

    #[test]
    fn who_speaks_another_language_is_shown_out_and_others_are_answered() {
        let node = node::node().unwrap();
        node.wires.start(node);
        node.desk.attend_process(node).unwrap();
        let name = name_of_process(node.wires.own().nonce());
        for bytes in [&[7; 3][..], &[0; BYTES], &[1; BYTES + 1], &Message::new(Kind::Event).encode()] {
            let sock = connect(&name).unwrap();
            seqpacket::send(sock.as_fd(), bytes, &[]).unwrap();
            assert!(epoll::is_ready(sock.as_fd(), epoll::RDHUP, 10_000), "{} bytes", bytes.len());
        }
        let sock = connect(&name).unwrap();
        for kind in [Kind::Modify, Kind::Query, Kind::Open, Kind::Restore, Kind::ImportDm] {
            let request = Message { id: 9, number: 0xff_fffe, value: 5, ..Message::new(kind) };
            let answer = ask(&sock, request).unwrap();
            assert_eq!((answer.kind, answer.id, answer.result), (Kind::Answer, 9, libc::EINVAL), "{kind:?}");
        }
        assert_eq!(ask(&sock, Message::new(Kind::Close)).unwrap().result, 0);
        assert_eq!(connect(&name_of_process(1)).unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn a_process_that_talks_without_answering_keeps_nobody() {
        let (node, nonce) = (node::node().unwrap(), crate::sys::random::u64());
        let process = seqpacket::listen(&name_of_process(nonce)).unwrap();
        // A slot that nobody attends.
        let free = (1..0xfff).map(|i| (nonce as u16).wrapping_add(i) & 0xfff);
        let (slot, maker) =
            free.filter_map(|n| Some((n, seqpacket::listen(&name_of_slot(n)).ok()?))).next().unwrap();
        let (num, listeners) = (Qpn::new(slot, 1), [process, maker]);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut socks = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    socks.extend(listeners.iter().filter_map(|l| seqpacket::accept(l.as_fd()).ok()));
                    for sock in &socks {
                        let _ = seqpacket::send(sock.as_fd(), &Message::new(Kind::Event).encode(), &[]);
                    }
                }
            });
            let fetched = node.desk.fetch_dm(nonce, 1);
            let events = Arc::new(AsyncQueue::new().unwrap());
            let opened = Opened::open_until(node, events, num, 0x7e59, clock::now_ns() + 50_000_000);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(fetched.unwrap_err(), Errno::EPROTO);
            assert_eq!(opened.unwrap_err(), Errno(libc::ETIMEDOUT));
        });
    }
}
