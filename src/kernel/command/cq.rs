//! Completion queues.
use super::write::{self, Extended, Plain, number};
use super::{Ioctl, Tail, Way, answer, code, forgive, object, user_handle};
use crate::abi::*;
use crate::sys::errno::Errno;
use crate::sys::pthread;
use std::ffi::{c_int, c_void};
use std::ptr;

const CREATE: u16 = 0;
const DESTROY: u16 = 1;

const HANDLE: u16 = 0;
const CQE: u16 = 1;
const USER_HANDLE: u16 = 2;
const COMP_CHANNEL: u16 = 3;
const COMP_VECTOR: u16 = 4;
const FLAGS: u16 = 5;
const RESP_CQE: u16 = 6;
const EVENT_FD: u16 = 7;
const BUF_VA: u16 = 8;
const BUF_LEN: u16 = 9;
const BUF_FD: u16 = 10;
const BUF_OFFSET: u16 = 11;

/// Flags of the kernel.
const TIMESTAMP_COMPLETION: u32 = 1 << 0;
const IGNORE_OVERRUN: u32 = 1 << 1;

/// `CREATE_CQ_CMD_FLAGS_*`: timestamps need no flag of the kernel's; the provider brings the memory.
const TS_IGNORED: u32 = 1 << 0;
const WITH_MEM_VA: u32 = 1 << 1;
const WITH_MEM_DMABUF: u32 = 1 << 2;

/// Memory that the provider brings for a CQ (since release 59).
#[repr(C)]
pub struct verbs_create_cq_prov_attr {
    buf: *mut c_void,
    length: u64,
    offset: u64,
    fd: u32,
}

/// What both forms of the command create.
struct New {
    cq: *mut ibv_cq,
    cqe: u32,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    flags: u32,
}

/// # Safety
/// `ctx` live, `channel` null or live; CQ, request and answer valid.
pub unsafe extern "C" fn create_cq(
    ctx: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
    cq: *mut ibv_cq,
    cmd: *mut Plain<ib_uverbs_create_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_create_cq_resp,
    resp_size: usize,
) -> c_int {
    let new = New { cq, cqe: cqe as u32, channel, comp_vector: comp_vector as u32, flags: 0 };
    let request = Tail::behind(cmd, size_of::<Plain<ib_uverbs_create_cq>>(), cmd_size);
    let room = Tail::behind(resp, size_of::<ib_uverbs_create_cq_resp>(), resp_size);
    // SAFETY: the provider gives a live context, a new CQ, its request and its answer.
    code(unsafe {
        let mut ioctl = Ioctl::new(object::CQ, CREATE);
        begin(&mut ioctl, ctx, &new, request, room);
        by_ioctl(ctx, &mut ioctl, &new).and_then(|way| match way {
            Some(made) => {
                answer(resp, resp_size, made);
                Ok(())
            }
            None => {
                (*cmd).core = ib_uverbs_create_cq {
                    response: 0,
                    user_handle: user_handle(cq),
                    cqe: new.cqe,
                    comp_vector: new.comp_vector,
                    comp_channel: channel.as_ref().map_or(-1, |channel| channel.fd),
                    reserved: 0,
                };
                write::plain(ctx, number::CREATE_CQ, cmd, cmd_size, resp, resp_size)?;
                made(ctx, cq, *resp);
                Ok(())
            }
        })
    })
}

/// # Safety
/// `ctx` live, attributes readable; CQ, request and answer valid.
pub unsafe extern "C" fn create_cq_ex(
    ctx: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    cq: *mut verbs_cq,
    cmd: *mut Extended<ib_uverbs_ex_create_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_cq_resp,
    resp_size: usize,
    cmd_flags: u32,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    unsafe { create_cq_ex2(ctx, attr, cq, cmd, cmd_size, resp, resp_size, cmd_flags, ptr::null_mut()) }
}

/// # Safety
/// As `create_cq_ex`; `driver` null or a live command buffer.
pub unsafe extern "C" fn create_cq_ex2(
    ctx: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    cq: *mut verbs_cq,
    cmd: *mut Extended<ib_uverbs_ex_create_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_cq_resp,
    resp_size: usize,
    cmd_flags: u32,
    driver: *mut ibv_command_buffer,
) -> c_int {
    // Memory came with release 59.
    let flags = cmd_flags & TS_IGNORED;
    // SAFETY: the caller's promises are this function's.
    code(unsafe { extended(ctx, attr, ptr::null(), cq, cmd, cmd_size, resp, resp_size, flags, driver) })
}

