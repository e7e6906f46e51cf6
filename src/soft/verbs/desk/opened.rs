//! A handle for an XRC receiver that lies in another process.
//!
//! While that process lives, requests go there. When it is gone, one of those who have its QPs open claims its slot, so
//! that senders find it where they found the other, and makes the QP anew as it last was; the others open it there. So the
//! QP goes on while anybody has it open. Messages to SRQs of the process that is gone are refused, as to any SRQ that
//! does not exist; what was sent to others went past that process anyway (`link::wires::foreign`).
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::message::{Kind, Message};
use super::{PATIENCE_NS, ROUND, connect, name_of_slot, receive, wait};
use crate::abi::*;
use crate::soft::channel::AsyncQueue;
use crate::soft::modify::{Wanted, modify};
use crate::soft::node::Node;
use crate::soft::qp::Qp;
use crate::soft::qp::attr::Mask;
use crate::soft::qp::requester::Requester;
use crate::soft::qp::responder::Responder;
use crate::soft::qp::sendq::SendQueue;
use crate::soft::types::{EventType, Psn, QpState, QpType, Qpn};
use crate::soft::verbs::attributes::wanted;
use crate::sys::errno::Errno;
use crate::sys::fork::ParentFd;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::{clock, seqpacket, uncancelled};

/// How often an heir looks for the QP, and how many times at most.
const HEIR_NS: u64 = 5_000_000;
const HEIR_TRIES: u32 = 400;
/// How long a handle that ends waits for the QP's process.
const CLOSE_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Debug)]
pub struct Opened {
    node: &'static Node,
    /// Stands for the QP here; in no table while that is elsewhere.
    qp: Arc<Qp>,
    token: u64,
    domain: u64,
    conn: Lock<Conn>,
    me: Weak<Opened>,
}

#[derive(Debug)]
struct Conn {
    stage: Stage,
    sock: Option<ParentFd>,
    /// Of the last request.
    id: u32,
    /// The QP's attributes as they were last told.
    attr: ibv_qp_attr,
    tries: u32,
}

/// Where the QP is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// With the process at the other end.
    There,
    /// Its process is gone; whoever has its slot now was asked, or will be.
    Looking,
    /// Here: its process is gone.
    Here,
    /// Nowhere.
    Lost,
}

/// Who carries out what is asked of a handle.
pub enum Shared {
    /// It is done, over there.
    Done(ibv_qp_attr),
    /// The QP is in this process.
    Here,
}

impl Opened {
    /// Opens XRC receiver `num` of `domain`, which lies in another process. Events go to `events`. False: another thread
    /// was first, whose this is, with one more handle; only one of a process can take the QP over.
    ///
    /// # Errors
    /// EINVAL where there is none, ETIMEDOUT where its process does not answer; EMFILE.
    pub fn open(
        node: &'static Node,
        events: Arc<AsyncQueue>,
        num: Qpn,
        domain: u64,
    ) -> Result<(Arc<Self>, bool), Errno> {
        Self::open_until(node, events, num, domain, clock::now_ns() + PATIENCE_NS)
    }

    /// `open` that waits until `end` for the answer.
    pub(super) fn open_until(
        node: &'static Node,
        events: Arc<AsyncQueue>,
        num: Qpn,
        domain: u64,
        end: u64,
    ) -> Result<(Arc<Self>, bool), Errno> {
        node.wires.start(node);
        let sock = connect(&name_of_slot(num.slot()))?;
        let qp = stand_in(node, events, num, domain);
        let token = node.desk.new_token();
        let conn =
            Conn { stage: Stage::There, sock: Some(sock), id: 0, attr: ibv_qp_attr::zeroed(), tries: 0 };
        let opened =
            Arc::new_cyclic(|me| Self { node, qp, token, domain, conn: Lock::new(conn), me: me.clone() });
        let request = Message { number: num.0, value: domain, ..Message::new(Kind::Open) };
        let mut conn = opened.conn.lock();
        let answer = opened.ask_over(&mut conn, request, end)?;
        // A process that is gone before it answered had no such QP that anybody shares.
        let answer = answer.ok_or(Errno::EINVAL)?;
        if answer.result != 0 {
            return Err(Errno(answer.result));
        }
        opened.learn(&mut conn, &answer.attr);
        {
            let mut all = node.desk.opened.lock();
            // Those whose QP goes on here for others alone.
            all.retain(|_, other| other.strong_count() > 0);
            let mut known = all.values().filter_map(Weak::upgrade);
            if let Some(first) = known.find(|other| other.is(num, domain) && other.qp.add_handle()) {
                return Ok((first, false));
            }
            all.insert(token, opened.me.clone());
        }
        let watched = conn.sock.as_ref().map_or(Ok(()), |sock| node.engine.add(sock.as_fd(), token));
        drop(conn);
        if watched.is_err() {
            node.desk.opened.lock().remove(&token);
        }
        watched.map(|()| (opened, true))
    }

