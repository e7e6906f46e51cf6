//! `struct ibv_qp_attr` to and from our types.
use super::address::wanted as wanted_address;
use crate::abi::*;
use crate::soft::ah::Address;
use crate::soft::device;
use crate::soft::lid::Lids;
use crate::soft::modify::Wanted;
use crate::soft::qp::Qp;
use crate::soft::types::QpState;

/// What a program asks `ibv_modify_qp` for.
pub fn wanted(a: &ibv_qp_attr) -> Wanted {
    Wanted {
        state: a.qp_state,
        cur_state: a.cur_qp_state,
        path_mtu: a.path_mtu,
        path_mig_state: a.path_mig_state,
        qkey: a.qkey,
        rq_psn: a.rq_psn,
        sq_psn: a.sq_psn,
        dest_qpn: a.dest_qp_num,
        access: a.qp_access_flags,
        pkey_index: a.pkey_index,
        port: a.port_num,
        av: wanted_address(&a.ah_attr),
        max_rd_atomic: a.max_rd_atomic,
        max_dest_rd_atomic: a.max_dest_rd_atomic,
        min_rnr_timer: a.min_rnr_timer,
        timeout: a.timeout,
        retry_cnt: a.retry_cnt,
        rnr_retry: a.rnr_retry,
        en_sqd_async_notify: a.en_sqd_async_notify != 0,
        rate_limit: a.rate_limit,
    }
}

/// What `ibv_query_qp` tells. Called with none of the QP's locks held.
pub fn attributes(qp: &Qp) -> ibv_qp_attr {
    let held = *qp.attr.lock();
    let (cap, draining, psn) = {
        let sq = qp.sq.lock();
        let mut rq = qp.rq.lock();
        let cap = ibv_qp_cap {
            max_send_wr: sq.queue.depth(),
            max_send_sge: sq.queue.max_sge(),
            max_inline_data: sq.queue.max_inline(),
            max_recv_wr: rq.queue().map_or(0, |q| q.depth()),
            max_recv_sge: rq.queue().map_or(0, |q| q.max_sge()),
        };
        (cap, qp.state() == QpState::Sqd && sq.is_draining(), (sq.psn, rq.psn))
    };
    let mut a = ibv_qp_attr::zeroed();
    a.qp_state = qp.state().raw();
    a.cur_qp_state = a.qp_state;
    a.path_mtu = held.path_mtu.raw();
    a.path_mig_state = held.path_mig_state;
    a.qkey = held.qkey;
    (a.sq_psn, a.rq_psn) = (psn.0.get() & 0xff_ffff, psn.1.get() & 0xff_ffff);
    a.dest_qp_num = held.dest_qpn.0;
    a.qp_access_flags = held.access.bits();
    a.cap = cap;
    if let Some(address) = held.address {
        a.ah_attr = ah_attr(&address);
    }
    a.pkey_index = held.pkey_index;
    a.en_sqd_async_notify = held.en_sqd_async_notify as u8;
    a.sq_draining = draining as u8;
    a.max_rd_atomic = held.max_rd_atomic;
    a.max_dest_rd_atomic = held.max_dest_rd_atomic;
    a.min_rnr_timer = held.min_rnr_timer;
    a.port_num = held.port;
    a.timeout = held.timeout;
    a.retry_cnt = held.retry_cnt;
    a.rnr_retry = held.rnr_retry;
    a.rate_limit = held.rate_limit;
    a
}

fn ah_attr(address: &Address) -> ibv_ah_attr {
    let mut a = ibv_ah_attr::zeroed();
    a.port_num = 1;
    a.sl = address.sl;
    let others = (!address.same_host).then(|| Lids::given().of(address.dgid)).flatten();
    a.dlid = others.unwrap_or_else(device::port_lid);
    if address.lid_only {
        return a;
    }
    a.grh.dgid.raw = address.dgid.0;
    a.grh.flow_label = address.flow_label;
    a.grh.sgid_index = address.sgid_index;
    a.grh.hop_limit = address.hop_limit;
    a.grh.traffic_class = address.traffic_class;
    a.is_global = 1;
    a
}
