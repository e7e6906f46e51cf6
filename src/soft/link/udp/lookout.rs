//! Looks after the port while the process that gets its packets is stopped.
//!
//! The kernel gives packets to the socket that was bound last, also while its process is stopped, and nobody else would ever
//! know. So whoever binds the port shows its socket to up to 16 other processes that have it: by an epoll set with the
//! socket in it, which tells that packets wait and does not keep the socket open, and by a page where it counts what it
//! takes. A thread of each of those sleeps until packets wait; where nothing is taken of them for a while, it binds the port
//! anew. A process without traffic on its host's port does nothing.
use crate::sys::epoll::{self, Epoll, NO_EVENT};
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::map::Mapping;
use crate::sys::{memfd, seqpacket};
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Processes of a host that look after the port.
const PLACES: u8 = 16;
/// How long packets may wait at a socket of which nothing is taken.
const PATIENCE: Duration = Duration::from_millis(150);
/// How much longer each place waits than the one before, so that one comes first.
const STAGGER: Duration = Duration::from_millis(4);
/// Sockets that a process has its eye on at most: the youngest.
const WATCHED: usize = 32;

/// What a binder says: this, then `Bound`, two times u64.
const MAGIC: [u8; 8] = *b"urxe-l1\n";
const MESSAGE: usize = 24;
/// Bytes of the page.
const PAGE: usize = 4096;

/// The token of the listener; others are twice the number of what is watched, and one more for its packets.
const LISTENER: u64 = 0;

/// When a socket was bound: not before the one and not after the other, CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Bound {
    pub not_before: u64,
    pub not_after: u64,
}

impl Bound {
    fn is_before(self, other: Bound) -> bool {
        self.not_after < other.not_before
    }
}

/// What this process shows of its socket, and where it is shown others.
#[derive(Debug)]
pub(super) struct Lookout {
    taken: Mapping,
    file: OwnedFd,
    probe: ParentFd,
    place: Option<Place>,
    showing: Lock<Showing>,
}

#[derive(Debug)]
struct Place {
    number: u8,
    /// Shows that the place is taken: to look costs one system call.
    _mark: ParentFd,
    listener: ParentFd,
}

#[derive(Debug, Default)]
struct Showing {
    bound: Bound,
    /// Connections to those who watch; they see from them that this process ends.
    _to: Vec<ParentFd>,
}

impl Lookout {
    /// To be made before the port is bound: whoever binds it later finds this process. Errors as of sockets and memory files.
    pub(super) fn new(names: &str) -> Result<Self, Errno> {
        let file = memfd::create(c"anyverbs-port", PAGE)?;
        let taken = Mapping::shared(file.as_fd(), PAGE, true)?;
        // As of a publication: before Linux 5.1 others could write what is theirs to read.
        memfd::seal(file.as_fd(), true).or_else(|_| memfd::seal(file.as_fd(), false))?;
        let place = (0..PLACES).find_map(|number| {
            let mark = seqpacket::mark(&name(names, number)).ok()?;
            let listener = seqpacket::listen(&name(names, number)).ok()?;
            Some(Place { number, _mark: mark, listener })
        });
        Ok(Self { taken, file, probe: seqpacket::probe()?, place, showing: Lock::default() })
    }

    /// Packets were taken from the socket, by one thread at a time.
    pub(super) fn count(&self) {
        let count = count_of(&self.taken);
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Shows the others a socket that has just been bound; an earlier one is shown no more.
    pub(super) fn show(&self, names: &str, socket: BorrowedFd<'_>, bound: Bound) -> Result<(), Errno> {
        let set = Epoll::new()?;
        set.add(socket, epoll::IN, 0)?;
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&MAGIC);
        message[8..16].copy_from_slice(&bound.not_before.to_ne_bytes());
        message[16..].copy_from_slice(&bound.not_after.to_ne_bytes());
        let own = self.place.as_ref().map(|p| p.number);
        let others = (0..PLACES).filter(|number| Some(*number) != own).map(|number| name(names, number));
        let taken = others.filter(|name| seqpacket::is_marked(self.probe.as_fd(), name));
        let to = taken.filter_map(|name| {
            let sock = seqpacket::connect(&name).ok()?;
            seqpacket::send(sock.as_fd(), &message, &[set.as_fd(), self.file.as_fd()]).ok()?;
            Some(sock)
        });
        let to = to.collect();
        *self.showing.lock() = Showing { bound, _to: to };
        Ok(())
    }