/// # Safety
/// As `create_cq_ex`; `memory` as the flags say.
pub unsafe extern "C" fn create_cq_ex_59(
    ctx: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    memory: *const verbs_create_cq_prov_attr,
    cq: *mut verbs_cq,
    cmd: *mut Extended<ib_uverbs_ex_create_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_cq_resp,
    resp_size: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    code(unsafe { extended(ctx, attr, memory, cq, cmd, cmd_size, resp, resp_size, flags, ptr::null_mut()) })
}

/// # Safety
/// As `create_cq_ex_59`; `driver` null or a live command buffer.
pub unsafe extern "C" fn create_cq_ex2_59(
    ctx: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    memory: *const verbs_create_cq_prov_attr,
    cq: *mut verbs_cq,
    cmd: *mut Extended<ib_uverbs_ex_create_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_cq_resp,
    resp_size: usize,
    flags: u32,
    driver: *mut ibv_command_buffer,
) -> c_int {
    // SAFETY: the caller's promises are this function's.
    code(unsafe { extended(ctx, attr, memory, cq, cmd, cmd_size, resp, resp_size, flags, driver) })
}

/// # Safety
/// As `create_cq_ex2_59`.
#[allow(clippy::too_many_arguments)]
unsafe fn extended(
    ctx: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
    memory: *const verbs_create_cq_prov_attr,
    cq: *mut verbs_cq,
    cmd: *mut Extended<ib_uverbs_ex_create_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_cq_resp,
    resp_size: usize,
    cmd_flags: u32,
    driver: *mut ibv_command_buffer,
) -> Result<(), Errno> {
    const TIMESTAMPS: u64 =
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    // SAFETY: the caller vouches for all.
    unsafe {
        let a = *attr;
        if a.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut flags = 0;
        if a.wc_flags & TIMESTAMPS != 0 && cmd_flags & TS_IGNORED == 0 {
            flags |= TIMESTAMP_COMPLETION;
        }
        let asked = if a.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { a.flags } else { 0 };
        if asked & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if asked & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
            flags |= IGNORE_OVERRUN;
        }
        let new = New { cq: cq.cast(), cqe: a.cqe, channel: a.channel, comp_vector: a.comp_vector, flags };
        let core = size_of::<Extended<ib_uverbs_ex_create_cq>>();
        let answer_core = size_of::<ib_uverbs_ex_create_cq_resp>();
        let (request, room) = (Tail::behind(cmd, core, cmd_size), Tail::behind(resp, answer_core, resp_size));
        let mut ioctl = Ioctl::new(object::CQ, CREATE);
        begin(&mut ioctl, ctx, &new, request, room);
        let with_memory = cmd_flags & (WITH_MEM_VA | WITH_MEM_DMABUF) != 0;
        if with_memory {
            let memory = memory.as_ref().ok_or(Errno::EINVAL)?;
            if cmd_flags & WITH_MEM_VA != 0 {
                ioctl.value(BUF_VA, memory.buf.expose_provenance() as u64);
                ioctl.value(BUF_LEN, memory.length);
            } else {
                ioctl.value(BUF_FD, memory.fd);
                ioctl.value(BUF_OFFSET, memory.offset);
                ioctl.value(BUF_LEN, memory.length);
            }
        }
        ioctl.link(driver);
        if let Some(base) = by_ioctl(ctx, &mut ioctl, &new)? {
            let length = answer_core as u32;
            answer(
                resp,
                resp_size,
                ib_uverbs_ex_create_cq_resp { base, comp_mask: 0, response_length: length },
            );
            return Ok(());
        }
        // What only an ioctl can say must not be lost in a written command.
        if with_memory || !driver.is_null() {
            return Err(Errno::EOPNOTSUPP);
        }
        (*cmd).core = ib_uverbs_ex_create_cq {
            user_handle: user_handle(cq),
            cqe: new.cqe,
            comp_vector: new.comp_vector,
            comp_channel: a.channel.as_ref().map_or(-1, |channel| channel.fd),
            comp_mask: 0,
            flags: new.flags,
            reserved: 0,
        };
        write::extended(ctx, number::CREATE_CQ, cmd, core, cmd_size, resp.cast(), answer_core, resp_size)?;
        made(ctx, cq.cast(), (*resp).base);
        Ok(())
    }
}

/// Adds the attributes that both forms have. A command stays where it is made: it is 800 bytes.
///
/// # Safety
/// `ctx` live, `new.channel` null or live, both tails valid.
unsafe fn begin(ioctl: &mut Ioctl, ctx: *mut ibv_context, new: &New, request: Tail, room: Tail) {
    ioctl.new_handle(HANDLE);
    ioctl.value(CQE, new.cqe);
    ioctl.value(USER_HANDLE, user_handle(new.cq));
    // SAFETY: the caller vouches for all.
    unsafe {
        if let Some(channel) = new.channel.as_ref() {
            ioctl.fd(COMP_CHANNEL, channel.fd);
        }
        ioctl.value(COMP_VECTOR, new.comp_vector);
        if (*ctx).async_fd >= 0 {
            ioctl.fd(EVENT_FD, (*ctx).async_fd);
            ioctl.optional();
        }
        if new.flags != 0 {
            ioctl.value(FLAGS, new.flags);
        }
        ioctl.tails(request, room);
    }
}

