//! Who gets which packet that has arrived.
use super::super::Received;
use super::super::datagrams::{take_datagram, take_for_group};
use super::super::flow::Due;
use super::super::work::{Few, Intake, Touched, Work};
use super::{Door, LIVELY, Port};
use crate::soft::cq::Taker;
use crate::soft::link::pcap;
use crate::soft::link::shm::slot;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::stats::Event;
use crate::soft::types::Qpn;
use crate::soft::wire::{Packet, bth::BthView, bth::DEFAULT_PKEY, cnp, icrc};
use crate::sys::clock;
use crate::sys::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Receive calls in a row before others get their turn.
const ROUNDS: usize = 8;
/// A port without connections, where nothing has come in for a while, is looked at once in this many polls.
const RARELY: u32 = 64;
/// An inbox where nothing has come in for a while is looked at once in this many polls: to look takes half as long as a poll.
const SELDOM: u32 = 64;

/// The bit of a P_Key that distinguishes full from limited members of a partition.
const FULL_MEMBER: u16 = 0x8000;

impl Port {
    /// Takes packets that have arrived, without waiting, on a thread that will look again; true if there were any. Called
    /// with no lock held.
    #[inline]
    pub fn poll(&self, node: &Node, taker: &mut Taker<'_>) -> bool {
        self.owed.look();
        self.look(node, true, taker)
    }

    /// The same for a thread that may not look again.
    pub fn sweep(&self, node: &Node) -> bool {
        self.owed.settle();
        self.look(node, false, &mut Taker::nobody())
    }

    /// Changes whenever a thread looks for packets.
    pub fn looks(&self) -> (u32, u32) {
        (self.polls.load(Ordering::Relaxed), self.inbox_polls.load(Ordering::Relaxed))
    }

    /// Packets wait in the socket.
    pub fn has_waiting(&self) -> bool {
        self.door.get().is_some_and(|door| door.endpoint.has_waiting())
    }

    /// A poll that found packets has taken so long, since this was last asked, that few of them make a sign of life.
    #[inline]
    pub fn was_long(&self) -> bool {
        self.was_long.load(Ordering::Relaxed) && self.was_long.swap(false, Ordering::Relaxed)
    }

    #[inline]
    fn look(&self, node: &Node, again: bool, taker: &mut Taker<'_>) -> bool {
        let Some(door) = self.door.get() else { return false };
        // A lost count does no harm; a locked instruction in every poll would.
        let count = |polls: &AtomicU32| {
            let n = polls.load(Ordering::Relaxed);
            polls.store(n.wrapping_add(1), Ordering::Relaxed);
            n
        };
        let (polls, inbox_polls) = (count(&self.polls), count(&self.inbox_polls));
        let quiet = self.connections.load(Ordering::Relaxed) == 0;
        if quiet && polls >= LIVELY && !polls.is_multiple_of(RARELY) {
            return false;
        }
        let inbox = inbox_polls < LIVELY || inbox_polls.is_multiple_of(SELDOM);
        self.receive(node, door, inbox, again, taker)
    }

    /// The socket or an inbox is readable.
    pub fn readable(&self, node: &Node) {
        let Some(door) = self.door.get() else { return };
        match self.batch.try_lock() {
            Some(mut batch) => {
                self.receive_into(node, door, &mut batch, true, false, &mut Taker::nobody());
            }
            // Another thread is at it, which may wait for this processor.
            None => thread::yield_now(),
        }
    }

    /// Takes what has arrived, after whoever is at it already. Called with no lock held.
    pub(in super::super) fn take_waiting(&self, node: &Node) {
        if let Some(door) = self.door.get() {
            self.receive_into(node, door, &mut self.batch.lock(), true, false, &mut Taker::nobody());
        }
    }

    #[inline]
    fn receive(&self, node: &Node, door: &Door, inbox: bool, again: bool, taker: &mut Taker<'_>) -> bool {
        // Another thread is at it already.
        let Some(mut batch) = self.batch.try_lock() else { return false };
        self.receive_into(node, door, &mut batch, inbox, again, taker)
    }

    /// `inbox`: also what other processes bring. `again`: this thread will look again.
    #[inline]
    pub(in super::super) fn receive_into(
        &self,
        node: &Node,
        door: &Door,
        batch: &mut Intake,
        inbox: bool,
        again: bool,
        taker: &mut Taker<'_>,
    ) -> bool {
        let found = batch.receive(&door.endpoint) > 0;
        if found || inbox { self.take_all(node, door, batch, (found, inbox), again, taker) } else { false }
    }

    /// Takes what the socket has given (`found`) and what else it has, and what other processes bring (`inbox`).
    #[inline(never)]
    fn take_all(
        &self,
        node: &Node,
        door: &Door,
        batch: &mut Intake,
        (found, inbox): (bool, bool),
        again: bool,
        taker: &mut Taker<'_>,
    ) -> bool {
        let mut any = found;
        if found {
            self.polls.store(0, Ordering::Relaxed);
        }
        let (mut more, mut rounds) = (found, 0);
        while more {
            if let Some(lookout) = self.lookout.get() {
                lookout.count();
            }
            let Intake { rx: Some(rx), touched } = batch else { break };
            self.serve(node, rx.packets(), touched, true, again, taker);
            rounds += 1;
            more = !rx.is_drained() && rounds < ROUNDS && batch.receive(&door.endpoint) > 0;
        }
        let touched = &mut batch.touched;
        if inbox
            && self
                .share
                .receive(&door.set, |packets| self.serve(node, packets, touched, false, false, taker))
        {
            any = true;
            self.inbox_polls.store(0, Ordering::Relaxed);
            self.polls.store(0, Ordering::Relaxed);
        }
        any
    }

