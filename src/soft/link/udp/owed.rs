//! An acknowledgement that waits a moment. A program that has taken a message often answers it at once, and what it sends to
//! the same QP takes the acknowledgement along, as one datagram; sent before, it would hold up the program.
use super::flow::Flow;
use crate::soft::node::{self, Node};
use crate::soft::qp::Qp;
use crate::sys::{exit, lock::Lock};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Once};

/// Looks for packets after which it has waited enough.
const LOOKS: u32 = 3;

/// The one that waits; a second one sends it on its way.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Looks left; 0: none waits.
    looks: AtomicU32,
    to: Lock<Option<(Arc<Qp>, Arc<Flow>)>>,
}

impl Owed {
    /// The acknowledgement that `flow` has ready waits, as long as somebody is there to send it later: a thread that polls, or
    /// the progress thread when it finds that none does any more. False: it does not. Called with no lock held.
    pub(super) fn wait(&self, node: &Node, qp: &Arc<Qp>, flow: &Arc<Flow>, now: u64) -> bool {
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| _ = exit::at_exit(settle_at_exit));
        let asleep = || node.wires.own().is_asleep();
        if asleep() || !flow.owe(now) {
            return false;
        }
        let before = self.to.lock().replace((qp.clone(), flow.clone()));
        self.looks.store(LOOKS, Ordering::SeqCst);
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
        if self.looks.swap(0, Ordering::SeqCst) != 0
            && let Some((qp, flow)) = self.to.lock().take()
        {
            flow.pay(&qp);
        }
    }

    /// Sends what waits if nothing is in the way.
    fn settle_now(&self) {
        if let Some(mut to) = self.to.try_lock()
            && let Some((qp, flow)) = to.take()
        {
            flow.pay_now(&qp);
        }
    }
}

/// A process that has taken a message and ends has taken it all the same.
extern "C" fn settle_at_exit() {
    if let Some(node) = node::existing() {
        node.udp.owed().settle_now();
    }
}