    /// It is QP `num` of this domain.
    pub fn is(&self, num: Qpn, domain: u64) -> bool {
        self.qp.num == num && self.domain == domain
    }

    /// What the C object stands for.
    pub fn qp(&self) -> &Arc<Qp> {
        &self.qp
    }

    /// `ibv_modify_qp`; errors as there, and those of `ask`.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: u32) -> Result<Shared, Errno> {
        self.ask(Message { attr: *attr, mask, ..Message::new(Kind::Modify) })
    }

    /// `ibv_query_qp`; errors as `ask`.
    pub fn query(&self) -> Result<Shared, Errno> {
        self.ask(Message::new(Kind::Query))
    }

    /// The handle ends. True: the QP is in this process, and the handle is to be counted down there.
    pub fn close(&self) -> bool {
        self.node.desk.opened.lock().remove(&self.token);
        let mut conn = self.conn.lock();
        let is_here = conn.stage == Stage::Here;
        if conn.stage == Stage::There {
            // So that it is over when this returns; the end of the connection would do.
            let _ = self.ask_over(&mut conn, Message::new(Kind::Close), clock::now_ns() + CLOSE_NS);
        }
        if let Some(sock) = conn.sock.take() {
            self.node.engine.remove(sock.as_fd());
        }
        if !is_here {
            conn.stage = Stage::Lost;
        }
        is_here
    }

    /// Has the QP's process do it. ETIMEDOUT where that does not answer, EIO where the QP is lost; else what it says.
    fn ask(&self, request: Message) -> Result<Shared, Errno> {
        let end = clock::now_ns() + PATIENCE_NS;
        loop {
            let mut conn = self.conn.lock();
            match conn.stage {
                Stage::Here => return Ok(Shared::Here),
                Stage::Lost => return Err(Errno::EIO),
                Stage::There => {
                    if let Some(answer) = self.ask_over(&mut conn, request, end)? {
                        if answer.result != 0 {
                            return Err(Errno(answer.result));
                        }
                        self.learn(&mut conn, &answer.attr);
                        return Ok(Shared::Done(answer.attr));
                    }
                    // Its process is gone: somebody else will have it.
                    self.orphaned(&mut conn);
                }
                Stage::Looking if clock::now_ns() > end => return Err(Errno(libc::ETIMEDOUT)),
                Stage::Looking => {
                    drop(conn);
                    uncancelled::nap(Duration::from_millis(1));
                }
            }
        }
    }

    /// Sends a request and waits for its answer; none when the process is gone.
    fn ask_over(&self, conn: &mut Conn, mut request: Message, end: u64) -> Result<Option<Message>, Errno> {
        conn.id = conn.id.wrapping_add(1);
        request.id = conn.id;
        let Some(sock) = conn.sock.take() else { return Ok(None) };
        let mut sent = seqpacket::send(sock.as_fd(), &request.encode(), &[]);
        let answer = loop {
            match receive(&sock) {
                Ok((m, _)) if m.kind == Kind::Answer && m.id == request.id => break Ok(Some(m)),
                Ok((m, _)) => {
                    self.note(conn, &m);
                    if clock::now_ns() > end {
                        break Err(Errno(libc::ETIMEDOUT));
                    }
                }
                // It does not take requests as fast as they come.
                Err(Errno::EAGAIN) if sent == Err(Errno::EAGAIN) => {
                    if clock::now_ns() > end {
                        break Err(Errno(libc::ETIMEDOUT));
                    }
                    uncancelled::nap(Duration::from_millis(1));
                    sent = seqpacket::send(sock.as_fd(), &request.encode(), &[]);
                }
                Err(Errno::EAGAIN) if sent.is_err() => break Ok(None),
                Err(Errno::EAGAIN) => {
                    if let Err(e) = wait(&sock, end) {
                        break Err(e);
                    }
                }
                Err(_) => break Ok(None),
            }
        };
        conn.sock = Some(sock);
        answer
    }

    /// The connection has something to say.
    pub fn hear(&self) {
        // Who holds it reads it.
        let Some(mut conn) = self.conn.try_lock() else { return };
        for _ in 0..ROUND {
            let Some(sock) = &conn.sock else { return };
            match receive(sock) {
                Ok((m, _)) if conn.stage == Stage::Looking && m.kind == Kind::Answer => {
                    if m.id == conn.id && m.result == 0 {
                        conn.stage = Stage::There;
                        self.learn(&mut conn, &m.attr);
                    } else {
                        self.look_again(&mut conn);
                    }
                }
                Ok((m, _)) => self.note(&mut conn, &m),
                Err(Errno::EAGAIN) => return,
                Err(_) if conn.stage == Stage::Looking => return self.look_again(&mut conn),
                Err(_) => return self.orphaned(&mut conn),
            }
        }
    }

    /// Its time to look has come.
    pub fn on_timer(&self) {
        let Some(mut conn) = self.conn.try_lock() else {
            // Who holds it may be waiting for an answer.
            return self.look_later();
        };
        if conn.stage == Stage::Looking && conn.sock.is_none() {
            self.look(&mut conn);
        }
    }

    fn note(&self, conn: &mut Conn, news: &Message) {
        match news.kind {
            Kind::Changed => self.learn(conn, &news.attr),
            Kind::Event => {
                // Any other would be taken for one of another kind of object.
                if let Some(event) = EventType::from_raw(news.number).filter(|e| e.names_a_qp()) {
                    self.qp.raise(event);
                }
            }
            Kind::Failed => {
                conn.attr.qp_state = QpState::Err.raw();
                self.qp.set_state(QpState::Err);
            }
            _ => {}
        }
    }

    fn learn(&self, conn: &mut Conn, attr: &ibv_qp_attr) {
        conn.attr = *attr;
        if let Some(state) = QpState::from_raw(attr.qp_state) {
            self.qp.set_state(state);
        }
    }

    /// The QP's process is gone.
    fn orphaned(&self, conn: &mut Conn) {
        conn.tries = 0;
        if let Some(sock) = conn.sock.take() {
            self.node.engine.remove(sock.as_fd());
        }
        conn.stage = Stage::Looking;
        self.look(conn);
    }

    /// Later, since nothing has come of it.
    fn look_again(&self, conn: &mut Conn) {
        if let Some(sock) = conn.sock.take() {
            self.node.engine.remove(sock.as_fd());
        }
        conn.stage = Stage::Looking;
        self.look_later();
    }

    fn look_later(&self) {
        if let Some(me) = self.me.upgrade() {
            self.node.timers.arm_opened(&me, clock::now_ns() + HEIR_NS);
        }
    }

    /// Takes the QP over, or asks who has.
    fn look(&self, conn: &mut Conn) {
        conn.tries += 1;
        let (num, slot) = (self.qp.num, self.qp.num.slot());
        match self.node.wires.inherit_slot(self.node, slot) {
            Ok(()) => {
                let here = self.node.qp(num);
                if here.is_none() && restore(&self.qp, &conn.attr).is_ok() {
                    conn.stage = Stage::Here;
                    explain(format_args!(
                        "qp {num:?}: the process that made it is gone; it goes on in this one, which has it open"
                    ));
                    // Others find it here; without it they lose the QP, which they are told.
                    let _ = self.node.desk.attend_slot(self.node, slot);
                    return;
                }
            }
            Err(Errno::EADDRINUSE) if conn.tries <= HEIR_TRIES => {
                if self.ask_heir(conn).is_err() {
                    self.look_again(conn);
                }
                return;
            }
            Err(_) => {}
        }
        conn.stage = Stage::Lost;
        explain(format_args!("qp {num:?}: the process that made it is gone, and nobody can take it over"));
        if self.qp.state() != QpState::Err {
            self.qp.set_state(QpState::Err);
            self.qp.raise(EventType::QpFatal);
        }
    }

    /// Opens the QP where its slot is now; the answer comes later.
    fn ask_heir(&self, conn: &mut Conn) -> Result<(), Errno> {
        let sock = connect(&name_of_slot(self.qp.num.slot()))?;
        conn.id = conn.id.wrapping_add(1);
        let request = Message {
            id: conn.id,
            number: self.qp.num.0,
            value: self.domain,
            attr: conn.attr,
            ..Message::new(Kind::Restore)
        };
        seqpacket::send(sock.as_fd(), &request.encode(), &[])?;
        self.node.engine.add(sock.as_fd(), self.token)?;
        conn.sock = Some(sock);
        Ok(())
    }
}

