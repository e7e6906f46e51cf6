//! Commands by write(): as they are where the kernel only has that, inside the ioctl INVOKE_WRITE where it can.
use super::{Ioctl, Tail, issue, object};
use crate::abi::*;
use crate::provider::context as library;
use crate::sys::errno::Errno;
use std::ffi::c_void;

const INVOKE_WRITE: u16 = 0;
const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_CMD: u16 = 2;

/// Marks an extended command.
const EXTENDED: u32 = 0x8000_0000;

/// Numbers of the commands (`enum ib_uverbs_write_cmds`).
pub mod number {
    #![allow(missing_docs)]
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const POLL_CQ: u32 = 21;
    pub const REQ_NOTIFY_CQ: u32 = 23;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
    pub const POST_RECV: u32 = 29;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    pub const POST_SRQ_RECV: u32 = 36;
    pub const OPEN_XRCD: u32 = 37;
    pub const CLOSE_XRCD: u32 = 38;
    pub const CREATE_XSRQ: u32 = 39;
    pub const OPEN_QP: u32 = 40;
    pub const CREATE_FLOW: u32 = 50;
    pub const DESTROY_FLOW: u32 = 51;
    pub const CREATE_WQ: u32 = 52;
    pub const MODIFY_WQ: u32 = 53;
    pub const DESTROY_WQ: u32 = 54;
    pub const CREATE_RWQ_IND_TBL: u32 = 55;
    pub const DESTROY_RWQ_IND_TBL: u32 = 56;
    pub const MODIFY_CQ: u32 = 57;
}

/// A request: header and core, as every provider's begins.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Plain<T> {
    hdr: ib_uverbs_cmd_hdr,
    /// The command's own part.
    pub core: T,
}

/// A request of an extended command.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Extended<T> {
    hdr: ib_uverbs_cmd_hdr,
    ex: ib_uverbs_ex_cmd_hdr,
    /// The command's own part.
    pub core: T,
}

impl<T> Plain<T> {
    /// A request of the library's own.
    pub fn of(core: T) -> Self {
        Self { hdr: ib_uverbs_cmd_hdr::zeroed(), core }
    }
}

impl<T> Extended<T> {
    /// A request of the library's own.
    pub fn of(core: T) -> Self {
        Self { hdr: ib_uverbs_cmd_hdr::zeroed(), ex: ib_uverbs_ex_cmd_hdr::zeroed(), core }
    }
}

/// Sends a command whose core begins with the address of its answer, which is filled in here.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `ctx` must be an open context of the kernel's, `request` filled and valid for `size` bytes, `answer` for
/// `answer_size`, of which the first are a `R`.
pub unsafe fn plain<T, R>(
    ctx: *mut ibv_context,
    number: u32,
    request: *mut Plain<T>,
    size: usize,
    answer: *mut R,
    answer_size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for all; the first field of such a core is the address.
    unsafe {
        (&raw mut (*request).core).cast::<u64>().write(answer.expose_provenance() as u64);
        send(ctx, number, request, size, answer.cast(), size_of::<R>(), answer_size)
    }
}

/// The same with an answer that is all core.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As for `plain`.
pub unsafe fn plain_whole<T>(
    ctx: *mut ibv_context,
    number: u32,
    request: *mut Plain<T>,
    size: usize,
    answer: *mut c_void,
    answer_size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for all; the first field of such a core is the address.
    unsafe {
        (&raw mut (*request).core).cast::<u64>().write(answer.expose_provenance() as u64);
        send(ctx, number, request, size, answer, answer_size, answer_size)
    }
}

/// Sends a command that has no answer.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As for `plain`.
pub unsafe fn plain_without_answer<T>(
    ctx: *mut ibv_context,
    number: u32,
    request: *mut Plain<T>,
    size: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for all.
    unsafe { send(ctx, number, request, size, std::ptr::null_mut(), 0, 0) }
}

