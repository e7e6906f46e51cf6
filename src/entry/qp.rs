//! Queue pairs: creation, states, multicast, enhanced connection establishment.
use crate::abi::*;
use crate::core::convention::{code, given, pointer, refuse};
use crate::core::gid;
use crate::provider::context;
use crate::sys::errno::Errno;
use std::ffi::c_int;
use std::ptr;

export!(ibv_create_qp => "ibv_create_qp" @@ "IBVERBS_1.1");
export!(ibv_query_qp => "ibv_query_qp" @@ "IBVERBS_1.1");
export!(ibv_modify_qp => "ibv_modify_qp" @@ "IBVERBS_1.1");
export!(ibv_destroy_qp => "ibv_destroy_qp" @@ "IBVERBS_1.1");
export!(ibv_qp_to_qp_ex => "ibv_qp_to_qp_ex" @@ "IBVERBS_1.6");
export!(ibv_attach_mcast => "ibv_attach_mcast" @@ "IBVERBS_1.1");
export!(ibv_detach_mcast => "ibv_detach_mcast" @@ "IBVERBS_1.1");
export!(ibv_set_ece => "ibv_set_ece" @@ "IBVERBS_1.10");
export!(ibv_query_ece => "ibv_query_ece" @@ "IBVERBS_1.10");
export!(ibv_query_qp_data_in_order => "ibv_query_qp_data_in_order" @@ "IBVERBS_1.14");

/// A QP in RESET; `attr.cap` tells the capacities that it got. The provider fills all fields.
pub(super) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        given(pd, "ibv_create_qp", "pd")?;
        given(attr, "ibv_create_qp", "qp_init_attr")?;
        // SAFETY: a live PD and the application's attributes.
        unsafe { Ok(context::ops((*pd).context).create_qp.ok_or(Errno::EOPNOTSUPP)?(pd, attr)) }
    })
}

/// Current attributes, those of `mask` and perhaps more, and what the QP was created with.
pub(super) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        given(qp, "ibv_query_qp", "qp")?;
        given(attr, "ibv_query_qp", "attr")?;
        given(init, "ibv_query_qp", "init_attr")?;
        // SAFETY: a live QP and room for both answers.
        unsafe {
            let rc = context::ops((*qp).context).query_qp.ok_or(Errno::EOPNOTSUPP)?(qp, attr, mask, init);
            if rc == 0 && mask as u32 & IBV_QP_STATE != 0 {
                (*qp).state = (*attr).qp_state;
            }
            Ok(rc)
        }
    })
}

/// Changes all the attributes of `mask`, or none.
pub(super) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    code(|| {
        given(qp, "ibv_modify_qp", "qp")?;
        given(attr, "ibv_modify_qp", "attr")?;
        // SAFETY: a live QP and the application's attributes.
        unsafe {
            let rc = context::ops((*qp).context).modify_qp.ok_or(Errno::EOPNOTSUPP)?(qp, attr, mask);
            if rc == 0 && mask as u32 & IBV_QP_STATE != 0 {
                (*qp).state = (*attr).qp_state;
            }
            Ok(rc)
        }
    })
}

/// EBUSY while attached to a multicast group; waits until its events are acknowledged.
pub(super) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code(|| {
        given(qp, "ibv_destroy_qp", "qp")?;
        // SAFETY: a live QP.
        unsafe { Ok(context::ops((*qp).context).destroy_qp.ok_or(Errno::EOPNOTSUPP)?(qp)) }
    })
}

/// The QP's `ibv_wr_*` functions; NULL unless it was created with `send_ops_flags`.
pub(super) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    if qp.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: every QP is the head of a verbs_qp of the layout that its context's provider was compiled for.
    let has_them = unsafe {
        let layout = (*context::private((*qp).context)).layout;
        qp.byte_add(layout.qp_comp_mask).cast::<u32>().read() & VERBS_QP_EX != 0
    };
    if has_them { qp.cast() } else { ptr::null_mut() }
}

/// Joins a UD QP to a multicast group; `lid` is for InfiniBand only.
pub(super) unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const ibv_gid, lid: u16) -> c_int {
    code(|| {
        // SAFETY: a live QP and a readable GID, checked for NULL.
        unsafe {
            check_group(qp, group, "ibv_attach_mcast")?;
            Ok(context::ops((*qp).context).attach_mcast.ok_or(Errno::EOPNOTSUPP)?(qp, group, lid))
        }
    })
}

/// Leaves a multicast group.
pub(super) unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const ibv_gid, lid: u16) -> c_int {
    code(|| {
        // SAFETY: a live QP and a readable GID, checked for NULL.
        unsafe {
            check_group(qp, group, "ibv_detach_mcast")?;
            Ok(context::ops((*qp).context).detach_mcast.ok_or(Errno::EOPNOTSUPP)?(qp, group, lid))
        }
    })
}

/// Options agreed with the peer; `vendor_id` 0 is EOPNOTSUPP without asking the provider.
pub(super) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    code(|| {
        given(qp, "ibv_set_ece", "qp")?;
        given(ece, "ibv_set_ece", "ece")?;
        // SAFETY: a live QP and readable options.
        unsafe {
            if (*ece).vendor_id == 0 {
                return Err(refuse!(
                    EOPNOTSUPP,
                    "ibv_set_ece qp={qp:p}: vendor_id is 0, so there is nothing to set"
                ));
            }
            Ok(context::ops((*qp).context).set_ece.ok_or(Errno::EOPNOTSUPP)?(qp, ece))
        }
    })
}

/// Current options.
pub(super) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    code(|| {
        given(qp, "ibv_query_ece", "qp")?;
        given(ece, "ibv_query_ece", "ece")?;
        // SAFETY: a live QP and room for the options.
        unsafe {
            let rc = context::ops((*qp).context).query_ece.ok_or(Errno::EOPNOTSUPP)?(qp, ece);
            if rc != 0 {
                *ece = ibv_ece::zeroed();
            }
            Ok(rc)
        }
    })
}

/// Whether bytes of a message become visible in order: 0 or 1, or capability bits if `flags` asks for them.
pub(super) unsafe extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: u32, flags: u32) -> c_int {
    let known = IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS | IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY;
    // What the device promises reaches a reader in order only where the processor keeps loads in order.
    let ordered_cpu = cfg!(target_arch = "x86_64") || flags & IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY != 0;
    if qp.is_null() || flags & !known != 0 || !ordered_cpu {
        return 0;
    }
    // SAFETY: a live QP.
    let caps = unsafe {
        context::ops((*qp).context)
            .query_qp_data_in_order
            .map_or(0, |f| f(qp, op, flags | IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS))
    };
    if flags & IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS != 0 {
        return caps;
    }
    c_int::from(caps as u32 & IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG != 0)
}

/// # Safety
/// `qp` must be live or NULL, `group` readable or NULL.
unsafe fn check_group(qp: *mut ibv_qp, group: *const ibv_gid, call: &str) -> Result<(), Errno> {
    given(qp, call, "qp")?;
    given(group.cast_mut(), call, "gid")?;
    // SAFETY: both checked above.
    let (qp_type, qpn, group) = unsafe { ((*qp).qp_type, (*qp).qp_num, gid::value(&*group)) };
    if qp_type != IBV_QPT_UD && qp_type != IBV_QPT_RAW_PACKET {
        return Err(refuse!(EINVAL, "{call} qp=0x{qpn:06x}: expected a UD QP, not type {qp_type}"));
    }
    if !group.is_multicast() {
        return Err(refuse!(EINVAL, "{call} qp=0x{qpn:06x} gid={group:?}: expected a multicast address"));
    }
    Ok(())
}
