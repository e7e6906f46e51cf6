//! Another process of this host: a socket that brings doorbells and tells of its death, and a ring each way.
use super::own::{NOT_ASLEEP, Own};
use super::remote::Remote;
use super::ring::{Consumer, Producer, RING_BYTES, Ring, Watch};
use super::views::{View, Views};
use super::{Corrupt, handshake, slot};
use crate::sys::fork::ParentFd;
use crate::sys::process_vm::{self, Way};
use crate::sys::seqpacket::{self, Cred};
use crate::sys::{epoll, errno::Errno, lock::Lock};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Kinds of messages about a file, which its number follows: the sender wants it, or it is here, if there is a descriptor.
const WANTED: u32 = 2;
const FILE: u32 = 3;
/// Files that a peer may ask for at a time; it asks for the others again with a new connection only.
const MOST_WANTED: usize = 4096;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// The peer has not introduced itself. Sending is possible already: what lies in the ring is found later.
    Connecting = 0,
    /// Both ways are open.
    Up = 1,
    /// Given up, by [`Peer::close`].
    Dead = 2,
}

/// What reading the socket told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heard {
    /// The peer has introduced itself just now: look into its ring.
    pub came_up: bool,
    /// A doorbell: look into its ring, and try again to send what did not fit.
    pub doorbell: bool,
    /// It asks for files of ours, by number: see [`Peer::give`].
    pub wants: bool,
    /// A file of the peer's went out of use, and with it a mapping.
    pub view_went: bool,
    /// The peer closed the connection. What it wrote before still lies in its ring: drain that, then [`Peer::close`].
    pub hung_up: bool,
}

/// Why a peer may be taken for dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// It closed the connection: its device is closed, or it has exited, or executed another program.
    pub hung_up: bool,
    /// The process has exited. A forked child of it may still hold the connection open.
    pub exited: bool,
}

/// A process of this host that we exchange messages with.
#[derive(Debug)]
pub struct Peer {
    sock: ParentFd,
    pidfd: Option<OwnedFd>,
    cred: Cred,
    same_user: bool,
    /// The slot we connected to; None where the peer connected to us.
    slot: Option<u16>,
    /// One thread reads the socket: what the first message is must not depend on who comes first.
    hearing: Lock<()>,
    /// Slots that a peer of another user was found to hold.
    proven: Lock<Vec<u16>>,
    state: AtomicU8,
    /// The ring we write. A leaf in the order of locks.
    pub tx: Lock<Producer>,
    tx_ring: Arc<Ring>,
    /// The ring the peer writes; empty until it is up.
    pub rx: Lock<Consumer>,
    rx_ring: OnceLock<Arc<Ring>>,
    watch: Arc<Watch>,
    remote: OnceLock<Remote>,
    asleep: AtomicPtr<AtomicU32>,
    /// Files of the peer, as far as they are mapped here.
    views: Views,
    /// Files of ours that it asks for, and whether it ever got one.
    wanted: Lock<Vec<u32>>,
    has_views: AtomicBool,
    /// Whether process_vm_writev, process_vm_readv are allowed: 0 not tried, 1 yes, 2 no.
    direct: [AtomicU8; 2],
}

impl Peer {
    /// Connects to whoever holds `slot`, without waiting. ECONNREFUSED: nobody does. EAGAIN: try again later.
    pub fn connect(own: &Own, slot: u16) -> Result<Arc<Peer>, Errno> {
        Self::new(own, seqpacket::connect(&slot::name(slot))?, Some(slot))
    }

    /// Connects to whoever listens at the abstract name, as `connect`; it owns whatever slots it turns out to.
    pub fn connect_to(own: &Own, name: &str) -> Result<Arc<Peer>, Errno> {
        Self::new(own, seqpacket::connect(name)?, None)
    }

    /// Takes the next connection of a slot's listener. EAGAIN: there is none. Drop it when it does not come up in time.
    pub fn accept(own: &Own, listener: BorrowedFd<'_>) -> Result<Arc<Peer>, Errno> {
        Self::new(own, seqpacket::accept(listener)?, None)
    }

    fn new(own: &Own, sock: ParentFd, slot: Option<u16>) -> Result<Arc<Peer>, Errno> {
        let cred = seqpacket::peer_cred(sock.as_fd())?;
        // SAFETY: geteuid only asks.
        let same_user = cred.uid == unsafe { libc::geteuid() };
        let (ring, fd) = Ring::create(RING_BYTES)?;
        match handshake::send(sock.as_fd(), own, fd.as_fd(), RING_BYTES, same_user) {
            // It has gone already; what it sent before counts all the same.
            Err(Errno(libc::EPIPE | libc::ECONNRESET)) if slot.is_none() => {}
            sent => sent?,
        }
        let rx = Consumer::detached();
        let direct = if own.wants_direct() { 0 } else { 2 };
        Ok(Arc::new(Self {
            pidfd: seqpacket::peer_pidfd(sock.as_fd()),
            sock,
            cred,
            same_user,
            slot,
            hearing: Lock::new(()),
            proven: Lock::default(),
            state: AtomicU8::new(State::Connecting as u8),
            tx: Lock::new(Producer::new(ring.clone())),
            tx_ring: ring,
            watch: rx.watch(),
            rx: Lock::new(rx),
            rx_ring: OnceLock::new(),
            remote: OnceLock::new(),
            views: Views::default(),
            wanted: Lock::default(),
            has_views: AtomicBool::new(false),
            asleep: AtomicPtr::new((&raw const NOT_ASLEEP).cast_mut()),
            direct: [(); 2].map(|()| AtomicU8::new(direct)),
        }))
    }

