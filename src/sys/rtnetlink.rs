//! Three questions to the kernel's routing tables: which way to an address, whose MAC it is, what an interface is.
//!
//! Message formats: rtnetlink(7).
use crate::sys::errno::Errno;
use crate::sys::netlink::{Attributes, Request, word};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How the kernel would send to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Interface index of the way out.
    pub interface: u32,
    /// The next hop, where the address is not on the link.
    pub gateway: Option<IpAddr>,
    /// The address is this host's own.
    pub local: bool,
}

/// What the link layer knows of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// Hardware address; zero on loopback and tunnels.
    pub mac: [u8; 6],
    /// 802.1Q identifier of a VLAN interface.
    pub vlan: Option<u16>,
}

/// The route to `to`; `from` and `interface` restrict it as they do for a packet of that source.
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH and whatever else the kernel answers.
pub fn route(to: IpAddr, from: Option<IpAddr>, interface: Option<u32>) -> Result<Route, Errno> {
    let mut request = Request::new(libc::NETLINK_ROUTE, libc::RTM_GETROUTE, 0);
    let bits = address_bytes(&to).len() as u8 * 8;
    request.bytes.extend([family(&to), bits, from.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    request.attribute(libc::RTA_DST, &address_bytes(&to));
    if let Some(from) = from {
        request.attribute(libc::RTA_SRC, &address_bytes(&from));
    }
    if let Some(index) = interface {
        request.attribute(libc::RTA_OIF, &index.to_ne_bytes());
    }
    let mut answer = None;
    request.ask(|body| {
        let mut route = Route { interface: 0, gateway: None, local: body.get(7) == Some(&libc::RTN_LOCAL) };
        for (kind, value) in Attributes(body.get(12..).unwrap_or(&[])) {
            match kind {
                libc::RTA_OIF => route.interface = word(value),
                libc::RTA_GATEWAY => route.gateway = address(value),
                _ => {}
            }
        }
        answer = Some(route);
    })?;
    answer.filter(|r| r.interface != 0).ok_or(Errno::EHOSTUNREACH)
}

/// The MAC address of `of` on an interface, if the kernel has it.
///
/// # Errors
/// What the kernel answers.
pub fn neighbour(interface: u32, of: IpAddr) -> Result<Option<[u8; 6]>, Errno> {
    let mut request = Request::new(libc::NETLINK_ROUTE, libc::RTM_GETNEIGH, libc::NLM_F_DUMP as u16);
    request.bytes.extend([family(&of), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut found = None;
    request.ask(|body| {
        let usable =
            libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT;
        let (Some(index), Some(state)) = (body.get(4..8), body.get(8..10)) else { return };
        if word(index) != interface || u16::from_ne_bytes([state[0], state[1]]) & usable == 0 {
            return;
        }
        let (mut ours, mut mac) = (false, None);
        for (kind, value) in Attributes(body.get(12..).unwrap_or(&[])) {
            match kind {
                libc::NDA_DST => ours = address(value) == Some(of),
                libc::NDA_LLADDR => mac = value.try_into().ok(),
                _ => {}
            }
        }
        if ours {
            found = mac;
        }
    })?;
    Ok(found)
}

/// Hardware address and VLAN of an interface.
///
/// # Errors
/// ENODEV where there is no such interface.
pub fn link(interface: u32) -> Result<Link, Errno> {
    let mut request = Request::new(libc::NETLINK_ROUTE, libc::RTM_GETLINK, 0);
    request.bytes.extend([0; 4]);
    request.bytes.extend(interface.to_ne_bytes());
    request.bytes.extend([0; 8]);
    let mut link = Link::default();
    request.ask(|body| {
        for (kind, value) in Attributes(body.get(16..).unwrap_or(&[])) {
            match kind {
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_LINKINFO => link.vlan = vlan(value),
                _ => {}
            }
        }
    })?;
    Ok(link)
}

/// Makes the kernel look for the MAC address of `to`: a datagram to the discard port.
pub fn provoke(to: IpAddr, interface: u32) {
    let bind = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let Ok(socket) = std::net::UdpSocket::bind(bind) else { return };
    let target = match to {
        IpAddr::V4(a) => std::net::SocketAddr::from((a, 9)),
        IpAddr::V6(a) => std::net::SocketAddrV6::new(a, 9, 0, interface).into(),
    };
    let _ = socket.send_to(&[0], target);
}

const IFLA_ADDRESS: u16 = 1;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;

fn vlan(info: &[u8]) -> Option<u16> {
    let find = |in_: &[u8], kind| Attributes(in_).find(|&(k, _)| k == kind).map(|(_, v)| v.to_vec());
    find(info, IFLA_INFO_KIND).filter(|kind| kind.starts_with(b"vlan\0"))?;
    let id = find(&find(info, IFLA_INFO_DATA)?, IFLA_VLAN_ID)?;
    Some(u16::from_ne_bytes(id.get(..2)?.try_into().ok()?) & 0xfff)
}

fn family(address: &IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn address_bytes(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_has_no_mac() {
        let route = route(Ipv4Addr::LOCALHOST.into(), None, None).unwrap();
        assert!(route.local && route.gateway.is_none());
        assert_eq!(link(route.interface).unwrap(), Link::default());
        assert_eq!(neighbour(route.interface, "127.0.0.77".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn an_interface_that_is_not_there_is_enodev() {
        assert_eq!(link(0x7fff_fff0), Err(Errno::ENODEV));
    }
}
