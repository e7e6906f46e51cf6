//! What is known while a batch of packets is taken.
use std::sync::Arc;

use super::flow::{Due, Flow};
use super::{Endpoint, RxBatch};
use crate::soft::cq::Taker;
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::types::Qpn;
use crate::sys::errno::Errno;

/// What the thread that takes packets has to itself.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Made when the port is opened.
    pub rx: Option<RxBatch>,
    pub touched: Few,
}

/// A connection to which packets came.
#[derive(Debug)]
pub(super) struct Touched {
    pub qp: Arc<Qp>,
    pub flow: Arc<Flow>,
    pub due: Due,
    /// There was an answer to what it has sent.
    pub answered: bool,
}

impl Touched {
    /// Nothing has come yet.
    pub fn new(qp: Arc<Qp>, flow: Arc<Flow>) -> Self {
        Self { qp, flow, due: Due::Never, answered: false }
    }
}

/// Packets that are being taken.
pub(super) struct Work<'a, 'b> {
    pub node: &'a Node,
    pub now: u64,
    /// Those for other processes go on to them,
    pub pass: bool,
    /// as some did.
    pub passed: bool,
    pub touched: &'a mut Few,
    pub taker: &'a mut Taker<'b>,
}

/// Connections to which packets came; mostly one, and the same as before.
#[derive(Debug, Default)]
pub(super) struct Few {
    first: Option<Touched>,
    /// Packets came to the first one.
    is_first_in: bool,
    more: Vec<Touched>,
}

impl Few {
    /// The one that `num` belongs to, if it is known.
    #[inline]
    pub fn of(&mut self, num: Qpn) -> Option<&mut Touched> {
        match &mut self.first {
            Some(first) if first.qp.num == num => {
                self.is_first_in = true;
                Some(first)
            }
            _ => self.more.iter_mut().find(|t| t.qp.num == num),
        }
    }

    #[cold]
    pub fn add(&mut self, new: Touched) {
        if self.is_first_in {
            self.more.push(new);
        } else {
            (self.first, self.is_first_in) = (Some(new), true);
        }
    }

    /// Gives `done` each one to which packets came; the first one stays known.
    #[inline]
    pub fn finish(&mut self, mut done: impl FnMut(&Touched)) {
        if let Some(first) = &mut self.first
            && std::mem::take(&mut self.is_first_in)
        {
            done(first);
            (first.due, first.answered) = (Due::Never, false);
        }
        if !self.more.is_empty() {
            self.more.drain(..).for_each(|more| done(&more));
        }
    }

    /// The connection of `qp` ends.
    pub fn forget(&mut self, qp: &Qp) {
        self.first.take_if(|first| first.qp.num == qp.num);
    }
}

impl Intake {
    /// Makes the buffers. Errors are those of mmap(2).
    pub fn open(&mut self) -> Result<(), Errno> {
        if self.rx.is_none() {
            self.rx = Some(RxBatch::new()?);
        }
        Ok(())
    }

    /// Takes what waits at the socket, without blocking.
    #[inline]
    pub fn receive(&mut self, endpoint: &Endpoint) -> usize {
        self.rx.as_mut().map_or(0, |rx| endpoint.receive(rx))
    }
}
