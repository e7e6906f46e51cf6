//! What a provider of devices gives to the library: devices, contexts, and the ops table that every provider overlays.
//!
//! `table` holds the defaults (EOPNOTSUPP by each slot's own convention) and spreads a provider's ops over a context;
//! `context` makes and unmakes the library's part of a context, `layout` says how releases of compiled providers see it; `object` fills what all providers fill alike; `buffer` and
//! `registration` are defaults that do more than refuse.
pub mod buffer;
pub mod context;
pub mod disassociate;
pub mod drivers;
pub mod hosted;
pub mod layout;
pub mod object;
pub mod registration;
pub mod table;

use crate::abi::{
    anyverbs_fault_counts, anyverbs_path, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_gid_entry,
    ibv_qp, verbs_context, verbs_device,
};
use crate::sys::errno::Errno;
use anyverbs_counters::Values;
use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;

/// A device as a provider finds it. Names longer than their C fields are cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The RDMA device's name, `ibv_device.name`.
    pub name: String,
    /// Its uverbs node, `ibv_device.dev_name`.
    pub dev_name: String,
    /// Its class directory, `ibv_device.dev_path`; may be empty.
    pub dev_path: String,
    /// Its RDMA class directory, `ibv_device.ibdev_path`; may be empty.
    pub ibdev_path: String,
    /// `enum ibv_node_type`.
    pub node_type: i32,
    /// `enum ibv_transport_type`.
    pub transport_type: i32,
    /// GUID in network byte order, never 0.
    pub guid: u64,
    /// The kernel's index of the device; -1 where it has none.
    pub index: i32,
    /// The provider's own name for the device, handed back to it when the device is opened.
    pub token: usize,
}

/// A source of devices: urxe, or the kernel.
pub trait Provider: Sync {
    /// For explanations.
    fn name(&self) -> &'static str;

    /// The devices present now, in the order of the list. `kernel_devices` says whether the kernel shows any.
    fn devices(&self, kernel_devices: bool) -> Vec<Found>;

    /// The provider's name for the device whose `cmd_fd` this is, perhaps a duplicate, perhaps of another process.
    fn token_of(&self, _cmd_fd: RawFd) -> Option<usize> {
        None
    }

    /// Opens a device: a `verbs_context` on which `context::init` and `table::set_ops` were called, with `cmd_fd`,
    /// `async_fd` and `num_comp_vectors` set and `context::set_library_ops` done. Its `free_context` op undoes it all,
    /// ending with `context::uninit`.
    ///
    /// # Errors
    /// What `ibv_open_device` leaves in errno.
    ///
    /// # Safety
    /// `device` is an entry of the library's list that came from this provider with this token.
    unsafe fn alloc_context(
        &self,
        device: *mut ibv_device,
        token: usize,
    ) -> Result<*mut verbs_context, Errno>;

    /// The same with what `verbs_open_device` hands to compiled providers.
    ///
    /// # Errors
    /// As `alloc_context`.
    ///
    /// # Safety
    /// As `alloc_context`; `private` is what this provider takes, or null.
    unsafe fn alloc_context_with(
        &self,
        device: *mut ibv_device,
        token: usize,
        _private: *mut c_void,
    ) -> Result<*mut verbs_context, Errno> {
        // SAFETY: the caller's promises are this function's.
        unsafe { self.alloc_context(device, token) }
    }

    /// A context over `cmd_fd`, a duplicate of another context's, which it takes over unless it fails.
    ///
    /// # Errors
    /// As `alloc_context`.
    ///
    /// # Safety
    /// As `alloc_context`; the caller owns `cmd_fd`.
    unsafe fn import_context(
        &self,
        device: *mut ibv_device,
        token: usize,
        cmd_fd: RawFd,
    ) -> Result<*mut verbs_context, Errno> {
        // SAFETY: the caller's promises are this function's; the new context is nobody else's yet.
        unsafe {
            let vctx = self.alloc_context(device, token)?;
            libc::close(std::mem::replace(&mut (*vctx).context.cmd_fd, cmd_fd));
            Ok(vctx)
        }
    }

