//! The numbers of QPs and XRC SRQs: the upper 12 bits are a slot that the process has claimed.
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::{Claimed, Wires};
use crate::soft::engine;
use crate::soft::link::shm::Slot;
use crate::soft::link::shm::own::MAX_SLOTS;
use crate::soft::node::Node;
use crate::soft::types::Qpn;
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::random;

/// Numbers of a slot.
const INDICES: u32 = 4096;

/// Which number comes next. One is given again only when all slots that a process may have are used up.
#[derive(Debug, Default)]
pub struct Numbers {
    slot: u16,
    first: u32,
    given: u32,
    /// Slots used up, or in use.
    slots: usize,
    freed: VecDeque<Qpn>,
}

impl Wires {
    /// Starts the progress thread, once.
    pub fn start(&self, node: &'static Node) {
        self.started.get_or_init(|| engine::start(node));
    }

    /// A number for a new QP; claims a slot where needed. ENOMEM when all are in use.
    pub fn claim_qpn(&self, node: &'static Node) -> Result<Qpn, Errno> {
        self.claim(node, &self.qpns, "ibv_create_qp: no queue pair number")
    }

    /// A number for a new XRC SRQ, which tells senders the process that owns it; otherwise as `claim_qpn`.
    pub fn claim_srqn(&self, node: &'static Node) -> Result<u32, Errno> {
        self.claim(node, &self.srqns, "ibv_create_srq_ex: no SRQ number").map(|n| n.0)
    }

    /// The number of a destroyed QP, for when there is no other left.
    pub fn free_qpn(&self, num: Qpn) {
        self.unanswered.lock().remove(&num);
        self.qpns.lock().freed.push_back(num);
    }

    /// The number of a destroyed SRQ, for when there is no other left.
    pub fn free_srqn(&self, number: u32) {
        self.srqns.lock().freed.push_back(Qpn(number));
    }

    fn claim(&self, node: &'static Node, numbers: &Lock<Numbers>, missing: &str) -> Result<Qpn, Errno> {
        self.start(node);
        let mut numbers = numbers.lock();
        if numbers.slots == 0 || numbers.given == INDICES {
            match self.slot_number(node, numbers.slots) {
                Ok(slot) => {
                    numbers.slots += 1;
                    (numbers.slot, numbers.first, numbers.given) = (slot, random::u64() as u32 % INDICES, 0);
                }
                Err(e) => {
                    return numbers.freed.pop_front().ok_or_else(|| {
                        match e {
                            Errno::EMFILE => explain(format_args!(
                                "{missing}: no descriptor is left to claim some with; raise RLIMIT_NOFILE"
                            )),
                            e => explain(format_args!("{missing} is free ({e:?})")),
                        }
                        Errno::ENOMEM
                    });
                }
            }
        }
        let index = (numbers.first + numbers.given) % INDICES;
        numbers.given += 1;
        Ok(Qpn::new(numbers.slot, index as u16))
    }

    /// The slot number `nth` of this process, claimed if it has only so many.
    fn slot_number(&self, node: &Node, nth: usize) -> Result<u16, Errno> {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        if let Some(claimed) = slots.iter().filter(|c| !c.is_inherited).nth(nth) {
            return Ok(claimed.slot.number());
        }
        self.hold(node, &mut slots, Slot::claim, false)
    }

    /// Takes over the slot of a process that is gone; its numbers are not given anew.
    ///
    /// # Errors
    /// EADDRINUSE where somebody holds it, ENOSPC where this process may hold no more; those of socket(2).
    pub fn inherit_slot(&self, node: &Node, number: u16) -> Result<(), Errno> {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        if slots.iter().any(|c| c.slot.number() == number) {
            return Ok(());
        }
        self.hold(node, &mut slots, || Slot::claim_left(number), true).map(|_| ())
    }

    /// The slot was taken over.
    pub fn has_inherited(&self, number: u16) -> bool {
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        slots.iter().any(|c| c.is_inherited && c.slot.number() == number)
    }

    fn hold(
        &self,
        node: &Node,
        slots: &mut Vec<Claimed>,
        claim: impl FnOnce() -> Result<Slot, Errno>,
        is_inherited: bool,
    ) -> Result<u16, Errno> {
        if slots.len() >= MAX_SLOTS {
            return Err(Errno::ENOSPC);
        }
        let slot = claim()?;
        let number = slot.number();
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        node.engine.add(slot.as_fd(), token)?;
        // Last: what is known to peers cannot be taken back.
        if let Err(e) = self.own.add_slot(number) {
            node.engine.remove(slot.as_fd());
            return Err(e);
        }
        slots.push(Claimed { slot, token, is_inherited });
        Ok(number)
    }
}
