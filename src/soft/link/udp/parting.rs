//! Leaving. What a program has taken was taken, and its peer must hear so, though the QP or the process is gone a moment later:
//! also where another thread has taken it and is about to answer, and where nobody has asked for an answer yet. What has
//! arrived meanwhile is taken too, as by a NIC, which would have taken it at once.
use super::flow::Flow;
use super::port::{Door, Port};
use super::work::Intake;
use crate::soft::cq::Taker;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::types::Qpn;
use std::sync::atomic::Ordering;

/// Looks at the socket in a row, each of which takes all that waits unless more comes meanwhile.
const LAST_LOOKS: usize = 16;

impl Port {
    /// What has come for a QP that is about to go is taken. Called with no lock held.
    pub fn take_last(&self, qp: &Qp) {
        if let Some(door) = self.door.get()
            && self.flow(qp).is_some()
        {
            self.drain(qp.node, door, &mut self.batch.lock());
        }
    }

    /// The QP takes nothing any more: what it has taken is acknowledged when this returns. Called with no lock held.
    pub fn acknowledge_last(&self, qp: &Qp) {
        let Some(flow) = self.flow(qp) else { return };
        // A thread that receives answers before it ends.
        drop(self.batch.lock());
        self.part(qp, &flow);
    }

    fn part(&self, qp: &Qp, flow: &Flow) {
        self.owed.settle_for_good();
        flow.part(qp);
    }

    /// The QP is reset or destroyed: nothing comes to it any more, and what it has taken is acknowledged. Called with no lock held.
    pub fn disconnect(&self, qp: &Qp) {
        let Some(flow) = self.flow(qp) else { return };
        // A thread that receives answers before it ends, and forgets.
        let mut batch = self.batch.lock();
        let mut flows = self.flows.write().unwrap_or_else(|e| e.into_inner());
        flows.remove(&qp.num.0);
        self.connections.store(flows.len() as u32, Ordering::Relaxed);
        drop(flows);
        batch.touched.forget(qp);
        drop(batch);
        self.part(qp, &flow);
    }

    /// The process ends: it answers, and passes on, what has come, and leaves the port to the others. Called with no lock held.
    pub fn leave(&self, node: &Node) {
        let Some(door) = self.door.get() else { return };
        let mut batch = self.batch.lock();
        door.endpoint.step_back();
        self.drain(node, door, &mut batch);
        drop(batch);
        self.owed.settle_for_good();
        let flows: Vec<_> = {
            let flows = self.flows.read().unwrap_or_else(|e| e.into_inner());
            flows.iter().map(|(num, flow)| (Qpn(*num), flow.clone())).collect()
        };
        for (num, flow) in flows {
            if let Some(qp) = node.qp(num) {
                flow.part(&qp);
            }
        }
        self.send_held(node, u64::MAX);
    }

    fn drain(&self, node: &Node, door: &Door, batch: &mut Intake) {
        for _ in 0..LAST_LOOKS {
            if !self.receive_into(node, door, batch, true, false, &mut Taker::nobody()) {
                break;
            }
        }
    }
}
