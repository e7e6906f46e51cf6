//! Completion counters.
use std::ffi::c_int;
use std::sync::Arc;

use super::memory::null;
use super::{CounterObject, QpObject, context, inherited, object};
use crate::abi::*;
use crate::soft::cq::Taker;
use crate::soft::device::limits;
use crate::soft::engine;
use crate::soft::qp::counters::{CompCounter, Number, Ops};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

pub unsafe extern "C" fn query_comp_cntr_caps(
    _: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    _: usize,
) -> c_int {
    // SAFETY: the library passes room for the struct of its own release, which is ours.
    unsafe {
        *caps = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: limits::MAX_COMP_CNTR,
            supported_qp_attach_ops: Ops::all().bits(),
        };
    }
    0
}

pub unsafe extern "C" fn create_comp_cntr(
    c: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: the library passes a live context of urxe and readable attributes.
    let (context, a) = unsafe { (context(c), *attr) };
    if !context.node.is_ours() {
        return null(Errno::EIO);
    }
    if a.comp_mask != 0 || a.flags != 0 || a.r#type > IBV_COMP_CNTR_TYPE_BYTES {
        explain(format_args!(
            "ibv_create_comp_cntr comp_mask=0x{:x} type={} flags=0x{:x}: expected 0, a type of WRS or BYTES, and 0",
            a.comp_mask, a.r#type, a.flags
        ));
        return null(Errno::EINVAL);
    }
    let ticket = match context.census().comp_cntrs.enter(limits::MAX_COMP_CNTR, "ibv_create_comp_cntr") {
        Ok(ticket) => ticket,
        Err(e) => return null(e),
    };
    let counter = Arc::new(CompCounter::new(a.r#type == IBV_COMP_CNTR_TYPE_BYTES));
    let c = ibv_comp_cntr { context: c, handle: 0 };
    Box::into_raw(Box::new(CounterObject { c, counter, _ticket: ticket })).cast()
}

pub unsafe extern "C" fn destroy_comp_cntr(c: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: the library passes a live counter of urxe, which this call ends on success.
    unsafe {
        let counter = &object::<_, CounterObject>(c).counter;
        if Arc::strong_count(counter) > 1 && !inherited((*c).context) {
            explain(format_args!("ibv_destroy_comp_cntr: it is attached to a QP"));
            return libc::EBUSY;
        }
        drop(Box::from_raw(c.cast::<CounterObject>()));
    }
    0
}

pub unsafe extern "C" fn qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    c: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the library passes a live QP and a live counter of urxe, and readable attributes.
    unsafe {
        if inherited((*qp).context) || inherited((*c).context) {
            return libc::EIO;
        }
        if (*qp).context != (*c).context {
            explain(format_args!(
                "ibv_qp_attach_comp_cntr: the counter belongs to another context than the QP"
            ));
            return libc::EINVAL;
        }
        if (*attr).comp_mask != 0 {
            explain(format_args!("ibv_qp_attach_comp_cntr comp_mask=0x{:x}: expected 0", (*attr).comp_mask));
            return libc::EINVAL;
        }
        let counter = &object::<_, CounterObject>(c).counter;
        let attached = object::<_, QpObject>(qp).qp.attach_counter(counter, (*attr).op_mask);
        attached.err().map_or(0, |e| e.0)
    }
}

/// Reads one number; a thread that waits for it to change drives the device meanwhile.
///
/// # Safety
/// `c` must be a live counter of urxe, and `value` writable.
unsafe fn read(c: *mut ibv_comp_cntr, value: *mut u64, number: Number) -> c_int {
    if value.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the caller vouches for both.
    unsafe {
        if !inherited((*c).context) {
            engine::progress_from_poll(&mut Taker::nobody());
        }
        *value = object::<_, CounterObject>(c).counter.read(number);
    }
    0
}

pub unsafe extern "C" fn read_comp_cntr(c: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the library passes a live counter of urxe, the application room for the number.
    unsafe { read(c, value, Number::Done) }
}

pub unsafe extern "C" fn read_err_comp_cntr(c: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: as above.
    unsafe { read(c, value, Number::Failed) }
}

pub unsafe extern "C" fn set_comp_cntr(c: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: the library passes a live counter of urxe.
    unsafe { object::<_, CounterObject>(c) }.counter.set(Number::Done, value);
    0
}

pub unsafe extern "C" fn set_err_comp_cntr(c: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { object::<_, CounterObject>(c) }.counter.set(Number::Failed, value);
    0
}

pub unsafe extern "C" fn inc_comp_cntr(c: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: as above.
    unsafe { object::<_, CounterObject>(c) }.counter.add(Number::Done, amount);
    0
}

pub unsafe extern "C" fn inc_err_comp_cntr(c: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: as above.
    unsafe { object::<_, CounterObject>(c) }.counter.add(Number::Failed, amount);
    0
}
