//! Receive work requests in private memory, of a QP or of an SRQ.
use std::sync::Arc;

use crate::soft::mem::area::{Allocator, Area, Purpose, zeros};
use crate::soft::types::Sge;
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
    wr_ids: Box<[u64]>,
    counts: Box<[u32]>,
    sges: Area<Sge>,
    allocator: Option<(Arc<dyn Allocator>, Purpose)>,
    depth: u32,
    max_sge: u32,
    tail: u64,
    head: u64,
}

impl RecvQueue {
    /// A queue that holds nothing.
    pub fn none() -> Self {
        Self {
            wr_ids: Box::default(),
            counts: Box::default(),
            sges: Area::none(),
            allocator: None,
            depth: 0,
            max_sge: 0,
            tail: 0,
            head: 0,
        }
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
        let sges = Area::zeros(slots * max_sge as usize, from, purpose)?;
        let (wr_ids, counts) = (zeros(slots)?, zeros(slots)?);
        Ok(Self { wr_ids, counts, sges, allocator, depth, max_sge, tail: 0, head: 0 })
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
        let slot = self.head as usize & (self.wr_ids.len() - 1);
        self.wr_ids[slot] = wr_id;
        self.counts[slot] = sges.len() as u32;
        let first = slot * self.max_sge as usize;
        for (place, sge) in self.sges[first..].iter_mut().zip(sges) {
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
        let slot = self.tail as usize & (self.wr_ids.len() - 1);
        let first = slot * self.max_sge as usize;
        Some((self.wr_ids[slot], &self.sges[first..first + self.counts[slot] as usize]))
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
        if self.is_empty() {
            return None;
        }
        let slot = self.tail as usize & (self.wr_ids.len() - 1);
        self.tail += 1;
        Some(self.wr_ids[slot])
    }

    /// Changes the depth; EINVAL when the waiting requests do not fit, ENOMEM where there is no memory.
    pub fn resize(&mut self, depth: u32) -> Result<(), Errno> {
        if self.len() > depth {
            return Err(Errno::EINVAL);
        }
        let mut new = Self::new_in(depth, self.max_sge, self.allocator.clone())?;
        while !self.is_empty() {
            let slot = self.tail as usize & (self.wr_ids.len() - 1);
            let first = slot * self.max_sge as usize;
            let sges = self.sges[first..first + self.counts[slot] as usize].iter().copied();
            let posted = new.post(self.wr_ids[slot], sges);
            debug_assert!(posted.is_ok());
            self.tail += 1;
        }
        *self = new;
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tail = self.head;
    }
}
