//! What `anyverbs.h` offers on urxe.
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Context, QpObject, context, inherited, object};
use crate::abi::{anyverbs_fault_counts, anyverbs_path, ibv_context, ibv_qp};
use crate::provider::Extension;
use crate::soft::link::Path;
use crate::soft::link::faults::chance::Counts;
use crate::soft::link::faults::{self, Spec};
use crate::soft::qp::Qp;
use crate::soft::stats::Values;
use crate::sys::errno::Errno;
use crate::sys::log::explain;

/// For every context of urxe.
pub static EXTENSION: Extension =
    Extension { qp_path, set_faults, set_qp_faults, read_faults, read_qp_faults, port_counters, qp_counters };

/// A QP, unless it belongs to the process that this one was forked from.
///
/// # Safety
/// `c` must be a live QP of urxe.
unsafe fn qp<'a>(c: *mut ibv_qp) -> Result<&'a Qp, Errno> {
    // SAFETY: the caller vouches for it.
    unsafe { if inherited((*c).context) { Err(Errno::EIO) } else { Ok(&object::<_, QpObject>(c).qp) } }
}

/// A context, in the same way.
///
/// # Safety
/// `c` must be a live context of urxe.
unsafe fn own<'a>(c: *mut ibv_context) -> Result<&'a Context, Errno> {
    // SAFETY: the caller vouches for it.
    let context = unsafe { context(c) };
    if context.node.is_ours() { Ok(context) } else { Err(Errno::EIO) }
}

unsafe fn qp_path(c: *mut ibv_qp) -> Result<anyverbs_path, Errno> {
    // SAFETY: the library passes a live QP of urxe.
    let qp = unsafe { qp(c) }?;
    Ok(match qp.sq.lock().path {
        Path::None => anyverbs_path::None,
        Path::Local(_) => anyverbs_path::Local,
        // Where nobody has the QPN yet, another process will.
        Path::Shm(..) | Path::Absent(_) => anyverbs_path::Shm,
        Path::Udp(_) => anyverbs_path::Udp,
    })
}

fn spec(call: &str, text: &CStr) -> Result<Spec, Errno> {
    faults::parse(call, OsStr::from_bytes(text.to_bytes()))
}

unsafe fn set_faults(c: *mut ibv_context, text: &CStr) -> Result<(), Errno> {
    // SAFETY: the library passes a live context of urxe.
    let context = unsafe { own(c) }?;
    context.faults.set(&spec("anyverbs_set_faults", text)?, context.node.all_qps().iter());
    Ok(())
}

unsafe fn set_qp_faults(c: *mut ibv_qp, text: &CStr) -> Result<(), Errno> {
    // SAFETY: the library passes a live QP of urxe.
    let qp = unsafe { qp(c) }?;
    if qp.faults.get().is_none() {
        explain(format_args!(
            "anyverbs_set_qp_faults qp={:?}: it is another process's, which is where faults are set",
            qp.num
        ));
        return Err(Errno::EOPNOTSUPP);
    }
    faults::set(qp, &spec("anyverbs_set_qp_faults", text)?);
    Ok(())
}

unsafe fn read_faults(c: *mut ibv_context) -> Result<anyverbs_fault_counts, Errno> {
    // SAFETY: the library passes a live context of urxe.
    Ok(told(&unsafe { own(c) }?.faults.counts))
}

unsafe fn read_qp_faults(c: *mut ibv_qp) -> Result<anyverbs_fault_counts, Errno> {
    // SAFETY: the library passes a live QP of urxe.
    let of = unsafe { qp(c) }?.faults.get();
    Ok(of.map_or(anyverbs_fault_counts::default(), |of| told(of.counts())))
}

fn told(counts: &Counts) -> anyverbs_fault_counts {
    let now = |n: &AtomicU64| n.load(Ordering::Relaxed);
    anyverbs_fault_counts {
        lost: now(&counts.lost),
        duplicated: now(&counts.duplicated),
        reordered: now(&counts.reordered),
        corrupted: now(&counts.corrupted),
        delayed: now(&counts.delayed),
        rnr: now(&counts.rnr),
        killed: now(&counts.killed),
    }
}

unsafe fn port_counters(c: *mut ibv_context, port: u32) -> Result<Values, Errno> {
    if port != 1 {
        explain(format_args!("anyverbs_query_port_counters port_num={port}: expected 1, the only port"));
        return Err(Errno::EINVAL);
    }
    // SAFETY: the library passes a live context of urxe.
    let context = unsafe { own(c) }?;
    context.node.all_qps().iter().for_each(|qp| qp.absorb());
    Ok(context.node.stats.port(context.device.index))
}

unsafe fn qp_counters(c: *mut ibv_qp) -> Result<Values, Errno> {
    // SAFETY: the library passes a live QP of urxe.
    let qp = unsafe { qp(c) }?;
    qp.absorb();
    Ok(qp.record.values())
}
