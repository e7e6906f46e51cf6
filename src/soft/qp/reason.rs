//! Why a request was refused, in words: looked up again once it has failed, so that the way of a good request is not longer.
use std::fmt;

use super::requester::RetryLimits;
use super::responder::Request;
use super::sendq::Wqe;
use super::silence::Silence;
use super::{Nak, Qp};
use crate::soft::mem::PdId;
use crate::soft::types::{Access, Key, MAX_MESSAGE, QpType, SendFlags, Sge, WcStatus, WrOpcode};

/// What a QP and a region must allow for a request of this opcode.
pub fn needed(op: WrOpcode) -> Access {
    match op {
        WrOpcode::Read => Access::REMOTE_READ,
        WrOpcode::CmpSwap | WrOpcode::FetchAdd => Access::REMOTE_ATOMIC,
        WrOpcode::Write | WrOpcode::WriteImm | WrOpcode::AtomicWrite => Access::REMOTE_WRITE,
        _ => Access::empty(),
    }
}

/// How a send request fails, and why.
pub struct Failed<'a> {
    #[allow(missing_docs)]
    pub qp: &'a Qp,
    #[allow(missing_docs)]
    pub wqe: &'a Wqe,
    #[allow(missing_docs)]
    pub sges: &'a [Sge],
    #[allow(missing_docs)]
    pub status: WcStatus,
    #[allow(missing_docs)]
    pub retry: &'a RetryLimits,
    /// What is known where it had no answer.
    pub silence: Silence<'a>,
}

impl fmt::Display for Failed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed { qp, wqe, sges, status, retry, silence } = self;
        let (num, op, wr_id) = (qp.num, wqe.opcode, wqe.wr_id);
        write!(f, "qp {num:?}: {op} wr_id={wr_id} completes with {status}: ")?;
        let inline = wqe.flags.contains(SendFlags::INLINE);
        let sum: u64 = sges.iter().map(|sge| sge.length as u64).sum();
        let length = if inline || sges.is_empty() { wqe.length.into() } else { sum };
        let (addr, rkey) = (wqe.remote_addr, wqe.rkey);
        let peer = if qp.kind == QpType::Ud { wqe.remote_qpn } else { qp.shown.lock().peer_qpn };
        match status {
            WcStatus::LocLenErr => {
                let (limit, why) = match op {
                    WrOpcode::CmpSwap | WrOpcode::FetchAdd | WrOpcode::AtomicWrite => (8, "exactly"),
                    _ if qp.kind == QpType::Ud => {
                        let mtu = wqe.ah.as_ref().map_or(Qp::MAX_DATAGRAM, |ah| ah.address.mtu.bytes());
                        (mtu, "at most the port's active_mtu,")
                    }
                    _ => (MAX_MESSAGE, "at most"),
                };
                write!(f, "{length} bytes: expected {why} {limit}")
            }
            WcStatus::LocProtErr => match &wqe.ah {
                Some(ah) if ah.pd != qp.pd => f.write_str("wr.ud.ah belongs to another protection domain"),
                _ => Local { qp, pd: qp.pd, sges, write: wqe.wants_answer() }.fmt(f),
            },
            WcStatus::RnrRetryExcErr => {
                let n = retry.rnr_retry;
                write!(f, "qp {peer:?} had no receive posted at the first try and {n} more (rnr_retry={n})")
            }
            WcStatus::RetryExcErr => {
                let RetryLimits { retry_cnt, timeout, .. } = retry;
                let ms = retry.timeout_ns().unwrap_or(0) as f64 / 1e6;
                write!(
                    f,
                    "no answer from qp {peer:?} at the first try and {retry_cnt} more (retry_cnt={retry_cnt}, timeout={timeout}: {ms:.1} ms each){silence}"
                )
            }
            WcStatus::RemAccessErr => {
                let need = Flags(needed(op));
                write!(
                    f,
                    "qp {peer:?} does not allow {length} bytes at 0x{addr:x} by rkey {rkey:?}: it has no such key in the QP's PD, or what the key covers is less or lacks {need:?}"
                )
            }
            WcStatus::RemInvReqErr => {
                write!(f, "qp {peer:?} refuses {length} bytes")?;
                let need = needed(op);
                if need.is_empty() && qp.kind == QpType::XrcSend {
                    let srqn = wqe.srqn;
                    return write!(
                        f,
                        ": SRQ 0x{srqn:06x} is none of its process and XRC domain, or the receive posted there is shorter"
                    );
                }
                if need.is_empty() {
                    return f.write_str(": the receive that it had posted is shorter");
                }
                write!(f, " at 0x{addr:x}: its qp_access_flags lack {:?}", Flags(need))?;
                match op {
                    WrOpcode::CmpSwap | WrOpcode::FetchAdd | WrOpcode::AtomicWrite => {
                        f.write_str(", or the address is not a multiple of 8")
                    }
                    WrOpcode::Read => {
                        f.write_str(", or our max_rd_atomic is more than its max_dest_rd_atomic")
                    }
                    _ => Ok(()),
                }
            }
            WcStatus::RemOpErr => {
                write!(f, "qp {peer:?} could not take {length} bytes: its own receive or memory is bad")
            }
            _ => write!(f, "length {length} addr 0x{addr:x} rkey {rkey:?}"),
        }
    }
}