    /// Sleeps until packets are not taken, and calls `take_over` then; ends only with an error, that of its epoll set. At
    /// once where there are enough who look after the port.
    pub(super) fn watch(&self, take_over: impl Fn()) -> Result<Option<Infallible>, Errno> {
        let Some(place) = &self.place else { return Ok(None) };
        let mut post = Post { set: Epoll::new()?, watched: Vec::new(), last: 0 };
        post.set.add(place.listener.as_fd(), epoll::IN, LISTENER)?;
        loop {
            let mut waiting = post.look(place, -1)?;
            if waiting {
                let counts = post.counts();
                std::thread::sleep(PATIENCE + STAGGER * u32::from(place.number));
                waiting = post.look(place, 0)?;
                post.choose(self.showing.lock().bound);
                if waiting && counts.iter().any(|count| post.counts().contains(count)) {
                    take_over();
                }
            }
            post.choose(self.showing.lock().bound);
        }
    }
}

/// Where others' sockets are watched.
struct Post {
    set: Epoll,
    watched: Vec<Watched>,
    last: u64,
}

struct Watched {
    number: u64,
    conn: ParentFd,
    shown: Option<Shown>,
}

/// A socket as its owner shows it.
struct Shown {
    bound: Bound,
    /// Readable while packets wait.
    packets: OwnedFd,
    taken: Mapping,
    /// It may be where packets go, and is in the set.
    is_last: bool,
}

impl Post {
    /// Takes what others show, waiting for it at most `timeout_ms`; true when packets wait.
    fn look(&mut self, place: &Place, timeout_ms: i32) -> Result<bool, Errno> {
        let mut events = [NO_EVENT; 2 * WATCHED + 2];
        let mut waiting = false;
        for token in self.set.wait(&mut events, timeout_ms)?.iter().map(|e| e.u64) {
            match (token, token % 2) {
                (LISTENER, _) => self.admit(place),
                (_, 0) => self.hear(token / 2),
                _ => waiting = true,
            }
        }
        Ok(waiting)
    }

    fn admit(&mut self, place: &Place) {
        while let Ok(conn) = seqpacket::accept(place.listener.as_fd()) {
            self.last += 1;
            let number = self.last;
            if self.set.add(conn.as_fd(), epoll::IN | epoll::RDHUP, 2 * number).is_ok() {
                self.watched.push(Watched { number, conn, shown: None });
            }
            if self.watched.len() > WATCHED {
                let oldest =
                    self.watched.iter().min_by_key(|w| w.shown.as_ref().map_or(0, |s| s.bound.not_after));
                if let Some(number) = oldest.map(|w| w.number) {
                    self.drop(number);
                }
            }
        }
    }

    fn hear(&mut self, number: u64) {
        let Some(watched) = self.watched.iter_mut().find(|w| w.number == number) else { return };
        let mut message = [0; MESSAGE];
        match seqpacket::recv(watched.conn.as_fd(), &mut message) {
            Err(Errno::EAGAIN) => {}
            Ok(got) if got.len == MESSAGE && watched.shown.is_none() => {
                watched.shown = Shown::new(&message, got.fds);
                if watched.shown.is_none() {
                    self.drop(number);
                }
            }
            // It has gone, or speaks another protocol.
            _ => self.drop(number),
        }
    }

    fn drop(&mut self, number: u64) {
        if let Some(i) = self.watched.iter().position(|w| w.number == number) {
            let gone = self.watched.swap_remove(i);
            self.set.remove(gone.conn.as_fd());
            if let Some(shown) = gone.shown.filter(|shown| shown.is_last) {
                self.set.remove(shown.packets.as_fd());
            }
        }
    }

    /// Watches the sockets that may be where packets go: none is known to have been bound later, our `own` included.
    fn choose(&mut self, own: Bound) {
        let all: Vec<Bound> =
            self.watched.iter().filter_map(|w| Some(w.shown.as_ref()?.bound)).chain([own]).collect();
        for watched in &mut self.watched {
            let Some(shown) = &mut watched.shown else { continue };
            let is_last = !all.iter().any(|other| shown.bound.is_before(*other));
            if is_last && !shown.is_last {
                let token = 2 * watched.number + 1;
                shown.is_last = self.set.add(shown.packets.as_fd(), epoll::IN, token).is_ok();
            } else if !is_last && shown.is_last {
                self.set.remove(shown.packets.as_fd());
                shown.is_last = false;
            }
        }
    }

    /// What has been taken so far where packets wait.
    fn counts(&self) -> Vec<(u64, u64)> {
        let shown = self.watched.iter().filter_map(|w| Some((w.number, w.shown.as_ref()?)));
        let waiting = shown.filter(|(_, s)| s.is_last && epoll::is_ready(s.packets.as_fd(), epoll::IN, 0));
        waiting.map(|(number, s)| (number, count_of(&s.taken).load(Ordering::Relaxed))).collect()
    }
}

