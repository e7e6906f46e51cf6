//! Protection domains, memory regions, device memory.
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::ptr;
use std::sync::Arc;

use super::domains::dealloc_parent_domain;
use super::{DmObject, MrObject, PdObject, context, inherited, object};
use crate::abi::*;
use crate::soft::mem::{Dm, Mr, Rereg, ReregError};
use crate::soft::types::{Access, Key};
use crate::sys::errno::Errno;
use crate::sys::fd;
use crate::sys::log::explain;

/// NULL with errno, as functions that give an object fail.
pub fn null<T>(e: Errno) -> *mut T {
    e.store();
    ptr::null_mut()
}

pub unsafe extern "C" fn alloc_pd(c: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the library passes a live context of urxe.
    let node = unsafe { context(c) }.node;
    if !node.is_ours() {
        return null(Errno::EIO);
    }
    match node.pds.alloc() {
        Ok(pd) => {
            let c = ibv_pd { context: c, handle: pd.id().0 };
            Box::into_raw(Box::new(PdObject { c, pd, parent: None })).cast()
        }
        Err(e) => null(e),
    }
}

pub unsafe extern "C" fn dealloc_pd(c: *mut ibv_pd) -> c_int {
    // SAFETY: the library passes a live PD of urxe, which this call ends on success.
    unsafe {
        if inherited((*c).context) {
            return 0;
        }
        let pd: &PdObject = object(c);
        if pd.is_parent() {
            return dealloc_parent_domain(c);
        }
        match context((*c).context).node.pds.dealloc(&pd.pd) {
            Ok(()) => {
                drop(Box::from_raw(c.cast::<PdObject>()));
                0
            }
            Err(e) => e.0,
        }
    }
}

pub unsafe extern "C" fn reg_mr(
    c: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the library passes a live PD of urxe.
    unsafe {
        if inherited((*c).context) {
            return null(Errno::EIO);
        }
        let pd: &PdObject = object(c);
        let access = Access::from_bits_retain(access as u32);
        match context((*c).context).node.mem.register(&pd.pd, addr as u64, length as u64, iova, access) {
            Ok(mr) => wrap(c, &mr),
            Err(e) => null(e),
        }
    }
}

/// Registers part of a file, or of whatever else mmap takes, which is mapped for as long as the region is registered.
pub unsafe extern "C" fn reg_dmabuf_mr(
    c: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    if fd < 0 {
        explain(format_args!("ibv_reg_dmabuf_mr fd={fd}: expected a descriptor"));
        return null(Errno(libc::EBADF));
    }
    // SAFETY: the library passes a live PD of urxe; the descriptor is only borrowed, and the kernel says if it is none.
    unsafe {
        if inherited((*c).context) {
            return null(Errno::EIO);
        }
        let pd: &PdObject = object(c);
        let access = Access::from_bits_retain(access as u32);
        let (mem, fd) = (&context((*c).context).node.mem, BorrowedFd::borrow_raw(fd));
        match mem.register_file(&pd.pd, fd, (offset, length as u64), iova, access) {
            Ok(mr) => {
                let c = wrap(c, &mr);
                (*c.cast::<verbs_mr>()).mr_type = IBV_MR_TYPE_DMABUF_MR;
                c
            }
            Err(e) => null(e),
        }
    }
}

/// A region that discards what is written and reads as zeros; it has no rkey.
pub unsafe extern "C" fn alloc_null_mr(c: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the library passes a live PD of urxe.
    unsafe {
        if inherited((*c).context) {
            return null(Errno::EIO);
        }
        let pd: &PdObject = object(c);
        match context((*c).context).node.mem.register_null(&pd.pd) {
            Ok(mr) => {
                let c = wrap(c, &mr);
                (*c).rkey = 0;
                (*c.cast::<verbs_mr>()).mr_type = IBV_MR_TYPE_NULL_MR;
                c
            }
            Err(e) => null(e),
        }
    }
}

