//! Queue pairs and shared receive queues: made by the kernel, their queues mapped.
use super::queue::{MmapInfo, Queue};
use super::wqe::{RECV_HEAD, SEND_HEAD};
use super::{
    Answered, CqObject, QpObject, Receive, SendSide, SrqObject, forget, fresh, offers, place, post, wr,
};
use crate::abi::*;
use crate::kernel::command::write::Plain;
use crate::kernel::command::{qp as command, qp_attr, srq};
use crate::sys::errno::Errno;
use crate::sys::latch::Latch;
use std::ffi::c_int;

/// What the kernel tells of a QP's queues.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct QpTail {
    rq: MmapInfo,
    sq: MmapInfo,
}

/// FLUSH of either kind.
const FLUSHES: u64 = IBV_DEVICE_FLUSH_GLOBAL | IBV_DEVICE_FLUSH_PERSISTENT;

/// What it tells of an SRQ's.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct SrqTail {
    mi: MmapInfo,
    srq_num: u32,
    reserved: u32,
}

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let mut all = ibv_qp_init_attr_ex::zeroed();
    // SAFETY: the library passes a live PD and the application's attributes, with which the extended ones begin.
    unsafe {
        (&raw mut all).cast::<ibv_qp_init_attr>().write(*attr);
        all.comp_mask = IBV_QP_INIT_ATTR_PD;
        all.pd = pd;
        let qp = create_qp_ex((*pd).context, &mut all);
        if !qp.is_null() {
            (*attr).cap = all.cap;
        }
        qp
    }
}

pub unsafe extern "C" fn create_qp_ex(ctx: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    /// What each kernel has; TSO is for others.
    const OPS: u64 = (1 << 10) - 1;
    // SAFETY: the library passes a live context and the application's attributes.
    place(|| unsafe {
        let a = &mut *attr;
        let extended = a.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let flags = if a.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 { a.create_flags } else { 0 };
        let beyond = if extended { a.send_ops_flags & !OPS } else { 0 };
        let able = beyond & !(IBV_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE) == 0
            && (beyond & IBV_QP_EX_WITH_FLUSH == 0 || offers(ctx, FLUSHES))
            && (beyond & IBV_QP_EX_WITH_ATOMIC_WRITE == 0 || offers(ctx, IBV_DEVICE_ATOMIC_WRITE));
        if a.comp_mask & !KNOWN != 0
            || flags != 0
            || !able
            || extended && !post::sends(a.qp_type, a.send_ops_flags)
        {
            return Err(Errno::EOPNOTSUPP);
        }
        let c = fresh::<QpObject>();
        let mut cmd = Plain::of(ib_uverbs_create_qp::zeroed());
        let mut resp = Answered::<_, QpTail>::of(ib_uverbs_create_qp_resp::zeroed());
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let mut asked = *a;
        asked.comp_mask &= !IBV_QP_INIT_ATTR_CREATE_FLAGS;
        let answer = (&raw mut resp).cast();
        let rc = command::create_qp_ex(ctx, c.cast(), &mut asked, &mut cmd, size, answer, room);
        if rc != 0 {
            forget(c);
            return Err(Errno(rc));
        }
        let cap = asked.cap;
        let tail = resp.tail;
        let mapped = map(ctx, &tail, &cap, a.srq.is_null());
        let (sq, rq) = match mapped {
            Ok(both) => both,
            Err(e) => {
                command::destroy_qp(c.cast());
                forget(c);
                return Err(e);
            }
        };
        (&raw mut (*c).send).write(Latch::new(SendSide::default()));
        (&raw mut (*c).sq).write(sq);
        (&raw mut (*c).rq).write(rq);
        (*c).max_send_sge = cap.max_send_sge as usize;
        (*c).max_inline = cap.max_inline_data as usize;
        if extended {
            (*c).c.comp_mask |= VERBS_QP_EX;
            wr::fill(&mut (*c).c.qp_ex, a.send_ops_flags);
        }
        a.cap = cap;
        Ok(c)
    })
    .cast()
}

/// Maps a QP's queues, and sees that their entries hold what its capacities promise.
///
/// # Safety
/// `ctx` live.
unsafe fn map(
    ctx: *mut ibv_context,
    tail: &QpTail,
    cap: &ibv_qp_cap,
    receives: bool,
) -> Result<(Queue, Option<Latch<Receive>>), Errno> {
    // SAFETY: the caller vouches for the context.
    let fd = unsafe { (*ctx).cmd_fd };
    let sq = Queue::map(fd, tail.sq)?;
    let data = (cap.max_send_sge as usize * size_of::<ibv_sge>()).max(cap.max_inline_data as usize);
    if sq.entry_size() < SEND_HEAD + data {
        return Err(Errno::EPROTO);
    }
    let rq = if receives { Some(receive_queue(fd, tail.rq, cap.max_recv_sge)?) } else { None };
    Ok((sq, rq))
}