impl Shown {
    fn new(message: &[u8; MESSAGE], fds: Vec<OwnedFd>) -> Option<Self> {
        let [packets, file] = <[OwnedFd; 2]>::try_from(fds).ok()?;
        let number = |at: usize| Some(u64::from_ne_bytes(message[at..at + 8].try_into().ok()?));
        let bound = Bound { not_before: number(8)?, not_after: number(16)? };
        if message[..8] != MAGIC || memfd::check(file.as_fd(), PAGE).is_err() {
            return None;
        }
        let taken = Mapping::shared(file.as_fd(), PAGE, false).ok()?;
        Some(Self { bound, packets, taken, is_last: false })
    }
}

fn count_of(page: &Mapping) -> &AtomicU64 {
    // SAFETY: a page of a file that cannot shrink, aligned, mapped as long as it is borrowed; only atomics access it.
    unsafe { &*page.base().cast::<AtomicU64>() }
}

fn name(names: &str, number: u8) -> String {
    format!("anyverbs/{names}/{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;
    use std::net::UdpSocket;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    /// Names and a UDP port of this test's own.
    struct World {
        names: String,
    }

    impl World {
        fn new() -> Self {
            Self { names: format!("test-port/{}", crate::sys::random::u64()) }
        }

        /// A process that looks after the port from now on, and whether it was asked to take over.
        fn watcher(&self) -> (Arc<Lookout>, Receiver<()>) {
            let lookout = Arc::new(Lookout::new(&self.names).unwrap());
            let (told, heard) = channel();
            let watching = lookout.clone();
            std::thread::spawn(move || watching.watch(|| _ = told.send(())));
            (lookout, heard)
        }

        /// A process that has bound a socket.
        fn binder(&self) -> (Lookout, UdpSocket) {
            let binder = Lookout::new(&self.names).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            self.show(&binder, &socket);
            (binder, socket)
        }

        fn show(&self, lookout: &Lookout, socket: &UdpSocket) {
            let now = clock::now_ns();
            lookout.show(&self.names, socket.as_fd(), Bound { not_before: now, not_after: now + 1 }).unwrap();
        }
    }

    fn send_to(socket: &UdpSocket) {
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.send_to(b"packet", socket.local_addr().unwrap()).unwrap();
    }

    const LONG: Duration = Duration::from_secs(20);
    /// Longer than packets may wait.
    const WHILE: Duration = Duration::from_millis(600);

    #[test]
    fn packets_that_nobody_takes_are_noticed() {
        let world = World::new();
        let (_watcher, asked) = world.watcher();
        let (_owner, socket) = world.binder();
        assert!(asked.recv_timeout(WHILE).is_err(), "no packets, nothing to do");
        send_to(&socket);
        asked.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn an_owner_that_takes_packets_is_left_alone_however_many_wait() {
        let world = World::new();
        let (_watcher, asked) = world.watcher();
        let (owner, socket) = world.binder();
        send_to(&socket);
        let end = clock::now_ns() + WHILE.as_nanos() as u64;
        while clock::now_ns() < end {
            owner.count();
            assert!(asked.try_recv().is_err());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_socket_that_another_was_bound_after_is_watched_again_when_that_one_goes() {
        let world = World::new();
        let (_watcher, asked) = world.watcher();
        let (_first, socket) = world.binder();
        let second = world.binder();
        send_to(&socket);
        assert!(asked.recv_timeout(WHILE).is_err(), "old packets of a socket that gets no more");
        drop(second);
        asked.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn who_has_taken_over_is_not_asked_again() {
        let world = World::new();
        let (watcher, asked) = world.watcher();
        let (_owner, socket) = world.binder();
        send_to(&socket);
        asked.recv_timeout(LONG).unwrap();
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        world.show(&watcher, &own);
        // Perhaps once more, from before that.
        let _ = asked.recv_timeout(WHILE);
        assert!(asked.recv_timeout(WHILE).is_err());
    }

    #[test]
    fn a_socket_is_not_kept_open_by_those_who_watch_it() {
        let world = World::new();
        let (_watcher, asked) = world.watcher();
        let (_owner, socket) = world.binder();
        send_to(&socket);
        asked.recv_timeout(LONG).unwrap();
        let address = socket.local_addr().unwrap();
        drop(socket);
        UdpSocket::bind(address).unwrap();
    }

    #[test]
    fn strangers_are_sent_away() {
        let world = World::new();
        let (watcher, asked) = world.watcher();
        let place = watcher.place.as_ref().unwrap().number;
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&MAGIC);
        for (bytes, fds) in
            [(&b"anything"[..], 0), (&message[..], 0), (&message[..], 2), (&[7; MESSAGE][..], 2)]
        {
            let sock = seqpacket::connect(&name(&world.names, place)).unwrap();
            let null = std::fs::File::open("/dev/null").unwrap();
            seqpacket::send(sock.as_fd(), bytes, &[null.as_fd(), null.as_fd()][..fds]).unwrap();
            assert!(epoll::is_ready(sock.as_fd(), epoll::HUP, 20_000), "{bytes:?}");
        }
        assert!(asked.try_recv().is_err());
    }
}
