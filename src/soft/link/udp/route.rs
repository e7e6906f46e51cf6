//! Where packets go, as the kernel reads it: made once for a connection.
use super::Path;
use super::control::{self, Control, TX_ROOM};
use crate::soft::wire::{IpUdp, icrc};

/// The way of packets of one path through one socket.
pub(super) struct Route {
    path: Path,
    /// Their ends.
    pub ends: icrc::Ends,
    pub name: libc::sockaddr_in6,
    pub name_len: u32,
    /// What each has beside its address, and how many bytes of it.
    pub control: Control<TX_ROOM>,
    pub control_len: usize,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Route {
    /// The way along `path`, of packets with the ends of `ip`, through a socket of both families (`dual`) or of IPv4.
    pub fn new(path: &Path, ip: IpUdp, dual: bool) -> Self {
        // SAFETY: zero is a valid value of this plain C struct.
        let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let mut control = Control([0; TX_ROOM]);
        let name_len = control::address(path, ip.dst_port, dual, &mut name);
        let control_len = control::write(&mut control, path);
        Self { path: *path, ends: icrc::Ends::new(ip), name, name_len, control, control_len }
    }

    /// The path.
    #[inline]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
