//! One port for many processes of any user, without anybody in charge.
//!
//! Every process binds the port with SO_REUSEADDR. The kernel gives a datagram to the socket that was bound last, and when
//! that one's process dies, to the one before it, at once. Whoever gets a datagram looks at the slot in its QPN and passes
//! it on to the process that holds the slot: over a connection to the abstract unix socket of that slot's inbox. Processes
//! of one network namespace trust each other with packets, as hosts on one wire do: any of them could bind the port.
use super::Received;
use crate::soft::wire::{IpUdp, UDP_PORT};
use crate::sys::epoll::{self, Epoll, NO_EVENT};
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::{clock, seqpacket};
use socket2::SockRef;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Kinds of descriptors in the set, in the upper half of a token; the lower is a slot or a number.
const LISTENER: u64 = 1;
const VISITOR: u64 = 2;

/// The first bytes of a message: what it is, and its version.
const MAGIC: [u8; 8] = *b"urxe-p1\n";
/// What stands before each packet: length u16, TOS, TTL, source port u16, index u16, source, destination.
const HEAD: usize = 40;
/// Bytes of one message at most; what a default send buffer holds several times.
const MOST: usize = 60_000;
/// Connections that bring packets at most: one for each process that was ever last to bind the port and still lives.
const VISITORS: usize = 512;
/// Messages taken from one connection in a row.
const ROUNDS: usize = 16;
/// How long a slot without an inbox is not asked for again, nanoseconds.
const ABSENCE: u64 = 10_000_000;
/// How long after passing something on a process counts as serving others, nanoseconds.
const SERVICE: u64 = 1_000_000_000;

/// The connections of this process to others that share the port.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Inboxes of our own slots.
    listeners: Lock<Vec<(u16, ParentFd)>>,
    /// Processes that bring us packets, by number.
    visitors: Lock<Vec<(u32, ParentFd)>>,
    next_visitor: AtomicU32,
    outlets: Lock<Vec<Outlet>>,
    /// When something was last passed on.
    served: AtomicU64,
    buffer: Lock<Vec<u8>>,
}

/// The way to the process that holds a slot.
#[derive(Debug)]
struct Outlet {
    slot: u16,
    /// None: nobody is there, until a time.
    sock: Result<ParentFd, u64>,
    /// The message that is being filled.
    parcel: Vec<u8>,
}

impl Share {
    /// Opens the inbox of one of our slots, once. Errors as of sockets and epoll.
    pub(super) fn open_inbox(&self, set: &Epoll, slot: u16) -> Result<(), Errno> {
        let mut listeners = self.listeners.lock();
        if listeners.iter().any(|l| l.0 == slot) {
            return Ok(());
        }
        let listener = seqpacket::listen(&name(slot))?;
        set.add(listener.as_fd(), epoll::IN, LISTENER << 32 | u64::from(slot))?;
        listeners.push((slot, listener));
        Ok(())
    }

    /// Others have lately been served: their packets must not wait until this process polls.
    pub(super) fn serves_others(&self) -> bool {
        let served = self.served.load(Ordering::Relaxed);
        served != 0 && clock::now_ns().saturating_sub(served) < SERVICE
    }

    /// Puts aside a packet for the process that holds `slot`; `flush` sends it.
    pub(super) fn put(&self, slot: u16, packet: &Received<'_>) {
        let mut outlets = self.outlets.lock();
        let i = outlets.iter().position(|o| o.slot == slot).unwrap_or_else(|| {
            outlets.push(Outlet { slot, sock: Err(0), parcel: Vec::new() });
            outlets.len() - 1
        });
        let outlet = &mut outlets[i];
        if outlet.parcel.len() + HEAD + packet.datagram.len() + 8 > MOST {
            outlet.send();
        }
        if outlet.parcel.is_empty() {
            outlet.parcel.extend(MAGIC);
        }
        write(&mut outlet.parcel, packet);
    }

    /// Sends what was put aside; true if there was anything. What a process does not take in time is lost, as on a wire.
    pub(super) fn flush(&self) -> bool {
        let mut outlets = self.outlets.lock();
        let mut any = false;
        for outlet in outlets.iter_mut().filter(|o| !o.parcel.is_empty()) {
            any |= outlet.send();
        }
        outlets.retain(|o| o.sock.is_ok() || matches!(o.sock, Err(until) if until > clock::now_ns()));
        drop(outlets);
        if any {
            self.served.store(clock::now_ns(), Ordering::Relaxed);
        }
        any
    }

