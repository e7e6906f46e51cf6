//! Addresses, capacities and handles as the kernel's commands have them.
use crate::abi::*;

/// The handle of an object, 0 where there is none.
///
/// # Safety
/// A pointer that is not null must be live.
pub unsafe fn cq_handle(cq: *const ibv_cq) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { cq.as_ref().map_or(0, |cq| cq.handle) }
}

/// As `cq_handle`.
///
/// # Safety
/// As `cq_handle`.
pub unsafe fn srq_handle(srq: *const ibv_srq) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { srq.as_ref().map_or(0, |srq| srq.handle) }
}

/// As `cq_handle`.
///
/// # Safety
/// As `cq_handle`; every XRC domain is the head of a `verbs_xrcd`.
pub unsafe fn xrcd_handle(xrcd: *const ibv_xrcd) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { xrcd.cast::<verbs_xrcd>().as_ref().map_or(0, |xrcd| xrcd.handle) }
}

/// An address for create_ah.
pub fn ah_attr(a: &ibv_ah_attr) -> ib_uverbs_ah_attr {
    let mut to = ib_uverbs_ah_attr::zeroed();
    to.grh.dgid = a.grh.dgid.raw;
    to.grh.flow_label = a.grh.flow_label;
    to.grh.sgid_index = a.grh.sgid_index;
    to.grh.hop_limit = a.grh.hop_limit;
    to.grh.traffic_class = a.grh.traffic_class;
    to.dlid = a.dlid;
    to.sl = a.sl;
    to.src_path_bits = a.src_path_bits;
    to.static_rate = a.static_rate;
    to.is_global = a.is_global;
    to.port_num = a.port_num;
    to
}

/// An address for modify_qp.
pub fn qp_dest(a: &ibv_ah_attr) -> ib_uverbs_qp_dest {
    ib_uverbs_qp_dest {
        dgid: a.grh.dgid.raw,
        flow_label: a.grh.flow_label,
        dlid: a.dlid,
        reserved: 0,
        sgid_index: a.grh.sgid_index,
        hop_limit: a.grh.hop_limit,
        traffic_class: a.grh.traffic_class,
        sl: a.sl,
        src_path_bits: a.src_path_bits,
        static_rate: a.static_rate,
        is_global: a.is_global,
        port_num: a.port_num,
    }
}

/// An address from query_qp.
pub fn from_qp_dest(d: &ib_uverbs_qp_dest) -> ibv_ah_attr {
    let mut to = ibv_ah_attr::zeroed();
    to.grh.dgid = ibv_gid { raw: d.dgid };
    to.grh.flow_label = d.flow_label;
    to.grh.sgid_index = d.sgid_index;
    to.grh.hop_limit = d.hop_limit;
    to.grh.traffic_class = d.traffic_class;
    to.dlid = d.dlid;
    to.sl = d.sl;
    to.src_path_bits = d.src_path_bits;
    to.static_rate = d.static_rate;
    to.is_global = d.is_global;
    to.port_num = d.port_num;
    to
}

/// Capacities for create_qp.
pub fn cap(c: &ibv_qp_cap) -> ib_uverbs_qp_cap {
    ib_uverbs_qp_cap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// Capacities from create_qp and query_qp.
pub fn from_cap(c: &ib_uverbs_qp_cap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}
