//! `ibv_modify_qp` in our types: all is checked before anything changes, and every refusal names the attribute.
use super::ah::Address;
use super::device;
use super::lid::Lids;
use super::link::pcap::memory::Connection;
use super::link::{self, Path};
use super::node::Node;
use super::qp::Qp;
use super::qp::attr::{self, Attributes, Mask};
use super::qp::requester::RetryLimits;
use super::types::{Access, Gid, Mtu, Psn, QpState, QpType, Qpn};
use crate::sys::errno::Errno;
use crate::sys::log::{Level, explain, log};

/// The values of `struct ibv_qp_attr`, unchecked; those outside the mask are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    #[allow(missing_docs)]
    pub state: u32,
    #[allow(missing_docs)]
    pub cur_state: u32,
    #[allow(missing_docs)]
    pub path_mtu: u32,
    #[allow(missing_docs)]
    pub path_mig_state: u32,
    #[allow(missing_docs)]
    pub qkey: u32,
    #[allow(missing_docs)]
    pub rq_psn: u32,
    #[allow(missing_docs)]
    pub sq_psn: u32,
    #[allow(missing_docs)]
    pub dest_qpn: u32,
    #[allow(missing_docs)]
    pub access: u32,
    #[allow(missing_docs)]
    pub pkey_index: u16,
    #[allow(missing_docs)]
    pub port: u8,
    #[allow(missing_docs)]
    pub av: WantedAddress,
    #[allow(missing_docs)]
    pub max_rd_atomic: u8,
    #[allow(missing_docs)]
    pub max_dest_rd_atomic: u8,
    #[allow(missing_docs)]
    pub min_rnr_timer: u8,
    #[allow(missing_docs)]
    pub timeout: u8,
    #[allow(missing_docs)]
    pub retry_cnt: u8,
    #[allow(missing_docs)]
    pub rnr_retry: u8,
    #[allow(missing_docs)]
    pub en_sqd_async_notify: bool,
    #[allow(missing_docs)]
    pub rate_limit: u32,
}

/// The values of `struct ibv_ah_attr`, unchecked.
#[derive(Clone, Copy, Debug)]
pub struct WantedAddress {
    #[allow(missing_docs)]
    pub is_global: bool,
    /// InfiniBand link layer: where an address without GRH goes.
    pub dlid: u16,
    #[allow(missing_docs)]
    pub dgid: Gid,
    #[allow(missing_docs)]
    pub sgid_index: u8,
    #[allow(missing_docs)]
    pub flow_label: u32,
    #[allow(missing_docs)]
    pub hop_limit: u8,
    #[allow(missing_docs)]
    pub traffic_class: u8,
    #[allow(missing_docs)]
    pub sl: u8,
    #[allow(missing_docs)]
    pub port: u8,
}

/// Resolves an address, or says why it cannot be used. `call` and `what` begin the explanation.
///
/// # Errors
/// EINVAL for an address without GRH on an Ethernet port, a LID that is not this host's on an InfiniBand one, a wrong port
/// or a GID index beyond the table; ENODATA for an empty GID slot, as on a kernel device.
pub fn resolve(
    node: &Node,
    wanted: &WantedAddress,
    call: std::fmt::Arguments<'_>,
    what: &str,
) -> Result<Address, Errno> {
    if wanted.port != 1 {
        explain(format_args!("{call} {what}.port_num={}: expected 1, the only port", wanted.port));
        return Err(Errno::EINVAL);
    }
    if !wanted.is_global {
        return resolve_lid(node, wanted, call, what);
    }
    let sgid = node.gid(wanted.sgid_index as u32).inspect_err(|e| {
        explain(format_args!(
            "{call} {what}.grh.sgid_index={}: {}",
            wanted.sgid_index,
            if *e == Errno::ENODATA {
                "that slot of the GID table is empty".to_owned()
            } else {
                format!("expected 0 to {}", node.gids().len().saturating_sub(1))
            }
        ));
    })?;
    if wanted.dgid.is_zero() {
        explain(format_args!("{call} {what}.grh.dgid is zero: expected the peer's GID"));
        return Err(Errno::EINVAL);
    }
    let same_host = node.is_this_host(wanted.dgid);
    Ok(Address {
        dgid: wanted.dgid,
        sgid,
        sgid_index: wanted.sgid_index,
        flow_label: wanted.flow_label & 0xf_ffff,
        hop_limit: wanted.hop_limit,
        traffic_class: wanted.traffic_class,
        sl: wanted.sl,
        same_host,
        lid_only: false,
        mtu: if same_host { device::active_mtu(node.gids()) } else { node.gids().active_mtu() },
    })
}