    /// Takes connections and messages that wait, and gives `take` the packets of one message after the other; true if
    /// there were any.
    pub(super) fn receive(&self, set: &Epoll, mut take: impl FnMut(Packets<'_>)) -> bool {
        let mut events = [NO_EVENT; 16];
        let Ok(ready) = set.wait(&mut events, 0) else { return false };
        let mut any = false;
        for token in ready.iter().map(|e| e.u64) {
            match token >> 32 {
                LISTENER => self.admit(set, token as u16),
                VISITOR => any |= self.hear(set, token as u32, &mut take),
                _ => {}
            }
        }
        any
    }

    fn admit(&self, set: &Epoll, slot: u16) {
        let listeners = self.listeners.lock();
        let Some((_, listener)) = listeners.iter().find(|l| l.0 == slot) else { return };
        while let Ok(sock) = seqpacket::accept(listener.as_fd()) {
            let mut visitors = self.visitors.lock();
            let number = self.next_visitor.fetch_add(1, Ordering::Relaxed);
            if visitors.len() < VISITORS
                && set.add(sock.as_fd(), epoll::IN | epoll::RDHUP, VISITOR << 32 | u64::from(number)).is_ok()
            {
                visitors.push((number, sock));
            }
        }
    }

    fn hear(&self, set: &Epoll, number: u32, take: &mut impl FnMut(Packets<'_>)) -> bool {
        let mut buffer = self.buffer.lock();
        buffer.resize(MOST, 0);
        let mut any = false;
        for _ in 0..ROUNDS {
            let got = {
                let visitors = self.visitors.lock();
                let Some((_, sock)) = visitors.iter().find(|v| v.0 == number) else { return any };
                seqpacket::recv(sock.as_fd(), &mut buffer)
            };
            match got {
                Err(Errno::EAGAIN) => return any,
                Ok(got) if got.len > MAGIC.len() && got.len <= MOST && buffer[..8] == MAGIC => {
                    any = true;
                    take(packets(&buffer[8..got.len]));
                }
                // It has gone, or speaks another protocol.
                _ => {
                    let mut visitors = self.visitors.lock();
                    if let Some(i) = visitors.iter().position(|v| v.0 == number) {
                        set.remove(visitors[i].1.as_fd());
                        visitors.swap_remove(i);
                    }
                    return any;
                }
            }
        }
        any
    }
}

impl Outlet {
    /// Sends the parcel, connecting first where needed; true if it went.
    fn send(&mut self) -> bool {
        let parcel = std::mem::take(&mut self.parcel);
        let mut sent = false;
        // A connection whose process has gone may have a successor: once more.
        for _ in 0..2 {
            if matches!(self.sock, Err(until) if until <= clock::now_ns()) {
                self.sock =
                    seqpacket::connect(&name(self.slot)).map_err(|_| clock::now_ns().saturating_add(ABSENCE));
                if let Ok(sock) = &self.sock {
                    // As much as an ordinary user may have.
                    let _ = SockRef::from(sock).set_send_buffer_size(super::SOCKET_BUFFER);
                }
            }
            let Ok(sock) = &self.sock else { break };
            match seqpacket::send(sock.as_fd(), &parcel, &[]) {
                Ok(()) => sent = true,
                // It takes nothing at the moment: lost.
                Err(Errno::EAGAIN) => {}
                Err(_) => {
                    self.sock = Err(0);
                    continue;
                }
            }
            break;
        }
        self.parcel = parcel;
        self.parcel.clear();
        sent
    }
}

/// The abstract name of a slot's inbox.
fn name(slot: u16) -> String {
    format!("anyverbs/udp/{slot}")
}

fn write(to: &mut Vec<u8>, packet: &Received<'_>) {
    let v6 = |ip: IpAddr| match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    to.extend((packet.datagram.len() as u16).to_ne_bytes());
    to.extend([packet.traffic_class, packet.hop_limit]);
    to.extend(packet.ip.src_port.to_ne_bytes());
    to.extend(packet.index.to_ne_bytes());
    to.extend(v6(packet.ip.src));
    to.extend(v6(packet.ip.dst));
    to.extend(packet.datagram);
}

/// The packets of a message of another process, behind its first bytes.
pub fn packets(message: &[u8]) -> Packets<'_> {
    Packets { bytes: message }
}

/// The packets of a message; a malformed rest is left.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for Packets<'a> {
    type Item = Received<'a>;