/// Why the responder refuses a request.
pub struct Remote<'a> {
    #[allow(missing_docs)]
    pub qp: &'a Qp,
    /// The domain that the key must be of.
    pub pd: PdId,
    /// What the QP allows.
    pub access: Access,
    #[allow(missing_docs)]
    pub request: &'a Request,
    #[allow(missing_docs)]
    pub nak: Nak,
}

impl fmt::Display for Remote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.request;
        let (op, from, need) = (r.op, r.src_qpn, needed(r.op));
        write!(f, "qp {:?}: {op} from {from:?} refused with {}: ", self.qp.num, self.nak.status())?;
        match self.nak {
            Nak::RemoteAccess => {
                let len = if need == Access::REMOTE_ATOMIC { 8 } else { r.total.unwrap_or(1) };
                key(f, self.qp, self.pd, r.rkey, r.remote_addr, len, need)
            }
            _ if !self.access.contains(need) => {
                let has = Flags(self.access);
                write!(f, "qp_access_flags lack {:?}: the QP has {has:?}", Flags(need))
            }
            _ if (need == Access::REMOTE_ATOMIC || r.op == WrOpcode::AtomicWrite)
                && !r.remote_addr.is_multiple_of(8) =>
            {
                write!(f, "the address 0x{:x} is not a multiple of 8", r.remote_addr)
            }
            _ => {
                let (addr, total) = (r.remote_addr, r.total.unwrap_or(0));
                write!(f, "malformed, or beyond what the QP allows: {total} bytes at 0x{addr:x}")
            }
        }
    }
}

/// Why a remote key does not serve.
fn key(
    f: &mut fmt::Formatter<'_>,
    qp: &Qp,
    pd: PdId,
    rkey: Key,
    va: u64,
    len: u32,
    need: Access,
) -> fmt::Result {
    match qp.node.mem.remote(pd, qp.num, rkey, va, len as u64, need) {
        Ok(_) => write!(f, "rkey {rkey:?} allows it, but the memory at 0x{va:x}+{len} is not there")?,
        Err(denied) => write!(f, "rkey {rkey:?}: {denied} (asked for {:?} at 0x{va:x}+{len})", Flags(need))?,
    }
    region(f, qp, rkey)
}

/// What a key covers.
fn region(f: &mut fmt::Formatter<'_>, qp: &Qp, key: Key) -> fmt::Result {
    match qp.node.mem.region(key) {
        Some(r) => write!(f, "; it covers 0x{:x}+{} with {:?}", r.iova, r.length, Flags(r.access)),
        None => Ok(()),
    }
}

/// SGEs that are named where it is not known which one it is.
const SHOWN: usize = 4;

/// Why SGEs of our own do not serve.
pub struct Local<'a> {
    #[allow(missing_docs)]
    pub qp: &'a Qp,
    #[allow(missing_docs)]
    pub pd: PdId,
    #[allow(missing_docs)]
    pub sges: &'a [Sge],
    /// The memory is to be written.
    pub write: bool,
}

impl fmt::Display for Local<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, sge) in self.sges.iter().enumerate() {
            let Err(denied) = self.qp.node.mem.local(self.pd, sge, self.write) else { continue };
            let (addr, len, lkey) = (sge.addr, sge.length, sge.lkey);
            let need = if self.write { "LOCAL_WRITE at " } else { "" };
            write!(f, "sg_list[{i}] lkey {lkey:?}: {denied} (asked for {need}0x{addr:x}+{len})")?;
            return region(f, self.qp, lkey);
        }
        f.write_str("registered memory that is not there, at one of")?;
        let more = self.sges.len().saturating_sub(SHOWN);
        for Sge { addr, length, lkey } in self.sges.iter().take(SHOWN) {
            write!(f, " 0x{addr:x}+{length} (lkey {lkey:?})")?;
        }
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

/// Access flags by name, or that there are none.
struct Flags(Access);

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no access flags");
        }
        for (i, (name, _)) in self.0.iter_names().enumerate() {
            write!(f, "{}{name}", if i > 0 { " | " } else { "" })?;
        }
        Ok(())
    }
}
