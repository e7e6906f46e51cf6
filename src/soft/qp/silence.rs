//! Why a peer does not answer, as far as this process can know; looked up when the requester has given up.
use std::fmt;
use std::sync::Arc;

use super::Qp;
use crate::soft::link::local::accepts_kind;
use crate::soft::link::{Path, udp::flow::Flow};
use crate::soft::stats::Counter;
use crate::soft::types::{Psn, Qpn};

/// What else may be wrong with a QP that this process cannot see.
const CONNECTED: &str = "not in RTR or RTS, connected to another qp, or its rq_psn was not our sq_psn";

/// The request with number `psn` of `qp` had no answer.
pub struct Silence<'a> {
    #[allow(missing_docs)]
    pub qp: &'a Qp,
    /// How the requester reaches its peer by now; `None` while it sends.
    pub path: &'a Path,
    /// Its messages may be lost on request.
    pub is_faulty: bool,
    #[allow(missing_docs)]
    pub psn: Psn,
}

impl fmt::Display for Silence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_faulty {
            f.write_str("; some may have been lost on request (ANYVERBS_FAULTS)")?;
        }
        let path = match self.path {
            Path::None => self.qp.shown.lock().path.clone(),
            path => path.clone(),
        };
        match path {
            Path::Local(to) => self.of_process(f, to),
            Path::Absent(to) => {
                write!(f, "; no process of this host that can be reached has a qp {to:?}")
            }
            // What was lost on request says nothing of it.
            Path::Shm(..) if self.is_faulty => Ok(()),
            Path::Shm(..) => {
                write!(f, "; its process is there, so it is gone, {CONNECTED}")
            }
            Path::Udp(flow) => self.of_host(f, &flow),
            Path::None => Ok(()),
        }
    }
}

impl Silence<'_> {
    fn of_process(&self, f: &mut fmt::Formatter<'_>, to: Qpn) -> fmt::Result {
        let qp = self.qp;
        let Some(peer) = qp.node.qp(to) else { return write!(f, "; this process has no qp {to:?}") };
        if !accepts_kind(qp, &peer) {
            return write!(f, "; it is of type {}, this one of type {}", peer.kind, qp.kind);
        }
        // Whoever holds it may wait for the send half, which is held now.
        let Some(rq) = peer.rq.try_lock() else { return Ok(()) };
        if !rq.listens(&peer) {
            return write!(f, "; it is in {}", peer.state());
        }
        if rq.peer != qp.num {
            return write!(f, "; it is connected to qp {:?}", rq.peer);
        }
        if rq.psn != self.psn {
            let (expected, sent) = (Hex(rq.psn), Hex(self.psn));
            return write!(
                f,
                "; it expects PSN {expected}, counted from its rq_psn, and has {sent}, counted from our sq_psn"
            );
        }
        Ok(())
    }

    fn of_host(&self, f: &mut fmt::Formatter<'_>, flow: &Arc<Flow>) -> fmt::Result {
        let address = flow.path().dst;
        match self.qp.record.values()[Counter::PortRcvPackets] {
            0 if self.is_faulty => Ok(()),
            0 => write!(
                f,
                "; nothing has ever come from {address}: nobody has that address, UDP port 4791 is filtered or nobody's, or the qp is none, {CONNECTED}"
            ),
            n => write!(f, "; {n} packets have come from {address} before"),
        }
    }
}

/// A PSN as headers and captures show it.
struct Hex(Psn);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0.get())
    }
}
