//! Posting to the queues of a QP or SRQ.
use super::wqe::Wqe;
use super::{AhObject, QpObject, RecvQueue, SrqObject, object, offers};
use crate::abi::*;
use crate::kernel::command::issue;
use crate::sys::errno::Errno;
use crate::sys::log::explain;
use std::ffi::c_int;

/// Whether a kind of QP sends this.
pub fn allowed(qp_type: u32, opcode: u32) -> bool {
    match opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => true,
        IBV_WR_RDMA_WRITE
        | IBV_WR_RDMA_WRITE_WITH_IMM
        | IBV_WR_SEND_WITH_INV
        | IBV_WR_LOCAL_INV
        | IBV_WR_BIND_MW => qp_type == IBV_QPT_RC || qp_type == IBV_QPT_UC,
        IBV_WR_RDMA_READ
        | IBV_WR_ATOMIC_CMP_AND_SWP
        | IBV_WR_ATOMIC_FETCH_AND_ADD
        | IBV_WR_FLUSH
        | IBV_WR_ATOMIC_WRITE => qp_type == IBV_QPT_RC,
        _ => false,
    }
}

/// Whether a kind of QP sends all that these `IBV_QP_EX_WITH_*` flags name.
pub fn sends(qp_type: u32, ops: u64) -> bool {
    const ALL: [(u64, u32); 12] = [
        (IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE),
        (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM),
        (IBV_QP_EX_WITH_SEND, IBV_WR_SEND),
        (IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM),
        (IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ),
        (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP),
        (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD),
        (IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV),
        (IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW),
        (IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV),
        (IBV_QP_EX_WITH_FLUSH, IBV_WR_FLUSH),
        (IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE),
    ];
    ALL.iter().all(|&(flag, opcode)| ops & flag == 0 || allowed(qp_type, opcode))
}

/// Posts a list of send requests; stops at the first bad one, which `bad` names.
pub unsafe extern "C" fn post_send(
    c: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the application passes a live QP and a list that ends in NULL.
    unsafe {
        let qp: &QpObject = object(c);
        let mut side = qp.send.lock();
        let first = qp.sq.producer();
        let (mut producer, mut at, mut result) = (first, wr, Ok(()));
        while let Some(one) = at.as_ref() {
            result = build(c, qp, producer, one, side.ssn.wrapping_add(1));
            if result.is_err() {
                break;
            }
            side.ssn = side.ssn.wrapping_add(1);
            producer = qp.sq.after(producer);
            at = one.next;
        }
        if producer != first {
            qp.sq.publish(producer);
            if let Err(e) = ring(c) {
                (at, result) = (wr, Err(e));
            }
        }
        done(result, at, bad)
    }
}

/// Tells the kernel that the send queue has entries: POST_SEND without requests.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `c` must be live.
pub unsafe fn ring(c: *mut ibv_qp) -> Result<(), Errno> {
    #[repr(C)]
    struct Doorbell {
        hdr: ib_uverbs_cmd_hdr,
        post: ib_uverbs_post,
    }
    let mut refused = ib_uverbs_post_resp { bad_wr: 0 };
    // SAFETY: the caller vouches for the QP; request and answer are ours.
    unsafe {
        let request = Doorbell {
            hdr: ib_uverbs_cmd_hdr {
                command: crate::kernel::command::write::number::POST_SEND,
                in_words: (size_of::<Doorbell>() / 4) as u16,
                out_words: 1,
            },
            post: ib_uverbs_post {
                response: (&raw mut refused).expose_provenance() as u64,
                handle: (*c).handle,
                wr_count: 0,
                sge_count: 0,
                wqe_size: size_of::<ibv_send_wr>() as u32,
            },
        };
        issue::write((*(*c).context).cmd_fd, (&raw const request).cast(), size_of_val(&request))
    }
}

