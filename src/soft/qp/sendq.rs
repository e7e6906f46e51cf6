//! The send queue's work requests in private memory: posted, begun, completed, always in order.
use std::sync::Arc;

use crate::soft::ah::Ah;
use crate::soft::mem::Bind;
use crate::soft::mem::area::{Allocator, Area, Purpose, filled};
use crate::soft::types::{Access, Key, Psn, Qpn, SendFlags, Sge, WrOpcode};
use crate::sys::errno::Errno;

/// A posted send work request. Its SGEs and inline bytes lie beside it in the queue.
#[derive(Debug, Clone)]
pub struct Wqe {
    #[allow(missing_docs)]
    pub wr_id: u64,
    #[allow(missing_docs)]
    pub opcode: WrOpcode,
    #[allow(missing_docs)]
    pub flags: SendFlags,
    /// SGEs in use.
    pub num_sge: u32,
    /// Payload bytes: the sum of the SGEs, or the inline bytes.
    pub length: u32,
    /// Immediate data as the application gave it (network byte order), or the rkey to invalidate.
    pub imm: u32,
    /// Where RDMA and atomics go.
    pub remote_addr: u64,
    #[allow(missing_docs)]
    pub rkey: Key,
    /// Compare value, or the addend of FETCH_ADD; host byte order.
    pub compare_add: u64,
    #[allow(missing_docs)]
    pub swap: u64,
    /// UD: where to.
    pub ah: Option<Arc<Ah>>,
    /// UD: the destination QP.
    pub remote_qpn: Qpn,
    /// UD: the Q_Key as given; its high bit means the QP's own (IBA 10.2.5).
    pub qkey: u32,
    /// XRC: the destination SRQ.
    pub srqn: u32,
    /// The link's number for the message: its first PSN, and how many it takes.
    pub psn: Psn,
    /// PSNs that the message takes; shm numbers messages, udp packets.
    pub psns: u32,
    /// The link's own note: how far sending or receiving has come, in bytes.
    pub cursor: u32,
    /// The answer to a READ or atomic is here.
    pub answered: bool,
    /// It is complete, and a completion says so.
    pub reported: bool,
}

impl Wqe {
    /// None yet.
    pub const EMPTY: Wqe = Wqe {
        wr_id: 0,
        opcode: WrOpcode::Send,
        flags: SendFlags::empty(),
        num_sge: 0,
        length: 0,
        imm: 0,
        remote_addr: 0,
        rkey: Key(0),
        compare_add: 0,
        swap: 0,
        ah: None,
        remote_qpn: Qpn(0),
        qkey: 0,
        srqn: 0,
        psn: Psn::new(0),
        psns: 0,
        cursor: 0,
        answered: false,
        reported: false,
    };

    /// READs and atomics, which the responder answers with data.
    pub fn wants_answer(&self) -> bool {
        matches!(self.opcode, WrOpcode::Read | WrOpcode::CmpSwap | WrOpcode::FetchAdd)
    }

    /// Makes it a SEND, with or without immediate data, that nothing has happened to. What is left of the request before is
    /// what no SEND of a connected QP looks at.
    #[inline(always)]
    pub fn set_send(&mut self, wr_id: u64, opcode: WrOpcode, flags: SendFlags, imm: u32, psn: Psn) {
        debug_assert!(self.ah.is_none());
        (self.wr_id, self.opcode, self.flags, self.imm) = (wr_id, opcode, flags, imm);
        (self.psn, self.psns, self.cursor) = (psn, 1, 0);
        (self.answered, self.reported) = (false, false);
    }

    /// An ATOMIC WRITE that has no SGE: its bytes came with the request, in `compare_add`.
    pub fn holds_value(&self) -> bool {
        self.num_sge == 0 && !self.flags.contains(SendFlags::INLINE)
    }

    /// What a BIND_MW asks for.
    pub fn bind(&self) -> Bind {
        Bind {
            window: Key(self.imm),
            rkey: self.rkey,
            region: Key(self.swap as u32),
            addr: self.remote_addr,
            length: self.compare_add,
            access: Access::from_bits_retain((self.swap >> 32) as u32),
        }
    }

    /// Makes it a BIND_MW, of no payload.
    pub fn set_bind(&mut self, bind: &Bind) {
        (self.num_sge, self.length) = (0, 0);
        (self.imm, self.rkey, self.remote_addr) = (bind.window.0, bind.rkey, bind.addr);
        (self.compare_add, self.swap) =
            (bind.length, (bind.access.bits() as u64) << 32 | bind.region.0 as u64);
    }
}

/// A ring of work requests: `released <= tail <= next <= head`.
#[derive(Debug)]
pub struct SendQueue {
    wqes: Box<[Wqe]>,
    sges: Area<Sge>,
    inline: Area<u8>,
    depth: u32,
    max_sge: u32,
    max_inline: u32,
    /// The oldest that has not been given back to the application: one that is complete keeps its place until its
    /// completion, or that of a younger one, has been polled.
    released: u64,
    /// The oldest that is not complete.
    pub tail: u64,
    /// The next that the link begins.
    pub next: u64,
    /// Behind the youngest posted.
    pub head: u64,
    /// Behind the youngest written but not yet posted (`ibv_wr_start` to `ibv_wr_complete`).
    drafts: u64,
}

