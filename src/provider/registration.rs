//! `ibv_reg_mr_ex` for providers that only have `reg_mr` and `reg_dmabuf_mr`.
use super::context;
use crate::abi::*;
use crate::sys::errno::Errno;
use crate::sys::log;
use std::ptr;

/// Registers host memory (ADDR), a dma-buf (FD) or a library buffer (BUF); what else the mask asks for is EOPNOTSUPP.
///
/// # Safety
/// `pd` must be live and `attr` readable.
pub unsafe extern "C" fn by_attributes(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    let known = IBV_REG_MR_MASK_IOVA
        | IBV_REG_MR_MASK_ADDR
        | IBV_REG_MR_MASK_FD
        | IBV_REG_MR_MASK_FD_OFFSET
        | IBV_REG_MR_MASK_BUF;
    // SAFETY: the caller vouches for both pointers; the ops are those of the PD's own context.
    unsafe {
        let a = *attr;
        if a.comp_mask & !known != 0 {
            return refuse(Errno::EOPNOTSUPP, a.comp_mask, "a mask of IOVA, ADDR, FD, FD_OFFSET, BUF");
        }
        let has = |bit| a.comp_mask & bit != 0;
        let ops = context::ops((*pd).context);
        let addr = if has(IBV_REG_MR_MASK_BUF) && !a.buf.is_null() { (*a.buf).addr } else { a.addr };
        match (has(IBV_REG_MR_MASK_ADDR), has(IBV_REG_MR_MASK_FD), has(IBV_REG_MR_MASK_BUF)) {
            (true, false, false) | (false, false, true) if !has(IBV_REG_MR_MASK_FD_OFFSET) => {
                let iova = if has(IBV_REG_MR_MASK_IOVA) { a.iova } else { addr.expose_provenance() as u64 };
                ops.reg_mr.map_or(ptr::null_mut(), |f| f(pd, addr, a.length, iova, a.access))
            }
            (false, true, false) if has(IBV_REG_MR_MASK_FD_OFFSET) && has(IBV_REG_MR_MASK_IOVA) => ops
                .reg_dmabuf_mr
                .map_or(ptr::null_mut(), |f| f(pd, a.fd_offset, a.length, a.iova, a.fd, a.access)),
            _ => refuse(Errno::EINVAL, a.comp_mask, "ADDR, or BUF, or FD with FD_OFFSET and IOVA"),
        }
    }
}

fn refuse(e: Errno, mask: u64, expected: &str) -> *mut ibv_mr {
    log::explain(format_args!("ibv_reg_mr_ex comp_mask=0x{mask:x}: expected {expected}"));
    e.store();
    ptr::null_mut()
}
