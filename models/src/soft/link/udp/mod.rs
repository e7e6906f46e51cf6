//! `src/soft/link/udp`.
pub mod flow;
#[path = "../../../../../src/soft/link/udp/owed.rs"]
mod owed;

use crate::soft::node::Node;
use crate::soft::qp::Qp;
use std::sync::Arc;

/// [`owed::Owed`], for tests.
#[derive(Debug, Default)]
pub struct Owed(owed::Owed);

#[allow(missing_docs)]
impl Owed {
    pub fn wait(&self, node: &Node, qp: &Arc<Qp>, flow: &Arc<flow::Flow>) -> bool {
        self.0.wait(node, qp, flow, 1)
    }
    pub fn look(&self) {
        self.0.look();
    }
    pub fn settle(&self) {
        self.0.settle();
    }
    pub fn settle_for_good(&self) {
        self.0.settle_for_good();
    }
}
