//! XRC across processes: a message over a QP of one process may name an SRQ of another, of the same domain.
//!
//! The sender brings it to the SRQ's owner, whom the SRQ number tells, instead of the QP's; there a shadow of the QP
//! receives it. It goes alone: nothing before it is unacknowledged, nothing follows until it is answered, and so the
//! order of the QP's messages holds without the QP's own process taking part. RDMA and atomics go the same way: the
//! SRQ's PD is the one that counts, so the memory that they name is the SRQ owner's too. What the QP itself allows is
//! seen in what its process publishes, and told along. What is refused there fails the QP, whose process is told.
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Wire;
use super::message::{ACK, FAILED, FIRST, FOREIGN, NAK, RELIABLE, Refusal};
use super::receive::{Step, carry_out};
use super::send::{self, Mark, put_any};
use crate::soft::cq::Taker;
use crate::soft::link::local;
use crate::soft::link::shm::ring::{Entry, Ext, Header};
use crate::soft::link::shm::slot::SLOTS;
use crate::soft::node::Node;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::Responder;
use crate::soft::qp::sendq::SendQueue;
use crate::soft::qp::{Handle, Nak, Qp};
use crate::soft::srq::Srq;
use crate::soft::types::{Access, EventType, QpState, QpType, Qpn, WcStatus, WrOpcode};
use crate::sys::clock;
use crate::sys::log::explain;

/// Messages that may be half here, of a peer.
const SHADOWS: usize = 4096;
/// The RNR timer code of shadows (0.64 ms): the QP's own is not known here.
const MIN_RNR_TIMER: u8 = 12;
/// In place of the event of a failure that raises none.
const NO_EVENT: u32 = u32::MAX;
/// How long a request waits for the QP's process to introduce itself, before it looks again.
const PAUSE_NS: u64 = 1_000_000;

/// What becomes of a request that may be for a foreign SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is the peer's own business.
    Home,
    /// It is on its way, or done.
    Done,
    /// It goes on when something happens.
    Waits,
}

/// Whose SRQ a request names.
enum Owner {
    /// The process of the peer, or nobody's.
    Peer,
    /// This process, which is not the peer's.
    Here,
    /// A third one.
    Other(Arc<Wire>),
    /// A process that is not there.
    Gone,
}

/// Sends request `at` if its SRQ is not of the process of the peer QP `to`; `home` leads there, if it is not this one.
pub fn send(qp: &Qp, sq: &mut Requester, at: u64, home: Option<&Arc<Wire>>, to: Qpn) -> Turn {
    let owner = owner(qp, sq, at, home, to);
    if matches!(owner, Owner::Peer) {
        return Turn::Home;
    }
    if sq.has_unacked() {
        return Turn::Waits;
    }
    if let Err(status) = sq.check(qp, at) {
        sq.doom(qp, at, status);
        return Turn::Waits;
    }
    let access = match look_at(qp, home, to) {
        Seen::Listening(access) => access,
        Seen::Nobody => return wait(qp, sq, at),
        Seen::NotYet => {
            sq.wait_until = clock::now_ns() + PAUSE_NS;
            qp.node.timers.arm(qp, sq.wait_until);
            return Turn::Waits;
        }
        Seen::Hidden => {
            sq.doom(qp, at, WcStatus::RemInvReqErr);
            return Turn::Waits;
        }
    };
    match owner {
        Owner::Peer => Turn::Home,
        Owner::Here => deliver_here(qp, sq, at, to, access),
        Owner::Gone => {
            let srqn = sq.queue.wqe(at).srqn;
            // Retries are not told of.
            if qp.node.wires.unanswered.lock().insert(qp.num, at) != Some(at) {
                explain(format_args!("qp {:?}: no process has SRQ 0x{srqn:06x}: there is no answer", qp.num));
            }
            wait(qp, sq, at)
        }
        Owner::Other(wire) => {
            sq.foreign = Some(wire.clone());
            let mut wrote = false;
            let mark = Mark { flags: FOREIGN, access: access.bits() as u16 };
            let put = || put_any(qp, sq, at, &wire, to, mark, &mut wrote);
            let sent = wire.try_for_room(qp, put, |sent| *sent == Ok(false));
            if wrote {
                wire.peer.notify();
            }
            match sent {
                Ok(true) => {
                    sq.begun(at);
                    return Turn::Done;
                }
                Ok(false) => {}
                Err(status) => sq.doom(qp, at, status),
            }
            Turn::Waits
        }
    }
}

