//! The data path that `ibv_context.ops` reaches: post, poll, arm.
use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::work::{SendSource, write_draft};
use super::{CqObject, QpObject, SrqObject, inherited, near, object, plain};
use crate::abi::*;
use crate::soft::cq::{Cq, Cqe, Taker};
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{QpState, Sge};
use crate::soft::{engine, link};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

const _: () = {
    assert!(size_of::<Cqe>() == size_of::<ibv_wc>());
    assert!(std::mem::offset_of!(Cqe, status) == std::mem::offset_of!(ibv_wc, status));
    assert!(std::mem::offset_of!(Cqe, imm) == std::mem::offset_of!(ibv_wc, imm_data));
    assert!(std::mem::offset_of!(Cqe, wc_flags) == std::mem::offset_of!(ibv_wc, wc_flags));
    assert!(std::mem::offset_of!(Cqe, dlid_path_bits) == std::mem::offset_of!(ibv_wc, dlid_path_bits));
    assert!(size_of::<Sge>() == size_of::<ibv_sge>());
};

pub unsafe extern "C" fn post_send(
    c: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the application passes a live QP and a list of requests ending in NULL.
    unsafe {
        match wr.as_ref().map(|first| first.opcode) {
            Some(IBV_WR_RDMA_WRITE) => post_one_sided::<true>(c, wr, bad),
            Some(IBV_WR_RDMA_READ) => post_one_sided::<false>(c, wr, bad),
            _ => post_others(c, wr, bad),
        }
    }
}

/// `post_send` of a list that begins with something else.
///
/// # Safety
/// As for `ibv_post_send`.
#[inline(never)]
unsafe fn post_others(c: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the application passes a live QP and a list of requests ending in NULL.
    unsafe {
        let qp: &Qp = &object::<_, QpObject>(c).qp;
        if !qp.node.is_ours() {
            return fail(Errno::EIO, wr, bad);
        }
        let mut sq = qp.sq.lock();
        let rest = plain::send(qp, &mut sq, wr);
        let error = if rest.is_null() { 0 } else { post_any(qp, &mut sq, rest, bad) };
        drop(sq);
        qp.node.settle();
        error
    }
}

/// `post_send` of a list that begins with a WRITE or READ. One function: while the kernel copies it loses what the processor knew of
/// where calls return to, so that each return after that costs tens of nanoseconds.
///
/// # Safety
/// As for `ibv_post_send`.
#[inline(never)]
unsafe fn post_one_sided<const WRITE: bool>(
    c: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the application passes a live QP and a list of requests ending in NULL.
    unsafe {
        let qp: &Qp = &object::<_, QpObject>(c).qp;
        if !qp.node.is_ours() {
            return fail(Errno::EIO, wr, bad);
        }
        let mut sq = qp.sq.lock();
        let rest = near::run::<WRITE>(qp, &mut sq, wr);
        let error = if rest.is_null() { 0 } else { post_rest(qp, &mut sq, rest, bad) };
        drop(sq);
        qp.node.settle();
        error
    }
}

/// Posts what comes behind requests that have been carried out.
///
/// # Safety
/// As for `ibv_post_send`.
#[inline(never)]
unsafe fn post_rest(
    qp: &Qp,
    sq: &mut Requester,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller vouches for the list, and for `bad`.
    unsafe {
        let mut rest = near::run_both(qp, sq, list);
        if !rest.is_null() {
            rest = plain::send(qp, sq, rest);
        }
        if rest.is_null() { 0 } else { post_any(qp, sq, rest, bad) }
    }
}

/// Posts requests of any kind and sends what can go.
///
/// # Safety
/// As for `ibv_post_send`.
#[inline(never)]
unsafe fn post_any(qp: &Qp, sq: &mut Requester, list: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let mut at = list;
    let mut error = 0;
    // SAFETY: the caller vouches for the list, and for `bad`.
    unsafe {
        while let Some(w) = at.as_ref() {
            if let Err(e) = write_draft(qp, sq, &SendSource::from_wr(w)) {
                error = fail(e, at, bad);
                break;
            }
            at = w.next;
        }
    }
    sq.publish(qp);
    link::pump(qp, sq);
    error
}

pub unsafe extern "C" fn post_recv(
    c: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a live QP and a list of requests ending in NULL.
    unsafe {
        let qp: &Qp = &object::<_, QpObject>(c).qp;
        if !qp.node.is_ours() {
            return fail(Errno::EIO, wr, bad);
        }
        let mut rq = qp.rq.lock();
        let state = qp.state();
        let mut at = wr;
        let mut error = 0;
        while let Some(w) = at.as_ref() {
            let posted = match rq.queue() {
                _ if state == QpState::Reset => Err(Errno::EINVAL),
                None => Err(Errno::EINVAL),
                Some(queue) => receive_sges(queue.max_sge(), w).and_then(|sges| queue.post(w.wr_id, sges)),
            };
            if let Err(e) = posted {
                let limits = rq.queue().map(|q| (q.depth(), q.max_sge()));
                explain_receive(format_args!("ibv_post_recv qp={:?} in {state}", qp.num), w, e, limits);
                error = fail(e, at, bad);
                break;
            }
            at = w.next;
        }
        if state == QpState::Err {
            rq.flush(qp);
        }
        error
    }
}

