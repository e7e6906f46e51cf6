//! The GID table of the port: the addresses of the host's interfaces, each at an index that stays its own.
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::types::{Gid, Mtu};
use crate::sys::interfaces::{self, Interface, Watch};
use crate::sys::lock::{Guard, Lock};
use crate::sys::log::explain;

/// One row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The interface that carries it.
    pub ifindex: u32,
    /// That interface's name.
    pub interface: Arc<str>,
    /// That interface's hardware address; zero on loopback.
    pub mac: [u8; 6],
    /// That interface's MTU in bytes.
    pub mtu: u32,
}

/// `sgid_index` has 8 bits.
const MAX_LEN: usize = 256;
/// Bytes of a packet that are not payload, as rxe counts them.
const OVERHEAD: u32 = 80;

/// See the module. All calls look for changes first, which costs one system call.
#[derive(Debug)]
pub struct GidTable {
    rows: Lock<Rows>,
    watch: Watch,
    /// For the progress thread, whose look no caller of ours may take away.
    alarm: Watch,
    /// Rows changed, and nobody has been told yet.
    news: AtomicBool,
}

#[derive(Debug, Default)]
struct Rows {
    /// An address that has gone leaves its row behind, and gets it back if it comes again.
    rows: Vec<(GidEntry, Presence)>,
    local: BTreeSet<IpAddr>,
    port: PortInterface,
    main_mtu: u32,
}

/// The interface that the port goes up and down with.
#[derive(Clone, Copy, Debug, Default)]
struct PortInterface {
    /// 0: none.
    index: u32,
    is_down: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Here,
    Gone,
}

impl Default for GidTable {
    fn default() -> Self {
        Self::new()
    }
}

impl GidTable {
    /// The table as the interfaces are now.
    pub fn new() -> Self {
        let table = Self {
            rows: Lock::default(),
            watch: Watch::new(),
            alarm: Watch::new(),
            news: AtomicBool::new(false),
        };
        table.rows.lock().scan();
        table
    }

    /// Whether addresses came or went since the last call, which is a GID_CHANGE event.
    pub fn refresh(&self) -> bool {
        drop(self.current());
        self.news.swap(false, Relaxed)
    }

    /// The rows as they are now.
    fn current(&self) -> Guard<'_, Rows> {
        let mut rows = self.rows.lock();
        if self.watch.changed() && rows.scan() {
            self.news.store(true, Relaxed);
        }
        rows
    }

    /// Readable when [`rescan`](Self::rescan) has something to do.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.alarm.fd()
    }

    /// Looks at the interfaces whatever has been seen of them: whether addresses came or went since the last call, and
    /// whether the port is up.
    pub fn rescan(&self) -> (bool, bool) {
        self.alarm.changed();
        let mut rows = self.rows.lock();
        self.watch.changed();
        let changed = rows.scan();
        (self.news.swap(false, Relaxed) | changed, !rows.port.is_down)
    }

    /// The port is down while the interface that was the main one when it was last up is down. Where there has been none
    /// but loopback, it is up: this host can always be reached.
    pub fn is_up(&self) -> bool {
        !self.current().port.is_down
    }

    /// Rows, vacant ones included: `gid_tbl_len`.
    pub fn len(&self) -> usize {
        self.current().rows.len()
    }

    /// Whether there are no rows: never, since loopback is always there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at `index`; `None` where it is vacant or beyond the end.
    pub fn get(&self, index: usize) -> Option<GidEntry> {
        self.current().get(index).cloned()
    }

    /// The GID at `index`, zero in a vacant row; `None` beyond the end.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        let rows = self.current();
        (index < rows.rows.len()).then(|| rows.get(index).map_or(Gid::default(), |e| e.gid))
    }

    /// The first row with this GID.
    pub fn index_of(&self, gid: Gid) -> Option<usize> {
        let rows = self.current();
        rows.rows.iter().position(|(e, p)| *p == Presence::Here && e.gid == gid)
    }

    /// The rows that are not vacant, with their indices.
    pub fn entries(&self) -> Vec<(usize, GidEntry)> {
        let rows = self.current();
        (0..rows.rows.len()).filter_map(|i| rows.get(i).map(|e| (i, e.clone()))).collect()
    }

    /// Whether packets to `ip` end on this host: loopback, or an address of any interface.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.to_canonical().is_loopback() || self.current().local.contains(&ip.to_canonical())
    }

    /// What the main interface carries: its MTU without the headers, at most 4096.
    pub fn active_mtu(&self) -> Mtu {
        Mtu::fitting(self.current().main_mtu.saturating_sub(OVERHEAD))
    }
}

