//! Address handles, from attributes or from a completion.
use crate::abi::*;
use crate::core::convention::{code, given, minus_one, pointer, refuse};
use crate::core::{gid, l2};
use crate::provider::context;
use crate::soft::types::Gid;
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use std::ffi::c_int;

export!(ibv_create_ah => "ibv_create_ah" @@ "IBVERBS_1.1");
export!(ibv_destroy_ah => "ibv_destroy_ah" @@ "IBVERBS_1.1");
export!(ibv_init_ah_from_wc => "ibv_init_ah_from_wc" @@ "IBVERBS_1.1");
export!(ibv_create_ah_from_wc => "ibv_create_ah_from_wc" @@ "IBVERBS_1.1");
export!(ibv_resolve_eth_l2_from_gid => "ibv_resolve_eth_l2_from_gid" @@ "IBVERBS_1.1");

/// A handle for `attr.grh.dgid`; on Ethernet a GRH is required.
pub(super) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer(|| {
        given(pd, "ibv_create_ah", "pd")?;
        given(attr, "ibv_create_ah", "attr")?;
        // SAFETY: a live PD and the application's attributes.
        unsafe { create(pd, attr) }
    })
}

/// The handle may go only after the completions of the sends that used it.
pub(super) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    code(|| {
        given(ah, "ibv_destroy_ah", "ah")?;
        // SAFETY: a live AH.
        unsafe { Ok(context::ops((*ah).context).destroy_ah.ok_or(Errno::EOPNOTSUPP)?(ah)) }
    })
}

/// The way back to the sender of a UD receive, from its completion and the 40 bytes in front of its data.
pub(super) unsafe extern "C" fn ibv_init_ah_from_wc(
    ctx: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(|| {
        given(ctx, "ibv_init_ah_from_wc", "context")?;
        given(attr, "ibv_init_ah_from_wc", "ah_attr")?;
        // SAFETY: a live context, a completion and, where its flag says so, a GRH; room for the answer.
        unsafe { *attr = reply_to(ctx, port, wc, grh, "ibv_init_ah_from_wc")? };
        Ok(0)
    })
}

/// A handle for the sender of a UD receive.
pub(super) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    pointer(|| {
        given(pd, "ibv_create_ah_from_wc", "pd")?;
        // SAFETY: a live PD, a completion and, where its flag says so, a GRH.
        unsafe {
            let mut attr = reply_to((*pd).context, port, wc, grh, "ibv_create_ah_from_wc")?;
            create(pd, &mut attr)
        }
    })
}

/// The MAC address, and the VLAN or 0xffff, that packets of an AH go to. 0, or a negative errno value.
pub(super) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    ctx: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> c_int {
    -code(|| {
        given(ctx, "ibv_resolve_eth_l2_from_gid", "context")?;
        given(attr, "ibv_resolve_eth_l2_from_gid", "attr")?;
        given(mac, "ibv_resolve_eth_l2_from_gid", "eth_mac")?;
        // SAFETY: a live context, readable attributes, six bytes for the MAC, a place for the VLAN or NULL.
        unsafe {
            let (grh, port) = ((*attr).grh, (*attr).port_num);
            let found = gid::entry(ctx, port.into(), grh.sgid_index.into())
                .and_then(|from| l2::resolve(gid::value(&from.gid), from.ndev_ifindex, gid::value(&grh.dgid)))
                .inspect_err(|e| {
                    explain(format_args!(
                        "ibv_resolve_eth_l2_from_gid port={port} sgid_index={} dgid={:?}: {e:?}",
                        grh.sgid_index,
                        gid::value(&grh.dgid)
                    ));
                })?;
            mac.cast::<[u8; 6]>().write(found.mac);
            if !vlan.is_null() {
                *vlan = found.vlan.unwrap_or(l2::NO_VLAN);
            }
        }
        Ok(0)
    })
}

/// # Safety
/// `pd` must be live, `attr` readable.
unsafe fn create(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the caller vouches for both; the op's AH is ours to complete.
    unsafe {
        let ah = context::ops((*pd).context).create_ah.ok_or(Errno::EOPNOTSUPP)?(pd, attr);
        if !ah.is_null() {
            (*ah).context = (*pd).context;
            (*ah).pd = pd;
        }
        Ok(ah)
    }
}

