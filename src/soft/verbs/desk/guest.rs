//! A process that asks at this desk, over its connection.
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::message::{Kind, Message};
use super::{ROUND, opened, receive};
use crate::soft::modify::modify;
use crate::soft::node::Node;
use crate::soft::qp::{Handle, Qp};
use crate::soft::types::{EventType, QpType, Qpn};
use crate::soft::verbs::attributes::{attributes, wanted};
use crate::soft::verbs::handles::retire;
use crate::sys::errno::Errno;
use crate::sys::fd;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::seqpacket;

/// A connection of another process's, and the QP that it has open here.
#[derive(Debug)]
pub struct Guest {
    sock: Arc<ParentFd>,
    opened: Lock<Option<Arc<Qp>>>,
    handle: Arc<Remote>,
}

/// What stands at the QP for a handle in another process.
#[derive(Debug)]
struct Remote(Arc<ParentFd>);

impl Handle for Remote {
    fn hear(&self, event: EventType) {
        // One that does not listen misses it.
        let news = Message { number: event.raw(), ..Message::new(Kind::Event) };
        let _ = seqpacket::send(self.0.as_fd(), &news.encode(), &[]);
    }

    fn failed(&self, _: Option<EventType>) {
        let _ = seqpacket::send(self.0.as_fd(), &Message::new(Kind::Failed).encode(), &[]);
    }

    fn changed(&self, qp: &Qp) {
        let news = Message { attr: attributes(qp), ..Message::new(Kind::Changed) };
        let _ = seqpacket::send(self.0.as_fd(), &news.encode(), &[]);
    }
}

impl Guest {
    pub fn new(sock: ParentFd) -> Arc<Self> {
        let sock = Arc::new(sock);
        Arc::new(Self { handle: Arc::new(Remote(sock.clone())), sock, opened: Lock::default() })
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    /// Does what was asked; false when the connection is over.
    pub fn serve(&self, node: &'static Node) -> bool {
        for _ in 0..ROUND {
            let request = match receive(&self.sock) {
                Ok((request, _)) => request,
                Err(Errno::EAGAIN) => return true,
                Err(_) => return false,
            };
            if !self.answer(node, &request) {
                return false;
            }
        }
        true
    }

    /// Nothing is asked any more, and nobody is told anything.
    pub fn leave(&self, node: &'static Node) {
        let Some(qp) = self.opened.lock().take() else { return };
        let mine = Arc::as_ptr(&self.handle);
        qp.openers.lock().retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), mine));
        if qp.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            retire(node, &qp);
        } else {
            node.publish_qp(&qp);
        }
    }

    fn answer(&self, node: &'static Node, request: &Message) -> bool {
        let mut answer = Message { id: request.id, ..Message::new(Kind::Answer) };
        let mut dm = None;
        let done = match request.kind {
            Kind::Open | Kind::Restore => self.open(node, request).map(Some),
            Kind::Modify => self.qp().and_then(|qp| {
                modify(&qp, &wanted(&request.attr), request.mask)?;
                Ok(Some(qp))
            }),
            Kind::Query => self.qp().map(Some),
            Kind::Close => {
                self.leave(node);
                Ok(None)
            }
            Kind::ImportDm => {
                dm = node.dm_handles.get(request.number);
                dm.as_ref().map(|_| None).ok_or(Errno::EINVAL)
            }
            Kind::Answer | Kind::Event | Kind::Changed | Kind::Failed => return false,
        };
        match done {
            Ok(Some(qp)) => answer.attr = attributes(&qp),
            Ok(None) => {}
            Err(e) => answer.result = e.0,
        }
        // A descriptor of its own: the memory must not be in use for the sake of an answer that has arrived already.
        let mut file = None;
        if let Some(dm) = dm {
            answer.value = dm.len() as u64;
            match dm.file().ok_or(Errno::EOPNOTSUPP).and_then(|file| fd::duplicate(file.as_raw_fd())) {
                Ok(copy) => file = Some(copy),
                Err(e) => answer.result = e.0,
            }
        }
        let file = file.as_ref().map(AsFd::as_fd);
        seqpacket::send(self.sock.as_fd(), &answer.encode(), file.as_slice()).is_ok()
    }

    fn qp(&self) -> Result<Arc<Qp>, Errno> {
        self.opened.lock().clone().ok_or(Errno::EINVAL)
    }

    fn open(&self, node: &'static Node, request: &Message) -> Result<Arc<Qp>, Errno> {
        let mut opened = self.opened.lock();
        if opened.is_some() {
            return Err(Errno::EINVAL);
        }
        let (num, domain) = (Qpn(request.number), request.value);
        let found = node.qp(num).filter(|qp| qp.kind == QpType::XrcRecv && qp.xrc_domain == Some(domain));
        let qp = match found {
            Some(qp) if qp.add_handle() => qp,
            None if request.kind == Kind::Restore && node.wires.has_inherited(num.slot()) => {
                opened::restore_for_another(node, num, domain, &request.attr)?
            }
            _ => {
                explain(format_args!(
                    "ibv_open_qp of another process: there is no XRC receiver {num:?} of its XRC domain here"
                ));
                return Err(Errno::EINVAL);
            }
        };
        qp.openers.lock().push(self.handle.clone());
        node.publish_qp(&qp);
        *opened = Some(qp.clone());
        Ok(qp)
    }
}
