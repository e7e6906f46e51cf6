//! Message rules, the same for every path: states, begin, place, finish, completions, errors. No C type, socket or clock.
//!
//! A QP has two halves with a lock each: `Requester` (send queue) and `Responder` (receive queue). Links drive them:
//! they take requests that are `ready`, and hand arriving ones to `begin`, `place`, `finish`.
#![forbid(unsafe_code)]

pub mod attr;
pub mod counters;
mod payload;
mod reason;
pub mod recvq;
pub mod requester;
pub mod responder;
pub mod sendq;
mod silence;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::channel::AsyncQueue;
use super::link::{Path, faults, pcap};
use super::mem::PdId;
use super::node::Node;
use super::stats::Record;
use super::types::{Access, EventType, Gid, QpState, QpType, Qpn, WcStatus};
use crate::sys::lock::Lock;
use attr::Attributes;
use requester::Requester;
use responder::Responder;

/// A queue pair. Lock order: `attr`, `sq`, `rq`, then CQs and SRQs, then a link's own.
#[derive(Debug)]
pub struct Qp {
    #[allow(missing_docs)]
    pub num: Qpn,
    #[allow(missing_docs)]
    pub kind: QpType,
    #[allow(missing_docs)]
    pub pd: PdId,
    /// The process that it lives in.
    pub node: &'static Node,
    /// What `ibv_modify_qp` has set so far; held over the whole of a modify.
    pub attr: Lock<Attributes>,
    /// The send half.
    pub sq: Lock<Requester>,
    /// The receive half.
    pub rq: Lock<Responder>,
    /// The address of the application's `ibv_qp`, which events name.
    pub cookie: AtomicUsize,
    /// What it has counted. Its description is written under `shown`.
    pub record: Record,
    /// The wire that its last message came over, by its token, until what is sent over another one has acknowledged it there; 0: none.
    pub heard_over: AtomicU64,
    /// What direct access by peers of this user goes by.
    pub shown: Lock<Shown>,
    /// The XRC domain (XRC QPs).
    pub xrc_domain: Option<u64>,
    /// Multicast groups that it is attached to; it cannot be destroyed before.
    pub attached: AtomicU32,
    /// Its own messages to groups do not come back to it.
    pub blocks_self: AtomicBool,
    /// Objects of the application that stand for it: XRC receivers can be opened several times.
    pub handles: AtomicU32,
    /// Those beside the first.
    pub openers: Lock<Vec<Arc<dyn Handle>>>,
    /// How messages of a connected QP look in a trace.
    pub connection: Lock<Option<pcap::memory::Connection>>,
    /// Faults on request, of QPs that the application made.
    pub faults: OnceLock<faults::OfQp>,
    state: AtomicU8,
    events: Arc<AsyncQueue>,
    /// Asks for the other half's flush when no lock is held.
    flush_wanted: AtomicBool,
    me: Weak<Qp>,
}

/// A handle for an XRC receiver beside the first.
pub trait Handle: std::fmt::Debug + Send + Sync {
    /// The QP raises an asynchronous event. May be called under its locks.
    fn hear(&self, event: EventType);
    /// The QP has gone to ERR; `hear` brings the event of that, if there is one. May be called under its locks.
    fn failed(&self, event: Option<EventType>);
    /// `ibv_modify_qp` has changed the QP.
    fn changed(&self, qp: &Qp);
}

/// What peers of this user may know of a QP.
#[derive(Debug)]
pub struct Shown {
    #[allow(missing_docs)]
    pub access: Access,
    #[allow(missing_docs)]
    pub max_dest_rd_atomic: u8,
    #[allow(missing_docs)]
    pub peer_qpn: Qpn,
    #[allow(missing_docs)]
    pub path: Path,
    /// The address of the peer, and the path MTU in bytes; nothing where it is not connected.
    pub peer_gid: Gid,
    #[allow(missing_docs)]
    pub mtu: u32,
    /// Operations of the peer are counted, so that it must not carry them out unseen.
    pub counts_remote: bool,
    /// It is being destroyed: nothing is shown any more.
    pub withdrawn: bool,
}

/// Why a responder refuses a request (IBA 9.7.5.2.8); the link answers with it where the transport has answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// No receive request is posted: try again later.
    Rnr,
    /// Malformed, not allowed on this QP, or longer than the receive request.
    InvalidRequest,
    /// The rkey does not allow it.
    RemoteAccess,
    /// The responder's own receive request or memory is bad.
    RemoteOp,
    /// Refused without an answer: the requester waits in vain.
    Silent,
}

impl Nak {
    /// How the requester's work request completes; RNR is retried instead.
    pub fn status(self) -> WcStatus {
        match self {
            Nak::Rnr => WcStatus::RnrRetryExcErr,
            Nak::InvalidRequest => WcStatus::RemInvReqErr,
            Nak::RemoteAccess => WcStatus::RemAccessErr,
            Nak::RemoteOp => WcStatus::RemOpErr,
            Nak::Silent => WcStatus::RetryExcErr,
        }
    }
}

impl Qp {
    /// Payload bytes of a UD message at most, whatever the port's MTU: the largest MTU.
    pub const MAX_DATAGRAM: u32 = 4096;

