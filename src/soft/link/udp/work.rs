//! What is known while a batch of packets is taken.
use std::sync::Arc;

use super::flow::{Due, Flow};
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::types::Qpn;

/// A connection to which packets came.
pub(super) struct Touched {
    pub qp: Arc<Qp>,
    pub flow: Arc<Flow>,
    pub due: Due,
    /// There was an answer to what it has sent.
    pub answered: bool,
}

/// Packets that are being taken.
pub(super) struct Work<'a> {
    pub node: &'a Node,
    pub now: u64,
    /// Those for other processes go on to them,
    pub pass: bool,
    /// as some did.
    pub passed: bool,
    pub touched: Few,
}

/// Connections to which packets came; mostly one.
#[derive(Default)]
pub(super) struct Few {
    first: Option<Touched>,
    more: Vec<Touched>,
}

impl Few {
    pub fn iter(&self) -> impl Iterator<Item = &Touched> {
        self.first.iter().chain(&self.more)
    }

    pub fn of(&mut self, num: Qpn) -> Option<&mut Touched> {
        self.first.iter_mut().chain(&mut self.more).find(|t| t.qp.num == num)
    }

    pub fn add(&mut self, new: Touched) {
        match self.first {
            None => self.first = Some(new),
            Some(_) => self.more.push(new),
        }
    }
}