    /// Where it stands.
    #[inline]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Connecting,
            1 => State::Up,
            _ => State::Dead,
        }
    }

    /// The socket, to be watched for IN (level-triggered); then call [`Peer::hear`].
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// The peer's process, to be watched for IN: it has exited. None where the kernel cannot tell.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Who it is, by the kernel's word.
    pub fn cred(&self) -> Cred {
        self.cred
    }

    /// Whether it runs under our effective user.
    pub fn is_same_user(&self) -> bool {
        self.same_user
    }

    /// Whether we have made the connection.
    pub fn is_connector(&self) -> bool {
        self.slot.is_some()
    }

    /// What it shows of itself, once it is up.
    #[inline]
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.get()
    }

    /// The random number that names its process; None until it is up.
    pub fn nonce(&self) -> Option<u64> {
        self.remote().map(Remote::nonce)
    }

    /// Whether `slot` is this process's: we connected to it there, or, being of our user, it says so, or the kernel names
    /// the same process for that slot's listener. Never of a dead one. Asks the kernel once; not for the fast path.
    pub fn owns_slot(&self, slot: u16) -> bool {
        if self.state() == State::Dead {
            return false;
        }
        if self.slot == Some(slot) {
            return true;
        }
        if self.same_user && self.remote().is_some_and(|r| r.claims_slot(slot)) {
            return true;
        }
        if self.proven.lock().contains(&slot) {
            return true;
        }
        if self.same_user {
            return false;
        }
        let holder = seqpacket::connect(&slot::name(slot)).and_then(|s| seqpacket::peer_cred(s.as_fd()));
        let owns = holder == Ok(self.cred);
        if owns {
            self.proven.lock().push(slot);
        }
        owns
    }

    /// Whether it is worth while to look into `rx`. No lock, no fence.
    #[inline]
    pub fn rx_ready(&self) -> bool {
        // SAFETY: `rx` keeps its ring mapped as long as this peer lives.
        unsafe { self.watch.ready() }
    }

    /// After messages were committed to `tx`: rings the doorbell if the peer sleeps and nobody rang yet.
    #[inline]
    pub fn notify(&self) {
        // The entry before the look at `asleep`; the peer sets it and then looks for entries.
        fence(Ordering::SeqCst);
        // SAFETY: points to NOT_ASLEEP or into the presence page, which `remote` keeps mapped.
        if unsafe { (*self.asleep.load(Ordering::Acquire)).load(Ordering::Relaxed) } != 0 {
            self.ring_doorbell();
        }
    }

    /// Wakes the peer's process, unless it has yet to hear the last doorbell: its producer is starved, or a message lies
    /// unconsumed.
    #[cold]
    pub fn ring_doorbell(&self) {
        if self.state() == State::Up && self.tx_ring.start_ringing() {
            // A full socket holds doorbells enough; a closed one is noticed by `hear`.
            let _ = seqpacket::send(self.sock.as_fd(), &[1], &[]);
        }
    }

    /// Reads what the socket has. Err: the peer broke the rules; [`Peer::close`] it at once, drain nothing.
    /// Takes `rx` and `tx` when the peer comes up; the caller holds neither.
    pub fn hear(&self) -> Result<Heard, Corrupt> {
        let _alone = self.hearing.lock();
        let mut heard = Heard::default();
        if self.state() == State::Connecting {
            match handshake::receive(self.sock.as_fd(), self.same_user) {
                Ok(None) => return Ok(heard),
                Ok(Some((remote, ring))) => heard.came_up = self.come_up(remote, ring),
                Err(Errno::EPROTO) => return Err(Corrupt),
                // Nothing usable came and nothing will: descriptors or memory ran out, or the peer is gone.
                Err(_) => heard.hung_up = true,
            }
        }
        match self.state() {
            State::Up => self.hear_doorbells(&mut heard)?,
            State::Dead => heard.hung_up = true,
            State::Connecting => {}
        }
        Ok(heard)
    }

    fn come_up(&self, remote: Remote, ring: Arc<Ring>) -> bool {
        if self.remote.set(remote).is_err() {
            return false;
        }
        self.rx.lock().attach(ring.clone());
        let _ = self.rx_ring.set(ring);
        if let Some(remote) = self.remote() {
            self.asleep.store(std::ptr::from_ref(remote.asleep()).cast_mut(), Ordering::Release);
        }
        let up = self.state.compare_exchange(
            State::Connecting as u8,
            State::Up as u8,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        // What was sent before `asleep` was known had no doorbell.
        fence(Ordering::SeqCst);
        if self.tx.lock().has_unconsumed() {
            self.ring_doorbell();
        }
        up.is_ok()
    }

    fn hear_doorbells(&self, heard: &mut Heard) -> Result<(), Corrupt> {
        // A peer that keeps ringing cannot keep us here.
        for _ in 0..16 {
            let mut message = [0u8; 8];
            match seqpacket::recv(self.sock.as_fd(), &mut message) {
                Ok(m) if m.len == 1 && m.fds.is_empty() && !m.truncated => heard.doorbell = true,
                Ok(m) if m.len == message.len() && self.same_user => self.hear_of_file(&message, m, heard)?,
                Ok(m) if m.len == 0 && m.fds.is_empty() => {
                    heard.hung_up = true;
                    break;
                }
                Ok(_) => return Err(Corrupt),
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    heard.hung_up = true;
                    break;
                }
            }
        }
        if heard.doorbell
            && let Some(ring) = self.rx_ring.get()
        {
            ring.stop_ringing();
        }
        if heard.doorbell
            && let Some(remote) = self.remote()
        {
            heard.view_went = self.views.sweep(|number| remote.uses_file(number));
        }
        Ok(())
    }

    fn hear_of_file(
        &self,
        message: &[u8; 8],
        received: seqpacket::Received,
        heard: &mut Heard,
    ) -> Result<(), Corrupt> {
        let [a, b, c, d, number @ ..] = *message;
        let (kind, number) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(number));
        match (kind, received.fds.len()) {
            (WANTED, 0) => {
                let mut wanted = self.wanted.lock();
                if wanted.len() < MOST_WANTED {
                    wanted.push(number);
                }
                heard.wants = true;
                Ok(())
            }
            // Without a descriptor, or where there was no room for it, it cannot be had.
            (FILE, 0..=1) if self.views.answer(number, received.fds.into_iter().next()) => Ok(()),
            _ => Err(Corrupt),
        }
    }

    /// The view of a file of the peer's, once it has come; it is asked for the first time.
    pub(super) fn view(&self, number: u32) -> Option<Arc<View>> {
        self.views.find(number, || self.tell(WANTED, number, None))
    }

    /// A file of the peer's cannot be mapped here.
    pub(super) fn never_sees(&self, number: u32) -> bool {
        self.views.never(number)
    }

    /// Whether `view` is still that of a file of the peer's.
    pub(super) fn has_view(&self, view: &Arc<View>) -> bool {
        self.views.has(view)
    }

    /// Gives the files that the peer has asked for, as `find` finds them.
    pub fn give(&self, find: impl Fn(u32) -> Option<OwnedFd>) {
        for number in std::mem::take(&mut *self.wanted.lock()) {
            // Before it can have it: who ends the use of a file tells those that may have it.
            self.has_views.store(true, Ordering::SeqCst);
            self.tell(FILE, number, find(number).as_ref().map(AsFd::as_fd));
        }
    }

    /// Files of ours have gone out of use: if the peer may have some mapped, it is to look.
    pub fn tell_files_went(&self) {
        if self.has_views.load(Ordering::SeqCst) {
            self.ring_doorbell();
        }
    }

    /// False where the socket has no room.
    fn tell(&self, kind: u32, number: u32, file: Option<BorrowedFd<'_>>) -> bool {
        let mut message = [0; 8];
        message[..4].copy_from_slice(&kind.to_ne_bytes());
        message[4..].copy_from_slice(&number.to_ne_bytes());
        seqpacket::send(self.sock.as_fd(), &message, file.as_slice()).is_ok()
    }

    /// Whether it is gone, as the kernel sees it now (two poll calls).
    pub fn fate(&self) -> Fate {
        Fate {
            hung_up: epoll::poll(self.sock.as_fd(), epoll::RDHUP, 0)
                & (epoll::HUP | epoll::RDHUP | epoll::ERR)
                != 0,
            exited: self.has_exited(),
        }
    }

    /// Whether the process has exited.
    pub fn has_exited(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|fd| epoll::is_ready(fd.as_fd(), epoll::IN, 0))
    }

    /// Gives it up: no doorbell any more, and the other side sees a hang-up. True the first time.
    pub fn close(&self) -> bool {
        let first = self.state.swap(State::Dead as u8, Ordering::AcqRel) != State::Dead as u8;
        if first && self.sock.is_ours() {
            seqpacket::shutdown(self.sock.as_fd());
            self.views.clear();
        }
        first
    }

    /// Whether the kernel lets us copy this way; asked once.
    #[inline(always)]
    pub(super) fn may_copy(&self, way: Way) -> bool {
        match self.direct[way as usize].load(Ordering::Relaxed) {
            0 => self.ask_whether_it_may_copy(way),
            n => n == 1,
        }
    }

    #[cold]
    fn ask_whether_it_may_copy(&self, way: Way) -> bool {
        let allowed = self.same_user && process_vm::allowed(way, self.cred.pid);
        self.direct[way as usize].store(if allowed { 1 } else { 2 }, Ordering::Relaxed);
        allowed
    }

    /// The kernel has changed its mind.
    pub(super) fn refuse_copy(&self, way: Way) {
        self.direct[way as usize].store(2, Ordering::Relaxed);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
pub(super) mod tests;
