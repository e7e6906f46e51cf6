//! The multicast groups of other hosts that this process hears: those that QPs of it are attached to, on every interface
//! where the port has an address of their family.
//!
//! The kernel gives a datagram to a group to every socket that is in it, in whichever process, and to no other: nothing is
//! passed on. What we send does not come back to this host, whose processes have it through memory.
use super::control::{self, Family};
use crate::soft::gid::GidEntry;
use crate::soft::types::Gid;
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::log::{Level, log};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;

/// What the port's socket is in.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    held: Vec<Membership>,
    /// Sockets that only keep memberships beyond what one may have: IPv4 groups, 20 by default.
    keepers: Vec<ParentFd>,
    /// Families with memberships of keepers: the port's socket then hears every group that this host is in.
    hears_all: Vec<Family>,
}

/// A group on an interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    group: IpAddr,
    interface: u32,
}

#[derive(Debug)]
struct Membership {
    place: Place,
    /// The keeper that has it; the port's socket itself where there is none.
    keeper: Option<usize>,
}

impl Memberships {
    /// There is nothing to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Joins and leaves until `socket` is in these groups on all of these interfaces, as far as the kernel lets it.
    pub(super) fn follow(&mut self, socket: &impl AsFd, groups: &[Gid], rows: &[(usize, GidEntry)]) {
        let wanted = places(groups, rows);
        let (stays, leaves): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.held).into_iter().partition(|m| wanted.contains(&m.place));
        self.held = stays;
        for membership in leaves {
            match membership.keeper.and_then(|i| self.keepers.get(i)) {
                Some(keeper) => membership.place.leave(&SockRef::from(keeper)),
                None => membership.place.leave(&SockRef::from(socket)),
            }
        }
        for place in wanted {
            if !self.held.iter().any(|m| m.place == place) {
                match self.join(socket, place) {
                    Ok(keeper) => self.held.push(Membership { place, keeper }),
                    Err(e) => log(
                        Level::Warning,
                        format_args!(
                            "urxe: group {} is not heard on interface {}: {e:?}; members on this host are",
                            place.group, place.interface
                        ),
                    ),
                }
            }
        }
    }

    /// A new socket takes the port's place.
    pub(super) fn move_to(&self, socket: &impl AsFd) {
        for membership in self.held.iter().filter(|m| m.keeper.is_none()) {
            let _ = membership.place.join(&SockRef::from(socket));
        }
        self.hears_all.iter().for_each(|family| control::hear_all_groups(socket, *family));
    }

    /// Whose membership it becomes.
    fn join(&mut self, socket: &impl AsFd, place: Place) -> Result<Option<usize>, Errno> {
        let is_full = |joined: &Result<(), Errno>| matches!(joined, Err(Errno::ENOBUFS | Errno::ENOMEM));
        let joined = place.join(&SockRef::from(socket));
        if !is_full(&joined) {
            return joined.map(|()| None);
        }
        let mut keeper = None;
        for (i, known) in self.keepers.iter().enumerate() {
            let joined = place.join(&SockRef::from(known));
            if !is_full(&joined) {
                joined?;
                keeper = Some(i);
                break;
            }
        }
        if keeper.is_none() {
            let new = match Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)) {
                Ok(socket) => socket,
                Err(_) => Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?,
            };
            place.join(&SockRef::from(&new))?;
            self.keepers.push(ParentFd::new(new.into()));
            keeper = Some(self.keepers.len() - 1);
        }
        let family = Family::of(place.group);
        if !self.hears_all.contains(&family) {
            self.hears_all.push(family);
            control::hear_all_groups(socket, family);
        }
        Ok(keeper)
    }
}

impl Place {
    fn join(self, socket: &SockRef<'_>) -> Result<(), Errno> {
        let joined = match self.group {
            IpAddr::V4(group) => {
                socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(self.interface))
            }
            IpAddr::V6(group) => socket.join_multicast_v6(&group, self.interface),
        };
        match joined.map_err(Errno::from) {
            // It is in the group already.
            Err(Errno::EADDRINUSE) => Ok(()),
            other => other,
        }
    }

    /// Where the interface has gone, so has the membership.
    fn leave(self, socket: &SockRef<'_>) {
        let _ = match self.group {
            IpAddr::V4(group) => {
                socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(self.interface))
            }
            IpAddr::V6(group) => socket.leave_multicast_v6(&group, self.interface),
        };
    }
}

