//! `ibv_reg_mr_ex` for providers that only have `reg_mr` and `reg_dmabuf_mr`.
use super::context;
use crate::abi::*;
use crate::sys::errno::Errno;
use crate::sys::log;
use std::ptr;

/// Registers host memory (ADDR), part of a library buffer (BUF and ADDR) or a dma-buf (FD, FD_OFFSET and IOVA); what else
/// the mask asks for is EOPNOTSUPP.
///
/// # Safety
/// `pd` must be live and `attr` readable; with BUF, `attr.buf` must come from `ibv_alloc_buf`.
pub unsafe extern "C" fn by_attributes(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    let (with_addr, with_iova) = (IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA);
    let with_buf = IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR;
    let with_fd = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_IOVA;
    let known = with_buf | with_fd;
    // SAFETY: the caller vouches for all pointers; the ops are those of the PD's own context.
    unsafe {
        let a = *attr;
        let iova = if a.comp_mask & IBV_REG_MR_MASK_IOVA != 0 { a.iova } else { a.addr.addr() as u64 };
        let ops = context::ops((*pd).context);
        match a.comp_mask {
            mask if mask & !known != 0 => {
                refuse(Errno::EOPNOTSUPP, mask, "a mask of IOVA, ADDR, FD, FD_OFFSET, BUF")
            }
            mask if mask == with_fd => ops
                .reg_dmabuf_mr
                .map_or(ptr::null_mut(), |f| f(pd, a.fd_offset, a.length, a.iova, a.fd, a.access)),
            mask if mask & !IBV_REG_MR_MASK_IOVA == with_buf && !holds(a.buf, pd, &a) => {
                refuse(Errno::EINVAL, mask, "a range within a buffer of the same PD")
            }
            mask if mask == with_addr || mask == with_iova || mask & !IBV_REG_MR_MASK_IOVA == with_buf => {
                ops.reg_mr.map_or(ptr::null_mut(), |f| f(pd, a.addr, a.length, iova, a.access))
            }
            mask => refuse(Errno::EINVAL, mask, "ADDR, or BUF with ADDR, or FD with FD_OFFSET and IOVA"),
        }
    }
}

/// # Safety
/// `buf` must be null or come from `ibv_alloc_buf`.
unsafe fn holds(buf: *const ibv_buf, pd: *mut ibv_pd, a: &ibv_mr_init_attr) -> bool {
    // SAFETY: the caller vouches for the buffer.
    let Some(buf) = (unsafe { buf.as_ref() }) else { return false };
    let offset = a.addr.addr().wrapping_sub(buf.addr.addr());
    buf.pd == pd && offset <= buf.size && a.length <= buf.size - offset
}

fn refuse(e: Errno, mask: u64, expected: &str) -> *mut ibv_mr {
    log::explain(format_args!("ibv_reg_mr_ex comp_mask=0x{mask:x}: expected {expected}"));
    e.store();
    ptr::null_mut()
}
