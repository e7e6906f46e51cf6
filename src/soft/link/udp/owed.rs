//! An acknowledgement that waits a moment. A program that has taken a message often answers it at once, and what it sends to
//! the same QP takes the acknowledgement along, as one datagram; sent before, it would hold up the program.
use super::flow::Flow;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::sys::atomic::{AtomicU32, Ordering, fence};
use crate::sys::lock::Lock;
use std::sync::Arc;

/// Looks for packets after which it has waited enough.
const LOOKS: u32 = 3;

/// The one that waits; a second one sends it on its way.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Looks left; 0: none waits.
    looks: AtomicU32,
    /// Held while it is sent: who has had the lock knows that nothing is on its way out any more.
    to: Lock<Option<(Arc<Qp>, Arc<Flow>)>>,
}

impl Owed {
    /// The acknowledgement that `flow` has ready waits, as long as somebody is there to send it later: a thread that polls, or
    /// the progress thread when it finds that none does any more. False: it does not. Called with no lock held.
    pub(super) fn wait(&self, node: &Node, qp: &Arc<Qp>, flow: &Arc<Flow>, now: u64) -> bool {
        let asleep = || node.wires.own().is_asleep();
        if asleep() || !flow.owe(now) {
            return false;
        }
        let before = self.to.lock().replace((qp.clone(), flow.clone()));
        self.looks.store(LOOKS, Ordering::Relaxed);
        if let Some((qp, flow)) = before {
            flow.pay(&qp);
        }
        // Either the progress thread sees that one waits, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if asleep() {
            self.settle();
        }
        true
    }

    /// A thread looks for packets and will do so again.
    #[inline]
    pub(super) fn look(&self) {
        match self.looks.load(Ordering::Relaxed) {
            0 => {}
            1 => self.settle(),
            n => self.looks.store(n - 1, Ordering::Relaxed),
        }
    }

    /// Sends what waits. Called with no lock held.
    pub(super) fn settle(&self) {
        // Whoever falls asleep says so first: either this sees what waits, or the thread that has it wait sees that.
        fence(Ordering::SeqCst);
        if self.looks.load(Ordering::SeqCst) != 0 {
            self.settle_for_good();
        }
    }

    /// The same, and waits for a thread that is sending it: whoever comes back may end the process. Called with no lock held.
    pub(super) fn settle_for_good(&self) {
        let mut to = self.to.lock();
        self.looks.store(0, Ordering::SeqCst);
        if let Some((qp, flow)) = to.take() {
            flow.pay(&qp);
        }
    }
}
