//! The Ethernet side of an address: whose MAC a packet to a GID carries.
use crate::soft::types::Gid;
use crate::sys::errno::Errno;
use crate::sys::rtnetlink::{self, Link};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The VLAN number that says "none".
pub const NO_VLAN: u16 = 0xffff;

/// How long a neighbour may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// MAC and VLAN of the packets from `from`, an address of `interface` (0 if unknown), to `to`.
///
/// # Errors
/// EINVAL where the two are not of one family, EHOSTUNREACH where nobody answers for the address, and what the kernel
/// says of the route.
pub fn resolve(from: Gid, interface: u32, to: Gid) -> Result<Link, Errno> {
    let (from, to) = (from.ip(), to.ip());
    if from.is_ipv4() != to.is_ipv4() {
        return Err(Errno::EINVAL);
    }
    if let Some(mac) = multicast(to) {
        return Ok(Link { mac, vlan: rtnetlink::link(interface).ok().and_then(|l| l.vlan) });
    }
    // Link-local addresses exist once per interface; elsewhere the kernel may know a better way out.
    let scoped = (interface != 0 && is_link_local(to)).then_some(interface);
    let route = rtnetlink::route(to, None, scoped)?;
    let out = if route.local && interface != 0 { interface } else { route.interface };
    let own = rtnetlink::link(out)?;
    if route.local {
        return Ok(own);
    }
    let hop = route.gateway.unwrap_or(to);
    let mac = wait_for(|| rtnetlink::neighbour(out, hop), || rtnetlink::provoke(hop, out))?;
    Ok(Link { mac, vlan: own.vlan })
}

/// The group address on Ethernet: RFC 1112 6.4, RFC 2464 7.
fn multicast(to: IpAddr) -> Option<[u8; 6]> {
    match to {
        IpAddr::V4(a) if a.is_multicast() => {
            let [_, b, c, d] = a.octets();
            Some([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(a) if a.is_multicast() => {
            let [.., b, c, d, e] = a.octets();
            Some([0x33, 0x33, b, c, d, e])
        }
        _ => None,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

fn wait_for(known: impl Fn() -> Result<Option<[u8; 6]>, Errno>, ask: impl Fn()) -> Result<[u8; 6], Errno> {
    let start = Instant::now();
    let (mut pause, mut asked) = (Duration::from_millis(1), false);
    loop {
        if let Some(mac) = known()? {
            return Ok(mac);
        }
        if start.elapsed() > PATIENCE {
            return Err(Errno::EHOSTUNREACH);
        }
        if !std::mem::replace(&mut asked, true) {
            ask();
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(ip: &str) -> Gid {
        Gid::from_ip(ip.parse().unwrap())
    }

    #[test]
    fn groups_have_computed_addresses() {
        let link = resolve(gid("127.0.0.1"), 0, gid("239.129.2.3")).unwrap();
        assert_eq!(link.mac, [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(resolve(gid("::1"), 0, gid("ff02::1:2")).unwrap().mac, [0x33, 0x33, 0, 1, 0, 2]);
    }

    #[test]
    fn loopback_is_this_host_and_families_do_not_mix() {
        assert_eq!(resolve(gid("127.0.0.1"), 0, gid("127.0.0.9")), Ok(Link::default()));
        assert_eq!(resolve(gid("127.0.0.1"), 0, gid("::1")), Err(Errno::EINVAL));
    }
}
