//! Thread domains and parent domains, whose allocators may give the memory of queues.
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::memory::null;
use super::{PdObject, inherited, object};
use crate::abi::*;
use crate::soft::mem::area::{Allocator, Grant, Purpose};
use crate::sys::errno::Errno;
use crate::sys::log::explain;

/// The upper half of `resource_type`: not a `rdma_driver_id` of any kernel driver, "av".
const DRIVER: u64 = 0x6176;
/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

#[repr(C)]
struct TdObject {
    c: ibv_td,
    /// Parent domains that name it.
    users: AtomicU32,
}

/// What a parent domain has beside the protection domain that it stands for.
#[derive(Debug)]
pub(super) struct Parent {
    allocator: Option<Arc<dyn Allocator>>,
    td: *mut TdObject,
}

/// The application's two functions.
#[derive(Debug)]
struct Callbacks {
    alloc: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64),
    /// The parent domain, once it exists; callers see it as their first argument.
    pd: AtomicPtr<ibv_pd>,
    context: AtomicPtr<c_void>,
}

impl Allocator for Callbacks {
    fn take(&self, size: usize, align: usize, purpose: Purpose) -> Grant {
        let kind = DRIVER << 32 | purpose as u64;
        // SAFETY: the application promised that its function may be called while the parent domain lives.
        let at = unsafe {
            (self.alloc)(
                self.pd.load(Ordering::Relaxed),
                self.context.load(Ordering::Relaxed),
                size,
                align,
                kind,
            )
        };
        if at.addr() == USE_DEFAULT {
            return Grant::Default;
        }
        match NonNull::new(at.cast()) {
            Some(at) if at.addr().get().is_multiple_of(align) => Grant::Memory(at),
            Some(at) => {
                explain(format_args!(
                    "ibv_alloc_parent_domain: alloc({size}, {align}) gave {at:p}, which is not so aligned"
                ));
                self.give_back(at, purpose);
                Grant::None
            }
            None => {
                explain(format_args!("ibv_alloc_parent_domain: alloc({size}, {align}) gave NULL"));
                Grant::None
            }
        }
    }

    fn give_back(&self, at: NonNull<u8>, purpose: Purpose) {
        let kind = DRIVER << 32 | purpose as u64;
        // SAFETY: as above; the memory came from `alloc`.
        unsafe {
            (self.free)(
                self.pd.load(Ordering::Relaxed),
                self.context.load(Ordering::Relaxed),
                at.as_ptr().cast(),
                kind,
            );
        }
    }
}

impl PdObject {
    /// It is a parent domain.
    pub(super) fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Where queues that are made on it have their memory from; the heap if none.
    pub(super) fn allocator(&self) -> Option<&Arc<dyn Allocator>> {
        self.parent.as_ref()?.allocator.as_ref()
    }
}

pub unsafe extern "C" fn alloc_td(c: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the library passes a live context of urxe and readable attributes.
    unsafe {
        if inherited(c) {
            return null(Errno::EIO);
        }
        if (*attr).comp_mask != 0 {
            explain(format_args!("ibv_alloc_td comp_mask=0x{:x}: expected 0", (*attr).comp_mask));
            return null(Errno::EINVAL);
        }
    }
    Box::into_raw(Box::new(TdObject { c: ibv_td { context: c }, users: AtomicU32::new(0) })).cast()
}

pub unsafe extern "C" fn dealloc_td(c: *mut ibv_td) -> c_int {
    // SAFETY: the library passes a live thread domain of urxe, which this call ends on success.
    unsafe {
        let users = object::<_, TdObject>(c).users.load(Ordering::Acquire);
        if users > 0 && !inherited((*c).context) {
            explain(format_args!("ibv_dealloc_td: {users} parent domain(s) still name it"));
            return libc::EBUSY;
        }
        drop(Box::from_raw(c.cast::<TdObject>()));
    }
    0
}

pub unsafe extern "C" fn alloc_parent_domain(
    c: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    // SAFETY: the library passes a live context of urxe and readable attributes naming live objects of it.
    unsafe {
        if inherited(c) {
            return null(Errno::EIO);
        }
        let a = *attr;
        let has = |bit| a.comp_mask & bit != 0;
        let wrong = if a.comp_mask & !known != 0 {
            Some("comp_mask has unknown bits")
        } else if a.pd.is_null() {
            Some("pd is NULL")
        } else if has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) && (a.alloc.is_none() || a.free.is_none()) {
            Some("IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS needs alloc and free")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            explain(format_args!("ibv_alloc_parent_domain comp_mask=0x{:x}: {wrong}", a.comp_mask));
            return null(Errno::EINVAL);
        }
        let callbacks = match (a.alloc, a.free) {
            (Some(alloc), Some(free)) if has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) => {
                let given = has(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
                let context = if given { a.pd_context } else { std::ptr::null_mut() };
                Some(Arc::new(Callbacks { alloc, free, pd: AtomicPtr::default(), context: context.into() }))
            }
            _ => None,
        };
        let td = a.td.cast::<TdObject>();
        if let Some(td) = td.as_ref() {
            td.users.fetch_add(1, Ordering::AcqRel);
        }
        let parent = Parent { allocator: callbacks.clone().map(|c| c as Arc<dyn Allocator>), td };
        let pd = object::<_, PdObject>(a.pd).pd.clone();
        let whole = ibv_pd { context: c, handle: (*a.pd).handle };
        let whole = Box::into_raw(Box::new(PdObject { c: whole, pd, parent: Some(parent) })).cast::<ibv_pd>();
        if let Some(callbacks) = callbacks {
            callbacks.pd.store(whole, Ordering::Relaxed);
        }
        whole
    }
}

/// EBUSY while queues have memory from its allocator; the protection domain under it lives on.
///
/// # Safety
/// `c` must be a live parent domain of urxe, which this call ends on success.
pub(super) unsafe fn dealloc_parent_domain(c: *mut ibv_pd) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        let Some(parent) = &object::<_, PdObject>(c).parent else { return libc::EINVAL };
        if let Some(allocator) = &parent.allocator
            && Arc::strong_count(allocator) > 1
        {
            explain(format_args!(
                "ibv_dealloc_pd: {} queue(s) still have memory from this parent domain's allocator",
                Arc::strong_count(allocator) - 1
            ));
            return libc::EBUSY;
        }
        if let Some(td) = parent.td.as_ref() {
            td.users.fetch_sub(1, Ordering::AcqRel);
        }
        drop(Box::from_raw(c.cast::<PdObject>()));
    }
    0
}