/// A QP in RESET that no table knows.
fn stand_in(node: &'static Node, events: Arc<AsyncQueue>, num: Qpn, domain: u64) -> Arc<Qp> {
    let sq = Requester::new(SendQueue::none(), None, false);
    let rq = Responder::new(None, None, None);
    let qp = Qp::new(num, QpType::XrcRecv, crate::soft::mem::PdId(0), node, Some(domain), events, sq, rq);
    qp.shown.lock().withdrawn = true;
    qp
}

/// Makes a QP of a process that is gone anew, for another one that has it open: its is one handle. The others are those of
/// this process, and of processes for which the same was done, perhaps by another thread just now.
///
/// # Errors
/// EINVAL where the last handle of this process is just going; those of [`restore`].
pub fn restore_for_another(
    node: &'static Node,
    num: Qpn,
    domain: u64,
    attr: &ibv_qp_attr,
) -> Result<Arc<Qp>, Errno> {
    if let Some(own) = node.desk.find(num, domain) {
        let mut conn = own.conn.lock();
        if conn.stage != Stage::Here {
            own.orphaned(&mut conn);
        }
        let goes_on = conn.stage == Stage::Here && own.qp.add_handle();
        return if goes_on { Ok(own.qp.clone()) } else { Err(Errno::EINVAL) };
    }
    let _one = node.desk.restoring.lock();
    if let Some(qp) = node.qp(num) {
        return if qp.xrc_domain == Some(domain) && qp.add_handle() { Ok(qp) } else { Err(Errno::EINVAL) };
    }
    let qp = stand_in(node, node.desk.silence()?, num, domain);
    restore(&qp, attr)?;
    Ok(qp)
}