pub unsafe extern "C" fn post_srq_recv(
    c: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a live SRQ and a list of requests ending in NULL.
    unsafe {
        if inherited((*c).context) {
            return fail(Errno::EIO, wr, bad);
        }
        let srq = &object::<_, SrqObject>(c).srq;
        let (depth, max_sge, _) = srq.attributes();
        let mut at = wr;
        while let Some(w) = at.as_ref() {
            if let Err(e) = receive_sges(max_sge, w).and_then(|sges| srq.post(w.wr_id, sges)) {
                explain_receive(format_args!("ibv_post_srq_recv"), w, e, Some((depth, max_sge)));
                return fail(e, at, bad);
            }
            at = w.next;
        }
    }
    0
}

/// The SGEs of a receive request; EINVAL where there cannot be so many.
///
/// # Safety
/// `wr.sg_list` must have `wr.num_sge` entries while the result lives.
#[inline]
unsafe fn receive_sges(max_sge: u32, wr: &ibv_recv_wr) -> Result<impl ExactSizeIterator<Item = Sge>, Errno> {
    if wr.num_sge < 0 || wr.num_sge as u32 > max_sge {
        return Err(Errno::EINVAL);
    }
    let list = wr.sg_list.cast::<Sge>();
    // SAFETY: the caller vouches for the list.
    Ok((0..wr.num_sge as usize).map(move |i| unsafe { *list.add(i) }))
}

#[cold]
fn explain_receive(call: std::fmt::Arguments<'_>, wr: &ibv_recv_wr, e: Errno, queue: Option<(u32, u32)>) {
    let (wr_id, num_sge) = (wr.wr_id, wr.num_sge);
    match (e, queue) {
        (_, None) => explain(format_args!("{call} wr_id={wr_id}: it has no receive queue of its own")),
        (Errno::ENOMEM, Some((depth, _))) => explain(format_args!(
            "{call} wr_id={wr_id}: the queue is full: {depth} requests wait (max_wr={depth})"
        )),
        (_, Some((_, max_sge))) if num_sge < 0 || num_sge as u32 > max_sge => {
            explain(format_args!("{call} wr_id={wr_id} num_sge={num_sge}: expected at most {max_sge}"));
        }
        _ => explain(format_args!("{call} wr_id={wr_id}: expected any state but RESET")),
    }
}

/// Names the request at which a list stopped; errno is set as well, since programs print it.
///
/// # Safety
/// `bad` must be writable or NULL.
unsafe fn fail<T>(e: Errno, at: *mut T, bad: *mut *mut T) -> c_int {
    if !bad.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { *bad = at };
    }
    e.store();
    e.0
}

pub unsafe extern "C" fn poll_cq(c: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    if n <= 0 {
        if n < 0 {
            explain(format_args!("ibv_poll_cq num_entries={n}: expected at least 0"));
        }
        return if n == 0 { 0 } else { -libc::EINVAL };
    }
    // SAFETY: the application passes a live CQ and room for `n` completions; `Cqe` and `ibv_wc` are laid out alike.
    unsafe {
        let cq = &object::<_, CqObject>(c).cq;
        if !cq.is_ours() {
            return -libc::EIO;
        }
        let n = n as usize;
        let place = wc.cast::<MaybeUninit<Cqe>>();
        let got = drain(cq, std::slice::from_raw_parts_mut(place, n));
        if got > 0 {
            return got as c_int;
        }
        let mut taker = Taker::new(cq, std::slice::from_raw_parts_mut(place, n));
        engine::progress_from_poll(&mut taker);
        let got = taker.got();
        (got + drain(cq, std::slice::from_raw_parts_mut(place.add(got), n - got))) as c_int
    }
}

/// Takes completions out of the queue.
#[inline(always)]
fn drain(cq: &Cq, places: &mut [MaybeUninit<Cqe>]) -> usize {
    let room = places.len();
    let mut places = places.iter_mut();
    cq.poll(room, |cqe, _| {
        if let Some(place) = places.next() {
            place.write(*cqe);
        }
    })
}

pub unsafe extern "C" fn req_notify_cq(c: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the application passes a live CQ.
    let cq = unsafe { &object::<_, CqObject>(c).cq };
    if !cq.is_ours() {
        return libc::EIO;
    }
    cq.arm(solicited_only != 0);
    0
}