/// An address without GRH: only an InfiniBand port has a LID, and only its own leads anywhere, or those of other hosts that
/// `ANYVERBS_LIDS` knows.
fn resolve_lid(
    node: &Node,
    wanted: &WantedAddress,
    call: std::fmt::Arguments<'_>,
    what: &str,
) -> Result<Address, Errno> {
    let own = device::port_lid();
    if own == 0 {
        explain(format_args!(
            "{call} {what}.is_global=0: this is an Ethernet port, an address needs a GRH: set is_global, grh.dgid and grh.sgid_index (with the ping-pongs: -g 0), or set ANYVERBS_LINK_LAYER=infiniband"
        ));
        return Err(Errno::EINVAL);
    }
    let (lids, here) = (Lids::given(), node.gid(0).unwrap_or_default());
    let (sgid, dgid) = if wanted.dlid == own {
        (here, here)
    } else if let (Some(there), Some((_, address))) = (lids.host(wanted.dlid), lids.own()) {
        (Gid::from_ip(address), there)
    } else {
        explain(format_args!(
            "{call} {what}.dlid=0x{:04x}: expected 0x{own:04x}, this host's; other hosts are reached by GID only, or by LIDs that ANYVERBS_LIDS=LID=ADDRESS,... gives them and this host",
            wanted.dlid
        ));
        return Err(Errno::EINVAL);
    };
    Ok(Address {
        dgid,
        sgid,
        sgid_index: node.gids().index_of(sgid).unwrap_or(0) as u8,
        flow_label: 0,
        hop_limit: 0,
        traffic_class: 0,
        sl: wanted.sl,
        same_host: wanted.dlid == own || node.is_this_host(dgid),
        lid_only: true,
        mtu: device::active_mtu(node.gids()),
    })
}

/// Changes the attributes in `mask`, or nothing.
///
/// # Errors
/// EINVAL and ENODATA as `ibv_modify_qp(3)` and the kernel have them.
pub fn modify(qp: &Qp, wanted: &Wanted, mask: u32) -> Result<(), Errno> {
    let mut held = qp.attr.lock();
    let from = qp.state();
    let refuse = |why: std::fmt::Arguments<'_>| {
        let to = if mask & 1 != 0 { QpState::from_raw(wanted.state) } else { Some(from) };
        explain(format_args!("ibv_modify_qp qp={:?} {}->{}: {why}", qp.num, name(Some(from)), name(to)));
        Errno::EINVAL
    };
    let mask = attr::of_its_half(qp.kind, Mask::from_bits_retain(mask));
    let to = if mask.contains(Mask::STATE) {
        QpState::from_raw(wanted.state)
            .ok_or_else(|| refuse(format_args!("qp_state={} is no state", wanted.state)))?
    } else {
        from
    };
    if mask.contains(Mask::CUR_STATE) && QpState::from_raw(wanted.cur_state) != Some(from) {
        return Err(refuse(format_args!("cur_qp_state={}: the QP is in another state", wanted.cur_state)));
    }
    // Without STATE the transition is to the same state, which the table has for some.
    attr::check(qp.kind, from, to, mask).map_err(|complaint| refuse(format_args!("{complaint}")))?;
    let mut next = if to == QpState::Reset { Attributes::default() } else { *held };
    apply(&mut next, wanted, mask, &refuse)?;
    if mask.contains(Mask::AV) {
        let (from, to) = (name(Some(from)), name(Some(to)));
        let call = format_args!("ibv_modify_qp qp={:?} {from}->{to}:", qp.num);
        next.address = Some(resolve(qp.node, &wanted.av, call, "ah_attr")?);
    }
    let mut path = Path::None;
    if to == QpState::Rtr && from == QpState::Init && qp.kind != QpType::Ud {
        path = connect(qp, &next, &refuse)?;
        log(Level::Info, format_args!("qp {:?} to {:?}, path: {}", qp.num, next.dest_qpn, path.describe()));
    }
    if to == QpState::Rtr && qp.kind == QpType::Ud {
        // Without the port it hears only this host, which is explained.
        let _ = qp.node.udp.open(qp);
    }
    if !commit(qp, from, to, &next, mask, path) {
        if to == QpState::Rtr {
            qp.node.udp.disconnect(qp);
        }
        return Err(refuse(format_args!("the QP has meanwhile gone to {}", name(Some(qp.state())))));
    }
    *held = next;
    drop(held);
    qp.tell_changed();
    qp.node.settle();
    Ok(())
}

