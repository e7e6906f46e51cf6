//! Packets that are what most of them are in a talk go a short way: a SEND that is one packet, and an acknowledgement, of the
//! connection that the packet before was for.
use super::super::Received;
use super::super::sides::Sends;
use super::{Due, Flow, Receiving, Sending};
use crate::soft::cq::Taker;
use crate::soft::mem::run::Run;
use crate::soft::qp::Qp;
use crate::soft::qp::responder::Whole;
use crate::soft::transport::Refusal;
use crate::soft::types::{Psn, QpState, WrOpcode};
use crate::soft::wire::short::Short;
use crate::soft::wire::{Transport, icrc};
use std::sync::atomic::Ordering;

impl Flow {
    /// Takes a packet that came from the peer for `qp` at `now`, if it is such a one and in order; false: nothing has been done. Notes
    /// whether an answer is due, and whether it was an answer itself. Called with no lock held.
    #[inline]
    pub(in super::super) fn take_short(
        &self,
        qp: &Qp,
        now: u64,
        received: &Received<'_>,
        (due, answered): (&mut Due, &mut bool),
        taker: &mut Taker<'_>,
    ) -> bool {
        let Some(short) = Short::parse(received.datagram) else { return false };
        let is_ours =
            self.connection.transport == Transport::Rc && !received.is_marked() && self.vouches_for(received);
        if !is_ours {
            return false;
        }
        match short {
            Short::Acknowledge { psn } => {
                self.acknowledged(qp, now, psn, received.datagram.len(), taker);
                *answered = true;
                true
            }
            Short::Send { psn, solicited, asks, ref payload } => {
                let send = Send { psn, solicited, asks, payload: &received.datagram[payload.clone()] };
                match self.sent(qp, now, &send, taker) {
                    Some(new) => *due = due.and(new),
                    None => return false,
                }
                true
            }
        }
    }

    /// It is from the peer, and its ICRC is right; another one's may be as well.
    #[inline]
    pub(in super::super) fn vouches_for(&self, received: &Received<'_>) -> bool {
        self.from_peer.are(&received.ip) && self.from_peer.check(received.index, received.datagram)
    }

    fn acknowledged(&self, qp: &Qp, now: u64, psn: Psn, bytes: usize, taker: &mut Taker<'_>) {
        let mut sq = qp.sq.lock();
        sq.stats.received(1, bytes);
        if matches!(qp.state(), QpState::Rts | QpState::Sqd)
            && let Some(Sending::Reliable(r, _)) = &mut *self.sending.lock()
        {
            r.receive_acknowledgement(now, psn, &mut Sends { qp, sq: &mut sq, taker });
        }
    }

    fn sent(&self, qp: &Qp, now: u64, send: &Send<'_>, taker: &mut Taker<'_>) -> Option<Due> {
        let mut rq = qp.rq.lock();
        let mut receiving = self.receiving.lock();
        let Receiving::Reliable(r, _) = &mut *receiving else { return None };
        if !rq.listens(qp) || !r.expects_send(send.psn, send.payload.len()) {
            return None;
        }
        self.owes.store(true, Ordering::Release);
        let whole = Whole {
            op: WrOpcode::Send,
            src_qpn: rq.peer,
            imm: None,
            solicited: send.solicited,
            length: send.payload.len() as u32,
        };
        let (done, ended) = rq.take_whole(qp, &whole, Run::of(send.payload), taker);
        let is_taken = done > 0 || ended.is_err();
        if is_taken {
            rq.stats.received(1, send.datagram_len());
            r.sent(ended.map_err(Refusal::from), send.asks);
            // What completes a receive may make the application answer.
            self.spoken_to.store(now, Ordering::Relaxed);
        }
        let owes = r.has_replies();
        self.owes.store(owes, Ordering::Release);
        is_taken.then(|| Due::of(owes, r.owes_acknowledgement()))
    }
}

/// A SEND of one packet.
struct Send<'a> {
    psn: Psn,
    solicited: bool,
    asks: bool,
    payload: &'a [u8],
}

impl Send<'_> {
    fn datagram_len(&self) -> usize {
        super::bth::LEN + self.payload.len().next_multiple_of(4) + icrc::LEN
    }
}
