//! Receive work queues and tables of them.
use super::write::{self, Extended, number};
use super::{Ioctl, Tail, Way, answer, code, fill, forgive, object, user_handle};
use crate::abi::*;
use crate::sys::errno::Errno;
use crate::sys::pthread;
use std::ffi::c_int;
use std::ptr;

const CREATE: u16 = 0;
const DESTROY: u16 = 1;
const DESTROY_TABLE: u16 = 0;

const HANDLE: u16 = 0;
const PD_HANDLE: u16 = 1;
const CQ_HANDLE: u16 = 2;
const USER_HANDLE: u16 = 3;
const TYPE: u16 = 4;
const EVENT_FD: u16 = 5;
const MAX_WR: u16 = 6;
const MAX_SGE: u16 = 7;
const FLAGS: u16 = 8;
const RESP_MAX_WR: u16 = 9;
const RESP_MAX_SGE: u16 = 10;
const RESP_WQ_NUM: u16 = 11;

/// # Safety
/// `ctx` live; attributes, WQ, request and answer valid.
pub unsafe extern "C" fn create_wq(
    ctx: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
    wq: *mut ibv_wq,
    cmd: *mut Extended<ib_uverbs_ex_create_wq>,
    cmd_size: usize,
    resp: *mut ib_uverbs_ex_create_wq_resp,
    resp_size: usize,
) -> c_int {
    let core = size_of::<Extended<ib_uverbs_ex_create_wq>>();
    let answer_core = size_of::<ib_uverbs_ex_create_wq_resp>();
    let (request, room) = (Tail::behind(cmd, core, cmd_size), Tail::behind(resp, answer_core, resp_size));
    // SAFETY: the provider gives a live context, attributes, a new WQ, its request and its answer.
    code(unsafe {
        if (*attr).comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 {
            return code(Err(Errno::EOPNOTSUPP));
        }
        by_ioctl(ctx, &*attr, wq, request, room).and_then(|made| {
            if let Some(mut made) = made {
                made.response_length = answer_core as u32;
                answer(resp, resp_size, made);
            } else {
                let a = &*attr;
                (*cmd).core = ib_uverbs_ex_create_wq {
                    comp_mask: 0,
                    wq_type: a.wq_type,
                    user_handle: user_handle(wq),
                    pd_handle: (*a.pd).handle,
                    cq_handle: fill::cq_handle(a.cq),
                    max_wr: a.max_wr,
                    max_sge: a.max_sge,
                    create_flags: flags(a),
                    reserved: 0,
                };
                let (to, number) = (resp.cast(), number::CREATE_WQ);
                write::extended(ctx, number, cmd, core, cmd_size, to, answer_core, resp_size)?;
            }
            let made = made.unwrap_or_else(|| *resp);
            let a = &mut *attr;
            a.max_wr = made.max_wr;
            a.max_sge = made.max_sge;
            (*wq).context = ctx;
            (*wq).wq_context = a.wq_context;
            (*wq).pd = a.pd;
            (*wq).cq = a.cq;
            (*wq).wq_type = a.wq_type;
            (*wq).handle = made.wq_handle;
            (*wq).wq_num = made.wqn;
            (*wq).state = IBV_WQS_RESET;
            Ok(())
        })
    })
}

fn flags(a: &ibv_wq_init_attr) -> u32 {
    if a.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 { a.create_flags } else { 0 }
}

/// # Safety
/// All objects named must be live, both tails valid.
unsafe fn by_ioctl(
    ctx: *mut ibv_context,
    a: &ibv_wq_init_attr,
    wq: *mut ibv_wq,
    request: Tail,
    room: Tail,
) -> Result<Option<ib_uverbs_ex_create_wq_resp>, Errno> {
    let mut made = ib_uverbs_ex_create_wq_resp::zeroed();
    let mut ioctl = Ioctl::new(object::WQ, CREATE);
    let place = ioctl.new_handle(HANDLE);
    // SAFETY: the caller vouches for all.
    unsafe {
        ioctl.handle(PD_HANDLE, (*a.pd).handle);
        ioctl.handle(CQ_HANDLE, fill::cq_handle(a.cq));
        ioctl.value(USER_HANDLE, user_handle(wq));
        ioctl.constant(TYPE, a.wq_type.into());
        if (*ctx).async_fd >= 0 {
            ioctl.fd(EVENT_FD, (*ctx).async_fd);
        }
        ioctl.value(MAX_WR, a.max_wr);
        ioctl.value(MAX_SGE, a.max_sge);
        ioctl.value(FLAGS, flags(a));
        ioctl.out(RESP_MAX_WR, &mut made.max_wr);
        ioctl.out(RESP_MAX_SGE, &mut made.max_sge);
        ioctl.out(RESP_WQ_NUM, &mut made.wqn);
        ioctl.tails(request, room);
        if ioctl.try_send(ctx)? == Way::Write {
            return Ok(None);
        }
    }
    made.wq_handle = ioctl.handle_at(place);
    Ok(Some(made))
}