impl PortInterface {
    /// While it is there and down, the port is down, whatever other interfaces there are.
    fn follow(&mut self, interfaces: &[Interface], main: Option<&Interface>) {
        self.is_down = interfaces.iter().any(|i| i.index == self.index && !i.up);
        if !self.is_down {
            self.index = main.filter(|i| !i.loopback).map_or(0, |i| i.index);
        }
    }
}

impl Rows {
    fn get(&self, index: usize) -> Option<&GidEntry> {
        self.rows.get(index).filter(|(_, p)| *p == Presence::Here).map(|(e, _)| e)
    }

    fn scan(&mut self) -> bool {
        match interfaces::list() {
            Ok(list) => self.update(&list, interfaces::default_route().as_deref()),
            Err(e) => {
                explain(format_args!("the interfaces cannot be listed: {e:?}"));
                !self.rows.is_empty() || !self.update(&[], None)
            }
        }
    }

    /// Brings the rows up to date; true when one of them changed.
    fn update(&mut self, interfaces: &[Interface], default_route: Option<&str>) -> bool {
        self.local = interfaces.iter().flat_map(|i| &i.addresses).copied().collect();
        let main = main_interface(interfaces, default_route);
        self.port.follow(interfaces, main);
        self.main_mtu = main.map_or(u32::MAX, |i| i.mtu);
        let mut wanted = Vec::new();
        let others = interfaces.iter().filter(|i| i.up && main.is_none_or(|m| m.index != i.index));
        for interface in main.into_iter().chain(others) {
            wanted.extend(rows_of(interface).filter(|e| !e.gid.ip().is_loopback()));
        }
        let loopback = loopback_rows(interfaces);
        if wanted.is_empty() {
            wanted.clone_from(&loopback);
        }

        let mut changed = false;
        for (entry, presence) in &mut self.rows {
            let now = wanted.iter().chain(&loopback).find(|w| same(w, entry));
            let new = if now.is_some() { Presence::Here } else { Presence::Gone };
            changed |= *presence != new;
            *presence = new;
            if let Some(now) = now {
                entry.clone_from(now);
            }
        }
        for entry in wanted {
            if !self.rows.iter().any(|(e, _)| same(e, &entry)) {
                changed |= self.append(entry);
            }
        }
        changed
    }

    fn append(&mut self, entry: GidEntry) -> bool {
        if self.rows.len() < MAX_LEN {
            self.rows.push((entry, Presence::Here));
            return true;
        }
        let vacant = self.rows.iter_mut().find(|(_, p)| *p == Presence::Gone);
        vacant.is_some_and(|row| {
            *row = (entry, Presence::Here);
            true
        })
    }
}

/// The default route's, else the first that is up with an address that is not loopback.
fn main_interface<'a>(interfaces: &'a [Interface], default_route: Option<&str>) -> Option<&'a Interface> {
    let usable = |i: &&Interface| i.up && i.addresses.iter().any(|a| !a.is_loopback());
    let routed = interfaces.iter().filter(usable).find(|i| Some(i.name.as_str()) == default_route);
    routed.or_else(|| interfaces.iter().filter(usable).find(|i| !i.loopback))
}

/// IPv4 first, then IPv6, link-local addresses last.
fn rows_of(interface: &Interface) -> impl Iterator<Item = GidEntry> {
    let name: Arc<str> = interface.name.as_str().into();
    let rank = |a: &IpAddr| match a {
        IpAddr::V4(_) => 0,
        IpAddr::V6(a) if a.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    };
    let mut addresses: Vec<IpAddr> = interface.addresses.clone();
    addresses.sort_by_key(rank);
    let (ifindex, mac, mtu) = (interface.index, interface.mac, interface.mtu);
    addresses.into_iter().map(move |a| GidEntry {
        gid: Gid::from_ip(a),
        ifindex,
        interface: name.clone(),
        mac,
        mtu,
    })
}