/// # Safety
/// `pd` must be a live PD of urxe.
unsafe fn wrap(pd: *mut ibv_pd, mr: &Mr) -> *mut ibv_mr {
    // SAFETY: the caller vouches for the PD; the object is new.
    unsafe {
        let c = wrap_key(pd, mr.key).cast::<verbs_mr>();
        (*c).ibv_mr.addr = mr.addr as *mut c_void;
        (*c).ibv_mr.length = mr.length as usize;
        (*c).access = mr.access.bits() as c_int;
        c.cast()
    }
}

/// A C object over the region of this key.
///
/// # Safety
/// `pd` must be a live PD of urxe.
pub unsafe fn wrap_key(pd: *mut ibv_pd, key: Key) -> *mut ibv_mr {
    let mut c = verbs_mr::zeroed();
    // SAFETY: the caller vouches for the PD.
    c.ibv_mr.context = unsafe { (*pd).context };
    c.ibv_mr.pd = pd;
    (c.ibv_mr.handle, c.ibv_mr.lkey, c.ibv_mr.rkey) = (key.0, key.0, key.0);
    c.mr_type = IBV_MR_TYPE_MR;
    Box::into_raw(Box::new(MrObject { c })).cast()
}

pub unsafe extern "C" fn dereg_mr(c: *mut verbs_mr) -> c_int {
    // SAFETY: the library passes a live MR of urxe, which this call ends on success.
    unsafe {
        if inherited((*c).ibv_mr.context) {
            return 0;
        }
        let node = context((*c).ibv_mr.context).node;
        let key = Key((*c).ibv_mr.lkey);
        match node.mem.deregister(key, |key| node.wires.key_is_idle(key)) {
            Ok(()) => {
                node.wires.tell_files_went(node);
                drop(Box::from_raw(c.cast::<MrObject>()));
                0
            }
            Err(e) => e.0,
        }
    }
}

pub unsafe extern "C" fn rereg_mr(
    c: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the library passes a live MR, and a live PD where the flags say so.
    unsafe {
        let node = context((*c).ibv_mr.context).node;
        if !node.is_ours() {
            Errno::EIO.store();
            return IBV_REREG_MR_ERR_INPUT;
        }
        let flags = flags as u32;
        let new_pd = (flags & IBV_REREG_MR_CHANGE_PD != 0).then(|| &object::<_, PdObject>(pd).pd);
        let change = Rereg {
            translation: (flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0)
                .then_some((addr as u64, length as u64)),
            pd: new_pd,
            access: (flags & IBV_REREG_MR_CHANGE_ACCESS != 0)
                .then_some(Access::from_bits_retain(access as u32)),
        };
        let key = Key((*c).ibv_mr.lkey);
        match node.mem.reregister(key, change, |key| node.wires.key_is_idle(key)) {
            Ok(mr) => {
                node.wires.tell_files_went(node);
                (*c).access = mr.access.bits() as c_int;
                0
            }
            Err(ReregError::Unchanged(e)) => {
                e.store();
                IBV_REREG_MR_ERR_INPUT
            }
            Err(ReregError::Invalid(e)) => {
                e.store();
                IBV_REREG_MR_ERR_CMD
            }
        }
    }
}

/// Prefetching needs no work here: every page is reachable when it is used. The range must lie in regions of the PD.
pub unsafe extern "C" fn advise_mr(
    c: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sges: *mut ibv_sge,
    n: u32,
) -> c_int {
    if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || n == 0 {
        explain(format_args!(
            "ibv_advise_mr advice={advice} flags=0x{flags:x} num_sge={n}: expected a prefetch, IBV_ADVISE_MR_FLAG_FLUSH or 0, and some SGEs"
        ));
        return libc::EINVAL;
    }
    // SAFETY: the library passes a live PD of urxe, the caller `n` SGEs.
    unsafe {
        let pd: &PdObject = object(c);
        let mem = &context((*c).context).node.mem;
        for i in 0..n as usize {
            let sge = *sges.add(i).cast::<crate::soft::types::Sge>();
            let write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
            if let Err(denied) = mem.local(pd.pd.id(), &sge, write) {
                let (addr, len, lkey) = (sge.addr, sge.length, sge.lkey);
                explain(format_args!("ibv_advise_mr sg_list[{i}] lkey {lkey:?} 0x{addr:x}+{len}: {denied}"));
                return libc::ENOENT;
            }
        }
    }
    0
}

