//! LIDs of other hosts: `ANYVERBS_LIDS`, which stands for the tables that a subnet manager hands out.
use super::types::Gid;
use crate::sys::{is_setuid, log::explain};
use std::net::{IpAddr, UdpSocket};
use std::sync::OnceLock;

/// The last unicast LID (IBA 4.1.3).
const LAST: u16 = 0xbfff;

/// Which host has which LID.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lids {
    hosts: Vec<(u16, IpAddr)>,
}

impl Lids {
    /// What `ANYVERBS_LIDS` says: `LID=ADDRESS,...`, LIDs decimal or 0x...; without it nothing.
    pub fn given() -> &'static Lids {
        static GIVEN: OnceLock<Lids> = OnceLock::new();
        GIVEN.get_or_init(|| {
            let text = if is_setuid() { None } else { std::env::var("ANYVERBS_LIDS").ok() };
            text.map_or_else(Lids::default, |text| {
                Lids::parse(&text).unwrap_or_else(|part| {
                    explain(format_args!(
                        "ANYVERBS_LIDS: {part:?} is not LID=ADDRESS with a LID from 1 to 0x{LAST:x}; it is ignored"
                    ));
                    Lids::default()
                })
            })
        })
    }

    /// The table that a text names, or the part of it that cannot be read.
    fn parse(text: &str) -> Result<Lids, &str> {
        let host = |part| {
            let (lid, address): (&str, &str) = str::split_once(part, '=')?;
            let lid = match lid.trim().strip_prefix("0x") {
                Some(hex) => u16::from_str_radix(hex, 16).ok()?,
                None => lid.trim().parse().ok()?,
            };
            (1..=LAST).contains(&lid).then_some((lid, address.trim().parse().ok()?))
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        let hosts = parts.map(|part| host(part).ok_or(part)).collect::<Result<_, _>>()?;
        Ok(Lids { hosts })
    }

    /// Whether any other host may have a LID.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The LID and the address of this host: the first address that a socket can be bound to.
    pub fn own(&self) -> Option<(u16, IpAddr)> {
        self.hosts.iter().find(|(_, address)| UdpSocket::bind((*address, 0)).is_ok()).copied()
    }

    /// The host that has a LID.
    pub fn host(&self, lid: u16) -> Option<Gid> {
        self.hosts.iter().find(|host| host.0 == lid).map(|host| Gid::from_ip(host.1))
    }

    /// The LID of a host.
    pub fn of(&self, host: Gid) -> Option<u16> {
        self.hosts.iter().find(|(_, address)| *address == host.ip()).map(|host| host.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_the_lids_that_the_text_gives_them() {
        let lids = Lids::parse("1=192.0.2.1, 0x2a=2001:db8::2,").unwrap();
        let [v4, v6] = ["192.0.2.1", "2001:db8::2"].map(|a| Gid::from_ip(a.parse().unwrap()));
        assert_eq!((lids.host(1), lids.host(42), lids.host(2)), (Some(v4), Some(v6), None));
        assert_eq!((lids.of(v4), lids.of(v6)), (Some(1), Some(42)));
        assert_eq!(lids.own(), None);
        assert!(Lids::parse("").unwrap().is_empty());
    }

    #[test]
    fn the_own_lid_is_that_of_a_local_address() {
        let lids = Lids::parse("7=192.0.2.1,8=127.0.0.1").unwrap();
        assert_eq!(lids.own(), Some((8, "127.0.0.1".parse().unwrap())));
    }

    #[test]
    fn what_is_no_lid_of_a_host_is_named() {
        for (text, part) in [
            ("1=192.0.2.1,x", "x"),
            ("0=192.0.2.1", "0=192.0.2.1"),
            ("0xc000=::1", "0xc000=::1"),
            ("3=host", "3=host"),
        ] {
            assert_eq!(Lids::parse(text), Err(part));
        }
    }
}