/// Stores the values of the mask in `next`, each checked for its range.
fn apply(
    next: &mut Attributes,
    wanted: &Wanted,
    mask: Mask,
    refuse: &dyn Fn(std::fmt::Arguments<'_>) -> Errno,
) -> Result<(), Errno> {
    let small = |name: &str, value: u8, max: u8| {
        if value > max { Err(refuse(format_args!("{name}={value}: expected 0 to {max}"))) } else { Ok(value) }
    };
    if mask.contains(Mask::PORT) {
        if wanted.port != 1 {
            return Err(refuse(format_args!("port_num={}: expected 1, the only port", wanted.port)));
        }
        next.port = wanted.port;
    }
    if mask.contains(Mask::PKEY_INDEX) {
        if wanted.pkey_index != 0 {
            return Err(refuse(format_args!("pkey_index={}: the table has one entry", wanted.pkey_index)));
        }
        next.pkey_index = 0;
    }
    if mask.contains(Mask::ACCESS_FLAGS) {
        next.access = Access::from_bits(wanted.access)
            .ok_or_else(|| refuse(format_args!("qp_access_flags=0x{:x} has unknown bits", wanted.access)))?;
    }
    if mask.contains(Mask::PATH_MTU) {
        next.path_mtu = Mtu::from_raw(wanted.path_mtu).ok_or_else(|| {
            refuse(format_args!("path_mtu={}: expected IBV_MTU_256 (1) to IBV_MTU_4096 (5)", wanted.path_mtu))
        })?;
    }
    if mask.contains(Mask::TIMEOUT) {
        next.timeout = small("timeout", wanted.timeout, 31)?;
    }
    if mask.contains(Mask::RETRY_CNT) {
        next.retry_cnt = small("retry_cnt", wanted.retry_cnt, 7)?;
    }
    if mask.contains(Mask::RNR_RETRY) {
        next.rnr_retry = small("rnr_retry", wanted.rnr_retry, 7)?;
    }
    if mask.contains(Mask::MIN_RNR_TIMER) {
        next.min_rnr_timer = small("min_rnr_timer", wanted.min_rnr_timer, 31)?;
    }
    if mask.contains(Mask::MAX_QP_RD_ATOMIC) {
        next.max_rd_atomic = small("max_rd_atomic", wanted.max_rd_atomic, MAX_RD_ATOMIC)?;
    }
    if mask.contains(Mask::MAX_DEST_RD_ATOMIC) {
        next.max_dest_rd_atomic = small("max_dest_rd_atomic", wanted.max_dest_rd_atomic, MAX_RD_ATOMIC)?;
    }
    if mask.contains(Mask::PATH_MIG_STATE) {
        if wanted.path_mig_state > 2 {
            return Err(refuse(format_args!("path_mig_state={}: expected 0 to 2", wanted.path_mig_state)));
        }
        next.path_mig_state = wanted.path_mig_state;
    }
    if mask.contains(Mask::ALT_PATH) {
        return Err(refuse(format_args!("IBV_QP_ALT_PATH: this device has no alternate paths")));
    }
    if mask.contains(Mask::RQ_PSN) {
        next.rq_psn = Psn::new(wanted.rq_psn);
    }
    if mask.contains(Mask::SQ_PSN) {
        next.sq_psn = Psn::new(wanted.sq_psn);
    }
    if mask.contains(Mask::DEST_QPN) {
        next.dest_qpn = Qpn(wanted.dest_qpn & 0xff_ffff);
    }
    if mask.contains(Mask::QKEY) {
        next.qkey = wanted.qkey;
    }
    if mask.contains(Mask::EN_SQD_ASYNC_NOTIFY) {
        next.en_sqd_async_notify = wanted.en_sqd_async_notify;
    }
    if mask.contains(Mask::RATE_LIMIT) {
        next.rate_limit = wanted.rate_limit;
    }
    Ok(())
}

/// The way to the peer that the attributes name.
fn connect(
    qp: &Qp,
    next: &Attributes,
    refuse: &dyn Fn(std::fmt::Arguments<'_>) -> Errno,
) -> Result<Path, Errno> {
    let Some(address) = next.address else {
        return Err(refuse(format_args!("ah_attr was never set")));
    };
    if address.same_host {
        return Ok(link::path_on_host(qp.node, next.dest_qpn));
    }
    qp.node.udp.connect(qp, &address, next, refuse).map(Path::Udp)
}

/// Makes the change; false when the QP has failed since its state was looked at.
fn commit(qp: &Qp, from: QpState, to: QpState, next: &Attributes, mask: Mask, path: Path) -> bool {
    if matches!(to, QpState::Err | QpState::Reset) {
        qp.node.udp.take_last(qp);
    }
    if to == QpState::Err {
        qp.fail(None, None);
        qp.node.udp.acknowledge_last(qp);
        return true;
    }
    let mut sq = qp.sq.lock();
    let mut rq = qp.rq.lock();
    if to != QpState::Reset && qp.state() != from {
        return false;
    }
    {
        let mut shown = qp.shown.lock();
        (shown.access, shown.max_dest_rd_atomic) = (next.access, next.max_dest_rd_atomic);
        if to == QpState::Reset || to == QpState::Rtr {
            shown.absorb(&qp.record);
            (shown.peer_qpn, shown.path) = (next.dest_qpn, path.clone());
            let is_connected = !matches!(path, Path::None);
            shown.peer_gid = next.address.filter(|_| is_connected).map_or(Gid::default(), |a| a.dgid);
            shown.mtu = if is_connected { next.path_mtu.bytes() } else { 0 };
            let mtu = if is_connected { shown.mtu } else { u32::MAX };
            let wire = matches!(path, Path::Udp(_));
            sq.stats.set_way(wire, mtu);
            rq.stats.set_way(wire, mtu);
        }
    }
    if to == QpState::Reset {
        sq.reset();
        rq.reset(qp);
        for cq in sq.cq().into_iter().chain(rq.cq()) {
            cq.discard(qp.num);
        }
        qp.set_state(to);
        drop((sq, rq));
        qp.node.udp.disconnect(qp);
        qp.node.wires.wait_for_direct(qp);
        return true;
    }
    rq.access = next.access;
    rq.min_rnr_timer = next.min_rnr_timer;
    rq.max_dest_rd_atomic = next.max_dest_rd_atomic;
    (rq.qkey, sq.qkey) = (next.qkey, next.qkey);
    sq.max_rd_atomic = next.max_rd_atomic;
    sq.retry = RetryLimits { retry_cnt: next.retry_cnt, rnr_retry: next.rnr_retry, timeout: next.timeout };
    sq.refill_retries();
    if to == QpState::Rtr && from == QpState::Init {
        rq.psn = next.rq_psn;
        rq.peer = next.dest_qpn;
        sq.path = path;
        let connection = next.address.map(|address| Connection::new(&address, next.path_mtu));
        *qp.connection.lock() = connection;
    }
    if mask.contains(Mask::SQ_PSN) {
        sq.psn = next.sq_psn;
    }
    if to == QpState::Sqd {
        sq.tell_drained = next.en_sqd_async_notify && sq.is_draining();
        if next.en_sqd_async_notify && !sq.is_draining() {
            qp.raise(super::types::EventType::SqDrained);
        }
    }
    qp.set_state(to);
    drop(rq);
    if to == QpState::Rts {
        link::pump(qp, &mut sq);
    }
    true
}

/// A state by name, or that it is none.
fn name(state: Option<QpState>) -> String {
    state.map_or_else(|| "?".to_owned(), |state| state.to_string())
}

/// READs and atomics that a QP may have outstanding, either way; `max_qp_rd_atom` of the device.
pub const MAX_RD_ATOMIC: u8 = 128;