impl SendQueue {
    /// A queue that holds nothing.
    pub fn none() -> Self {
        Self {
            wqes: Box::default(),
            sges: Area::none(),
            inline: Area::none(),
            depth: 0,
            max_sge: 0,
            max_inline: 0,
            released: 0,
            tail: 0,
            next: 0,
            head: 0,
            drafts: 0,
        }
    }

    /// A queue for `depth` requests of up to `max_sge` SGEs, in memory of the allocator if there is one, or `max_inline`
    /// inline bytes. ENOMEM where there is no memory.
    pub fn new_in(
        depth: u32,
        max_sge: u32,
        max_inline: u32,
        allocator: Option<&Arc<dyn Allocator>>,
    ) -> Result<Self, Errno> {
        let sges = Area::zeros(places(depth, max_sge), allocator, Purpose::SendQueue)?;
        let slots = (depth as usize).next_power_of_two();
        let wqes = filled(if depth == 0 { 0 } else { slots }, Wqe::EMPTY)?;
        let inline = Area::zeros(slots * max_inline as usize, None, Purpose::SendQueue)?;
        Ok(Self { wqes, sges, inline, depth, max_sge, max_inline, ..Self::none() })
    }

    /// Requests that it holds at most.
    pub fn depth(&self) -> u32 {
        self.depth
    }
    /// SGEs of a request at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// Inline bytes of a request at most.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Every place is taken, as far as is known: see `release`.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.drafts - self.released >= self.depth as u64
    }

    /// Every request is complete, and none is written but not posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail == self.drafts
    }

    /// Gives back what the application knows to be complete: `unpolled` of the completions still wait to be polled.
    pub fn release(&mut self, unpolled: u32) {
        let reported = |at: &u64| self.wqe(*at).reported;
        if let Some(at) = (self.released..self.tail).rev().filter(reported).nth(unpolled as usize) {
            self.released = at + 1;
        }
    }

    /// Room for one more request, to be filled in and then posted by `publish`; ENOMEM when the queue is full.
    #[inline]
    pub fn draft(&mut self) -> Result<u64, Errno> {
        if self.is_full() {
            return Err(Errno::ENOMEM);
        }
        let at = self.drafts;
        self.drafts += 1;
        *self.wqe_mut(at) = Wqe::EMPTY;
        Ok(at)
    }

    /// The link has begun everything that was posted, and nothing is drafted.
    #[inline(always)]
    pub fn has_begun_all(&self) -> bool {
        self.next == self.head && self.head == self.drafts
    }

    /// The number of the next request where `has_begun_all` and there is room. An earlier request still stands there, which
    /// is overwritten before `take_place`.
    #[inline(always)]
    pub fn place(&self) -> u64 {
        self.drafts
    }

    /// The request in `place` is posted and begun.
    #[inline(always)]
    pub fn take_place(&mut self) {
        self.drafts += 1;
        (self.head, self.next) = (self.drafts, self.drafts);
    }

    /// Posts all drafts.
    #[inline]
    pub fn publish(&mut self) {
        self.head = self.drafts;
    }

    /// Forgets all drafts.
    pub fn discard_drafts(&mut self) {
        self.drafts = self.head;
    }

    /// Forgets the youngest draft.
    pub fn discard_draft(&mut self) {
        self.drafts = self.drafts.saturating_sub(1).max(self.head);
    }

    /// Forgets everything (the QP goes to RESET).
    pub fn clear(&mut self) {
        for wqe in &mut self.wqes {
            wqe.ah = None;
        }
        (self.released, self.tail, self.next, self.head, self.drafts) = (0, 0, 0, 0, 0);
    }

    #[inline]
    fn slot(&self, at: u64) -> usize {
        at as usize & (self.wqes.len() - 1)
    }

    /// The request number `at`.
    #[inline]
    pub fn wqe(&self, at: u64) -> &Wqe {
        &self.wqes[self.slot(at)]
    }

    /// The request number `at`.
    #[inline]
    pub fn wqe_mut(&mut self, at: u64) -> &mut Wqe {
        let slot = self.slot(at);
        &mut self.wqes[slot]
    }

    /// The SGEs of request `at`.
    #[inline]
    pub fn sges(&self, at: u64) -> &[Sge] {
        let first = self.slot(at) * self.max_sge as usize;
        &self.sges[first..first + self.wqe(at).num_sge as usize]
    }

    /// All SGE places of request `at`.
    #[inline]
    pub fn sge_places(&mut self, at: u64) -> &mut [Sge] {
        let first = self.slot(at) * self.max_sge as usize;
        &mut self.sges[first..first + self.max_sge as usize]
    }

    /// The inline bytes of request `at`.
    #[inline]
    pub fn inline(&self, at: u64) -> &[u8] {
        let first = self.slot(at) * self.max_inline as usize;
        &self.inline[first..first + self.wqe(at).length as usize]
    }

    /// All places for inline bytes of request `at`.
    #[inline]
    pub fn inline_places(&mut self, at: u64) -> &mut [u8] {
        let first = self.slot(at) * self.max_inline as usize;
        &mut self.inline[first..first + self.max_inline as usize]
    }
}

/// SGEs of a queue.
fn places(depth: u32, max_sge: u32) -> usize {
    (depth as usize).next_power_of_two() * max_sge as usize
}