fn owner(qp: &Qp, sq: &Requester, at: u64, home: Option<&Arc<Wire>>, to: Qpn) -> Owner {
    let wqe = sq.queue.wqe(at);
    let slot = Qpn(wqe.srqn).slot();
    // A WRITE of nothing names no SRQ that matters.
    let names_none = wqe.opcode == WrOpcode::Write && wqe.length == 0;
    if names_none || slot == to.slot() || !SLOTS.contains(&slot) {
        return Owner::Peer;
    }
    // What was once sent goes the same way again: the two ways are numbered differently.
    let before = sq.psns_given(at);
    if before.is_some_and(|psns| psns > 0) {
        return Owner::Peer;
    }
    if qp.node.owns_slot(slot) {
        return if home.is_some() { Owner::Here } else { Owner::Peer };
    }
    if let (Some(wire), true) = (&sq.foreign, wqe.cursor > 0) {
        return Owner::Other(wire.clone());
    }
    match qp.node.wires.to_slot(qp.node, slot) {
        Some(wire) if before.is_none() && home.is_some_and(|home| is_same(home, &wire)) => Owner::Peer,
        Some(wire) if !wire.is_lost.load(Ordering::SeqCst) => Owner::Other(wire),
        _ => Owner::Gone,
    }
}

/// Both lead to the same process.
fn is_same(a: &Arc<Wire>, b: &Arc<Wire>) -> bool {
    Arc::ptr_eq(a, b) || a.peer.nonce().is_some_and(|nonce| Some(nonce) == b.peer.nonce())
}

/// What can be seen from here of the QP that receives.
enum Seen {
    /// It takes messages; this is what it allows.
    Listening(Access),
    /// It would not take a message.
    Nobody,
    /// Its process has not introduced itself.
    NotYet,
    /// Its process is another user's.
    Hidden,
}

fn look_at(qp: &Qp, home: Option<&Arc<Wire>>, to: Qpn) -> Seen {
    let (kind, state, peer, access) = match home {
        None => match qp.node.qp(to) {
            Some(tgt) => {
                let rq = tgt.rq.lock();
                (Some(tgt.kind), Some(tgt.state()), rq.peer, rq.access)
            }
            None => return Seen::Nobody,
        },
        Some(wire) => match wire.peer.remote() {
            Some(remote) if remote.is_published() => match remote.qp(to) {
                Some(view) => (view.kind, view.state, Qpn(view.peer_qpn), view.access),
                None => return Seen::Nobody,
            },
            Some(_) => return Seen::Hidden,
            None => return Seen::NotYet,
        },
    };
    let listens = matches!(state, Some(QpState::Rtr | QpState::Rts | QpState::Sqd));
    if kind == Some(QpType::XrcRecv) && peer == qp.num && listens {
        Seen::Listening(access)
    } else {
        Seen::Nobody
    }
}

/// Nobody answers.
fn wait(qp: &Qp, sq: &mut Requester, at: u64) -> Turn {
    if sq.back_off(qp, at, clock::now_ns()) {
        qp.node.timers.arm(qp, sq.wait_until);
    }
    Turn::Waits
}

/// The SRQ is this process's, the QP that receives is not.
fn deliver_here(qp: &Qp, sq: &mut Requester, at: u64, to: Qpn, access: Access) -> Turn {
    let srq = match srq_for(qp.node, sq.queue.wqe(at).srqn, to) {
        Ok(srq) => srq,
        Err(nak) => {
            Home { node: qp.node, to, srqn: sq.queue.wqe(at).srqn, sender: qp.num }
                .failed(Some(EventType::QpReqErr));
            sq.doom(qp, at, nak.status());
            return Turn::Waits;
        }
    };
    // A message that fails here must not use up a receive.
    if let Err(status) = sq.gather_nothing(qp, at) {
        sq.doom(qp, at, status);
        return Turn::Waits;
    }
    let shadow = shadow(qp.node, &srq, to, (to, qp.num), access);
    shadow.rq.lock().psn = sq.psn_of(at);
    let went = local::deliver(qp, sq, at, Some(&shadow), 0);
    shadow.rq.lock().flush(&shadow);
    if went { Turn::Done } else { Turn::Waits }
}

