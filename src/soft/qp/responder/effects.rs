//! What requests do beside moving messages: ATOMIC WRITE, FLUSH, ending a key; and why receives fail, in words.
use super::{Arriving, Request, Responder};
use crate::soft::qp::recvq::RecvQueue;
use crate::soft::qp::{Nak, Qp};
use crate::soft::types::{Access, Key, WcStatus};
use crate::sys::log::explain;

impl Responder {
    /// Carries out an ATOMIC WRITE: 8 bytes that change at once. `compare_add` holds them as they lie in memory.
    pub fn atomic_write(&mut self, qp: &Qp, request: &Request) -> Result<(), Nak> {
        if !self.established {
            self.establish(qp);
        }
        if !self.access.contains(Access::REMOTE_WRITE) || !request.remote_addr.is_multiple_of(8) {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        }
        let (key, va) = (request.rkey, request.remote_addr);
        let wrote = match qp.node.mem.remote(qp.pd, qp.num, key, va, 8, Access::REMOTE_WRITE) {
            Ok(span) => span.atomic_store(request.compare_add).is_ok(),
            Err(_) => false,
        };
        if !wrote {
            return self.refuse_request(qp, request, Nak::RemoteAccess);
        }
        self.stats.done(request.op, 8);
        Ok(())
    }

    /// Carries out a FLUSH of `compare_add` bytes; `swap` holds the placement types, and above 8 bits the selectivity.
    /// Whatever was written before is visible already; persistent is what the file system behind the region keeps.
    pub fn flush_memory(&mut self, qp: &Qp, request: &Request) -> Result<(), Nak> {
        if !self.established {
            self.establish(qp);
        }
        let Some(flush) = FlushOrder::decode(request.swap) else {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        };
        if !self.access.contains(flush.need) {
            return self.refuse_request(qp, request, Nak::InvalidRequest);
        }
        let (mem, key) = (&qp.node.mem, request.rkey);
        let (va, len) = match mem.region(key) {
            Some(region) if flush.whole => (region.iova, region.length),
            Some(_) if !flush.whole => (request.remote_addr, request.compare_add),
            _ => return self.refuse_request(qp, request, Nak::RemoteAccess),
        };
        // A range of no bytes needs the rights all the same.
        let flushed = match mem.remote(qp.pd, qp.num, key, va, len.max(1), flush.need) {
            Ok(span) => !flush.need.contains(Access::FLUSH_PERSISTENT) || span.persist(),
            Err(_) => false,
        };
        if !flushed {
            return self.refuse_request(qp, request, Nak::RemoteAccess);
        }
        self.stats.done(request.op, 0);
        Ok(())
    }

    /// Says how the receive request in hand completes, and why.
    #[cold]
    pub(super) fn explain_taken(&self, qp: &Qp, status: WcStatus, why: &dyn std::fmt::Display) {
        let wr_id = self.taken.wr_id;
        explain(format_args!("qp {:?}: receive wr_id={wr_id} completes with {status}: {why}", qp.num));
    }

    #[cold]
    pub(super) fn explain_too_long(&self, qp: &Qp, length: u64) {
        let (room, n) = (self.taken.room, self.taken.sges.len());
        let why = format_args!("a message of {length} bytes, the receive has {room} in {n} SGE(s)");
        self.explain_taken(qp, WcStatus::LocLenErr, &why);
    }

    /// Says how many receive requests are flushed, if any.
    pub(super) fn explain_flush(&self, qp: &Qp) {
        let n = self.queue.as_ref().map_or(0, RecvQueue::len);
        if n > 0 {
            let (num, state) = (qp.num, qp.state());
            explain(format_args!(
                "qp {num:?}: {n} receive request(s) complete with WR_FLUSH_ERR: the QP is in {state}"
            ));
        }
    }

    /// SEND with invalidate ends with its receive; where the key is none, the receive fails and the sender hears nothing
    /// (IBA 9.9.6.3, class J).
    #[cold]
    pub(super) fn invalidate(&mut self, qp: &Qp, key: Key) -> Result<(), Nak> {
        let node = qp.node;
        let Err(why) = node.mem.invalidate(qp.pd, qp.num, key, |key| node.wires.key_is_idle(key)) else {
            return Ok(());
        };
        self.explain_taken(
            qp,
            WcStatus::RemInvReqErr,
            &format_args!("a SEND that invalidates rkey {key:?}: {why}"),
        );
        if qp.is_reliable() {
            self.refuse_taken(qp, WcStatus::RemInvReqErr, Nak::Silent)
        } else {
            self.abandon();
            Err(Nak::Silent)
        }
    }

    /// Refuses a request that is no message of bytes.
    #[cold]
    pub(super) fn refuse_request<T>(&mut self, qp: &Qp, request: &Request, nak: Nak) -> Result<T, Nak> {
        self.abandon();
        self.current = Some(Arriving { request: *request, placed: 0, has_taken: false, srq: None });
        self.refuse(qp, nak)
    }
}

/// What a FLUSH asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FlushOrder {
    /// The rights that it takes, one for each placement type.
    need: Access,
    /// All of the region instead of a range.
    whole: bool,
}

impl FlushOrder {
    /// From placement types (bits 0 to 7) and selectivity (bits 8 to 15), as `ibv_wr_flush` takes them.
    fn decode(word: u64) -> Option<Self> {
        let need = match word & 0xff {
            1 => Access::FLUSH_GLOBAL,
            2 => Access::FLUSH_PERSISTENT,
            3 => Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT),
            _ => return None,
        };
        match word >> 8 {
            0 => Some(Self { need, whole: false }),
            1 => Some(Self { need, whole: true }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_orders_name_known_types_and_levels_only() {
        let (global, persistent) = (Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT);
        for (word, expected) in [
            (0x001, Some((global, false))),
            (0x102, Some((persistent, true))),
            (0x003, Some((global | persistent, false))),
            (0x000, None),
            (0x004, None),
            (0x201, None),
            (u64::MAX, None),
        ] {
            let order = FlushOrder::decode(word).map(|o| (o.need, o.whole));
            assert_eq!(order, expected, "{word:#x}");
        }
    }
}
