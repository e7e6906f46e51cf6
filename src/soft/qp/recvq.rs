//! Receive work requests in private memory, of a QP or of an SRQ.
use std::sync::Arc;

use crate::soft::mem::area::{Allocator, Area, Purpose};
use crate::soft::types::{Key, Sge};
use crate::sys::errno::Errno;

/// A receive request that a message has taken.
#[derive(Debug, Default)]
pub struct Taken {
    #[allow(missing_docs)]
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: Vec<Sge>,
    /// Bytes that fit.
    pub room: u64,
}

/// A ring of receive requests, taken in the order of posting.
#[derive(Debug)]
pub struct RecvQueue {
    /// Of each request a head, in the form of an SGE, and behind it its SGEs: what a message needs lies together.
    cells: Area<Sge>,
    allocator: Option<(Arc<dyn Allocator>, Purpose)>,
    depth: u32,
    max_sge: u32,
    /// Places for requests less one, a power of two less one.
    mask: usize,
    tail: u64,
    head: u64,
}

impl RecvQueue {
    /// A queue that holds nothing.
    pub fn none() -> Self {
        Self { cells: Area::none(), allocator: None, depth: 0, max_sge: 0, mask: 0, tail: 0, head: 0 }
    }

    /// A queue for `depth` requests of up to `max_sge` SGEs, in memory of the allocator if there is one. ENOMEM where
    /// there is no memory.
    pub fn new_in(
        depth: u32,
        max_sge: u32,
        allocator: Option<(Arc<dyn Allocator>, Purpose)>,
    ) -> Result<Self, Errno> {
        let slots = (depth as usize).next_power_of_two();
        let purpose = allocator.as_ref().map_or(Purpose::RecvQueue, |(_, purpose)| *purpose);
        let from = allocator.as_ref().map(|(from, _)| from);
        let cells = Area::zeros(slots * (1 + max_sge as usize), from, purpose)?;
        Ok(Self { cells, allocator, depth, max_sge, mask: slots - 1, tail: 0, head: 0 })
    }

    /// Requests that it holds at most.
    pub fn depth(&self) -> u32 {
        self.depth
    }
    /// SGEs of a request at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
    /// Requests that wait.
    pub fn len(&self) -> u32 {
        (self.head - self.tail) as u32
    }
    /// No request waits.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Posts a request: ENOMEM when the queue is full, EINVAL when it has too many SGEs.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: impl ExactSizeIterator<Item = Sge>) -> Result<(), Errno> {
        if sges.len() > self.max_sge as usize {
            return Err(Errno::EINVAL);
        }
        if self.len() >= self.depth {
            return Err(Errno::ENOMEM);
        }
        let first = self.first(self.head);
        let Some([head, places @ ..]) = self.cells.get_mut(first..) else { return Err(Errno::ENOMEM) };
        *head = Sge { addr: wr_id, length: sges.len() as u32, lkey: Key(0) };
        for (place, sge) in places.iter_mut().zip(sges) {
            *place = sge;
        }
        self.head += 1;
        Ok(())
    }

    /// Takes the oldest request into `taken`; false when there is none.
    #[inline]
    pub fn take(&mut self, taken: &mut Taken) -> bool {
        let Some((wr_id, sges)) = self.front() else { return false };
        taken.wr_id = wr_id;
        taken.sges.clear();
        taken.sges.extend_from_slice(sges);
        taken.room = sges.iter().map(|s| s.length as u64).sum();
        self.drop_front();
        true
    }

    /// The oldest request: its wr_id and its SGEs.
    #[inline]
    pub fn front(&self) -> Option<(u64, &[Sge])> {
        if self.is_empty() {
            return None;
        }
        let [head, places @ ..] = self.cells.get(self.first(self.tail)..)? else { return None };
        // The memory may be the application's: it holds no more than was asked for.
        Some((head.addr, places.get(..head.length.min(self.max_sge) as usize)?))
    }

    /// Where request number `at` begins.
    #[inline]
    fn first(&self, at: u64) -> usize {
        (at as usize & self.mask) * (1 + self.max_sge as usize)
    }

    /// The oldest request, which there is, has been used.
    #[inline]
    pub fn drop_front(&mut self) {
        debug_assert!(!self.is_empty());
        self.tail += 1;
    }

    /// Bytes that the oldest request has room for.
    pub fn room_of_next(&self) -> Option<u64> {
        self.front().map(|(_, sges)| sges.iter().map(|s| s.length as u64).sum())
    }

    /// Takes the oldest request and forgets all but its wr_id (flush).
    pub fn pop_wr_id(&mut self) -> Option<u64> {
        let (wr_id, _) = self.front()?;
        self.drop_front();
        Some(wr_id)
    }

    /// Changes the depth; EINVAL when the waiting requests do not fit, ENOMEM where there is no memory.
    pub fn resize(&mut self, depth: u32) -> Result<(), Errno> {
        if self.len() > depth {
            return Err(Errno::EINVAL);
        }
        let mut new = Self::new_in(depth, self.max_sge, self.allocator.clone())?;
        while let Some((wr_id, sges)) = self.front() {
            let posted = new.post(wr_id, sges.iter().copied());
            debug_assert!(posted.is_ok());
            self.drop_front();
        }
        *self = new;
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tail = self.head;
    }
}
