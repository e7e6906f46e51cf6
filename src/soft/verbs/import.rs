//! Import: a second context over another's `cmd_fd`, and PDs, MRs and device memory by their handles.
//!
//! `cmd_fd` is a unix socket that nobody ever uses, bound to an abstract name that says whose it is and of which device;
//! a duplicate tells the same. Within a process handles mean the same in all contexts. In another process the device
//! opens, and device memory can be imported, whose memory file its process hands over. PDs and MRs cannot: a region is
//! memory of the process that registered it, where no other one's QPs reach, and its key means something else elsewhere.
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use super::memory::null;
use super::{DmObject, MrObject, PdObject, context, memory};
use crate::abi::*;
use crate::soft::mem::Dm;
use crate::soft::node::Node;
use crate::soft::types::Key;
use crate::sys::errno::Errno;
use crate::sys::lock::Lock;
use crate::sys::log::explain;
use crate::sys::{random, seqpacket};

const PREFIX: &str = "anyverbs/context/";

/// A descriptor that names the process and the device. Errors are those of socket(2) and bind(2).
pub fn command_fd(node: &Node, device: u32) -> Result<OwnedFd, Errno> {
    let name = format!("{PREFIX}{device}/{:016x}/{:016x}", node.wires.own().nonce(), random::u64());
    seqpacket::named(&name)
}

/// Which device a descriptor of `command_fd` names, and which process's it is.
pub fn identify(cmd_fd: RawFd) -> Option<(u32, u64)> {
    if cmd_fd < 0 {
        return None;
    }
    // SAFETY: only asked for its name; a bad descriptor gives EBADF.
    let name = seqpacket::name_of(unsafe { BorrowedFd::borrow_raw(cmd_fd) })?;
    let mut parts = name.strip_prefix(PREFIX)?.split('/');
    Some((parts.next()?.parse().ok()?, u64::from_str_radix(parts.next()?, 16).ok()?))
}

/// Device memory by handle.
#[derive(Debug, Default)]
pub struct DmHandles(Lock<(u32, HashMap<u32, Weak<Dm>>)>);

impl DmHandles {
    /// Gives a handle.
    pub fn add(&self, dm: &Arc<Dm>) -> u32 {
        let (last, all) = &mut *self.0.lock();
        all.retain(|_, dm| dm.strong_count() > 0);
        *last = last.wrapping_add(1);
        all.insert(*last, Arc::downgrade(dm));
        *last
    }

    /// What the handle names.
    pub fn get(&self, handle: u32) -> Option<Arc<Dm>> {
        self.0.lock().1.get(&handle)?.upgrade()
    }
}

/// The node, if the context is over a `cmd_fd` of this process; else EOPNOTSUPP.
///
/// # Safety
/// `c` must be a live context of urxe.
unsafe fn own_node(c: *mut ibv_context, call: &str, handle: u32) -> Result<&'static Node, Errno> {
    // SAFETY: the caller vouches for the context.
    let (node, cmd_fd) = unsafe { (context(c).node, (*c).cmd_fd) };
    if !node.is_ours() {
        return Err(Errno::EIO);
    }
    if identify(cmd_fd).is_none_or(|(_, nonce)| nonce != node.wires.own().nonce()) {
        explain(format_args!(
            "{call} handle={handle}: it is the memory of the process that made it, where QPs of this one do not reach"
        ));
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(node)
}

fn unknown<T>(call: &str, handle: u32) -> *mut T {
    explain(format_args!("{call} handle={handle}: there is none of this handle"));
    null(Errno::EINVAL)
}

pub unsafe extern "C" fn import_pd(c: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the library passes a live context of urxe.
    let node = match unsafe { own_node(c, "ibv_import_pd", handle) } {
        Ok(node) => node,
        Err(e) => return null(e),
    };
    let Some(pd) = node.pds.find(handle) else { return unknown("ibv_import_pd", handle) };
    Box::into_raw(Box::new(PdObject { c: ibv_pd { context: c, handle }, pd, parent: None })).cast()
}

pub unsafe extern "C" fn unimport_pd(c: *mut ibv_pd) {
    // SAFETY: the library passes an imported PD of urxe, which this call ends.
    drop(unsafe { Box::from_raw(c.cast::<PdObject>()) });
}

/// Its `addr` is NULL, as the man page has it.
pub unsafe extern "C" fn import_mr(c: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the library passes a live PD of urxe.
    unsafe {
        let node = match own_node((*c).context, "ibv_import_mr", handle) {
            Ok(node) => node,
            Err(e) => return null(e),
        };
        let Some(region) = node.mem.region(Key(handle)) else { return unknown("ibv_import_mr", handle) };
        let mr = memory::wrap_key(c, Key(handle));
        (*mr).length = region.length as usize;
        (*mr).addr = std::ptr::null_mut::<c_void>();
        mr
    }
}

pub unsafe extern "C" fn unimport_mr(c: *mut ibv_mr) {
    // SAFETY: the library passes an imported MR of urxe, which this call ends.
    drop(unsafe { Box::from_raw(c.cast::<MrObject>()) });
}

/// Of another process's device memory, the memory file is mapped here too.
pub unsafe extern "C" fn import_dm(c: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    // SAFETY: the library passes a live context of urxe.
    let (node, cmd_fd) = unsafe { (context(c).node, (*c).cmd_fd) };
    if !node.is_ours() {
        return null(Errno::EIO);
    }
    let Some((_, nonce)) = identify(cmd_fd) else { return null(Errno::EINVAL) };
    let found = if nonce == node.wires.own().nonce() {
        node.dm_handles.get(handle).ok_or(Errno::EINVAL)
    } else {
        node.desk.fetch_dm(nonce, handle).and_then(|(file, length)| Dm::over(file, length))
    };
    match found {
        Ok(dm) => memory::wrap_dm(c, dm, handle),
        Err(Errno::EINVAL) => unknown("ibv_import_dm", handle),
        Err(e) => {
            explain(format_args!("ibv_import_dm handle={handle}: the process that has it: {e:?}"));
            null(e)
        }
    }
}

pub unsafe extern "C" fn unimport_dm(c: *mut ibv_dm) {
    // SAFETY: the library passes imported device memory of urxe, which this call ends.
    drop(unsafe { Box::from_raw(c.cast::<DmObject>()) });
}
