//! Domains, regions, windows and address handles: the kernel's commands around objects of ours.
use super::{AhObject, Answered, forget, fresh, object, place, wqe};
use crate::abi::*;
use crate::kernel::command::write::Plain;
use crate::kernel::command::{code, device, domains, mr};
use crate::sys::errno::Errno;
use std::ffi::{c_int, c_void};

/// Makes an object by a command that fills it.
///
/// # Safety
/// Zero must be a value of `T`, and `make` must fill what it is given or say an errno.
unsafe fn made<T>(make: impl FnOnce(*mut T) -> c_int) -> *mut T {
    place(|| {
        let new = fresh::<T>();
        match make(new) {
            0 => Ok(new),
            rc => {
                // SAFETY: made above, and nobody else has it.
                unsafe { forget(new) };
                Err(Errno(rc))
            }
        }
    })
}

/// Frees an object when the command that destroyed it says so.
///
/// # Safety
/// `it` must come from `made` as a `T`.
unsafe fn gone<T>(it: *mut T, rc: c_int) -> c_int {
    if rc == 0 {
        // SAFETY: the caller vouches for it.
        drop(unsafe { Box::from_raw(it) });
    }
    rc
}

pub unsafe extern "C" fn alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd {
    let mut cmd = Plain::of(ib_uverbs_alloc_pd::zeroed());
    let mut resp = ib_uverbs_alloc_pd_resp::zeroed();
    let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
    // SAFETY: the library passes a live context.
    unsafe { made(|pd| domains::alloc_pd(ctx, pd, &mut cmd, size, &mut resp, room)) }
}

pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the library passes a live PD of ours.
    unsafe { gone(pd, domains::dealloc_pd(pd)) }
}

pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    let mut cmd = Plain::of(ib_uverbs_reg_mr::zeroed());
    let mut resp = ib_uverbs_reg_mr_resp::zeroed();
    let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
    // SAFETY: the library passes a live PD.
    unsafe {
        made(|new: *mut verbs_mr| {
            mr::reg_mr(pd, addr, length, hca_va, access, new, &mut cmd, size, &mut resp, room)
        })
        .cast()
    }
}

pub unsafe extern "C" fn rereg_mr(
    it: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut cmd = Plain::of(ib_uverbs_rereg_mr::zeroed());
    let mut resp = ib_uverbs_rereg_mr_resp::zeroed();
    let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
    let (flags, va) = (flags as u32, addr.addr() as u64);
    // SAFETY: the library passes a live region and, where it changes, a live PD.
    unsafe { mr::rereg_mr(it, flags, addr, length, va, access, pd, &mut cmd, size, &mut resp, room) }
}

pub unsafe extern "C" fn dereg_mr(it: *mut verbs_mr) -> c_int {
    // SAFETY: the library passes a live region of ours.
    unsafe { gone(it, mr::dereg_mr(it)) }
}

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    let mut cmd = Plain::of(ib_uverbs_alloc_mw::zeroed());
    let mut resp = ib_uverbs_alloc_mw_resp::zeroed();
    let (size, room) = (size_of_val(&cmd), size_of_val(&resp));
    // SAFETY: the application passes a live PD.
    unsafe { made(|mw| domains::alloc_mw(pd, kind, mw, &mut cmd, size, &mut resp, room)) }
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the application passes a live window of ours.
    unsafe { gone(mw, domains::dealloc_mw(mw)) }
}

/// Binds a window of type 1 by a request in the send queue; the window has its new key when that is posted.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    let mut request = ibv_send_wr::zeroed();
    let mut bad = std::ptr::null_mut();
    // SAFETY: the application passes a live QP and window, and what to bind.
    unsafe {
        let b = &*bind;
        if b.bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0 {
            return code(Err(Errno::EINVAL));
        }
        let old = (*mw).rkey;
        let rkey = old & !0xff | old.wrapping_add(1) & 0xff;
        request.opcode = IBV_WR_BIND_MW;
        request.wr_id = b.wr_id;
        request.send_flags = b.send_flags;
        request.tail.bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info: b.bind_info };
        super::post::post_send(qp, &mut request, &mut bad)
    }
}

pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    /// `struct rxe_create_ah_resp`.
    #[derive(Clone, Copy, Default)]
    #[repr(C)]
    struct Tail {
        number: u32,
        reserved: u32,
    }
    // SAFETY: the library passes a live PD and the application's attributes.
    unsafe {
        made(|new: *mut AhObject| {
            let a = &*attr;
            let mut resp = Answered::<_, Tail>::of(ib_uverbs_create_ah_resp::zeroed());
            let room = size_of_val(&resp);
            let rc = domains::create_ah(pd, new.cast(), attr, (&raw mut resp).cast(), room);
            if rc == 0 {
                (*new).number = resp.tail.number;
                // A kernel that keeps the handle knows the address by its number.
                if resp.tail.number == 0 {
                    let own = device::gid_entry((*pd).context, a.port_num.into(), a.grh.sgid_index.into());
                    (*new).av = wqe::av(a, &own.map_or(ibv_gid::zeroed(), |row| row.gid));
                }
            }
            rc
        })
        .cast()
    }
}

pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the library passes a live AH of ours.
    unsafe {
        let whole = std::ptr::from_ref(object::<_, AhObject>(ah)).cast_mut();
        gone(whole, domains::destroy_ah(ah))
    }
}

pub unsafe extern "C" fn query_device_ex(
    ctx: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let mut resp = ib_uverbs_ex_query_device_resp::zeroed();
    let mut size = size_of_val(&resp);
    // SAFETY: the library passes a live context and room for the attributes, of which there are at least the plain ones.
    unsafe {
        let rc = device::query_device_any(ctx, input, attr, attr_size, &mut resp, &mut size);
        if rc == 0 {
            let raw = resp.base.fw_ver;
            let part = |shift: u32| raw >> shift & 0xffff;
            let text = format!("{}.{}.{}", part(32), part(16), part(0));
            crate::provider::object::write_text(&mut (*attr).orig_attr.fw_ver, &text);
        }
        rc
    }
}

pub unsafe extern "C" fn query_port(ctx: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    let mut cmd = Plain::of(ib_uverbs_query_port::zeroed());
    let size = size_of_val(&cmd);
    // SAFETY: the library passes a live context and room for the attributes.
    unsafe { device::query_port(ctx, port, attr, &mut cmd, size) }
}
