//! Contexts, and the descriptors that events are read from.
use super::write::{self, Plain, number};
use super::{Ioctl, Tail, Way, code, object};
use crate::abi::*;
use crate::provider::hosted;
use crate::sys::{errno::Errno, fd};
use std::ffi::c_int;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

const GET_CONTEXT: u16 = 3;
const QUERY_CONTEXT: u16 = 4;
/// The attributes of both.
const NUM_COMP_VECTORS: u16 = 0;
const CORE_SUPPORT: u16 = 1;
const FD_ARR: u16 = 2;
const ASYNC_EVENT_ALLOC: u16 = 0;

/// Descriptors that a context shares with another process (since release 57).
#[repr(C)]
pub struct ibv_fd_arr {
    arr: *mut c_int,
    count: u32,
}

/// `ibv_cmd_get_context` as it was before release 57.
///
/// # Safety
/// `vctx` must be a context that the provider has just initialised, request and answer valid for their sizes.
pub unsafe extern "C" fn get_context(
    vctx: *mut verbs_context,
    cmd: *mut Plain<ib_uverbs_get_context>,
    cmd_size: usize,
    resp: *mut ib_uverbs_get_context_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { get_context_57(vctx, cmd, cmd_size, std::ptr::null_mut(), resp, resp_size) }
}

/// Opens the context in the kernel: fills `num_comp_vectors`, the device's `core_support` and, on kernels that only know
/// write(), `async_fd`.
///
/// # Safety
/// As `get_context`; `fds` is null or valid.
pub unsafe extern "C" fn get_context_57(
    vctx: *mut verbs_context,
    cmd: *mut Plain<ib_uverbs_get_context>,
    cmd_size: usize,
    fds: *mut ibv_fd_arr,
    resp: *mut ib_uverbs_get_context_resp,
    resp_size: usize,
) -> c_int {
    let ctx = hosted::context(hosted::view(vctx));
    let (mut vectors, mut support) = (0u32, 0u64);
    let mut ioctl = Ioctl::new(object::DEVICE, GET_CONTEXT);
    ioctl.out(NUM_COMP_VECTORS, &mut vectors);
    ioctl.out(CORE_SUPPORT, &mut support);
    // SAFETY: the provider gives an initialised context, its request and its answer; the device is in the list.
    code(unsafe {
        let mut shared = 0;
        if let Some(fds) = fds.as_ref()
            && fds.count > 0
        {
            shared = fds.count;
            ioctl.bytes_in(FD_ARR, fds.arr.cast(), fds.count as usize * size_of::<c_int>());
        }
        ioctl.tails(
            Tail::behind(cmd, size_of::<Plain<ib_uverbs_get_context>>(), cmd_size),
            Tail::behind(resp, size_of::<ib_uverbs_get_context_resp>(), resp_size),
        );
        ioctl.try_send(ctx).and_then(|way| {
            if way == Way::Write {
                // Shared descriptors have no place in the written command.
                if shared > 0 {
                    return Err(Errno::EOPNOTSUPP);
                }
                write::plain(ctx, number::GET_CONTEXT, cmd, cmd_size, resp, resp_size)?;
                vectors = (*resp).num_comp_vectors;
                (*ctx).async_fd = (*resp).async_fd as c_int;
            }
            (*ctx).num_comp_vectors = vectors as c_int;
            (*(*ctx).device.cast::<verbs_device>()).core_support = support;
            Ok(())
        })
    })
}

/// What an imported context is told instead.
///
/// # Safety
/// `ctx` must be an imported context of the kernel's, `driver` null or a live command buffer.
pub unsafe extern "C" fn query_context(ctx: *mut ibv_context, driver: *mut ibv_command_buffer) -> c_int {
    let (mut vectors, mut support) = (0u32, 0u64);
    let mut ioctl = Ioctl::new(object::DEVICE, QUERY_CONTEXT);
    ioctl.out(NUM_COMP_VECTORS, &mut vectors);
    ioctl.out(CORE_SUPPORT, &mut support);
    ioctl.link(driver);
    // SAFETY: the provider gives a live context, whose device is in the list.
    code(unsafe {
        ioctl.send_only(ctx).map(|()| {
            (*ctx).num_comp_vectors = vectors as c_int;
            (*(*ctx).device.cast::<verbs_device>()).core_support = support;
        })
    })
}

/// A descriptor for the context's asynchronous events.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `ctx` must be an open context of the kernel's.
pub unsafe fn async_fd(ctx: *mut ibv_context) -> Result<OwnedFd, Errno> {
    let mut ioctl = Ioctl::new(object::ASYNC_EVENT, ASYNC_EVENT_ALLOC);
    let place = ioctl.new_handle(0);
    // SAFETY: the caller vouches for the context; the kernel gives the descriptor to us.
    unsafe {
        ioctl.send_only(ctx)?;
        fd::lift(OwnedFd::from_raw_fd(ioctl.handle_at(place) as c_int))
    }
}

/// A descriptor for completion events.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `ctx` must be an open context of the kernel's.
pub unsafe fn comp_channel(ctx: *mut ibv_context) -> Result<OwnedFd, Errno> {
    let mut request = Plain::of(ib_uverbs_create_comp_channel { response: 0 });
    let mut answer = ib_uverbs_create_comp_channel_resp::zeroed();
    let (size, answer_size) = (size_of_val(&request), size_of_val(&answer));
    // SAFETY: the caller vouches for the context; request and answer are ours, the descriptor as well.
    unsafe {
        write::plain(ctx, number::CREATE_COMP_CHANNEL, &mut request, size, &mut answer, answer_size)?;
        Ok(OwnedFd::from_raw_fd(answer.fd as c_int))
    }
}

/// Puts a fresh asynchronous descriptor into a context that has none yet.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// `ctx` must be an open context of the kernel's that nobody else uses yet.
pub unsafe fn give_async_fd(ctx: *mut ibv_context) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the context.
    unsafe {
        if (*ctx).async_fd < 0 {
            (*ctx).async_fd = async_fd(ctx)?.into_raw_fd();
        }
    }
    Ok(())
}

/// Sends what `_verbs_init_and_alloc_context` asks a new context's kernel.
///
/// # Safety
/// `ctx` must be an open context of the kernel's that nobody else uses yet.
pub unsafe fn begin(ctx: *mut ibv_context) {
    // SAFETY: the caller vouches for the context.
    unsafe { write::probe(ctx) }
}
