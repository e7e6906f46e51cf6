//! Send work requests of C programs, checked and copied into the send queue.
use super::{AhObject, object, window};
use crate::abi::*;
use crate::soft::qp::Qp;
use crate::soft::qp::requester::Requester;
use crate::soft::types::{Key, QpType, Qpn, SendFlags, Sge, WrOpcode};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

/// A send request as it comes from `ibv_post_send`.
pub struct SendSource<'a>(&'a ibv_send_wr);

impl<'a> SendSource<'a> {
    /// # Safety
    /// The request's list, AH and union are valid for its opcode and the QP's type.
    pub unsafe fn from_wr(wr: &'a ibv_send_wr) -> Self {
        Self(wr)
    }
}

/// Opcodes that a type of QP can send (`ibv_post_send(3)`).
pub fn can_send(kind: QpType, opcode: WrOpcode) -> bool {
    use WrOpcode::*;
    match opcode {
        Send | SendImm => kind != QpType::XrcRecv,
        Write | WriteImm | SendInv | LocalInv | BindMw => {
            matches!(kind, QpType::Rc | QpType::Uc | QpType::XrcSend)
        }
        Read | CmpSwap | FetchAdd => matches!(kind, QpType::Rc | QpType::XrcSend),
        // Of XRC, ibv_wr_post(3) says nothing.
        Flush | AtomicWrite => kind == QpType::Rc,
    }
}

/// Copies a request to the send queue as a draft, or says why not: EINVAL for a bad request or state, ENOMEM for a full
/// queue.
#[inline]
pub fn write_draft(qp: &Qp, sq: &mut Requester, source: &SendSource<'_>) -> Result<(), Errno> {
    let wr = source.0;
    let refuse = |e: Errno, why: std::fmt::Arguments<'_>| {
        explain(format_args!("ibv_post_send qp={:?} wr_id={}: {why}", qp.num, wr.wr_id));
        e
    };
    sq.accepts(qp).map_err(|e| refuse(e, format_args!("the QP is in {}, expected RTS", qp.state())))?;
    // What a FLUSH asks for has no place in an ibv_send_wr.
    let allowed = |op: &WrOpcode| can_send(qp.kind, *op) && *op != WrOpcode::Flush;
    let opcode = WrOpcode::from_raw(wr.opcode).filter(allowed).ok_or_else(|| {
        refuse(Errno::EINVAL, format_args!("opcode={} is not for {} QPs", wr.opcode, qp.kind))
    })?;
    if opcode.is_local() {
        // SAFETY: `SendSource` vouches for the union.
        return unsafe { write_local(qp, sq, wr, opcode) };
    }
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    if flags.contains(SendFlags::INLINE) && !opcode.may_be_inline() {
        return Err(refuse(
            Errno::EINVAL,
            format_args!("IBV_SEND_INLINE is for SEND and RDMA WRITE, not {opcode}"),
        ));
    }
    if wr.num_sge < 0 || wr.num_sge as u32 > sq.queue.max_sge() && !flags.contains(SendFlags::INLINE) {
        return Err(refuse(
            Errno::EINVAL,
            format_args!("num_sge={}: expected at most max_send_sge={}", wr.num_sge, sq.queue.max_sge()),
        ));
    }
    let at = sq.draft(qp).map_err(|e| {
        let depth = sq.queue.depth();
        refuse(
            e,
            format_args!("the send queue is full: {depth} requests are not complete (max_send_wr={depth})"),
        )
    })?;
    // SAFETY: `SendSource` vouches for the list.
    let filled = unsafe { copy_payload(sq, at, wr.sg_list.cast(), wr.num_sge as usize, flags) };
    if let Err(length) = filled {
        sq.queue.discard_draft();
        let max = sq.queue.max_inline();
        return Err(refuse(
            Errno::EINVAL,
            format_args!("{length} inline bytes: expected at most max_inline_data={max}"),
        ));
    }
    let wqe = sq.queue.wqe_mut(at);
    wqe.wr_id = wr.wr_id;
    wqe.opcode = opcode;
    wqe.flags = flags;
    wqe.imm = wr.imm_data;
    // SAFETY: the opcode and the type of QP say which part of the unions is valid; all are plain numbers.
    unsafe {
        match opcode {
            WrOpcode::CmpSwap | WrOpcode::FetchAdd => {
                let a = wr.wr.atomic;
                (wqe.remote_addr, wqe.rkey) = (a.remote_addr, Key(a.rkey));
                (wqe.compare_add, wqe.swap) = (a.compare_add, a.swap);
            }
            _ if qp.kind == QpType::Ud => {
                let ud = wr.wr.ud;
                if ud.ah.is_null() {
                    sq.queue.discard_draft();
                    return Err(refuse(Errno::EINVAL, format_args!("wr.ud.ah is NULL")));
                }
                wqe.ah = Some(object::<_, AhObject>(ud.ah).ah.clone());
                (wqe.remote_qpn, wqe.qkey) = (Qpn(ud.remote_qpn & 0xff_ffff), ud.remote_qkey);
            }
            _ => (wqe.remote_addr, wqe.rkey) = (wr.wr.rdma.remote_addr, Key(wr.wr.rdma.rkey)),
        }
        if qp.kind == QpType::XrcSend {
            wqe.srqn = wr.qp_type.xrc.remote_srqn & 0xff_ffff;
        }
    }
    Ok(())
}