/// Also by a forked child over its parent's context, as on a kernel device: the memory is then the child's own.
pub unsafe extern "C" fn alloc_dm(c: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    // SAFETY: the library passes a live context of urxe and readable attributes.
    unsafe {
        if (*attr).comp_mask != 0 {
            explain(format_args!("ibv_alloc_dm comp_mask=0x{:x}: expected 0", (*attr).comp_mask));
            return null(Errno::EOPNOTSUPP);
        }
        match context(c).node.dm.alloc((*attr).length as u64, (*attr).log_align_req) {
            Ok(dm) => {
                let node = context(c).node;
                let handle = node.dm_handles.add(&dm);
                let _ = node.desk.attend_process(node).inspect_err(|e| {
                    explain(format_args!("ibv_alloc_dm: other processes cannot import it: {e:?}"));
                });
                wrap_dm(c, dm, handle)
            }
            Err(e) => null(e),
        }
    }
}

/// A C object over device memory.
pub fn wrap_dm(c: *mut ibv_context, dm: Arc<Dm>, handle: u32) -> *mut ibv_dm {
    let mut whole = verbs_dm::zeroed();
    whole.dm.context = c;
    whole.dm.handle = handle;
    whole.dm.memcpy_to_dm = Some(memcpy_to_dm);
    whole.dm.memcpy_from_dm = Some(memcpy_from_dm);
    Box::into_raw(Box::new(DmObject { c: whole, dm })).cast()
}

pub unsafe extern "C" fn free_dm(c: *mut ibv_dm) -> c_int {
    // SAFETY: the library passes a live DM of urxe, which this call ends on success.
    unsafe {
        let dm = &object::<_, DmObject>(c).dm;
        if !dm.is_ours() {
            return 0;
        }
        match dm.free() {
            Ok(()) => {
                drop(Box::from_raw(c.cast::<DmObject>()));
                0
            }
            Err(e) => e.0,
        }
    }
}

/// A descriptor of the memory file, which mmap and `ibv_reg_dmabuf_mr` accept: whole pages, of a size that stays.
pub unsafe extern "C" fn dm_export_dmabuf_fd(c: *mut ibv_dm) -> c_int {
    // SAFETY: the library passes a live DM of urxe.
    let dm = unsafe { &object::<_, DmObject>(c).dm };
    let made = if !dm.is_ours() {
        Err(Errno::EIO)
    } else {
        dm.file().ok_or(Errno::EOPNOTSUPP).and_then(|file| fd::duplicate(file.as_raw_fd()))
    };
    match made {
        Ok(fd) => fd.into_raw_fd(),
        Err(e) => {
            explain(format_args!("ibv_dm_export_dmabuf_fd: no descriptor for the device memory: {e:?}"));
            e.store();
            -1
        }
    }
}

unsafe extern "C" fn memcpy_to_dm(c: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    // SAFETY: the application passes a live DM and `length` readable bytes.
    unsafe { object::<_, DmObject>(c).dm.copy_to(offset, from.cast(), length).err().map_or(0, |e| e.0) }
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, c: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    // SAFETY: the application passes a live DM and `length` writable bytes.
    unsafe { object::<_, DmObject>(c).dm.copy_from(offset, to.cast(), length).err().map_or(0, |e| e.0) }
}

pub unsafe extern "C" fn reg_dm_mr(
    c: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the library passes a live PD and DM of urxe.
    unsafe {
        if inherited((*c).context) {
            return null(Errno::EIO);
        }
        let pd: &PdObject = object(c);
        let dm: &DmObject = object(dm);
        let access = Access::from_bits_retain(access);
        let mem = &context((*c).context).node.mem;
        match mem.register_dm(&pd.pd, &dm.dm, offset, length as u64, access) {
            Ok(mr) => {
                let c = wrap(c, &mr);
                // Device memory has no address that the application may use.
                (*c).addr = ptr::null_mut();
                c
            }
            Err(e) => null(e),
        }
    }
}