/// Whether an entry answers the request that `owner` has: the SRQ's number stands for the QP's, which lies in another slot.
pub fn is_answer(sq: &Requester, owner: &Arc<Wire>, wire: &Arc<Wire>, src: Qpn, h: &Header) -> bool {
    let wqe = sq.queue.wqe(sq.queue.tail);
    Arc::ptr_eq(owner, wire) && wqe.srqn == src.0 && wqe.psn.get() == h.seq
}

/// The process that has `wire` is gone: what it was to receive ends as on a wire without an answer.
pub fn owner_lost(qp: &Qp, sq: &mut Requester, wire: &Arc<Wire>) {
    if sq.foreign.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, wire)) {
        wait(qp, sq, sq.queue.tail);
    }
}

/// Messages from a peer to SRQs of this process, half here: by sender and by the QP that they are sent to.
#[derive(Debug, Default)]
pub struct Shadows(HashMap<(Qpn, Qpn), Arc<Qp>>);

impl Shadows {
    /// An entry of a message from QP `src`.
    pub fn request(&mut self, node: &'static Node, wire: &Arc<Wire>, src: Qpn, entry: &Entry) {
        let h = &entry.header;
        let key = (src, Qpn(h.dst_qpn & 0xff_ffff));
        let srqn = match h.ext {
            Ext::Rdma { aux, .. } | Ext::Atomic { aux, .. } => aux & 0xff_ffff,
            Ext::None => 0,
        };
        let answer = |kind, imm| {
            let (dst_qpn, src_qpn, seq) = (src.0, srqn, h.seq);
            let header = Header { kind, flags: FOREIGN, dst_qpn, src_qpn, seq, imm, ..Header::default() };
            wire.put_or_keep(header);
        };
        if h.flags & FIRST != 0 {
            // A sender has one message under way: the one before will not go on.
            self.end(key);
            match self.begin(node, wire, key, srqn, h) {
                Ok(shadow) => self.0.insert(key, shadow),
                Err(nak) => {
                    if wire.peer.is_same_user() {
                        Home { node, to: key.1, srqn, sender: src }.failed(Some(EventType::QpReqErr));
                    }
                    return answer(NAK, Refusal::Nak(nak, 0).encode());
                }
            };
        }
        let Some(shadow) = self.0.get(&key).cloned() else { return };
        let mut rq = shadow.rq.lock();
        match carry_out(&shadow, &mut rq, src, entry, &mut Taker::nobody()) {
            Ok(Step::More) => return,
            Ok(Step::Accepted) => answer(ACK, 0),
            Ok(Step::Answer(what)) => {
                // It stays until the next message, since the ring may have no room for all that it sends.
                rq.outbox.push(wire, what);
                return send::answer(&shadow, &mut rq, src);
            }
            Err(nak) => answer(NAK, Refusal::Nak(nak, MIN_RNR_TIMER).encode()),
        }
        drop(rq);
        self.end(key);
    }

    /// The peer is gone, and the rest of its messages will not come: their receives are flushed.
    pub fn flush(&mut self) {
        for (_, shadow) in self.0.drain() {
            shadow.rq.lock().flush(&shadow);
        }
    }

    fn end(&mut self, key: (Qpn, Qpn)) {
        if let Some(shadow) = self.0.remove(&key) {
            shadow.rq.lock().flush(&shadow);
        }
    }

    fn begin(
        &self,
        node: &'static Node,
        wire: &Arc<Wire>,
        (src, to): (Qpn, Qpn),
        srqn: u32,
        h: &Header,
    ) -> Result<Arc<Qp>, Nak> {
        let op = WrOpcode::from_raw(h.kind as u32).filter(|op| !op.is_local());
        let Some(op) = op.filter(|_| h.flags & RELIABLE != 0 && self.0.len() < SHADOWS) else {
            return Err(Nak::InvalidRequest);
        };
        if !wire.peer.is_same_user() {
            explain(format_args!(
                "process {} of another user names SRQ 0x{srqn:06x}: refused",
                wire.peer.cred().pid
            ));
            return Err(Nak::InvalidRequest);
        }
        let srq = srq_for(node, srqn, to)?;
        // What is answered in pieces is answered in the SRQ's name.
        let number = if is_answered(op) { Qpn(srqn) } else { to };
        Ok(shadow(node, &srq, number, (to, src), Access::from_bits_truncate(h.spare.into())))
    }
}