    /// A QP in RESET.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        num: Qpn,
        kind: QpType,
        pd: PdId,
        node: &'static Node,
        xrc_domain: Option<u64>,
        events: Arc<AsyncQueue>,
        mut sq: Requester,
        mut rq: Responder,
    ) -> Arc<Self> {
        let record = node.stats.claim(kind, &node.wires.own().slots());
        (sq.stats, rq.stats) = (record.sender(), record.receiver());
        Arc::new_cyclic(|me| Self {
            num,
            kind,
            pd,
            node,
            attr: Lock::new(Attributes::default()),
            sq: Lock::new(sq),
            rq: Lock::new(rq),
            cookie: AtomicUsize::new(0),
            record,
            heard_over: AtomicU64::new(0),
            shown: Lock::new(Shown {
                access: Access::empty(),
                max_dest_rd_atomic: 0,
                peer_qpn: Qpn(0),
                path: Path::None,
                peer_gid: Gid::default(),
                mtu: 0,
                counts_remote: false,
                withdrawn: false,
            }),
            xrc_domain,
            attached: AtomicU32::new(0),
            blocks_self: AtomicBool::new(false),
            handles: AtomicU32::new(1),
            openers: Lock::default(),
            connection: Lock::new(None),
            faults: OnceLock::new(),
            state: AtomicU8::new(QpState::Reset as u8),
            events,
            flush_wanted: AtomicBool::new(false),
            me: me.clone(),
        })
    }

    /// The current state.
    #[inline]
    pub fn state(&self) -> QpState {
        match self.state.load(Ordering::Acquire) {
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            5 => QpState::Sqe,
            6 => QpState::Err,
            _ => QpState::Reset,
        }
    }

    /// It is in RTS.
    #[inline(always)]
    pub fn is_rts(&self) -> bool {
        self.state.load(Ordering::Acquire) == QpState::Rts as u8
    }

    /// Sets the state. The caller holds both halves' locks, or moves to an error state, which either half may do alone.
    pub fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
        self.node.publish_qp(self);
    }

    /// Moves to SQE, unless the other half has meanwhile moved to ERR. The caller holds the send half's lock.
    pub fn stop_sending(&self) {
        let (rts, sqe) = (QpState::Rts as u8, QpState::Sqe as u8);
        if self.state.compare_exchange(rts, sqe, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.node.publish_qp(self);
        }
    }

    /// A counted reference to this QP; none once it is being destroyed.
    pub fn me(&self) -> Option<Arc<Qp>> {
        self.me.upgrade()
    }

    /// Requests are acknowledged and retried.
    #[inline]
    pub fn is_reliable(&self) -> bool {
        matches!(self.kind, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Takes into its counters what its peer has done to our memory without our help.
    pub fn absorb(&self) {
        self.shown.lock().absorb(&self.record);
    }

    /// Raises an asynchronous event about this QP.
    pub fn raise(&self, event: EventType) {
        // The shadow of another process's QP is no object of the application: its cookie is 0.
        self.events.push(event, &self.cookie);
        if self.handles.load(Ordering::Relaxed) > 1 || self.kind == QpType::XrcRecv {
            for handle in self.openers.lock().iter() {
                handle.hear(event);
            }
        }
    }

    /// One more handle; false where the last one has gone.
    pub fn add_handle(&self) -> bool {
        let more = |n: u32| (n > 0).then_some(n + 1);
        self.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// It has gone to ERR, of which the event tells, if there is one.
    fn tell_failed(&self, event: Option<EventType>) {
        if self.kind == QpType::XrcRecv {
            self.openers.lock().iter().for_each(|handle| handle.failed(event));
        }
        if let Some(event) = event {
            self.raise(event);
        }
    }

    /// `ibv_modify_qp` has changed it. Called with no lock held.
    pub fn tell_changed(&self) {
        if self.kind == QpType::XrcRecv {
            let handles = self.openers.lock().clone();
            handles.iter().for_each(|handle| handle.changed(self));
        }
    }

    /// Moves the QP to ERR from the receive half, whose lock the caller holds and which flushes itself; the send half
    /// follows when no lock is held.
    pub fn fail_from_responder(&self, rq: &mut Responder, event: Option<EventType>) {
        let before = self.state();
        if before == QpState::Err || before == QpState::Reset {
            return;
        }
        self.set_state(QpState::Err);
        rq.flush(self);
        self.tell_failed(event);
        self.flush_later();
    }

    /// Moves the QP to ERR from the send half, whose lock the caller holds and which flushes itself.
    pub fn fail_from_requester(&self, sq: &mut Requester, event: Option<EventType>) {
        let before = self.state();
        if before == QpState::Err || before == QpState::Reset {
            return;
        }
        self.set_state(QpState::Err);
        sq.flush(self);
        self.tell_failed(event);
        self.flush_later();
    }

    /// Moves the QP to ERR with no lock held: the peer is gone, or `ibv_modify_qp` says so.
    /// `oldest` is how the oldest send completes; all else is flushed.
    pub fn fail(&self, oldest: Option<WcStatus>, event: Option<EventType>) {
        {
            let mut sq = self.sq.lock();
            let before = self.state();
            if before == QpState::Err || before == QpState::Reset {
                return;
            }
            self.set_state(QpState::Err);
            if let Some(status) = oldest {
                sq.complete_oldest_with(self, status);
            }
            sq.flush(self);
        }
        self.rq.lock().flush(self);
        self.tell_failed(event);
    }

    /// Completes what an error left to do; called with no lock held.
    pub fn finish_deferred(&self) {
        if self.flush_wanted.swap(false, Ordering::AcqRel) {
            self.sq.lock().flush_if_failed(self);
            self.rq.lock().flush_if_failed(self);
        }
    }

    pub(super) fn flush_later(&self) {
        if !self.flush_wanted.swap(true, Ordering::AcqRel)
            && let Some(me) = self.me()
        {
            self.node.defer(me);
        }
    }
}