/// # Safety
/// `wq` live, attributes readable, request valid.
pub unsafe extern "C" fn modify_wq(
    wq: *mut ibv_wq,
    attr: *mut ibv_wq_attr,
    cmd: *mut Extended<ib_uverbs_ex_modify_wq>,
    cmd_size: usize,
) -> c_int {
    const KNOWN: u32 = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
    let core = size_of::<Extended<ib_uverbs_ex_modify_wq>>();
    // SAFETY: the provider gives a live WQ, attributes and its request.
    code(unsafe {
        let a = &*attr;
        if a.attr_mask & !KNOWN != 0 {
            return code(Err(Errno::EINVAL));
        }
        let told = |bit: u32, value: u32| if a.attr_mask & bit != 0 { value } else { 0 };
        (*cmd).core = ib_uverbs_ex_modify_wq {
            attr_mask: a.attr_mask,
            wq_handle: (*wq).handle,
            wq_state: told(IBV_WQ_ATTR_STATE, a.wq_state),
            curr_wq_state: told(IBV_WQ_ATTR_CURR_STATE, a.curr_wq_state),
            flags: told(IBV_WQ_ATTR_FLAGS, a.flags),
            flags_mask: told(IBV_WQ_ATTR_FLAGS, a.flags_mask),
        };
        write::extended((*wq).context, number::MODIFY_WQ, cmd, core, cmd_size, ptr::null_mut(), 0, 0).map(
            |()| {
                if a.attr_mask & IBV_WQ_ATTR_STATE != 0 {
                    (*wq).state = a.wq_state;
                }
            },
        )
    })
}

/// Waits until the application has acknowledged all events that the kernel had told.
///
/// # Safety
/// `wq` live.
pub unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    let mut events = 0u32;
    let mut ioctl = Ioctl::new(object::WQ, DESTROY);
    // SAFETY: the provider gives a live WQ, whose mutex and condition verbs.h made.
    code(unsafe {
        let ctx = (*wq).context;
        ioctl.handle(0, (*wq).handle);
        ioctl.out(1, &mut events);
        let done = ioctl.try_send(ctx).and_then(|way| {
            if way == Way::Write {
                let mut request = Extended::of(ib_uverbs_ex_destroy { comp_mask: 0, handle: (*wq).handle });
                let mut told = ib_uverbs_ex_destroy_wq_resp::zeroed();
                let (size, room) = (size_of_val(&request), size_of_val(&told));
                let to = (&raw mut told).cast();
                write::extended(ctx, number::DESTROY_WQ, &mut request, size, size, to, room, room)?;
                events = told.events_reported;
            }
            Ok(())
        });
        done.map(|()| {
            let done = &raw const (*wq).events_completed;
            pthread::wait_acknowledged(&raw mut (*wq).mutex, &raw mut (*wq).cond, &[(done, events)]);
        })
        .or_else(forgive)
    })
}

/// Most WQs that a table may have, as a power of two: the kernel's own limit.
const MAX_LOG_TABLE: u32 = 0x0d;

/// # Safety
/// `ctx` live; attributes, table and answer valid.
pub unsafe extern "C" fn create_rwq_ind_table(
    ctx: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
    table: *mut ibv_rwq_ind_table,
    resp: *mut ib_uverbs_ex_create_rwq_ind_table_resp,
    resp_size: usize,
) -> c_int {
    let answer_core = size_of::<ib_uverbs_ex_create_rwq_ind_table_resp>();
    // SAFETY: the provider gives a live context, attributes with as many WQs as they say, a new table and its answer.
    code(unsafe {
        let a = &*attr;
        if a.comp_mask != 0 {
            return code(Err(Errno::EINVAL));
        }
        if a.log_ind_tbl_size > MAX_LOG_TABLE {
            return code(Err(Errno::EINVAL));
        }
        let count = 1usize << a.log_ind_tbl_size;
        let head = size_of::<Extended<ib_uverbs_ex_create_rwq_ind_table>>();
        let core = head + (count * size_of::<u32>()).next_multiple_of(8);
        // Words of eight bytes, so that the request is aligned.
        let mut memory = vec![0u64; core / 8];
        let request = memory.as_mut_ptr().cast::<Extended<ib_uverbs_ex_create_rwq_ind_table>>();
        (*request).core =
            ib_uverbs_ex_create_rwq_ind_table { comp_mask: 0, log_ind_tbl_size: a.log_ind_tbl_size };
        let handles = request.byte_add(head).cast::<u32>();
        for i in 0..count {
            handles.add(i).write((**a.ind_tbl.add(i)).handle);
        }
        let (to, number) = (resp.cast(), number::CREATE_RWQ_IND_TBL);
        write::extended(ctx, number, request, core, core, to, answer_core, resp_size).map(|()| {
            (*table).ind_tbl_handle = (*resp).ind_tbl_handle as c_int;
            (*table).ind_tbl_num = (*resp).ind_tbl_num as c_int;
            (*table).context = ctx;
        })
    })
}

/// # Safety
/// `table` live.
pub unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    let mut ioctl = Ioctl::new(object::RWQ_IND_TBL, DESTROY_TABLE);
    // SAFETY: the provider gives a live table.
    code(unsafe {
        let (ctx, handle) = ((*table).context, (*table).ind_tbl_handle as u32);
        ioctl.handle(0, handle);
        let done = ioctl.try_send(ctx).and_then(|way| match way {
            Way::Done => Ok(()),
            Way::Write => {
                let mut request = Extended::of(ib_uverbs_ex_destroy { comp_mask: 0, handle });
                let size = size_of_val(&request);
                let number = number::DESTROY_RWQ_IND_TBL;
                write::extended(ctx, number, &mut request, size, size, ptr::null_mut(), 0, 0)
            }
        });
        done.or_else(forgive)
    })
}