    fn next(&mut self) -> Option<Received<'a>> {
        let (head, rest) = self.bytes.split_at_checked(HEAD)?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let (datagram, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        let ip = |at: usize| {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&head[at..at + 16]).unwrap_or_default());
            ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
        };
        let src_port = u16::from_ne_bytes([head[4], head[5]]);
        Some(Received {
            ip: IpUdp { src: ip(8), dst: ip(24), src_port, dst_port: UDP_PORT },
            traffic_class: head[2],
            hop_limit: head[3],
            index: u16::from_ne_bytes([head[6], head[7]]),
            datagram,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet<'a>(src: &str, datagram: &'a [u8]) -> Received<'a> {
        let ip: IpAddr = src.parse().unwrap();
        let ip = IpUdp { src: ip, dst: ip, src_port: 0xc123, dst_port: UDP_PORT };
        Received { ip, traffic_class: 3, hop_limit: 64, index: 0, datagram }
    }

    /// A slot number that no process of this test run uses: beyond those that are claimed.
    fn slot() -> u16 {
        0x1000 | crate::sys::random::u64() as u16 & 0xfff
    }

    #[test]
    fn packets_reach_the_holder_of_the_slot_whole_and_in_order() {
        let (from, to, set, slot) = (Share::default(), Share::default(), Epoll::new().unwrap(), slot());
        to.open_inbox(&set, slot).unwrap();
        to.open_inbox(&set, slot).unwrap();
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        let hear = |got: &mut Vec<Vec<u8>>| {
            to.receive(&set, |packets| {
                for p in packets {
                    assert_eq!(p.ip.src.is_ipv4(), got.len().is_multiple_of(2));
                    assert_eq!((p.ip.src_port, p.traffic_class, p.hop_limit), (0xc123, 3, 64));
                    got.push(p.datagram.to_vec());
                }
            })
        };
        for i in 0..200usize {
            let datagram = vec![i as u8; 16 + i * 20];
            from.put(slot, &packet(if i % 2 == 0 { "10.0.0.1" } else { "fd00::7" }, &datagram));
            sent.push(datagram);
            if i % 3 == 0 {
                assert!(from.flush());
                hear(&mut got);
            }
        }
        from.flush();
        assert!(!from.flush() && from.serves_others());
        while hear(&mut got) {}
        assert!(got == sent);
    }

    #[test]
    fn a_slot_without_a_holder_costs_nothing_and_a_new_holder_is_found() {
        let (from, slot) = (Share::default(), slot());
        from.put(slot, &packet("10.0.0.1", &[0; 16]));
        assert!(!from.flush() && !from.serves_others());
        let set = Epoll::new().unwrap();
        for round in 0..2 {
            let to = Share::default();
            to.open_inbox(&set, slot).unwrap();
            let mut got = 0;
            let end = clock::now_ns() + 10_000_000_000;
            while clock::now_ns() < end {
                from.put(slot, &packet("10.0.0.1", &[round; 16]));
                from.flush();
                to.receive(&set, |packets| got += packets.filter(|p| p.datagram == [round; 16]).count());
                if got > 0 {
                    break;
                }
                std::thread::yield_now();
            }
            assert!(got > 0, "holder {round}");
            let listeners = std::mem::take(&mut *to.listeners.lock());
            listeners.iter().for_each(|l| set.remove(l.1.as_fd()));
            to.visitors.lock().iter().for_each(|v| set.remove(v.1.as_fd()));
        }
    }

    #[test]
    fn malformed_messages_end_the_connection_or_are_cut() {
        let (to, set, slot) = (Share::default(), Epoll::new().unwrap(), slot());
        to.open_inbox(&set, slot).unwrap();
        let sock = seqpacket::connect(&name(slot)).unwrap();
        let mut message = MAGIC.to_vec();
        write(&mut message, &packet("10.0.0.1", &[7; 20]));
        message.extend([0xff; HEAD]);
        seqpacket::send(sock.as_fd(), &message, &[]).unwrap();
        let mut got = 0;
        while !to.receive(&set, |packets| got += packets.count()) {}
        assert_eq!(got, 1);
        seqpacket::send(sock.as_fd(), b"anything", &[]).unwrap();
        to.receive(&set, |_| unreachable!());
        assert!(to.visitors.lock().is_empty());
    }
}