    /// Takes datagrams as if the socket had brought them, after whoever is at it already: for tests, which say what a stranger
    /// sends. Called with no lock held.
    pub fn take<'a>(&self, node: &Node, datagrams: impl Iterator<Item = Received<'a>> + Clone) {
        let mut batch = self.batch.lock();
        self.serve(node, datagrams, &mut batch.touched, false, false, &mut Taker::nobody());
    }

    /// Takes packets in order, and answers. `pass`: those for other processes go on to them. `again`: this thread will look
    /// again.
    #[inline]
    pub(super) fn serve<'a>(
        &self,
        node: &Node,
        packets: impl Iterator<Item = Received<'a>> + Clone,
        touched: &mut Few,
        pass: bool,
        again: bool,
        taker: &mut Taker<'_>,
    ) {
        let now = clock::now_ns();
        let mut work = Work { node, now, pass, passed: false, touched, taker };
        self.heard.store(now, Ordering::Relaxed);
        if pcap::is_on() {
            packets.clone().for_each(|received| node.trace.received(&received));
        }
        let mut rest = packets.clone();
        match (rest.next(), rest.next()) {
            (Some(received), None) => self.take_one(&received, &mut work),
            (Some(_), Some(_)) => {
                // What an answer answers is complete before the answer is there to be seen, also where both came together.
                for responses in [true, false] {
                    for received in packets.clone().filter(|r| r.is_response() == responses) {
                        self.take_one(&received, &mut work);
                    }
                }
            }
            (None, _) => {}
        }
        let Work { passed, touched, .. } = work;
        touched.finish(|Touched { qp, flow, due, answered }| {
            let due = match due {
                Due::Later if again && self.owed.wait(node, qp, flow, now) => Due::Later,
                Due::Later => Due::Now,
                due => *due,
            };
            if (due == Due::Now || *answered) && flow.answer(qp, due) && again {
                self.was_long.store(true, Ordering::Relaxed);
            }
        });
        if passed && self.share.flush() {
            node.engine.heed(node);
        }
    }

    fn take_one(&self, received: &Received<'_>, work: &mut Work<'_, '_>) {
        let node = work.node;
        let Ok(to) = BthView::new_checked(received.datagram).map(|view| view.dest_qpn()) else {
            return count_lost(node, received, Event::Malformed);
        };
        if received.ip.dst.is_multicast() || to == Qpn::MULTICAST {
            return take_for_group(node, received);
        }
        if let Some(Touched { qp, flow, due, answered }) = work.touched.of(to) {
            if flow.take_short(qp, work.now, received, (due, answered), work.taker) {
                return;
            }
            let qp = qp.clone();
            return self.take_for(received, &qp, work);
        }
        match node.qp(to) {
            Some(qp) => self.take_for(received, &qp, work),
            None if work.pass && slot::SLOTS.contains(&to.slot()) && !node.owns_slot(to.slot()) => {
                self.share.put(to.slot(), received);
                work.passed = true;
            }
            None => count_lost(node, received, Event::Dropped),
        }
    }

    fn take_for(&self, received: &Received<'_>, qp: &Arc<Qp>, work: &mut Work<'_, '_>) {
        let Work { now, touched, taker, .. } = work;
        let lost = |why| {
            let rq = qp.rq.lock();
            rq.stats.received(1, received.datagram.len());
            rq.stats.event(why, 1);
        };
        let is_right = touched.of(qp.num).is_some_and(|known| known.flow.vouches_for(received));
        if !is_right
            && icrc::check_with_id(&received.ip, received.index, received.datagram) == icrc::Verdict::Bad
        {
            return lost(Event::BadIcrc);
        }
        if cnp::is_cnp(received.datagram) {
            let flow = self.flow(qp);
            let flow = flow.filter(|f| received.ip.src == f.path().dst);
            return flow.map_or_else(|| lost(Event::Dropped), |f| f.slow_down(qp));
        }
        let (packet, payload) = match parse(received) {
            Ok(parsed) => parsed,
            Err(why) => return lost(why),
        };
        if let Some(deth) = packet.deth {
            return take_datagram(qp, received, &packet, deth, payload);
        }
        let known = touched.of(qp.num).is_some();
        if !known {
            let Some(flow) = self.flow(qp) else { return lost(Event::Dropped) };
            touched.add(Touched::new(qp.clone(), flow));
        }
        let Some(Touched { flow, due, answered, .. }) = touched.of(qp.num) else { return };
        // A connection is between two addresses.
        if received.ip.src == flow.path().dst {
            if received.is_marked() {
                flow.notify(qp);
            }
            *answered |= packet.bth.opcode.operation.is_response();
            *due = due.and(flow.receive(qp, *now, &packet, payload, taker));
        } else {
            lost(Event::Dropped);
        }
    }
}

/// The headers and the payload of a packet of our partition, or what is wrong with it.
pub(in super::super) fn parse<'a>(received: &Received<'a>) -> Result<(Packet, &'a [u8]), Event> {
    let (packet, payload) = Packet::parse(received.datagram).map_err(|_| Event::Malformed)?;
    if packet.bth.pkey | FULL_MEMBER != DEFAULT_PKEY {
        return Err(Event::BadPkey);
    }
    Ok((packet, &received.datagram[payload]))
}

/// Counts a packet that is for none of our QPs.
#[cold]
pub(in super::super) fn count_lost(node: &Node, received: &Received<'_>, why: Event) {
    node.stats.port_event(Event::RcvPackets, 1);
    node.stats.port_event(Event::RcvWords, received.datagram.len() as u64 / 4);
    if received.ip.dst.is_multicast() {
        node.stats.port_event(Event::McastRcv, 1);
    }
    node.stats.port_event(why, 1);
}
