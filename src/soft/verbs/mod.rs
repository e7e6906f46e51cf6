//! urxe's ops: C work requests in, our types out. The data path is in `post` and `extended`; the rest makes, changes and
//! unmakes the C objects, each of which begins a Rust object that holds ours.
mod address;
mod attributes;
mod buffer;
mod context;
mod counters;
pub mod desk;
mod domains;
mod extended;
mod extension;
mod handles;
mod import;
mod memory;
mod near;
mod plain;
mod post;
mod qp;
mod queues;
mod window;
mod work;
mod xrcd;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

pub use context::Soft;
pub use desk::{Desk, Opened};
pub use import::DmHandles;
pub use xrcd::Domains;

use super::ah::Ah;
use super::census::{Census, Ticket};
use super::channel::{AsyncQueue, CompChannel};
use super::cq::{Batch, Cq, Cqe};
use super::device::MAX_DEVICES;
use super::link::faults::OfContext;
use super::mem::{Dm, Pd};
use super::node::Node;
use super::qp::counters::CompCounter;
use super::srq::Srq;
use crate::abi::*;
use crate::sys::lock::Lock;

/// A context of urxe; the library's part comes first.
#[repr(C)]
struct Context {
    vctx: verbs_context,
    node: &'static Node,
    events: Arc<AsyncQueue>,
    /// Which of the embedded devices it is.
    device: super::device::Device,
    /// Faults on request.
    faults: OfContext,
}

#[repr(C)]
struct PdObject {
    c: ibv_pd,
    pd: Pd,
    /// It is a parent domain.
    parent: Option<domains::Parent>,
}

#[repr(C)]
struct MrObject {
    c: verbs_mr,
}

#[repr(C)]
struct MwObject {
    c: ibv_mw,
}

#[repr(C)]
struct DmObject {
    c: verbs_dm,
    dm: Arc<Dm>,
}

#[repr(C)]
struct ChannelObject {
    c: ibv_comp_channel,
    channel: Arc<CompChannel>,
}

#[repr(C)]
struct CqObject {
    c: verbs_cq,
    cq: Arc<Cq>,
    /// Events handed out so far; destroying waits until as many are acknowledged.
    comp_events: AtomicU32,
    async_events: AtomicU32,
    /// Held from `ibv_start_poll` to `ibv_end_poll`.
    polling: Lock<Polled>,
    single_threaded: bool,
    _ticket: Ticket,
}

/// The completion that the extended readers read.
struct Polled {
    cqe: Cqe,
    time: u64,
    batch: Batch,
}

#[repr(C)]
struct SrqObject {
    c: verbs_srq,
    srq: Arc<Srq>,
    pd: Pd,
    async_events: AtomicU32,
    _ticket: Ticket,
}

#[repr(C)]
struct AhObject {
    c: ibv_ah,
    ah: Arc<Ah>,
    pd: Pd,
    _ticket: Ticket,
}

#[repr(C)]
struct CounterObject {
    c: ibv_comp_cntr,
    counter: Arc<CompCounter>,
    _ticket: Ticket,
}

#[repr(C)]
struct XrcdObject {
    c: verbs_xrcd,
    domain: u64,
    users: AtomicU32,
    /// It has a file.
    _mark: Option<Arc<xrcd::Mark>>,
}

#[repr(C)]
struct QpObject {
    c: verbs_qp,
    qp: Arc<super::qp::Qp>,
    pd: Option<Pd>,
    _ticket: Option<Ticket>,
    /// Not the first handle of the QP in this process.
    opened: Option<Arc<handles::Second>>,
    /// The QP lies, or lay, in another process.
    remote: Option<Arc<Opened>>,
    async_events: AtomicU32,
    /// The XRC domain that it belongs to.
    xrcd: *mut XrcdObject,
    /// Held from `ibv_wr_start` to `ibv_wr_complete`.
    build: Lock<extended::Build>,
}

impl Context {
    /// What there is of its device.
    fn census(&self) -> &'static Census {
        &self.node.census[self.device.index as usize % MAX_DEVICES]
    }
}

/// The context around an `ibv_context` of urxe.
///
/// # Safety
/// `c` must be a live context of urxe; what is returned lives as long.
#[inline]
unsafe fn context<'a>(c: *mut ibv_context) -> &'a Context {
    // SAFETY: urxe's contexts are allocated as `Context`, in which `vctx.context` lies.
    unsafe { &*c.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<Context>() }
}

/// # Safety
/// `c` must be a live object of urxe of the type that `T` begins with.
#[inline]
unsafe fn object<'a, C, T>(c: *mut C) -> &'a T {
    // SAFETY: urxe's objects are allocated as `T`, whose first field is the C object.
    unsafe { &*c.cast::<T>() }
}

/// The object was made before a fork: the child may let it go, but it belongs to the parent.
///
/// # Safety
/// `c` must be a live context of urxe.
unsafe fn inherited(c: *mut ibv_context) -> bool {
    // SAFETY: the caller vouches for the context.
    unsafe { !context(c).node.is_ours() }
}