/// A request that changes keys and has no payload.
///
/// # Safety
/// As for `SendSource::from_wr`.
#[cold]
unsafe fn write_local(qp: &Qp, sq: &mut Requester, wr: &ibv_send_wr, opcode: WrOpcode) -> Result<(), Errno> {
    let mut bind = None;
    if opcode == WrOpcode::BindMw {
        // SAFETY: the opcode says which part of the union is valid; the application's window and region are live.
        unsafe {
            let b = wr.tail.bind_mw;
            window::check_bind(b.mw, &b.bind_info, IBV_MW_TYPE_2)?;
            bind = Some((b.mw, window::bind_of(b.mw, b.rkey, &b.bind_info)));
        }
    }
    let at = sq.draft(qp).inspect_err(|_| {
        let depth = sq.queue.depth();
        explain(format_args!(
            "ibv_post_send wr_id={}: the send queue is full (max_send_wr={depth})",
            wr.wr_id
        ));
    })?;
    let wqe = sq.queue.wqe_mut(at);
    wqe.wr_id = wr.wr_id;
    wqe.opcode = opcode;
    wqe.flags = SendFlags::from_bits_truncate(wr.send_flags) - SendFlags::INLINE;
    wqe.imm = wr.imm_data;
    if let Some((mw, bind)) = bind {
        wqe.set_bind(&bind);
        // SAFETY: a live window; programs read the rkey there.
        unsafe { (*mw).rkey = bind.window.0 & !0xff | bind.rkey.0 & 0xff };
    }
    Ok(())
}

/// Copies the SGEs of a request, or with INLINE the bytes that they name; `Err` is the length of too many inline bytes.
///
/// # Safety
/// `list` must have `n` entries; with INLINE each names readable memory.
pub unsafe fn copy_payload(
    sq: &mut Requester,
    at: u64,
    list: *const Sge,
    n: usize,
    flags: SendFlags,
) -> Result<(), u64> {
    let mut length = 0u64;
    if flags.contains(SendFlags::INLINE) {
        let room = sq.queue.max_inline() as u64;
        let places = sq.queue.inline_places(at).as_mut_ptr();
        for i in 0..n {
            // SAFETY: the caller vouches for the list.
            let sge = unsafe { *list.add(i) };
            let end = length + sge.length as u64;
            if end <= room {
                // SAFETY: the bytes fit behind those already copied; the caller vouches for the source.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        sge.addr as *const u8,
                        places.add(length as usize),
                        sge.length as usize,
                    );
                }
            }
            length = end;
        }
        if length > room {
            return Err(length);
        }
    } else {
        let places = sq.queue.sge_places(at);
        for (i, place) in places.iter_mut().enumerate().take(n) {
            // SAFETY: the caller vouches for the list.
            *place = unsafe { *list.add(i) };
            length += place.length as u64;
        }
        sq.queue.wqe_mut(at).num_sge = n as u32;
    }
    // A sum beyond 2^32 is as wrong as one beyond 2^31, and completes as such.
    sq.queue.wqe_mut(at).length = length.min(u32::MAX as u64) as u32;
    Ok(())
}