/// Each group on each interface that has an address of its family; nobody else is on loopback.
fn places(groups: &[Gid], rows: &[(usize, GidEntry)]) -> BTreeSet<Place> {
    let addresses =
        rows.iter().map(|(_, row)| (row.gid.ip(), row.ifindex)).filter(|(ip, _)| !ip.is_loopback());
    addresses
        .flat_map(|(ip, interface)| {
            let groups = groups.iter().map(|group| group.ip());
            let of_family = groups.filter(move |group| group.is_ipv4() == ip.is_ipv4());
            of_family.map(move |group| Place { group, interface })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::Endpoint;
    use super::*;
    use crate::soft::gid::GidTable;
    use crate::sys::epoll;
    use std::net::{SocketAddr, UdpSocket};
    use std::process::Command;

    fn groups(n: u8) -> Vec<Gid> {
        let v4 = (0..n).map(|i| format!("239.7.7.{i}"));
        let all = v4.chain((0..n).map(|i| format!("ff15::7:{i}")));
        all.map(|group| Gid::from_ip(group.parse().unwrap())).collect()
    }

    /// Groups of `groups` that this thread's network namespace is in, once for each interface.
    fn joined() -> usize {
        let lines = |file: &str| {
            let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let v4 = lines("igmp").into_iter().filter(|line| line.trim().get(2..8) == Some("0707EF")).count();
        let v6 = lines("igmp6").into_iter().filter(|line| line.contains("ff15000000000000")).count();
        v4 + v6
    }

    /// A datagram to an IPv4 group, sent on the interface with this address, reaches the endpoint.
    fn hears(endpoint: &Endpoint, from: &str, group: &str) -> bool {
        let sender = UdpSocket::bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        SockRef::from(&sender).set_multicast_if_v4(&from.parse().unwrap()).unwrap();
        let port = control::local_port(endpoint.as_fd());
        sender.send_to(b"datagram", (group, port)).unwrap();
        let heard = epoll::is_ready(endpoint.as_fd(), epoll::IN, 500);
        let mut rx = crate::soft::link::udp::RxBatch::new().unwrap();
        while endpoint.receive(&mut rx) > 0 {}
        heard
    }

    #[test]
    fn memberships_follow_groups_and_interfaces_beyond_what_one_socket_may_have() {
        let ip = |arguments: &str| {
            let run = Command::new("ip").args(arguments.split(' ')).status();
            run.is_ok_and(|s| s.success())
        };
        // Without the right to make a network namespace there is nothing to see.
        let body = move || {
            // SAFETY: only this thread's namespace changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0
                || !ip("link add mc0 type veth peer name mc1")
            {
                return;
            }
            assert!(ip("addr add 10.79.0.1/24 dev mc0") && ip("addr add 10.79.1.1/24 dev mc1"));
            assert!(
                ip("-6 addr add fd79::1/64 dev mc0 nodad") && ip("-6 addr add fd79:1::1/64 dev mc1 nodad")
            );
            assert!(ip("link set mc0 up") && ip("link set mc1 up"));
            let rows = GidTable::new().entries();
            let (mut memberships, endpoint) = (Memberships::default(), Endpoint::bind(0).unwrap());
            let few = groups(2);
            memberships.follow(&endpoint.as_fd(), &few, &rows);
            assert_eq!((joined(), memberships.keepers.len()), (8, 0));
            assert!(hears(&endpoint, "10.79.0.1", "239.7.7.0") && hears(&endpoint, "10.79.1.1", "239.7.7.1"));
            let other = UdpSocket::bind("0.0.0.0:0").unwrap();
            let group = "239.7.8.1".parse().unwrap();
            other.join_multicast_v4(&group, &"10.79.0.1".parse().unwrap()).unwrap();
            assert!(!hears(&endpoint, "10.79.0.1", "239.7.8.1"), "a group of another socket");

            memberships.follow(&endpoint.as_fd(), &groups(30), &rows);
            assert_eq!(joined(), 120);
            assert!(!memberships.keepers.is_empty());
            for group in ["239.7.7.0", "239.7.7.29"] {
                assert!(
                    hears(&endpoint, "10.79.0.1", group) && hears(&endpoint, "10.79.1.1", group),
                    "{group}"
                );
            }
            let next = Endpoint::bind(0).unwrap();
            memberships.move_to(&next.as_fd());
            drop(endpoint);
            assert_eq!(joined(), 120);
            assert!(hears(&next, "10.79.0.1", "239.7.7.0") && hears(&next, "10.79.1.1", "239.7.7.29"));

            assert!(ip("addr del 10.79.1.1/24 dev mc1"));
            memberships.follow(&next.as_fd(), &groups(30), &GidTable::new().entries());
            assert_eq!(joined(), 90);
            memberships.follow(&next.as_fd(), &few, &GidTable::new().entries());
            assert_eq!(joined(), 6);
            memberships.follow(&next.as_fd(), &[], &rows);
            assert_eq!(joined(), 0);
            assert!(memberships.is_empty());
        };
        std::thread::spawn(body).join().unwrap();
    }
}