    /// The C object of a device, filled by `object::fill_device`, where the provider makes it itself. It is never freed.
    fn device(&self, _token: usize) -> Option<*mut verbs_device> {
        None
    }
}

/// An asynchronous event as a provider hands it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// Address of the `ibv_cq`, `ibv_qp`, `ibv_srq` or `ibv_wq`, or the port number.
    pub element: u64,
    /// `enum ibv_event_type`.
    pub event_type: u32,
}

/// What a thread that asks for an event has done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing.
    First,
    /// It waited, and the fd is readable, or there may be work.
    Woken,
    /// It waited until a signal came.
    Interrupted,
}

/// How the caller waits for events that are not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Until the fd is readable; then it looks again.
    Looked,
    /// It reads the kernel's records from the fd, and blocks in that.
    Read,
}

/// The calls that stand in no ops table because rdma-core's library serves them from the kernel itself (facts/abi.md 5.4).
///
/// All are called with live objects of a context whose library ops these are.
pub struct LibraryOps {
    /// Where `Read`, `get_cq_event` and `get_async_event` are not called.
    pub events: Events,
    /// A channel with `context`, `fd` and a zero `refcnt`. Its fd polls readable while an event waits.
    pub create_comp_channel: unsafe fn(*mut ibv_context) -> Result<*mut ibv_comp_channel, Errno>,
    /// Frees a channel that no CQ uses.
    pub destroy_comp_channel: unsafe fn(*mut ibv_comp_channel) -> Result<(), Errno>,
    /// Takes the oldest event off a channel and counts it as handed out to its CQ. None: the caller waits until the fd or
    /// that of `doorbells` is readable, and looks again. EAGAIN instead where the application set O_NONBLOCK on the fd.
    pub get_cq_event: unsafe fn(*mut ibv_comp_channel, Look) -> Result<Option<*mut ibv_cq>, Errno>,
    /// What shows that a look for completion events is worth while, though there may be none yet; -1: nothing.
    pub doorbells: fn() -> RawFd,
    /// Takes the oldest asynchronous event and counts it as handed out to its object; None as `get_cq_event`.
    pub get_async_event: unsafe fn(*mut ibv_context, Look) -> Result<Option<AsyncEvent>, Errno>,
    /// Row `index` of a port's GID table; ENODATA where the row is empty, EINVAL where there is no such row or port.
    pub query_gid: unsafe fn(*mut ibv_context, u32, u32) -> Result<ibv_gid_entry, Errno>,
    /// All rows that are not empty, of all ports.
    pub gid_table: unsafe fn(*mut ibv_context) -> Result<Vec<ibv_gid_entry>, Errno>,
    /// Entry `index` of a port's P_Key table, in host byte order; EINVAL where there is none.
    pub query_pkey: unsafe fn(*mut ibv_context, u8, u32) -> Result<u16, Errno>,
    /// What `anyverbs.h` offers; devices that are not ours have none of it.
    pub extension: Option<&'static Extension>,
}

/// The calls of `anyverbs.h` that a device serves. All are called with live objects of a context that has them.
pub struct Extension {
    /// How a QP reaches its peer.
    pub qp_path: unsafe fn(*mut ibv_qp) -> Result<anyverbs_path, Errno>,
    /// Faults for all QPs of a context, or for one; EINVAL for a wrong string.
    pub set_faults: unsafe fn(*mut ibv_context, &CStr) -> Result<(), Errno>,
    #[allow(missing_docs)]
    pub set_qp_faults: unsafe fn(*mut ibv_qp, &CStr) -> Result<(), Errno>,
    /// What they have done.
    pub read_faults: unsafe fn(*mut ibv_context) -> Result<anyverbs_fault_counts, Errno>,
    #[allow(missing_docs)]
    pub read_qp_faults: unsafe fn(*mut ibv_qp) -> Result<anyverbs_fault_counts, Errno>,
    /// What this process has counted on a port; EINVAL where there is no such port.
    pub port_counters: unsafe fn(*mut ibv_context, u32) -> Result<Values, Errno>,
    /// What a QP has counted.
    pub qp_counters: unsafe fn(*mut ibv_qp) -> Result<Values, Errno>,
}
