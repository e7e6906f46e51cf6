//! The data path through the kernel, for providers whose device cannot be reached otherwise.
use super::write::{self, Plain, number};
use super::{code, issue};
use crate::abi::*;
use crate::sys::errno::Errno;
use std::ffi::c_int;

/// How many completions one command fetches at most.
const MAX_POLL: usize = 256;

/// # Safety
/// `cq` live, `wc` valid for `n` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    #[repr(C)]
    struct Answer {
        head: ib_uverbs_poll_cq_resp,
        wc: [ib_uverbs_wc; MAX_POLL],
    }
    let wanted = usize::try_from(n).unwrap_or(0).min(MAX_POLL);
    // SAFETY: integers only.
    let mut told: Box<Answer> = unsafe { Box::new(std::mem::zeroed()) };
    // SAFETY: the provider gives a live CQ and room for the completions.
    let polled = unsafe {
        let core = ib_uverbs_poll_cq { response: 0, cq_handle: (*cq).handle, ne: wanted as u32 };
        let mut request = Plain::of(core);
        let size = size_of_val(&request);
        let room = size_of::<ib_uverbs_poll_cq_resp>() + wanted * size_of::<ib_uverbs_wc>();
        write::plain_whole((*cq).context, number::POLL_CQ, &mut request, size, (&raw mut *told).cast(), room)
    };
    if let Err(e) = polled {
        e.store();
        return -1;
    }
    let count = wanted.min(told.head.count as usize);
    for (i, from) in told.wc[..count].iter().enumerate() {
        let mut to = ibv_wc::zeroed();
        macro_rules! same {
            ($($f:ident)*) => { $(to.$f = from.$f as _;)* };
        }
        same!(wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl
            dlid_path_bits);
        // SAFETY: at most `n` are written.
        unsafe { wc.add(i).write(to) };
    }
    count as c_int
}

/// # Safety
/// `cq` live.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the provider gives a live CQ.
    code(unsafe {
        let core = ib_uverbs_req_notify_cq {
            cq_handle: (*cq).handle,
            solicited_only: u32::from(solicited_only != 0),
        };
        let mut request = Plain::of(core);
        let size = size_of_val(&request);
        write::plain_without_answer((*cq).context, number::REQ_NOTIFY_CQ, &mut request, size)
    })
}

/// A request of many parts: header, head, work requests, SGEs.
struct Posted {
    wrs: Vec<u8>,
    sges: Vec<u8>,
    wr_count: u32,
    sge_count: u32,
}

impl Posted {
    fn new() -> Self {
        Self { wrs: Vec::new(), sges: Vec::new(), wr_count: 0, sge_count: 0 }
    }

    /// Adds a work request and its SGEs.
    ///
    /// # Safety
    /// `sg_list` readable for `num_sge` entries.
    unsafe fn push<T>(&mut self, wr: &T, sg_list: *const ibv_sge, num_sge: c_int) {
        let count = num_sge.max(0) as usize;
        // SAFETY: `T` is one of the kernel's structs, which have no padding; an SGE is laid out as the kernel's.
        unsafe {
            self.wrs.extend(std::slice::from_raw_parts(std::ptr::from_ref(wr).cast::<u8>(), size_of::<T>()));
            if count > 0 {
                let bytes = std::slice::from_raw_parts(sg_list.cast::<u8>(), count * size_of::<ibv_sge>());
                self.sges.extend(bytes);
            }
        }
        self.wr_count += 1;
        self.sge_count += count as u32;
    }