/// Brings a QP to where it was, and makes it reachable.
///
/// # Errors
/// EINVAL where its sender is on another host, whose packets cannot be taken over; those of `ibv_modify_qp`.
fn restore(qp: &Arc<Qp>, attr: &ibv_qp_attr) -> Result<(), Errno> {
    let state = QpState::from_raw(attr.qp_state).ok_or(Errno::EINVAL)?;
    qp.set_state(QpState::Reset);
    qp.shown.lock().withdrawn = false;
    let step = |state: QpState, mask: Mask| {
        let wanted = Wanted { state: state.raw(), ..wanted(attr) };
        modify(qp, &wanted, (mask | Mask::STATE).bits())
    };
    let init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
    let rtr = Mask::AV
        | Mask::PATH_MTU
        | Mask::DEST_QPN
        | Mask::RQ_PSN
        | Mask::MAX_DEST_RD_ATOMIC
        | Mask::MIN_RNR_TIMER;
    if state != QpState::Reset {
        step(QpState::Init, init)?;
    }
    if !matches!(state, QpState::Reset | QpState::Init | QpState::Err) {
        let gid = crate::soft::types::Gid(attr.ah_attr.grh.dgid.raw);
        if attr.ah_attr.is_global != 0 && !qp.node.is_this_host(gid) {
            return Err(Errno::EINVAL);
        }
        step(QpState::Rtr, rtr)?;
    }
    match state {
        QpState::Rts | QpState::Sqd => step(QpState::Rts, Mask::SQ_PSN | Mask::TIMEOUT)?,
        QpState::Err => step(QpState::Err, Mask::empty())?,
        _ => {}
    }
    if state == QpState::Sqd {
        step(QpState::Sqd, Mask::empty())?;
    }
    // How far the sender has come is for it to say.
    qp.rq.lock().psn = Psn::ANY;
    qp.node.add_qp(qp);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::node;
    use crate::soft::verbs::handles::retire;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_processes_that_ask_at_a_time_get_the_same_qp() {
        let node = node::node().unwrap();
        let (num, domain, attr) = (node.wires.claim_qpn(node).unwrap(), 0x7e58, ibv_qp_attr::zeroed());
        let restore = |domain| restore_for_another(node, num, domain, &attr);
        let (one, two) = (restore(domain).unwrap(), restore(domain).unwrap());
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(one.handles.load(Ordering::Acquire), 2);
        assert_eq!(restore(domain + 1).unwrap_err(), Errno::EINVAL);
        retire(node, &one);
    }

    #[test]
    fn two_threads_that_open_a_qp_at_a_time_get_handles_of_one() {
        let node = node::node().unwrap();
        let (num, domain) = (node.wires.claim_qpn(node).unwrap(), 0x7e57);
        let events = || Arc::new(AsyncQueue::new().unwrap());
        let qp = stand_in(node, events(), num, domain);
        node.add_qp(&qp);
        node.desk.attend_slot(node, num.slot()).unwrap();
        // Neither has found the other's.
        let (one, is_first) = Opened::open(node, events(), num, domain).unwrap();
        let (two, is_second_first) = Opened::open(node, events(), num, domain).unwrap();
        assert!(Arc::ptr_eq(&one, &two) && is_first && !is_second_first);
        assert_eq!(one.qp().handles.load(Ordering::Acquire), 2);
        let counts = |n: u32| {
            let end = clock::now_ns() + 20_000_000_000;
            while qp.handles.load(Ordering::Acquire) != n && clock::now_ns() < end {
                node.desk.catch_up(node);
                std::thread::yield_now();
            }
            assert_eq!(qp.handles.load(Ordering::Acquire), n);
        };
        counts(2);
        assert!(!one.close());
        counts(1);
        retire(node, &qp);
    }
}
