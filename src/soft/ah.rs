//! Address handles: where a datagram goes.
use super::mem::PdId;
use super::types::{Gid, Mtu};
use super::wire::ip::IpUdp;

/// An address, as `ibv_create_ah` or a connected QP's `ah_attr` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The destination.
    pub dgid: Gid,
    /// The source: what the GID table holds at `sgid_index`.
    pub sgid: Gid,
    #[allow(missing_docs)]
    pub sgid_index: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// 0 is taken as 64.
    pub hop_limit: u8,
    #[allow(missing_docs)]
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// The destination is this host: memory carries the message.
    pub same_host: bool,
    /// InfiniBand link layer: the address names a LID and has no GRH. `dgid` and `sgid` are this port's first GID then, or those that
    /// `ANYVERBS_LIDS` gives.
    pub lid_only: bool,
    /// What a datagram may carry: the port's active MTU.
    pub mtu: Mtu,
}

impl Address {
    /// The GRH that a UD receiver finds before a payload of `payload` bytes from here.
    pub fn grh(&self, payload: u32) -> [u8; 40] {
        let hop_limit = if self.hop_limit == 0 { 64 } else { self.hop_limit };
        // BTH, DETH and ICRC lie around the payload in the datagram.
        let datagram = 12 + 8 + payload as usize + 4;
        let mut grh =
            IpUdp::new(self.sgid.ip(), self.dgid.ip(), 0).grh(datagram, self.traffic_class, hop_limit);
        if grh[0] >> 4 == 6 {
            let [_, high, middle, low] = self.flow_label.to_be_bytes();
            (grh[1], grh[2], grh[3]) = (grh[1] & 0xf0 | high & 0x0f, middle, low);
        }
        grh
    }
}

/// What the completion of a datagram says in `sl` on Ethernet, which has no service levels: bit 3 that the packet had a UDP
/// header, bits 0 to 2 whether the GRH area holds an IPv6 (1) or an IPv4 header (2). The completion has to tell (IBA Annex
/// A17.4.5.1); this is where NICs put it and UCX looks for it.
pub fn packet_type(grh: &[u8; 40]) -> u8 {
    const UDP: u8 = 8;
    let version = grh[0] >> 4;
    UDP | if version == 6 { 1 } else { 2 }
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    #[allow(missing_docs)]
    pub pd: PdId,
    #[allow(missing_docs)]
    pub address: Address,
}
