//! Completions past the queue: who polls and finds it empty drives the process, and what completes for it meanwhile need not be put
//! down and picked up.
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use super::{Cq, Cqe};

/// A thread that polls a CQ, which was empty, and now drives the process: what completes for that CQ goes straight to the caller.
#[derive(Debug, Default)]
pub struct Taker<'a> {
    cq: Option<&'a Cq>,
    places: &'a mut [MaybeUninit<Cqe>],
    got: usize,
    /// Others poll meanwhile.
    is_beside: bool,
}

impl<'a> Taker<'a> {
    /// A thread that polls `cq` and has room for as many completions as there are places.
    #[inline]
    pub fn new(cq: &'a Cq, places: &'a mut [MaybeUninit<Cqe>]) -> Self {
        Self { cq: Some(cq), places, got: 0, is_beside: false }
    }

    /// A thread that wants nothing.
    #[inline]
    pub fn nobody() -> Self {
        Self::default()
    }

    /// A thread that drives the process beside those that poll, and has found what completes for them.
    #[inline]
    pub fn beside() -> Self {
        Self { is_beside: true, ..Self::default() }
    }

    /// Made by [`beside`](Self::beside).
    #[inline(always)]
    pub fn is_beside(&self) -> bool {
        self.is_beside
    }

    /// How many places have been filled, from the first on.
    #[inline]
    pub fn got(&self) -> usize {
        self.got
    }

    /// Where the next completion of `cq` goes, if it need not go into the queue: nothing is in there, which would be older, and
    /// nobody waits for an event. Called under the lock of the half of the QP that completes.
    #[inline(always)]
    pub(super) fn place(&mut self, cq: &Cq) -> Option<&mut MaybeUninit<Cqe>> {
        if !self.cq.is_some_and(|mine| std::ptr::eq(mine, cq)) || cq.shown.load(Ordering::Acquire) != 0 {
            return None;
        }
        let place = self.places.get_mut(self.got)?;
        self.got += 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::soft::channel::{AsyncQueue, CompChannel};
    use crate::soft::cq::CqConfig;
    use crate::soft::types::{Qpn, WcOpcode, WcStatus};

    fn cq() -> Arc<Cq> {
        let config = CqConfig { depth: 8, timestamps: false, ignore_overrun: false, allocator: None };
        let channel = Arc::new(CompChannel::new().unwrap());
        Cq::new(&config, Some(channel), Arc::new(AsyncQueue::new().unwrap())).unwrap()
    }

    fn complete(cq: &Cq, wr_id: u64, taker: &mut Taker<'_>) {
        cq.complete(Cqe::new(wr_id, Qpn(1), WcOpcode::Send, WcStatus::Success), false, taker).unwrap();
    }

    fn queued(cq: &Cq) -> Vec<u64> {
        let mut ids = Vec::new();
        cq.poll(8, |cqe, _| ids.push(cqe.wr_id));
        ids
    }

    fn taken(places: &[MaybeUninit<Cqe>], got: usize) -> Vec<u64> {
        // SAFETY: the taker has filled the first `got` places.
        places[..got].iter().map(|place| unsafe { place.assume_init_ref() }.wr_id).collect()
    }

    #[test]
    fn what_a_poll_has_no_room_for_stays_in_the_queue_in_order() {
        let cq = cq();
        let mut places = [MaybeUninit::uninit(); 2];
        let mut taker = Taker::new(&cq, &mut places);
        (1..=4).for_each(|id| complete(&cq, id, &mut taker));
        let got = taker.got();
        assert_eq!((taken(&places, got), queued(&cq)), (vec![1, 2], vec![3, 4]));
    }

    #[test]
    fn nothing_overtakes_what_is_in_the_queue() {
        let cq = cq();
        let mut places = [MaybeUninit::uninit(); 4];
        complete(&cq, 1, &mut Taker::nobody());
        let mut taker = Taker::new(&cq, &mut places);
        complete(&cq, 2, &mut taker);
        assert_eq!((taker.got(), queued(&cq)), (0, vec![1, 2]));
        // Once it has been polled, the way past it is free again.
        complete(&cq, 3, &mut taker);
        let got = taker.got();
        assert_eq!((taken(&places, got), queued(&cq)), (vec![3], vec![]));
    }

    #[test]
    fn who_polls_another_queue_takes_nothing() {
        let (cq, other) = (cq(), cq());
        let mut places = [MaybeUninit::uninit(); 4];
        let mut taker = Taker::new(&other, &mut places);
        complete(&cq, 1, &mut taker);
        assert_eq!((taker.got(), queued(&cq)), (0, vec![1]));
    }

    #[test]
    fn an_armed_queue_raises_its_event_though_somebody_polls() {
        let cq = cq();
        cq.arm(false);
        let mut places = [MaybeUninit::uninit(); 4];
        let mut taker = Taker::new(&cq, &mut places);
        complete(&cq, 1, &mut taker);
        assert_eq!(taker.got(), 0);
        let channel = cq.channel().unwrap();
        assert!(channel.next_event(crate::provider::Look::First, |_| ()).is_ok());
        // The event is spent: what comes next goes straight to who polls.
        assert_eq!(queued(&cq), [1]);
        complete(&cq, 2, &mut taker);
        let got = taker.got();
        assert_eq!(taken(&places, got), [2]);
    }
}