/// # Safety
/// `ctx` must be live, `wc` readable or NULL, `grh` readable or NULL.
unsafe fn reply_to(
    ctx: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    call: &str,
) -> Result<ibv_ah_attr, Errno> {
    given(wc, call, "wc")?;
    // SAFETY: checked; the caller vouches for it.
    let wc = unsafe { &*wc };
    let mut attr = ibv_ah_attr::zeroed();
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH != 0 {
        given(grh, call, "grh")?;
        // SAFETY: a GRH is 40 bytes that the application read from its own buffer.
        let bytes = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
        let header = NetworkHeader::read(&bytes).ok_or_else(|| {
            refuse!(EINVAL, "{call}: the GRH holds neither a valid IPv4 header nor version 6")
        })?;
        attr.is_global = 1;
        attr.grh.dgid.raw = header.from.0;
        attr.grh.flow_label = header.flow_label;
        attr.grh.hop_limit = header.hop_limit;
        attr.grh.traffic_class = header.traffic_class;
        // SAFETY: the caller vouches for the context.
        let index = unsafe { gid::index_of(ctx, port.into(), header.to) }
            .map_err(|_| refuse!(ENODATA, "{call} port={port}: no GID of ours is {:?}", header.to))?;
        attr.grh.sgid_index = index as u8;
    }
    Ok(attr)
}

/// What the 40 bytes in front of a UD receive say: a GRH (an IPv6 header), or an IPv4 header in the last 20 (Annex
/// A17.4.5.2). Where both may be, its checksum tells.
struct NetworkHeader {
    from: Gid,
    to: Gid,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

impl NetworkHeader {
    fn read(bytes: &[u8; 40]) -> Option<Self> {
        let v4 = &bytes[20..];
        // Where there is no version 6 in front, the rest may as well hold an IPv4 header that never left this host and has
        // no checksum.
        if v4[0] == 0x45 && (bytes[0] >> 4 != 6 || checksum_holds(v4)) {
            let address = |at: usize| {
                Gid::from_ip(std::net::Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]).into())
            };
            return Some(Self {
                from: address(12),
                to: address(16),
                flow_label: 0,
                hop_limit: v4[8],
                traffic_class: v4[1],
            });
        }
        let word = u32::from_be_bytes(*bytes.first_chunk()?);
        (word >> 28 == 6).then_some(Self {
            from: Gid(bytes[8..24].try_into().ok()?),
            to: Gid(bytes[24..].try_into().ok()?),
            flow_label: word & 0xf_ffff,
            hop_limit: bytes[7],
            traffic_class: (word >> 20) as u8,
        })
    }
}

/// The ones' complement sum over a header with its checksum is all ones (RFC 1071).
fn checksum_holds(header: &[u8]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.0.0.1 to 10.0.0.2, TOS 8, TTL 63, UDP.
    fn ipv4() -> [u8; 40] {
        let mut bytes = [0x60; 40];
        let header = [0x45, 8, 0, 64, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes[20..].copy_from_slice(&header);
        let sum: u32 = header.chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        bytes[30..32].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn an_ipv4_header_is_known_by_its_checksum() {
        let header = NetworkHeader::read(&ipv4()).unwrap();
        assert_eq!(format!("{:?} {:?}", header.from, header.to), "10.0.0.1 10.0.0.2");
        assert_eq!((header.hop_limit, header.traffic_class, header.flow_label), (63, 8, 0));
    }

    #[test]
    fn without_it_the_bytes_are_a_grh() {
        let mut bytes = ipv4();
        bytes[30] ^= 1;
        bytes[..8].copy_from_slice(&[0x61, 0x23, 0x45, 0x67, 0, 0, 27, 9]);
        let header = NetworkHeader::read(&bytes).unwrap();
        assert_eq!((header.flow_label, header.traffic_class, header.hop_limit), (0x34567, 0x12, 9));
        assert_eq!(header.from.0[..], bytes[8..24]);
        bytes[0] = 0;
        assert_eq!(NetworkHeader::read(&bytes).map(|header| header.hop_limit), Some(63));
        bytes[20] = 0x61;
        assert!(NetworkHeader::read(&bytes).is_none());
    }
}
