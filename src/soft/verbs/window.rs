//! Memory windows: the C objects, and binds of both kinds.
use std::ffi::c_int;
use std::fmt::Display;

use super::memory::null;
use super::{MwObject, PdObject, QpObject, context, inherited, object};
use crate::abi::*;
use crate::soft::link;
use crate::soft::mem::{Bind, MwType};
use crate::soft::qp::Qp;
use crate::soft::types::{Access, Key, SendFlags, WrOpcode};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

pub unsafe extern "C" fn alloc_mw(c: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    // SAFETY: the application passes a live PD of urxe.
    unsafe {
        if inherited((*c).context) {
            return null(Errno::EIO);
        }
        let pd: &PdObject = object(c);
        let mw_type = match kind {
            IBV_MW_TYPE_1 => MwType::One,
            IBV_MW_TYPE_2 => MwType::Two,
            _ => {
                explain(format_args!("ibv_alloc_mw type={kind}: expected IBV_MW_TYPE_1 or IBV_MW_TYPE_2"));
                return null(Errno::EINVAL);
            }
        };
        match context((*c).context).node.mem.alloc_window(&pd.pd, mw_type) {
            Ok(key) => {
                let c =
                    ibv_mw { context: (*c).context, pd: c, rkey: key.0, handle: key.0 >> 8, r#type: kind };
                Box::into_raw(Box::new(MwObject { c })).cast()
            }
            Err(e) => null(e),
        }
    }
}

pub unsafe extern "C" fn dealloc_mw(c: *mut ibv_mw) -> c_int {
    // SAFETY: the application passes a live window of urxe, which this call ends on success.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        let node = context((*c).context).node;
        match node.mem.dealloc_window(key_of(c), |key| node.wires.key_is_idle(key)) {
            Ok(()) => {
                drop(Box::from_raw(c.cast::<MwObject>()));
                0
            }
            Err(e) => e.0,
        }
    }
}

/// Binds a window of type 1; its new rkey is known at once, and good as soon as the request is done.
pub unsafe extern "C" fn bind_mw(c: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the application passes a live QP and window of urxe, and what to bind.
    unsafe {
        let (qp, bind): (&Qp, &ibv_mw_bind) = (&object::<_, QpObject>(c).qp, &*bind);
        if !qp.node.is_ours() {
            return Errno::EIO.0;
        }
        let window = (*mw).rkey;
        let rkey = window & !0xff | window.wrapping_add(1) & 0xff;
        let posted = check_bind(mw, &bind.bind_info, IBV_MW_TYPE_1).and_then(|()| {
            let mut sq = qp.sq.lock();
            let refuse = |why: &dyn Display| {
                explain(format_args!("ibv_bind_mw qp={:?} wr_id={}: {why}", qp.num, bind.wr_id))
            };
            sq.accepts(qp)
                .inspect_err(|_| refuse(&format_args!("the QP is in {}, expected RTS", qp.state())))?;
            let depth = sq.queue.depth();
            let at = sq
                .draft(qp)
                .inspect_err(|_| refuse(&format_args!("the send queue is full (max_send_wr={depth})")))?;
            let wqe = sq.queue.wqe_mut(at);
            wqe.wr_id = bind.wr_id;
            wqe.opcode = WrOpcode::BindMw;
            wqe.flags = SendFlags::from_bits_truncate(bind.send_flags) - SendFlags::INLINE;
            wqe.set_bind(&bind_of(mw, rkey, &bind.bind_info));
            sq.publish(qp);
            link::pump(qp, &mut sq);
            Ok(())
        });
        match posted {
            Ok(()) => {
                (*mw).rkey = rkey;
                qp.node.settle();
                0
            }
            Err(e) => {
                e.store();
                e.0
            }
        }
    }
}

/// What a bind may not be posted with: EINVAL for a window of the other type, no region, or one of another PD.
///
/// # Safety
/// Window and region are live or NULL.
pub unsafe fn check_bind(mw: *const ibv_mw, info: &ibv_mw_bind_info, kind: u32) -> Result<(), Errno> {
    // SAFETY: the caller vouches for both.
    let (mw, mr) = unsafe { (mw.as_ref(), info.mr.as_ref()) };
    let wrong = match (mw, mr) {
        (None, _) => "a window",
        (Some(mw), _) if mw.r#type != kind => "type 1 with ibv_bind_mw, type 2 with IBV_WR_BIND_MW",
        (_, None) if info.length != 0 || info.addr != 0 => "a region",
        (Some(mw), Some(mr)) if mw.pd != mr.pd => "window and region of one PD",
        _ => return Ok(()),
    };
    explain(format_args!("bind of {} bytes at {:#x} to a window: expected {wrong}", info.length, info.addr));
    Err(Errno::EINVAL)
}

/// A bind as the send queue keeps it.
///
/// # Safety
/// As for `check_bind`, which has succeeded.
pub unsafe fn bind_of(mw: *const ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Bind {
    // SAFETY: the caller vouches for both.
    unsafe {
        Bind {
            window: key_of(mw),
            rkey: Key(rkey),
            region: Key(info.mr.as_ref().map_or(0, |mr| mr.lkey)),
            addr: info.addr,
            length: info.length,
            access: Access::from_bits_retain(info.mw_access_flags),
        }
    }
}

/// A key with the window's index; its variant does not matter.
///
/// # Safety
/// `mw` must be live.
unsafe fn key_of(mw: *const ibv_mw) -> Key {
    // SAFETY: the caller vouches for it.
    Key(unsafe { (*mw).handle } << 8)
}
