//! What the inline verbs of 1.0 reach through a context: polling, arming, posting. Lists are copied to today's layout.
use std::{ffi::c_int, ptr};

use crate::{abi::*, sys::errno::Errno};

/// Work requests that are copied without the heap.
const ON_STACK: usize = 16;

/// A work request of 1.0 that has a form of today.
trait Request: Copy {
    type Real: Copy;
    fn next(&self) -> *mut Self;
    /// # Safety
    /// What the request points to must be live.
    unsafe fn real(&self, qp_type: u32) -> Self::Real;
    fn link(real: &mut Self::Real, next: *mut Self::Real);
    const ZERO: Self::Real;
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq_1_0, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the program passes a live wrapper, as for all functions below; the slots of a context are always filled.
    unsafe {
        let real = (*cq).real_cq;
        (*(*real).context).ops.poll_cq.map_or(-1, |op| op(real, count, wc))
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq_1_0, solicited_only: c_int) -> c_int {
    // SAFETY: see `poll_cq`.
    unsafe {
        let real = (*cq).real_cq;
        (*(*real).context).ops.req_notify_cq.map_or(Errno::EOPNOTSUPP.0, |op| op(real, solicited_only))
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp_1_0,
    wr: *mut ibv_send_wr_1_0,
    bad: *mut *mut ibv_send_wr_1_0,
) -> c_int {
    // SAFETY: see `poll_cq`; the requests are readable.
    unsafe {
        let real = (*qp).real_qp;
        let Some(op) = (*(*real).context).ops.post_send else { return Errno::EOPNOTSUPP.0 };
        post((*qp).qp_type, wr, bad, |wr, bad| op(real, wr, bad))
    }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp_1_0,
    wr: *mut ibv_recv_wr_1_0,
    bad: *mut *mut ibv_recv_wr_1_0,
) -> c_int {
    // SAFETY: see `post_send`.
    unsafe {
        let real = (*qp).real_qp;
        let Some(op) = (*(*real).context).ops.post_recv else { return Errno::EOPNOTSUPP.0 };
        post((*qp).qp_type, wr, bad, |wr, bad| op(real, wr, bad))
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq_1_0,
    wr: *mut ibv_recv_wr_1_0,
    bad: *mut *mut ibv_recv_wr_1_0,
) -> c_int {
    // SAFETY: see `post_send`.
    unsafe {
        let real = (*srq).real_srq;
        let Some(op) = (*(*real).context).ops.post_srq_recv else { return Errno::EOPNOTSUPP.0 };
        post(0, wr, bad, |wr, bad| op(real, wr, bad))
    }
}

/// Copies a list, posts the copy, and finds the request that was refused in the program's own list.
///
/// # Safety
/// `first` must be a list of readable requests, `bad` writable or NULL.
unsafe fn post<R: Request>(
    qp_type: u32,
    first: *mut R,
    bad: *mut *mut R,
    op: impl FnOnce(*mut R::Real, *mut *mut R::Real) -> c_int,
) -> c_int {
    let mut few = [R::ZERO; ON_STACK];
    let mut many = Vec::new();
    // SAFETY: the caller vouches for the list.
    let count = unsafe { length(first) };
    let copies = if count <= ON_STACK {
        &mut few[..count]
    } else {
        many.resize(count, R::ZERO);
        &mut many[..]
    };
    let mut from = first;
    for copy in copies.iter_mut() {
        // SAFETY: within the list, whose length was just counted.
        unsafe {
            *copy = (*from).real(qp_type);
            from = (*from).next();
        }
    }
    let mut next = ptr::null_mut();
    let start = copies.as_mut_ptr();
    for i in (0..count).rev() {
        R::link(&mut copies[i], next);
        next = start.wrapping_add(i);
    }
    let mut refused = ptr::null_mut();
    let result = op(next, &mut refused);
    if result != 0 && !bad.is_null() {
        let index = (refused.addr().wrapping_sub(start.addr())) / size_of::<R::Real>();
        let mut at = first;
        // SAFETY: `index` requests stand in front of the refused one, and `bad` has a place for it.
        unsafe {
            for _ in 0..if index < count { index } else { 0 } {
                at = (*at).next();
            }
            *bad = at;
        }
    }
    result
}

/// # Safety
/// `first` must be a list of readable requests.
unsafe fn length<R: Request>(first: *mut R) -> usize {
    let (mut count, mut at) = (0, first);
    while !at.is_null() {
        count += 1;
        // SAFETY: the caller vouches for the list.
        at = unsafe { (*at).next() };
    }
    count
}

impl Request for ibv_recv_wr_1_0 {
    type Real = ibv_recv_wr;
    const ZERO: ibv_recv_wr = ibv_recv_wr::zeroed();

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn real(&self, _: u32) -> ibv_recv_wr {
        ibv_recv_wr { wr_id: self.wr_id, next: ptr::null_mut(), sg_list: self.sg_list, num_sge: self.num_sge }
    }

    fn link(real: &mut ibv_recv_wr, next: *mut ibv_recv_wr) {
        real.next = next;
    }
}

impl Request for ibv_send_wr_1_0 {
    type Real = ibv_send_wr;
    const ZERO: ibv_send_wr = ibv_send_wr::zeroed();

    fn next(&self) -> *mut Self {
        self.next
    }

    unsafe fn real(&self, qp_type: u32) -> ibv_send_wr {
        let mut real = ibv_send_wr {
            wr_id: self.wr_id,
            sg_list: self.sg_list,
            num_sge: self.num_sge,
            opcode: self.opcode,
            send_flags: self.send_flags,
            imm_data: self.imm_data,
            ..Self::ZERO
        };
        // SAFETY: the type of QP and the opcode say which member the program has set; all are plain data.
        unsafe {
            match self.opcode {
                _ if qp_type == IBV_QPT_UD => {
                    let ud = self.wr.ud;
                    let ah = ud.ah.as_ref().map_or(ptr::null_mut(), |ah| ah.real_ah);
                    real.wr.ud =
                        ibv_send_wr_ud { ah, remote_qpn: ud.remote_qpn, remote_qkey: ud.remote_qkey };
                }
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                    real.wr.rdma = self.wr.rdma
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => real.wr.atomic = self.wr.atomic,
                _ => {}
            }
        }
        real
    }

    fn link(real: &mut ibv_send_wr, next: *mut ibv_send_wr) {
        real.next = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts a list of `count` receives of which number `refuse` is refused; the ids that were seen, and the id of `bad`.
    fn run(count: usize, refuse: usize) -> (Vec<u64>, u64) {
        let mut list: Vec<ibv_recv_wr_1_0> = (0..count)
            .map(|i| ibv_recv_wr_1_0 {
                wr_id: i as u64,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            })
            .collect();
        for i in 1..count {
            list[i - 1].next = &raw mut list[i];
        }
        let first = if count == 0 { ptr::null_mut() } else { list.as_mut_ptr() };
        let (mut seen, mut bad) = (Vec::new(), ptr::null_mut());
        // SAFETY: the list is valid, and so is every copy of it.
        unsafe {
            let result = post(0, first, &mut bad, |mut wr: *mut ibv_recv_wr, bad| {
                while !wr.is_null() {
                    if seen.len() == refuse {
                        *bad = wr;
                        return libc::ENOMEM;
                    }
                    seen.push((*wr).wr_id);
                    wr = (*wr).next;
                }
                0
            });
            assert_eq!(result != 0, refuse < count);
            (seen, bad.as_ref().map_or(u64::MAX, |wr| wr.wr_id))
        }
    }

    #[test]
    fn list_is_posted_in_order() {
        assert_eq!(run(3, 9), (vec![0, 1, 2], u64::MAX));
        assert_eq!(run(40, 99).0, (0..40).collect::<Vec<_>>());
        assert_eq!(run(0, 9).0, Vec::<u64>::new());
    }

    #[test]
    fn refused_request_is_found_in_the_programs_list() {
        assert_eq!(run(5, 2), (vec![0, 1], 2));
        assert_eq!(run(40, 37).1, 37);
        assert_eq!(run(1, 0).1, 0);
    }

    #[test]
    fn ud_destination_becomes_the_real_handle() {
        let mut real_ah = ibv_ah::zeroed();
        let mut ah = ibv_ah_1_0::zeroed();
        ah.real_ah = &mut real_ah;
        let mut wr = ibv_send_wr_1_0::zeroed();
        (wr.opcode, wr.imm_data) = (IBV_WR_SEND_WITH_IMM, 7);
        wr.wr.ud = ibv_send_wr_ud_1_0 { ah: &mut ah, remote_qpn: 3, remote_qkey: 4 };
        // SAFETY: the address handle is live and the member is the one that was set.
        unsafe {
            let real = wr.real(IBV_QPT_UD);
            assert!(ptr::eq(real.wr.ud.ah, &real_ah));
            assert_eq!((real.imm_data, real.wr.ud.remote_qpn, real.wr.ud.remote_qkey), (7, 3, 4));
        }
    }
}