/// An SRQ of this process that messages over QP `to` of another may name.
///
/// Which domain that QP is of is not known here: the user is the same, and the domain one that processes can share.
fn srq_for(node: &'static Node, srqn: u32, to: Qpn) -> Result<Arc<Srq>, Nak> {
    let srq = node.srq(srqn);
    let reachable = srq.as_ref().and_then(|s| s.xrc.as_ref()).is_some_and(|xrc| match node.qp(to) {
        Some(tgt) => tgt.xrc_domain == Some(xrc.domain),
        None => xrc.is_shared(),
    });
    srq.filter(|_| reachable).ok_or_else(|| {
        explain(format_args!(
            "a message over QP {to:?} names SRQ 0x{srqn:06x}, which its XRC domain does not have"
        ));
        Nak::InvalidRequest
    })
}

/// READs and atomics are answered with data.
fn is_answered(op: WrOpcode) -> bool {
    matches!(op, WrOpcode::Read | WrOpcode::CmpSwap | WrOpcode::FetchAdd)
}

/// The QP of another process that a shadow stands for.
#[derive(Debug)]
struct Home {
    node: &'static Node,
    to: Qpn,
    srqn: u32,
    sender: Qpn,
}

impl Handle for Home {
    fn hear(&self, _: EventType) {}

    fn failed(&self, event: Option<EventType>) {
        let Some(wire) = self.node.wires.to_slot(self.node, self.to.slot()) else { return };
        wire.put_or_keep(Header {
            kind: FAILED,
            dst_qpn: self.to.0,
            src_qpn: self.srqn,
            seq: self.sender.0,
            imm: event.map_or(NO_EVENT, EventType::raw),
            ..Header::default()
        });
    }

    fn changed(&self, _: &Qp) {}
}

/// The owner of an SRQ has refused what was sent over `qp`: it fails, as where it has refused it itself.
pub fn failed(wire: &Wire, qp: &Qp, h: &Header) {
    let event = EventType::from_raw(h.imm);
    let is_one = matches!(event, Some(EventType::QpFatal | EventType::QpReqErr | EventType::QpAccessErr));
    let is_ours = qp.kind == QpType::XrcRecv && qp.rq.lock().peer == Qpn(h.seq);
    if (is_one || h.imm == NO_EVENT) && is_ours && wire.peer.is_same_user() {
        explain(format_args!(
            "qp {:?}: the owner of SRQ 0x{:06x}, process {}, has refused what {:?} has sent there",
            qp.num,
            h.src_qpn,
            wire.peer.cred().pid,
            Qpn(h.seq)
        ));
        qp.fail(None, event);
    }
}

/// A QP of the number `num` that stands for QP `to` of another process and receives from `src` for `srq`; no table knows
/// it.
fn shadow(node: &'static Node, srq: &Srq, num: Qpn, (to, src): (Qpn, Qpn), access: Access) -> Arc<Qp> {
    let sq = Requester::new(SendQueue::none(), None, false);
    let rq = Responder::new(None, None, None);
    let domain = srq.xrc.as_ref().map(|xrc| xrc.domain);
    let qp = Qp::new(num, QpType::XrcRecv, srq.pd, node, domain, srq.events().clone(), sq, rq);
    let srqn = srq.xrc.as_ref().map_or(0, |xrc| xrc.number);
    qp.openers.lock().push(Arc::new(Home { node, to, srqn, sender: src }));
    // Its number is not ours to publish.
    qp.shown.lock().withdrawn = true;
    qp.set_state(QpState::Rts);
    {
        let mut rq = qp.rq.lock();
        (rq.peer, rq.min_rnr_timer) = (src, MIN_RNR_TIMER);
        // A QP that takes no READs does not show that it would allow them.
        (rq.access, rq.max_dest_rd_atomic) = (access, 1);
    }
    qp
}