/// # Safety
/// As for `plain`.
unsafe fn send<T>(
    ctx: *mut ibv_context,
    number: u32,
    request: *mut Plain<T>,
    size: usize,
    answer: *mut c_void,
    answer_core: usize,
    answer_size: usize,
) -> Result<(), Errno> {
    let core = size_of::<Plain<T>>();
    let size = size.max(core);
    // SAFETY: the caller vouches for all.
    unsafe {
        if (*library::private(ctx)).ex.use_ioctl_write {
            return invoke(
                ctx,
                number,
                (&raw mut (*request).core).cast(),
                core - size_of::<ib_uverbs_cmd_hdr>(),
                Tail::behind(request, core, size),
                answer,
                answer_core.min(answer_size),
                Tail::behind(answer, answer_core, answer_size),
            );
        }
        (*request).hdr = ib_uverbs_cmd_hdr {
            command: number,
            in_words: (size / 4) as u16,
            out_words: (answer_size / 4) as u16,
        };
        issue::write((*ctx).cmd_fd, request.cast(), size)
    }
}

/// Sends an extended command.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As for `plain`; `core` is the length of the request's core with its header, `answer_core` that of the answer's.
#[allow(clippy::too_many_arguments)]
pub unsafe fn extended<T>(
    ctx: *mut ibv_context,
    number: u32,
    request: *mut Extended<T>,
    core: usize,
    size: usize,
    answer: *mut c_void,
    answer_core: usize,
    answer_size: usize,
) -> Result<(), Errno> {
    let head = size_of::<ib_uverbs_cmd_hdr>() + size_of::<ib_uverbs_ex_cmd_hdr>();
    let size = size.max(core);
    let (tail, answer_tail) =
        (Tail::behind(request, core, size), Tail::behind(answer, answer_core, answer_size));
    let answer_core = answer_core.min(answer_size);
    // SAFETY: the caller vouches for all.
    unsafe {
        if (*library::private(ctx)).ex.use_ioctl_write {
            let at = (&raw mut (*request).core).cast();
            return invoke(ctx, number | EXTENDED, at, core - head, tail, answer, answer_core, answer_tail);
        }
        (*request).hdr = ib_uverbs_cmd_hdr {
            command: number | EXTENDED,
            in_words: ((core - head) / 8) as u16,
            out_words: (answer_core / 8) as u16,
        };
        (*request).ex = ib_uverbs_ex_cmd_hdr {
            response: answer.expose_provenance() as u64,
            provider_in_words: (tail.len / 8) as u16,
            provider_out_words: (answer_tail.len / 8) as u16,
            reserved: 0,
        };
        issue::write((*ctx).cmd_fd, request.cast(), size)
    }
}

/// # Safety
/// As for `plain`.
#[allow(clippy::too_many_arguments)]
unsafe fn invoke(
    ctx: *mut ibv_context,
    number: u32,
    core: *const c_void,
    core_size: usize,
    tail: Tail,
    answer: *mut c_void,
    answer_core: usize,
    answer_tail: Tail,
) -> Result<(), Errno> {
    let mut cmd = Ioctl::new(object::DEVICE, INVOKE_WRITE);
    // SAFETY: the caller vouches for all.
    unsafe {
        if core_size > 0 {
            cmd.bytes_in(CORE_IN, core, core_size);
        }
        if answer_core > 0 {
            cmd.bytes_out(CORE_OUT, answer, answer_core);
        }
        cmd.constant(WRITE_CMD, number.into());
        cmd.tails(tail, answer_tail);
        cmd.send(ctx)
    }
}

/// Asks whether the kernel takes written commands by ioctl: a command without its core is too short where it does.
///
/// # Safety
/// `ctx` must be an open context of the kernel's, used by nobody else yet.
pub unsafe fn probe(ctx: *mut ibv_context) {
    let mut cmd = Ioctl::new(object::DEVICE, INVOKE_WRITE);
    cmd.constant(WRITE_CMD, number::QUERY_DEVICE.into());
    // SAFETY: the caller vouches for the context.
    unsafe {
        let answer = cmd.send(ctx);
        (*library::private(ctx)).ex.use_ioctl_write =
            !matches!(answer, Err(Errno(libc::ENOTTY | libc::EPROTONOSUPPORT)));
    }
}