/// 127.0.0.1, which means this host even where the loopback interface is down, then what else it has.
fn loopback_rows(interfaces: &[Interface]) -> Vec<GidEntry> {
    let lo = interfaces.iter().find(|i| i.loopback).cloned();
    let mut lo = lo.unwrap_or(Interface { index: 1, name: "lo".into(), mtu: 65536, ..Interface::default() });
    if !lo.up || !lo.addresses.contains(&Ipv4Addr::LOCALHOST.into()) {
        lo.addresses = vec![Ipv4Addr::LOCALHOST.into()];
    }
    rows_of(&lo).filter(|e| e.gid.ip().is_loopback()).collect()
}

/// Link-local addresses may be the same on several interfaces; any other may move between them.
fn same(a: &GidEntry, b: &GidEntry) -> bool {
    let link_local = matches!(a.gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    a.gid == b.gid && (!link_local || a.ifindex == b.ifindex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, mtu: u32, addresses: &[&str]) -> Interface {
        Interface {
            index,
            name: name.into(),
            up: true,
            loopback: name == "lo",
            mac: [2, 0, 0, 0, 0, index as u8],
            mtu,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    fn shown(rows: &Rows) -> Vec<String> {
        (0..rows.rows.len())
            .map(|i| rows.get(i).map_or("-".into(), |e| format!("{:?}%{}", e.gid, e.interface)))
            .collect()
    }

    #[test]
    fn the_main_interface_comes_first_and_ipv4_before_ipv6() {
        let list = [
            interface(1, "lo", 65536, &["127.0.0.1", "::1"]),
            interface(2, "eth0", 1500, &["fe80::2", "fd00::2", "10.0.0.2"]),
            interface(3, "eth1", 9000, &["fe80::3", "10.0.1.3", "10.0.2.3"]),
        ];
        let mut rows = Rows::default();
        assert!(rows.update(&list, Some("eth1")));
        let eth1 = ["10.0.1.3%eth1", "10.0.2.3%eth1", "fe80::3%eth1"];
        assert_eq!(shown(&rows), [&eth1[..], &["10.0.0.2%eth0", "fd00::2%eth0", "fe80::2%eth0"]].concat());
        assert_eq!(rows.main_mtu, 9000);
        assert!(!rows.update(&list, Some("eth1")), "nothing new");

        let mut rows = Rows::default();
        rows.update(&list, None);
        assert_eq!((rows.get(0).unwrap().ifindex, rows.main_mtu), (2, 1500));
    }

    #[test]
    fn the_port_goes_down_with_its_main_interface() {
        let lo = interface(1, "lo", 65536, &["127.0.0.1"]);
        let (a, b) = (interface(2, "a", 1500, &["10.0.0.2"]), interface(3, "b", 1500, &["10.0.0.3"]));
        let down = Interface { up: false, ..a.clone() };
        let mut rows = Rows::default();
        let mut port = |list: &[Interface]| {
            rows.update(list, None);
            (rows.port.is_down, rows.port.index)
        };
        assert_eq!(port(std::slice::from_ref(&lo)), (false, 0));
        assert_eq!(port(&[lo.clone(), a.clone(), b.clone()]), (false, 2));
        assert_eq!(port(&[lo.clone(), down.clone(), b.clone()]), (true, 2), "b does not stand in");
        assert_eq!(port(&[lo.clone(), a, b.clone()]), (false, 2));
        assert_eq!(port(&[lo.clone(), down, b.clone()]), (true, 2));
        assert_eq!(port(&[lo.clone(), b]), (false, 3), "a is gone for good");
        assert_eq!(port(&[lo]), (false, 0));
    }

    #[test]
    fn loopback_is_listed_only_where_nothing_else_is() {
        let mut rows = Rows::default();
        rows.update(&[interface(1, "lo", 65536, &["127.0.0.1", "::1"])], None);
        assert_eq!(shown(&rows), ["127.0.0.1%lo", "::1%lo"]);
        let mut rows = Rows::default();
        rows.update(&[], None);
        assert_eq!(shown(&rows), ["127.0.0.1%lo"]);
        let mut rows = Rows::default();
        let lo = Interface { up: false, addresses: vec![], ..interface(1, "lo", 65536, &[]) };
        rows.update(&[lo], None);
        assert_eq!(shown(&rows), ["127.0.0.1%lo"]);
    }

    #[test]
    fn indices_stay_and_gone_addresses_leave_a_hole() {
        let lo = interface(1, "lo", 65536, &["127.0.0.1"]);
        let mut rows = Rows::default();
        rows.update(&[lo.clone(), interface(2, "eth0", 1500, &["10.0.0.2", "10.0.0.3"])], None);
        assert!(rows.update(&[lo.clone(), interface(2, "eth0", 1500, &["10.0.0.3", "10.0.0.4"])], None));
        assert_eq!(shown(&rows), ["-", "10.0.0.3%eth0", "10.0.0.4%eth0"]);
        assert!(rows.update(&[lo.clone(), interface(2, "eth0", 1500, &["10.0.0.2"])], None));
        assert_eq!(shown(&rows), ["10.0.0.2%eth0", "-", "-"]);
        assert!(rows.update(&[lo], None));
        assert_eq!(shown(&rows), ["-", "-", "-", "127.0.0.1%lo"]);
    }

    #[test]
    fn an_address_keeps_its_index_when_it_moves() {
        let mut rows = Rows::default();
        let list = |a: &[&str], b: &[&str]| [interface(2, "a", 1500, a), interface(3, "b", 1500, b)];
        rows.update(&list(&["10.0.0.1", "fe80::1"], &["fe80::1"]), None);
        rows.update(&list(&["fe80::1"], &["10.0.0.1", "fe80::1"]), None);
        assert_eq!(shown(&rows), ["10.0.0.1%b", "fe80::1%a", "fe80::1%b"]);
    }

    #[test]
    fn the_table_ends_at_256_and_uses_holes_then() {
        let addresses: Vec<String> = (0..300).map(|i| format!("10.1.{}.{}", i / 256, i % 256)).collect();
        let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut rows = Rows::default();
        rows.update(&[interface(2, "a", 1500, &all)], None);
        assert_eq!(rows.rows.len(), MAX_LEN);
        rows.update(&[interface(2, "a", 1500, &all[1..])], None);
        assert_eq!((rows.rows.len(), shown(&rows)[0].as_str()), (MAX_LEN, "10.1.1.0%a"));
    }

    #[test]
    fn local_addresses_are_this_host() {
        let table = GidTable::new();
        for ip in ["127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"] {
            assert!(table.is_local(ip.parse().unwrap()), "{ip}");
        }
        assert!(!table.is_local("198.51.100.77".parse().unwrap()));
        for (index, entry) in table.entries() {
            assert!(table.is_local(entry.gid.ip()));
            assert_eq!(table.gid(index), Some(entry.gid));
            assert!(table.index_of(entry.gid).is_some_and(|first| first <= index));
        }
        assert!(!table.is_empty() && table.gid(table.len()).is_none());
        table.refresh();
    }

    #[test]
    fn the_table_follows_the_threads_network() {
        let ip = |arguments: &str| {
            let run = std::process::Command::new("ip").args(arguments.split(' ')).status();
            run.is_ok_and(|s| s.success())
        };
        // Without the right to make a network namespace there is nothing to see.
        let body = move || {
            // SAFETY: only this thread's namespace changes.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return;
            }
            let table = GidTable::new();
            assert_eq!((table.len(), format!("{:?}", table.gid(0).unwrap())), (1, "127.0.0.1".into()));
            if !ip("link add av2 type veth peer name av3") {
                return;
            }
            assert!(ip("addr add 10.78.0.1/24 dev av2") && ip("link set av2 up") && ip("link set av3 up"));
            let gid = Gid::from_ip("10.78.0.1".parse().unwrap());
            let index = table.index_of(gid).unwrap();
            assert!(index >= 1 && table.refresh() && table.is_local(gid.ip()));
            assert_eq!(table.active_mtu(), Mtu::B1024);
            assert!(ip("addr del 10.78.0.1/24 dev av2"));
            assert_eq!((table.get(index), table.gid(index)), (None, Some(Gid::default())));
            assert!(!table.is_local(gid.ip()) && table.refresh());
        };
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn active_mtu_is_what_the_main_interface_carries() {
        let table = GidTable {
            rows: Lock::default(),
            watch: Watch::new(),
            alarm: Watch::new(),
            news: AtomicBool::new(false),
        };
        let mtu = |bytes| {
            table.rows.lock().update(&[interface(2, "eth0", bytes, &["10.0.0.2"])], None);
            table.active_mtu()
        };
        assert_eq!(
            [mtu(1500), mtu(4200), mtu(9000), mtu(68)],
            [Mtu::B1024, Mtu::B4096, Mtu::B4096, Mtu::B256]
        );
        table.rows.lock().update(&[], None);
        assert_eq!(table.active_mtu(), Mtu::B4096);
    }
}