    /// Sends all by write(), since an ioctl's attributes have a limit. An error tells which request was refused.
    ///
    /// # Safety
    /// `ctx` an open context of the kernel's.
    unsafe fn send(
        &self,
        ctx: *mut ibv_context,
        number: u32,
        handle: u32,
        wqe_size: usize,
    ) -> Result<(), (Errno, usize)> {
        let mut refused = ib_uverbs_post_resp { bad_wr: 0 };
        let size = size_of::<Plain<ib_uverbs_post>>() + self.wrs.len() + self.sges.len();
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(number.to_ne_bytes());
        bytes.extend(((size / 4) as u16).to_ne_bytes());
        bytes.extend(((size_of_val(&refused) / 4) as u16).to_ne_bytes());
        bytes.extend(((&raw mut refused).expose_provenance() as u64).to_ne_bytes());
        for word in [handle, self.wr_count, self.sge_count, wqe_size as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&self.wrs);
        bytes.extend(&self.sges);
        // SAFETY: the request is complete, and the answer's place lives until the call returns.
        let sent = unsafe { issue::write((*ctx).cmd_fd, bytes.as_ptr().cast(), bytes.len()) };
        sent.map_err(|e| (e, (refused.bad_wr.max(1) - 1) as usize))
    }
}

macro_rules! walk {
    ($wr:expr, $bad:expr, $posted:expr, $result:expr) => {{
        code($result.map_err(|(e, mut left)| {
            // The kernel counts from the one after which it stopped.
            let mut at = $wr;
            while left > 0 && !(*at).next.is_null() {
                at = (*at).next;
                left -= 1;
            }
            if !$bad.is_null() {
                *$bad = at;
            }
            e
        }))
    }};
}

/// # Safety
/// `qp` live, the list ends in NULL, `bad` null or a place for a pointer.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut posted = Posted::new();
    // SAFETY: the application gives a live QP and a list that ends in NULL, whose AHs are live.
    unsafe {
        let mut at = wr;
        while let Some(from) = at.as_ref() {
            let mut to = ib_uverbs_send_wr::zeroed();
            to.wr_id = from.wr_id;
            to.num_sge = from.num_sge as u32;
            to.opcode = from.opcode;
            to.send_flags = from.send_flags;
            to.ex = from.imm_data;
            if (*qp).qp_type == IBV_QPT_UD {
                let ud = from.wr.ud;
                let halves = |low: u32, high: u32| {
                    let mut word = [0u8; 8];
                    word[..4].copy_from_slice(&low.to_ne_bytes());
                    word[4..].copy_from_slice(&high.to_ne_bytes());
                    u64::from_ne_bytes(word)
                };
                to.wr[0] = halves((*ud.ah).handle, ud.remote_qpn);
                to.wr[1] = halves(ud.remote_qkey, 0);
            } else {
                let words = (&raw const from.wr).cast::<[u64; 4]>().read_unaligned();
                to.wr = words;
            }
            posted.push(&to, from.sg_list, from.num_sge);
            at = from.next;
        }
        let sent =
            posted.send((*qp).context, number::POST_SEND, (*qp).handle, size_of::<ib_uverbs_send_wr>());
        walk!(wr, bad, posted, sent)
    }
}

/// # Safety
/// As `post_send`.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application gives a live QP and a list that ends in NULL.
    unsafe { receive((*qp).context, (*qp).handle, number::POST_RECV, wr, bad) }
}

/// # Safety
/// As `post_send`.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the application gives a live SRQ and a list that ends in NULL.
    unsafe { receive((*srq).context, (*srq).handle, number::POST_SRQ_RECV, wr, bad) }
}

/// # Safety
/// As `post_send`.
unsafe fn receive(
    ctx: *mut ibv_context,
    handle: u32,
    number: u32,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut posted = Posted::new();
    // SAFETY: the caller vouches for all.
    unsafe {
        let mut at = wr;
        while let Some(from) = at.as_ref() {
            let to = ib_uverbs_recv_wr { wr_id: from.wr_id, num_sge: from.num_sge as u32, reserved: 0 };
            posted.push(&to, from.sg_list, from.num_sge);
            at = from.next;
        }
        let sent = posted.send(ctx, number, handle, size_of::<ib_uverbs_recv_wr>());
        walk!(wr, bad, posted, sent)
    }
}
