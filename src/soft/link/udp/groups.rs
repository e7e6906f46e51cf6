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