fn receive_queue(fd: c_int, info: MmapInfo, max_sge: u32) -> Result<Latch<Receive>, Errno> {
    let queue = Queue::map(fd, info)?;
    let max_sge = max_sge as usize;
    if queue.entry_size() < RECV_HEAD + max_sge * size_of::<ibv_sge>() {
        return Err(Errno::EPROTO);
    }
    Ok(Latch::new(Receive { queue, max_sge }))
}

pub unsafe extern "C" fn destroy_qp(c: *mut ibv_qp) -> c_int {
    // SAFETY: the library passes a live QP, which is gone when the kernel says so.
    unsafe {
        let rc = command::destroy_qp(c);
        if rc == 0 {
            drop(Box::from_raw(c.cast::<QpObject>()));
        }
        rc
    }
}

pub unsafe extern "C" fn modify_qp(c: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let mut cmd = Plain::of(ib_uverbs_modify_qp::zeroed());
    let size = size_of_val(&cmd);
    // SAFETY: the library passes a live QP, whose CQs live, and the application's attributes.
    unsafe {
        let rc = qp_attr::modify_qp(c, attr, mask, &mut cmd, size);
        if rc == 0 && mask as u32 & IBV_QP_STATE != 0 && (*attr).qp_state == IBV_QPS_RESET {
            // As NICs do: who uses the QP again does not find completions of its former life.
            for cq in [(*c).send_cq, (*c).recv_cq] {
                if !cq.is_null() {
                    super::object::<_, CqObject>(cq).polled.lock().forget((*c).qp_num);
                }
            }
        }
        rc
    }
}

pub unsafe extern "C" fn query_qp(
    c: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let mut cmd = Plain::of(ib_uverbs_query_qp::zeroed());
    let size = size_of_val(&cmd);
    // SAFETY: the library passes a live QP and room for both answers.
    unsafe { qp_attr::query_qp(c, attr, mask, init, &mut cmd, size) }
}

pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the library passes a live PD and the application's attributes.
    place(|| unsafe {
        let ctx = (*pd).context;
        let c = fresh::<SrqObject>();
        let mut cmd = Plain::of(ib_uverbs_create_srq::zeroed());
        let mut resp = Answered::<_, SrqTail>::of(ib_uverbs_create_srq_resp::zeroed());
        let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
        let rc = srq::create_srq(pd, c.cast(), attr, &mut cmd, size, (&raw mut resp).cast(), room);
        if rc != 0 {
            forget(c);
            return Err(Errno(rc));
        }
        match receive_queue((*ctx).cmd_fd, resp.tail.mi, (*attr).attr.max_sge) {
            Ok(rq) => {
                (&raw mut (*c).rq).write(rq);
                (*c).c.srq_num = resp.tail.srq_num;
                Ok(c)
            }
            Err(e) => {
                srq::destroy_srq(c.cast());
                forget(c);
                Err(e)
            }
        }
    })
    .cast()
}

pub unsafe extern "C" fn modify_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    #[repr(C)]
    struct Request {
        head: Plain<ib_uverbs_modify_srq>,
        /// Where the kernel tells the place of a new queue.
        mmap_info: u64,
    }
    // SAFETY: the library passes a live SRQ and the application's attributes; nobody posts while the lock is held.
    unsafe {
        let mut rq = super::object::<_, SrqObject>(c).rq.lock();
        let mut info = MmapInfo::default();
        let mut cmd = Request {
            head: Plain::of(ib_uverbs_modify_srq::zeroed()),
            mmap_info: (&raw mut info).expose_provenance() as u64,
        };
        let size = size_of_val(&cmd);
        let rc = srq::modify_srq(c, attr, mask, (&raw mut cmd).cast(), size);
        if rc == 0 && mask as u32 & IBV_SRQ_MAX_WR != 0 {
            match Queue::map((*(*c).context).cmd_fd, info) {
                Ok(queue) => rq.queue = queue,
                Err(e) => return crate::kernel::command::code(Err(e)),
            }
        }
        rc
    }
}

pub unsafe extern "C" fn query_srq(c: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let mut cmd = Plain::of(ib_uverbs_query_srq::zeroed());
    let size = size_of_val(&cmd);
    // SAFETY: the library passes a live SRQ and room for the attributes.
    unsafe { srq::query_srq(c, attr, &mut cmd, size) }
}

pub unsafe extern "C" fn destroy_srq(c: *mut ibv_srq) -> c_int {
    // SAFETY: the library passes a live SRQ, which is gone when the kernel says so.
    unsafe {
        let rc = srq::destroy_srq(c);
        if rc == 0 {
            drop(Box::from_raw(c.cast::<SrqObject>()));
        }
        rc
    }
}