/// Builds one entry at `index`.
///
/// # Safety
/// `c` live; the send queue's lock held; `wr` with readable SGEs and live objects.
unsafe fn build(c: *mut ibv_qp, qp: &QpObject, index: u32, wr: &ibv_send_wr, ssn: u32) -> Result<(), Errno> {
    let count = usize::try_from(wr.num_sge).unwrap_or(usize::MAX);
    // SAFETY: the caller vouches for the QP and the request; the entry is free, as checked.
    unsafe {
        let (number, qp_type) = ((*c).qp_num, (*c).qp_type);
        let refuse = |why: std::fmt::Arguments<'_>| {
            explain(format_args!("ibv_post_send qp=0x{number:06x} wr_id={}: {why}", wr.wr_id));
            Errno::EINVAL
        };
        if (*c).state < IBV_QPS_RTS {
            return Err(refuse(format_args!("the QP is in state {}, expected RTS", (*c).state)));
        }
        if !allowed(qp_type, wr.opcode) {
            return Err(refuse(format_args!("opcode {} on a QP of type {qp_type}", wr.opcode)));
        }
        match wr.opcode {
            // The request has no place for what is to be flushed.
            IBV_WR_FLUSH => return Err(refuse(format_args!("FLUSH is posted by ibv_wr_flush"))),
            IBV_WR_ATOMIC_WRITE if !offers((*c).context, IBV_DEVICE_ATOMIC_WRITE) => {
                refuse(format_args!("this kernel's rxe has no ATOMIC WRITE"));
                return Err(Errno::EOPNOTSUPP);
            }
            _ => {}
        }
        if !qp.sq.has_room(index) {
            explain(format_args!(
                "ibv_post_send qp=0x{number:06x} wr_id={}: the send queue is full",
                wr.wr_id
            ));
            return Err(Errno::ENOMEM);
        }
        let wqe = Wqe::send(qp.sq.entry(index), wr.wr_id, wr.opcode, wr.send_flags, ssn);
        wqe.ex(wr.imm_data);
        // The kernel takes the bytes of an ATOMIC WRITE from the entry, which has room for as many.
        let atomic_write = wr.opcode == IBV_WR_ATOMIC_WRITE;
        let total = if atomic_write || wr.send_flags & IBV_SEND_INLINE != 0 {
            let most = if atomic_write { 8 } else { qp.max_inline };
            let mut filled = 0;
            for i in 0..count {
                let sge = &*wr.sg_list.add(i);
                let length = sge.length as usize;
                if length > most - filled {
                    return Err(refuse(format_args!("more than {most} bytes inline")));
                }
                wqe.inline(&mut filled, std::ptr::with_exposed_provenance(sge.addr as usize), length);
            }
            wqe.end_inline(filled);
            filled as u32
        } else {
            if count > qp.max_send_sge {
                return Err(refuse(format_args!("num_sge={count}, expected {} at most", qp.max_send_sge)));
            }
            wqe.send_sges(wr.sg_list, count)?
        };
        match wr.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ | IBV_WR_ATOMIC_WRITE => {
                if atomic_write && total != 8 {
                    return Err(refuse(format_args!("an ATOMIC WRITE of {total} bytes: expected 8")));
                }
                wqe.rdma(wr.wr.rdma.remote_addr, wr.wr.rdma.rkey);
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let a = wr.wr.atomic;
                // Whether the address is aligned the peer decides.
                if total < 8 {
                    return Err(refuse(format_args!("an atomic into {total} bytes: expected 8")));
                }
                wqe.atomic(a.remote_addr, a.rkey, a.compare_add, a.swap);
            }
            IBV_WR_BIND_MW => {
                let bind = wr.tail.bind_mw;
                if count != 0 {
                    return Err(refuse(format_args!("a bind takes no data")));
                }
                bindable(bind.mw, &bind.bind_info).map_err(|why| refuse(format_args!("{why}")))?;
                wqe.bind((*bind.mw).rkey, bind.rkey, &bind.bind_info);
                (*bind.mw).rkey = bind.rkey;
            }
            _ if qp_type == IBV_QPT_UD => {
                let ud = wr.wr.ud;
                if ud.ah.is_null() {
                    return Err(refuse(format_args!("no address handle")));
                }
                wqe.datagram(object::<_, AhObject>(ud.ah), ud.remote_qpn, ud.remote_qkey);
            }
            _ => {}
        }
    }
    Ok(())
}

/// What the kernel could only answer by an error of the QP: a window needs a region of its own PD, unless it is unbound.
///
/// # Errors
/// Why not.
///
/// # Safety
/// `mw` and the region must be null or live.
pub unsafe fn bindable(mw: *const ibv_mw, info: &ibv_mw_bind_info) -> Result<(), &'static str> {
    // SAFETY: the caller vouches for both.
    match unsafe { (mw.as_ref(), info.mr.as_ref()) } {
        (None, _) => Err("no window to bind"),
        (_, None) if info.length > 0 => Err("no region to bind the window to"),
        (Some(mw), Some(mr)) if mw.pd != mr.pd => Err("window and region are of different PDs"),
        _ => Ok(()),
    }
}

/// Posts a list of receive requests to a QP.
pub unsafe extern "C" fn post_recv(
    c: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a live QP and a list that ends in NULL.
    unsafe {
        let qp: &QpObject = object(c);
        match &qp.rq {
            Some(rq) if (*c).state != IBV_QPS_RESET => receive(rq, "ibv_post_recv", wr, bad),
            other => {
                let why = if other.is_none() { "it takes from an SRQ" } else { "it is in RESET" };
                explain(format_args!("ibv_post_recv qp=0x{:06x}: {why}", (*c).qp_num));
                done(Err(Errno::EINVAL), wr, bad)
            }
        }
    }
}

/// Posts a list of receive requests to an SRQ.
pub unsafe extern "C" fn post_srq_recv(
    c: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application passes a live SRQ and a list that ends in NULL.
    unsafe { receive(&object::<_, SrqObject>(c).rq, "ibv_post_srq_recv", wr, bad) }
}

/// # Safety
/// The list must end in NULL.
unsafe fn receive(rq: &RecvQueue, call: &str, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let queue = rq.lock();
    let first = queue.queue.producer();
    let (mut producer, mut at, mut result) = (first, wr, Ok(()));
    // SAFETY: the caller vouches for the list; an entry is free where there is room, and holds `max_sge` SGEs.
    unsafe {
        while let Some(one) = at.as_ref() {
            let count = usize::try_from(one.num_sge).unwrap_or(usize::MAX);
            result = if count > queue.max_sge {
                explain(format_args!(
                    "{call} wr_id={}: num_sge={}, expected {} at most",
                    one.wr_id, one.num_sge, queue.max_sge
                ));
                Err(Errno::EINVAL)
            } else if !queue.queue.has_room(producer) {
                explain(format_args!("{call} wr_id={}: the queue is full", one.wr_id));
                Err(Errno::ENOMEM)
            } else {
                Wqe::receive(queue.queue.entry(producer), one.wr_id, one.sg_list, count)
            };
            if result.is_err() {
                break;
            }
            producer = queue.queue.after(producer);
            at = one.next;
        }
    }
    if producer != first {
        queue.queue.publish(producer);
    }
    // SAFETY: `bad` is a place for a pointer or null.
    unsafe { done(result, at, bad) }
}

/// # Safety
/// `bad` must be a place for a pointer or null.
unsafe fn done<T>(result: Result<(), Errno>, at: *mut T, bad: *mut *mut T) -> c_int {
    let Err(e) = result else { return 0 };
    if !bad.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { *bad = at };
    }
    e.store();
    e.0
}
