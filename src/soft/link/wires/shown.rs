//! What peers of this user see of our queue pairs and regions, and waiting until they are done with what they do by it.
use std::sync::atomic::{Ordering, fence};

use super::Wires;
use crate::soft::link::Path;
use crate::soft::link::shm::{QpView, What, direct};
use crate::soft::node::Node;
use crate::soft::qp::{Qp, Shown};
use crate::soft::stats::{Description, Direct, Record};
use crate::soft::types::{Access, Key};
use crate::sys::log::explain;

impl Wires {
    /// Tells peers of this user what direct access to the QP needs.
    pub fn publish_qp(&self, qp: &Qp) {
        let shown = qp.shown.lock();
        if !shown.withdrawn {
            let view = shown.view(qp);
            // Before the view lets the peer in.
            qp.record.describe(&shown.description(qp, &view), shown.direct_counts());
            self.own.publish_qp(qp.num, &view);
        }
    }

    /// Withdraws a QP that is being destroyed.
    pub fn withdraw_qp(&self, qp: &Qp) {
        {
            let mut shown = qp.shown.lock();
            shown.withdrawn = true;
            self.own.withdraw_qp(qp.num);
        }
        self.wait_for_direct(qp);
        let shown = qp.shown.lock();
        shown.absorb(&qp.record);
        let gone = Description { state: None, ..shown.description(qp, &QpView::default()) };
        qp.record.describe(&gone, None);
    }

    /// Waits until nobody accesses memory through a QP that no longer allows it.
    pub fn wait_for_direct(&self, qp: &Qp) {
        fence(Ordering::SeqCst);
        let list = self.list();
        let peers = list.iter().map(|w| &*w.peer);
        if direct::wait(&self.own, peers, What::Qp(qp.num), direct::WAIT_NS).is_err() {
            explain(format_args!("qp {:?}: a peer's direct access did not end within a second", qp.num));
        }
    }

    /// No peer accesses the region directly just now.
    pub fn key_is_idle(&self, key: Key) -> bool {
        let list = self.list();
        !direct::in_flight(&self.own, list.iter().map(|w| &*w.peer), What::Rkey(key.0))
    }

    /// If the last region in some file has gone, those who may have it mapped are told.
    pub fn tell_files_went(&self, node: &Node) {
        if node.mem.file_went() {
            self.list().iter().for_each(|wire| wire.peer.tell_files_went());
        }
    }
}

impl Shown {
    /// What the peer's QP has done to our memory without our help, over all its life; none where that is not known.
    fn direct_counts(&self) -> Option<Direct> {
        match &self.path {
            Path::Shm(wire, to) => wire.peer.remote()?.direct_counts(*to),
            _ => None,
        }
    }

    /// Takes that over into `record`.
    pub fn absorb(&self, record: &Record) {
        if let (Path::Shm(wire, to), Some(direct)) = (&self.path, self.direct_counts())
            && let Some(nonce) = wire.peer.nonce()
        {
            record.absorb(nonce, *to, &direct);
        }
    }

    fn description(&self, qp: &Qp, view: &QpView) -> Description {
        let (path, peer_pid) = match &self.path {
            Path::None => (0, 0),
            Path::Local(_) => (1, std::process::id()),
            Path::Shm(wire, _) => (2, wire.peer.cred().pid as u32),
            Path::Absent(_) => (3, 0),
            Path::Udp(_) => (4, 0),
        };
        Description {
            state: view.state,
            num: qp.num,
            path,
            peer_qpn: self.peer_qpn,
            peer_nonce: view.peer_nonce,
            peer_pid,
            peer_gid: self.peer_gid,
            mtu: self.mtu,
        }
    }

    /// What peers of this user must know for direct access.
    fn view(&self, qp: &Qp) -> QpView {
        let mut access = self.access;
        if self.max_dest_rd_atomic == 0 {
            access.remove(Access::REMOTE_READ);
        }
        if self.counts_remote {
            access.remove(Access::REMOTE_READ | Access::REMOTE_WRITE);
        }
        let peer_nonce = match &self.path {
            Path::Shm(wire, _) => wire.peer.nonce().unwrap_or(0),
            _ => 0,
        };
        QpView {
            state: Some(qp.state()),
            kind: Some(qp.kind),
            pd: qp.pd.0,
            access,
            peer_qpn: self.peer_qpn.0,
            peer_nonce,
            is_shared: qp.handles.load(Ordering::Relaxed) > 1,
        }
    }
}