/// Sends it; none where the kernel lacks the method.
///
/// # Safety
/// As `begin`.
unsafe fn by_ioctl(
    ctx: *mut ibv_context,
    ioctl: &mut Ioctl,
    new: &New,
) -> Result<Option<ib_uverbs_create_cq_resp>, Errno> {
    let mut cqe = 0u32;
    ioctl.out(RESP_CQE, &mut cqe);
    // SAFETY: the caller vouches for all.
    unsafe {
        if ioctl.try_send(ctx)? == Way::Write {
            return Ok(None);
        }
        // The handle is the first attribute.
        let answer = ib_uverbs_create_cq_resp { cq_handle: ioctl.handle_at(0), cqe };
        made(ctx, new.cq, answer);
        Ok(Some(answer))
    }
}

/// # Safety
/// `cq` valid for writes.
unsafe fn made(ctx: *mut ibv_context, cq: *mut ibv_cq, answer: ib_uverbs_create_cq_resp) {
    // SAFETY: the caller vouches for it.
    unsafe {
        (*cq).handle = answer.cq_handle;
        (*cq).cqe = answer.cqe as c_int;
        (*cq).context = ctx;
    }
}

/// # Safety
/// `cq` live; request and answer valid.
pub unsafe extern "C" fn resize_cq(
    cq: *mut ibv_cq,
    cqe: c_int,
    cmd: *mut Plain<ib_uverbs_resize_cq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_resize_cq_resp,
    resp_size: usize,
) -> c_int {
    // SAFETY: the provider gives a live CQ, its request and its answer.
    code(unsafe {
        (*cmd).core.cq_handle = (*cq).handle;
        (*cmd).core.cqe = cqe as u32;
        write::plain((*cq).context, number::RESIZE_CQ, cmd, cmd_size, resp, resp_size)
            .map(|()| (*cq).cqe = (*resp).cqe as c_int)
    })
}

/// # Safety
/// `cq` live, attributes readable, request valid.
pub unsafe extern "C" fn modify_cq(
    cq: *mut ibv_cq,
    attr: *mut ibv_modify_cq_attr,
    cmd: *mut Extended<ib_uverbs_ex_modify_cq>,
    cmd_size: usize,
) -> c_int {
    let core = size_of::<Extended<ib_uverbs_ex_modify_cq>>();
    // SAFETY: the provider gives a live CQ, attributes and its request.
    code(unsafe {
        let a = &*attr;
        if a.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return code(Err(Errno::EINVAL));
        }
        (*cmd).core = ib_uverbs_ex_modify_cq {
            cq_handle: (*cq).handle,
            attr_mask: a.attr_mask,
            cq_count: a.moderate.cq_count,
            cq_period: a.moderate.cq_period,
            reserved: 0,
        };
        write::extended((*cq).context, number::MODIFY_CQ, cmd, core, cmd_size, ptr::null_mut(), 0, 0)
    })
}

/// Waits until the application has acknowledged all events that the kernel had told.
///
/// # Safety
/// `cq` live.
pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let mut told = ib_uverbs_destroy_cq_resp::zeroed();
    let mut ioctl = Ioctl::new(object::CQ, DESTROY);
    // SAFETY: the provider gives a live CQ, whose mutex and condition the library made.
    code(unsafe {
        let ctx = (*cq).context;
        ioctl.handle(0, (*cq).handle);
        ioctl.out(1, &mut told);
        let done = ioctl.try_send(ctx).and_then(|way| match way {
            Way::Done => Ok(()),
            Way::Write => {
                let core = ib_uverbs_destroy_answered { response: 0, handle: (*cq).handle, reserved: 0 };
                let mut request = Plain::of(core);
                let (size, room) = (size_of_val(&request), size_of_val(&told));
                write::plain(ctx, number::DESTROY_CQ, &mut request, size, &mut told, room)
            }
        });
        done.map(|()| {
            let done = &raw const (*cq).comp_events_completed;
            let done_async = &raw const (*cq).async_events_completed;
            pthread::wait_acknowledged(
                &raw mut (*cq).mutex,
                &raw mut (*cq).cond,
                &[(done, told.comp_events_reported), (done_async, told.async_events_reported)],
            );
        })
        .or_else(forgive)
    })
}
